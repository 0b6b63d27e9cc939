#include "cuda/token_chooser.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace tetrad::cuda {
namespace {

constexpr std::size_t kChoiceAlignment = 16;
constexpr std::size_t kMostScratchFloats = std::size_t{1} << 22;  // where scores do not fit into shared memory

std::size_t aligned(std::size_t bytes) { return (bytes + kChoiceAlignment - 1) / kChoiceAlignment * kChoiceAlignment; }

std::size_t choices_of(const SamplePlan& plan, int max_choices) {
  const auto most = static_cast<std::size_t>(std::max(max_choices, 1));
  if (plan.scratch_floats == 0) return most;
  return std::clamp<std::size_t>(kMostScratchFloats / plan.scratch_floats, 1, most);
}

// Of the largest piece: all ids of one choice may be adjusted, every choice may have a mask.
std::size_t piece_bytes(std::size_t V, std::size_t mask_words, std::size_t choices) {
  return aligned(choices * sizeof(DeviceChoice)) + aligned(V * sizeof(TokenAdjustment)) + aligned(V * sizeof(int)) +
         aligned(choices * mask_words * sizeof(std::uint32_t));
}

}  // namespace

TokenChooser::TokenChooser(int V, int max_choices, const SamplePlan& plan)
    : V_(V), mask_words_((static_cast<std::size_t>(V) + 31) / 32), max_choices_(choices_of(plan, max_choices)), plan_(plan) {
  const std::size_t bytes = piece_bytes(static_cast<std::size_t>(V), mask_words_, max_choices_);
  host_ = PinnedBuffer<std::byte>(bytes, "choices of tokens");
  device_ = DeviceBuffer<std::byte>(bytes, "choices of tokens");
  if (plan_.scratch_floats > 0) scratch_ = DeviceBuffer<float>(max_choices_ * plan_.scratch_floats, "scores of choices");
  chosen_ = PinnedBuffer<ChosenToken>(max_choices_, "chosen tokens");
}

// As many as have room. One always has.
std::size_t TokenChooser::piece_of(std::span<const TokenChoice> choices) const {
  std::size_t count = 0, adjustments = 0;
  while (count < choices.size() && count < max_choices_) {
    adjustments += choices[count].adjustments.size();
    if (count > 0 && adjustments > static_cast<std::size_t>(V_)) break;
    ++count;
  }
  return count;
}

SampleArgs TokenChooser::send(const ChoiceBatch& batch, std::span<const TokenChoice> piece, const Stream& stream) {
  std::size_t used = 0;
  // Room for the arrays of one kind: where it is on the host, and its address on the device.
  const auto take = [&]<class T>(std::size_t count, T** host) {
    *host = reinterpret_cast<T*>(host_.data() + used);
    const T* device = reinterpret_cast<const T*>(device_.data() + used);
    used += aligned(count * sizeof(T));
    TETRAD_CHECK(used <= host_.bytes(), "{} bytes of choices, room for {}", used, host_.bytes());
    return device;
  };
  SampleArgs args{
      .num_choices = static_cast<int>(piece.size()), .V = V_, .limit = batch.limit, .num_holes = static_cast<int>(batch.holes.size())};
  for (const TokenChoice& choice : piece) {
    args.num_adjustments += static_cast<int>(choice.adjustments.size());
    args.num_masks += choice.mask.empty() ? 0 : 1;
  }
  DeviceChoice* choices = nullptr;
  TokenAdjustment* adjustments = nullptr;
  int* holes = nullptr;
  std::uint32_t* masks = nullptr;
  args.choices = take(piece.size(), &choices);
  args.adjustments = take(static_cast<std::size_t>(args.num_adjustments), &adjustments);
  args.holes = take(batch.holes.size(), &holes);
  args.masks = take(static_cast<std::size_t>(args.num_masks) * mask_words_, &masks);
  std::copy(batch.holes.begin(), batch.holes.end(), holes);
  int first_adjustment = 0, mask = 0;
  for (const TokenChoice& choice : piece) {
    *choices = {.top_p = choice.top_p,
                .random = choice.random,
                .inverse_temperature = choice.inverse_temperature,
                .least_exponent = choice.least_exponent,
                .repetition = choice.repetition,
                .presence = choice.presence,
                .row = choice.row,
                .forced = choice.forced,
                .top_k = choice.top_k,
                .mask = choice.mask.empty() ? -1 : mask,
                .first_adjustment = first_adjustment,
                .num_adjustments = static_cast<int>(choice.adjustments.size())};
    ++choices;
    std::copy(choice.adjustments.begin(), choice.adjustments.end(), adjustments + first_adjustment);
    first_adjustment += static_cast<int>(choice.adjustments.size());
    std::copy(choice.mask.begin(), choice.mask.end(), masks + static_cast<std::size_t>(mask) * mask_words_);
    mask += choice.mask.empty() ? 0 : 1;
  }
  stream.copy(device_.data(), host_.data(), used);
  return args;
}

void TokenChooser::choose(const float* logits, int num_rows, const ChoiceBatch& batch, std::span<ChosenToken> chosen,
                          const Stream& stream) {
  for (std::size_t first = 0; first < batch.choices.size();) {
    const auto piece = batch.choices.subspan(first, piece_of(batch.choices.subspan(first)));
    SampleArgs args = send(batch, piece, stream);
    args.num_rows = num_rows;
    args.logits = logits;
    args.chosen = chosen_.data();
    args.scratch = scratch_.data();
    sample(args, plan_, stream);
    stream.synchronize();  // the answers are there, and the memory of the piece is free
    std::copy_n(chosen_.data(), piece.size(), chosen.begin() + static_cast<std::ptrdiff_t>(first));
    first += piece.size();
  }
}

}  // namespace tetrad::cuda

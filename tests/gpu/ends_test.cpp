// ends against host loops: rows taken over exactly, nothing written beside them, a row that is not finite fails alone.
#include "cuda/kernels/ends.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "device_arrays.h"

namespace tetrad::cuda {
namespace {

using test::random_bf16;
using test::to_device;
using test::to_host;

constexpr bf16 kSentinel{0x7b7b};

TEST(ends, embed_gives_every_stream_the_tokens_row) {
  const Stream stream;
  for (const auto& [T, HC, D] : std::vector<std::array<int, 3>>{{1, 4, 2560}, {37, 3, 40}, {5, 1, 8}, {130, 2, 4104}}) {
    constexpr int kVocab = 90;
    std::vector<int> ids;
    for (int t = 0; t < T; ++t) ids.push_back(t * 31 % kVocab);
    ids[0] = kVocab - 1;
    const auto embedding = random_bf16(static_cast<std::size_t>(kVocab * D), 1);
    const auto device_embedding = to_device(embedding, stream);
    const auto device_ids = to_device(ids, stream);
    auto streams = to_device(std::vector<bf16>(static_cast<std::size_t>((T + 1) * HC * D), kSentinel), stream);
    StepRows r;
    r.T = T, r.token_ids = device_ids.data(), r.vocab_size = kVocab;
    embed(device_embedding.data(), D, HC, streams.data(), r, stream);
    const auto got = to_host(streams, stream);
    for (int i = 0; i < (T + 1) * HC * D; ++i)
      ASSERT_EQ(got[i], i < T * HC * D ? embedding[ids[i / (HC * D)] * D + i % D] : kSentinel) << "element " << i << " of " << T << " rows";
  }
}

TEST(ends, take_rows_takes_them_in_the_order_asked_for) {
  const Stream stream;
  const int T = 20, D = 300;
  const auto x = random_bf16(T * D, 2);
  const std::vector<int> wanted{19, 0, 7, 7, 3};
  const auto device_x = to_device(x, stream);
  const auto device_wanted = to_device(wanted, stream);
  auto out = to_device(std::vector<bf16>((wanted.size() + 1) * D, kSentinel), stream);
  StepRows r;
  r.T = T;
  take_rows(device_x.data(), D, device_wanted.data(), static_cast<int>(wanted.size()), out.data(), r, stream);
  const auto got = to_host(out, stream);
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(got[i], i < wanted.size() * D ? x[wanted[i / D] * D + i % D] : kSentinel) << "row " << i / D;
}

TEST(ends, widen_logits_keeps_every_value_and_fails_rows_that_are_not_finite) {
  const Stream stream;
  for (const int V : {1, 255, 5000, 30011}) {  // one block of a row, and several
    const int T = 12, layers = 6, fault = layers << 2 | static_cast<int>(FaultKind::kLogits);
    const std::vector<int> wanted{11, 2, 5, 0, 8};  // of the step
    auto logits = random_bf16(wanted.size() * V, 3);
    logits[1 * V + V - 1] = to_bf16(std::numeric_limits<float>::quiet_NaN());
    logits[2 * V] = to_bf16(-std::numeric_limits<float>::infinity());
    logits[4 * V + V / 2] = to_bf16(std::numeric_limits<float>::infinity());
    std::vector<int> faults(T, 0);
    faults[8] = 77;  // of an earlier layer
    const auto device_logits = to_device(logits, stream);
    const auto device_wanted = to_device(wanted, stream);
    auto device_faults = to_device(faults, stream);
    auto out = to_device(std::vector<float>((wanted.size() + 1) * V, -3.0f), stream);
    StepRows r;
    r.T = T, r.faults = device_faults.data();
    widen_logits(device_logits.data(), V, device_wanted.data(), static_cast<int>(wanted.size()), layers, out.data(), r, stream);
    const auto got = to_host(out, stream);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const float expected = i < logits.size() ? to_float(logits[i]) : -3.0f;
      ASSERT_EQ(std::bit_cast<unsigned>(got[i]), std::bit_cast<unsigned>(expected)) << "element " << i << ", V " << V;
    }
    std::vector<int> expected = faults;
    expected[2] = expected[5] = fault;
    EXPECT_EQ(to_host(device_faults, stream), expected) << "V " << V;
  }
}

TEST(ends, advance_lengths_writes_the_slots_and_the_saves_and_nothing_else) {
  const Stream stream;
  constexpr int kSlots = 8;
  constexpr std::size_t kOffset = 48, kSlotBytes = 128;
  const std::vector<int> counts{1, 300, 2}, start{0, 40, 7}, slot{5, 2, 0};
  std::vector<int> first_row{0}, position;
  for (std::size_t b = 0; b < counts.size(); ++b) {
    for (int i = 0; i < counts[b]; ++i) position.push_back(start[b] + i);
    first_row.push_back(first_row.back() + counts[b]);
  }
  std::vector<int> save_slot(position.size(), -1);
  save_slot[1] = 7, save_slot[299] = 3, save_slot[302] = 6;  // the first and a late row of the second sequence, the last of the third
  std::vector<std::byte> expected(kSlots * kSlotBytes, std::byte{0x5a});
  auto slots = to_device(expected, stream);
  const auto write = [&](int index, std::int64_t length) { std::memcpy(expected.data() + index * kSlotBytes + kOffset, &length, 8); };
  write(5, 1), write(2, 340), write(0, 9), write(7, 41), write(3, 339), write(6, 9);
  const auto device_first = to_device(first_row, stream), device_position = to_device(position, stream),
             device_start = to_device(start, stream), device_slot = to_device(slot, stream), device_save = to_device(save_slot, stream);
  StepRows r;
  r.T = first_row.back(), r.B = 3;
  r.first_row = device_first.data(), r.position = device_position.data(), r.start = device_start.data(), r.slot = device_slot.data();
  r.save_slot = device_save.data(), r.slots = slots.data(), r.slot_bytes = kSlotBytes, r.num_slots = kSlots;
  advance_lengths(kOffset, r, stream);
  EXPECT_EQ(to_host(slots, stream), expected);
}

}  // namespace
}  // namespace tetrad::cuda

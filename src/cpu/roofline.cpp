#include "cpu/roofline.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "cpu/aligned_buffer.h"
#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/roofline.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tetrad::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using DU = hn::ScalableTag<std::uint32_t>;
using DF = hn::ScalableTag<float>;

// Ten chains: enough to hide four cycles of latency on two units, few enough for sixteen registers.
constexpr int kChains = 10;

// num_words is a multiple of 64 vectors. The xor of all words, so that no load can be left out.
std::uint32_t read_all(const std::uint32_t* words, std::size_t num_words) {
  const DU du;
  const std::size_t lanes = hn::Lanes(du);
  auto a = hn::Zero(du), b = a, c = a, d = a;
  for (std::size_t i = 0; i < num_words; i += 4 * lanes) {
    a = hn::Xor(a, hn::Load(du, words + i));
    b = hn::Xor(b, hn::Load(du, words + i + lanes));
    c = hn::Xor(c, hn::Load(du, words + i + 2 * lanes));
    d = hn::Xor(d, hn::Load(du, words + i + 3 * lanes));
  }
  return hn::GetLane(hn::Xor(hn::Xor(a, b), hn::Xor(c, d)));
}

// Runs `rounds` multiply-adds on each chain; returns the floating-point operations done.
double multiply_add(std::int64_t rounds, float* sink) {
  const DF df;
  hn::Vec<DF> chain[kChains];
  for (int i = 0; i < kChains; ++i) chain[i] = hn::Set(df, 1.0f + static_cast<float>(i));
  const auto factor = hn::Set(df, 0.5f), term = hn::Set(df, *sink);
  for (std::int64_t round = 0; round < rounds; ++round)
    for (int i = 0; i < kChains; ++i) chain[i] = hn::MulAdd(chain[i], factor, term);
  auto sum = chain[0];
  for (int i = 1; i < kChains; ++i) sum = hn::Add(sum, chain[i]);
  *sink = hn::GetLane(sum);
  return 2.0 * static_cast<double>(hn::Lanes(df)) * kChains * static_cast<double>(rounds);
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace tetrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tetrad::cpu {
namespace {

HWY_EXPORT(read_all);
HWY_EXPORT(multiply_add);
HWY_EXPORT(target_name);

using Clock = std::chrono::steady_clock;
constexpr int kMaxPasses = 8;
constexpr auto kTimePerFigure = std::chrono::milliseconds(600);
constexpr int kPiecesPerThread = 4;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The best rate over passes of `pass`, which returns the work that it did.
template <class Pass>
double best_rate(const Pass& pass) {
  const auto begin = Clock::now();
  double best = 0;
  for (int i = 0; i < kMaxPasses && (i < 2 || Clock::now() - begin < kTimePerFigure); ++i) {
    const auto start = Clock::now();
    const double work = pass();
    best = std::max(best, work / seconds_since(start));
  }
  return best;
}

}  // namespace

double measure_read_bandwidth(ThreadPool& pool, std::size_t num_bytes) {
  constexpr std::size_t kPieceWords = std::size_t{1} << 18;
  const auto num_pieces = static_cast<int>(std::clamp<std::size_t>(num_bytes / (kPieceWords * sizeof(std::uint32_t)), 1, 1 << 20));
  const AlignedBuffer<std::uint32_t> words(static_cast<std::size_t>(num_pieces) * kPieceWords);
  std::atomic<std::uint32_t> sink{0};
  return 1e-9 * best_rate([&] {
           pool.parallel_for(num_pieces, 1, [&](int begin, int end) {
             sink ^= HWY_DYNAMIC_DISPATCH(read_all)(words.data() + begin * kPieceWords, (end - begin) * kPieceWords);
           });
           return static_cast<double>(words.bytes());
         });
}

double measure_f32_peak(ThreadPool& pool) {
  constexpr std::int64_t kRounds = 1'000'000;  // some milliseconds
  return 1e-9 * best_rate([&] {
           std::atomic<std::int64_t> done{0};
           pool.parallel_for(pool.num_threads() * kPiecesPerThread, 1, [&](int begin, int end) {
             for (int i = begin; i < end; ++i) {
               float sink = 0.25f;
               done += static_cast<std::int64_t>(HWY_DYNAMIC_DISPATCH(multiply_add)(kRounds, &sink));
               if (sink == 0) done += 1;  // never: the chains converge to 0.5
             }
           });
           return static_cast<double>(done);
         });
}

std::string instruction_set() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

Roofline measure_roofline(ThreadPool& pool) {
  return {.read_gb_per_s = measure_read_bandwidth(pool),
          .f32_gflop_per_s = measure_f32_peak(pool),
          .num_threads = pool.num_threads(),
          .instruction_set = instruction_set()};
}

}  // namespace tetrad::cpu
#endif

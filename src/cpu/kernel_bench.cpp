#include "cpu/kernel_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/bf16.h"
#include "cpu/aligned_buffer.h"
#include "cpu/matmul.h"

namespace tetrad::cpu {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kMinSeconds = 0.3;

// The best time of one call of `call`, in microseconds.
template <class Call>
double best_microseconds(const Call& call) {
  double best = 1e30;
  const auto begin = Clock::now();
  auto start = begin;
  int calls = 0;
  do {
    start = Clock::now();
    call();
    const auto stop = Clock::now();
    best = std::min(best, std::chrono::duration<double, std::micro>(stop - start).count());
    ++calls;
  } while (calls < 3 || std::chrono::duration<double>(start - begin).count() < kMinSeconds);
  return best;
}

// Values in about [-1, 1) from a linear congruence: no kernel is faster or slower for them.
struct Noise {
  std::uint32_t state = 1;
  std::uint32_t next() { return state = state * 1664525u + 1013904223u; }
  float value() { return round_bf16(static_cast<float>(static_cast<std::int32_t>(next())) * 0x1p-31f); }
};

struct Linear {
  AlignedBuffer<std::uint8_t> bytes;
  AlignedBuffer<float> scales;
  LinearView view;
};

Linear make_linear(int rows, int columns, bool fp8) {
  constexpr int kBlock = 128;
  Noise noise;
  Linear linear;
  const auto num_elements = static_cast<std::size_t>(rows) * columns;
  linear.bytes = AlignedBuffer<std::uint8_t>(num_elements * (fp8 ? 1 : 2));
  if (fp8) {
    for (std::size_t i = 0; i < num_elements; ++i) linear.bytes[i] = static_cast<std::uint8_t>(noise.next() >> 24) & 0xf7u;
    const std::int64_t scale_rows = (rows + kBlock - 1) / kBlock, scale_columns = (columns + kBlock - 1) / kBlock;
    linear.scales = AlignedBuffer<float>(static_cast<std::size_t>(scale_rows * scale_columns));
    std::fill_n(linear.scales.data(), linear.scales.size(), 0.01f);
    linear.view.scale_inv = WeightView{.data = reinterpret_cast<const std::byte*>(linear.scales.data()),
                                       .dtype = DType::kF32,
                                       .shape = {scale_rows, scale_columns},
                                       .name = "scale"};
    linear.view.block_rows = linear.view.block_columns = kBlock;
  } else {
    auto* out = reinterpret_cast<bf16*>(linear.bytes.data());
    for (std::size_t i = 0; i < num_elements; ++i) out[i] = to_bf16(noise.value());
  }
  linear.view.weight = {.data = reinterpret_cast<const std::byte*>(linear.bytes.data()),
                        .dtype = fp8 ? DType::kF8E4M3 : DType::kBF16,
                        .shape = {rows, columns},
                        .name = "weight"};
  return linear;
}

PackedLinear make_packed(int rows, int columns, bool fp8) { return PackedLinear::pack(make_linear(rows, columns, fp8).view); }

// `copies` weights of one shape, used in turn, so that their sum decides in which memory they lie.
KernelFigure bench_matmul(int T, int K, int N, bool fp8, int copies, ThreadPool& pool) {
  std::vector<PackedLinear> weights;
  for (int i = 0; i < copies; ++i) weights.push_back(make_packed(N, K, fp8));
  AlignedBuffer<float> x(static_cast<std::size_t>(T) * K), y(static_cast<std::size_t>(T) * N);
  Noise noise;
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = noise.value();
  const double all = best_microseconds([&] {
    for (const PackedLinear& w : weights) matmul(w, {.T = T, .x = x.data(), .ldx = K, .y = y.data(), .ldy = N}, pool);
  });
  return {.name = fmt::format("matmul {} T={} K={} N={}{}", fp8 ? "fp8" : "bf16", T, K, N, copies > 1 ? fmt::format(" x{}", copies) : ""),
          .microseconds = all / copies,
          .bytes = static_cast<double>(weights.front().bytes()) + 4.0 * T * (K + N),
          .flops = 2.0 * T * K * N};
}

// Experts of which each has `rows_each` rows, in one parallel region.
KernelFigure bench_jobs(int num_jobs, int rows_each, int K, int N, ThreadPool& pool) {
  std::vector<PackedLinear> weights;
  for (int i = 0; i < num_jobs; ++i) weights.push_back(make_packed(N, K, false));
  AlignedBuffer<float> x(static_cast<std::size_t>(rows_each) * K), y(static_cast<std::size_t>(num_jobs) * rows_each * N);
  Noise noise;
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = noise.value();
  std::vector<MatmulJob> jobs;
  for (int i = 0; i < num_jobs; ++i)
    jobs.push_back(
        {.w = &weights[i], .T = rows_each, .x = x.data(), .ldx = K, .y = y.data() + static_cast<std::size_t>(i) * rows_each * N, .ldy = N});
  return {.name = fmt::format("matmul_jobs bf16 {} experts T={} K={} N={}", num_jobs, rows_each, K, N),
          .microseconds = best_microseconds([&] { matmul_jobs(jobs, pool); }),
          .bytes = num_jobs * (static_cast<double>(weights.front().bytes()) + 4.0 * rows_each * (K + N)),
          .flops = 2.0 * num_jobs * rows_each * K * N};
}

}  // namespace

std::vector<KernelFigure> bench_kernels(ThreadPool& pool) {
  std::vector<KernelFigure> figures;
  figures.push_back({.name = "parallel_for, empty",
                     .microseconds = best_microseconds([&] {
                                       for (int i = 0; i < 1000; ++i) pool.parallel_for(pool.num_threads(), 1, [](int, int) {});
                                     }) /
                                     1000});
  figures.push_back(bench_matmul(1, 2048, 2048, false, 128, pool));  // 1 GiB
  figures.push_back(bench_matmul(1, 2048, 2048, true, 128, pool));
  figures.push_back(bench_matmul(2, 2048, 2048, false, 32, pool));
  figures.push_back(bench_matmul(4, 2048, 2048, false, 32, pool));
  figures.push_back(bench_matmul(1, 1024, 1024, false, 1, pool));  // 2 MiB, in L3
  for (const int T : {6, 8, 16, 64, 512}) figures.push_back(bench_matmul(T, 2048, 2048, false, 1, pool));
  figures.push_back(bench_matmul(512, 2048, 2048, true, 1, pool));
  figures.push_back(bench_matmul(512, 256, 1024, false, 1, pool));
  figures.push_back(bench_matmul(1, 256, 1024, false, 1, pool));
  figures.push_back(bench_matmul(1, 256, 1024, true, 1, pool));
  figures.push_back(bench_matmul(1, 256, 256, false, 1, pool));
  figures.push_back(bench_matmul(1, 1024, 36, false, 1, pool));
  figures.push_back(bench_matmul(1, 256, 4, false, 1, pool));
  figures.push_back(bench_jobs(8, 1, 256, 256, pool));
  figures.push_back(bench_jobs(64, 3, 256, 256, pool));
  figures.push_back(bench_jobs(32, 16, 256, 256, pool));
  return figures;
}

}  // namespace tetrad::cpu

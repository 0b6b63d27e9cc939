#include "cpu/attention_kernels.h"

#include <cstdint>

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tetrad::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class DF>
HWY_INLINE hn::Vec<DF> load_bf16(DF df, const bf16* x) {
  const hn::RebindToUnsigned<DF> du;
  const hn::Rebind<std::uint16_t, DF> dh;
  return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(dh, reinterpret_cast<const std::uint16_t*>(x)))));
}

// --- Scores: eight lanes per row, kRows rows at a time, because one row's chain alone waits on itself. ---

template <int kRows>
HWY_INLINE void score_rows(const float* q, const bf16* const* rows, int offset, int DH, float* scores) {
  using DF = hn::CappedTag<float, 8>;
  const DF df;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
  constexpr int kVectors = 8 / kLanes;
  hn::Vec<DF> sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(df);
  int d = 0;
  for (; d + 8 <= DH; d += 8)
    for (int v = 0; v < kVectors; ++v) {
      const auto query = hn::LoadU(df, q + d + v * kLanes);
      for (int r = 0; r < kRows; ++r) sum[r][v] = hn::Add(sum[r][v], hn::Mul(query, load_bf16(df, rows[r] + offset + d + v * kLanes)));
    }
  for (int r = 0; r < kRows; ++r) {
    HWY_ALIGN float s[8];
    for (int v = 0; v < kVectors; ++v) hn::Store(sum[r][v], df, s + v * kLanes);
    for (int rest = d; rest < DH; ++rest) {
      const float product = q[rest] * to_float(rows[r][offset + rest]);
      s[rest - d] = s[rest - d] + product;
    }
    scores[r] = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
  }
}

void attention_scores(const float* q, const bf16* const* rows, int num_rows, int offset, int DH, float* scores) {
  constexpr int kAtOnce = 4;
  int n = 0;
  for (; n + kAtOnce <= num_rows; n += kAtOnce) score_rows<kAtOnce>(q, rows + n, offset, DH, scores + n);
  for (; n < num_rows; ++n) score_rows<1>(q, rows + n, offset, DH, scores + n);
}

// --- Weighted sum: a band of elements stays in registers over all rows. ---

template <class DF, int kVectors>
HWY_INLINE void sum_bands(const float* weights, const bf16* const* rows, int num_rows, int offset, int DH, float* out, int* d) {
  const DF df;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
  for (; *d + kVectors * kLanes <= DH; *d += kVectors * kLanes) {
    hn::Vec<DF> sum[kVectors];
    for (int v = 0; v < kVectors; ++v) sum[v] = hn::Zero(df);
    for (int n = 0; n < num_rows; ++n) {
      const auto weight = hn::Set(df, weights[n]);
      const bf16* row = rows[n] + offset + *d;
      for (int v = 0; v < kVectors; ++v) sum[v] = hn::MulAdd(weight, load_bf16(df, row + v * kLanes), sum[v]);
    }
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[v], df, out + *d + v * kLanes);
  }
}

void attention_weighted_sum(const float* weights, const bf16* const* rows, int num_rows, int offset, int DH, float* out) {
  using Wide = hn::ScalableTag<float>;
  int d = 0;
  sum_bands<Wide, 8>(weights, rows, num_rows, offset, DH, out, &d);
  sum_bands<Wide, 1>(weights, rows, num_rows, offset, DH, out, &d);
  sum_bands<hn::CappedTag<float, 1>, 1>(weights, rows, num_rows, offset, DH, out, &d);
}

}  // namespace tetrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tetrad::cpu {

HWY_EXPORT(attention_scores);
HWY_EXPORT(attention_weighted_sum);

void attention_scores(const float* q, const bf16* const* rows, int num_rows, int offset, int DH, float* scores) {
  HWY_DYNAMIC_DISPATCH(attention_scores)(q, rows, num_rows, offset, DH, scores);
}

void attention_weighted_sum(const float* weights, const bf16* const* rows, int num_rows, int offset, int DH, float* out) {
  HWY_DYNAMIC_DISPATCH(attention_weighted_sum)(weights, rows, num_rows, offset, DH, out);
}

}  // namespace tetrad::cpu
#endif

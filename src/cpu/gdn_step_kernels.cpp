#include "cpu/gdn_step_kernels.h"

#include <algorithm>
#include <cstddef>

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gdn_step_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tetrad::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A block of columns is copied to the stack when several tokens follow each other: rows of S are often a power of two apart and would
// share a few sets of the first-level cache.
constexpr int kMinBlockTokens = 3;
constexpr int kMaxBlockFloats = 8192;

// kVectors vectors of columns at once. With four, the chains of r and o keep two multiply-add units busy.
template <class DF, int kVectors>
struct GdnColumns {
  using V = hn::Vec<DF>;
  static constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
  static constexpr int kWidth = kLanes * kVectors;

  const GdnStepArgs& a;
  int column;             // the first one
  float* S;               // its first row
  std::ptrdiff_t stride;  // between rows of S

  const float* token(const float* rows, int t) const { return rows + static_cast<std::ptrdiff_t>(t) * a.ld_qkv; }

  // Sums are kept in arrays of the function itself and copied at its end, and everything else that a loop reads in locals: what is
  // reached through a pointer may, for all the compiler knows, be what a store to S changes.

  // recalled = k^T S, before the decay.
  HWY_INLINE void recall(int t, V* recalled) const {
    const DF df;
    const int K = a.K;
    const float* k = token(a.k, t);
    const float* row = S;
    const std::ptrdiff_t step = stride;
    V r[kVectors];
    for (int v = 0; v < kVectors; ++v) r[v] = hn::Zero(df);
    for (int i = 0; i < K; ++i, row += step) {
      const V key = hn::Set(df, k[i]);
      for (int v = 0; v < kVectors; ++v) r[v] = hn::MulAdd(key, hn::LoadU(df, row + v * kLanes), r[v]);
    }
    for (int v = 0; v < kVectors; ++v) recalled[v] = r[v];
  }

  // One token: the update, the output, and, unless it is the last, what the next token recalls, while each piece of S is in a register.
  template <bool kLast>
  HWY_INLINE void update(int t, V* recalled) const {
    const DF df;
    const int K = a.K;
    const float* q = token(a.q, t);
    const float* k = token(a.k, t);
    const float* next_k = kLast ? k : token(a.k, t + 1);
    float* row = S;
    const std::ptrdiff_t step = stride;
    const V decay = hn::Set(df, a.decay[static_cast<std::ptrdiff_t>(t) * a.ld_gates]);
    const V beta = hn::Set(df, a.beta[static_cast<std::ptrdiff_t>(t) * a.ld_gates]);
    V u[kVectors], o[kVectors], r[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const V value = hn::LoadU(df, token(a.v, t) + column + v * kLanes);
      u[v] = hn::Mul(beta, hn::Sub(value, hn::Mul(decay, recalled[v])));
      o[v] = r[v] = hn::Zero(df);
    }
    for (int i = 0; i < K; ++i, row += step) {
      const V key = hn::Set(df, k[i]), query = hn::Set(df, q[i]), next = hn::Set(df, next_k[i]);
      for (int v = 0; v < kVectors; ++v) {
        const V s = hn::MulAdd(key, u[v], hn::Mul(decay, hn::LoadU(df, row + v * kLanes)));
        hn::StoreU(s, df, row + v * kLanes);
        o[v] = hn::MulAdd(query, s, o[v]);
        if constexpr (!kLast) r[v] = hn::MulAdd(next, s, r[v]);
      }
    }
    float* out = a.o + static_cast<std::ptrdiff_t>(t) * a.ld_o + column;
    for (int v = 0; v < kVectors; ++v) hn::StoreU(o[v], df, out + v * kLanes);
    if constexpr (!kLast)
      for (int v = 0; v < kVectors; ++v) recalled[v] = r[v];
  }

  void run() const {
    V r[kVectors];
    recall(0, r);
    for (int t = 0; t + 1 < a.T; ++t) update<false>(t, r);
    update<true>(a.T - 1, r);
  }
};

template <class DF, int kVectors>
HWY_NOINLINE void gdn_block(const GdnStepArgs& a, int column) {
  using Columns = GdnColumns<DF, kVectors>;
  float* S = a.S + column;
  if (a.T < kMinBlockTokens || a.K * Columns::kWidth > kMaxBlockFloats) return Columns{a, column, S, a.V}.run();
  HWY_ALIGN float block[kMaxBlockFloats];
  for (int i = 0; i < a.K; ++i) std::copy_n(S + static_cast<std::ptrdiff_t>(i) * a.V, Columns::kWidth, block + i * Columns::kWidth);
  Columns{a, column, block, Columns::kWidth}.run();
  for (int i = 0; i < a.K; ++i) std::copy_n(block + i * Columns::kWidth, Columns::kWidth, S + static_cast<std::ptrdiff_t>(i) * a.V);
}

template <class DF, int kVectors>
void gdn_columns(const GdnStepArgs& a, int* column, int end) {
  constexpr int kWidth = GdnColumns<DF, kVectors>::kWidth;
  for (; *column + kWidth <= end; *column += kWidth) gdn_block<DF, kVectors>(a, *column);
}

void gdn_step_columns(const GdnStepArgs& a) {
  if (a.T <= 0) return;
  using Wide = hn::ScalableTag<float>;
  int column = a.first_column;
  const int end = a.first_column + a.num_columns;
  gdn_columns<Wide, 4>(a, &column, end);
  gdn_columns<Wide, 2>(a, &column, end);
  gdn_columns<Wide, 1>(a, &column, end);
  gdn_columns<hn::CappedTag<float, 1>, 1>(a, &column, end);
}

}  // namespace tetrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tetrad::cpu {

HWY_EXPORT(gdn_step_columns);

void gdn_step_columns(const GdnStepArgs& a) { HWY_DYNAMIC_DISPATCH(gdn_step_columns)(a); }

}  // namespace tetrad::cpu
#endif

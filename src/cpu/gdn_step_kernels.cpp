#include "cpu/gdn_step_kernels.h"

#include <cstddef>

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gdn_step_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tetrad::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Sums over k run for kVectors vectors of columns at once. With four, the chains of r and o keep two multiply-add units busy.
template <class DF, int kVectors>
struct GdnColumns {
  using V = hn::Vec<DF>;
  static constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
  static constexpr int kWidth = kLanes * kVectors;

  const GdnStepArgs& a;
  int column;  // the first one

  float* state(int i) const { return a.S + static_cast<std::ptrdiff_t>(i) * a.V + column; }
  const float* token(const float* rows, int t) const { return rows + static_cast<std::ptrdiff_t>(t) * a.ld_qkv; }

  // r = k^T S, before the decay.
  HWY_INLINE void recall(int t, V* r) const {
    const DF df;
    const float* k = token(a.k, t);
    for (int v = 0; v < kVectors; ++v) r[v] = hn::Zero(df);
    for (int i = 0; i < a.K; ++i)
      for (int v = 0; v < kVectors; ++v) r[v] = hn::MulAdd(hn::Set(df, k[i]), hn::LoadU(df, state(i) + v * kLanes), r[v]);
  }

  // One token: the update, the output, and, unless it is the last, what the next token recalls, while each piece of S is in a register.
  template <bool kLast>
  HWY_INLINE void update(int t, V* r) const {
    const DF df;
    const float* q = token(a.q, t);
    const float* k = token(a.k, t);
    const float* next_k = kLast ? nullptr : token(a.k, t + 1);
    const V decay = hn::Set(df, a.decay[static_cast<std::ptrdiff_t>(t) * a.ld_gates]);
    const V beta = hn::Set(df, a.beta[static_cast<std::ptrdiff_t>(t) * a.ld_gates]);
    V u[kVectors], o[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const V value = hn::LoadU(df, token(a.v, t) + column + v * kLanes);
      u[v] = hn::Mul(beta, hn::Sub(value, hn::Mul(decay, r[v])));
      o[v] = r[v] = hn::Zero(df);
    }
    for (int i = 0; i < a.K; ++i) {
      const V key = hn::Set(df, k[i]), query = hn::Set(df, q[i]);
      for (int v = 0; v < kVectors; ++v) {
        float* place = state(i) + v * kLanes;
        const V s = hn::MulAdd(key, u[v], hn::Mul(decay, hn::LoadU(df, place)));
        hn::StoreU(s, df, place);
        o[v] = hn::MulAdd(query, s, o[v]);
        if constexpr (!kLast) r[v] = hn::MulAdd(hn::Set(df, next_k[i]), s, r[v]);
      }
    }
    float* out = a.o + static_cast<std::ptrdiff_t>(t) * a.ld_o + column;
    for (int v = 0; v < kVectors; ++v) hn::StoreU(o[v], df, out + v * kLanes);
  }

  void run() const {
    V r[kVectors];
    recall(0, r);
    for (int t = 0; t + 1 < a.T; ++t) update<false>(t, r);
    update<true>(a.T - 1, r);
  }
};

template <class DF, int kVectors>
void gdn_columns(const GdnStepArgs& a, int* column, int end) {
  using Columns = GdnColumns<DF, kVectors>;
  for (; *column + Columns::kWidth <= end; *column += Columns::kWidth) Columns{a, *column}.run();
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

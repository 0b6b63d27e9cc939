#include "cpu/vector_math.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/vector_math.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

#include "cpu/exp-inl.h"
#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tetrad::cpu::HWY_NAMESPACE {

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// --- Loads and stores of `count` <= lanes elements; missing lanes are zero. ---

template <class DF>
HWY_INLINE hn::Vec<DF> load(DF df, const float* x) {
  return hn::LoadU(df, x);
}

template <class DF>
HWY_INLINE hn::Vec<DF> load(DF df, const bf16* x) {
  const hn::RebindToUnsigned<DF> du;
  const hn::Rebind<std::uint16_t, DF> dh;
  return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(dh, reinterpret_cast<const std::uint16_t*>(x)))));
}

template <class DF, class T>
HWY_INLINE hn::Vec<DF> load_some(DF df, const T* x, int count) {
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
  T lanes[kLanes] = {};
  for (int l = 0; l < kLanes && l < count; ++l) lanes[l] = x[l];
  return load(df, lanes);
}

template <class DF>
HWY_INLINE void store(DF df, hn::Vec<DF> v, float* y) {
  hn::StoreU(v, df, y);
}

template <class DF>
HWY_INLINE void store(DF df, hn::Vec<DF> v, bf16* y) {
  const hn::RebindToUnsigned<DF> du;
  const hn::Rebind<std::uint16_t, DF> dh;
  const auto bits = hn::ShiftRight<16>(hn::BitCast(du, round_bf16_lanes(df, v)));
  hn::StoreU(hn::TruncateTo(dh, bits), dh, reinterpret_cast<std::uint16_t*>(y));
}

// y[i] = f(inputs[i]...): whole vectors, then one vector of the rest.
template <class F, class Y, class... X>
HWY_INLINE void map(const F& f, int n, Y* y, const X*... x) {
  const D df;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(df, f(load(df, x + i)...), y + i);
  if (i == n) return;
  Y lanes[kLanes];
  store(df, f(load_some(df, x + i, n - i)...), lanes);
  std::copy_n(lanes, n - i, y + i);
}

// --- Elementwise ---

void to_float_array(const bf16* x, float* y, int n) {
  map([](V v) { return v; }, n, y, x);
}
void to_bf16_array(const float* x, bf16* y, int n) {
  map([](V v) { return v; }, n, y, x);
}
void round_bf16_array(float* x, int n) {
  map([](V v) { return round_bf16_lanes(D(), v); }, n, x, x);
}

HWY_INLINE V sigmoid_lanes(V x) { return hn::Div(hn::Set(D(), 1.0f), logistic_denominator(D(), x)); }
HWY_INLINE V silu_lanes(V x) { return hn::Div(x, logistic_denominator(D(), x)); }

// log(1 + e) for e = exp(x): the logarithm of the rounded sum, corrected by what the rounding lost.
HWY_INLINE V softplus_lanes(V x) {
  const D df;
  const V one = hn::Set(df, 1.0f);
  const V e = exp_lanes(df, x);
  const V sum = hn::Add(one, e);
  const V lost = hn::Sub(e, hn::Sub(sum, one));
  const V y = hn::Add(hn::Log(df, sum), hn::Div(lost, sum));
  const auto keep = hn::Or(hn::Gt(x, hn::Set(df, 20.0f)), hn::IsNaN(x));
  return hn::IfThenElse(keep, x, hn::IfThenElse(hn::Eq(sum, one), e, y));
}

void exp(const float* x, float* y, int n) {
  map([](V v) { return exp_lanes(D(), v); }, n, y, x);
}
void sigmoid(const float* x, float* y, int n) {
  map([](V v) { return sigmoid_lanes(v); }, n, y, x);
}
void silu(const float* x, float* y, int n) {
  map([](V v) { return silu_lanes(v); }, n, y, x);
}
void sigmoid_bf16(const float* x, float* y, int n) {
  map([](V v) { return round_bf16_lanes(D(), sigmoid_lanes(v)); }, n, y, x);
}
void silu_bf16(const float* x, float* y, int n) {
  map([](V v) { return round_bf16_lanes(D(), silu_lanes(v)); }, n, y, x);
}
void softplus(const float* x, float* y, int n) {
  map([](V v) { return softplus_lanes(v); }, n, y, x);
}

void scale_round_bf16(const float* x, float f, const float* s, float* y, int n) {
  const V factor = hn::Set(D(), f);
  map([factor](V v, V w) { return round_bf16_lanes(D(), hn::Mul(hn::Mul(v, factor), w)); }, n, y, x, s);
}
void mul_round_bf16(const float* a, const float* b, float* y, int n) {
  map([](V v, V w) { return round_bf16_lanes(D(), hn::Mul(v, w)); }, n, y, a, b);
}
void add_round_bf16(const float* a, const float* b, float* y, int n) {
  map([](V v, V w) { return round_bf16_lanes(D(), hn::Add(v, w)); }, n, y, a, b);
}
void scale(float f, const float* x, float* y, int n) {
  const V factor = hn::Set(D(), f);
  map([factor](V v) { return hn::Mul(factor, v); }, n, y, x);
}
void add_product_f32(const float* a, const float* b, float* y, int n) {
  map([](V v, V w, V sum) { return hn::Add(sum, hn::Mul(v, w)); }, n, y, a, b, y);
}
void add_product_bf16(const float* a, const bf16* b, float* y, int n) {
  map([](V v, V w, V sum) { return hn::Add(sum, hn::Mul(v, w)); }, n, y, a, b, y);
}
void add_scaled(float f, const bf16* x, float* y, int n) {
  const V factor = hn::Set(D(), f);
  map([factor](V v, V sum) { return hn::Add(sum, hn::Mul(factor, v)); }, n, y, x, y);
}
void add_rounded_product(float f, const float* x, float* y, int n) {
  const V factor = hn::Set(D(), f);
  map([factor](V v, V sum) { return hn::Add(sum, round_bf16_lanes(D(), hn::Mul(factor, v))); }, n, y, x, y);
}
void inject_round_bf16(float f, const float* x, float* y, int n) {
  const V factor = hn::Set(D(), f);
  map([factor](V v, V sum) { return round_bf16_lanes(D(), hn::Add(sum, round_bf16_lanes(D(), hn::Mul(factor, v)))); }, n, y, x, y);
}

void gated_mean_bf16(const float* gate, const float* x, int rows, float* out, int n) {
  const D df;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
  const V count = hn::Set(df, static_cast<float>(rows));
  for (int i = 0; i < n; i += kLanes) {
    const int some = std::min(kLanes, n - i);
    V sum = hn::Zero(df);
    for (int r = 0; r < rows; ++r) {
      const std::ptrdiff_t place = static_cast<std::ptrdiff_t>(r) * n + i;
      const V g = some == kLanes ? load(df, gate + place) : load_some(df, gate + place, some);
      const V v = some == kLanes ? load(df, x + place) : load_some(df, x + place, some);
      sum = hn::Add(sum, round_bf16_lanes(df, hn::Mul(g, v)));
    }
    const V mean = round_bf16_lanes(df, hn::Div(sum, count));
    if (some == kLanes) {
      store(df, mean, out + i);
    } else {
      float lanes[kLanes];
      store(df, mean, lanes);
      std::copy_n(lanes, some, out + i);
    }
  }
}

// --- Reductions: eight lanes, in as many vectors as the machine needs for them. ---

using D8 = hn::CappedTag<float, 8>;
using V8 = hn::Vec<D8>;
constexpr int kLanes8 = static_cast<int>(hn::MaxLanes(D8()));
constexpr int kVectors8 = 8 / kLanes8;

// Sums f(inputs[i]...). Missing inputs at the end are zero: f of zeros is +0, and adding it changes no sum, since none is ever -0.
template <class F, class... X>
HWY_INLINE float reduce(const F& f, int n, const X*... x) {
  const D8 df;
  V8 sum[kVectors8];
  for (int v = 0; v < kVectors8; ++v) sum[v] = hn::Zero(df);
  int i = 0;
  for (; i + 8 <= n; i += 8)
    for (int v = 0; v < kVectors8; ++v) sum[v] = hn::Add(sum[v], f(load(df, x + i + v * kLanes8)...));
  for (int v = 0; i < n; ++v, i += kLanes8) sum[v] = hn::Add(sum[v], f(load_some(df, x + i, std::min(kLanes8, n - i))...));
  HWY_ALIGN float s[8];
  for (int v = 0; v < kVectors8; ++v) hn::Store(sum[v], df, s + v * kLanes8);
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

float sum(const float* x, int n) {
  return reduce([](V8 v) { return v; }, n, x);
}
float sum_of_squares(const float* x, int n) {
  return reduce([](V8 v) { return hn::Mul(v, v); }, n, x);
}
float dot_f32(const float* x, const float* y, int n) {
  return reduce([](V8 v, V8 w) { return hn::Mul(v, w); }, n, x, y);
}
float dot_bf16(const float* x, const bf16* y, int n) {
  return reduce([](V8 v, V8 w) { return hn::Mul(v, w); }, n, x, y);
}
float dot_rounded_products(const float* x, const float* y, int n) {
  return reduce([](V8 v, V8 w) { return round_bf16_lanes(D8(), hn::Mul(v, w)); }, n, x, y);
}

float max_value(const float* x, int n) {
  const D df;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
  float best = -std::numeric_limits<float>::infinity();
  int i = 0;
  if (n >= kLanes) {
    V max = hn::Set(df, best);
    for (; i + kLanes <= n; i += kLanes) {
      const V v = load(df, x + i);
      max = hn::IfThenElse(hn::Or(hn::Gt(v, max), hn::IsNaN(v)), v, max);  // a NaN takes the lane, and nothing is greater than it
    }
    HWY_ALIGN float lanes[kLanes];
    hn::Store(max, df, lanes);
    for (const float lane : lanes) best = lane > best || lane != lane ? lane : best;
  }
  for (; i < n; ++i) best = x[i] > best || x[i] != x[i] ? x[i] : best;
  return best;
}

void softmax(const float* x, float* y, int n) {
  const V max = hn::Set(D(), max_value(x, n));
  map([max](V v) { return exp_lanes(D(), hn::Sub(v, max)); }, n, y, x);
  const V total = hn::Set(D(), sum(y, n));
  map([total](V v) { return hn::Div(v, total); }, n, y, y);
}

}  // namespace tetrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tetrad::cpu {

// One dispatching function per vector function; the arguments are those of its name in the header.
#define TETRAD_DISPATCH(result, name, target, parameters, arguments) \
  HWY_EXPORT(target);                                                \
  result name parameters { return HWY_DYNAMIC_DISPATCH(target) arguments; }

TETRAD_DISPATCH(void, to_float_array, to_float_array, (const bf16* x, float* y, int n), (x, y, n))
TETRAD_DISPATCH(void, to_bf16_array, to_bf16_array, (const float* x, bf16* y, int n), (x, y, n))
TETRAD_DISPATCH(void, round_bf16_array, round_bf16_array, (float* x, int n), (x, n))
TETRAD_DISPATCH(void, exp, exp, (const float* x, float* y, int n), (x, y, n))
TETRAD_DISPATCH(void, sigmoid, sigmoid, (const float* x, float* y, int n), (x, y, n))
TETRAD_DISPATCH(void, silu, silu, (const float* x, float* y, int n), (x, y, n))
TETRAD_DISPATCH(void, sigmoid_bf16, sigmoid_bf16, (const float* x, float* y, int n), (x, y, n))
TETRAD_DISPATCH(void, silu_bf16, silu_bf16, (const float* x, float* y, int n), (x, y, n))
TETRAD_DISPATCH(void, softplus, softplus, (const float* x, float* y, int n), (x, y, n))
TETRAD_DISPATCH(void, scale_round_bf16, scale_round_bf16, (const float* x, float f, const float* s, float* y, int n), (x, f, s, y, n))
TETRAD_DISPATCH(void, mul_round_bf16, mul_round_bf16, (const float* a, const float* b, float* y, int n), (a, b, y, n))
TETRAD_DISPATCH(void, add_round_bf16, add_round_bf16, (const float* a, const float* b, float* y, int n), (a, b, y, n))
TETRAD_DISPATCH(void, scale, scale, (float f, const float* x, float* y, int n), (f, x, y, n))
TETRAD_DISPATCH(void, add_product, add_product_f32, (const float* a, const float* b, float* y, int n), (a, b, y, n))
TETRAD_DISPATCH(void, add_product, add_product_bf16, (const float* a, const bf16* b, float* y, int n), (a, b, y, n))
TETRAD_DISPATCH(void, add_scaled, add_scaled, (float f, const bf16* x, float* y, int n), (f, x, y, n))
TETRAD_DISPATCH(void, add_rounded_product, add_rounded_product, (float f, const float* x, float* y, int n), (f, x, y, n))
TETRAD_DISPATCH(void, inject_round_bf16, inject_round_bf16, (float f, const float* x, float* y, int n), (f, x, y, n))
TETRAD_DISPATCH(void, gated_mean_bf16, gated_mean_bf16, (const float* gate, const float* x, int rows, float* out, int n),
                (gate, x, rows, out, n))
TETRAD_DISPATCH(float, sum, sum, (const float* x, int n), (x, n))
TETRAD_DISPATCH(float, sum_of_squares, sum_of_squares, (const float* x, int n), (x, n))
TETRAD_DISPATCH(float, dot, dot_f32, (const float* x, const float* y, int n), (x, y, n))
TETRAD_DISPATCH(float, dot, dot_bf16, (const float* x, const bf16* y, int n), (x, y, n))
TETRAD_DISPATCH(float, dot_rounded_products, dot_rounded_products, (const float* x, const float* y, int n), (x, y, n))
TETRAD_DISPATCH(float, max_value, max_value, (const float* x, int n), (x, n))
TETRAD_DISPATCH(void, softmax, softmax, (const float* x, float* y, int n), (x, y, n))

#undef TETRAD_DISPATCH

}  // namespace tetrad::cpu
#endif

// exp on vectors of floats, for the sources of src/cpu: include inside each pass of foreach_target.
#if defined(TETRAD_CPU_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TETRAD_CPU_EXP_INL_H_
#undef TETRAD_CPU_EXP_INL_H_
#else
#define TETRAD_CPU_EXP_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tetrad::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// e^x = 2^q e^r with |r| <= ln(2)/2. r is kept as a sum of two floats, so that little more than the last rounding is lost.
template <class DF, class V = hn::Vec<DF>>
HWY_INLINE V exp_lanes(DF df, V x) {
  const hn::RebindToSigned<DF> di;
  // Beyond these the result is 0 or infinity already; a NaN fails both comparisons and stays.
  x = hn::IfThenElse(hn::Lt(x, hn::Set(df, -110.0f)), hn::Set(df, -110.0f), x);
  x = hn::IfThenElse(hn::Gt(x, hn::Set(df, 100.0f)), hn::Set(df, 100.0f), x);
  const auto q = hn::NearestInt(hn::Mul(x, hn::Set(df, 1.44269504f)));
  const V minus_q = hn::Neg(hn::ConvertTo(df, q));
  // ln(2) in two parts; q times the upper one is exact, its 16 bits and the 8 of q fit 24.
  const V upper = hn::MulAdd(minus_q, hn::Set(df, 0.693145751953125f), x);
  const V ln2_rest = hn::Set(df, 1.42860677e-6f);
  const V r = hn::MulAdd(minus_q, ln2_rest, upper);
  const V r_rest = hn::MulAdd(minus_q, ln2_rest, hn::Sub(upper, r));
  // (e^r - 1 - r) / r^2, fitted to 1.4e-9 over the range of r.
  V p = hn::Set(df, 0.00019891557f);
  p = hn::MulAdd(p, r, hn::Set(df, 0.001393415982f));
  p = hn::MulAdd(p, r, hn::Set(df, 0.00833331041f));
  p = hn::MulAdd(p, r, hn::Set(df, 0.0416664603f));
  p = hn::MulAdd(p, r, hn::Set(df, 0.16666666682f));
  p = hn::MulAdd(p, r, hn::Set(df, 0.5f));
  const V one = hn::Set(df, 1.0f);
  const V head = hn::Add(one, r);
  const V head_rest = hn::Add(hn::Sub(r, hn::Sub(head, one)), r_rest);
  const V y = hn::Add(head, hn::MulAdd(hn::Mul(r, r), p, head_rest));
  // 2^q in two factors that are both normal; the second product alone may round, into the subnormal range.
  const auto half = hn::ShiftRight<1>(q);
  const auto power = [&](auto e) { return hn::BitCast(df, hn::ShiftLeft<23>(hn::Add(e, hn::Set(di, 127)))); };
  const V scaled = hn::Mul(hn::Mul(y, power(half)), power(hn::Sub(q, half)));
  return hn::IfThenElse(hn::IsNaN(x), x, scaled);
}

// 1 + e^-x, the denominator of sigmoid and silu.
template <class DF, class V = hn::Vec<DF>>
HWY_INLINE V logistic_denominator(DF df, V x) {
  return hn::Add(hn::Set(df, 1.0f), exp_lanes(df, hn::Neg(x)));
}

}  // namespace tetrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

// Helpers shared by the vector sources, compiled once per target: include after hwy/highway.h, inside each pass of foreach_target.
#if defined(TETRAD_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TETRAD_CPU_SIMD_INL_H_
#undef TETRAD_CPU_SIMD_INL_H_
#else
#define TETRAD_CPU_SIMD_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tetrad::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// base/bf16.h round_bf16, lane by lane and bit by bit.
template <class DF, class V = hn::Vec<DF>>
HWY_INLINE V round_bf16_lanes(DF df, V x) {
  const hn::RebindToUnsigned<DF> du;
  const auto bits = hn::BitCast(du, x);
  const auto lowest_kept = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), lowest_kept);
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000u));
  const auto chosen = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), quiet, rounded);
  return hn::BitCast(df, hn::And(chosen, hn::Set(du, 0xffff0000u)));
}

}  // namespace tetrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

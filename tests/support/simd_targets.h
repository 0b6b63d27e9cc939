#pragma once
// Runs a test once per instruction set that this build generated and this machine runs.
#include <cstdint>

#include "cpu/simd_targets.h"

#include <hwy/targets.h>

namespace tetrad::test {

template <class Body>
void for_each_simd_target(const Body& body) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    const bool fused = target != HWY_SSSE3 && target != HWY_SSE4 && target != HWY_EMU128 && target != HWY_SCALAR;
    body(hwy::TargetName(target), fused);
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

}  // namespace tetrad::test

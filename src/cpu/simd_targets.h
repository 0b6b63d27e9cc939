#pragma once
// The instruction sets that the vector sources are compiled for; include before any Highway header.
// Vectors of unknown length (SVE, RVV) cannot live in arrays of registers: machines that have them run the fixed-length code (NEON).
// SSSE3 and the variants of AVX-512 beyond its base would be the same code again.
#define TETRAD_SKIPPED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3 | HWY_AVX3_DL)
#if defined(TETRAD_FEW_SIMD_TARGETS)
// Sanitizers look at the baseline and one wide set; the others would be the same sources once more.
#define HWY_DISABLED_TARGETS (TETRAD_SKIPPED_TARGETS | HWY_SSE4 | HWY_AVX3)
#else
#define HWY_DISABLED_TARGETS TETRAD_SKIPPED_TARGETS
#endif

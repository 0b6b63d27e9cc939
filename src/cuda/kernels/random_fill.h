#pragma once
// random_fill: weights that never were in a file, for measurements at sizes no disk here holds.
//   Math      element i = spread * sqrt(3) * (2 u(seed, i) - 1), u uniform; FP8: a code uniform over the finite ones
//   Output    count elements of the type at `to`, device or pinned memory
//   Order     an element depends on seed and index alone
//   Launch    a thread per element, grid-stride
//   Tests     none: nothing depends on the values
#include <cstddef>
#include <cstdint>

#include "cuda/kernels/linear.h"
#include "cuda/runtime/stream.h"

namespace tetrad::cuda {

void random_fill(void* to, std::size_t count, SourceType type, float spread, std::uint64_t seed, const Stream& stream);

}  // namespace tetrad::cuda

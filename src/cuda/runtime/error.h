#pragma once
// CUDA calls that must succeed. After a CudaError the context is gone: nothing on the device can be used again.
#include <cuda_runtime.h>

#include <string_view>

#include "base/error.h"

namespace tetrad::cuda {

class CudaError : public Error {
 public:
  using Error::Error;
};

// `what` says what was attempted, with its numbers: it is all the user sees beside the driver's own words.
template <class... Args>
void check(cudaError_t code, fmt::format_string<Args...> what, Args&&... args) {
  if (code != cudaSuccess) [[unlikely]]
    fail<CudaError>("{}: {} ({})", fmt::format(what, std::forward<Args>(args)...), cudaGetErrorString(code), cudaGetErrorName(code));
}

}  // namespace tetrad::cuda

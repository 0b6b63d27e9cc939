#include "cli/devices.h"

#include <charconv>
#include <string_view>

#include "base/error.h"
#include "cpu/cpu_backend.h"
#if defined(TETRAD_WITH_CUDA)
#include "cuda/cuda_backend.h"
#endif

namespace tetrad::cli {
namespace {

constexpr int kCpu = -1;

int gpu_count() {
#if defined(TETRAD_WITH_CUDA)
  return cuda::device_count();
#else
  return 0;
#endif
}

// Index of the GPU, or kCpu.
int parse_device(std::string_view device) {
  if (device == "cpu") return kCpu;
  if (device == "auto") return gpu_count() > 0 ? 0 : kCpu;
  constexpr std::string_view kPrefix = "cuda:";
  int index = device == "cuda" ? 0 : -1;
  if (device.starts_with(kPrefix)) {
    const char* end = device.data() + device.size();
    const auto [stop, code] = std::from_chars(device.data() + kPrefix.size(), end, index);
    if (code != std::errc() || stop != end) index = -1;
  }
  if (index < 0) fail<InputError>("--device must be auto, cpu or cuda:N, got '{}'", device);
#if defined(TETRAD_WITH_CUDA)
  if (index >= gpu_count()) fail<InputError>("--device {}: {} CUDA devices were found on this machine", device, gpu_count());
#else
  fail<InputError>("--device {}: this build has no CUDA backend, use --device cpu", device);
#endif
  return index;
}

}  // namespace

void check_device(const std::string& device) { (void)parse_device(device); }

std::unique_ptr<Backend> make_backend_on(const std::string& device, const Config& config, const ModelWeights& weights,
                                         const BackendOptions& options, const std::function<void(int, int)>& progress) {
  const int index = parse_device(device);
#if defined(TETRAD_WITH_CUDA)
  if (index != kCpu) return cuda::make_backend(config, weights, options, index, progress);
#endif
  TETRAD_CHECK(index == kCpu, "device {} in a build without GPUs", index);
  return cpu::make_backend(config, weights, options, progress);
}

}  // namespace tetrad::cli

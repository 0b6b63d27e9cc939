#pragma once
// The backend of one NVIDIA GPU.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/backend.h"
#include "model/weights.h"

namespace tetrad::cuda {

// Devices that this build can run on; 0 without a driver or a GPU.
int device_count();

// Copies the weights to the device and plans its memory. Throws LoadError for a geometry the kernels do not take, for a device that is not
// there, and when its memory does not suffice, naming what did not fit.
std::unique_ptr<Backend> make_backend(const Config& config, const ModelWeights& weights, const BackendOptions& options, int device,
                                      const std::function<void(int layers_done, int layers)>& progress = {});

// Decode steps replay recorded graphs; off, every launch is made anew, with the same results. For tests of that.
void set_replays(Backend& backend, bool on);

// How long the kernels of one stem took, all launches together.
struct StemTime {
  std::string stem;
  int launches = 0;
  double microseconds = 0;
  double bytes = 0, flops = 0;  // that its launches must move and multiply at least, as far as they say; 0: they do not
};
// Between the two, steps of a CUDA backend are timed kernel by kernel, which makes them slower. Throws InternalError for another backend.
void start_profile(Backend& backend);
std::vector<StemTime> end_profile(Backend& backend);

// Device-to-device copy of 4 GiB, best of a few: bytes read plus bytes written.
double measure_copy_gb_per_s(Backend& backend);

}  // namespace tetrad::cuda

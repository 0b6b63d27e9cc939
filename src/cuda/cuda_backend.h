#pragma once
// The backend of one NVIDIA GPU.
#include <functional>
#include <memory>

#include "model/backend.h"
#include "model/weights.h"

namespace tetrad::cuda {

// Devices that this build can run on; 0 without a driver or a GPU.
int device_count();

// Copies the weights to the device and plans its memory. Throws LoadError for a geometry the kernels do not take, for a device that is not
// there, and when its memory does not suffice, naming what did not fit.
std::unique_ptr<Backend> make_backend(const Config& config, const ModelWeights& weights, const BackendOptions& options, int device,
                                      const std::function<void(int layers_done, int layers)>& progress = {});

}  // namespace tetrad::cuda

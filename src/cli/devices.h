#pragma once
// The devices of this build: --device auto, cpu or cuda:N.
#include <functional>
#include <memory>
#include <string>

#include "model/backend.h"
#include "model/weights.h"

namespace tetrad::cli {

// Throws InputError for another spelling, and for cuda in a build without CUDA or on a machine without that GPU.
void check_device(const std::string& device);

// auto: the first GPU where there is one, else the CPU.
std::unique_ptr<Backend> make_backend_on(const std::string& device, const Config& config, const ModelWeights& weights,
                                         const BackendOptions& options, const std::function<void(int done, int total)>& progress);

}  // namespace tetrad::cli

#pragma once
// The CPU implementation of Backend.
#include <functional>
#include <memory>

#include "model/backend.h"
#include "model/weights.h"

namespace tetrad::cpu {

// Packs the weights (a copy in the kernels' layout; the n-gram table stays mapped) and allocates all state and scratch. Throws LoadError.
std::unique_ptr<Backend> make_backend(const Config& config, const ModelWeights& weights, const BackendOptions& options,
                                      const std::function<void(int layers_done, int layers)>& progress = {});

}  // namespace tetrad::cpu

#pragma once
// From a checkpoint directory to a model that can run, with progress on stderr. The parts that are small are read first, so that a bad
// prompt is refused before the weights are loaded.
#include <functional>
#include <memory>

#include "cli/options.h"
#include "engine/generation_config.h"
#include "model/backend.h"
#include "model/config.h"
#include "model/weights.h"
#include "text/tokenizer.h"

namespace tetrad::cli {

struct ModelFiles {
  Config config;
  GenerationConfig generation;
};

// Throw LoadError unless it is a directory, and one with a config.json.
void check_directory(const std::string& directory);
void check_model_directory(const std::string& directory);

// config.json and generation_config.json. Checks the options too: an unknown or unsupported device is refused here.
ModelFiles load_model_files(const ModelOptions& options);
Tokenizer load_tokenizer(const std::string& directory);

// The context to plan for. `auto` takes the model's own, at most 32,768 tokens unless the request needs more.
int choose_max_length(const ModelOptions& options, const Config& config, int tokens_needed);

struct BackendSize {
  int max_length = 0;  // tokens of all sequences together
  int num_slots = 1;
};
// Told the share that is done, 0 to 1, many times; what it throws ends the loading.
using LoadProgress = std::function<void(double share)>;
std::unique_ptr<Backend> load_backend(const ModelOptions& options, const Config& config, const BackendSize& size,
                                      const LoadProgress& on_progress = {});
// The same for weights that are bound already.
std::unique_ptr<Backend> make_backend(const ModelOptions& options, const Config& config, const ModelWeights& weights,
                                      const BackendSize& size, const LoadProgress& on_progress = {});

}  // namespace tetrad::cli

#pragma once
// Options that describe a random model: for `synth`, which writes it, and for `bench`, which makes it in memory.
#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/synthetic.h"
#include "model/weights.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tetrad::cli {

struct SyntheticOptions {
  std::string like = "tetrad-tiny";          // qwen3.8-flash-next, bench-1b, tetrad-tiny, or a config.json
  std::vector<std::string> weights{"bf16"};  // bf16, fp8
  std::uint64_t seed = 1;
  bool mtp = false, vision = false;
  SyntheticSize size;
  std::string name_flag = "--like";  // what the option for `like` is called, for messages
};

// Returns the options beside `name_flag`, which say something about the model it names.
std::vector<CLI::Option*> add_synthetic_options(CLI::App& app, SyntheticOptions& options, const char* name_flag);

// The config.json of the model. Throws InputError for an unknown name or weight type.
nlohmann::json synthetic_json(const SyntheticOptions& options);

// The weights `synth` would write, made in memory; tensors of more than `largest` bytes stay without data (Checkpoint::in_memory).
ModelWeights synthetic_weights(const SyntheticOptions& options, const Config& config,
                               std::uint64_t largest = std::numeric_limits<std::uint64_t>::max());

}  // namespace tetrad::cli

#pragma once
// generation_config.json: a checkpoint's own defaults for sampling and its stop ids.
#include <filesystem>
#include <string_view>
#include <vector>

#include "engine/sampling_params.h"

namespace tetrad {

struct GenerationConfig {
  SamplingParams sampling;    // greedy when do_sample is false or absent
  std::vector<int> stop_ids;  // eos_token_id, in order, without repeats; may be empty
};

// Unknown fields are ignored: the file carries settings of other libraries. Throws LoadError naming file and field.
GenerationConfig parse_generation_config(std::string_view json, std::string_view where, int vocab_size);

// The file of a checkpoint directory; without one, greedy sampling and no stop ids.
GenerationConfig load_generation_config(const std::filesystem::path& model_directory, int vocab_size);

}  // namespace tetrad

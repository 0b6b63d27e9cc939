#pragma once
// A checkpoint directory loaded into the CPU backend, ready to step.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/stepper.h"
#include "model/backend.h"
#include "model/weights.h"

namespace tetrad::test {

struct LoadedModel {
  explicit LoadedModel(const std::filesystem::path& directory, BackendOptions options = default_options());
  // The same weights under a changed config (another budget, say).
  LoadedModel(const std::filesystem::path& directory, BackendOptions options, Config changed);
  static BackendOptions default_options() { return {.num_slots = 8, .max_tokens = 4096, .max_rows = 640, .num_threads = 2}; }

  Config config;
  ModelWeights weights;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<StatePool> pool;

  // Feeds ids in chunks of at most `chunk` rows and returns the logits of every row.
  std::vector<float> feed(SequenceState& state, const std::vector<int>& ids, int chunk = 1 << 20);
};

std::filesystem::path golden_directory(const std::string& name);                      // tests/goldens/<name>
std::vector<int> random_ids(int count, int vocab_size, unsigned seed, int eos = -1);  // about one id in twelve is `eos` if it is given

}  // namespace tetrad::test

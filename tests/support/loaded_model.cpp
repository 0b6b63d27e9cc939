#include "support/loaded_model.h"

#include <algorithm>
#include <random>

#if defined(TETRAD_TEST_ON_GPU)
#include "cuda/cuda_backend.h"
#else
#include "cpu/cpu_backend.h"
#endif
#include "io/checkpoint.h"
#include "model/load_weights.h"

namespace tetrad::test {
namespace {

// The same tests of state run in the binary for the GPU.
std::unique_ptr<Backend> make_backend(const Config& config, const ModelWeights& weights, const BackendOptions& options) {
#if defined(TETRAD_TEST_ON_GPU)
  return cuda::make_backend(config, weights, options, 0);
#else
  return cpu::make_backend(config, weights, options);
#endif
}

}  // namespace

LoadedModel::LoadedModel(const std::filesystem::path& directory, BackendOptions options)
    : LoadedModel(directory, options, load_config(directory / "config.json")) {}

LoadedModel::LoadedModel(const std::filesystem::path& directory, BackendOptions options, Config changed)
    : config(std::move(changed)),
      weights(load_weights(Checkpoint::open(directory), config)),
      backend(make_backend(config, weights, options)),
      pool(std::make_unique<StatePool>(*backend)) {}

std::vector<float> LoadedModel::feed(SequenceState& state, const std::vector<int>& ids, int chunk) {
  Stepper stepper(*pool);
  std::vector<float> logits;
  const auto size = static_cast<std::size_t>(std::min(chunk, backend->max_rows()));
  for (std::size_t first = 0; first < ids.size(); first += size) {
    const StepRequest request{&state, std::span(ids).subspan(first, std::min(size, ids.size() - first)), LogitsWanted::kAll};
    const StepOutcome outcome = stepper.run({&request, 1}).front();
    logits.insert(logits.end(), outcome.logits.begin(), outcome.logits.end());
  }
  return logits;
}

std::filesystem::path golden_directory(const std::string& name) { return std::filesystem::path(TETRAD_GOLDENS) / name; }

std::vector<int> random_ids(int count, int vocab_size, unsigned seed, int eos) {
  std::mt19937 generator(seed);
  std::vector<int> ids(static_cast<std::size_t>(count));
  for (int& id : ids) id = eos >= 0 && generator() % 12 == 0 ? eos : static_cast<int>(generator() % static_cast<unsigned>(vocab_size));
  return ids;
}

}  // namespace tetrad::test

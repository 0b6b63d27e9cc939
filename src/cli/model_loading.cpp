#include "cli/model_loading.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "cli/devices.h"
#include "cli/progress.h"
#include "io/checkpoint.h"
#include "model/load_weights.h"

namespace tetrad::cli {
namespace {

constexpr int kAutoMaxLength = 32768;
constexpr std::string_view kWanted = "a checkpoint directory with config.json, tokenizer.json and *.safetensors is needed";
constexpr double kReadingShare = 0.5;  // of loading; preparing is the rest

double share_of(std::size_t done, std::size_t total) { return total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1; }

}  // namespace

void check_directory(const std::string& directory) {
  std::error_code code;
  const std::filesystem::file_status status = std::filesystem::status(directory, code);
  if (status.type() == std::filesystem::file_type::not_found) fail<LoadError>("{}: no such directory; {}", directory, kWanted);
  if (code) fail<LoadError>("{}: cannot be opened: {}", directory, code.message());
  if (!std::filesystem::is_directory(status)) fail<LoadError>("{}: is a file; {}", directory, kWanted);
}

void check_model_directory(const std::string& directory) {
  check_directory(directory);
  std::error_code code;
  if (!std::filesystem::exists(std::filesystem::path(directory) / "config.json", code))
    fail<LoadError>("{}: holds no config.json; {}", directory, kWanted);
}

ModelFiles load_model_files(const ModelOptions& options) {
  check_device(options.device);
  check_model_directory(options.directory);
  const std::filesystem::path directory = options.directory;
  Config config = load_config(directory / "config.json");
  GenerationConfig generation = load_generation_config(directory, config.vocab_size);
  return {std::move(config), std::move(generation)};
}

Tokenizer load_tokenizer(const std::string& directory) { return Tokenizer::load(std::filesystem::path(directory) / "tokenizer.json"); }

int choose_max_length(const ModelOptions& options, const Config& config, int tokens_needed) {
  if (options.max_model_len == "auto") return std::min(config.max_positions, std::max(kAutoMaxLength, tokens_needed));
  const int length = parse_token_count(options.max_model_len, "--max-model-len");
  if (length > config.max_positions)
    fail<InputError>("--max-model-len {}: the model has {} positions (max_position_embeddings)", length, config.max_positions);
  return length;
}

std::unique_ptr<Backend> load_backend(const ModelOptions& options, const Config& config, const BackendSize& size,
                                      const LoadProgress& on_progress) {
  Progress reading(options.quiet ? "" : "reading weights");
  const auto told = [&](std::size_t done, std::size_t total, std::string_view) {
    reading.update(done, total);
    if (on_progress) on_progress(kReadingShare * share_of(done, total));
  };
  const ModelWeights weights = load_weights(Checkpoint::open(options.directory), config, told);
  reading.finish();
  const auto preparing = [&](double share) { on_progress(kReadingShare + (1 - kReadingShare) * share); };
  return make_backend(options, config, weights, size, on_progress ? LoadProgress(preparing) : LoadProgress());
}

std::unique_ptr<Backend> make_backend(const ModelOptions& options, const Config& config, const ModelWeights& weights,
                                      const BackendSize& size, const LoadProgress& on_progress) {
  BackendOptions backend_options;
  backend_options.num_slots = size.num_slots;
  backend_options.max_tokens = size.max_length;
  backend_options.num_threads = options.threads;
  Progress preparing(options.quiet ? "" : "preparing layers");
  auto backend = make_backend_on(options.device, config, weights, backend_options, [&](int done, int total) {
    preparing.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total));
    if (on_progress) on_progress(share_of(static_cast<std::size_t>(done), static_cast<std::size_t>(total)));
  });
  preparing.finish();
  return backend;
}

}  // namespace tetrad::cli

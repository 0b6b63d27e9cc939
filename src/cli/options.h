#pragma once
// Options that several commands share, each parsed once into a plain struct.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/generation_config.h"
#include "engine/generator.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tetrad::cli {

struct ModelOptions {
  std::string directory;        // the built-in checkpoint unless given
  std::string device = "auto";  // auto, cpu, cuda:N
  int threads = 0;              // 0: all
  std::string max_model_len = "auto";
  bool quiet = false;  // no progress on stderr; not a flag of its own
};
void add_model_options(CLI::App& app, ModelOptions& options);  // directory, device, threads and context
CLI::Option* add_directory_option(CLI::App& app, std::string& directory);
void add_device_options(CLI::App& app, ModelOptions& options);  // and threads

struct SamplingOptions {  // absent: the checkpoint's own default
  bool greedy = false;
  std::optional<double> temperature = {}, top_p = {}, min_p = {};
  std::optional<double> repetition_penalty = {}, presence_penalty = {}, frequency_penalty = {};
  std::optional<int> top_k = {};
  std::vector<std::string> logit_bias = {};  // "ID:BIAS"
  std::string seed = "0";
  std::optional<int> max_tokens = {};
  std::vector<std::string> stop = {};
  bool include_stop = false;
};
void add_sampling_options(CLI::App& app, SamplingOptions& options);

// A request without its prompt: the checkpoint's defaults, changed by what the command line gives. Throws InputError.
GenerationRequest make_request(const SamplingOptions& options, const GenerationConfig& defaults, int vocab_size);

struct TemplateOptions {
  bool no_think = false;
  std::string effort;  // empty: the template's default
};
void add_template_options(CLI::App& app, TemplateOptions& options);

// Throws InputError naming the flag.
std::uint64_t parse_seed(const std::string& text);

// "4096", "32k" (times 1024), "1m"; throws InputError naming the flag.
int parse_token_count(const std::string& text, const char* flag);

// "1 2 3", "1,2,3" or "[1, 2, 3]", or the name of a file that holds the like; "-" is standard input. Throws InputError naming index and
// value.
std::vector<int> read_token_ids(const std::string& list_or_file, const char* flag);
std::vector<int> parse_token_ids(const std::string& text, const std::string& where);

}  // namespace tetrad::cli

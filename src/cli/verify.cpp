#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_loading.h"
#include "cli/value_checks.h"
#include "engine/verify.h"
#include "engine/verify_text.h"

namespace tetrad::cli {
namespace {

constexpr int kVerificationFailed = 3;
constexpr int kContext = 4096;  // goldens are short; the longest prompt of tetrad-tiny has about 1,600 tokens

bool print(const TextCheck& check) {
  fmt::print("{:<60} {:>6} checked {:>6} wrong  {} {}\n", check.what, check.checked, check.wrong,
             !check.pass()     ? "FAIL"
             : check.undecided ? "-"
                               : "pass",
             check.note);
  return check.pass();
}

// Cases that the reference leaves undecided neither pass nor fail, but one at least must have been compared.
bool print_answers(const std::vector<TextCheck>& checks) {
  bool passed = true;
  std::size_t compared = 0;
  for (const TextCheck& check : checks) {
    passed &= print(check);
    compared += !check.undecided;
  }
  if (compared == 0) fmt::print("FAIL: none of {} recorded answers was compared\n", checks.size());
  return passed && compared > 0;
}

// Replays whatever goldens lie beside the checkpoint; false if one of them fails.
bool verify(ModelOptions options, const std::string& directory) {
  namespace fs = std::filesystem;
  options.directory = directory;
  check_model_directory(directory);
  const fs::path root = directory;
  const bool numbers = fs::exists(root / "golden.safetensors"), answers = fs::exists(root / "golden-generate.json");
  const bool tokens = fs::exists(root / "golden-tokenizer.json"), prompts = fs::exists(root / "golden-template.json");
  if (!numbers && !answers && !tokens && !prompts)
    fail<InputError>("{}: holds no goldens (golden.safetensors, golden-generate.json, golden-tokenizer.json, golden-template.json)",
                     directory);
  bool passed = true;
  const Config config = load_config(root / "config.json");
  std::unique_ptr<Tokenizer> tokenizer;
  if (tokens || prompts || answers) tokenizer = std::make_unique<Tokenizer>(Tokenizer::load(root / "tokenizer.json"));
  if (tokens) passed &= print(verify_tokenizer(root / "golden-tokenizer.json", *tokenizer));
  if (prompts) passed &= print(verify_template(root / "golden-template.json", ChatTemplate::load(root), *tokenizer));
  if (!numbers && !answers) return passed;

  const auto backend = load_backend(options, config, {.max_length = std::min(kContext, config.max_positions), .num_slots = 2});
  StatePool pool(*backend);
  if (answers) passed &= print_answers(verify_generation(root / "golden-generate.json", pool, *tokenizer));
  if (numbers) {
    const VerifyReport report = verify_goldens(pool, root / "golden.safetensors");
    fmt::print("{}", report.table());
    passed &= report.passed();
  }
  return passed;
}

}  // namespace

void add_verify(CLI::App& app, int& exit_code) {
  struct Options {
    ModelOptions model;
    std::string directory;
  };
  const auto options = std::make_shared<Options>();
  app.add_option("directory", options->directory, "Checkpoint with goldens beside it")->required();
  app.add_option("--device", options->model.device, "auto, cpu or cuda:N")->capture_default_str();
  app.add_option("--threads", options->model.threads, "Worker threads; 0: all")->check(number_in(0, kMaxThreads));
  app.callback([options, &exit_code] {
    const bool passed = verify(options->model, options->directory);
    fmt::print("{}: {}\n", options->directory, passed ? "verified" : "NOT verified");
    if (!passed) exit_code = kVerificationFailed;
  });
}

}  // namespace tetrad::cli

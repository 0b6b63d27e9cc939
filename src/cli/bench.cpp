// Speed beside the limits of this machine, both measured in the same run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "cli/bench_grammar.h"
#include "cli/bench_serve.h"
#include "cli/bench_step.h"
#include "cli/commands.h"
#include "cli/model_loading.h"
#include "cli/synthetic_options.h"
#include "cli/terminal.h"
#include "cli/value_checks.h"
#include "cpu/kernel_bench.h"
#include "cpu/roofline.h"
#include "engine/stepper.h"
#include "model/step_work.h"

namespace tetrad::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct BenchOptions {
  ModelOptions model;
  SyntheticOptions synthetic = {};  // used when `like` names one
  int prompt = 512;                 // tokens before the measured part, or of the measured prefill
  int tokens = 64;                  // decoded per repetition
  int repeat = 5;
  bool json = false;
};

double seconds_of(const std::function<void()>& body) {
  const auto start = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Spread {
  double median = 0, fastest = 0, slowest = 0;
};
Spread spread_of(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds.front(), seconds.back()};
}

// Ids spread over the vocabulary, so that the routed experts and table rows vary as they do in text.
std::vector<int> spread_ids(int count, int vocab_size) {
  std::vector<int> ids(static_cast<std::size_t>(count));
  std::uint32_t x = 12345;
  for (int& id : ids) {
    x = x * 1664525u + 1013904223u;
    id = static_cast<int>((x >> 8) % static_cast<std::uint32_t>(vocab_size));
  }
  return ids;
}

double expert_weight_bytes(const Config& config) { return config.quantization ? 1.0 : 2.0; }

struct Loaded {
  std::string name;
  Config config;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<StatePool> pool;
  std::unique_ptr<Stepper> stepper;
};

// `tokens_needed` of one sequence.
Loaded load(const BenchOptions& options, std::int64_t tokens_needed) {
  Loaded m;
  const bool synthetic = !options.synthetic.like.empty();
  if (!synthetic) check_model_directory(options.model.directory);
  m.config = synthetic ? parse_config(synthetic_json(options.synthetic), "synthetic config")
                       : load_config(std::filesystem::path(options.model.directory) / "config.json");
  m.name = synthetic ? "synthetic " + options.synthetic.like : options.model.directory;
  if (tokens_needed > m.config.max_positions)
    fail<InputError>("prompt + tokens exceed the model's {} positions: {} are needed, one run to warm up included", m.config.max_positions,
                     tokens_needed);
  const BackendSize size{.max_length = static_cast<int>(std::min<std::int64_t>(m.config.max_positions, tokens_needed + 1)), .num_slots = 2};
  m.backend = synthetic ? make_backend(options.model, m.config, synthetic_weights(options.synthetic, m.config), size)
                        : load_backend(options.model, m.config, size);
  m.pool = std::make_unique<StatePool>(*m.backend);
  m.stepper = std::make_unique<Stepper>(*m.pool);
  write_error(m.backend->memory_plan().table());
  return m;
}

void print_result(const BenchOptions& options, const nlohmann::ordered_json& result) {
  if (options.json) {
    fmt::print("{}\n", result.dump(2));
    return;
  }
  for (const auto& [key, value] : result.items())
    fmt::print("{:<26} {}\n", key,
               value.is_number_float() ? fmt::format("{:.4g}", value.get<double>())
               : value.is_string()     ? value.get<std::string>()
                                       : value.dump());
}

void bench_decode(const BenchOptions& options) {
  Loaded m = load(options, options.prompt + std::int64_t{options.tokens} * (options.repeat + 1));
  ThreadPool roof_pool(options.model.threads);
  const double before = cpu::measure_read_bandwidth(roof_pool);
  SequenceState state(*m.pool);
  const auto ids = spread_ids(options.prompt + options.tokens * (options.repeat + 1), m.config.vocab_size);
  if (options.prompt > 0) m.stepper->prefill(state, std::span(ids).first(static_cast<std::size_t>(options.prompt)));
  std::vector<double> seconds;
  for (int r = -1; r < options.repeat; ++r) {  // the first repetition warms up
    const double s = seconds_of([&] {
      for (int i = 0; i < options.tokens; ++i) {
        const StepRequest request{&state, {&ids[static_cast<std::size_t>(state.length())], 1}, LogitsWanted::kLast};
        m.stepper->run({&request, 1});
      }
    });
    if (r >= 0) seconds.push_back(s / options.tokens);
  }
  const double roof = std::max(before, cpu::measure_read_bandwidth(roof_pool));
  const Spread s = spread_of(seconds);
  const StepWork work = decode_work(m.config, state.length(), expert_weight_bytes(m.config));
  const double rate = work.bytes() / s.median * 1e-9;
  print_result(options, {{"benchmark", "decode"},
                         {"model", m.name},
                         {"threads", roof_pool.num_threads()},
                         {"instruction_set", cpu::instruction_set()},
                         {"context", state.length()},
                         {"tokens_per_s", 1.0 / s.median},
                         {"tokens_per_s_range", fmt::format("{:.4g} to {:.4g} over {} runs of {}", 1.0 / s.slowest, 1.0 / s.fastest,
                                                            options.repeat, options.tokens)},
                         {"weight_mb_per_token", work.weight_bytes * 1e-6},
                         {"state_mb_per_token", work.state_bytes * 1e-6},
                         {"gb_per_s", rate},
                         {"read_roof_gb_per_s", roof},
                         {"share_of_roof", rate / roof}});
}

void bench_prefill(const BenchOptions& options) {
  Loaded m = load(options, options.prompt);
  ThreadPool roof_pool(options.model.threads);
  const double before = cpu::measure_f32_peak(roof_pool);
  const auto ids = spread_ids(options.prompt, m.config.vocab_size);
  std::vector<double> seconds;
  for (int r = -1; r < options.repeat; ++r) {
    SequenceState state(*m.pool);
    const double s = seconds_of([&] { m.stepper->prefill(state, ids); });
    if (r >= 0) seconds.push_back(s);
  }
  const double roof = std::max(before, cpu::measure_f32_peak(roof_pool));
  const Spread s = spread_of(seconds);
  const double rate = prefill_flops(m.config, options.prompt) / s.median * 1e-9;
  print_result(options, {{"benchmark", "prefill"},
                         {"model", m.name},
                         {"threads", roof_pool.num_threads()},
                         {"instruction_set", cpu::instruction_set()},
                         {"prompt_tokens", options.prompt},
                         {"tokens_per_s", options.prompt / s.median},
                         {"tokens_per_s_range", fmt::format("{:.5g} to {:.5g} over {} runs", options.prompt / s.slowest,
                                                            options.prompt / s.fastest, options.repeat)},
                         {"gflop_per_s", rate},
                         {"f32_roof_gflop_per_s", roof},
                         {"share_of_roof", rate / roof}});
}

void bench_kernels(const BenchOptions& options) {
  ThreadPool pool(options.model.threads);
  const cpu::Roofline roof = cpu::measure_roofline(pool);
  nlohmann::ordered_json result{{"benchmark", "kernels"},
                                {"threads", roof.num_threads},
                                {"instruction_set", roof.instruction_set},
                                {"read_roof_gb_per_s", roof.read_gb_per_s},
                                {"f32_roof_gflop_per_s", roof.f32_gflop_per_s}};
  if (!options.json) print_result(options, result);
  result["kernels"] = nlohmann::ordered_json::array();
  for (const cpu::KernelFigure& k : cpu::bench_kernels(pool)) {
    const double memory_share = k.gb_per_s() / roof.read_gb_per_s, compute_share = k.gflop_per_s() / roof.f32_gflop_per_s;
    result["kernels"].push_back({{"name", k.name},
                                 {"microseconds", k.microseconds},
                                 {"gb_per_s", k.gb_per_s()},
                                 {"gflop_per_s", k.gflop_per_s()},
                                 {"share_of_read_roof", memory_share},
                                 {"share_of_f32_roof", compute_share}});
    if (!options.json)
      fmt::print("{:<40} {:>10.1f} us {:>8.2f} GB/s ({:>4.0f}%) {:>8.1f} GFLOP/s ({:>4.0f}%)\n", k.name, k.microseconds, k.gb_per_s(),
                 100 * memory_share, k.gflop_per_s(), 100 * compute_share);
  }
  if (options.json) print_result(options, result);
}

CLI::App* add_benchmark(CLI::App& app, const char* name, const char* description, const std::shared_ptr<BenchOptions>& options,
                        void (*run)(const BenchOptions&)) {
  CLI::App* command = app.add_subcommand(name, description);
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options, run] { run(*options); });
  return command;
}

// The model, from a checkpoint or made up, and how much of it to run.
void add_model_benchmark_options(CLI::App& command, BenchOptions& options) {
  CLI::Option* directory = add_directory_option(command, options.model.directory);
  add_device_options(command, options.model);
  const std::vector<CLI::Option*> sizes = add_synthetic_options(command, options.synthetic, "--synthetic");
  CLI::Option* synthetic = command.get_option("--synthetic")->excludes(directory);
  for (CLI::Option* size : sizes) size->needs(synthetic);
  command.add_option("--prompt", options.prompt, "Prompt tokens")->capture_default_str()->check(number_in(1, 1 << 20));
  command.add_option("--repeat", options.repeat, "Runs; the median is quoted, with the range")
      ->capture_default_str()
      ->check(number_in(1, 1000));
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  const auto options = std::make_shared<BenchOptions>();
  options->synthetic.like.clear();
  app.require_subcommand(1);
  CLI::App* decode = add_benchmark(app, "decode", "Decode one token after another; share of the read bandwidth", options, bench_decode);
  add_model_benchmark_options(*decode, *options);
  decode->add_option("--tokens", options->tokens, "Tokens decoded per run")->capture_default_str()->check(number_in(1, 1 << 20));
  CLI::App* prefill = add_benchmark(app, "prefill", "Read a prompt; share of the float32 multiply rate", options, bench_prefill);
  add_model_benchmark_options(*prefill, *options);
  CLI::App* kernels = add_benchmark(app, "kernels", "Single kernels at shapes that matter", options, bench_kernels);
  kernels->add_option("-t,--threads", options->model.threads, "Threads; 0: all")->check(number_in(0, kMaxThreads));
  add_bench_step(app);
  add_bench_serve(app, exit_code);
  add_bench_grammar(app);
}

}  // namespace tetrad::cli

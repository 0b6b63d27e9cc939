// tetrad bench step: one decode step or prefill chunk on a GPU, whole and by kernel.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "base/bf16.h"
#include "base/error.h"
#include "cli/bench_step.h"
#include "cli/devices.h"
#include "cli/synthetic_options.h"
#include "cli/terminal.h"
#include "engine/stepper.h"
#if defined(TETRAD_WITH_CUDA)
#include "cuda/cuda_backend.h"
#endif

namespace tetrad::cli {
namespace {

struct StepOptions {
  SyntheticOptions synthetic;
  std::string device = "cuda:0";
  int batch = 1, context = 8192, rows = 1, repeat = 20;
};

#if defined(TETRAD_WITH_CUDA)

// Weights up to this size are made on the host, like those of `synth`; larger ones on the device, where they are needed.
constexpr std::uint64_t kHostWeightBytes = std::uint64_t{1} << 20;

// A sequence of `context` tokens whose caches hold random values: reading so long a prompt first would take longer than the measurement.
StateSnapshot random_past(const Backend& backend, int context) {
  const StateLayout& layout = backend.state_layout();
  StateSnapshot past;
  past.length = context;
  past.slot.resize(layout.slot_bytes);
  const std::int64_t length = context;
  std::memcpy(past.slot.data() + layout.slot_section(StateKind::kPositions, -1).offset, &length, sizeof(length));
  const auto pages = static_cast<std::size_t>((context + layout.page_tokens - 1) / layout.page_tokens);
  std::vector<bf16> page(layout.page_bytes / sizeof(bf16));
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  past.pages.reserve(pages * layout.page_bytes);
  for (std::size_t p = 0; p < pages; ++p) {
    if (p < 64)  // later pages repeat the first ones: what matters is that scores differ
      for (bf16& v : page) v = to_bf16(normal(random));
    const auto* bytes = reinterpret_cast<const std::byte*>(page.data());
    past.pages.insert(past.pages.end(), bytes, bytes + layout.page_bytes);
  }
  return past;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void bench_step(const StepOptions& options) {
  check_device(options.device);
  const Config config = parse_config(synthetic_json(options.synthetic), "synthetic config");
  const std::int64_t last = static_cast<std::int64_t>(options.context) + static_cast<std::int64_t>(options.rows) * (options.repeat + 3);
  if (last > config.max_positions) fail<InputError>("context and steps reach position {}, the model has {}", last, config.max_positions);
  const std::int64_t tokens_in_all = last * options.batch, rows_in_all = static_cast<std::int64_t>(options.rows) * options.batch;
  if (tokens_in_all > std::numeric_limits<int>::max())
    fail<InputError>("{} sequences of {} tokens are {}, at most {} are planned for", options.batch, last, tokens_in_all,
                     std::numeric_limits<int>::max());
  BackendOptions sizes;
  sizes.num_slots = options.batch + 1;
  sizes.max_tokens = static_cast<int>(tokens_in_all);
  sizes.max_rows = static_cast<int>(rows_in_all);  // no more than the tokens
  const auto backend = make_backend_on(options.device, config, synthetic_weights(options.synthetic, config, kHostWeightBytes), sizes, {});
  if (!backend->name().starts_with("cuda")) fail<InputError>("bench step measures a GPU, --device {} is none", options.device);
  write_error(backend->memory_plan().table());
  const double roof = cuda::measure_copy_gb_per_s(*backend);

  StatePool pool(*backend);
  Stepper stepper(pool);
  std::vector<SequenceState> states;
  const StateSnapshot past = random_past(*backend, options.context);
  for (int b = 0; b < options.batch; ++b) {
    states.emplace_back(pool);
    if (options.context > 0) states.back().restore(past);
  }
  std::mt19937 random(2);
  std::vector<int> ids(static_cast<std::size_t>(options.batch) * options.rows);
  const auto step = [&] {
    for (int& id : ids) id = static_cast<int>(random() % static_cast<unsigned>(config.vocab_size));
    std::vector<StepRequest> requests;
    for (int b = 0; b < options.batch; ++b)
      requests.push_back({&states[static_cast<std::size_t>(b)],
                          std::span(ids).subspan(static_cast<std::size_t>(b) * options.rows, static_cast<std::size_t>(options.rows)),
                          LogitsWanted::kLast});
    const auto started = std::chrono::steady_clock::now();
    const auto outcomes = stepper.run(requests);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    for (const StepOutcome& outcome : outcomes)
      if (outcome.fault) fail<NumericError>("{} of layer {} went non-finite", outcome.fault->what, outcome.fault->layer);
    return seconds;
  };
  step(), step();
  std::vector<double> seconds;
  for (int r = 0; r < options.repeat; ++r) seconds.push_back(step());
  cuda::start_profile(*backend);
  step();
  auto stems = cuda::end_profile(*backend);
  std::sort(stems.begin(), stems.end(), [](const auto& a, const auto& b) { return a.microseconds > b.microseconds; });

  const double s = median(seconds), tokens = static_cast<double>(options.batch) * options.rows;
  const auto [fastest, slowest] = std::minmax_element(seconds.begin(), seconds.end());
  nlohmann::ordered_json result{
      {"benchmark", "step"},
      {"model", options.synthetic.like},
      {"weights", fmt::format("{}", fmt::join(options.synthetic.weights, ","))},
      {"device", backend->name()},
      {"batch", options.batch},
      {"rows", options.rows},
      {"context", options.context},
      {"milliseconds", s * 1e3},
      {"milliseconds_range", fmt::format("{:.4g} to {:.4g} over {} steps", *fastest * 1e3, *slowest * 1e3, options.repeat)},
      {"tokens_per_s", tokens / s},
      {"copy_roof_gb_per_s", roof}};
  double kernels = 0;
  for (const auto& t : stems) kernels += t.microseconds;
  result["kernels_milliseconds"] = kernels * 1e-3;
  for (const auto& t : stems) result["stems"].push_back({{"stem", t.stem}, {"launches", t.launches}, {"microseconds", t.microseconds}});
  fmt::print("{}\n", result.dump(1));
}

#else

void bench_step(const StepOptions&) { fail<InputError>("bench step measures a GPU, and this build has no CUDA backend"); }

#endif

}  // namespace

void add_bench_step(CLI::App& app) {
  const auto options = std::make_shared<StepOptions>();
  options->synthetic.like = "qwen3.8-flash-next";
  CLI::App* command = app.add_subcommand("step", "One step on a GPU, whole and by kernel, with random weights made on the device");
  add_synthetic_options(*command, options->synthetic, "--synthetic");
  command->add_option("--device", options->device, "cuda:N")->capture_default_str();
  command->add_option("--batch", options->batch, "Sequences")->capture_default_str()->check(CLI::Range(1, 4096));
  command->add_option("--rows", options->rows, "Rows of each sequence: 1 decodes, more read a prompt")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--context", options->context, "Tokens each sequence holds before")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  command->add_option("--repeat", options->repeat, "Steps timed; the median is quoted, with the range")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command->callback([options] { bench_step(*options); });
}

}  // namespace tetrad::cli

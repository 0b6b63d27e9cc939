// tetrad bench step: one decode step or prefill chunk on a GPU, whole and by kernel.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
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
#include "cli/value_checks.h"
#include "engine/sampler.h"
#include "engine/stepper.h"
#if defined(TETRAD_WITH_CUDA)
#include "cuda/cuda_backend.h"
#endif

namespace tetrad::cli {
namespace {

struct StepSize {
  int batch = 1, context = 8192, rows = 1, repeat = 20;
};

struct StepOptions {
  SyntheticOptions synthetic;
  std::string device = "cuda:0";
  StepSize size;
  std::vector<std::string> more;  // further sizes, "BATCHxROWS@CONTEXT"
  bool choose = false;            // the next tokens too, on the device
  SamplingParams sampling;
};

#if defined(TETRAD_WITH_CUDA)

// What a bf16 product of 8192^3 is quoted to reach on one H200; this bench does not measure it.
constexpr double kQuotedMatrixTflops = 788;

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

// Positions that every sequence reaches: a prompt is read again from the same place, a decode goes on.
std::int64_t last_position(const StepSize& size) {
  return static_cast<std::int64_t>(size.context) + (size.rows > 1 ? size.rows : size.repeat + 3);
}

// Room for the largest of the sizes.
BackendOptions backend_sizes(const std::vector<StepSize>& sizes, const Config& config) {
  BackendOptions room{.num_slots = 1, .max_tokens = 1, .max_rows = 1};
  for (const StepSize& size : sizes) {
    const std::int64_t last = last_position(size), tokens = last * size.batch, rows = static_cast<std::int64_t>(size.rows) * size.batch;
    if (last > config.max_positions) fail<InputError>("context and steps reach position {}, the model has {}", last, config.max_positions);
    if (tokens > std::numeric_limits<int>::max())
      fail<InputError>("{} sequences of {} tokens are {}, at most {} are planned for", size.batch, last, tokens,
                       std::numeric_limits<int>::max());
    room.num_slots = std::max(room.num_slots, size.batch + 1);
    room.max_tokens = std::max(room.max_tokens, static_cast<int>(tokens));
    room.max_rows = std::max(room.max_rows, static_cast<int>(rows));  // no more than the tokens
  }
  return room;
}

// Of the measured copy roof and of the quoted matrix rate; a stem that does not say what it moves has neither. The times include the events
// around every launch, some microseconds each.
nlohmann::ordered_json stem_json(const cuda::StemTime& t, double copy_roof) {
  nlohmann::ordered_json stem{{"stem", t.stem}, {"launches", t.launches}, {"microseconds", t.microseconds}};
  if (t.bytes == 0) return stem;
  const double seconds = t.microseconds * 1e-6;
  stem["gb_per_s"] = t.bytes / seconds * 1e-9;
  stem["share_of_copy_roof"] = t.bytes / seconds * 1e-9 / copy_roof;
  stem["tflops"] = t.flops / seconds * 1e-12;
  stem["share_of_quoted_matrix_rate"] = t.flops / seconds * 1e-12 / kQuotedMatrixTflops;
  return stem;
}

// The next token of every sequence, as the engine has it chosen.
void choose_tokens(Stepper& stepper, std::span<const StepOutcome> outcomes, const Sampler& sampler, const SampleableIds& ids) {
  std::vector<TokenChoice> choices;
  for (const StepOutcome& outcome : outcomes) {
    if (outcome.kept_row < 0) fail<InputError>("--choose: the backend keeps no logits of steps of this size");
    choices.push_back(sampler.choice(static_cast<std::int64_t>(choices.size())));
    choices.back().row = outcome.kept_row;
  }
  for (const ChosenToken& chosen : stepper.choose(ids, choices)) sampler.chosen(chosen, 0);
}

nlohmann::ordered_json measure(Backend& backend, const StepSize& size, double copy_roof, const StepOptions& options) {
  StatePool pool(backend);
  Stepper stepper(pool);
  std::vector<SequenceState> states;
  const StateSnapshot past = random_past(backend, size.context);
  for (int b = 0; b < size.batch; ++b) states.emplace_back(pool);
  const auto rewind = [&] {
    for (SequenceState& state : states) size.context > 0 ? state.restore(past) : state.clear();
  };
  rewind();
  const SampleableIds sampleable = SampleableIds::all(backend.config().vocab_size);
  const Sampler sampler(options.sampling, sampleable, {});
  std::mt19937 random(2);
  std::vector<int> ids(static_cast<std::size_t>(size.batch) * size.rows);
  const auto step = [&] {
    if (size.rows > 1) rewind();  // the same prompt position each time; a decode goes on
    for (int& id : ids) id = static_cast<int>(random() % static_cast<unsigned>(backend.config().vocab_size));
    std::vector<StepRequest> requests;
    for (int b = 0; b < size.batch; ++b)
      requests.push_back({.state = &states[static_cast<std::size_t>(b)],
                          .token_ids = std::span(ids).subspan(static_cast<std::size_t>(b) * size.rows, static_cast<std::size_t>(size.rows)),
                          .choose = options.choose});
    const auto started = std::chrono::steady_clock::now();
    const auto outcomes = stepper.run(requests);
    if (options.choose) choose_tokens(stepper, outcomes, sampler, sampleable);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    for (const StepOutcome& outcome : outcomes)
      if (outcome.fault) fail<NumericError>("{} of layer {} went non-finite", outcome.fault->what, outcome.fault->layer);
    return seconds;
  };
  step(), step();
  std::vector<double> seconds;
  for (int r = 0; r < size.repeat; ++r) seconds.push_back(step());
  cuda::start_profile(backend);
  step();
  auto stems = cuda::end_profile(backend);
  std::sort(stems.begin(), stems.end(), [](const auto& a, const auto& b) { return a.microseconds > b.microseconds; });

  const double s = median(seconds), tokens = static_cast<double>(size.batch) * size.rows;
  const auto [fastest, slowest] = std::minmax_element(seconds.begin(), seconds.end());
  nlohmann::ordered_json result{
      {"batch", size.batch},
      {"rows", size.rows},
      {"context", size.context},
      {"logits", options.choose ? "chosen from on the device" : "copied to the host"},
      {"milliseconds", s * 1e3},
      {"milliseconds_range", fmt::format("{:.4g} to {:.4g} over {} steps", *fastest * 1e3, *slowest * 1e3, size.repeat)},
      {"tokens_per_s", tokens / s}};
  double kernels = 0;
  int launches = 0;
  for (const auto& t : stems) kernels += t.microseconds, launches += t.launches;
  result["kernels_milliseconds"] = kernels * 1e-3;  // with events around every launch
  result["launches"] = launches;
  for (const auto& t : stems) result["stems"].push_back(stem_json(t, copy_roof));
  return result;
}

StepSize parse_size(const std::string& text, int repeat) {
  StepSize size;
  size.repeat = repeat;
  char end = 0;
  if (std::sscanf(text.c_str(), "%7dx%7d@%7d%c", &size.batch, &size.rows, &size.context, &end) != 3 || size.batch < 1 ||
      size.batch > 4096 || size.rows < 1 || size.rows > 1 << 20 || size.context < 0 || size.context > 1 << 20)
    fail<InputError>("--and {}: expected BATCHxROWS@CONTEXT, for example 32x1@8192", text);
  return size;
}

void bench_step(const StepOptions& options) {
  check_device(options.device);
  std::vector<StepSize> sizes{options.size};
  for (const std::string& text : options.more) sizes.push_back(parse_size(text, options.size.repeat));
  const Config config = parse_config(synthetic_json(options.synthetic), "synthetic config");
  const auto backend = make_backend_on(options.device, config, synthetic_weights(options.synthetic, config, kHostWeightBytes),
                                       backend_sizes(sizes, config), {});
  if (!backend->name().starts_with("cuda")) fail<InputError>("bench step measures a GPU, --device {} is none", options.device);
  write_error(backend->memory_plan().table());
  nlohmann::ordered_json result{{"benchmark", "step"},
                                {"model", options.synthetic.like},
                                {"weights", fmt::format("{}", fmt::join(options.synthetic.weights, ","))},
                                {"device", backend->name()}};
  for (const auto& row : backend->memory_plan().rows)
    result["memory"].push_back({{"arena", row.arena}, {"name", row.name}, {"bytes", row.bytes}});
  const double copy_roof = cuda::measure_copy_gb_per_s(*backend);
  result["copy_roof_gb_per_s"] = copy_roof;
  result["quoted_matrix_tflops"] = kQuotedMatrixTflops;
  for (const StepSize& size : sizes) result["steps"].push_back(measure(*backend, size, copy_roof, options));
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
  command->add_option("--batch", options->size.batch, "Sequences")->capture_default_str()->check(number_in(1, 4096));
  command->add_option("--rows", options->size.rows, "Rows of each sequence: 1 decodes, more read a prompt")
      ->capture_default_str()
      ->check(number_in(1, 1 << 20));
  command->add_option("--context", options->size.context, "Tokens each sequence holds before")
      ->capture_default_str()
      ->check(number_in(0, 1 << 20));
  command->add_option("--repeat", options->size.repeat, "Steps timed; the median is quoted, with the range")
      ->capture_default_str()
      ->check(number_in(1, 1000));
  command->add_option("--and", options->more, "Further sizes with the same weights, BATCHxROWS@CONTEXT");
  command->add_flag("--choose", options->choose, "Choose the next tokens on the device, instead of copying the logits to the host");
  command->add_option("--temperature", options->sampling.temperature, "Of --choose; 0 takes the most probable token")
      ->capture_default_str();
  command->add_option("--top-k", options->sampling.top_k, "Of --choose; 0: off")->capture_default_str();
  command->add_option("--top-p", options->sampling.top_p, "Of --choose; 1: off")->capture_default_str();
  command->add_option("--min-p", options->sampling.min_p, "Of --choose; 0: off")->capture_default_str();
  command->callback([options] { bench_step(*options); });
}

}  // namespace tetrad::cli

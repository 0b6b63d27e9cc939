#include "server/server_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <sstream>

#include "server/activity.h"
#include "server/metrics_text.h"

namespace tetrad {
namespace {

Histogram of_tokens() {
  return Histogram({1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000});
}
Histogram of_choices() { return Histogram({1, 2, 5, 10, 20}); }

constexpr FinishReason kReasons[] = {FinishReason::kStop, FinishReason::kLength, FinishReason::kContext, FinishReason::kCancelled};
// The name other engines give to a cancelled request.
std::string reason_label(FinishReason reason) {
  return reason == FinishReason::kCancelled ? "abort" : std::string(finish_reason_name(reason));
}

void add_gauges(MetricsText& text, const EngineStats& stats, const EngineFacts& facts) {
  text.gauge("vllm:num_requests_running", "Requests being computed.", stats.requests_running);
  text.gauge("vllm:num_requests_waiting", "Requests that wait to be started.", stats.requests_waiting);
  text.gauge("vllm:kv_cache_usage_perc",
             "Share of the pages that running requests hold, 0 to 1. Pages of the prefix cache are not counted: they give way.",
             kv_cache_use(stats));
  text.family("vllm:cache_config_info", "gauge", "Tokens of a page and number of pages.");
  text.sample(1, {{"block_size", std::to_string(facts.page_tokens)}, {"num_gpu_blocks", std::to_string(stats.pages)}});
  text.gauge("tetrad:context_tokens", "Tokens that prompt and answer may have together.", facts.context_tokens);
  text.gauge("tetrad:sequences_running", "Answers that hold a state slot.", stats.sequences_running);
  text.gauge("tetrad:waiting_prompt_tokens", "Prompt tokens of the requests that wait.", static_cast<double>(stats.waiting_tokens));
  text.gauge("tetrad:slots", "State slots.", stats.slots);
  text.gauge("tetrad:slots_taken", "State slots taken, the prefix cache's among them.", stats.slots_taken);
  text.gauge("tetrad:pages", "Pages.", stats.pages);
  text.gauge("tetrad:pages_taken", "Pages taken, the prefix cache's among them.", stats.pages_taken);
  text.gauge("tetrad:prefix_cache_pages", "Pages that the prefix cache refers to.", stats.prefix_cache.device_pages);
  text.gauge("tetrad:prefix_cache_host_bytes", "Bytes of the prefix cache's second tier.",
             static_cast<double>(stats.prefix_cache.host_bytes));
  text.gauge("tetrad:prefix_cache_device_bytes", "Bytes of the prefix cache on the device.",
             static_cast<double>(stats.prefix_cache.device_bytes));
  text.family("tetrad:prefix_cache_entries", "gauge", "States kept, by tier.");
  text.sample(stats.prefix_cache.device_entries, {{"tier", "device"}});
  text.sample(stats.prefix_cache.host_entries, {{"tier", "host"}});
  text.family("vllm:engine_sleep_state", "gauge", "1 for the state the engine is in: it never sleeps.");
  for (const char* state : {"awake", "weights_offloaded", "discard_all"})
    text.sample(state == std::string_view("awake") ? 1 : 0, {{"sleep_state", state}});
}

// Every reason up to `last`, those that have not occurred too: a series that begins with its first fault shows no increase.
void add_reasons(MetricsText& text, std::span<const std::uint64_t> counts, EngineErrorKind last) {
  for (int kind = 0; kind <= static_cast<int>(last); ++kind)
    text.sample(static_cast<double>(counts[static_cast<std::size_t>(kind)]),
                {{"reason", std::string(engine_error_name(static_cast<EngineErrorKind>(kind)))}});
}

void add_counters(MetricsText& text, const EngineStats& stats) {
  text.counter("vllm:prompt_tokens_total", "Tokens of the prompts that were started.", stats.prompt_tokens);
  text.counter("vllm:generation_tokens_total", "Tokens generated.", stats.generated_tokens);
  text.family("vllm:request_success_total", "counter", "Answers that ended, by reason.");
  for (const FinishReason reason : kReasons)
    text.sample(static_cast<double>(stats.choices_finished[static_cast<std::size_t>(reason)]), {{"finished_reason", reason_label(reason)}});
  text.counter("vllm:num_preemptions_total", "Answers that gave up their memory for others and were resumed.", stats.preemptions);
  text.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", stats.prefix_cache.tokens_queried);
  text.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", stats.prefix_cache.tokens_reused);
  text.family("vllm:prompt_tokens_by_source_total", "counter", "Prompt tokens by where their state came from.");
  text.sample(static_cast<double>(stats.prompt_tokens - std::min(stats.cached_tokens, stats.prompt_tokens)), {{"source", "local_compute"}});
  text.sample(static_cast<double>(stats.cached_tokens), {{"source", "local_cache_hit"}});
  text.counter("tetrad:steps_total", "Steps of the engine.", stats.steps);
  text.counter("tetrad:step_rows_total", "Rows of all steps.", stats.rows);
  text.counter("tetrad:prefix_cache_evictions_total", "Entries of the prefix cache that gave way.", stats.prefix_cache.evictions);
  text.family("tetrad:requests_refused_total", "counter", "Requests not taken, by reason.");
  add_reasons(text, stats.refused, EngineErrorKind::kStopping);
  text.family("tetrad:requests_failed_total", "counter", "Requests that were taken and failed, by reason.");
  add_reasons(text, stats.failed, EngineErrorKind::kInternal);
}

// Bytes of the pools by arena, as planned when the model was loaded.
void add_memory(MetricsText& text, const MemoryPlan& plan) {
  std::map<std::string, double> arenas;
  for (const MemoryPlan::Row& row : plan.rows) arenas[row.arena] += static_cast<double>(row.bytes);
  if (arenas.empty()) return;
  text.family("tetrad:memory_bytes", "gauge", "Memory planned for the model, by pool.");
  for (const auto& [arena, bytes] : arenas) text.sample(bytes, {{"pool", arena}});
}

void add_replay(MetricsText& text, const ReplayStats& replay) {
  text.counter("tetrad:replay_hits_total", "Assistant turns of prompts for which the tokens that were sampled took their place.",
               replay.hits);
  text.counter("tetrad:replay_misses_total", "Assistant turns of prompts that were not known, or edited.", replay.misses);
  text.counter("tetrad:replay_evictions_total", "Turns that gave way in the replay map.", replay.evictions);
  text.gauge("tetrad:replay_entries", "Turns in the replay map.", static_cast<double>(replay.entries));
  text.gauge("tetrad:replay_bytes", "Memory of the replay map.", static_cast<double>(replay.bytes));
}

void add_engine_histograms(MetricsText& text, const EngineStats& stats) {
  text.histogram("vllm:time_to_first_token_seconds", "From submission to the first token.", stats.first_token_seconds);
  text.histogram("vllm:inter_token_latency_seconds", "Between tokens of an answer.", stats.inter_token_seconds);
  text.histogram("vllm:e2e_request_latency_seconds", "From submission to the end.", stats.request_seconds);
  text.histogram("vllm:request_queue_time_seconds", "From submission to the start.", stats.queue_seconds);
  text.histogram("vllm:iteration_tokens_total", "Rows of a step.", stats.step_rows);
}

// The kernel tells the start in ticks since the machine's, behind the command's name, which may hold anything.
std::optional<double> process_start_seconds() {
  std::ifstream stat("/proc/self/stat"), machine("/proc/stat");
  std::string line;
  std::getline(stat, line);
  std::istringstream fields(line.substr(line.rfind(')') == std::string::npos ? line.size() : line.rfind(')') + 1));
  constexpr int kFieldsBefore = 19;  // from the state to the one before the start
  std::string skipped;
  for (int i = 0; i < kFieldsBefore; ++i) fields >> skipped;
  double ticks = 0, machine_start = 0;
  while (machine >> skipped && skipped != "btime") std::getline(machine, line);
  if (!(fields >> ticks) || !(machine >> machine_start)) return std::nullopt;
  return machine_start + ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// Of this process; what the system does not tell is left out.
void add_process(MetricsText& text) {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t pages = 0, resident = 0;
  if (statm >> pages >> resident) {
    const auto page_bytes = static_cast<double>(::sysconf(_SC_PAGESIZE));
    text.gauge("process_resident_memory_bytes", "Resident memory.", static_cast<double>(resident) * page_bytes);
    text.gauge("process_virtual_memory_bytes", "Address space.", static_cast<double>(pages) * page_bytes);
  }
  rlimit files_allowed{};
  if (::getrlimit(RLIMIT_NOFILE, &files_allowed) == 0)
    text.gauge("process_max_fds", "Open file descriptors allowed.", static_cast<double>(files_allowed.rlim_cur));
  std::error_code error;
  std::filesystem::directory_iterator files("/proc/self/fd", error);
  if (!error) text.gauge("process_open_fds", "Open file descriptors.", static_cast<double>(std::distance(begin(files), end(files))));
  if (const auto start = process_start_seconds()) text.gauge("process_start_time_seconds", "Start, in seconds since 1970.", *start);
  timespec cpu{};
  if (::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu) == 0) {
    text.family("process_cpu_seconds_total", "counter", "CPU time.");
    text.sample(static_cast<double>(cpu.tv_sec) + static_cast<double>(cpu.tv_nsec) * 1e-9);
  }
}

}  // namespace

ServerMetrics::ServerMetrics()
    : prompt_tokens_(of_tokens()),
      generation_tokens_(of_tokens()),
      max_tokens_(of_tokens()),
      choices_(of_choices()),
      prefill_seconds_(Histogram::of_seconds()),
      decode_seconds_(Histogram::of_seconds()),
      inference_seconds_(Histogram::of_seconds()),
      token_seconds_(Histogram::of_seconds()) {}

void ServerMetrics::count_http(std::string_view handler, std::string_view method, int status, double seconds) {
  const std::lock_guard lock(mutex_);
  ++http_requests_[{std::string(handler), std::string(method), status}];
  http_seconds_.try_emplace(std::string(handler), Histogram::of_seconds()).first->second.observe(seconds);
}

void ServerMetrics::count_disconnect() {
  const std::lock_guard lock(mutex_);
  ++disconnects_;
}

void ServerMetrics::count_request(const RequestRecord& record) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_.observe(record.usage.prompt_tokens);
  generation_tokens_.observe(record.usage.completion_tokens);
  if (record.max_tokens > 0) max_tokens_.observe(record.max_tokens);
  choices_.observe(record.num_choices);
  if (record.timings.first_token <= 0) return;
  prefill_seconds_.observe(record.timings.prefill);
  decode_seconds_.observe(record.timings.decode);
  inference_seconds_.observe(record.timings.prefill + record.timings.decode);
  const int later_tokens = record.usage.completion_tokens - record.num_choices;
  if (later_tokens > 0) token_seconds_.observe(record.timings.decode * record.num_choices / later_tokens);
}

std::string ServerMetrics::text(const EngineStats* engine, const EngineFacts& facts) const {
  MetricsText text({{"model_name", facts.model_name}, {"engine", "0"}});
  const std::lock_guard lock(mutex_);
  if (engine != nullptr) {
    add_gauges(text, *engine, facts);
    add_counters(text, *engine);
    add_memory(text, facts.memory);
    if (facts.replay) add_replay(text, *facts.replay);
    add_engine_histograms(text, *engine);
    text.histogram("vllm:request_prefill_time_seconds", "From the start to the first token.", prefill_seconds_);
    text.histogram("vllm:request_decode_time_seconds", "From the first token to the last.", decode_seconds_);
    text.histogram("vllm:request_inference_time_seconds", "From the start to the last token.", inference_seconds_);
    text.histogram("vllm:request_time_per_output_token_seconds", "Mean time of a token after the first.", token_seconds_);
    text.histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", prompt_tokens_);
    text.histogram("vllm:request_generation_tokens", "Tokens of a request's answers.", generation_tokens_);
    text.histogram("vllm:request_params_max_tokens", "max_tokens of the requests that state it.", max_tokens_);
    text.histogram("vllm:request_params_n", "Answers asked for.", choices_);
  }
  MetricsText plain;
  plain.family("http_requests_total", "counter", "HTTP requests answered. Status 499: the client went away.");
  for (const auto& [key, count] : http_requests_)
    plain.sample(static_cast<double>(count),
                 {{"handler", std::get<0>(key)}, {"method", std::get<1>(key)}, {"status", std::to_string(std::get<2>(key))}});
  plain.family("http_request_duration_seconds", "histogram", "From the request's head to the last byte of the answer.");
  for (const auto& [handler, histogram] : http_seconds_) plain.sample(histogram, {{"handler", handler}});
  plain.counter("tetrad:client_disconnects_total", "Requests whose client went away before the answer was complete.", disconnects_);
  add_process(plain);
  return text.text() + plain.text();
}

}  // namespace tetrad

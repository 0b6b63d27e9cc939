#include "cli/serve_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "cli/model_loading.h"
#include "cli/value_checks.h"
#include "server/api_keys.h"

namespace tetrad::cli {
namespace {

constexpr int kMaxSequences = 4096, kMaxSeconds = 86400;
constexpr int kAutoContexts = 4;  // contexts that the state memory holds unless told otherwise

std::string directory_name(const std::string& directory) {
  std::filesystem::path path = std::filesystem::path(directory).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  const std::string name = path.filename().string();
  return name.empty() || name == "." || name == ".." ? "tetrad" : name;
}

void add_address_options(CLI::App& app, ServeOptions& options) {
  app.add_option("-H,--host", options.host, "Address or name to listen on; 0.0.0.0: every IPv4 address")
      ->type_name("HOST")
      ->capture_default_str();
  app.add_option("-p,--port", options.port, "Port; 0: any free one")->type_name("N")->check(number_in(0, 65535))->capture_default_str();
  app.add_option("--uds", options.unix_socket, "Listen on this Unix socket instead")->type_name("PATH");
  app.add_option("--ssl-certfile", options.certificate_file, "Certificate chain in PEM: HTTPS")->type_name("FILE");
  app.add_option("--ssl-keyfile", options.key_file, "Its private key in PEM")->type_name("FILE");
  app.add_option("--api-key", options.api_keys,
                 "Key that clients must show; may be repeated. Other users of this machine see the command "
                 "line: TETRAD_API_KEY or --api-key-file keeps it from them")
      ->type_name("KEY")
      ->expected(1)
      ->take_all()
      ->envname("TETRAD_API_KEY");
  app.add_option("--api-key-file", options.api_key_file, "Keys, one a line")->type_name("FILE");
  app.add_option("--allowed-origins", options.allowed_origins,
                 "Origin whose pages may use the API from a browser, as https://chat.example; may be repeated; '*': every one")
      ->type_name("ORIGIN")
      ->expected(1)
      ->take_all();
  app.add_option("--sse-ping-interval", options.ping_interval, "Seconds of silence after which a stream sends a comment")
      ->type_name("S")
      ->check(number_in(1, kMaxSeconds))
      ->capture_default_str();
  app.add_option("--shutdown-timeout", options.shutdown_timeout, "Seconds that requests may still take after SIGTERM")
      ->type_name("S")
      ->check(number_in(0, kMaxSeconds))
      ->capture_default_str();
}

void add_engine_options(CLI::App& app, ServeOptions& options) {
  app.add_option("--max-num-seqs,--max-running-requests,--max_batch_size", options.max_sequences, "Answers computed at the same time")
      ->type_name("N")
      ->check(number_in(1, kMaxSequences))
      ->capture_default_str();
  app.add_option("--max-num-batched-tokens,--chunked-prefill-size,--prefill-chunk", options.max_batched_tokens,
                 "Tokens of one step; 0: as many as the device takes")
      ->type_name("N")
      ->check(number_in(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-num-queued-reqs,--max-queued-requests", options.max_queued,
                 "Requests that may wait; the next gets --queue-full-status. Default: four times --max-num-seqs")
      ->type_name("N")
      ->check(number_in(1, 1 << 20));
  app.add_option("--queue-full-status", options.queue_full_status, "What a request gets that finds the queue full: 503 or 429")
      ->type_name("N")
      ->check(CLI::IsMember({503, 429}))
      ->capture_default_str();
  app.add_option("--max-num-queued-tokens", options.max_queued_tokens, "Prompt tokens that may wait; 0: no limit")
      ->type_name("N")
      ->check(number_in(std::int64_t{0}, std::int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--queue-timeout", options.queue_timeout, "Seconds that a request may wait; 0: for ever")
      ->type_name("S")
      ->check(number_in(0.0, static_cast<double>(kMaxSeconds)))
      ->capture_default_str();
  app.add_option("--kv-cache-tokens", options.kv_cache_tokens,
                 "Tokens of all requests together that memory is planned for: a number, 128k, or auto")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--prefix-cache-slots", options.prefix_cache_slots,
                 "States kept on the device for prompts to come; 0: no prefix cache. Default: as --max-num-seqs")
      ->type_name("N")
      ->check(number_in(0, kMaxSequences));
  app.add_option("--prefix-cache-host-mib", options.prefix_cache_host_mib, "MiB of host memory for those that leave the device; 0: none")
      ->type_name("N")
      ->check(number_in(0, 1 << 24))
      ->capture_default_str();
  app.add_option("--replay-map-mib", options.replay_map_mib,
                 "MiB for the tokens of answers, which stand in prompts for turns that come back altered or without reasoning; 0: none")
      ->type_name("N")
      ->check(number_in(0, 1 << 20))
      ->capture_default_str();
}

void add_api_options(CLI::App& app, ServeOptions& options) {
  app.add_option("--served-model-name,--alias,--model-id", options.names,
                 "Names that requests may use; the first is reported, '*' accepts any. Default: the name of the directory")
      ->type_name("NAME")
      ->expected(1)
      ->take_all();
  app.add_option("--default-max-tokens", options.default_max_tokens, "For requests that state none; 0: what is left of the context")
      ->type_name("N")
      ->check(number_in(0, std::numeric_limits<int>::max()))
      ->capture_default_str();
  app.add_option("--reasoning-fields", options.reasoning_fields, "Where reasoning goes: reasoning_content, reasoning, or both")
      ->type_name("NAME")
      ->check(CLI::IsMember({"both", "reasoning_content", "reasoning"}))
      ->capture_default_str();
  app.add_option("--reasoning-budget", options.reasoning_budget, "Tokens of thinking, for requests that state no number; -1: any number")
      ->type_name("N")
      ->check(number_in(kNoThinkingBudget, std::numeric_limits<int>::max()))
      ->capture_default_str();
  app.add_option("--reasoning-budget-message", options.reasoning_budget_message, "What ends thinking when its budget is spent")
      ->type_name("TEXT");
  app.add_option("--system-message-policy", options.system_policy, "Of more than one system message, or a late one: merge or strict")
      ->type_name("NAME")
      ->check(CLI::IsMember({"merge", "strict"}))
      ->capture_default_str();
  app.add_flag("--no-ui", options.no_page, "Without the page at /");
  app.add_flag("--strict-fields", options.strict_fields, "Refuse requests with fields that are not known");
}

void add_log_options(CLI::App& app, ServeOptions& options) {
  app.add_flag("--log-requests", options.log_requests, "Log start, end and failure of requests; never what they say");
  app.add_option("--request-log-jsonl", options.request_log_file, "Append the same to this file, one JSON object a line")
      ->type_name("FILE");
  app.add_option("--log-format", options.log_format, "Of the log on stderr: text, or json: one object a line")
      ->type_name("NAME")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  app.add_option("--config", options.config_file, "File of lines 'flag: value' for flags that are not given here")
      ->type_name("FILE")
      ->envname("TETRAD_CONFIG");
  app.footer(
      "Each flag is also read from the environment: --max-num-seqs from TETRAD_MAX_NUM_SEQS. The command line counts before that,\n"
      "and that before --config.");
}

}  // namespace

void add_serve_options(CLI::App& app, ServeOptions& options) {
  add_model_options(app, options.model);
  add_address_options(app, options);
  add_api_options(app, options);
  add_engine_options(app, options);
  add_log_options(app, options);
}

HttpServerOptions http_options(const ServeOptions& options) {
  if (options.certificate_file.empty() != options.key_file.empty())
    fail<InputError>("--ssl-certfile and --ssl-keyfile go together, got one of them");
  HttpServerOptions http;
  http.host = options.host;
  http.port = options.port;
  http.unix_socket = options.unix_socket;
  http.certificate_file = options.certificate_file;
  http.key_file = options.key_file;
  http.ping_interval = std::chrono::seconds(options.ping_interval);
  return http;
}

std::vector<std::string> api_keys(const ServeOptions& options) {
  std::vector<std::string> keys = options.api_keys;
  if (!options.api_key_file.empty()) {
    const std::vector<std::string> more = read_key_file(options.api_key_file);
    keys.insert(keys.end(), more.begin(), more.end());
  }
  return keys;
}

ServiceSettings service_settings(const ServeOptions& options) {
  ServiceSettings settings;
  settings.model_names = options.names;
  if (settings.model_names.empty()) settings.model_names.push_back(directory_name(options.model.directory));
  // What is reported must be a name.
  const auto any = [](const std::string& name) { return name == "*"; };
  if (any(settings.model_names.front())) settings.model_names.insert(settings.model_names.begin(), directory_name(options.model.directory));
  if (std::any_of(settings.model_names.begin(), settings.model_names.end(), [](const std::string& name) { return name.empty(); }))
    fail<InputError>("--served-model-name must not be empty");
  settings.default_max_tokens = options.default_max_tokens;
  settings.queue_timeout = options.queue_timeout;
  settings.merge_system_messages = options.system_policy == "merge";
  settings.strict_fields = options.strict_fields;
  settings.queue_full_status = options.queue_full_status;
  settings.reasoning_budget = options.reasoning_budget;
  settings.reasoning_budget_message = options.reasoning_budget_message;
  settings.reasoning_fields = options.reasoning_fields == "both"        ? ReasoningFields::kBoth
                              : options.reasoning_fields == "reasoning" ? ReasoningFields::kReasoning
                                                                        : ReasoningFields::kReasoningContent;
  return settings;
}

ServeSizes serve_sizes(const ServeOptions& options, const Config& config) {
  ServeSizes sizes;
  sizes.context_tokens = choose_max_length(options.model, config, 0);
  if (options.kv_cache_tokens == "auto") {
    const std::int64_t contexts = std::min(kAutoContexts, options.max_sequences);
    sizes.total_tokens = static_cast<int>(std::min<std::int64_t>(contexts * sizes.context_tokens, std::numeric_limits<int>::max()));
  } else {
    sizes.total_tokens = parse_token_count(options.kv_cache_tokens, "--kv-cache-tokens");
  }
  if (sizes.total_tokens < sizes.context_tokens)
    fail<InputError>("--kv-cache-tokens {} is less than the context of one request, {}: raise it or lower --max-model-len",
                     sizes.total_tokens, sizes.context_tokens);
  sizes.engine.snapshot_slots = options.prefix_cache_slots.value_or(options.max_sequences);
  sizes.num_slots = options.max_sequences + sizes.engine.snapshot_slots;
  sizes.engine.max_rows = options.max_batched_tokens;
  sizes.engine.host_cache_bytes = static_cast<std::size_t>(options.prefix_cache_host_mib) << 20;
  constexpr int kQueuedPerSequence = 4;
  sizes.engine.max_waiting = options.max_queued.value_or(kQueuedPerSequence * options.max_sequences);
  sizes.engine.max_waiting_tokens = options.max_queued_tokens;
  return sizes;
}

}  // namespace tetrad::cli

#pragma once
// The command line of `tetrad serve`.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/model_loading.h"
#include "cli/options.h"
#include "engine/engine_core.h"
#include "server/http_server.h"
#include "server/service.h"

namespace tetrad::cli {

struct ServeOptions {
  ModelOptions model;
  std::vector<std::string> names;  // none: the name of the directory
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string unix_socket;
  std::vector<std::string> api_keys;
  std::string api_key_file, certificate_file, key_file;
  int max_sequences = 16;
  int max_batched_tokens = 0;          // 0: as many as the device takes
  std::optional<int> max_queued;       // requests; absent: four times max_sequences
  std::int64_t max_queued_tokens = 0;  // 0: no limit
  double queue_timeout = 0;
  std::string kv_cache_tokens = "auto";
  std::optional<int> prefix_cache_slots;  // absent: as many as max_sequences; 0: no prefix cache
  int prefix_cache_host_mib = 1024, replay_map_mib = 64;
  int shutdown_timeout = 30, ping_interval = 10;  // seconds
  int default_max_tokens = 0;
  std::string reasoning_fields = "both", system_policy = "merge";
  bool strict_fields = false;
  int queue_full_status = 503;
  std::vector<std::string> allowed_origins;
  bool log_requests = false, no_page = false;
  std::string request_log_file, log_format = "text";
  std::string config_file;
  std::vector<std::string> warnings;  // about what this was read from
  int reasoning_budget = kNoThinkingBudget;
  std::string reasoning_budget_message{kThinkingSpent};
  // Instead of the weights on the device asked for: tests serve a backend that follows a script.
  std::function<std::unique_ptr<Backend>(const Config& config, const BackendSize& size)> make_backend;
};
void add_serve_options(CLI::App& app, ServeOptions& options);

// Serves until a signal ends it. 0, or 1 if requests were left unfinished.
int serve(const ServeOptions& options);

// Throw InputError for what cannot be.
HttpServerOptions http_options(const ServeOptions& options);
std::vector<std::string> api_keys(const ServeOptions& options);
ServiceSettings service_settings(const ServeOptions& options);

// Sizes of the state memory and of the engine's queues.
struct ServeSizes {
  int context_tokens = 0;  // of one request
  int total_tokens = 0;    // of all together
  int num_slots = 0;
  EngineOptions engine;
};
ServeSizes serve_sizes(const ServeOptions& options, const Config& config);

}  // namespace tetrad::cli

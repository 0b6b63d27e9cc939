#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_loading.h"
#include "cli/serve_options.h"
#include "cli/stop_signals.h"
#include "cli/terminal.h"
#include "io/json_file.h"
#include "server/router.h"

namespace tetrad::cli {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Thrown through the loading of a model that is not wanted any more.
struct LoadingStopped {};

// In the order in which they need each other.
struct LoadedModel {
  std::optional<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;
  std::unique_ptr<Backend> backend;
  std::optional<StatePool> pool;
  std::optional<EngineLoop> engine;
};

nlohmann::ordered_json tokenizer_info(const std::string& directory, const Tokenizer& tokenizer, const GenerationConfig& generation) {
  nlohmann::ordered_json info = nlohmann::ordered_json::object();
  const std::filesystem::path file = std::filesystem::path(directory) / "tokenizer_config.json";
  std::error_code code;
  if (std::filesystem::exists(file, code)) info = read_json_file(file);
  if (!info.is_object()) fail<LoadError>("{}: an object is needed", file.string());
  // Clients need to know where an answer ends.
  if (!info.contains("eos_token") && !generation.stop_ids.empty())
    info["eos_token"] = std::string(tokenizer.token_bytes(generation.stop_ids.front()));
  return info;
}

void log_line(std::string_view line) { say("tetrad: {}\n", printable(line)); }

std::shared_ptr<const Service> load_service(const ServeOptions& options, const ModelFiles& files, const ServeSizes& sizes,
                                            ServerMetrics& metrics, LoadedModel& model, const LoadProgress& on_progress) {
  model.tokenizer.emplace(load_tokenizer(options.model.directory));
  model.chat_template.emplace(ChatTemplate::load(options.model.directory));
  const BackendSize size{.max_length = sizes.total_tokens, .num_slots = sizes.num_slots};
  model.backend =
      options.make_backend ? options.make_backend(files.config, size) : load_backend(options.model, files.config, size, on_progress);
  model.pool.emplace(*model.backend);
  model.engine.emplace(*model.pool, &*model.tokenizer, sizes.engine);

  auto service = std::make_shared<Service>();
  service->settings = service_settings(options);
  service->settings.max_choices = sizes.engine.max_choices;
  service->created = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  service->generation = files.generation;
  service->vocab_size = files.config.vocab_size;
  service->page_tokens = model.backend->state_layout().page_tokens;
  service->context_tokens = std::min(sizes.context_tokens, model.engine->context_tokens());
  service->max_prompt_bytes = longest_prompt_bytes(*model.tokenizer, service->context_tokens);
  service->tokenizer_info = tokenizer_info(options.model.directory, *model.tokenizer, files.generation);
  service->tokenizer = &*model.tokenizer;
  service->thinking = thinking_tokens(*model.tokenizer, service->settings.reasoning_budget_message);
  if (!service->thinking && service->settings.reasoning_budget >= 0)
    fail<InputError>("--reasoning-budget: the tokenizer of {} has no tokens for <think> and </think>", options.model.directory);
  service->grammars = std::make_shared<OutputGrammars>(*model.tokenizer, service->vocab_size);
  service->chat_template = &*model.chat_template;
  service->engine = &*model.engine;
  service->metrics = &metrics;
  service->log = log_line;
  return service;
}

// Waits for the requests that are there. True if all of them ended; false after the timeout, or when a second signal asks for the end now.
bool drain(EngineLoop& engine, const HttpServer& server, StopSignals& signals, std::chrono::seconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  constexpr milliseconds kTurn{50};
  for (;;) {
    const bool computed = engine.drain(milliseconds(0));
    if (computed && server.busy() == 0) return true;
    if (Clock::now() >= deadline) return false;
    if (signals.wait(kTurn)) return false;
  }
}

// What happened since the last line, while anything does.
class Activity {
 public:
  void tell(const EngineLoop& engine) {
    const EngineStats stats = engine.stats();
    const double seconds = seconds_since(last_);
    const auto rate = [&](std::uint64_t now, std::uint64_t before) { return static_cast<double>(now - before) / seconds; };
    const bool busy = stats.requests_running + stats.requests_waiting > 0 || stats.generated_tokens != generated_;
    if (busy)
      log_line(fmt::format("running {}, waiting {}; prompt {:.0f} tokens/s ({:.0f} reused), answers {:.0f} tokens/s; pages {} of {}",
                           stats.requests_running, stats.requests_waiting, rate(stats.prompt_tokens, prompt_),
                           rate(stats.cached_tokens, cached_), rate(stats.generated_tokens, generated_), stats.pages_taken, stats.pages));
    prompt_ = stats.prompt_tokens;
    cached_ = stats.cached_tokens;
    generated_ = stats.generated_tokens;
    last_ = Clock::now();
  }

 private:
  Clock::time_point last_ = Clock::now();
  std::uint64_t prompt_ = 0, cached_ = 0, generated_ = 0;
};

void warn_if_open(const ServeOptions& options, bool has_keys) {
  const bool local = options.host == "127.0.0.1" || options.host == "localhost" || options.host == "::1" || !options.unix_socket.empty();
  if (!local && !has_keys) log_line(fmt::format("warning: everyone who reaches {} may use this server: set --api-key-file", options.host));
}

}  // namespace

int serve(const ServeOptions& options) {
  const Clock::time_point start = Clock::now();
  const ModelFiles files = load_model_files(options.model);
  const ServeSizes sizes = serve_sizes(options, files.config);
  const HttpServerOptions http = http_options(options);
  ApiKeys keys(api_keys(options));
  (void)service_settings(options);
  warn_if_open(options, keys.required());

  StopSignals signals;
  ServerState state;
  ServerMetrics metrics;
  Router router(state, metrics, std::move(keys));
  LoadedModel model;
  HttpServer server(http, router);
  server.start();
  log_line(fmt::format("listening on {}, loading {}", server.url(), options.model.directory));

  std::exception_ptr failure;
  std::atomic<bool> loaded = false, wanted = true;
  std::thread loader([&] {
    try {
      router.set_service(load_service(options, files, sizes, metrics, model, [&](double share) {
        if (!wanted) throw LoadingStopped();
        state.set_progress(share);
      }));
      state.set_ready();
    } catch (...) {
      failure = std::current_exception();
    }
    loaded = true;
  });
  constexpr milliseconds kTurn{20};
  while (!loaded && wanted) wanted = !signals.wait(kTurn);
  if (!wanted) state.set_draining();
  loader.join();
  if (!wanted) {
    server.stop();
    if (model.engine) model.engine->stop();
    return 0;
  }
  if (failure) {
    server.stop();
    std::rethrow_exception(failure);
  }
  log_line(fmt::format("ready in {:.1f} s on {}", seconds_since(start), server.url()));

  Activity activity;
  constexpr std::chrono::seconds kTellEvery{10};
  while (!signals.wait(kTellEvery)) activity.tell(*model.engine);
  log_line(fmt::format("stopping: {} requests have {} s to end", server.busy(), options.shutdown_timeout));
  state.set_draining();
  server.drain();
  const bool clean = drain(*model.engine, server, signals, std::chrono::seconds(options.shutdown_timeout));
  server.stop();
  model.engine->stop();
  log_line(clean ? "stopped" : "stopped with requests unfinished");
  return clean ? 0 : 1;
}

void add_serve(CLI::App& app, int& exit_code) {
  const auto options = std::make_shared<ServeOptions>();
  add_serve_options(app, *options);
  app.callback([options, &exit_code] { exit_code = serve(*options); });
}

}  // namespace tetrad::cli

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
#include "cli/serve_log.h"
#include "cli/serve_options.h"
#include "cli/settings.h"
#include "cli/stop_signals.h"
#include "io/json_file.h"
#include "server/activity.h"
#include "server/router.h"

namespace tetrad::cli {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Thrown through the loading of a model that is not wanted any more.
struct LoadingStopped {};

// Who is told what happens.
struct Observers {
  const ServeLog* log;
  ServerMetrics* metrics;
  RequestJournal* journal;
  const StatsSampler* sampler;
  ReplayMap* replay;
};

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

std::shared_ptr<const Service> load_service(const ServeOptions& options, const ModelFiles& files, const ServeSizes& sizes,
                                            const Observers& observers, LoadedModel& model, const LoadProgress& on_progress) {
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
  service->metrics = observers.metrics;
  service->journal = observers.journal;
  service->sampler = observers.sampler;
  service->replay = observers.replay;
  service->device = model.backend->name();
  service->memory = model.backend->memory_plan();
  service->log = [log = observers.log](std::string_view line) { log->line(line); };
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

// One line for every ten seconds in which something happened.
class ActivityLog {
 public:
  explicit ActivityLog(const EngineLoop& engine) : engine_(&engine), before_(engine.stats()) {}

  void tell(const ServeLog& log) {
    EngineStats now = engine_->stats();
    const Activity activity = Activity::between(before_, now, seconds_since(last_));
    if (!activity.idle) log.event("stats", activity_line(activity), activity_json(activity));
    before_ = std::move(now);
    last_ = Clock::now();
  }

 private:
  const EngineLoop* engine_;
  EngineStats before_;
  Clock::time_point last_ = Clock::now();
};

// Where the journal goes besides the status page.
std::unique_ptr<LineFile> connect_journal(RequestJournal& journal, const ServeOptions& options, const ServeLog& log) {
  std::unique_ptr<LineFile> file;
  if (!options.request_log_file.empty()) file = std::make_unique<LineFile>(options.request_log_file);
  const bool shown_as_json = options.log_requests && log.json();
  if (file || shown_as_json)
    journal.write_json_to([file = file.get(), shown_as_json, &log](const std::string& line) {
      if (file != nullptr) file->write(line);
      if (shown_as_json) log.object(line);
    });
  if (options.log_requests && !log.json()) journal.write_text_to([&log](const std::string& line) { log.line(line); });
  return file;
}

void warn_if_open(const ServeOptions& options, bool has_keys, const ServeLog& log) {
  const bool local = options.host == "127.0.0.1" || options.host == "localhost" || options.host == "::1" || !options.unix_socket.empty();
  if (!local && !has_keys) log.line(fmt::format("warning: everyone who reaches {} may use this server: set --api-key-file", options.host));
}

}  // namespace

int serve(const ServeOptions& options) {
  const Clock::time_point start = Clock::now();
  const ServeLog log(options.log_format == "json");
  for (const std::string& warning : options.warnings) log.line("warning: " + warning);
  const ModelFiles files = load_model_files(options.model);
  const ServeSizes sizes = serve_sizes(options, files.config);
  const HttpServerOptions http = http_options(options);
  ApiKeys keys(api_keys(options));
  CorsPolicy cors(options.allowed_origins);
  (void)service_settings(options);
  RequestJournal journal;
  StatsSampler sampler;
  std::optional<ReplayMap> replay;  // without a prefix cache there is nothing that its turns could find
  if (options.replay_map_mib > 0 && sizes.engine.snapshot_slots > 0) replay.emplace(static_cast<std::size_t>(options.replay_map_mib) << 20);
  const std::unique_ptr<LineFile> request_log = connect_journal(journal, options, log);
  warn_if_open(options, keys.required(), log);

  StopSignals signals;
  ServerState state;
  ServerMetrics metrics;
  Router router(state, metrics, std::move(keys), std::move(cors), !options.no_page);
  LoadedModel model;
  HttpServer server(http, router);
  server.start();
  log.line(fmt::format("listening on {}, loading {}", server.url(), options.model.directory));

  std::exception_ptr failure;
  std::atomic<bool> loaded = false, wanted = true;
  std::thread loader([&] {
    try {
      router.set_service(
          load_service(options, files, sizes, {&log, &metrics, &journal, &sampler, replay ? &*replay : nullptr}, model, [&](double share) {
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
  log.line(fmt::format("ready in {:.1f} s on {}", seconds_since(start), server.url()));

  ActivityLog activity(*model.engine);
  constexpr int kTellEvery = 10;
  for (int second = 1; !signals.wait(std::chrono::seconds(1)); ++second) {
    sampler.add(model.engine->stats());
    if (second % kTellEvery == 0) activity.tell(log);
  }
  const int busy = server.busy();
  log.line(fmt::format("stopping: {} {} {} s to end", busy, busy == 1 ? "request has" : "requests have", options.shutdown_timeout));
  state.set_draining();
  server.drain();
  const bool clean = drain(*model.engine, server, signals, std::chrono::seconds(options.shutdown_timeout));
  model.engine->stop();  // whoever still waits is told so
  constexpr std::chrono::seconds kToTellThem{1};
  for (const auto until = Clock::now() + kToTellThem; server.busy() > 0 && Clock::now() < until;) std::this_thread::sleep_for(kTurn);
  server.stop();
  log.line(clean ? "stopped" : "stopped with requests unfinished");
  return clean ? 0 : 1;
}

void add_serve(CLI::App& app, int& exit_code) {
  const auto options = std::make_shared<ServeOptions>();
  add_serve_options(app, *options);
  app.callback([options, &app, &exit_code] {
    apply_settings(app, options->config_file);
    options->warnings = unknown_variables(app);
    options->model.quiet = options->log_format == "json";
    exit_code = serve(*options);
  });
}

}  // namespace tetrad::cli

#include "server/stats_route.h"

#include <algorithm>
#include <ctime>

#include "server/activity.h"
#include "server/stats_sampler.h"

namespace tetrad {
namespace {

using Json = nlohmann::ordered_json;

std::string_view phase_name(ServerPhase phase) {
  switch (phase) {
    case ServerPhase::kLoading: return "loading";
    case ServerPhase::kReady: return "ready";
    case ServerPhase::kDraining: return "draining";
  }
  return "";
}

double unix_seconds(std::chrono::system_clock::time_point time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }

Json percentiles_json(const Percentiles& p) {
  Json json = {{"count", p.count}};
  if (p.count > 0) json.update({{"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}});
  return json;
}

// What there was no look before is absent.
void add_recent_past(Json& json, const EngineStats& now, const StatsSampler& sampler) {
  if (const auto look = sampler.before(StatsSampler::kRateWindow); look && look->seconds > 0) {
    const Activity activity = Activity::between(look->stats, now, look->seconds);
    json["rates"] = {{"window_seconds", look->seconds},
                     {"prompt_tokens_per_second", activity.prompt_rate},
                     {"computed_prompt_tokens_per_second", activity.computed_rate},
                     {"generation_tokens_per_second", activity.generation_rate}};
  }
  if (const auto look = sampler.before(StatsSampler::kKept)) {
    const EngineStats& then = look->stats;
    Json& latency = json["latency_seconds"] = {{"window_seconds", look->seconds}};
    latency["first_token"] = percentiles_json(percentiles_between(then.first_token_seconds, now.first_token_seconds));
    latency["inter_token"] = percentiles_json(percentiles_between(then.inter_token_seconds, now.inter_token_seconds));
    latency["queue"] = percentiles_json(percentiles_between(then.queue_seconds, now.queue_seconds));
    latency["total"] = percentiles_json(percentiles_between(then.request_seconds, now.request_seconds));
  }
}

void add_engine(Json& json, const EngineStats& stats) {
  const auto sum = [](const auto& counts) {
    std::uint64_t total = 0;
    for (const std::uint64_t count : counts) total += count;
    return total;
  };
  json["requests"] = {
      {"running", stats.requests_running}, {"waiting", stats.requests_waiting}, {"waiting_prompt_tokens", stats.waiting_tokens},
      {"finished", stats.finished},        {"failed", sum(stats.failed)},       {"refused", sum(stats.refused)},
      {"preemptions", stats.preemptions}};
  json["tokens"] = {{"prompt", stats.prompt_tokens}, {"cached", stats.cached_tokens}, {"generated", stats.generated_tokens}};
  const PrefixCacheStats& cache = stats.prefix_cache;
  json["kv"] = {
      {"pages", stats.pages}, {"pages_taken", stats.pages_taken}, {"pages_of_cache", cache.device_pages}, {"use", kv_cache_use(stats)}};
  json["state"] = {{"slots", stats.slots}, {"slots_taken", stats.slots_taken}, {"sequences_running", stats.sequences_running}};
  Json& prefix = json["prefix_cache"] = {{"queried_tokens", cache.tokens_queried},
                                         {"reused_tokens", cache.tokens_reused},
                                         {"device_entries", cache.device_entries},
                                         {"host_entries", cache.host_entries},
                                         {"device_bytes", cache.device_bytes},
                                         {"host_bytes", cache.host_bytes},
                                         {"evictions", cache.evictions}};
  if (cache.tokens_queried > 0) prefix["hit_rate"] = static_cast<double>(cache.tokens_reused) / static_cast<double>(cache.tokens_queried);
}

Json recent_json(const RequestJournal& journal) {
  Json list = Json::array();
  for (const JournalEntry& entry : journal.recent()) {
    const RequestTimings& t = entry.timings;
    Json json = {{"request_id", entry.trace.id},
                 {"route", entry.trace.route},
                 {"stream", entry.trace.stream},
                 {"started", unix_seconds(entry.started)},
                 {"prompt_tokens", entry.usage.prompt_tokens},
                 {"cached_tokens", entry.usage.cached_tokens},
                 {"completion_tokens", entry.usage.completion_tokens},
                 {"finish_reasons", entry.finish_reasons}};
    if (!entry.error.empty()) json["error"] = entry.error;
    json["seconds"] = {{"queue", t.queue}, {"prefill", t.prefill}, {"decode", t.decode}, {"total", t.total}};
    list.push_back(std::move(json));
  }
  return list;
}

// What a request that states nothing gets.
Json defaults_json(const Service& service) {
  const SamplingParams& sampling = service.generation.sampling;
  return {{"temperature", sampling.temperature},
          {"top_p", sampling.top_p},
          {"top_k", sampling.top_k},
          {"min_p", sampling.min_p},
          {"repetition_penalty", sampling.repetition_penalty},
          {"presence_penalty", sampling.presence_penalty},
          {"frequency_penalty", sampling.frequency_penalty},
          {"max_tokens", service.settings.default_max_tokens}};
}

}  // namespace

HttpResponse server_stats(const Service* service, const ServerState& state) {
  Json json = {{"version", TETRAD_VERSION}, {"phase", phase_name(state.phase())}, {"uptime_seconds", state.uptime_seconds()}};
  if (service == nullptr) {
    json["progress"] = state.progress();
    return {.body = json.dump()};
  }
  json["model"] = service->settings.model_names.front();
  json["device"] = service->device;
  json["max_model_len"] = service->context_tokens;
  json["page_tokens"] = service->page_tokens;
  json["defaults"] = defaults_json(*service);
  const EngineStats stats = service->engine->stats();
  add_engine(json, stats);
  if (service->sampler != nullptr) add_recent_past(json, stats, *service->sampler);
  if (service->replay != nullptr) {
    const ReplayStats replay = service->replay->stats();
    json["replay"] = {{"hits", replay.hits}, {"misses", replay.misses}, {"entries", replay.entries}, {"bytes", replay.bytes}};
  }
  Json& memory = json["memory"] = Json::array();
  for (const MemoryPlan::Row& row : service->memory.rows) memory.push_back({{"pool", row.arena}, {"name", row.name}, {"bytes", row.bytes}});
  if (service->journal != nullptr) json["recent"] = recent_json(*service->journal);
  return {.body = json.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

}  // namespace tetrad

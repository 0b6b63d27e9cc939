#include "server/activity.h"

#include <fmt/format.h>

#include <algorithm>

namespace tetrad {

double kv_cache_use(const EngineStats& stats) {
  const int held = std::max(stats.pages_taken - stats.prefix_cache.device_pages, 0);
  return stats.pages > 0 ? static_cast<double>(held) / stats.pages : 0;
}

Activity Activity::between(const EngineStats& before, const EngineStats& now, double seconds) {
  const auto grown = [](std::uint64_t from, std::uint64_t to) { return static_cast<double>(to - std::min(from, to)); };
  const auto rate = [&](double tokens) { return seconds > 0 ? tokens / seconds : 0; };
  const double prompt = grown(before.prompt_tokens, now.prompt_tokens), cached = grown(before.cached_tokens, now.cached_tokens);
  const double generated = grown(before.generated_tokens, now.generated_tokens);
  const double queried = grown(before.prefix_cache.tokens_queried, now.prefix_cache.tokens_queried);
  Activity activity;
  activity.running = now.requests_running;
  activity.waiting = now.requests_waiting;
  activity.prompt_rate = rate(prompt);
  activity.computed_rate = rate(std::max(prompt - cached, 0.0));
  activity.generation_rate = rate(generated);
  activity.kv_use = kv_cache_use(now);
  if (queried > 0) activity.hit_rate = grown(before.prefix_cache.tokens_reused, now.prefix_cache.tokens_reused) / queried;
  activity.idle = now.requests_running + now.requests_waiting == 0 && prompt + generated == 0;
  return activity;
}

std::string activity_line(const Activity& activity) {
  std::string line = fmt::format("running {}, waiting {}; prompt {:.1f} tok/s, generation {:.1f} tok/s; KV use {:.1f}%", activity.running,
                                 activity.waiting, activity.prompt_rate, activity.generation_rate, 100 * activity.kv_use);
  if (activity.hit_rate) line += fmt::format(", prefix hits {:.1f}%", 100 * *activity.hit_rate);
  return line;
}

std::string activity_json(const Activity& activity) {
  std::string json = fmt::format(R"("running":{},"waiting":{},"prompt_tokens_per_second":{},"generation_tokens_per_second":{},"kv_use":{})",
                                 activity.running, activity.waiting, activity.prompt_rate, activity.generation_rate, activity.kv_use);
  if (activity.hit_rate) json += fmt::format(R"(,"prefix_hit_rate":{})", *activity.hit_rate);
  return json;
}

}  // namespace tetrad

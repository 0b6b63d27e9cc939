#include "server/request_journal.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include <nlohmann/json.hpp>

namespace tetrad {
namespace {

using Json = nlohmann::ordered_json;
using SystemClock = std::chrono::system_clock;

constexpr std::size_t kMaxParam = 200;  // bytes of a field's name: clients make names up

std::string dumped(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

// RFC 3339 in UTC, to the microsecond.
std::string time_text(SystemClock::time_point time) {
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06d}Z", fmt::gmtime(static_cast<std::time_t>(micros / 1'000'000)), micros % 1'000'000);
}

// The form of version 00 of the W3C's trace context, in lower case: 00-<32>-<16>-<2>.
bool is_trace_parent(std::string_view text) {
  constexpr std::size_t kLength = 55, kDashes[] = {2, 35, 52};
  if (text.size() != kLength) return false;
  for (std::size_t i = 0; i < kLength; ++i) {
    const bool dash = std::find(std::begin(kDashes), std::end(kDashes), i) != std::end(kDashes);
    const char c = text[i];
    if (dash ? c != '-' : !((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return false;
  }
  return true;
}

Json head_json(std::string_view event, SystemClock::time_point time, const RequestTrace& trace) {
  Json json = {{"time", time_text(time)}, {"event", event}, {"request_id", trace.id}, {"route", trace.route}};
  if (!trace.model.empty()) json["model"] = trace.model;
  if (!trace.trace_parent.empty()) json["traceparent"] = trace.trace_parent;
  return json;
}

Json entry_json(std::string_view event, SystemClock::time_point time, const JournalEntry& entry) {
  Json json = head_json(event, time, entry.trace);
  json["stream"] = entry.trace.stream;
  if (entry.num_prompts > 1) json["prompt"] = entry.prompt;
  json["n"] = entry.num_choices;
  if (entry.max_tokens > 0) json["max_tokens"] = entry.max_tokens;
  json["prompt_tokens"] = entry.usage.prompt_tokens;
  return json;
}

Json end_json(const JournalEntry& entry, SystemClock::time_point time) {
  Json json = entry_json(entry.error.empty() ? "done" : "error", time, entry);
  json["cached_tokens"] = entry.usage.cached_tokens;
  json["completion_tokens"] = entry.usage.completion_tokens;
  if (!entry.error.empty()) json["error"] = entry.error;
  if (!entry.finish_reasons.empty()) json["finish_reasons"] = entry.finish_reasons;
  const RequestTimings& t = entry.timings;
  Json& seconds = json["seconds"] = {{"queue", t.queue}};
  if (t.prefill > 0) seconds["prefill"] = t.prefill;
  if (t.first_token > 0) {
    seconds["first_token"] = t.first_token;
    seconds["decode"] = t.decode;
  }
  seconds["total"] = t.total;
  return json;
}

std::string ended_line(const JournalEntry& entry) {
  const RequestUsage& usage = entry.usage;
  const RequestTimings& t = entry.timings;
  const std::string how = entry.error.empty() ? fmt::format("done ({})", fmt::join(entry.finish_reasons, ", ")) : "failed: " + entry.error;
  return fmt::format(
      "request {} {}: {}, prompt {} tokens ({} cached), answer {} tokens; queue {:.3f} s, first token {:.3f} s, all {:.3f} s",
      entry.trace.id, entry.trace.route, how, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, t.queue, t.first_token,
      t.total);
}

}  // namespace

RequestTrace trace_of(const HttpRequest& request, std::string model, bool stream) {
  RequestTrace trace{.id = request.id, .route = request.path, .model = std::move(model), .trace_parent = {}, .stream = stream};
  if (const std::string_view parent = request.header("traceparent"); is_trace_parent(parent)) trace.trace_parent = parent;
  return trace;
}

void RequestJournal::started(const JournalEntry& entry) {
  const std::lock_guard lock(mutex_);
  if (json_) json_(dumped(entry_json("start", entry.started, entry)));
  if (text_) text_(fmt::format("request {} {}: started, prompt {} tokens", entry.trace.id, entry.trace.route, entry.usage.prompt_tokens));
}

void RequestJournal::ended(const JournalEntry& entry) {
  const std::lock_guard lock(mutex_);
  if (json_) json_(dumped(end_json(entry, SystemClock::now())));
  if (text_) text_(ended_line(entry));
  ended_.push_front(entry);
  if (ended_.size() > kKept) ended_.pop_back();
}

void RequestJournal::refused(const RequestTrace& trace, const ApiError& error) {
  const std::lock_guard lock(mutex_);
  if (json_) {
    Json json = head_json("error", SystemClock::now(), trace);
    json["status"] = error.status;
    json["error"] = error.code.empty() ? error.type : error.code;
    if (!error.param.empty()) json["param"] = error.param.substr(0, kMaxParam);
    json_(dumped(json));
  }
  if (text_)
    text_(fmt::format("request {} {}: refused with {} {} {}", trace.id, trace.route, error.status,
                      error.code.empty() ? error.type : error.code, error.param.substr(0, kMaxParam)));
}

std::vector<JournalEntry> RequestJournal::recent(std::size_t at_most) const {
  const std::lock_guard lock(mutex_);
  return {ended_.begin(), ended_.begin() + static_cast<std::ptrdiff_t>(std::min(at_most, ended_.size()))};
}

}  // namespace tetrad

#include "server/generation_reply.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "server/http_wire.h"

namespace tetrad {
namespace {

constexpr std::size_t kMaxRunning = 16;                    // prompts of one request that are in the engine at a time
constexpr std::size_t kTakeBytes = std::size_t{64} << 10;  // about what one take() gives
constexpr std::size_t kUnbounded = std::numeric_limits<std::size_t>::max() / 2;

}  // namespace

GenerationReply::GenerationReply(std::shared_ptr<const Service> service, Setup setup)
    : service_(std::move(service)), setup_(std::move(setup)), waker_(std::make_shared<Waker>()) {
  try {
    while (parts_.size() < setup_.requests.size() && running_ < kMaxRunning) submit(parts_.size());
  } catch (const EngineRefusal& refusal) {
    // Some run already: the others find room when those end.
    if (parts_.empty() || refusal.kind() != EngineErrorKind::kQueueFull) {
      abandon();
      throw;
    }
  }
}

GenerationReply::~GenerationReply() { abandon(); }

void GenerationReply::submit(std::size_t prompt) {
  EngineRequest request = setup_.requests[prompt];
  // An answer in one piece is kept whole here anyway; its length is bounded by the context.
  const std::size_t capacity =
      setup_.stream ? service_->settings.stream_buffer_events * static_cast<std::size_t>(request.num_choices) : kUnbounded;
  auto events = std::make_shared<EventBuffer>(capacity, [waker = waker_] { waker->ring(); });
  const auto submitted = std::chrono::steady_clock::now();
  const RequestHandle handle = service_->engine->submit(std::move(request), events);
  JournalEntry entry{.trace = setup_.trace,
                     .prompt = static_cast<int>(prompt),
                     .num_prompts = static_cast<int>(setup_.requests.size()),
                     .started = std::chrono::system_clock::now(),
                     .max_tokens = setup_.requests[prompt].generation.max_tokens,
                     .num_choices = setup_.requests[prompt].num_choices,
                     .usage = {.prompt_tokens = static_cast<int>(setup_.requests[prompt].generation.prompt_ids.size())},
                     .timings = {},
                     .finish_reasons = {},
                     .error = {}};
  if (service_->journal != nullptr) service_->journal->started(entry);
  parts_.push_back({std::move(events), handle, std::move(entry), submitted});
  ++running_;
}

void GenerationReply::submit_more() {
  if (cancelled_ || refused_) return;
  try {
    while (parts_.size() < setup_.requests.size() && running_ < kMaxRunning) submit(parts_.size());
  } catch (const EngineRefusal& refusal) {
    if (running_ > 0 && refusal.kind() == EngineErrorKind::kQueueFull) return;  // again when one of them ends
    refused_ = std::make_unique<ApiError>(service_->error_of(refusal, setup_.request_id));
    if (service_->journal != nullptr) service_->journal->refused(setup_.trace, *refused_);
  }
}

void GenerationReply::record(const EngineEvent& event, std::size_t prompt) {
  JournalEntry& entry = parts_[prompt].entry;
  if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    entry.usage = finished->usage;
    entry.timings = finished->timings;
    for (const FinishReason reason : finished->reasons)  // what the answer needed no more of was not cut short
      entry.finish_reasons.emplace_back(finish_reason_name(reason == FinishReason::kCancelled ? FinishReason::kStop : reason));
  } else {
    const auto& failed = std::get<FailedEvent>(event);
    entry.usage = failed.usage;
    entry.timings = failed.timings;
    entry.error = engine_error_name(failed.kind);
  }
  service_->metrics->count_request(
      {.usage = entry.usage, .timings = entry.timings, .max_tokens = entry.max_tokens, .num_choices = entry.num_choices});
  if (service_->journal != nullptr) service_->journal->ended(entry);
}

// A part whose end nobody will see: what is known of it. The phase that it was left in counts up to now.
void GenerationReply::give_up(Part& part) {
  service_->engine->cancel(part.handle);
  part.ended = true;
  const auto seconds = [](std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); };
  const EventBuffer::Progress progress = part.events->progress();
  RequestTimings& timings = part.entry.timings;
  timings.total = seconds(std::chrono::steady_clock::now() - part.submitted);
  timings.queue = progress.started ? progress.started->queue_seconds : timings.total;
  if (progress.tokens > 0) {
    timings.first_token = seconds(progress.first_token - part.submitted);
    timings.decode = seconds(progress.last_token - progress.first_token);
  }
  if (progress.started) {
    timings.prefill = std::max((progress.tokens > 0 ? timings.first_token : timings.total) - timings.queue, 0.0);
    part.entry.usage.cached_tokens = progress.started->cached_tokens;
  }
  part.entry.usage.completion_tokens = progress.tokens;
  part.entry.finish_reasons = {"abort"};
  if (service_->journal != nullptr) service_->journal->ended(part.entry);
}

void GenerationReply::append_failure(const ApiError& error, std::string& out) {
  out += sse_text(setup_.shape == ApiShape::kAnthropic ? anthropic_error_event(error) : openai_error_event(error));
}

// False when there is enough for one take().
bool GenerationReply::drain(std::size_t prompt, std::string& out) {
  Part& part = parts_[prompt];
  while (!part.ended) {
    if (out.size() >= kTakeBytes) return false;
    const std::optional<EngineEvent> event = part.events->try_pop();
    if (!event) return true;
    if (is_terminal(*event)) {
      part.ended = true;
      --running_;
      record(*event, prompt);
      if (const auto* failed = std::get_if<FailedEvent>(&*event); failed != nullptr && service_->log)
        service_->log(fmt::format("request {}: {}: {}", setup_.request_id, engine_error_name(failed->kind), failed->message));
    }
    for (const ServerSentEvent& sse : setup_.builder->feed(*event, static_cast<int>(prompt))) {
      out += sse_text(sse);
      sent_any_ = true;
    }
    if (setup_.builder->enough() && !cancelled_) {
      cancelled_ = true;
      for (const Part& other : parts_) service_->engine->cancel(other.handle);
    }
  }
  return true;
}

std::string GenerationReply::take() {
  std::string out;
  if (done_) return out;
  for (std::size_t prompt = 0; prompt < parts_.size(); ++prompt) {
    if (!drain(prompt, out)) return out;
    if (setup_.builder->finished()) break;
  }
  submit_more();
  if (refused_ && running_ == 0) {
    if (setup_.stream) append_failure(*refused_, out);
    done_ = true;
  } else if (setup_.builder->finished()) {
    // The head has been sent: what failed before the first token is told in the stream.
    if (const ApiError* failure = setup_.builder->failure(); failure != nullptr && setup_.stream && !sent_any_)
      append_failure(*failure, out);
    done_ = true;
  }
  if (done_) abandon();
  return out;
}

HttpResponse GenerationReply::response() {
  if (setup_.stream)
    return {.content_type = "text/event-stream; charset=utf-8", .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}};
  if (refused_) return error_response(*refused_, setup_.shape);
  if (const ApiError* failure = setup_.builder->failure()) return error_response(*failure, setup_.shape);
  return {.body = setup_.builder->body()};
}

std::string GenerationReply::keepalive() const {
  const std::optional<ServerSentEvent> ping = setup_.builder->ping();
  return ping ? sse_text(*ping) : std::string(kKeepalive);
}

// Cancels what has not ended; without effect after that.
void GenerationReply::abandon() {
  for (Part& part : parts_)
    if (!part.ended) give_up(part);
  running_ = 0;
  cancelled_ = true;
}

}  // namespace tetrad

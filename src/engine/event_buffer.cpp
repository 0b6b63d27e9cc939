#include "engine/event_buffer.h"

#include <algorithm>
#include <utility>

namespace tetrad {

EventBuffer::EventBuffer(std::size_t capacity, std::function<void()> on_event)
    : capacity_(std::max<std::size_t>(capacity, 1)), on_event_(std::move(on_event)) {}

bool EventBuffer::push(EngineEvent event) {
  {
    const std::lock_guard lock(mutex_);
    TETRAD_CHECK(!ended_, "an event after the terminal one");
    ended_ = is_terminal(event);
    if (!ended_ && events_.size() >= capacity_) return false;
    if (const auto* started = std::get_if<StartedEvent>(&event)) progress_.started = *started;
    if (std::holds_alternative<TokenEvent>(event)) {
      progress_.last_token = std::chrono::steady_clock::now();
      if (progress_.tokens++ == 0) progress_.first_token = progress_.last_token;
    }
    events_.push_back(std::move(event));
  }
  arrived_.notify_all();
  if (on_event_) on_event_();
  return true;
}

std::optional<EngineEvent> EventBuffer::take() {
  if (events_.empty()) return std::nullopt;
  std::optional<EngineEvent> event(std::move(events_.front()));
  events_.pop_front();
  exhausted_ = is_terminal(*event);
  if (exhausted_) arrived_.notify_all();
  return event;
}

std::optional<EngineEvent> EventBuffer::try_pop() {
  const std::lock_guard lock(mutex_);
  return take();
}

std::optional<EngineEvent> EventBuffer::pop(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  arrived_.wait_for(lock, timeout, [&] { return !events_.empty() || exhausted_; });
  return take();
}

EventBuffer::Progress EventBuffer::progress() const {
  const std::lock_guard lock(mutex_);
  return progress_;
}

bool EventBuffer::exhausted() const {
  const std::lock_guard lock(mutex_);
  return exhausted_;
}

}  // namespace tetrad

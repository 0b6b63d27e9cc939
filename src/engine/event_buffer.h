#pragma once
// A bounded sink that another thread reads: a reader that falls behind by more than the capacity loses its request, not the engine's time.
// Every member may be called from any thread.
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>

#include "engine/engine_events.h"

namespace tetrad {

class EventBuffer : public EventSink {
 public:
  // capacity: events that may be unread, the terminal one not counted, which always finds room; at least 1. on_event, if given, is called
  // after each event on the engine's thread with no lock held: it must not wait or throw.
  explicit EventBuffer(std::size_t capacity, std::function<void()> on_event = {});

  bool push(EngineEvent event) override;

  std::optional<EngineEvent> try_pop();  // nothing if none is there yet
  // Waits for an event. Nothing once the terminal event has been taken, or after the timeout.
  std::optional<EngineEvent> pop(std::chrono::milliseconds timeout = std::chrono::hours(24));
  bool exhausted() const;  // the terminal event has been taken

  // How far the request has come, read or not: for a reader that gives up before its end.
  struct Progress {
    std::optional<StartedEvent> started;
    int tokens = 0;                                                 // of all choices
    std::chrono::steady_clock::time_point first_token, last_token;  // when they came; of no meaning without one
  };
  Progress progress() const;

 private:
  std::optional<EngineEvent> take();  // under the lock

  const std::size_t capacity_;
  const std::function<void()> on_event_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<EngineEvent> events_;
  Progress progress_;
  bool ended_ = false, exhausted_ = false;
};

}  // namespace tetrad

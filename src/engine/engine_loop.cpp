#include "engine/engine_loop.h"

#include <utility>

namespace tetrad {

EngineLoop::EngineLoop(StatePool& pool, const Tokenizer* tokenizer, const EngineOptions& options)
    : core_(pool, tokenizer, options), stats_(core_.stats()), worker_([this] { work(); }) {}

EngineLoop::~EngineLoop() { stop(); }

RequestHandle EngineLoop::submit(EngineRequest request, std::shared_ptr<EventSink> sink) {
  TETRAD_CHECK(sink != nullptr, "a request without a sink");
  const auto now = EngineCore::Clock::now();
  try {
    core_.check(request);  // the costly part, without the lock
  } catch (const EngineRefusal& refusal) {
    const std::lock_guard lock(mutex_);
    ++refused_[static_cast<std::size_t>(refusal.kind())];
    throw;
  }
  const std::lock_guard lock(mutex_);
  if (!accepting_) {
    ++refused_[static_cast<std::size_t>(EngineErrorKind::kStopping)];
    throw EngineRefusal(EngineErrorKind::kStopping, "the engine takes no more requests: it is being stopped");
  }
  try {
    core_.check_load(request, load_);
  } catch (const EngineRefusal& refusal) {
    ++refused_[static_cast<std::size_t>(refusal.kind())];
    throw;
  }
  ++load_.requests;
  load_.tokens += static_cast<std::int64_t>(request.generation.prompt_ids.size());
  inbox_.push_back({++last_id_, std::move(request), std::move(sink), now});
  idle_ = false;
  wake_.notify_one();
  return {last_id_};
}

void EngineLoop::cancel(RequestHandle handle) {
  const std::lock_guard lock(mutex_);
  if (stopping_ || idle_) return;
  cancels_.push_back(handle.id);
  wake_.notify_one();
}

bool EngineLoop::drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  accepting_ = false;
  return ended_.wait_for(lock, timeout, [&] { return idle_; });
}

void EngineLoop::stop() {
  {
    const std::lock_guard lock(mutex_);
    accepting_ = false;
    stopping_ = true;
    wake_.notify_one();
  }
  const std::lock_guard lock(stop_mutex_);
  if (worker_.joinable()) worker_.join();
}

bool EngineLoop::accepting() const {
  const std::lock_guard lock(mutex_);
  return accepting_;
}

EngineStats EngineLoop::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.refused = refused_;
  stats.requests_waiting = load_.requests;  // with those that came during the step
  stats.waiting_tokens = load_.tokens;
  return stats;
}

void EngineLoop::take_over(std::vector<Submission>& submissions) {
  for (Submission& s : submissions) core_.add(s.id, std::move(s.request), std::move(s.sink), s.submitted);
  submissions.clear();
}

void EngineLoop::publish() {
  EngineStats stats = core_.stats();
  const std::lock_guard lock(mutex_);
  load_ = core_.load();
  for (const Submission& s : inbox_) {
    ++load_.requests;
    load_.tokens += static_cast<std::int64_t>(s.request.generation.prompt_ids.size());
  }
  std::swap(stats_, stats);
  idle_ = core_.idle() && inbox_.empty();
  if (idle_) ended_.notify_all();
}

void EngineLoop::work() {
  std::vector<Submission> submissions;
  std::vector<std::uint64_t> cancels;
  for (bool stopping = false; !stopping;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || !inbox_.empty() || !cancels_.empty() || !core_.idle(); });
      std::swap(submissions, inbox_);
      std::swap(cancels, cancels_);
      stopping = stopping_;
    }
    try {
      take_over(submissions);
      for (const std::uint64_t id : cancels) core_.cancel(id);
      cancels.clear();
      if (stopping)
        core_.fail_all(EngineErrorKind::kStopping, "the engine was stopped before the request had ended");
      else
        core_.step([this] { publish(); });
    } catch (const std::exception& error) {
      core_.fail_all(EngineErrorKind::kInternal, error.what());
    }
    publish();
  }
}

}  // namespace tetrad

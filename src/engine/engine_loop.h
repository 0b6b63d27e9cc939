#pragma once
// The engine behind a server: one worker thread owns the device, everyone else talks to it through bounded queues.
//
// Threads: every public member may be called from any thread, from inside a sink too, but for the destructor, stop() and drain(), which
// wait for the worker and must not be called on it. Nothing is called back with a lock held. From construction until stop() returns the
// pool and its backend belong to the worker: nobody else may touch them.
//
// A request that submit() takes gets exactly one terminal event, whatever happens; one that it refuses gets none. A request that fails (its
// numbers, its sink, its memory) ends alone: the others' tokens do not depend on it, nor on each other.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/engine_core.h"

namespace tetrad {

struct RequestHandle {
  std::uint64_t id = 0;
};

class EngineLoop {
 public:
  // tokenizer may be null: ids only, no text. Pool and tokenizer outlive the loop. Throws InputError for options that cannot be.
  EngineLoop(StatePool& pool, const Tokenizer* tokenizer, const EngineOptions& options);
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;
  ~EngineLoop();  // stop()

  // Queues a request. Throws EngineRefusal, with what to tell the client: kInput, kPromptTooLong, kNeverFits, kQueueFull, kStopping.
  RequestHandle submit(EngineRequest request, std::shared_ptr<EventSink> sink);
  // Takes effect before the next step, in whatever phase the request is; no effect on one that has ended.
  void cancel(RequestHandle handle);

  // Takes no more requests. True when all have ended, false after the timeout; those left go on until stop().
  bool drain(std::chrono::milliseconds timeout);
  // Takes no more requests, ends those that are left with kStopping, and ends the worker. Can be called again.
  void stop();

  bool accepting() const;
  int context_tokens() const { return core_.context_tokens(); }  // of prompt and answer together
  EngineStats stats() const;                                     // as of the last step

 private:
  struct Submission {
    std::uint64_t id = 0;
    EngineRequest request;
    std::shared_ptr<EventSink> sink;
    EngineCore::Clock::time_point submitted;
  };

  void work();
  void take_over(std::vector<Submission>& submissions);
  void publish();

  EngineCore core_;  // the worker's, but for what it says may be read by any
  mutable std::mutex mutex_;
  std::condition_variable wake_, ended_;
  // Under the mutex.
  std::vector<Submission> inbox_;
  std::vector<std::uint64_t> cancels_;
  QueueLoad load_;  // inbox and what waits in the core
  std::uint64_t last_id_ = 0;
  bool accepting_ = true, stopping_ = false, idle_ = true;
  EngineStats stats_;
  std::array<std::uint64_t, kNumEngineErrorKinds> refused_{};

  std::mutex stop_mutex_;
  std::thread worker_;
};

}  // namespace tetrad

#pragma once
// SIGTERM and SIGINT as something to wait for, instead of a death.
#include <signal.h>

#include <chrono>

namespace tetrad::cli {

// From construction on the two signals are blocked in this thread and in those it starts. Make one before any thread.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();  // as it was before
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool wait(std::chrono::milliseconds timeout);  // true: one came

 private:
  sigset_t signals_, before_;
};

}  // namespace tetrad::cli

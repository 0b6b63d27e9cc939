#pragma once
// Where the server is in its life. Every member may be called from any thread.
#include <atomic>
#include <chrono>

namespace tetrad {

enum class ServerPhase { kLoading, kReady, kDraining };

class ServerState {
 public:
  void set_progress(double share) { progress_ = share; }
  void set_ready() { advance(ServerPhase::kReady); }
  void set_draining() { advance(ServerPhase::kDraining); }

  ServerPhase phase() const { return phase_; }
  double progress() const { return progress_; }  // of loading, 0 to 1
  double uptime_seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  // Never back: what was told to stop while it loaded does not become ready.
  void advance(ServerPhase to) {
    ServerPhase from = phase_;
    while (from < to && !phase_.compare_exchange_weak(from, to)) {
    }
  }

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::atomic<ServerPhase> phase_ = ServerPhase::kLoading;
  std::atomic<double> progress_ = 0;
};

}  // namespace tetrad

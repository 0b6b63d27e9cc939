#pragma once
// Where the server is in its life. Every member may be called from any thread.
#include <atomic>

namespace tetrad {

enum class ServerPhase { kLoading, kReady, kDraining };

class ServerState {
 public:
  void set_progress(double share) { progress_ = share; }
  void set_ready() { advance(ServerPhase::kReady); }
  void set_draining() { advance(ServerPhase::kDraining); }

  ServerPhase phase() const { return phase_; }
  double progress() const { return progress_; }  // of loading, 0 to 1

 private:
  // Never back: what was told to stop while it loaded does not become ready.
  void advance(ServerPhase to) {
    ServerPhase from = phase_;
    while (from < to && !phase_.compare_exchange_weak(from, to)) {
    }
  }

  std::atomic<ServerPhase> phase_ = ServerPhase::kLoading;
  std::atomic<double> progress_ = 0;
};

}  // namespace tetrad

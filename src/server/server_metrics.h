#pragma once
// What the server counts besides the engine, and the whole text of /metrics. Every member may be called from any thread.
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "engine/engine_stats.h"
#include "model/backend.h"
#include "server/replay_map.h"

namespace tetrad {

// One request of the engine at its end.
struct RequestRecord {
  RequestUsage usage;
  RequestTimings timings;
  int max_tokens = 0;  // as asked for; 0: it did not say
  int num_choices = 1;
};

// What of the engine /metrics shows besides its statistics.
struct EngineFacts {
  std::string model_name;
  int page_tokens = 0;
  int context_tokens = 0;
  MemoryPlan memory = {};
  std::optional<ReplayStats> replay;
};

class ServerMetrics {
 public:
  ServerMetrics();

  // handler: a route, not a path, so that clients cannot make up series.
  void count_http(std::string_view handler, std::string_view method, int status, double seconds);
  void count_disconnect();
  void count_request(const RequestRecord& record);

  // Without an engine (it loads): what there is. A series that cannot be filled truthfully is left out.
  std::string text(const EngineStats* engine, const EngineFacts& facts) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::tuple<std::string, std::string, int>, std::uint64_t> http_requests_;  // by handler, method, status
  std::map<std::string, Histogram, std::less<>> http_seconds_;                        // by handler
  std::uint64_t disconnects_ = 0;
  Histogram prompt_tokens_, generation_tokens_, max_tokens_, choices_;
  Histogram prefill_seconds_, decode_seconds_, inference_seconds_, token_seconds_;
};

}  // namespace tetrad

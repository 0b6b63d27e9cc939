#pragma once
// What the engine did between two looks at its statistics.
#include <optional>
#include <string>

#include "engine/engine_stats.h"

namespace tetrad {

// Share of the pages that running requests hold, 0 to 1; pages that the prefix cache refers to are not counted, they give way.
double kv_cache_use(const EngineStats& stats);

struct Activity {
  int running = 0, waiting = 0;                                    // requests, at the later look
  double prompt_rate = 0, computed_rate = 0, generation_rate = 0;  // tokens a second; of the prompts, those not found in the cache
  double kv_use = 0;                                               // share, 0 to 1, at the later look
  std::optional<double> hit_rate;                                  // share of the prompt tokens looked up; none were: absent
  bool idle = true;                                                // nothing ran, waits or was generated

  static Activity between(const EngineStats& before, const EngineStats& now, double seconds);
};

// "running 2, waiting 0; prompt 120 tok/s, generation 45.1 tok/s; KV use 12.5%, prefix hits 61.2%"
std::string activity_line(const Activity& activity);
std::string activity_json(const Activity& activity);  // the fields alone: "running":2,"waiting":0,...

}  // namespace tetrad

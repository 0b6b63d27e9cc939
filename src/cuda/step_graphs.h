#pragma once
// Recorded decode steps: one row of each sequence, recorded once for each size and replayed. What varies they read from arrays at fixed
// addresses.
#include <compare>
#include <cstddef>
#include <map>

#include "cuda/runtime/graph.h"

namespace tetrad::cuda {

class StepGraphs {
 public:
  struct Key {
    int rows = 0, logit_rows = 0;
    int most_blocks = 0;   // blocks scored
    bool to_host = false;  // logits are copied there; otherwise they stay
    auto operator<=>(const Key&) const = default;
  };

  template <class Body>
  void replay(const Key& key, const Stream& stream, Body body) {
    auto found = graphs_.find(key);
    if (found == graphs_.end()) {
      if (graphs_.size() >= kMostGraphs) graphs_.clear();
      found = graphs_.emplace(key, Graph(stream, body)).first;
    }
    found->second.launch(stream);
  }

 private:
  static constexpr std::size_t kMostGraphs = 256;  // some hundreds of launches each
  std::map<Key, Graph> graphs_;
};

}  // namespace tetrad::cuda

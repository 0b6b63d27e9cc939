#pragma once
// What the model really sampled for the turns of an assistant that clients have seen. They send these turns back without their reasoning,
// or with arguments in another order; a prompt made of that differs from the state in the prefix cache, and a recurrent state cannot be cut
// back. With the tokens at hand the prompt is the sequence that was computed (replay_prompt.h).
//
// A turn is found by all that it followed, token by token, and all that its client saw of it: the salt, the prompt, the text, the calls
// with their ids, which nobody can guess. So it never comes to another tenant, another conversation, or a turn that was edited. Keys are
// digests. Bounded in bytes and entries, the least recently used goes first. Every member may be called from any thread.
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "server/digest.h"

namespace tetrad {

struct ReplayTurn {
  std::vector<int> tokens;           // behind the prompt, without the token that ended the turn
  bool starts_in_reasoning = false;  // the prompt ended with an open <think>
  Digest reasoning = {};             // of its text
};

// The digest of what clients see of a turn. calls: null, or a list as in a conversation for the template, ids included; key order and
// the way that numbers are written do not count, nor does white space around the content.
Digest visible_digest(std::string_view salt, std::string_view content, const nlohmann::ordered_json& calls);
Digest reasoning_digest(std::string_view reasoning);  // white space around it does not count

struct ReplayStats {
  std::uint64_t hits = 0, misses = 0;  // turns of prompts that were replaced by their tokens, and that were not
  std::uint64_t evictions = 0;
  std::size_t entries = 0, bytes = 0;
};

class ReplayMap {
 public:
  static constexpr std::size_t kMaxEntries = std::size_t{1} << 16;
  explicit ReplayMap(std::size_t max_bytes, std::size_t max_entries = kMaxEntries);  // 0 bytes: keeps nothing

  bool enabled() const { return max_bytes_ > 0; }
  void add(const Digest& visible, const Digest& prompt, ReplayTurn turn);  // takes the place of one with the same keys
  // Whether any turn looks like this, wherever it stands, and how the newest of them starts: worth a closer look.
  std::optional<bool> known_start(const Digest& visible) const;
  std::shared_ptr<const ReplayTurn> find(const Digest& visible, const Digest& prompt);

  void count(std::uint64_t hits, std::uint64_t misses);
  ReplayStats stats() const;

 private:
  struct Entry {
    Digest key, visible;
    std::shared_ptr<const ReplayTurn> turn;
    std::size_t bytes = 0;
  };
  struct Look {
    std::size_t entries = 0;
    bool starts_in_reasoning = false;
  };
  using Entries = std::list<Entry>;

  void drop(Entries::iterator entry);

  const std::size_t max_bytes_, max_entries_;
  mutable std::mutex mutex_;
  Entries entries_;  // the most recently used first
  std::unordered_map<Digest, Entries::iterator, DigestHash> by_key_;
  std::unordered_map<Digest, Look, DigestHash> looks_;  // by what is visible
  ReplayStats stats_;
};

}  // namespace tetrad

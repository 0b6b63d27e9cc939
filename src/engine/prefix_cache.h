#pragma once
// Reuse of computed prefixes. Recurrent state cannot be cut back, so a request can resume only at a point where all of its state was kept:
// an entry is the state after a sequence of tokens, complete: its pages, shared by reference count with whoever else uses them, and a copy
// of its slot.
//
// Full pages form a tree per salt: a block is known by its parent and its tokens, found by a hash chained over both and then compared token
// by token. An entry ends in a block and has a tail of less than a page, whose page is copied by whoever writes on.
//
// Two tiers. On the device an entry holds one of the slots set aside, and its pages. The least recently used moves to host memory, slot and
// pages together, within a limit of bytes, and from there it is dropped, least recently used first. A request that resumes gets its own
// slot and its own references to pages, so nothing that it needs can be evicted.
//
// Not thread-safe: owned by the device's worker thread, like the pool.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/sequence_state.h"

namespace tetrad {

struct PrefixCacheLimits {
  int device_slots = 0;        // of the pool's, for snapshots; 0: nothing is kept
  std::size_t host_bytes = 0;  // of the second tier; 0: none
};

struct PrefixCacheStats {
  std::uint64_t lookups = 0, hits = 0;                      // requests that asked, and resumed
  std::uint64_t tokens_queried = 0, tokens_reused = 0;      // of their prompts
  std::uint64_t inserts = 0, demotions = 0, evictions = 0;  // entries kept, moved to the host, dropped for room
  int device_entries = 0, host_entries = 0;
  int device_pages = 0;  // that entries refer to; running requests may share them
  std::size_t device_bytes = 0, host_bytes = 0;
};

class PrefixCache {
  struct Block;
  struct Entry;

 public:
  // What an entry and a block of it take on the host besides state, tokens and salt; counts towards the limit.
  static constexpr std::size_t kEntryBytes = 384, kBlockBytes = 256;

  // The longest entry that a prompt extends. Valid until the cache changes.
  class Match {
   public:
    bool found() const { return entry_ != nullptr; }
    int length() const { return length_; }  // tokens
    // Tokens up to which full blocks of other prompts are the same, entry or not: a good place for the next snapshot.
    int shared_tokens() const { return shared_tokens_; }
    int device_pages() const { return device_pages_; }  // full pages that need not be found anew

   private:
    friend class PrefixCache;
    Entry* entry_ = nullptr;
    int length_ = 0, shared_tokens_ = 0, device_pages_ = 0;
  };

  PrefixCache(StatePool& pool, const PrefixCacheLimits& limits);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;
  ~PrefixCache();

  bool enabled() const { return limits_.device_slots > 0; }

  // A proper prefix only: one token at least is left to compute, its logits are needed. Nothing changes. Prompts of different salts
  // never meet.
  Match find(std::string_view salt, std::span<const int> prompt) const;

  bool contains(std::string_view salt, std::span<const int> tokens) const;  // on the device, for exactly these tokens

  // Turns an empty sequence into one that holds the match. Pages that are on the host are written anew, for which other entries may be
  // evicted; throws CapacityError if that does not suffice: the sequence is then still empty.
  void resume(const Match& match, SequenceState& state);
  void count_lookup(int prompt_tokens, int reused_tokens);  // for the statistics, once per request

  // Keeps the state after `tokens`, all that it holds. Copies the slot.
  void insert(std::string_view salt, std::span<const int> tokens, const SequenceState& state);

  // The same for a point inside a step: a slot of this cache, for the step to save into (StateSave). Either insert_saved() with the pages
  // of the sequence, whose tokens end a page, or give_back(). Nothing if no slot is to be had.
  std::optional<int> take_slot();
  void insert_saved(std::string_view salt, std::span<const int> tokens, int slot, std::span<const int> pages);
  void give_back(int slot);

  // The least recently used entry leaves the device. False if there is none. Its pages become free only if nobody else refers to them.
  bool evict_one();
  // Pages that evict_one() sets free sooner or later, those of the match's full blocks not counted.
  int reclaimable_pages(const Match& except) const;

  void clear();
  PrefixCacheStats stats() const;

 private:
  Block* root_of(std::string_view salt) const;
  Block* child_of(const Block* parent, std::span<const int> tokens) const;
  std::vector<Block*> chain_of(std::string_view salt, std::span<const int> tokens) const;
  Entry* entry_of(std::string_view salt, std::span<const int> tokens) const;
  Entry* least_recent(bool on_device) const;
  void add(std::string_view salt, std::span<const int> tokens, int slot, std::span<const int> pages);
  void demote(Entry& entry);
  void drop(Entry& entry);
  void leave_device(Block& block);
  std::size_t host_bytes_of(const Entry& entry) const;
  std::size_t host_bytes_of(const Block& block) const;
  void forget_host(Block& block);
  bool make_host_room(std::size_t bytes);
  void release_device_part(Entry& entry);
  int missing_pages(const Entry& entry) const;

  StatePool* pool_;
  PrefixCacheLimits limits_;
  int page_tokens_;
  std::map<std::string, std::unique_ptr<Block>, std::less<>> roots_;
  std::unordered_multimap<std::uint64_t, std::unique_ptr<Block>> blocks_;
  std::vector<std::unique_ptr<Entry>> entries_;
  const Entry* pinned_ = nullptr;  // not to be dropped while it is read
  int slots_lent_ = 0;
  std::uint64_t clock_ = 0;
  PrefixCacheStats stats_;
};

struct SnapshotPolicy {
  int interval_tokens = 1024;  // between points, in powers of two of it, so that prompts of different length share points
  int max_points = 4;          // on that grid, per prompt
};

// Where to keep the state while tokens [from, prompt_tokens) of a prompt are computed: ascending, at ends of pages, inside the range. On
// the grid, at the end of what other prompts share, and at the last page end that leaves a token to compute.
std::vector<int> snapshot_points(int from, int prompt_tokens, int shared_tokens, int page_tokens, const SnapshotPolicy& policy);

}  // namespace tetrad

#include "engine/prefix_cache.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace tetrad {
namespace {

std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::uint64_t chained_hash(std::uint64_t parent, std::span<const int> tokens) {
  std::uint64_t hash = parent;
  for (const int token : tokens) hash = mixed(hash + 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(token));
  return hash;
}

template <class T>
bool is_equal(std::span<const int> a, const T& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

}  // namespace

struct PrefixCache::Block {
  Block* parent = nullptr;  // null for the root of a salt, which has no tokens and no page
  std::uint64_t hash = 0;
  std::vector<int> tokens;
  int page = -1;                // one reference, while an entry on the device needs it
  std::vector<std::byte> host;  // the page's contents, while only entries on the host need it: then on_host
  bool on_host = false;
  int device_users = 0;  // entries of either tier that pass through
  int users = 0;
  std::vector<Entry*> entries;  // that end in this block
};

struct PrefixCache::Entry {
  std::string salt;
  std::vector<Block*> chain;  // root first
  std::vector<int> tail;      // tokens after the last full block
  int slot = -1;              // -1: on the host
  int tail_page = -1;
  std::vector<std::byte> host_slot, host_tail;
  std::uint64_t used = 0;

  bool on_device() const { return slot >= 0; }
  std::span<Block* const> blocks() const { return std::span(chain).subspan(1); }
};

PrefixCache::PrefixCache(StatePool& pool, const PrefixCacheLimits& limits)
    : pool_(&pool), limits_(limits), page_tokens_(pool.layout().page_tokens) {}

PrefixCache::~PrefixCache() { clear(); }

void PrefixCache::clear() {
  while (!entries_.empty()) drop(*entries_.back());
}

PrefixCache::Block* PrefixCache::root_of(std::string_view salt) const {
  const auto found = roots_.find(salt);
  return found == roots_.end() ? nullptr : found->second.get();
}

PrefixCache::Block* PrefixCache::child_of(const Block* parent, std::span<const int> tokens) const {
  const auto [begin, end] = blocks_.equal_range(chained_hash(parent->hash, tokens));
  for (auto it = begin; it != end; ++it)
    if (it->second->parent == parent && is_equal(tokens, it->second->tokens)) return it->second.get();
  return nullptr;
}

std::vector<PrefixCache::Block*> PrefixCache::chain_of(std::string_view salt, std::span<const int> tokens) const {
  std::vector<Block*> chain;
  const auto block_tokens = static_cast<std::size_t>(page_tokens_);
  Block* block = root_of(salt);
  for (std::size_t first = 0; block != nullptr; first += block_tokens) {
    chain.push_back(block);
    if (first + block_tokens > tokens.size()) break;
    block = child_of(block, tokens.subspan(first, block_tokens));
  }
  return chain;
}

PrefixCache::Match PrefixCache::find(std::string_view salt, std::span<const int> prompt) const {
  Match match;
  if (prompt.empty()) return match;
  prompt = prompt.first(prompt.size() - 1);
  const std::vector<Block*> chain = chain_of(salt, prompt);
  if (chain.empty()) return match;
  match.shared_tokens_ = static_cast<int>(chain.size() - 1) * page_tokens_;
  for (std::size_t depth = chain.size(); depth-- > 0 && match.entry_ == nullptr;) {
    const auto rest = prompt.subspan(depth * static_cast<std::size_t>(page_tokens_));
    std::size_t longest = 0;
    for (Entry* entry : chain[depth]->entries) {
      const std::size_t tail = entry->tail.size();
      if (tail > rest.size() || !is_equal(rest.first(tail), entry->tail) || (match.entry_ != nullptr && tail <= longest)) continue;
      match.entry_ = entry;
      longest = tail;
    }
    match.length_ = match.entry_ == nullptr ? 0 : static_cast<int>(depth) * page_tokens_ + static_cast<int>(longest);
  }
  if (match.entry_ != nullptr)
    for (const Block* block : match.entry_->blocks()) match.device_pages_ += block->page >= 0 ? 1 : 0;
  return match;
}

PrefixCache::Entry* PrefixCache::entry_of(std::string_view salt, std::span<const int> tokens) const {
  const std::vector<Block*> chain = chain_of(salt, tokens);
  const std::size_t full = tokens.size() / static_cast<std::size_t>(page_tokens_);
  if (chain.size() != full + 1) return nullptr;
  const auto tail = tokens.subspan(full * static_cast<std::size_t>(page_tokens_));
  for (Entry* entry : chain.back()->entries)
    if (is_equal(tail, entry->tail)) return entry;
  return nullptr;
}

bool PrefixCache::contains(std::string_view salt, std::span<const int> tokens) const {
  const Entry* entry = entry_of(salt, tokens);
  return entry != nullptr && entry->on_device();
}

int PrefixCache::missing_pages(const Entry& entry) const {
  int missing = !entry.tail.empty() && entry.tail_page < 0 ? 1 : 0;
  for (const Block* block : entry.blocks()) missing += block->page < 0 ? 1 : 0;
  return missing;
}

void PrefixCache::resume(const Match& match, SequenceState& state) {
  TETRAD_CHECK(match.found(), "resume without a match");
  Entry& entry = *match.entry_;
  entry.used = ++clock_;
  pinned_ = &entry;
  // An entry on the host is the only kind with missing pages, so what is evicted from the device is another.
  while (missing_pages(entry) > pool_->free_pages())
    if (!evict_one()) break;
  pinned_ = nullptr;
  const int missing = missing_pages(entry);
  if (missing > pool_->free_pages()) fail<CapacityError>("{} state pages needed, {} free", missing, pool_->free_pages());

  std::vector<int> pages;
  const auto add_page = [&](int page, std::span<const std::byte> contents) {
    if (page >= 0)
      pool_->share_page(page);
    else
      pool_->backend().write_page(page = pool_->take_page(), contents);
    pages.push_back(page);
  };
  for (const Block* block : entry.blocks()) add_page(block->page, block->host);
  if (!entry.tail.empty()) add_page(entry.tail_page, entry.host_tail);
  if (entry.on_device())
    pool_->backend().copy_slot(state.slot(), entry.slot);
  else
    pool_->backend().write_slot(state.slot(), entry.host_slot);
  state.adopt(match.length(), std::move(pages));
}

void PrefixCache::count_lookup(int prompt_tokens, int reused_tokens) {
  ++stats_.lookups;
  stats_.hits += reused_tokens > 0 ? 1 : 0;
  stats_.tokens_queried += static_cast<std::uint64_t>(prompt_tokens);
  stats_.tokens_reused += static_cast<std::uint64_t>(reused_tokens);
}

std::optional<int> PrefixCache::take_slot() {
  if (stats_.device_entries + slots_lent_ >= limits_.device_slots && !evict_one()) return std::nullopt;
  if (stats_.device_entries + slots_lent_ >= limits_.device_slots || pool_->free_slots() == 0) return std::nullopt;
  ++slots_lent_;
  return pool_->take_slot();
}

void PrefixCache::give_back(int slot) {
  --slots_lent_;
  pool_->release_slot(slot);
}

void PrefixCache::insert(std::string_view salt, std::span<const int> tokens, const SequenceState& state) {
  TETRAD_CHECK(state.length() == static_cast<int>(tokens.size()), "a state of {} tokens for {}", state.length(), tokens.size());
  if (!enabled() || tokens.empty()) return;
  Entry* known = entry_of(salt, tokens);
  if (known != nullptr && known->on_device()) {
    known->used = ++clock_;
    return;
  }
  const std::optional<int> slot = take_slot();
  if (!slot) return;
  pool_->backend().copy_slot(*slot, state.slot());
  add(salt, tokens, *slot, state.pages());
}

void PrefixCache::insert_saved(std::string_view salt, std::span<const int> tokens, int slot, std::span<const int> pages) {
  TETRAD_CHECK(!tokens.empty() && tokens.size() % static_cast<std::size_t>(page_tokens_) == 0, "{} tokens do not end a page of {}",
               tokens.size(), page_tokens_);
  add(salt, tokens, slot, pages);
}

// The slot is one that was lent: it becomes the entry's, or goes back if there is such an entry already.
void PrefixCache::add(std::string_view salt, std::span<const int> tokens, int slot, std::span<const int> pages) {
  if (Entry* known = entry_of(salt, tokens)) {
    if (known->on_device()) {
      known->used = ++clock_;
      give_back(slot);
      return;
    }
    drop(*known);  // the same state is at hand on the device
  }
  const auto block_tokens = static_cast<std::size_t>(page_tokens_);
  auto entry = std::make_unique<Entry>();
  entry->salt = salt;
  entry->slot = slot;
  entry->used = ++clock_;
  --slots_lent_;
  std::unique_ptr<Block>& root = roots_.try_emplace(entry->salt).first->second;
  if (!root) {
    root = std::make_unique<Block>();
    root->hash = mixed(std::hash<std::string_view>()(salt));
  }
  ++root->users;
  entry->chain.push_back(root.get());
  std::size_t first = 0;
  for (; first + block_tokens <= tokens.size(); first += block_tokens) {
    const auto own = tokens.subspan(first, block_tokens);
    Block* parent = entry->chain.back();
    Block* block = child_of(parent, own);
    if (block == nullptr) {
      auto fresh = std::make_unique<Block>();
      fresh->parent = parent;
      fresh->hash = chained_hash(parent->hash, own);
      fresh->tokens.assign(own.begin(), own.end());
      block = fresh.get();
      blocks_.emplace(block->hash, std::move(fresh));
    }
    if (block->page < 0) {
      block->page = pages[first / block_tokens];
      pool_->share_page(block->page);
      ++stats_.device_pages;
      forget_host(*block);
    }
    ++block->users;
    ++block->device_users;
    entry->chain.push_back(block);
  }
  entry->tail.assign(tokens.begin() + static_cast<std::ptrdiff_t>(first), tokens.end());
  if (!entry->tail.empty()) {
    entry->tail_page = pages[first / block_tokens];
    pool_->share_page(entry->tail_page);
    ++stats_.device_pages;
  }
  entry->chain.back()->entries.push_back(entry.get());
  entries_.push_back(std::move(entry));
  ++stats_.device_entries;
  ++stats_.inserts;
}

PrefixCache::Entry* PrefixCache::least_recent(bool on_device) const {
  Entry* oldest = nullptr;
  for (const auto& entry : entries_)
    if (entry->on_device() == on_device && entry.get() != pinned_ && (oldest == nullptr || entry->used < oldest->used))
      oldest = entry.get();
  return oldest;
}

bool PrefixCache::evict_one() {
  Entry* entry = least_recent(true);
  if (entry == nullptr) return false;
  demote(*entry);
  return true;
}

std::size_t PrefixCache::host_bytes_of(const Entry& entry) const {
  const StateLayout& layout = pool_->layout();
  return kEntryBytes + entry.salt.size() + entry.chain.size() * sizeof(Block*) + entry.tail.size() * sizeof(int) + layout.slot_bytes +
         (entry.tail.empty() ? 0 : layout.page_bytes);
}

std::size_t PrefixCache::host_bytes_of(const Block& block) const {
  return kBlockBytes + block.tokens.size() * sizeof(int) + pool_->layout().page_bytes;
}

void PrefixCache::forget_host(Block& block) {
  if (!std::exchange(block.on_host, false)) return;
  block.host = {};
  stats_.host_bytes -= host_bytes_of(block);
}

bool PrefixCache::make_host_room(std::size_t bytes) {
  while (stats_.host_bytes + bytes > limits_.host_bytes) {
    Entry* entry = least_recent(false);
    if (entry == nullptr) return false;
    drop(*entry);
    ++stats_.evictions;
  }
  return true;
}

void PrefixCache::demote(Entry& entry) {
  const StateLayout& layout = pool_->layout();
  std::size_t bytes = host_bytes_of(entry);
  for (const Block* block : entry.blocks()) bytes += block->device_users == 1 ? host_bytes_of(*block) : 0;
  if (bytes > limits_.host_bytes || !make_host_room(bytes)) {
    drop(entry);
    ++stats_.evictions;
    return;
  }
  entry.host_slot.resize(layout.slot_bytes);
  pool_->backend().read_slot(entry.slot, entry.host_slot);
  if (!entry.tail.empty()) {
    entry.host_tail.resize(layout.page_bytes);
    pool_->backend().read_page(entry.tail_page, entry.host_tail);
  }
  stats_.host_bytes += host_bytes_of(entry);
  release_device_part(entry);
  ++stats_.host_entries;
  ++stats_.demotions;
}

// Gives up the slot, the tail's page and the use of the blocks' pages; blocks that other entries need on the host are copied there.
void PrefixCache::release_device_part(Entry& entry) {
  pool_->release_slot(std::exchange(entry.slot, -1));
  if (entry.tail_page >= 0) {
    pool_->release_page(std::exchange(entry.tail_page, -1));
    --stats_.device_pages;
  }
  for (Block* block : entry.blocks())
    if (--block->device_users == 0) leave_device(*block);
  --stats_.device_entries;
}

void PrefixCache::leave_device(Block& block) {
  if (block.users > 0) {
    block.host.resize(pool_->layout().page_bytes);
    pool_->backend().read_page(block.page, block.host);
    block.on_host = true;
    stats_.host_bytes += host_bytes_of(block);
  }
  pool_->release_page(std::exchange(block.page, -1));
  --stats_.device_pages;
}

void PrefixCache::drop(Entry& entry) {
  std::erase(entry.chain.back()->entries, &entry);
  for (Block* block : entry.chain) --block->users;
  const bool was_on_device = entry.on_device();
  if (was_on_device) {
    release_device_part(entry);
  } else {
    stats_.host_bytes -= host_bytes_of(entry);
    --stats_.host_entries;
  }
  for (std::size_t i = entry.chain.size(); i-- > 1 && entry.chain[i]->users == 0;) {
    forget_host(*entry.chain[i]);
    const auto [begin, end] = blocks_.equal_range(entry.chain[i]->hash);
    blocks_.erase(std::find_if(begin, end, [&](const auto& known) { return known.second.get() == entry.chain[i]; }));
  }
  if (entry.chain.front()->users == 0) roots_.erase(roots_.find(entry.salt));
  entries_.erase(std::find_if(entries_.begin(), entries_.end(), [&](const auto& known) { return known.get() == &entry; }));
  // Blocks that entries on the host share with this one came to them.
  if (was_on_device) make_host_room(0);
}

int PrefixCache::reclaimable_pages(const Match& except) const {
  int pages = 0;
  const auto is_sole = [&](int page) { return page >= 0 && pool_->page_references(page) == 1; };
  for (const auto& [hash, block] : blocks_) pages += is_sole(block->page) ? 1 : 0;
  for (const auto& entry : entries_) pages += is_sole(entry->tail_page) ? 1 : 0;
  if (except.found())
    for (const Block* block : except.entry_->blocks()) pages -= is_sole(block->page) ? 1 : 0;
  return pages;
}

PrefixCacheStats PrefixCache::stats() const {
  PrefixCacheStats stats = stats_;
  const StateLayout& layout = pool_->layout();
  stats.device_bytes =
      static_cast<std::size_t>(stats.device_entries) * layout.slot_bytes + static_cast<std::size_t>(stats.device_pages) * layout.page_bytes;
  return stats;
}

std::vector<int> snapshot_points(int from, int prompt_tokens, int shared_tokens, int page_tokens, const SnapshotPolicy& policy) {
  std::vector<int> points;
  const auto page_end = [&](int tokens) { return tokens / page_tokens * page_tokens; };
  std::int64_t interval = std::max(page_end(policy.interval_tokens), page_tokens);
  while (policy.max_points > 0 && (prompt_tokens - from) / interval > policy.max_points) interval *= 2;
  if (policy.max_points > 0)
    for (std::int64_t point = (from / interval + 1) * interval; point < prompt_tokens; point += interval)
      points.push_back(static_cast<int>(point));
  points.push_back(page_end(shared_tokens));
  points.push_back(page_end(prompt_tokens - 1));
  std::sort(points.begin(), points.end());
  points.erase(std::unique(points.begin(), points.end()), points.end());
  std::erase_if(points, [&](int point) { return point <= from || point >= prompt_tokens; });
  return points;
}

}  // namespace tetrad

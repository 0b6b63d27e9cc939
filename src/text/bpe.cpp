#include "text/bpe.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>

#include "base/error.h"

namespace tetrad::text {
namespace {

constexpr std::size_t kCacheEntries = 8192;  // 512 KiB for each thread that encodes
constexpr std::size_t kMaxCachedBytes = 23;
constexpr std::size_t kMaxCachedIds = 9;
constexpr std::size_t kMaxPooled = 64;
constexpr std::size_t kMaxKeptSymbols = 1 << 16;  // a longer word's memory is given back
constexpr int kNone = -1;

struct Symbol {
  int id;
  int previous, next;  // neighbours still alive, kNone at the ends
};

// A pair that could merge when it was queued; stale once either symbol has changed.
struct Candidate {
  std::uint32_t rank;
  int position;  // of the left symbol
  int left, right, result;
};

// Order of a heap whose front is the candidate to merge first.
bool later(const Candidate& a, const Candidate& b) { return a.rank != b.rank ? a.rank > b.rank : a.position > b.position; }

// The bytes of a short word, zero-padded, and its length in the last byte: never all zero.
using WordKey = std::array<std::uint64_t, 3>;

WordKey make_key(std::string_view word) {
  std::array<char, sizeof(WordKey)> bytes{};
  std::memcpy(bytes.data(), word.data(), word.size());
  bytes.back() = static_cast<char>(word.size());
  WordKey key;
  std::memcpy(key.data(), bytes.data(), sizeof(key));
  return key;
}

std::size_t slot_of(const WordKey& key) {
  std::uint64_t hash = 0;
  for (const std::uint64_t part : key) {
    hash = (hash ^ part) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 29;
  }
  return (hash * 0xBF58476D1CE4E5B9ULL) >> 51;
}
static_assert(kCacheEntries == std::size_t{1} << (64 - 51));

struct alignas(64) CacheEntry {
  WordKey key{};
  int count = 0;
  std::array<int, kMaxCachedIds> ids{};
};
static_assert(sizeof(CacheEntry) == 64);

}  // namespace

struct Bpe::Encoder::Scratch {
  std::vector<CacheEntry> cache{kCacheEntries};  // a newer word takes an older one's place
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

struct Bpe::Pool {
  std::mutex mutex;
  std::vector<std::unique_ptr<Encoder::Scratch>> idle;
};

Bpe::Bpe(const std::array<int, 256>& byte_ids, const std::vector<Merge>& merges, int num_ids)
    : byte_ids_(byte_ids), first_rule_(static_cast<std::size_t>(num_ids) + 1, 0), pool_(std::make_unique<Pool>()) {
  std::vector<std::uint32_t> order(merges.size());
  for (std::size_t i = 0; i < merges.size(); ++i) order[i] = static_cast<std::uint32_t>(i);
  std::sort(order.begin(), order.end(), [&merges](std::uint32_t a, std::uint32_t b) {
    return std::pair(merges[a].left, merges[a].right) < std::pair(merges[b].left, merges[b].right);
  });
  rules_.reserve(merges.size());
  for (const std::uint32_t rank : order) {
    const Merge& merge = merges[rank];
    ++first_rule_[static_cast<std::size_t>(merge.left) + 1];
    rules_.push_back({merge.right, merge.result, rank});
  }
  for (std::size_t i = 1; i < first_rule_.size(); ++i) first_rule_[i] += first_rule_[i - 1];
}

Bpe::Bpe(Bpe&&) noexcept = default;
Bpe& Bpe::operator=(Bpe&&) noexcept = default;
Bpe::~Bpe() = default;

void Bpe::set_whole_words(std::unordered_map<std::string, int> words) { whole_words_ = std::move(words); }

const Bpe::Rule* Bpe::find(int left, int right) const {
  const Rule* begin = rules_.data() + first_rule_[static_cast<std::size_t>(left)];
  const Rule* end = rules_.data() + first_rule_[static_cast<std::size_t>(left) + 1];
  const Rule* rule = std::lower_bound(begin, end, right, [](const Rule& r, int value) { return r.right < value; });
  return rule != end && rule->right == right ? rule : nullptr;
}

Bpe::Encoder::Encoder(const Bpe& bpe) : bpe_(&bpe) {
  {
    const std::lock_guard lock(bpe.pool_->mutex);
    if (!bpe.pool_->idle.empty()) {
      scratch_ = std::move(bpe.pool_->idle.back());
      bpe.pool_->idle.pop_back();
    }
  }
  if (!scratch_) scratch_ = std::make_unique<Scratch>();
}

Bpe::Encoder::~Encoder() {
  if (scratch_->symbols.capacity() > kMaxKeptSymbols) scratch_->symbols = {};
  if (scratch_->heap.capacity() > kMaxKeptSymbols) scratch_->heap = {};
  const std::lock_guard lock(bpe_->pool_->mutex);
  if (bpe_->pool_->idle.size() < kMaxPooled) bpe_->pool_->idle.push_back(std::move(scratch_));
}

void Bpe::Encoder::encode(std::string_view word, std::vector<int>& ids) {
  if (word.empty()) return;
  if (word.size() > kMaxCachedBytes) return encode_uncached(word, ids);
  const WordKey key = make_key(word);
  CacheEntry& entry = scratch_->cache[slot_of(key)];
  if (entry.key == key) {
    ids.insert(ids.end(), entry.ids.begin(), entry.ids.begin() + entry.count);
    return;
  }
  const std::size_t before = ids.size();
  encode_uncached(word, ids);
  const std::size_t count = ids.size() - before;
  if (count > kMaxCachedIds) return;
  entry.key = key;
  entry.count = static_cast<int>(count);
  std::copy(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end(), entry.ids.begin());
}

void Bpe::Encoder::encode_uncached(std::string_view word, std::vector<int>& ids) {
  if (!bpe_->whole_words_.empty()) {
    const auto whole = bpe_->whole_words_.find(std::string(word));
    if (whole != bpe_->whole_words_.end()) return ids.push_back(whole->second);
  }
  merge(word, ids);
}

void Bpe::Encoder::merge(std::string_view word, std::vector<int>& ids) {
  const int length = static_cast<int>(word.size());
  std::vector<Symbol>& symbols = scratch_->symbols;
  std::vector<Candidate>& heap = scratch_->heap;
  symbols.resize(word.size());
  heap.clear();
  const auto at = [&symbols](int position) -> Symbol& { return symbols[static_cast<std::size_t>(position)]; };
  for (int i = 0; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(word[static_cast<std::size_t>(i)]);
    TETRAD_CHECK(bpe_->byte_ids_[byte] >= 0, "byte {:#04x} has no token", byte);
    at(i) = {bpe_->byte_ids_[byte], i - 1, i + 1 < length ? i + 1 : kNone};
  }
  // Whether the symbol at `position` merges with the one after it; if so the pair is at the back of the heap's storage.
  const auto add = [&](int position) {
    if (position == kNone || at(position).next == kNone) return false;
    const int left = at(position).id, right = at(at(position).next).id;
    const Rule* rule = bpe_->find(left, right);
    if (rule != nullptr) heap.push_back({rule->rank, position, left, right, rule->result});
    return rule != nullptr;
  };
  for (int i = 0; i < length; ++i) add(i);
  std::make_heap(heap.begin(), heap.end(), later);

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Candidate best = heap.back();
    heap.pop_back();
    Symbol& left = at(best.position);
    if (left.id != best.left || left.next == kNone || at(left.next).id != best.right) continue;
    Symbol& right = at(left.next);
    left.id = best.result;
    left.next = right.next;
    right.id = kNone;
    if (left.next != kNone) at(left.next).previous = best.position;
    for (const int position : {left.previous, best.position}) {
      if (add(position)) std::push_heap(heap.begin(), heap.end(), later);
    }
  }
  for (int i = 0; i != kNone; i = at(i).next) ids.push_back(at(i).id);
}

}  // namespace tetrad::text

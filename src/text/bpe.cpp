#include "text/bpe.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <queue>
#include <shared_mutex>

#include "base/error.h"

namespace tetrad::text {
namespace {

constexpr std::size_t kCacheShards = 16;
constexpr std::size_t kWordsPerShard = 4096;
constexpr std::size_t kMaxCachedBytes = 48;  // longer words seldom come back
constexpr int kNone = -1;

struct Symbol {
  int id;
  int previous, next;  // neighbours still alive, kNone at the ends
};

// A pair that could merge when it was queued; stale once either symbol has changed.
struct Candidate {
  std::uint32_t rank;
  int position;           // of the left symbol
  int left, right, result;
};

struct LaterCandidate {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  }
};

struct WordHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view word) const { return std::hash<std::string_view>{}(word); }
};

}  // namespace

// Words to ids, in shards with a lock each. A full shard is emptied: what is frequent comes back at once.
struct Bpe::Cache {
  struct Shard {
    std::shared_mutex mutex;
    std::unordered_map<std::string, std::vector<int>, WordHash, std::equal_to<>> words;
  };
  std::array<Shard, kCacheShards> shards;

  Shard& shard_of(std::string_view word) {
    const std::size_t hash = WordHash{}(word);
    return shards[(hash >> 32) % kCacheShards];
  }

  bool append(std::string_view word, std::vector<int>& ids) {
    Shard& shard = shard_of(word);
    const std::shared_lock lock(shard.mutex);
    const auto found = shard.words.find(word);
    if (found == shard.words.end()) return false;
    ids.insert(ids.end(), found->second.begin(), found->second.end());
    return true;
  }

  void insert(std::string_view word, std::vector<int> ids) {
    Shard& shard = shard_of(word);
    const std::unique_lock lock(shard.mutex);
    if (shard.words.size() >= kWordsPerShard) shard.words.clear();
    shard.words.emplace(word, std::move(ids));
  }
};

Bpe::Bpe(const std::array<int, 256>& byte_ids, const std::vector<Merge>& merges, int num_ids)
    : byte_ids_(byte_ids), first_rule_(static_cast<std::size_t>(num_ids) + 1, 0), cache_(std::make_unique<Cache>()) {
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

void Bpe::encode(std::string_view word, std::vector<int>& ids) const {
  const bool cached = word.size() <= kMaxCachedBytes;
  if (cached && cache_->append(word, ids)) return;
  const std::size_t before = ids.size();
  const auto whole = whole_words_.empty() ? whole_words_.end() : whole_words_.find(std::string(word));
  if (whole != whole_words_.end()) {
    ids.push_back(whole->second);
  } else {
    merge(word, ids);
  }
  if (cached) cache_->insert(word, std::vector<int>(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end()));
}

const Bpe::Rule* Bpe::find(int left, int right) const {
  const Rule* begin = rules_.data() + first_rule_[static_cast<std::size_t>(left)];
  const Rule* end = rules_.data() + first_rule_[static_cast<std::size_t>(left) + 1];
  const Rule* rule = std::lower_bound(begin, end, right, [](const Rule& r, int value) { return r.right < value; });
  return rule != end && rule->right == right ? rule : nullptr;
}

void Bpe::merge(std::string_view word, std::vector<int>& ids) const {
  const int length = static_cast<int>(word.size());
  std::vector<Symbol> symbols(word.size());
  for (int i = 0; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(word[static_cast<std::size_t>(i)]);
    TETRAD_CHECK(byte_ids_[byte] >= 0, "byte {:#04x} has no token", byte);
    symbols[static_cast<std::size_t>(i)] = {byte_ids_[byte], i - 1, i + 1 < length ? i + 1 : kNone};
  }
  const auto at = [&symbols](int position) -> Symbol& { return symbols[static_cast<std::size_t>(position)]; };

  std::vector<Candidate> storage;
  storage.reserve(word.size());
  const auto candidate = [&](int position) -> std::optional<Candidate> {
    if (position == kNone || at(position).next == kNone) return std::nullopt;
    const int left = at(position).id, right = at(at(position).next).id;
    const Rule* rule = find(left, right);
    if (rule == nullptr) return std::nullopt;
    return Candidate{rule->rank, position, left, right, rule->result};
  };
  for (int i = 0; i + 1 < length; ++i) {
    if (const auto pair = candidate(i)) storage.push_back(*pair);
  }
  std::priority_queue<Candidate, std::vector<Candidate>, LaterCandidate> queue(LaterCandidate{}, std::move(storage));

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = at(best.position);
    if (left.id != best.left || left.next == kNone || at(left.next).id != best.right) continue;
    Symbol& right = at(left.next);
    left.id = best.result;
    left.next = right.next;
    right.id = kNone;
    if (left.next != kNone) at(left.next).previous = best.position;
    if (const auto pair = candidate(left.previous)) queue.push(*pair);
    if (const auto pair = candidate(best.position)) queue.push(*pair);
  }
  for (int i = 0; i != kNone && i < length; i = at(i).next) ids.push_back(at(i).id);
}

}  // namespace tetrad::text

#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <random>

#include "engine/stepper.h"
#include "support/scripted_backend.h"

namespace tetrad::prefix_cache_test {
namespace {

using testing::ScriptedBackend;

constexpr int kPage = 8;
constexpr std::size_t kSlotBytes = sizeof(int), kPageBytes = kPage * sizeof(int);
// On the host: a block with its tokens; an entry that ends after so many of them, with its way from the root and a tail.
constexpr std::size_t kBlockOnHost = PrefixCache::kBlockBytes + kPage * sizeof(int) + kPageBytes;
constexpr std::size_t entry_on_host(std::size_t blocks, std::size_t tail) {
  return PrefixCache::kEntryBytes + (blocks + 1) * sizeof(void*) + tail * sizeof(int) + kSlotBytes + (tail > 0 ? kPageBytes : 0);
}

std::vector<int> counted(int first, int count) {
  std::vector<int> ids;
  for (int i = 0; i < count; ++i) ids.push_back(first + i);
  return ids;
}

std::vector<int> joined(std::vector<int> a, const std::vector<int>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Rig {
  explicit Rig(PrefixCacheLimits limits, int num_pages = 64, int num_slots = 16)
      : backend({.num_slots = num_slots, .num_pages = num_pages, .max_rows = 64}, [](std::span<const int>, std::span<float>) {}),
        pool(backend),
        stepper(pool),
        cache(std::in_place, pool, limits) {}

  // Computes `ids` from the longest entry on and keeps the end. Returns how many tokens were reused.
  int run(const std::vector<int>& ids, std::string_view salt = "") {
    SequenceState state(pool);
    const PrefixCache::Match match = cache->find(salt, ids);
    if (match.found()) cache->resume(match, state);
    EXPECT_EQ(state.length(), match.length());
    feed(state, ids);
    cache->insert(salt, ids, state);
    return match.length();
  }
  void feed(SequenceState& state, const std::vector<int>& ids) {
    const auto rest = std::span(ids).subspan(static_cast<std::size_t>(state.length()));
    if (!rest.empty()) stepper.prefill(state, rest);
  }
  int reusable(const std::vector<int>& ids, std::string_view salt = "") { return cache->find(salt, ids).length(); }
  void expect_all_free() {
    cache.reset();
    EXPECT_EQ(pool.free_slots(), backend.num_slots());
    EXPECT_EQ(pool.free_pages(), backend.num_pages());
  }

  ScriptedBackend backend;
  StatePool pool;
  Stepper stepper;
  std::optional<PrefixCache> cache;
};

TEST(prefix_cache, the_longest_proper_prefix_is_found) {
  Rig rig({.device_slots = 8});
  const std::vector<int> prompt = counted(100, 40);
  for (const int length : {5, 8, 13, 16, 21}) rig.run({prompt.begin(), prompt.begin() + length});
  for (const auto& [length, expected] : std::vector<std::pair<int, int>>{
           {1, 0}, {5, 0}, {6, 5}, {8, 5}, {9, 8}, {13, 8}, {14, 13}, {16, 13}, {17, 16}, {21, 16}, {22, 21}, {40, 21}})
    EXPECT_EQ(rig.reusable({prompt.begin(), prompt.begin() + length}), expected) << length;
  rig.expect_all_free();
}

TEST(prefix_cache, one_different_token_anywhere_ends_the_match) {
  Rig rig({.device_slots = 8});
  const std::vector<int> prompt = counted(100, 30);
  for (const int length : {4, 8, 16, 21}) rig.run({prompt.begin(), prompt.begin() + length});
  for (int changed = 0; changed < 30; ++changed) {
    std::vector<int> other = prompt;
    other[static_cast<std::size_t>(changed)] = 1;
    const int expected = changed < 4 ? 0 : changed < 8 ? 4 : changed < 16 ? 8 : changed < 21 ? 16 : 21;
    EXPECT_EQ(rig.reusable(other), expected) << changed;
  }
}

TEST(prefix_cache, the_same_block_after_another_parent_is_another_block) {
  Rig rig({.device_slots = 8});
  const std::vector<int> a = counted(1, 8), b = counted(50, 8), c = counted(90, 8);
  rig.run(joined(a, c));
  EXPECT_EQ(rig.reusable(joined(joined(b, c), {7})), 0);
  EXPECT_EQ(rig.reusable(joined(c, {7})), 0);
  EXPECT_EQ(rig.reusable(joined(joined(a, c), {7})), 16);
}

TEST(prefix_cache, salts_never_meet) {
  Rig rig({.device_slots = 8});
  const std::vector<int> prompt = counted(1, 20);
  rig.run(prompt, "tenant a");
  const std::vector<int> longer = joined(prompt, {1});
  EXPECT_EQ(rig.reusable(longer, "tenant a"), 20);
  EXPECT_EQ(rig.reusable(longer, "tenant b"), 0);
  EXPECT_EQ(rig.reusable(longer, ""), 0);
  EXPECT_EQ(rig.cache->find("tenant b", longer).shared_tokens(), 0) << "not even how much is shared";
  EXPECT_EQ(rig.run(longer, "tenant b"), 0);
}

// The scripted backend throws when a start, slot or page is wrong; its pages hold the tokens.
TEST(prefix_cache, a_partial_page_is_copied_when_written) {
  Rig rig({.device_slots = 8});
  const std::vector<int> prompt = counted(100, 13);
  rig.run(prompt);
  SequenceState a(rig.pool), b(rig.pool);
  const std::vector<int> ids_a = joined(prompt, counted(1, 10)), ids_b = joined(prompt, counted(40, 10));
  for (auto* state : {&a, &b}) rig.cache->resume(rig.cache->find("", state == &a ? ids_a : ids_b), *state);
  EXPECT_EQ(a.pages()[1], b.pages()[1]);
  rig.feed(a, ids_a);
  rig.feed(b, ids_b);
  EXPECT_EQ(a.pages()[0], b.pages()[0]) << "full pages stay shared";
  EXPECT_NE(a.pages()[1], b.pages()[1]);
  SequenceState again(rig.pool), cold(rig.pool);
  rig.cache->resume(rig.cache->find("", joined(prompt, {1})), again);
  rig.feed(cold, prompt);
  EXPECT_EQ(again.checksums(), cold.checksums()) << "the entry is as it was";
}

TEST(prefix_cache, blocks_computed_twice_are_kept_once) {
  Rig rig({.device_slots = 8}, 64);
  const std::vector<int> shared = counted(100, 16);
  SequenceState a(rig.pool), b(rig.pool);
  const std::vector<int> ids_a = joined(shared, counted(1, 8)), ids_b = joined(shared, counted(40, 8));
  rig.feed(a, ids_a);
  rig.feed(b, ids_b);  // both cold, at the same time
  rig.cache->insert("", ids_a, a);
  rig.cache->insert("", ids_b, b);
  a.clear();
  b.clear();
  EXPECT_EQ(rig.cache->stats().device_pages, 4);
  EXPECT_EQ(rig.pool.free_pages(), 64 - 4);
  const std::vector<int> third = joined(shared, counted(70, 8));
  EXPECT_EQ(rig.reusable(third), 0) << "no recurrent state was kept there";
  EXPECT_EQ(rig.cache->find("", third).shared_tokens(), 16) << "but it is known to be shared";
}

TEST(prefix_cache, the_least_recently_used_goes_first) {
  Rig rig({.device_slots = 3});
  const std::vector<int> a = counted(1, 10), b = counted(101, 10), c = counted(201, 10), d = counted(301, 10);
  rig.run(a), rig.run(b), rig.run(c);
  rig.run(joined(a, {5}));  // uses a, and takes the place of b
  EXPECT_EQ(rig.reusable(joined(b, {5})), 0);
  EXPECT_EQ(rig.reusable(joined(a, {6})), 10);
  EXPECT_EQ(rig.reusable(joined(c, {5})), 10);
  const PrefixCacheStats stats = rig.cache->stats();
  EXPECT_EQ(stats.device_entries, 3);
  EXPECT_EQ(stats.evictions, 1u);
  EXPECT_EQ(stats.host_bytes, 0u);
  rig.expect_all_free();
}

TEST(prefix_cache, the_second_tier_keeps_slot_and_pages_together) {
  Rig rig({.device_slots = 1, .host_bytes = 1 << 20});
  const std::vector<int> a = counted(1, 21), b = counted(101, 10);
  rig.run(a);
  rig.run(b);
  PrefixCacheStats stats = rig.cache->stats();
  EXPECT_EQ(stats.device_entries, 1);
  EXPECT_EQ(stats.host_entries, 1);
  EXPECT_EQ(stats.host_bytes, entry_on_host(2, 5) + 2 * kBlockOnHost);
  EXPECT_EQ(rig.pool.free_pages(), 64 - 2) << "the pages of the first left the device";
  const std::vector<int> longer = joined(a, counted(70, 9));
  EXPECT_EQ(rig.run(longer), 21);
  SequenceState warm(rig.pool), cold(rig.pool);
  rig.cache->resume(rig.cache->find("", joined(longer, {1})), warm);
  rig.feed(cold, longer);
  EXPECT_EQ(warm.checksums(), cold.checksums());
  EXPECT_EQ(rig.cache->stats().evictions, 0u);
}

TEST(prefix_cache, host_bytes_are_a_limit_and_shared_blocks_count_once) {
  const std::size_t limit = entry_on_host(2, 0) + entry_on_host(3, 0) + 4 * kBlockOnHost;
  Rig rig({.device_slots = 1, .host_bytes = limit});
  const std::vector<int> a = counted(1, 16);
  rig.run(a);
  rig.run(joined(a, counted(50, 8)));
  rig.run(counted(201, 8));  // both of the lineage are now on the host
  PrefixCacheStats stats = rig.cache->stats();
  EXPECT_EQ(stats.host_entries, 2);
  EXPECT_EQ(stats.host_bytes, entry_on_host(2, 0) + entry_on_host(3, 0) + 3 * kBlockOnHost);
  for (int i = 0; i < 10; ++i) {
    rig.run(counted(300 + 20 * i, 9));
    EXPECT_LE(rig.cache->stats().host_bytes, limit);
  }
  EXPECT_GT(rig.cache->stats().evictions, 0u);
  rig.run(counted(1000, 300 / kPage * kPage));  // more than the tier holds: dropped
  rig.run(counted(1, 3));
  EXPECT_LE(rig.cache->stats().host_bytes, limit);
  rig.expect_all_free();
}

TEST(prefix_cache, eviction_gives_pages_back_but_never_those_in_use) {
  Rig rig({.device_slots = 4}, 8);
  const std::vector<int> a = counted(1, 24), b = counted(101, 24);
  rig.run(a);
  rig.run(b);
  EXPECT_EQ(rig.pool.free_pages(), 2);
  EXPECT_EQ(rig.cache->reclaimable_pages({}), 6);
  SequenceState state(rig.pool);
  const std::vector<int> longer = joined(a, counted(60, 8));
  const PrefixCache::Match match = rig.cache->find("", longer);
  EXPECT_EQ(rig.cache->reclaimable_pages(match), 3);
  EXPECT_EQ(match.device_pages(), 3);
  rig.cache->resume(match, state);
  EXPECT_EQ(rig.cache->reclaimable_pages({}), 3) << "those of a are in use";
  EXPECT_TRUE(rig.cache->evict_one());
  EXPECT_TRUE(rig.cache->evict_one());
  EXPECT_FALSE(rig.cache->evict_one());
  EXPECT_EQ(rig.pool.free_pages(), 5);
  SequenceState cold(rig.pool);
  rig.feed(state, longer);
  rig.feed(cold, longer);
  EXPECT_EQ(state.checksums(), cold.checksums());
}

TEST(prefix_cache, resuming_from_the_host_makes_room_or_refuses_whole) {
  Rig rig({.device_slots = 2, .host_bytes = 1 << 20}, 6);
  const std::vector<int> a = counted(1, 24), b = counted(101, 24);
  rig.run(a);
  rig.run(b);
  EXPECT_TRUE(rig.cache->evict_one());
  SequenceState state(rig.pool), other(rig.pool);
  rig.feed(other, counted(201, 20));
  rig.cache->resume(rig.cache->find("", joined(a, {1})), state);  // b must go
  EXPECT_EQ(state.length(), 24);
  EXPECT_EQ(rig.pool.free_pages(), 0);
  SequenceState third(rig.pool);
  EXPECT_THROW(rig.cache->resume(rig.cache->find("", joined(b, {1})), third), CapacityError);
  EXPECT_EQ(third.length(), 0);
  EXPECT_TRUE(third.pages().empty());
  EXPECT_EQ(rig.reusable(joined(b, {1})), 24) << "still known";
}

TEST(prefix_cache, an_entry_that_is_being_read_makes_no_room_for_another) {
  Rig rig({.device_slots = 1, .host_bytes = entry_on_host(3, 0) + 3 * kBlockOnHost}, 5);  // one of them on the host
  const std::vector<int> a = counted(1, 24), b = counted(101, 24);
  rig.run(a);
  EXPECT_TRUE(rig.cache->evict_one());
  rig.run(b);
  SequenceState state(rig.pool), cold(rig.pool);
  rig.cache->resume(rig.cache->find("", joined(a, {1})), state);
  EXPECT_EQ(rig.reusable(joined(b, {1})), 0) << "b had no place to go";
  EXPECT_EQ(rig.reusable(joined(a, {1})), 24);
  const auto warm = state.checksums();
  state.clear();
  rig.feed(cold, a);
  EXPECT_EQ(warm, cold.checksums());
}

TEST(prefix_cache, points_inside_a_step_are_kept) {
  Rig rig({.device_slots = 4});
  const std::vector<int> ids = counted(1, 30);
  SequenceState state(rig.pool);
  const std::optional<int> first = rig.cache->take_slot(), second = rig.cache->take_slot(), unused = rig.cache->take_slot();
  ASSERT_TRUE(first && second && unused);
  const std::vector<StateSave> saves{{7, *first}, {23, *second}};
  const StepRequest request{&state, ids, LogitsWanted::kNone, saves};
  rig.stepper.run({&request, 1});
  rig.cache->insert_saved("", std::span(ids).first(8), *first, state.pages());
  rig.cache->insert_saved("", std::span(ids).first(24), *second, state.pages());
  rig.cache->give_back(*unused);
  for (const int length : {8, 24}) {
    SequenceState warm(rig.pool), cold(rig.pool);
    const std::vector<int> longer{ids.begin(), ids.begin() + length + 1};
    const PrefixCache::Match match = rig.cache->find("", longer);
    ASSERT_EQ(match.length(), length);
    rig.cache->resume(match, warm);
    rig.feed(warm, longer);
    rig.feed(cold, longer);
    EXPECT_EQ(warm.checksums(), cold.checksums());
  }
  const SequenceState dies = std::move(state);
  EXPECT_EQ(rig.cache->stats().device_entries, 2);
}

TEST(prefix_cache, slots_are_never_more_than_set_aside) {
  Rig rig({.device_slots = 2});
  rig.run(counted(1, 9)), rig.run(counted(101, 9));
  const auto a = rig.cache->take_slot(), b = rig.cache->take_slot();
  ASSERT_TRUE(a && b);
  EXPECT_EQ(rig.cache->stats().device_entries, 0) << "both had to go";
  EXPECT_FALSE(rig.cache->take_slot());
  SequenceState state(rig.pool);
  rig.feed(state, counted(1, 9));
  rig.cache->insert("", counted(1, 9), state);  // no slot: nothing is kept
  EXPECT_EQ(rig.cache->stats().device_entries, 0);
  rig.cache->give_back(*a), rig.cache->give_back(*b);
}

TEST(prefix_cache, off_keeps_nothing) {
  Rig rig({});
  EXPECT_FALSE(rig.cache->enabled());
  rig.run(counted(1, 9));
  EXPECT_EQ(rig.reusable(counted(1, 10)), 0);
  EXPECT_FALSE(rig.cache->take_slot());
}

// Whatever comes and goes: an entry that is found stands for its tokens, limits hold, and all is given back.
TEST(prefix_cache, random_traffic) {
  std::mt19937 random(7);
  for (int round = 0; round < 30; ++round) {
    const PrefixCacheLimits limits{.device_slots = 1 + static_cast<int>(random() % 5), .host_bytes = (random() % 3) * 5000};
    Rig rig(limits, 40, 12);
    std::vector<std::vector<int>> known{{1, 2, 3}};
    for (int i = 0; i < 60; ++i) {
      std::vector<int> ids = known[random() % known.size()];
      ids.resize(1 + random() % ids.size());
      const int extra = 1 + static_cast<int>(random() % 20);
      for (int k = 0; k < extra; ++k) ids.push_back(static_cast<int>(random() % 3));
      if (ids.size() > 100) ids.resize(100);
      SequenceState warm(rig.pool), cold(rig.pool);
      const std::string salt = random() % 4 == 0 ? "s" : "";
      if (const auto match = rig.cache->find(salt, ids); match.found()) {
        ASSERT_LT(match.length(), static_cast<int>(ids.size()));
        rig.cache->resume(match, warm);
      }
      while (warm.pages_to_prepare(static_cast<int>(ids.size()) - warm.length()) > rig.pool.free_pages())
        ASSERT_TRUE(rig.cache->evict_one());
      rig.feed(warm, ids);
      while (cold.pages_to_prepare(static_cast<int>(ids.size())) > rig.pool.free_pages()) ASSERT_TRUE(rig.cache->evict_one());
      rig.feed(cold, ids);
      ASSERT_EQ(warm.checksums(), cold.checksums());
      rig.cache->insert(salt, ids, warm);
      known.push_back(ids);
      ASSERT_LE(rig.cache->stats().host_bytes, limits.host_bytes);
      ASSERT_LE(rig.cache->stats().device_entries, limits.device_slots);
    }
    rig.expect_all_free();
  }
}

TEST(snapshot_points, lie_on_page_ends_inside_what_is_computed) {
  const SnapshotPolicy policy{.interval_tokens = 16, .max_points = 3};
  EXPECT_EQ(snapshot_points(0, 7, 0, 8, policy), (std::vector<int>{}));
  EXPECT_EQ(snapshot_points(0, 9, 0, 8, policy), (std::vector<int>{8}));
  EXPECT_EQ(snapshot_points(0, 8, 0, 8, policy), (std::vector<int>{})) << "an exact repeat needs a token to compute";
  EXPECT_EQ(snapshot_points(0, 48, 0, 8, policy), (std::vector<int>{16, 32, 40}));
  EXPECT_EQ(snapshot_points(0, 100, 0, 8, policy), (std::vector<int>{32, 64, 96})) << "every 16 would be too many";
  EXPECT_EQ(snapshot_points(0, 100, 45, 8, policy), (std::vector<int>{32, 40, 64, 96})) << "where another prompt departs";
  EXPECT_EQ(snapshot_points(70, 100, 45, 8, policy), (std::vector<int>{80, 96}));
  EXPECT_EQ(snapshot_points(0, 100, 0, 8, {.interval_tokens = 16, .max_points = 0}), (std::vector<int>{96}));
  for (int prompt = 1; prompt < 300; ++prompt)
    for (const int point : snapshot_points(prompt / 3, prompt, prompt / 2, 8, policy)) {
      EXPECT_EQ(point % 8, 0);
      EXPECT_GT(point, prompt / 3);
      EXPECT_LT(point, prompt);
    }
}

}  // namespace
}  // namespace tetrad::prefix_cache_test

// A sequence that resumes from the prefix cache equals one that never did, to the bit: its states and every logit after.
#include <gtest/gtest.h>

#include <cstring>

#include "engine/prefix_cache.h"
#include "support/loaded_model.h"

namespace tetrad::warm_start_test {
namespace {

using test::LoadedModel;

class WarmStart : public ::testing::TestWithParam<std::size_t> {  // bytes of the second tier
 protected:
  static LoadedModel& model() {
    static LoadedModel loaded(test::golden_directory("rand-small"));
    return loaded;
  }
  static std::vector<int> ids(unsigned seed, int count) {
    return test::random_ids(count, model().config.vocab_size, seed, model().config.ple_eos_token);
  }
};

TEST_P(WarmStart, equals_cold_at_every_kind_of_point) {
  LoadedModel& m = model();
  const int page = m.backend->state_layout().page_tokens;
  const std::vector<int> prompt = ids(1, 2 * page + 23);
  std::vector<int> points{1, 3, page - 1, page, page + 1, 2 * page, 2 * page + 22};
  PrefixCache cache(*m.pool, {.device_slots = 2, .host_bytes = GetParam()});
  for (const int point : points) {
    SequenceState first(*m.pool);
    m.feed(first, {prompt.begin(), prompt.begin() + point});
    cache.insert("", std::span(prompt).first(static_cast<std::size_t>(point)), first);
  }
  SequenceState cold(*m.pool);
  const std::vector<float> expected = m.feed(cold, prompt);
  const auto vocab = static_cast<std::size_t>(m.config.vocab_size);
  int found = 0;
  for (const int point : points) {
    const std::vector<int> part{prompt.begin(), prompt.begin() + point + 1};
    const PrefixCache::Match match = cache.find("", part);
    if (match.length() != point) continue;  // evicted
    ++found;
    SequenceState warm(*m.pool);
    cache.resume(match, warm);
    const std::vector<float> got = m.feed(warm, {prompt.begin() + point, prompt.end()});
    ASSERT_EQ(got.size() + static_cast<std::size_t>(point) * vocab, expected.size());
    EXPECT_EQ(0, std::memcmp(got.data(), expected.data() + static_cast<std::size_t>(point) * vocab, got.size() * sizeof(float))) << point;
    EXPECT_EQ(warm.checksums(), cold.checksums()) << point;
  }
  EXPECT_EQ(found, GetParam() > 0 ? static_cast<int>(points.size()) : 2);
}

TEST_P(WarmStart, points_saved_inside_a_chunk_equal_cold) {
  LoadedModel& m = model();
  const int page = m.backend->state_layout().page_tokens;
  const std::vector<int> prompt = ids(2, 3 * page + 5);
  PrefixCache cache(*m.pool, {.device_slots = 3, .host_bytes = GetParam()});
  SequenceState first(*m.pool);
  std::vector<StateSave> saves;
  for (int p = 1; p <= 3; ++p) saves.push_back({p * page - 1, *cache.take_slot()});
  Stepper stepper(*m.pool);
  const StepRequest request{&first, prompt, LogitsWanted::kLast, saves};
  stepper.run({&request, 1});
  for (const StateSave& save : saves)
    cache.insert_saved("", std::span(prompt).first(static_cast<std::size_t>(save.row + 1)), save.slot, first.pages());
  for (int p = 1; p <= 3; ++p) {
    if (GetParam() > 0) cache.evict_one();
    std::vector<int> other{prompt.begin(), prompt.begin() + p * page};
    const std::vector<int> rest = ids(30 + static_cast<unsigned>(p), 40);
    other.insert(other.end(), rest.begin(), rest.end());
    const PrefixCache::Match match = cache.find("", other);
    ASSERT_EQ(match.length(), p * page);
    SequenceState warm(*m.pool), cold(*m.pool);
    cache.resume(match, warm);
    m.feed(warm, rest);
    m.feed(cold, other);
    EXPECT_EQ(warm.checksums(), cold.checksums()) << p;
  }
}

INSTANTIATE_TEST_SUITE_P(tiers, WarmStart, ::testing::Values(std::size_t{0}, std::size_t{1} << 28),
                         [](const auto& p) { return p.param == 0 ? "device" : "device_and_host"; });

}  // namespace
}  // namespace tetrad::warm_start_test

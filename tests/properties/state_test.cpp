// What must hold to the bit however a sequence came to its present point: any chunking, any neighbours, fork, rollback, snapshot.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "support/loaded_model.h"

namespace tetrad::state_test {
namespace {

using test::LoadedModel;

struct Case {
  const char* name;
  int tokens;  // past the budget and, for rand-heads, past a page
};

class State : public ::testing::TestWithParam<Case> {
 protected:
  static LoadedModel& model() {
    static std::map<std::string, std::unique_ptr<LoadedModel>> models;
    auto& entry = models[GetParam().name];
    if (!entry) entry = std::make_unique<LoadedModel>(test::golden_directory(GetParam().name));
    return *entry;
  }
  static std::vector<int> ids(unsigned seed, int count) {
    return test::random_ids(count, model().config.vocab_size, seed, model().config.ple_eos_token);
  }
};

void expect_same_state(const SequenceState& got, const SequenceState& expected, const std::string& what) {
  ASSERT_EQ(got.length(), expected.length()) << what;
  const auto a = got.checksums(), b = expected.checksums();
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].second, b[i].second) << what << ": " << state_kind_name(a[i].first);
}

void expect_same_bits(const std::vector<float>& got, const std::vector<float>& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  EXPECT_EQ(0, std::memcmp(got.data(), expected.data(), got.size() * sizeof(float))) << what;
}

TEST_P(State, any_chunking_equals_one_shot) {
  const std::vector<int> prompt = ids(1, GetParam().tokens);
  SequenceState whole(*model().pool);
  const std::vector<float> expected = model().feed(whole, prompt);
  std::vector<int> sizes{63, 64, 65};
  for (int chunk = 1; chunk <= 20; ++chunk) sizes.push_back(chunk);
  for (const int chunk : sizes) {
    SequenceState pieces(*model().pool);
    expect_same_bits(model().feed(pieces, prompt, chunk), expected, "chunks of " + std::to_string(chunk));
    expect_same_state(pieces, whole, "chunks of " + std::to_string(chunk));
  }
}

TEST_P(State, alone_equals_in_a_batch) {
  // Four sequences of different lengths; steps mix prefill chunks and single rows of all of them.
  LoadedModel& m = model();
  const std::vector<int> lengths{GetParam().tokens, 5, 33, 64};
  std::vector<std::vector<int>> prompts;
  std::vector<std::vector<float>> expected, got(lengths.size());
  std::vector<SequenceState> solo, batched;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    prompts.push_back(ids(10 + static_cast<unsigned>(i), lengths[i]));
    solo.emplace_back(*m.pool);
    expected.push_back(m.feed(solo.back(), prompts.back()));
    batched.emplace_back(*m.pool);
  }
  Stepper stepper(*m.pool);
  std::vector<std::size_t> fed(lengths.size(), 0);
  for (unsigned turn = 0;; ++turn) {
    std::vector<StepRequest> requests;
    std::vector<std::size_t> who;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const std::size_t size = std::min<std::size_t>(prompts[i].size() - fed[i], (turn + i) % 3 == 0 ? 1 : 7 + i);
      if (size == 0) continue;
      requests.push_back({&batched[i], std::span(prompts[i]).subspan(fed[i], size), LogitsWanted::kAll});
      who.push_back(i);
      fed[i] += size;
    }
    if (requests.empty()) break;
    const auto outcomes = stepper.run(requests);
    for (std::size_t r = 0; r < who.size(); ++r)
      got[who[r]].insert(got[who[r]].end(), outcomes[r].logits.begin(), outcomes[r].logits.end());
  }
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    expect_same_bits(got[i], expected[i], "sequence " + std::to_string(i));
    expect_same_state(batched[i], solo[i], "sequence " + std::to_string(i));
  }
}

TEST_P(State, fork_equals_the_original) {
  LoadedModel& m = model();
  for (const int length : {1, 2, 3, 4, 7, 63, 64, 65, GetParam().tokens}) {
    const std::vector<int> prompt = ids(2, length), other = ids(3, 30), next = ids(4, 30);
    SequenceState original(*m.pool);
    m.feed(original, prompt);
    SequenceState fork = original.fork();
    expect_same_state(fork, original, "fork at " + std::to_string(length));
    m.feed(fork, other);  // must not disturb the original
    SequenceState untouched(*m.pool);
    m.feed(untouched, prompt);
    expect_same_bits(m.feed(original, next), m.feed(untouched, next), "original after a fork at " + std::to_string(length));
    expect_same_state(original, untouched, "original after a fork at " + std::to_string(length));
    SequenceState direct(*m.pool);
    m.feed(direct, prompt);
    m.feed(direct, other);
    expect_same_state(fork, direct, "fork continued at " + std::to_string(length));
  }
}

TEST_P(State, rollback_and_replay_equals_never_having_gone) {
  LoadedModel& m = model();
  for (const int length : {0, 1, 3, 4, 62, 63, 64, GetParam().tokens}) {
    for (const int excursion : {1, 2, 5, 70}) {
      const std::vector<int> prompt = ids(5, length), wrong = ids(6, excursion), right = ids(7, 9);
      SequenceState gone(*m.pool), stayed(*m.pool);
      m.feed(gone, prompt);
      m.feed(stayed, prompt);
      gone.mark();
      m.feed(gone, wrong);
      gone.rollback();
      expect_same_state(gone, stayed, "rolled back");
      expect_same_bits(m.feed(gone, right), m.feed(stayed, right), "replayed");
      expect_same_state(gone, stayed, "replayed");
    }
  }
}

TEST_P(State, commit_keeps_the_marked_tokens) {
  LoadedModel& m = model();
  SequenceState marked(*m.pool), plain(*m.pool);
  const int slots = m.pool->free_slots();
  const std::vector<int> first = ids(8, 21), second = ids(9, 11);
  m.feed(marked, first);
  marked.mark();
  m.feed(marked, second);
  marked.commit();
  m.feed(plain, first);
  m.feed(plain, second);
  expect_same_state(marked, plain, "committed");
  EXPECT_EQ(m.pool->free_slots(), slots);
}

TEST_P(State, snapshot_other_work_restore_equals_undisturbed) {
  LoadedModel& m = model();
  const std::vector<int> prompt = ids(11, GetParam().tokens), next = ids(12, 20);
  SequenceState undisturbed(*m.pool);
  m.feed(undisturbed, prompt);
  StateSnapshot snapshot;
  {
    SequenceState first(*m.pool);
    m.feed(first, prompt);
    snapshot = first.snapshot();
  }
  SequenceState other(*m.pool);
  m.feed(other, ids(13, 100));  // takes the pages and slots that were given back
  SequenceState restored(*m.pool);
  m.feed(restored, ids(14, 3));
  restored.restore(snapshot);
  expect_same_state(restored, undisturbed, "restored");
  expect_same_bits(m.feed(restored, next), m.feed(undisturbed, next), "continued");
  expect_same_state(restored, undisturbed, "continued");
}

TEST_P(State, saves_within_a_step_equal_stopping_there) {
  LoadedModel& m = model();
  const std::vector<int> prompt = ids(15, 40);
  SequenceState state(*m.pool);
  state.prepare(40);
  std::vector<StateSave> saves;
  for (const int row : {0, 2, 3, 16, 39}) saves.push_back({row, m.pool->take_slot()});
  m.backend->step({.token_ids = prompt,
                   .sequences =
                       std::vector<SequenceRows>{
                           {.first_row = 0, .num_rows = 40, .start = 0, .slot = state.slot(), .pages = state.pages(), .saves = saves}},
                   .logit_rows = {}},
                  {});
  state.advance(40);
  const std::size_t bytes = m.backend->state_layout().slot_bytes;
  for (const StateSave& save : saves) {
    SequenceState stopped(*m.pool);
    m.feed(stopped, {prompt.begin(), prompt.begin() + save.row + 1});
    std::vector<std::byte> saved(bytes), expected(bytes);
    m.backend->read_slot(save.slot, saved);
    m.backend->read_slot(stopped.slot(), expected);
    for (const StateSection& section : m.backend->state_layout().slot_sections)
      EXPECT_EQ(0, std::memcmp(saved.data() + section.offset, expected.data() + section.offset, section.bytes))
          << section.name << " after row " << save.row;
    m.pool->release_slot(save.slot);
  }
}

TEST_P(State, pages_and_slots_return_to_the_pool) {
  LoadedModel& m = model();
  const int slots = m.pool->free_slots(), pages = m.pool->free_pages();
  {
    SequenceState a(*m.pool);
    m.feed(a, ids(16, 130));
    SequenceState b = a.fork();
    m.feed(b, ids(17, 3));
    a.mark();
    m.feed(a, ids(18, 70));
    a.rollback();
    b.clear();
    SequenceState c = std::move(a);
    EXPECT_EQ(c.length(), 130);
  }
  EXPECT_EQ(m.pool->free_slots(), slots);
  EXPECT_EQ(m.pool->free_pages(), pages);
}

TEST_P(State, selection_within_the_budget_is_dense_attention) {
  // With a budget no prompt reaches every token is attended; up to the real budget the two must not differ, past it they must.
  LoadedModel& m = model();
  Config dense_config = m.config;
  dense_config.index_budget = 1024 * dense_config.compress_ratio;
  LoadedModel dense(test::golden_directory(GetParam().name), LoadedModel::default_options(), dense_config);
  const int reach = m.config.index_budget + m.config.compress_ratio - 1;  // the longest prefix that no selection cuts
  const std::vector<int> prompt = ids(19, reach + 40);
  SequenceState sparse(*m.pool);
  const std::vector<float> a = m.feed(sparse, prompt);
  SequenceState every(*dense.pool);
  const std::vector<float> b = dense.feed(every, prompt);
  const std::size_t cut = static_cast<std::size_t>(reach) * static_cast<std::size_t>(m.config.vocab_size);
  EXPECT_EQ(0, std::memcmp(a.data(), b.data(), cut * sizeof(float)));
  EXPECT_NE(0, std::memcmp(a.data() + cut, b.data() + cut, (a.size() - cut) * sizeof(float)));
}

INSTANTIATE_TEST_SUITE_P(goldens, State, ::testing::Values(Case{"rand-small", 90}, Case{"rand-heads", 150}),
                         [](const auto& p) { return std::string(p.param.name) == "rand-small" ? "rand_small" : "rand_heads"; });

}  // namespace
}  // namespace tetrad::state_test

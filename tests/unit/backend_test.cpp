// The contract of Backend::step on the CPU: what breaks it is refused, and nothing has changed then.
#include "model/backend.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "cpu/cpu_backend.h"
#include "support/loaded_model.h"

namespace tetrad::backend_test {
namespace {

using test::LoadedModel;

std::vector<std::byte> everything(Backend& backend) {
  std::vector<std::byte> all;
  const StateLayout& layout = backend.state_layout();
  std::vector<std::byte> slot(layout.slot_bytes), page(layout.page_bytes);
  for (int s = 0; s < backend.num_slots(); ++s) backend.read_slot(s, slot), all.insert(all.end(), slot.begin(), slot.end());
  for (int p = 0; p < backend.num_pages(); ++p) backend.read_page(p, page), all.insert(all.end(), page.begin(), page.end());
  return all;
}

// Two sequences of 5 and 9 tokens in slots 0 and 1, and a step that is right: 2 rows of the first, 3 of the second.
class Contract : public ::testing::Test {
 protected:
  static LoadedModel& model() {
    static LoadedModel m(test::golden_directory("rand-small"), {.num_slots = 4, .max_tokens = 256, .max_rows = 32, .num_threads = 2});
    return m;
  }

  void SetUp() override {
    Backend& b = *model().backend;
    b.clear_slot(0);
    b.clear_slot(1);
    feed(0, {0}, 5);
    feed(1, {1}, 9);
  }

  static void feed(int slot, std::vector<int> pages, int count) {
    const SequenceRows rows{.first_row = 0, .num_rows = count, .start = 0, .slot = slot, .pages = pages, .saves = {}};
    const std::vector<int> ids = test::random_ids(count, model().config.vocab_size, 3);
    model().backend->step({.token_ids = ids, .sequences = {&rows, 1}, .logit_rows = {}}, {});
  }

  StepResult run() {
    first_.pages = pages_[0], second_.pages = pages_[1];
    first_.saves = saves_[0], second_.saves = saves_[1];
    const std::vector<SequenceRows> sequences = swapped_ ? std::vector{second_, first_} : std::vector{first_, second_};
    std::vector<float> logits(logits_size_);
    return model().backend->step({.token_ids = ids_, .sequences = sequences, .logit_rows = logit_rows_}, logits);
  }

  template <class E>
  void expect_refused(const std::string& says) {
    const std::vector<std::byte> before = everything(*model().backend);
    try {
      run();
      ADD_FAILURE() << "accepted; expected: " << says;
    } catch (const E& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
    EXPECT_TRUE(everything(*model().backend) == before) << "state has changed: " << says;
  }

  std::vector<int> ids_{1, 2, 3, 4, 5};
  std::vector<int> logit_rows_{1, 4};
  std::size_t logits_size_ = 2 * 256;
  SequenceRows first_{.first_row = 0, .num_rows = 2, .start = 5, .slot = 0, .pages = {}, .saves = {}};
  SequenceRows second_{.first_row = 2, .num_rows = 3, .start = 9, .slot = 1, .pages = {}, .saves = {}};
  std::vector<int> pages_[2] = {{0}, {1}};
  std::vector<StateSave> saves_[2];
  bool swapped_ = false;
};

TEST_F(Contract, the_step_itself_is_right) {
  const std::vector<std::byte> before = everything(*model().backend);
  EXPECT_TRUE(run().faults.empty());
  EXPECT_FALSE(everything(*model().backend) == before);
}

TEST_F(Contract, a_step_of_nothing_is_legal) {
  const std::vector<std::byte> before = everything(*model().backend);
  EXPECT_TRUE(model().backend->step({}, {}).faults.empty());
  EXPECT_TRUE(everything(*model().backend) == before);
}

TEST_F(Contract, wrong_start) {
  for (const int start : {0, 8, 10, -1}) second_.start = start, expect_refused<InternalError>("slot 1 holds 9 tokens");
}

TEST_F(Contract, rows_that_overlap_or_leave_gaps) {
  second_.first_row = 1;
  expect_refused<InternalError>("where row 2 comes next");
  second_.first_row = 3;
  expect_refused<InternalError>("where row 2 comes next");
  second_.first_row = 2;
  second_.num_rows = 2;
  expect_refused<InternalError>("cover 4 of 5 rows");
  second_.num_rows = 4;
  expect_refused<InternalError>("cover 6 of 5 rows");
  second_.num_rows = 0;
  expect_refused<InternalError>("rows 2+0");
  second_.num_rows = -3;
  expect_refused<InternalError>("rows 2+-3");
  second_.num_rows = 3;
  swapped_ = true;
  expect_refused<InternalError>("where row 0 comes next");
}

TEST_F(Contract, pages) {
  pages_[1].clear();
  expect_refused<InternalError>("0 pages cover 0 of 12");
  for (const int bad : {-1, model().backend->num_pages()}) pages_[1] = {bad}, expect_refused<InternalError>("page");
  pages_[1] = {1, -5};
  expect_refused<InternalError>("page -5");
  pages_[1].assign(static_cast<std::size_t>(model().backend->num_pages()) + 1, 1);
  expect_refused<InternalError>("pages");
}

TEST_F(Contract, slots) {
  for (const int bad : {-1, model().backend->num_slots()}) second_.slot = bad, expect_refused<InternalError>("slot");
  second_.slot = 0;
  second_.start = 5;
  expect_refused<InternalError>("slot 0");  // of both sequences
}

TEST_F(Contract, saves) {
  saves_[1] = {{1, 1}};
  expect_refused<InternalError>("into slot 1");
  saves_[1] = {{1, 0}};
  expect_refused<InternalError>("slot 0");  // which the other sequence is in
  saves_[0] = {{1, 1}}, saves_[1].clear();
  expect_refused<InternalError>("slot 1");
  saves_[0].clear();
  for (const int bad : {-1, 4}) saves_[1] = {{1, bad}}, expect_refused<InternalError>("into slot");
  for (const int bad : {-1, 3}) saves_[1] = {{bad, 2}}, expect_refused<InternalError>("after row");
  saves_[1] = {{1, 2}, {1, 3}};
  expect_refused<InternalError>("after row");
  saves_[1] = {{2, 2}, {1, 3}};
  expect_refused<InternalError>("after row");
}

TEST_F(Contract, token_ids) {
  for (const int bad : {-1, 256, 1 << 30}) ids_[4] = bad, expect_refused<InputError>("at row 4 is outside the vocabulary of 256");
}

TEST_F(Contract, logit_rows) {
  for (const auto& rows : {std::vector{1, 5}, {4, 1}, {1, 1}, {-1, 1}}) logit_rows_ = rows, expect_refused<InternalError>("logit row");
  logit_rows_ = {1, 4};
  logits_size_ = 2 * 256 - 1;
  expect_refused<InternalError>("511 logits for 2 rows");
}

TEST_F(Contract, too_many_rows) {
  ids_.assign(33, 1);
  second_.num_rows = 31;
  expect_refused<InternalError>("33 rows in a step of at most 32");
}

TEST_F(Contract, positions_past_the_model) {
  std::vector<std::byte> slot(model().backend->state_layout().slot_bytes);
  model().backend->read_slot(1, slot);
  const std::int64_t length = model().config.max_positions - 2;
  std::memcpy(slot.data() + model().backend->state_layout().slot_section(StateKind::kPositions, -1).offset, &length, sizeof(length));
  model().backend->write_slot(1, slot);
  second_.start = static_cast<int>(length);
  expect_refused<InputError>("position 4096 is past the model's 4096 positions");
}

TEST_F(Contract, state_movement_checks_its_arguments) {
  Backend& b = *model().backend;
  const std::vector<std::byte> before = everything(b);
  std::vector<std::byte> slot(b.state_layout().slot_bytes), page(b.state_layout().page_bytes), none;
  for (const int bad : {-1, b.num_slots()}) {
    EXPECT_THROW(b.clear_slot(bad), InternalError);
    EXPECT_THROW(b.copy_slot(bad, 0), InternalError);
    EXPECT_THROW(b.copy_slot(0, bad), InternalError);
    EXPECT_THROW(b.read_slot(bad, slot), InternalError);
    EXPECT_THROW(b.write_slot(bad, slot), InternalError);
  }
  for (const int bad : {-1, b.num_pages()}) {
    EXPECT_THROW(b.copy_page(bad, 0), InternalError);
    EXPECT_THROW(b.copy_page(0, bad), InternalError);
    EXPECT_THROW(b.read_page(bad, page), InternalError);
    EXPECT_THROW(b.write_page(bad, page), InternalError);
  }
  EXPECT_THROW(b.read_slot(0, none), InternalError);
  EXPECT_THROW(b.write_slot(0, none), InternalError);
  EXPECT_THROW(b.read_page(0, none), InternalError);
  EXPECT_THROW(b.write_page(0, none), InternalError);
  b.copy_slot(1, 1);
  b.copy_page(1, 1);
  EXPECT_TRUE(everything(b) == before);
}

// All pages may belong to one sequence, which is then longer than max_tokens: scratch must reach as far as the pages do.
TEST(backend, one_sequence_may_fill_every_page) {
  LoadedModel roomy(test::golden_directory("rand-small"), {.num_slots = 1, .max_tokens = 1024, .max_rows = 64, .num_threads = 2});
  LoadedModel tight(test::golden_directory("rand-small"), {.num_slots = 8, .max_tokens = 64, .max_rows = 64, .num_threads = 2});
  const int length = tight.backend->num_pages() * tight.backend->state_layout().page_tokens;
  ASSERT_GT(length, 64);
  const std::vector<int> ids = test::random_ids(length, roomy.config.vocab_size, 5);
  SequenceState a(*roomy.pool), b(*tight.pool);
  EXPECT_TRUE(roomy.feed(a, ids) == tight.feed(b, ids));
  EXPECT_EQ(a.checksums(), b.checksums());
  EXPECT_THROW(tight.feed(b, {1}), CapacityError);
}

TEST(backend, memory_plan_accounts_for_every_arena) {
  LoadedModel m(test::golden_directory("rand-small"), {.num_slots = 2, .max_tokens = 128, .max_rows = 8, .num_threads = 1});
  const MemoryPlan& plan = m.backend->memory_plan();
  std::size_t state = 0;
  for (const MemoryPlan::Row& row : plan.rows) {
    EXPECT_GT(row.bytes, 0u) << row.name;
    if (row.arena == "state") state += row.bytes;
    EXPECT_NE(plan.table().find(row.name), std::string::npos);
  }
  EXPECT_EQ(state, 2 * m.backend->state_layout().slot_bytes +
                       static_cast<std::size_t>(m.backend->num_pages()) * m.backend->state_layout().page_bytes);
  EXPECT_GE(plan.total_bytes(), state);
}

}  // namespace
}  // namespace tetrad::backend_test

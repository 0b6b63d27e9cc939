#include "engine/sequence_state.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cpu/cpu_backend.h"
#include "engine/stepper.h"
#include "io/checkpoint.h"
#include "model/load_weights.h"
#include "support/loaded_model.h"
#include "support/scripted_backend.h"

namespace tetrad::sequence_state_test {
namespace {

using testing::ScriptedBackend;

constexpr int kTokens = 70;  // past a page, with two raw index keys pending

// A model with a draft head's sections, which the forward leaves alone.
struct DraftModel {
  DraftModel() : config(load_config(test::golden_directory("rand-small") / "config.json")) {
    weights = load_weights(Checkpoint::open(test::golden_directory("rand-small")), config);
    config.mtp_layers = 1;
    backend = cpu::make_backend(config, weights, test::LoadedModel::default_options());
    pool = std::make_unique<StatePool>(*backend);
  }
  static DraftModel& shared() {
    static DraftModel model;
    return model;
  }
  void feed(SequenceState& state) { Stepper(*pool).prefill(state, test::random_ids(kTokens, config.vocab_size, 1)); }

  Config config;
  ModelWeights weights;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<StatePool> pool;
};

// One byte of a state, wherever it lies.
struct Place {
  StateKind kind;
  std::string name;
  bool paged;
  int page;  // into the sequence's pages
  std::size_t offset;
};

std::byte read(Backend& backend, const SequenceState& state, const Place& place) {
  std::vector<std::byte> bytes(place.paged ? backend.state_layout().page_bytes : backend.state_layout().slot_bytes);
  if (place.paged)
    backend.read_page(state.pages()[static_cast<std::size_t>(place.page)], bytes);
  else
    backend.read_slot(state.slot(), bytes);
  return bytes[place.offset];
}

void flip(Backend& backend, const SequenceState& state, const Place& place) {
  std::vector<std::byte> bytes(place.paged ? backend.state_layout().page_bytes : backend.state_layout().slot_bytes);
  const int page = place.paged ? state.pages()[static_cast<std::size_t>(place.page)] : -1;
  if (place.paged)
    backend.read_page(page, bytes);
  else
    backend.read_slot(state.slot(), bytes);
  bytes[place.offset] ^= std::byte{0x10};
  if (place.paged)
    backend.write_page(page, bytes);
  else
    backend.write_slot(state.slot(), bytes);
}

// First and last byte of every section; of paged ones, of the first and the last row below the length.
std::vector<Place> places(const StateLayout& layout) {
  std::vector<Place> all;
  for (const StateSection& s : layout.slot_sections)
    for (const std::size_t byte : {std::size_t{0}, s.bytes - 1}) all.push_back({s.kind, s.name, false, 0, s.offset + byte});
  for (const StateSection& s : layout.page_sections)
    for (const int row : {0, kTokens / s.tokens_per_row - 1}) {
      const int per_page = layout.page_tokens / s.tokens_per_row;
      const std::size_t first = s.offset + static_cast<std::size_t>(row % per_page) * s.row_bytes;
      for (const std::size_t byte : {std::size_t{0}, s.row_bytes - 1}) all.push_back({s.kind, s.name, true, row / per_page, first + byte});
    }
  return all;
}

TEST(sequence_state, a_flipped_byte_changes_the_checksum_of_its_kind_alone) {
  DraftModel& m = DraftModel::shared();
  SequenceState state(*m.pool);
  m.feed(state);
  const auto before = state.checksums();
  ASSERT_EQ(before.size(), 8u);
  std::vector<bool> seen(8, false);
  for (const Place& place : places(m.backend->state_layout())) {
    flip(*m.backend, state, place);
    const auto after = state.checksums();
    for (std::size_t i = 0; i < after.size(); ++i)
      EXPECT_EQ(after[i].second != before[i].second, after[i].first == place.kind)
          << place.name << " flipped, looking at " << state_kind_name(after[i].first);
    flip(*m.backend, state, place);
    seen[static_cast<std::size_t>(place.kind)] = true;
  }
  EXPECT_EQ(state.checksums(), before);
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 8) << "a kind has no section in this model";
}

TEST(sequence_state, bytes_past_the_length_do_not_count) {
  DraftModel& m = DraftModel::shared();
  SequenceState state(*m.pool);
  m.feed(state);
  const auto before = state.checksums();
  for (const StateSection& s : m.backend->state_layout().page_sections) {
    const int row = kTokens / s.tokens_per_row, per_page = m.backend->state_layout().page_tokens / s.tokens_per_row;
    flip(*m.backend, state, {s.kind, s.name, true, row / per_page, s.offset + static_cast<std::size_t>(row % per_page) * s.row_bytes});
  }
  EXPECT_EQ(state.checksums(), before);
}

// Whatever moves a sequence moves every byte of all eight states.
TEST(sequence_state, every_operation_carries_every_section) {
  DraftModel& m = DraftModel::shared();
  Backend& backend = *m.backend;
  for (const Place& place : places(backend.state_layout())) {
    SequenceState state(*m.pool);
    m.feed(state);
    flip(backend, state, place);
    const std::byte flipped = read(backend, state, place);
    const auto expected = state.checksums();

    SequenceState fork = state.fork();
    EXPECT_EQ(read(backend, fork, place), flipped) << "fork: " << place.name;
    EXPECT_EQ(fork.checksums(), expected) << "fork: " << place.name;
    fork.prepare(1);  // copies the shared last page
    EXPECT_NE(fork.pages().back(), state.pages().back());
    EXPECT_EQ(read(backend, fork, place), flipped) << "copy on write: " << place.name;
    EXPECT_EQ(fork.checksums(), expected) << "copy on write: " << place.name;

    const StateSnapshot snapshot = state.snapshot();
    SequenceState restored(*m.pool);
    restored.restore(snapshot);
    EXPECT_EQ(read(backend, restored, place), flipped) << "restore: " << place.name;
    EXPECT_EQ(restored.checksums(), expected) << "restore: " << place.name;

    state.mark();
    backend.write_slot(state.slot(), std::vector<std::byte>(backend.state_layout().slot_bytes, std::byte{0xa5}));
    state.rollback();
    EXPECT_EQ(read(backend, state, place), flipped) << "rollback: " << place.name;
    EXPECT_EQ(state.checksums(), expected) << "rollback: " << place.name;

    SequenceState other(*m.pool);
    other.prepare(kTokens);
    backend.copy_slot(other.slot(), state.slot());
    for (std::size_t p = 0; p < state.pages().size(); ++p) backend.copy_page(other.pages()[p], state.pages()[p]);
    other.advance(kTokens);
    EXPECT_EQ(read(backend, other, place), flipped) << "copy: " << place.name;
    EXPECT_EQ(other.checksums(), expected) << "copy: " << place.name;

    const SequenceState moved = std::move(other);
    EXPECT_EQ(moved.checksums(), expected) << "move: " << place.name;
  }
}

TEST(sequence_state, clear_leaves_nothing) {
  DraftModel& m = DraftModel::shared();
  SequenceState fresh(*m.pool), used(*m.pool);
  m.feed(used);
  for (const Place& place : places(m.backend->state_layout())) flip(*m.backend, used, place);
  used.clear();
  EXPECT_EQ(used.length(), 0);
  EXPECT_EQ(used.checksums(), fresh.checksums());
  std::vector<std::byte> a(m.backend->state_layout().slot_bytes), b(a.size());
  m.backend->read_slot(used.slot(), a);
  m.backend->read_slot(fresh.slot(), b);
  EXPECT_EQ(a, b);
}

ScriptedBackend scripted(int slots, int pages) {
  return ScriptedBackend({.num_slots = slots, .num_pages = pages}, [](std::span<const int>, std::span<float>) {});
}

constexpr int kPage = 8;  // tokens of a scripted page

TEST(state_pool, slots_and_pages_are_counted_and_checked) {
  ScriptedBackend backend = scripted(2, 3);
  StatePool pool(backend);
  const int a = pool.take_slot(), b = pool.take_slot();
  EXPECT_NE(a, b);
  EXPECT_THROW(pool.take_slot(), CapacityError);
  pool.release_slot(a);
  EXPECT_THROW(pool.release_slot(a), InternalError) << "twice";
  EXPECT_THROW(pool.release_slot(-1), InternalError);
  EXPECT_THROW(pool.release_slot(2), InternalError);
  EXPECT_EQ(pool.take_slot(), a);

  const int page = pool.take_page();
  EXPECT_EQ(pool.page_references(page), 1);
  pool.share_page(page);
  pool.release_page(page);
  EXPECT_EQ(pool.free_pages(), 2) << "still referenced";
  pool.release_page(page);
  EXPECT_EQ(pool.free_pages(), 3);
  EXPECT_THROW(pool.release_page(page), InternalError);
  EXPECT_THROW(pool.share_page(page), InternalError);
  EXPECT_THROW(pool.page_references(3), InternalError);
  for (int i = 0; i < 3; ++i) pool.take_page();
  EXPECT_THROW(pool.take_page(), CapacityError);
}

TEST(sequence_state, pages_are_taken_when_they_are_needed) {
  ScriptedBackend backend = scripted(4, 8);
  StatePool pool(backend);
  SequenceState state(pool);
  state.prepare(0);
  EXPECT_EQ(state.pages().size(), 0u);
  for (const auto& [tokens, pages] : {std::pair{1, 1}, {7, 1}, {1, 2}, {7, 2}, {16, 4}}) {
    state.prepare(tokens);
    state.advance(tokens);
    EXPECT_EQ(static_cast<int>(state.pages().size()), pages) << state.length();
  }
  EXPECT_THROW(state.prepare(4 * kPage + 1), CapacityError);
  EXPECT_EQ(state.pages().size(), 4u);
  EXPECT_EQ(pool.free_pages(), 4);
  state.prepare(4 * kPage);
  EXPECT_EQ(pool.free_pages(), 0);
}

TEST(sequence_state, a_shared_page_is_copied_only_before_it_is_written) {
  ScriptedBackend backend = scripted(4, 4);
  StatePool pool(backend);
  SequenceState state(pool);
  state.prepare(12);
  state.advance(12);
  SequenceState fork = state.fork();
  EXPECT_EQ(pool.free_pages(), 2) << "both pages shared";
  fork.prepare(1);
  EXPECT_EQ(fork.pages()[0], state.pages()[0]) << "a full page stays shared";
  EXPECT_NE(fork.pages()[1], state.pages()[1]);
  EXPECT_EQ(pool.page_references(state.pages()[1]), 1);
  const int own = state.pages()[1];
  state.prepare(1);
  EXPECT_EQ(state.pages()[1], own) << "no longer shared: nothing to copy";
  SequenceState second = fork.fork();
  state.prepare(4 + kPage);  // takes the last page
  EXPECT_THROW(second.prepare(1), CapacityError) << "no page to copy into";
  EXPECT_EQ(pool.page_references(fork.pages()[1]), 2) << "nothing has changed";
}

TEST(sequence_state, a_fork_at_a_page_border_shares_everything) {
  ScriptedBackend backend = scripted(2, 4);
  StatePool pool(backend);
  SequenceState state(pool);
  state.prepare(2 * kPage);
  state.advance(2 * kPage);
  SequenceState fork = state.fork();
  fork.prepare(1);
  EXPECT_EQ(pool.free_pages(), 1);
  EXPECT_EQ(fork.pages()[1], state.pages()[1]);
}

TEST(sequence_state, marks_are_checked) {
  ScriptedBackend backend = scripted(2, 4);
  StatePool pool(backend);
  SequenceState state(pool);
  EXPECT_THROW(state.commit(), InternalError);
  EXPECT_THROW(state.rollback(), InternalError);
  state.mark();
  EXPECT_THROW(state.mark(), InternalError);
  EXPECT_THROW(state.fork(), InternalError);
  EXPECT_EQ(pool.free_slots(), 0);
  state.prepare(9);
  state.advance(9);
  state.rollback();
  EXPECT_EQ(state.length(), 0);
  EXPECT_EQ(pool.free_pages(), 4);
  EXPECT_EQ(pool.free_slots(), 1);
  SequenceState other(pool);
  EXPECT_THROW(state.mark(), CapacityError);
  EXPECT_FALSE(state.marked());
  EXPECT_THROW(state.fork(), CapacityError);
}

TEST(sequence_state, restore_checks_before_it_changes) {
  ScriptedBackend backend = scripted(3, 4);
  StatePool pool(backend);
  SequenceState state(pool), other(pool);
  state.prepare(3 * kPage);
  state.advance(3 * kPage);
  const StateSnapshot big = state.snapshot();
  StateSnapshot damaged = big;
  damaged.pages.pop_back();
  EXPECT_THROW(other.restore(damaged), InternalError);
  damaged = big;
  damaged.slot.push_back(std::byte{});
  EXPECT_THROW(other.restore(damaged), InternalError);
  damaged = big;
  damaged.length = 4 * kPage;
  EXPECT_THROW(other.restore(damaged), InternalError);
  EXPECT_THROW(other.restore(big), CapacityError) << "one page is free, three are needed";
  EXPECT_EQ(other.length(), 0);
  EXPECT_EQ(pool.free_pages(), 1);
  state.restore(big);  // into its own pages
  EXPECT_EQ(state.length(), 3 * kPage);
  EXPECT_EQ(pool.free_pages(), 1);
  state.mark();
  state.restore(big);
  EXPECT_FALSE(state.marked());
}

TEST(sequence_state, moving_leaves_nothing_behind) {
  ScriptedBackend backend = scripted(3, 4);
  StatePool pool(backend);
  {
    SequenceState a(pool), b(pool);
    a.prepare(9);
    a.advance(9);
    a.mark();
    b.prepare(1);
    b.advance(1);
    b = std::move(a);
    EXPECT_EQ(b.length(), 9);
    EXPECT_TRUE(b.marked());
    EXPECT_EQ(pool.free_pages(), 2);
    EXPECT_EQ(pool.free_slots(), 1);
    SequenceState& self = b;
    b = std::move(self);
    EXPECT_EQ(b.length(), 9);
  }
  EXPECT_EQ(pool.free_pages(), 4);
  EXPECT_EQ(pool.free_slots(), 3);
}

}  // namespace
}  // namespace tetrad::sequence_state_test

#include "engine/sequence_state.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace tetrad {
namespace {

constexpr std::uint64_t kFnvOffset = 0xcbf29ce484222325u, kFnvPrime = 0x100000001b3u;

void hash_bytes(std::uint64_t& hash, const std::byte* bytes, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) hash = (hash ^ static_cast<std::uint64_t>(bytes[i])) * kFnvPrime;
}

int pages_needed(int tokens, int page_tokens) { return (tokens + page_tokens - 1) / page_tokens; }

}  // namespace

StatePool::StatePool(Backend& backend)
    : backend_(&backend),
      page_references_(static_cast<std::size_t>(backend.num_pages()), 0),
      slot_taken_(static_cast<std::size_t>(backend.num_slots()), false) {
  for (int s = backend.num_slots(); s-- > 0;) free_slots_.push_back(s);
  for (int p = backend.num_pages(); p-- > 0;) free_pages_.push_back(p);
}

int StatePool::take_slot() {
  if (free_slots_.empty()) fail<CapacityError>("all {} state slots are in use", backend_->num_slots());
  const int slot = free_slots_.back();
  free_slots_.pop_back();
  slot_taken_[static_cast<std::size_t>(slot)] = true;
  return slot;
}

void StatePool::release_slot(int slot) {
  TETRAD_CHECK(slot >= 0 && slot < backend_->num_slots() && slot_taken_[static_cast<std::size_t>(slot)], "slot {} is not taken", slot);
  slot_taken_[static_cast<std::size_t>(slot)] = false;
  free_slots_.push_back(slot);
}

int StatePool::take_page() {
  if (free_pages_.empty()) fail<CapacityError>("all {} state pages are in use", backend_->num_pages());
  const int page = free_pages_.back();
  free_pages_.pop_back();
  page_references_[static_cast<std::size_t>(page)] = 1;
  return page;
}

void StatePool::share_page(int page) {
  TETRAD_CHECK(page_references(page) > 0, "page {} is free", page);
  ++page_references_[static_cast<std::size_t>(page)];
}

void StatePool::release_page(int page) {
  TETRAD_CHECK(page_references(page) > 0, "page {} is free", page);
  if (--page_references_[static_cast<std::size_t>(page)] == 0) free_pages_.push_back(page);
}

int StatePool::page_references(int page) const {
  TETRAD_CHECK(page >= 0 && page < backend_->num_pages(), "page {} of {}", page, backend_->num_pages());
  return page_references_[static_cast<std::size_t>(page)];
}

SequenceState::SequenceState(StatePool& pool) : pool_(&pool), slot_(pool.take_slot()) { pool.backend().clear_slot(slot_); }

SequenceState::SequenceState(SequenceState&& other) noexcept
    : pool_(other.pool_),
      slot_(std::exchange(other.slot_, -1)),
      length_(std::exchange(other.length_, 0)),
      mark_slot_(std::exchange(other.mark_slot_, -1)),
      mark_length_(std::exchange(other.mark_length_, 0)),
      pages_(std::move(other.pages_)) {
  other.pages_.clear();
}

SequenceState& SequenceState::operator=(SequenceState&& other) noexcept {
  if (this == &other) return *this;
  release();
  pool_ = other.pool_;
  slot_ = std::exchange(other.slot_, -1);
  length_ = std::exchange(other.length_, 0);
  mark_slot_ = std::exchange(other.mark_slot_, -1);
  mark_length_ = std::exchange(other.mark_length_, 0);
  pages_ = std::exchange(other.pages_, {});
  return *this;
}

SequenceState::~SequenceState() { release(); }

void SequenceState::release() {
  truncate_pages(0);
  if (mark_slot_ >= 0) pool_->release_slot(mark_slot_);
  if (slot_ >= 0) pool_->release_slot(slot_);
  mark_slot_ = slot_ = -1;
  length_ = mark_length_ = 0;
}

void SequenceState::truncate_pages(int length) {
  const auto keep = static_cast<std::size_t>(pages_needed(length, pool_->layout().page_tokens));
  while (pages_.size() > keep) {
    pool_->release_page(pages_.back());
    pages_.pop_back();
  }
}

int SequenceState::pages_to_prepare(int num_tokens) const {
  const int have = static_cast<int>(pages_.size());
  const int need = pages_needed(length_ + num_tokens, pool_->layout().page_tokens);
  return std::max(need - have, 0) + (copies_to_write(num_tokens) ? 1 : 0);
}

bool SequenceState::copies_to_write(int num_tokens) const {
  const auto first_written = static_cast<std::size_t>(length_ / pool_->layout().page_tokens);
  return num_tokens > 0 && first_written < pages_.size() && pool_->page_references(pages_[first_written]) > 1;
}

void SequenceState::prepare(int num_tokens) {
  TETRAD_CHECK(num_tokens >= 0 && slot_ >= 0, "{} tokens, slot {}", num_tokens, slot_);
  const int page_tokens = pool_->layout().page_tokens;
  const int need = pages_needed(length_ + num_tokens, page_tokens);
  const int wanted = pages_to_prepare(num_tokens);
  if (wanted > pool_->free_pages()) fail<CapacityError>("{} state pages needed, {} free", wanted, pool_->free_pages());
  if (copies_to_write(num_tokens)) {
    int& page = pages_[static_cast<std::size_t>(length_ / page_tokens)];
    const int fresh = pool_->take_page();
    pool_->backend().copy_page(fresh, page);
    pool_->release_page(page);
    page = fresh;
  }
  while (static_cast<int>(pages_.size()) < need) pages_.push_back(pool_->take_page());
}

void SequenceState::advance(int num_tokens) { length_ += num_tokens; }

SequenceState SequenceState::fork() const {
  TETRAD_CHECK(!marked(), "a marked sequence of {} tokens cannot be forked", length_);
  SequenceState copy(*pool_);
  pool_->backend().copy_slot(copy.slot_, slot_);
  copy.length_ = length_;
  const auto used = static_cast<std::size_t>(pages_needed(length_, pool_->layout().page_tokens));
  for (std::size_t p = 0; p < used; ++p) {
    pool_->share_page(pages_[p]);
    copy.pages_.push_back(pages_[p]);
  }
  return copy;
}

void SequenceState::adopt(int length, std::vector<int> pages) {
  TETRAD_CHECK(slot_ >= 0 && length_ == 0 && pages_.empty() && !marked(), "a sequence of {} tokens adopts {}", length_, length);
  TETRAD_CHECK(static_cast<int>(pages.size()) == pages_needed(length, pool_->layout().page_tokens), "{} pages for {} tokens", pages.size(),
               length);
  pages_ = std::move(pages);
  length_ = length;
}

void SequenceState::mark() {
  TETRAD_CHECK(!marked(), "already marked at {}", mark_length_);
  mark_slot_ = pool_->take_slot();
  pool_->backend().copy_slot(mark_slot_, slot_);
  mark_length_ = length_;
}

void SequenceState::commit() {
  TETRAD_CHECK(marked(), "commit without a mark");
  pool_->release_slot(std::exchange(mark_slot_, -1));
}

void SequenceState::rollback() {
  TETRAD_CHECK(marked(), "rollback without a mark");
  pool_->release_slot(slot_);
  slot_ = std::exchange(mark_slot_, -1);
  length_ = mark_length_;
  truncate_pages(length_);  // rows past length_ in the last page are stale; they are written again before they are read
}

StateSnapshot SequenceState::snapshot() const {
  const StateLayout& layout = pool_->layout();
  StateSnapshot snapshot;
  snapshot.length = length_;
  snapshot.slot.resize(layout.slot_bytes);
  pool_->backend().read_slot(slot_, snapshot.slot);
  const auto used = static_cast<std::size_t>(pages_needed(length_, layout.page_tokens));
  snapshot.pages.resize(used * layout.page_bytes);
  for (std::size_t p = 0; p < used; ++p)
    pool_->backend().read_page(pages_[p], std::span(snapshot.pages).subspan(p * layout.page_bytes, layout.page_bytes));
  return snapshot;
}

void SequenceState::restore(const StateSnapshot& snapshot) {
  const StateLayout& layout = pool_->layout();
  const int used = pages_needed(snapshot.length, layout.page_tokens);
  TETRAD_CHECK(snapshot.slot.size() == layout.slot_bytes && snapshot.pages.size() == static_cast<std::size_t>(used) * layout.page_bytes,
               "snapshot of {} tokens has {} + {} bytes", snapshot.length, snapshot.slot.size(), snapshot.pages.size());
  // The pages of the present state are given back first, so only what remains beyond them must be free.
  int released = 0;
  for (const int page : pages_) released += pool_->page_references(page) == 1 ? 1 : 0;
  if (used > pool_->free_pages() + released) fail<CapacityError>("{} state pages needed, {} free", used, pool_->free_pages() + released);
  if (marked()) commit();
  truncate_pages(0);
  pool_->backend().write_slot(slot_, snapshot.slot);
  length_ = snapshot.length;
  for (int p = 0; p < used; ++p) {
    pages_.push_back(pool_->take_page());
    pool_->backend().write_page(pages_.back(),
                                std::span(snapshot.pages).subspan(static_cast<std::size_t>(p) * layout.page_bytes, layout.page_bytes));
  }
}

void SequenceState::clear() {
  if (marked()) commit();
  truncate_pages(0);
  length_ = 0;
  pool_->backend().clear_slot(slot_);
}

std::vector<std::pair<StateKind, std::uint64_t>> SequenceState::checksums() const {
  const StateLayout& layout = pool_->layout();
  constexpr std::array kKinds{StateKind::kKv,      StateKind::kIndexKeys, StateKind::kPositions,    StateKind::kGdnState,
                              StateKind::kGdnConv, StateKind::kPleConv,   StateKind::kNgramHistory, StateKind::kDraft};
  std::array<std::uint64_t, kKinds.size()> hashes;
  hashes.fill(kFnvOffset);
  const StateSnapshot contents = snapshot();
  for (const StateSection& section : layout.slot_sections)
    hash_bytes(hashes[static_cast<std::size_t>(section.kind)], contents.slot.data() + section.offset, section.bytes);
  for (const StateSection& section : layout.page_sections) {
    const int rows = length_ / section.tokens_per_row;
    const int rows_per_page = layout.page_tokens / section.tokens_per_row;
    for (int row = 0; row < rows; ++row) {
      const std::size_t page = static_cast<std::size_t>(row / rows_per_page) * layout.page_bytes;
      hash_bytes(hashes[static_cast<std::size_t>(section.kind)],
                 contents.pages.data() + page + section.offset + static_cast<std::size_t>(row % rows_per_page) * section.row_bytes,
                 section.row_bytes);
    }
  }
  std::vector<std::pair<StateKind, std::uint64_t>> result;
  for (const StateKind kind : kKinds) result.emplace_back(kind, hashes[static_cast<std::size_t>(kind)]);
  return result;
}

}  // namespace tetrad

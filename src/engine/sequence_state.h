#pragma once
// One owner of everything a sequence carries: its slot (recurrent state) and its pages (K, V, block keys). All eight states of
// model/state_layout.h move together through the operations here, and only through them.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/backend.h"

namespace tetrad {

// No slot or page is left; the caller waits, evicts or refuses.
class CapacityError : public Error {
 public:
  using Error::Error;
};

// Free lists and reference counts over a backend's slots and pages. Not thread-safe: owned by the device's worker thread.
class StatePool {
 public:
  explicit StatePool(Backend& backend);
  StatePool(const StatePool&) = delete;
  StatePool& operator=(const StatePool&) = delete;

  Backend& backend() { return *backend_; }
  const StateLayout& layout() const { return backend_->state_layout(); }
  int free_slots() const { return static_cast<int>(free_slots_.size()); }
  int free_pages() const { return static_cast<int>(free_pages_.size()); }

  int take_slot();  // contents undefined; throws CapacityError
  void release_slot(int slot);
  int take_page();              // reference count 1; throws CapacityError
  void share_page(int page);    // one more reference
  void release_page(int page);  // freed at zero
  int page_references(int page) const;

 private:
  Backend* backend_;
  std::vector<int> free_slots_, free_pages_;
  std::vector<int> page_references_;
  std::vector<bool> slot_taken_;
};

// A sequence's state copied to host memory.
struct StateSnapshot {
  int length = 0;
  std::vector<std::byte> slot;
  std::vector<std::byte> pages;  // page_bytes each, in order
};

class SequenceState {
 public:
  explicit SequenceState(StatePool& pool);  // an empty sequence
  SequenceState(SequenceState&& other) noexcept;
  SequenceState& operator=(SequenceState&& other) noexcept;
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;
  ~SequenceState();

  int length() const { return length_; }  // tokens in the state
  int slot() const { return slot_; }
  std::span<const int> pages() const { return pages_; }

  // Makes positions [length, length + num_tokens) writable: takes pages, copies a shared page before it would be written.
  // All or nothing: on CapacityError nothing has changed.
  void prepare(int num_tokens);
  int pages_to_prepare(int num_tokens) const;  // free pages that prepare() takes
  // Gives back the pages past the length: prepare() took them for a step that did not happen.
  void trim() { truncate_pages(length_); }
  // The step wrote num_tokens more; called by Stepper after a successful step.
  void advance(int num_tokens);

  // A second sequence with the same past. Full pages are shared; the slot is copied.
  SequenceState fork() const;

  // An empty sequence becomes one of `length` tokens with these pages, one reference of each of which it takes over; the caller writes the
  // slot. A last page that others refer to as well is copied before it is written.
  void adopt(int length, std::vector<int> pages);

  // Marks the present point. rollback() returns to it, commit() gives it up. At most one mark; tokens after it stay provisional.
  void mark();
  bool marked() const { return mark_slot_ >= 0; }
  void commit();
  void rollback();

  StateSnapshot snapshot() const;               // to host memory
  void restore(const StateSnapshot& snapshot);  // replaces the present state; drops a mark
  void clear();                                 // empty sequence again, pages released

  // A hash of the logical contents of each state kind (only rows below length), in the order of StateKind.
  std::vector<std::pair<StateKind, std::uint64_t>> checksums() const;

 private:
  void release();
  void truncate_pages(int length);
  bool copies_to_write(int num_tokens) const;

  StatePool* pool_;
  int slot_ = -1;
  int length_ = 0;
  int mark_slot_ = -1, mark_length_ = 0;
  std::vector<int> pages_;
};

}  // namespace tetrad

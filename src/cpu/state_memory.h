#pragma once
// The memory of all slots and pages of the CPU backend, laid out by model/state_layout.h, and typed access to its sections.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "base/bf16.h"
#include "model/backend.h"
#include "model/state_layout.h"

namespace tetrad::cpu {

class StateMemory {
 public:
  StateMemory(const Config& config, StateLayout layout, int num_slots, int num_pages);

  const StateLayout& layout() const { return layout_; }
  int num_slots() const { return num_slots_; }
  int num_pages() const { return num_pages_; }
  std::size_t bytes() const {
    return static_cast<std::size_t>(num_slots_) * layout_.slot_bytes + static_cast<std::size_t>(num_pages_) * layout_.page_bytes;
  }

  std::byte* slot(int index);  // throws InternalError out of range
  std::byte* page(int index);
  const std::byte* slot(int index) const { return const_cast<StateMemory*>(this)->slot(index); }
  const std::byte* page(int index) const { return const_cast<StateMemory*>(this)->page(index); }

  // A section of a slot as elements of T.
  template <class T>
  T* section(int slot_index, StateKind kind, int layer) {
    return reinterpret_cast<T*>(slot(slot_index) + layout_.slot_section(kind, layer).offset);
  }
  void copy_section(int destination, int source, StateKind kind, int layer);

  std::int64_t& length(int slot_index) { return *section<std::int64_t>(slot_index, StateKind::kPositions, -1); }
  void clear_slot(int slot_index);  // zero, n-gram history = end of text

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  StateLayout layout_;
  int num_slots_, num_pages_;
  int ngram_history_, ple_eos_token_;
  std::unique_ptr<std::byte[], Free> memory_;
};

// The rows of a sequence between two save points: [begin, end) within the sequence, and the slot to copy to afterwards (-1: none).
template <class Body>
void for_each_segment(const SequenceRows& rows, Body body) {
  int begin = 0;
  for (const StateSave& save : rows.saves) {
    body(begin, save.row + 1, save.slot);
    begin = save.row + 1;
  }
  if (begin < rows.num_rows) body(begin, rows.num_rows, -1);
}

}  // namespace tetrad::cpu

#include "cpu/state_memory.h"

#include <cstdlib>
#include <new>

#include "base/error.h"

namespace tetrad::cpu {
namespace {

constexpr std::size_t kAlignment = 64;

}  // namespace

void StateMemory::Free::operator()(std::byte* p) const { std::free(p); }

StateMemory::StateMemory(const Config& config, StateLayout layout, int num_slots, int num_pages)
    : layout_(std::move(layout)),
      num_slots_(num_slots),
      num_pages_(num_pages),
      ngram_history_(config.ple_layers.empty() ? 0 : config.ngram_size - 1),
      ple_eos_token_(config.ple_eos_token) {
  const std::size_t size = (bytes() + kAlignment - 1) / kAlignment * kAlignment;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, size));
  if (memory == nullptr) fail<LoadError>("no memory for {} slots and {} pages of sequence state: {} bytes", num_slots, num_pages, size);
  std::memset(memory, 0, size);
  memory_.reset(memory);
  for (int s = 0; s < num_slots; ++s) clear_slot(s);
}

std::byte* StateMemory::slot(int index) {
  TETRAD_CHECK(index >= 0 && index < num_slots_, "slot {} of {}", index, num_slots_);
  return memory_.get() + static_cast<std::size_t>(index) * layout_.slot_bytes;
}

std::byte* StateMemory::page(int index) {
  TETRAD_CHECK(index >= 0 && index < num_pages_, "page {} of {}", index, num_pages_);
  return memory_.get() + static_cast<std::size_t>(num_slots_) * layout_.slot_bytes + static_cast<std::size_t>(index) * layout_.page_bytes;
}

void StateMemory::copy_section(int destination, int source, StateKind kind, int layer) {
  const StateSection& section = layout_.slot_section(kind, layer);
  if (section.bytes > 0 && destination != source)
    std::memcpy(slot(destination) + section.offset, slot(source) + section.offset, section.bytes);
}

void StateMemory::clear_slot(int slot_index) {
  std::memset(slot(slot_index), 0, layout_.slot_bytes);
  if (ngram_history_ == 0) return;
  auto* history = section<std::int32_t>(slot_index, StateKind::kNgramHistory, -1);
  for (int i = 0; i < ngram_history_; ++i) history[i] = ple_eos_token_;
}

}  // namespace tetrad::cpu

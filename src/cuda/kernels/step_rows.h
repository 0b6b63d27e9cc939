#pragma once
// What every kernel with sequence state knows of a step: arrays on the device, filled anew for each step at fixed addresses.
#include <cstddef>

namespace tetrad::cuda {

struct StepRows {
  int T = 0, B = 0;                // packed rows, sequences
  const int* token_ids = nullptr;  // [T] in [0, vocab_size)
  const int* sequence = nullptr;   // [T] in [0, B)
  const int* position = nullptr;   // [T]
  const int* save_slot = nullptr;  // [T] slot that also gets the recurrent state after this row; -1: none
  const int* first_row = nullptr;  // [B + 1]
  const int* start = nullptr;      // [B] tokens in the state before the step
  const int* slot = nullptr;       // [B] in [0, num_slots)
  const int* pages = nullptr;      // [B, max_pages] in [0, num_pages); page p holds positions p*page_tokens ..
  int max_pages = 0;

  std::byte* slots = nullptr;  // [num_slots, slot_bytes], laid out by model/state_layout.h
  std::byte* page_memory = nullptr;
  std::size_t slot_bytes = 0, page_bytes = 0;
  int num_slots = 0, num_pages = 0, page_tokens = 0, vocab_size = 0;
  // [T] 0, or 1 + the first layer (logits: num_layers) and kind of a non-finite row: kind in the low two bits, layer above.
  int* faults = nullptr;
};

enum class FaultKind { kIndexScores = 1, kRouterLogits = 2, kLogits = 3 };  // in the order in which a layer meets them

#if defined(__CUDACC__)
__device__ __forceinline__ std::byte* slot_memory(const StepRows& r, int slot) {
  if (slot < 0 || slot >= r.num_slots) __trap();
  return r.slots + static_cast<std::size_t>(slot) * r.slot_bytes;
}
__device__ __forceinline__ int sequence_of(const StepRows& r, int t) {
  const int b = r.sequence[t];
  if (b < 0 || b >= r.B) __trap();
  return b;
}
// Memory of the page that holds row `index` of a paged section with `per_page` rows a page.
__device__ __forceinline__ std::byte* page_of(const StepRows& r, int b, int index, int per_page) {
  const int p = index / per_page;
  if (index < 0 || p >= r.max_pages) __trap();
  const int page = r.pages[b * r.max_pages + p];
  if (page < 0 || page >= r.num_pages) __trap();
  return r.page_memory + static_cast<std::size_t>(page) * r.page_bytes;
}
// One thread per row and kernel calls this; kernels of a step run one after another, so the first fault stays.
__device__ __forceinline__ void record_fault(const StepRows& r, int t, int layer, FaultKind kind) {
  if (r.faults[t] == 0) r.faults[t] = layer << 2 | static_cast<int>(kind);
}
#endif

}  // namespace tetrad::cuda

#pragma once
// Where each of a sequence's states lies inside a slot and inside a page. One list of sections serves copying, snapshots, checksums and
// the memory plan, so no state can be left out of one of them.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace tetrad {

// The eight states that move together (docs/architecture.md).
enum class StateKind {
  kKv,            // K and V rows, paged
  kIndexKeys,     // compressed block keys (paged) and the raw keys of the block not yet complete (slot)
  kPositions,     // number of tokens in the sequence
  kGdnState,      // S [HV, K, V] f32
  kGdnConv,       // last W-1 rows before the convolution, bf16
  kPleConv,       // last ple_conv_rows() normed rows, bf16
  kNgramHistory,  // last ngram_size-1 token ids, int32, oldest first
  kDraft,         // the draft head's own caches
};
std::string_view state_kind_name(StateKind kind);

struct StateSection {
  StateKind kind;
  int layer = -1;          // -1: not of one layer
  std::string name;        // "layers.3.k", "positions"
  std::size_t offset = 0;  // bytes from the start of the slot or page
  std::size_t bytes = 0;
  std::size_t row_bytes = 0;  // pages: bytes of one row
  int tokens_per_row = 1;     // pages: 1 for K and V, R for block keys
};

struct StateLayout {
  int page_tokens = 0;  // a multiple of the compress ratio
  std::vector<StateSection> slot_sections;
  std::vector<StateSection> page_sections;
  std::size_t slot_bytes = 0;
  std::size_t page_bytes = 0;

  const StateSection& slot_section(StateKind kind, int layer) const;  // throws InternalError if there is none
  const StateSection& page_section(std::string_view name) const;
};

StateLayout make_state_layout(const Config& config);

}  // namespace tetrad

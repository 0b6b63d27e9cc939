#include "model/state_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace tetrad {
namespace {

constexpr std::size_t kSectionAlignment = 64;  // a cache line; also what vector loads of either backend need
constexpr int kPageTokensTarget = 64;          // small enough that a fork copies little, large enough that page lists stay short
constexpr std::size_t kBf16Bytes = 2, kF32Bytes = 4, kTokenBytes = 4;

std::size_t add_section(std::vector<StateSection>& sections, std::size_t total, StateSection section) {
  section.offset = total;
  const std::size_t end = total + section.bytes;
  sections.push_back(std::move(section));
  return (end + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment;
}

struct LayoutBuilder {
  const Config& config;
  StateLayout layout;

  void slot(StateKind kind, int layer, std::string name, std::size_t bytes) {
    layout.slot_bytes = add_section(layout.slot_sections, layout.slot_bytes, {kind, layer, std::move(name), 0, bytes, 0, 1});
  }

  void page(StateKind kind, int layer, std::string name, std::size_t row_bytes, int tokens_per_row) {
    const std::size_t rows = static_cast<std::size_t>(layout.page_tokens / tokens_per_row);
    layout.page_bytes = add_section(layout.page_sections, layout.page_bytes,
                                    {kind, layer, std::move(name), 0, rows * row_bytes, row_bytes, tokens_per_row});
  }

  // `kv` and `keys` differ from kKv and kIndexKeys for the draft head, whose caches are a kind of their own.
  void attention(int layer, const std::string& prefix, StateKind kv, StateKind keys) {
    const std::size_t kv_bytes = kBf16Bytes * static_cast<std::size_t>(config.num_kv_heads) * static_cast<std::size_t>(config.head_dim);
    const std::size_t key_bytes = kBf16Bytes * static_cast<std::size_t>(config.index_head_dim);
    page(kv, layer, prefix + ".k", kv_bytes, 1);
    page(kv, layer, prefix + ".v", kv_bytes, 1);
    page(keys, layer, prefix + ".block_keys", key_bytes, config.compress_ratio);
    slot(keys, layer, prefix + ".pending_index_keys", key_bytes * static_cast<std::size_t>(config.compress_ratio - 1));
  }
};

}  // namespace

std::string_view state_kind_name(StateKind kind) {
  switch (kind) {
    case StateKind::kKv: return "kv";
    case StateKind::kIndexKeys: return "index_keys";
    case StateKind::kPositions: return "positions";
    case StateKind::kGdnState: return "gdn_state";
    case StateKind::kGdnConv: return "gdn_conv";
    case StateKind::kPleConv: return "ple_conv";
    case StateKind::kNgramHistory: return "ngram_history";
    case StateKind::kDraft: return "draft";
  }
  fail<InternalError>("state kind {} has no name", static_cast<int>(kind));
}

const StateSection& StateLayout::slot_section(StateKind kind, int layer) const {
  for (const StateSection& section : slot_sections)
    if (section.kind == kind && section.layer == layer) return section;
  fail<InternalError>("no slot section of kind {} for layer {}", state_kind_name(kind), layer);
}

const StateSection& StateLayout::page_section(std::string_view name) const {
  for (const StateSection& section : page_sections)
    if (section.name == name) return section;
  fail<InternalError>("no page section named {}", name);
}

StateLayout make_state_layout(const Config& config) {
  LayoutBuilder builder{config, {}};
  const int ratio = std::max(config.compress_ratio, 1);
  builder.layout.page_tokens = (kPageTokensTarget + ratio - 1) / ratio * ratio;
  builder.slot(StateKind::kPositions, -1, "positions", sizeof(std::int64_t));
  if (!config.ple_layers.empty())
    builder.slot(StateKind::kNgramHistory, -1, "ngram_history", kTokenBytes * static_cast<std::size_t>(config.ngram_size - 1));
  const auto streams_bytes = kBf16Bytes * static_cast<std::size_t>(config.streams_size());
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = fmt::format("layers.{}", layer);
    if (config.has_ple(layer))
      builder.slot(StateKind::kPleConv, layer, prefix + ".ple_conv", streams_bytes * static_cast<std::size_t>(config.ple_conv_rows()));
    if (config.layer_kinds[static_cast<std::size_t>(layer)] == LayerKind::kQsa) {
      builder.attention(layer, prefix, StateKind::kKv, StateKind::kIndexKeys);
      continue;
    }
    builder.slot(StateKind::kGdnConv, layer, prefix + ".gdn_conv",
                 kBf16Bytes * static_cast<std::size_t>(config.gdn_conv_width - 1) * static_cast<std::size_t>(config.gdn_conv_dim()));
    builder.slot(StateKind::kGdnState, layer, prefix + ".gdn_state",
                 kF32Bytes * static_cast<std::size_t>(config.gdn_value_heads) * static_cast<std::size_t>(config.gdn_key_dim) *
                     static_cast<std::size_t>(config.gdn_value_dim));
  }
  // The draft head's layer comes last; besides its own attention caches it needs the streams of the newest token.
  for (int draft = 0; draft < config.mtp_layers; ++draft) {
    const int layer = config.num_layers + draft;
    builder.attention(layer, fmt::format("mtp.layers.{}", draft), StateKind::kDraft, StateKind::kDraft);
    builder.slot(StateKind::kDraft, layer, fmt::format("mtp.layers.{}.streams", draft), streams_bytes);
  }
  return std::move(builder.layout);
}

}  // namespace tetrad

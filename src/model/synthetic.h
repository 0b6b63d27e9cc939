#pragma once
// Random checkpoints of any size in the published layout: a config made from a known one, and values for each tensor that keep
// activations finite. The bytes depend only on seed, tensor name and element index, so any part can be made alone and twice the same.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>

#include "model/config.h"
#include "model/weights_table.h"

namespace tetrad {

// Changes to a config; what is absent stays. `scale` is applied first, to every width and count that is not fixed by the layer pattern.
struct SyntheticSize {
  double scale = 1.0;  // hidden size, heads, intermediate sizes, experts, vocabulary, n-gram table
  std::optional<int> layers, experts, experts_per_token, hidden_size, moe_width, vocab_size;
  std::optional<std::int64_t> ngram_vocab_base;
};

// The published config.json, as text.
std::string_view published_config_text();
// A config.json after the changes, checked by parse_config (LoadError). Quantization, MTP and vision parts are kept only where asked.
nlohmann::json synthetic_config(nlohmann::json base, const SyntheticSize& size, bool fp8, bool mtp, bool vision);

// Writes elements [first, first + count) of the tensor; `bytes` holds exactly them. The tensor is one of expected_tensors().
void fill_synthetic(const ExpectedTensor& tensor, const Config& config, std::uint64_t seed, std::int64_t first, std::span<std::byte> bytes);

// Parameters read for one token: everything but the embedding, the n-gram table and the experts not picked.
std::int64_t active_parameters(const Config& config);

}  // namespace tetrad

// Any text is either refused with a LoadError or gives a config whose derived sizes are positive and whose tensors can be listed.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "io/json_file.h"
#include "model/config.h"
#include "model/ngram_hash.h"
#include "model/weights_table.h"

namespace {

void use(const tetrad::Config& config) {
  if (config.streams_size() <= 0 || config.gdn_conv_dim() <= 0 || config.block_topk() <= 0 || config.ple_conv_rows() < 0) std::abort();
  for (std::size_t i = 0; i < config.ple_layers.size() && i < 2; ++i) {
    const auto hash = tetrad::make_ngram_hash(config, static_cast<int>(i));
    if (hash.padded_rows <= 0 || config.ngram_row_dim() <= 0) std::abort();
  }
  const tetrad::ShapeLetters letters(config);
  for (const auto& row : tetrad::weights_table()) {
    if (row.layers >= tetrad::WeightLayers::kVision || row.kind == tetrad::WeightKind::kNgramTable) continue;
    for (const auto length : letters.evaluate(row.shape))
      if (length < 0) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    use(tetrad::parse_config(tetrad::parse_json({reinterpret_cast<const char*>(data), size}, "fuzz"), "fuzz"));
  } catch (const tetrad::LoadError&) {
  }
  return 0;
}

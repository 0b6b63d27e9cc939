#pragma once
// The one table of weights: which field a tensor fills, its name in a checkpoint, its shape in letters, what types it may have, which
// layers have it and where it is placed. Loading, the list of expected tensors, `tetrad inspect` and docs/model.md all come from it.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "model/config.h"
#include "model/weights.h"

namespace tetrad {

enum class WeightKind {
  kPlain,         // BF16, F16 or F32
  kLinear,        // a matrix; BF16, F16 or F32
  kExpert,        // one routed expert's matrix; as kLinear, or F8_E4M3 with "<name>_scale_inv"
  kFusedExperts,  // all routed experts' matrices stacked; as kPlain
  kNgramTable,    // one tensor, or row shards; as kPlain, or F8_E4M3 with one "weight_scale" for the whole table
  kNgramConstant  // I64, computed from the config; may be absent, must agree
};
enum class WeightLayers { kHead, kModel, kAll, kGdn, kQsa, kPle, kMtp, kVision, kVisionBlock };
enum class Placement { kDevice, kGathered };  // kGathered: only rows are read, by index; may stay in host memory

// Where a loaded view goes. Null for tensors that are recognised but not used (MTP, vision) and for those bound by hand (experts, table).
using WeightSlot = std::variant<std::monostate, WeightView*, LinearView*>;

struct WeightRow {
  std::string_view field;  // as in weights.h: "gdn.in_qkv" of LayerWeights, "embed_tokens" of ModelWeights
  // After the prefix of its layers: none (kHead); "model.language_model." or "model." (kModel), then "layers.<l>." (kAll, kGdn, kQsa,
  // kPle); "mtp.", "model.visual.", "model.visual.blocks.<i>." (the others). "{}" stands for the number of an expert.
  std::string_view name;
  std::string_view shape;  // "[2*HK*K+HV*V, D]", letters as in docs/model.md
  WeightKind kind;
  WeightLayers layers;
  Placement placement;
  WeightSlot (*layer_slot)(LayerWeights&) = nullptr;
  WeightSlot (*model_slot)(ModelWeights&) = nullptr;
};

std::span<const WeightRow> weights_table();

// The values of the letters for one model.
class ShapeLetters {
 public:
  explicit ShapeLetters(const Config& config);
  std::vector<std::int64_t> evaluate(std::string_view shape) const;  // InternalError for an unknown letter or bad syntax
  void set(std::string_view letter, std::int64_t value);

 private:
  std::int64_t product(std::string_view text) const;
  std::vector<std::pair<std::string, std::int64_t>> values_;
};

// The letters of the vision tower (VH, VI, VO, VC, VT, VS, VM, VP), from Config::vision_json. Throws LoadError for a malformed one.
struct VisionSizes {
  int num_blocks = 0;  // 0 without a vision part
  std::vector<std::pair<std::string, std::int64_t>> letters;
};
VisionSizes parse_vision(const Config& config);

// How a checkpoint is laid out, where the format leaves a choice.
struct ExpectOptions {
  bool nested_names = true;   // "model.language_model." rather than "model."
  bool fused_experts = true;  // BF16 only; FP8 experts are always stored one by one
  bool fp8_experts = false;
  bool fp8_table = false;
  bool table_shards = true;  // split_ngram_parts of them
  bool ngram_constants = true;
  bool mtp = true;     // as many layers as the config says
  bool vision = true;  // if the config has a vision part
};
ExpectOptions published_layout(const Config& config);  // FP8 as the config's quantization says

struct ExpectedTensor {
  std::string name;
  DType dtype = DType::kBF16;
  std::vector<std::int64_t> shape;
  std::uint64_t num_bytes = 0;
};
// Every tensor that a checkpoint of this config and layout holds, in model order.
std::vector<ExpectedTensor> expected_tensors(const Config& config, const ExpectOptions& options);

// Rows of each shard when the table is cut into `parts` pieces: all equal, the last ones smaller or absent if it does not divide.
std::vector<std::int64_t> table_shard_rows(std::int64_t padded_rows, int parts);

}  // namespace tetrad

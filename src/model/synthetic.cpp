#include "model/synthetic.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/bf16.h"
#include "base/error.h"
#include "base/fp8.h"
#include "model/ngram_hash.h"

namespace tetrad {
namespace {

using nlohmann::json;

// --- Sizes ---

json& text_fields(json& config) {
  return config.contains("text_config") && config["text_config"].is_object() ? config["text_config"] : config;
}

std::int64_t field(const json& text, const char* key) {
  const auto found = text.find(key);
  if (found == text.end() || !found->is_number_integer()) fail<InputError>("the config to start from has no whole number \"{}\"", key);
  return found->get<std::int64_t>();
}

// value * scale, to the nearest multiple of `step`, at least one step. A value below a step scales in ones.
std::int64_t scaled(std::int64_t value, double scale, std::int64_t step) {
  if (value < step) step = 1;
  const auto steps = std::llround(static_cast<double>(value) * scale / static_cast<double>(step));
  return std::max<std::int64_t>(1, steps) * step;
}

void apply_scale(json& text, double scale) {
  if (scale == 1.0) return;
  if (!(scale > 0.0 && scale <= 16.0)) fail<InputError>("scale: expected a number in (0, 16], got {}", scale);
  // Steps keep FP8 blocks whole and n-gram rows divisible.
  constexpr std::pair<const char*, std::int64_t> kSteps[] = {{"hidden_size", 128},
                                                             {"moe_intermediate_size", 128},
                                                             {"shared_expert_intermediate_size", 128},
                                                             {"hc_lowrank", 16},
                                                             {"vocab_size", 128},
                                                             {"num_experts", 1}};
  for (const auto& [key, step] : kSteps) text[key] = scaled(field(text, key), scale, step);
  text["num_experts_per_tok"] = std::min(field(text, "num_experts_per_tok"), field(text, "num_experts"));
  if (text.contains("ple_embed_dim") && text["ple_embed_dim"].is_number_integer())
    text["ple_embed_dim"] = scaled(field(text, "ple_embed_dim"), scale, 128);
  // Head counts keep their group sizes.
  text["num_attention_heads"] = scaled(field(text, "num_attention_heads"), scale, field(text, "num_key_value_heads"));
  const std::int64_t key_heads = field(text, "linear_num_key_heads");
  const std::int64_t group = field(text, "linear_num_value_heads") / std::max<std::int64_t>(1, key_heads);
  text["linear_num_key_heads"] = scaled(key_heads, scale, 1);
  text["linear_num_value_heads"] = field(text, "linear_num_key_heads") * group;
  if (text.contains("ngram_vocab_size_base"))
    text["ngram_vocab_size_base"] = std::max<std::int64_t>(2, scaled(field(text, "ngram_vocab_size_base"), scale, 1));
}

void set_layers(json& text, int layers) {
  if (layers < 1) fail<InputError>("layers: expected at least 1, got {}", layers);
  if (text.contains("layer_types") && text["layer_types"].is_array() && !text["layer_types"].empty()) {
    const json pattern = text["layer_types"];
    json types = json::array();
    for (std::size_t l = 0; l < static_cast<std::size_t>(layers); ++l) types.push_back(pattern[l % pattern.size()]);
    text["layer_types"] = types;
  }
  text["num_hidden_layers"] = layers;
  json kept = json::array();
  if (text.contains("ple_layer_ids") && text["ple_layer_ids"].is_array())
    for (const auto& id : text["ple_layer_ids"])
      if (id.is_number_integer() && id.get<std::int64_t>() <= layers) kept.push_back(id);
  text["ple_layer_ids"] = kept;
}

// Special tokens move below the vocabulary's end; which ids they are means nothing to random weights.
void fit_special_tokens(json& config, json& text) {
  const std::int64_t vocab = field(text, "vocab_size");
  const auto fit = [&](json& id) {
    if (id.is_number_integer() && id.get<std::int64_t>() >= vocab) id = vocab - 1;
  };
  for (const char* key : {"eos_token_id", "bos_token_id", "pad_token_id"}) {
    if (!text.contains(key)) continue;
    fit(text[key]);
    if (text[key].is_array())
      for (auto& id : text[key]) fit(id);
  }
  for (const char* key : {"image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"})
    if (config.contains(key)) fit(config[key]);
}

// --- Values ---

std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

std::uint64_t name_key(std::string_view name, std::uint64_t seed) {
  std::uint64_t hash = 0xcbf29ce484222325 ^ mix(seed + 0x9E3779B97F4A7C15);
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return mix(hash);
}

// Values lie uniformly in [center - spread, center + spread].
struct Distribution {
  double center = 0.0;
  double spread = 0.0;
};

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

constexpr double kSqrt3 = 1.7320508075688772;  // half the width of a uniform distribution of variance 1

// Gains that keep a random model alive: rows of unit variance stay so through a matrix, norms are near the identity, decays near one.
Distribution distribution_of(const ExpectedTensor& tensor) {
  const std::string_view name = tensor.name;
  const double fan_in = tensor.shape.empty() ? 1.0 : static_cast<double>(tensor.shape.back());
  if (name.ends_with("A_log")) return {1.4, 1.3};
  if (name.ends_with("dt_bias")) return {-3.0, 2.0};
  if (name.ends_with("linear_attn.norm.weight")) return {1.0, 0.1};
  if (tensor.shape.size() == 1) return {0.0, 0.1};  // norms that multiply by 1 + w, and biases
  if (contains(name, "embed_tokens") || contains(name, "ngram_embedding") || contains(name, "pos_embed")) return {0.0, 1.0};
  if (name.starts_with("lm_head")) return {0.0, 4.0 * kSqrt3 / std::sqrt(fan_in)};  // logits far enough apart to have a clear first
  return {0.0, kSqrt3 / std::sqrt(fan_in)};
}

// The value of each of the 2^16 outcomes of the generator.
template <class T, class Convert>
std::vector<T> outcomes(const Distribution& d, Convert convert) {
  constexpr int kOutcomes = 1 << 16;
  std::vector<T> table(kOutcomes);
  for (int i = 0; i < kOutcomes; ++i)
    table[static_cast<std::size_t>(i)] = convert(static_cast<float>(d.center + d.spread * ((2.0 * i + 1.0) / kOutcomes - 1.0)));
  return table;
}

template <class T>
void draw(const std::vector<T>& table, std::uint64_t key, std::int64_t first, std::span<std::byte> bytes) {
  const std::size_t count = bytes.size() / sizeof(T);
  std::byte* out = bytes.data();
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t element = static_cast<std::uint64_t>(first) + i;
    const std::uint64_t word = mix(key + (element >> 2) * 0x9E3779B97F4A7C15);
    const T value = table[word >> (16 * (element & 3)) & 0xffff];
    std::memcpy(out + i * sizeof(T), &value, sizeof(T));
  }
}

// FP8 codes span the whole range of the format and the scale brings them back, as a quantizer would have it.
double fp8_scale(const Distribution& d) { return d.spread / kMaxE4m3; }

void fill_constant(const ExpectedTensor& tensor, const Config& config, std::int64_t first, std::span<std::byte> bytes) {
  for (std::size_t rank = 0; rank < config.ple_layers.size(); ++rank) {
    if (!contains(tensor.name, fmt::format("layers.{}.ple.", config.ple_layers[rank]))) continue;
    const NgramHash hash = make_ngram_hash(config, static_cast<int>(rank));
    const auto& values = tensor.name.ends_with("layer_multipliers") ? hash.multipliers
                         : tensor.name.ends_with("vocab_sizes")     ? hash.head_sizes
                                                                    : hash.head_offsets;
    TETRAD_CHECK(static_cast<std::size_t>(first) * sizeof(std::int64_t) + bytes.size() <= values.size() * sizeof(std::int64_t),
                 "{}: elements out of range", tensor.name);
    std::memcpy(bytes.data(), values.data() + first, bytes.size());
    return;
  }
  fail<InternalError>("{}: not a constant of any n-gram layer", tensor.name);
}

// The weight that a scale tensor belongs to has the same distribution as if it were stored unscaled.
ExpectedTensor scaled_weight(const ExpectedTensor& scale, const Config& config) {
  ExpectedTensor weight = scale;
  weight.name = scale.name.substr(0, scale.name.rfind("_scale"));
  const bool down = contains(scale.name, "down_proj");
  weight.shape = {1, contains(scale.name, "ngram_embedding") ? config.ngram_row_dim()
                     : down                                  ? config.moe_intermediate
                                                             : config.hidden_size};
  return weight;
}

}  // namespace

json synthetic_config(json base, const SyntheticSize& size, bool fp8, bool mtp, bool vision) {
  if (!base.is_object()) fail<InputError>("the config to start from is not a JSON object");
  json& text = text_fields(base);
  apply_scale(text, size.scale);
  if (size.layers) set_layers(text, *size.layers);
  if (size.experts_per_token) text["num_experts_per_tok"] = *size.experts_per_token;
  if (size.experts) text["num_experts"] = *size.experts;
  if (size.moe_width) text["moe_intermediate_size"] = text["shared_expert_intermediate_size"] = *size.moe_width;
  if (size.hidden_size) text["hidden_size"] = text["ple_embed_dim"] = *size.hidden_size;
  if (size.vocab_size) text["vocab_size"] = *size.vocab_size;
  if (size.ngram_vocab_base) text["ngram_vocab_size_base"] = *size.ngram_vocab_base;
  fit_special_tokens(base, text);
  if (!vision) base.erase("vision_config");
  if (vision && base.contains("vision_config")) base["vision_config"]["out_hidden_size"] = text["hidden_size"];
  if (!mtp) {
    text.erase("mtp");
    text["mtp_num_hidden_layers"] = 0;
  }
  text.erase("quantization_config");
  base.erase("quantization_config");
  if (fp8)
    base["quantization_config"] = {
        {"activation_scheme", "dynamic"}, {"fmt", "e4m3"}, {"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  (void)parse_config(base, "synthetic config");
  return base;
}

void fill_synthetic(const ExpectedTensor& tensor, const Config& config, std::uint64_t seed, std::int64_t first,
                    std::span<std::byte> bytes) {
  if (tensor.dtype == DType::kI64) return fill_constant(tensor, config, first, bytes);
  const std::uint64_t key = name_key(tensor.name, seed);
  Distribution d = distribution_of(tensor);
  if (tensor.name.ends_with("_scale_inv") || tensor.name.ends_with("weight_scale")) {
    const double scale = fp8_scale(distribution_of(scaled_weight(tensor, config)));
    d = {scale, tensor.name.ends_with("_scale_inv") ? 0.25 * scale : 0.0};
  }
  switch (tensor.dtype) {
    case DType::kBF16: return draw(outcomes<bf16>(d, [](float x) { return to_bf16(x); }), key, first, bytes);
    case DType::kF32: return draw(outcomes<float>(d, [](float x) { return x; }), key, first, bytes);
    case DType::kF8E4M3: {
      const double scale = fp8_scale(d);
      return draw(outcomes<std::uint8_t>({0.0, d.spread / scale}, [](float x) { return to_e4m3(x); }), key, first, bytes);
    }
    default: fail<InternalError>("{}: no synthetic values of type {}", tensor.name, dtype_name(tensor.dtype));
  }
}

std::int64_t active_parameters(const Config& config) {
  ExpectOptions options;
  options.mtp = options.vision = options.ngram_constants = false;
  options.table_shards = false;
  std::int64_t total = 0;
  for (const ExpectedTensor& tensor : expected_tensors(config, options)) {
    std::int64_t count = 1;
    for (const auto length : tensor.shape) count *= length;
    const bool gathered =
        contains(tensor.name, "ngram_embedding") || (contains(tensor.name, "embed_tokens") && !config.tie_word_embeddings);
    if (gathered) continue;
    total += contains(tensor.name, ".mlp.experts.") ? count / config.num_experts * config.experts_per_token : count;
  }
  return total;
}

}  // namespace tetrad

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/bf16.h"
#include "base/error.h"
#include "io/checkpoint.h"
#include "model/config.h"
#include "model/load_weights.h"
#include "model/ngram_hash.h"
#include "model/weights_table.h"
#include "support/checkpoint_edit.h"

namespace tetrad::weights_test {
namespace {

namespace fs = std::filesystem;
using test::EditCheckpoint;
using test::TempDir;

const fs::path kGoldens = TETRAD_GOLDENS;
const fs::path kTiny = fs::path(TETRAD_MODELS) / "tetrad-tiny";

struct Totals {
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;
};

Totals totals(const fs::path& config_file) {
  const Config config = load_config(config_file);
  Totals result;
  for (const auto& tensor : expected_tensors(config, published_layout(config))) {
    ++result.tensors;
    result.bytes += tensor.num_bytes;
  }
  return result;
}

TEST(expected_tensors, published_bf16_release) {
  const Totals got = totals(kGoldens / "configs/published-bf16.json");
  EXPECT_EQ(got.tensors, 1658u);
  EXPECT_EQ(got.bytes, 359'999'963'128u);
}

TEST(expected_tensors, published_fp8_release) {
  const Totals got = totals(kGoldens / "configs/published-fp8.json");
  EXPECT_EQ(got.tensors, 152'089u);
  EXPECT_EQ(got.bytes, 185'502'232'570u);
}

// What the config calls for is exactly what the checkpoint holds: names, types and shapes.
void expect_exact(const fs::path& directory) {
  const auto checkpoint = Checkpoint::open(directory);
  const Config config = load_config(directory / "config.json");
  ExpectOptions options = published_layout(config);
  options.mtp =
      std::any_of(checkpoint->tensors().begin(), checkpoint->tensors().end(), [](const auto& t) { return t.name.starts_with("mtp."); });
  std::size_t found = 0;
  for (const auto& expected : expected_tensors(config, options)) {
    const CheckpointTensor* tensor = checkpoint->find(expected.name);
    ASSERT_NE(tensor, nullptr) << expected.name;
    EXPECT_EQ(tensor->dtype, expected.dtype) << expected.name;
    EXPECT_EQ(tensor->shape, expected.shape) << expected.name;
    EXPECT_EQ(tensor->num_bytes, expected.num_bytes) << expected.name;
    ++found;
  }
  EXPECT_EQ(found, checkpoint->tensors().size());
}

TEST(expected_tensors, tiny_model_exactly) { expect_exact(kTiny); }
TEST(expected_tensors, nested_layout_exactly) { expect_exact(kGoldens / "rand-heads"); }
TEST(expected_tensors, flat_layout_with_single_experts_exactly) { expect_exact(kGoldens / "rand-small"); }

TEST(load_weights, tiny_model) {
  const Config config = load_config(kTiny / "config.json");
  const ModelWeights model = load_weights(Checkpoint::open(kTiny), config);
  ASSERT_EQ(model.layers.size(), 4u);
  EXPECT_TRUE(model.layers[0].gdn && !model.layers[0].qsa);
  EXPECT_TRUE(model.layers[3].qsa && !model.layers[3].gdn);
  ASSERT_TRUE(model.layers[1].ple);
  EXPECT_EQ(model.layers[1].ple->table.shards.size(), 4u);
  EXPECT_EQ(model.layers[1].ple->table.first_row, (std::vector<std::int64_t>{0, 8256, 16512, 24768, 33024}));
  EXPECT_EQ(model.layers[3].moe.experts.size(), 8u);
}

TEST(load_weights, random_checkpoints) {
  for (const char* name : {"rand-small", "rand-heads"}) {
    const fs::path directory = kGoldens / name;
    const Config config = load_config(directory / "config.json");
    const ModelWeights model = load_weights(Checkpoint::open(directory), config);
    EXPECT_EQ(model.layers.size(), static_cast<std::size_t>(config.num_layers)) << name;
  }
}

// --- Damaged and unusual checkpoints ---

std::string refusal(const EditCheckpoint& edit) {
  const TempDir dir;
  edit.write(dir.path());
  try {
    load_weights(Checkpoint::open(dir.path()), load_config(dir / "config.json"));
  } catch (const LoadError& e) {
    return e.what();
  }
  return "";
}

void expect_refused(const EditCheckpoint& edit, const std::vector<std::string>& parts) {
  const std::string message = refusal(edit);
  EXPECT_NE(message, "") << "accepted";
  for (const auto& part : parts) EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in: " << message;
}

class EditedWeights : public ::testing::Test {
 protected:
  // The tensor of this name, zero except where a test writes.
  static test::EditTensor zeros(const std::string& name, DType dtype, std::vector<std::int64_t> shape) {
    std::size_t bytes = dtype_size(dtype);
    for (const auto length : shape) bytes *= static_cast<std::size_t>(length);
    return {name, dtype, std::move(shape), std::vector<std::byte>(bytes)};
  }
  static void set_bf16(test::EditTensor& tensor, std::size_t index, float value) {
    const bf16 stored = to_bf16(value);
    std::memcpy(tensor.bytes.data() + 2 * index, &stored, 2);
  }

  EditCheckpoint tiny_ = test::read_checkpoint(kTiny);
  EditCheckpoint small_ = test::read_checkpoint(kGoldens / "rand-small");
  const std::string table_ = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding";
  const std::string small_table_ = "model.layers.1.ple.ple_embedding.ngram_embedding";
};

// Each tensor in turn is taken away: the text ones must be named, the others must not be missed. Taken away means renamed into the
// draft head, which is not looked at: four bytes of the header instead of a new file.
void expect_every_tensor_needed(const fs::path& directory) {
  const EditCheckpoint whole = test::read_checkpoint(directory);
  const Config config = load_config(directory / "config.json");
  const TempDir dir;
  whole.write(dir.path());
  const std::string file = test::read_bytes(dir / "model.safetensors");
  std::fstream out(dir / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  const auto overwrite = [&](std::size_t offset, std::string_view text) {
    out.seekp(static_cast<std::streamoff>(offset)).write(text.data(), static_cast<std::streamsize>(text.size())).flush();
  };
  std::size_t needed = 0;
  for (const auto& tensor : whole.tensors) {
    const std::size_t at = file.find('"' + tensor.name + '"') + 1;
    overwrite(at, "mtp.");
    const bool optional = tensor.dtype == DType::kI64 || tensor_group(tensor.name) != TensorGroup::kText;
    WeightsReport report;
    (void)bind_weights(Checkpoint::open(dir.path()), config, report);
    overwrite(at, file.substr(at, 4));
    EXPECT_EQ(report.ok(), optional) << tensor.name;
    if (optional) continue;
    ++needed;
    const std::string message = report.message("x");
    EXPECT_NE(message.find(tensor.name), std::string::npos) << tensor.name << ": " << message;
    EXPECT_EQ(report.missing.size(), 1u) << message;
    EXPECT_TRUE(report.extra.empty()) << message;
  }
  EXPECT_GT(needed, 100u);
}

TEST(load_weights, every_tensor_of_the_nested_layout_is_needed) { expect_every_tensor_needed(kGoldens / "rand-heads"); }
TEST(load_weights, every_tensor_of_the_flat_layout_is_needed) { expect_every_tensor_needed(kGoldens / "rand-small"); }

TEST_F(EditedWeights, all_faults_are_listed_at_once) {
  tiny_.erase("lm_head.weight");
  tiny_.erase("model.language_model.layers.0.linear_attn.A_log");
  tiny_.at("model.language_model.layers.3.self_attn.q_norm.weight").shape = {2, 128};
  tiny_.tensors.push_back(zeros("model.language_model.layers.0.linear_attn.bias", DType::kBF16, {3}));
  tiny_.tensors.push_back(zeros("stranger", DType::kF32, {1}));
  expect_refused(tiny_, {"2 missing", "lm_head.weight BF16 [4096, 256]", "layers.0.linear_attn.A_log BF16 [3]", "1 wrong",
                         "layers.3.self_attn.q_norm.weight (model.safetensors): expected BF16, F16 or F32 [256], got BF16 [2, 128]",
                         "2 not part of the model", "layers.0.linear_attn.bias", "stranger"});
}

TEST_F(EditedWeights, long_lists_are_cut_with_a_count) {
  for (int i = 0; i < 60; ++i) tiny_.tensors.push_back(zeros(fmt::format("stranger{}", i), DType::kU8, {1}));
  expect_refused(tiny_, {"60 not part of the model", "... and 10 more"});
}

TEST_F(EditedWeights, renamed_and_transposed) {
  tiny_.rename("model.language_model.layers.2.linear_attn.out_proj.weight", "model.language_model.layers.2.linear_attn.o_proj.weight");
  std::swap(tiny_.at("model.language_model.layers.0.linear_attn.in_proj_z.weight").shape[0],
            tiny_.at("model.language_model.layers.0.linear_attn.in_proj_z.weight").shape[1]);
  expect_refused(tiny_,
                 {"out_proj.weight BF16 [256, 384]", "layers.2.linear_attn.o_proj.weight", "in_proj_z.weight", "[384, 256]", "[256, 384]"});
}

TEST_F(EditedWeights, both_prefixes_mean_the_same) {
  for (auto& tensor : tiny_.tensors)
    if (tensor.name.starts_with("model.language_model.")) tensor.name = "model." + tensor.name.substr(21);
  EXPECT_EQ(refusal(tiny_), "");
  for (auto& tensor : small_.tensors)
    if (tensor.name.starts_with("model.")) tensor.name = "model.language_model." + tensor.name.substr(6);
  EXPECT_EQ(refusal(small_), "");
}

TEST_F(EditedWeights, several_files_load_like_one) {
  const TempDir dir;
  small_.write_shards(dir.path(), 5);
  EXPECT_NO_THROW(load_weights(Checkpoint::open(dir.path()), load_config(dir / "config.json")));
}

TEST_F(EditedWeights, fused_experts_are_cut_into_gate_and_up) {
  const std::string prefix = "model.language_model.layers.0.mlp.experts.";
  // Row r of the stack holds the value r everywhere in column 0.
  auto& stack = tiny_.at(prefix + "gate_up_proj");
  for (std::size_t e = 0; e < 8; ++e)
    for (std::size_t row = 0; row < 256; ++row) set_bf16(stack, (e * 256 + row) * 256, static_cast<float>(e * 16 + row / 128));
  const TempDir dir;
  tiny_.write(dir.path());
  const ModelWeights model = load_weights(Checkpoint::open(dir.path()), load_config(dir / "config.json"));
  for (std::size_t e = 0; e < 8; ++e) {
    const ExpertWeights& expert = model.layers[0].moe.experts[e];
    EXPECT_EQ(expert.gate_proj.weight.shape, (std::vector<std::int64_t>{128, 256}));
    EXPECT_EQ(expert.down_proj.weight.shape, (std::vector<std::int64_t>{256, 128}));
    const auto first = [](const LinearView& view) {
      bf16 value;
      std::memcpy(&value, view.weight.data, 2);
      return to_float(value);
    };
    EXPECT_EQ(first(expert.gate_proj), static_cast<float>(e * 16));
    EXPECT_EQ(first(expert.up_proj), static_cast<float>(e * 16 + 1));
  }
}

TEST_F(EditedWeights, one_expert_short_is_named) {
  small_.erase("model.layers.0.mlp.experts.7.up_proj.weight");
  expect_refused(small_, {"1 missing", "model.layers.0.mlp.experts.7.up_proj.weight"});
}

TEST_F(EditedWeights, an_expert_too_many_is_extra) {
  small_.tensors.push_back(zeros("model.layers.0.mlp.experts.16.up_proj.weight", DType::kBF16, {32, 64}));
  expect_refused(small_, {"1 not part of the model", "experts.16.up_proj.weight"});
}

// FP8 as in the official release: codes with block scales, one scale for the table.
class Fp8Weights : public EditedWeights {
 protected:
  void SetUp() override {
    small_.config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {16, 32}}};
    std::vector<test::EditTensor> scales;
    for (auto& tensor : small_.tensors) {
      const bool expert = tensor.name.find("mlp.experts.") != std::string::npos, table = tensor.name.starts_with(small_table_);
      if (!expert && !table) continue;
      tensor = zeros(tensor.name, DType::kF8E4M3, tensor.shape);
      if (expert)
        scales.push_back(zeros(tensor.name + "_scale_inv", DType::kBF16, {(tensor.shape[0] + 15) / 16, (tensor.shape[1] + 31) / 32}));
    }
    small_.tensors.insert(small_.tensors.end(), scales.begin(), scales.end());
    small_.tensors.push_back(zeros(small_table_ + ".weight_scale", DType::kBF16, {1}));
    set_bf16(small_.tensors.back(), 0, 0.0002f);
  }
};

TEST_F(Fp8Weights, experts_and_table) {
  const TempDir dir;
  small_.write(dir.path());
  const ModelWeights model = load_weights(Checkpoint::open(dir.path()), load_config(dir / "config.json"));
  const LinearView& up = model.layers[2].moe.experts[3].up_proj;
  EXPECT_EQ(up.weight.dtype, DType::kF8E4M3);
  ASSERT_TRUE(up.scale_inv);
  EXPECT_EQ(up.scale_inv->shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(up.block_rows, 16);
  EXPECT_EQ(up.block_columns, 32);
  const NgramTable& table = model.layers[1].ple->table;
  ASSERT_TRUE(table.scale);
  EXPECT_EQ(*table.scale, round_bf16(0.0002f)) << "a small scale is a scale, not an absent one";
}

TEST_F(Fp8Weights, scales_may_be_float32) {
  auto& scale = small_.at("model.layers.0.mlp.experts.0.gate_proj.weight_scale_inv");
  scale = zeros(scale.name, DType::kF32, scale.shape);
  EXPECT_EQ(refusal(small_), "");
}

TEST_F(Fp8Weights, missing_and_misshapen_scales) {
  small_.erase("model.layers.0.mlp.experts.0.gate_proj.weight_scale_inv");
  small_.erase(small_table_ + ".weight_scale");
  small_.at("model.layers.0.mlp.experts.1.gate_proj.weight_scale_inv").shape = {4, 1};
  expect_refused(small_, {"2 missing", "experts.0.gate_proj.weight_scale_inv BF16 [2, 2]", ".weight_scale BF16 [1]", "1 wrong",
                          "experts.1.gate_proj.weight_scale_inv"});
}

TEST_F(Fp8Weights, a_scale_without_use_is_refused) {
  auto& weight = small_.at("model.layers.0.mlp.experts.0.gate_proj.weight");
  weight = zeros(weight.name, DType::kBF16, weight.shape);
  expect_refused(small_, {"1 not part of the model", "experts.0.gate_proj.weight_scale_inv"});
}

TEST_F(Fp8Weights, the_type_decides_and_not_the_config) {
  small_.config["quantization_config"] = nullptr;
  for (auto& tensor : small_.tensors)
    if (tensor.name.ends_with("_scale_inv")) tensor = zeros(tensor.name, DType::kBF16, {1, 1});  // blocks of 128 are the default
  EXPECT_EQ(refusal(small_), "");
}

TEST_F(Fp8Weights, bad_table_scales) {
  for (const float value : {0.0f, -1.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    set_bf16(small_.at(small_table_ + ".weight_scale"), 0, value);
    expect_refused(small_, {"weight_scale", "finite number above 0"});
  }
}

TEST_F(Fp8Weights, dense_weights_in_fp8_are_refused) {
  auto& weight = small_.at("lm_head.weight");
  weight = zeros(weight.name, DType::kF8E4M3, weight.shape);
  expect_refused(small_, {"lm_head.weight", "expected BF16, F16 or F32", "F8_E4M3"});
}

TEST_F(EditedWeights, nvfp4_is_refused_by_name) {
  const std::string stem = "model.layers.0.mlp.experts.0.up_proj.";
  small_.at(stem + "weight") = zeros(stem + "weight", DType::kU8, {32, 32});
  small_.tensors.push_back(zeros(stem + "weight_scale_2", DType::kF32, {}));
  small_.tensors.push_back(zeros(stem + "input_scale", DType::kF32, {}));
  expect_refused(small_, {stem + "weight", "U8 [32, 32]", "NVFP4", stem + "weight_scale_2", stem + "input_scale",
                          "use the BF16 or the official FP8 release"});
}

TEST_F(EditedWeights, float16_and_float32_are_accepted) {
  auto& head = small_.at("lm_head.weight");
  head = zeros(head.name, DType::kF32, head.shape);
  auto& norm = small_.at("model.layers.0.linear_attn.norm.weight");
  norm = zeros(norm.name, DType::kF16, norm.shape);
  EXPECT_EQ(refusal(small_), "");
  norm = zeros(norm.name, DType::kI32, norm.shape);
  expect_refused(small_, {"norm.weight", "I32"});
}

// --- N-gram table ---

TEST_F(EditedWeights, shards_are_ordered_by_number) {
  // Twelve shards: by text, shard_10 would come before shard_2.
  std::vector<std::byte> bytes;
  for (int i = 0; i < 4; ++i) {
    const auto& shard = small_.at(fmt::format("{}.shard_{}.weight", small_table_, i));
    bytes.insert(bytes.end(), shard.bytes.begin(), shard.bytes.end());
    small_.erase(std::string(shard.name));
  }
  constexpr std::int64_t kRows = 16896 / 12;
  for (std::size_t i = 0; i < 12; ++i) {
    auto shard = zeros(fmt::format("{}.shard_{}.weight", small_table_, i), DType::kBF16, {kRows, 4});
    std::memcpy(shard.bytes.data(), bytes.data() + i * shard.bytes.size(), shard.bytes.size());
    small_.tensors.push_back(std::move(shard));
  }
  const TempDir dir;
  small_.write(dir.path());
  const ModelWeights model = load_weights(Checkpoint::open(dir.path()), load_config(dir / "config.json"));
  const NgramTable& table = model.layers[1].ple->table;
  ASSERT_EQ(table.shards.size(), 12u);
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(table.first_row[i], static_cast<std::int64_t>(i) * kRows);
    EXPECT_EQ(std::memcmp(table.shards[i].data, bytes.data() + i * kRows * 8, kRows * 8), 0) << i;
  }
  EXPECT_EQ(table.first_row.back(), 16896);
}

TEST_F(EditedWeights, one_tensor_for_the_whole_table) {
  for (int i = 0; i < 4; ++i) small_.erase(fmt::format("{}.shard_{}.weight", small_table_, i));
  expect_refused(small_, {"1 missing", small_table_ + ".weight"});
  small_.tensors.push_back(zeros(small_table_ + ".weight", DType::kBF16, {16896, 4}));
  EXPECT_EQ(refusal(small_), "");
  small_.at(small_table_ + ".weight") = zeros(small_table_ + ".weight", DType::kBF16, {16895, 4});
  expect_refused(small_, {"16896 rows", "16895 rows"});
}

TEST_F(EditedWeights, shards_and_whole_together_are_refused) {
  small_.tensors.push_back(zeros(small_table_ + ".weight", DType::kBF16, {16896, 4}));
  expect_refused(small_, {"1 not part of the model", small_table_ + ".weight"});
}

TEST_F(EditedWeights, shard_faults) {
  EditCheckpoint gap = small_;
  gap.erase(small_table_ + ".shard_1.weight");
  expect_refused(gap, {"1 missing", "shard_1.weight"});
  EditCheckpoint last = small_;
  last.erase(small_table_ + ".shard_3.weight");
  expect_refused(last, {"1 missing", "shard_3.weight"});
  EditCheckpoint extra = small_;
  extra.tensors.push_back(zeros(small_table_ + ".shard_4.weight", DType::kBF16, {4, 4}));
  expect_refused(extra, {"16896 rows", "16900 rows"});
  EditCheckpoint odd = small_;
  odd.rename(small_table_ + ".shard_1.weight", small_table_ + ".shard_01.weight");
  expect_refused(odd, {"shard_1.weight", "not part of the model", "shard_01.weight"});
  EditCheckpoint mixed = small_;
  auto& shard = mixed.at(small_table_ + ".shard_2.weight");
  shard = zeros(shard.name, DType::kF8E4M3, shard.shape);
  expect_refused(mixed, {"shard_2.weight", "expected BF16", "F8_E4M3"});
  EditCheckpoint scaled = small_;
  scaled.tensors.push_back(zeros(small_table_ + ".weight_scale", DType::kBF16, {1}));
  expect_refused(scaled, {"not part of the model", ".weight_scale"});
}

TEST_F(EditedWeights, hash_constants_must_agree) {
  auto& multipliers = small_.at("model.layers.1.ple.ple_embedding.layer_multipliers");
  multipliers.bytes[8] = multipliers.bytes[8] ^ std::byte{2};
  auto& offsets = small_.at("model.layers.1.ple.ple_embedding.ngram_heads_offsets");
  offsets.bytes[16] = offsets.bytes[16] ^ std::byte{1};
  expect_refused(small_, {"2 wrong", "layer_multipliers", "ngram_heads_offsets"});
  small_.config["seed"] = 7;
  expect_refused(small_, {"layer_multipliers"});
}

TEST_F(EditedWeights, a_second_table_has_constants_of_its_own) {
  small_.config["ple_layer_ids"] = {2, 1};
  Config config = parse_config(small_.config, "x");
  const NgramHash hash = make_ngram_hash(config, 0);
  EXPECT_EQ(config.ple_layers, (std::vector<int>{0, 1}));
  // The table of layer 1 is now the second one: its stored constants no longer fit, and layer 0 has none.
  expect_refused(small_, {"model.layers.0.ple.key_proj.weight", "model.layers.0.ple.ple_embedding.ngram_embedding",
                          "layers.1.ple.ple_embedding.layer_multipliers"});
}

// --- Tied embeddings ---

TEST_F(EditedWeights, tied_head) {
  EXPECT_EQ(refusal(small_), "");
  EditCheckpoint untied_without_head = small_;
  untied_without_head.erase("lm_head.weight");
  expect_refused(untied_without_head, {"1 missing", "lm_head.weight"});

  EditCheckpoint tied = untied_without_head;
  tied.config["tie_word_embeddings"] = true;
  const TempDir dir;
  tied.write(dir.path());
  const ModelWeights model = load_weights(Checkpoint::open(dir.path()), load_config(dir / "config.json"));
  EXPECT_EQ(model.lm_head.weight.data, model.embed_tokens.data);
  EXPECT_EQ(model.lm_head.weight.shape, model.embed_tokens.shape);

  EditCheckpoint contradiction = small_;
  contradiction.config["tie_word_embeddings"] = true;
  expect_refused(contradiction, {"lm_head.weight", "tie_word_embeddings"});

  EditCheckpoint redundant = contradiction;
  redundant.at("lm_head.weight").bytes = redundant.at("model.embed_tokens.weight").bytes;
  EXPECT_EQ(refusal(redundant), "");
}

// --- Parts that are not used ---

TEST_F(EditedWeights, unused_parts_and_leftovers_are_no_error) {
  small_.tensors.push_back(zeros("mtp.fc_hidden.weight", DType::kBF16, {1}));
  small_.tensors.push_back(zeros("model.visual.anything", DType::kF32, {2}));
  small_.tensors.push_back(zeros("model.layers.0.hashstats_count", DType::kI64, {2}));
  small_.tensors.push_back(zeros("model.token_lookup", DType::kI32, {2}));
  small_.tensors.push_back(zeros("model.hyper_connection_mixer.block_inject_weight.weight", DType::kBF16, {4, 256}));
  EXPECT_EQ(refusal(small_), "");
}

TEST(load_weights, reports_progress) {
  const Config config = load_config(kTiny / "config.json");
  std::vector<std::size_t> done;
  std::size_t total = 0;
  std::vector<std::string> what;
  load_weights(Checkpoint::open(kTiny), config, [&](std::size_t d, std::size_t t, std::string_view text) {
    done.push_back(d);
    total = t;
    what.emplace_back(text);
  });
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), total);
  EXPECT_EQ(total, 23465628u);
  EXPECT_NE(std::find(what.begin(), what.end(), "layer 3"), what.end());
}

// --- Shapes in letters ---

TEST(shape_letters, evaluates_sums_and_products) {
  const ShapeLetters letters(load_config(kTiny / "config.json"));
  EXPECT_EQ(letters.evaluate("[2*HK*K+HV*VD, 1, W]"), (std::vector<std::int64_t>{640, 1, 4}));
  EXPECT_EQ(letters.evaluate("[V]"), (std::vector<std::int64_t>{4096}));
  EXPECT_THROW(letters.evaluate("[XYZ]"), InternalError);
  EXPECT_THROW(letters.evaluate("V"), InternalError);
  EXPECT_THROW(letters.evaluate("[V*]"), InternalError);
}

TEST(table_shard_rows, cuts_like_the_published_layout) {
  EXPECT_EQ(table_shard_rows(320001536, 128), std::vector<std::int64_t>(128, 2500012));
  EXPECT_EQ(table_shard_rows(10, 4), (std::vector<std::int64_t>{3, 3, 3, 1}));
  EXPECT_EQ(table_shard_rows(3, 1), (std::vector<std::int64_t>{3}));
}

}  // namespace
}  // namespace tetrad::weights_test

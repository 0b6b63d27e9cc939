#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "base/error.h"
#include "base/fp8.h"
#include "cli/commands.h"
#include "io/checkpoint.h"
#include "io/json_file.h"
#include "model/load_weights.h"
#include "model/synthetic.h"
#include "support/checkpoint_edit.h"

namespace tetrad::synth_test {
namespace {

namespace fs = std::filesystem;
using test::TempDir;

const fs::path kGoldens = TETRAD_GOLDENS;
const fs::path kTinyConfig = fs::path(TETRAD_MODELS) / "tetrad-tiny/config.json";

int run_synth(std::vector<std::string> arguments) {
  CLI::App app;
  int exit_code = -1;
  cli::add_synth(*app.add_subcommand("synth"), exit_code);
  arguments.insert(arguments.begin(), "synth");
  std::reverse(arguments.begin(), arguments.end());
  ::testing::internal::CaptureStderr();
  try {
    app.parse(arguments);
  } catch (...) {
    ::testing::internal::GetCapturedStderr();
    throw;
  }
  ::testing::internal::GetCapturedStderr();
  return exit_code;
}

std::vector<float> values_of(const ExpectedTensor& tensor, const Config& config, std::uint64_t seed) {
  std::vector<std::byte> bytes(tensor.num_bytes);
  fill_synthetic(tensor, config, seed, 0, bytes);
  std::vector<float> values;
  for (std::size_t i = 0; i < bytes.size(); i += dtype_size(tensor.dtype)) {
    if (tensor.dtype == DType::kF8E4M3) {
      values.push_back(e4m3_to_float(std::to_integer<std::uint8_t>(bytes[i])));
    } else {
      bf16 value;
      std::memcpy(&value, bytes.data() + i, 2);
      values.push_back(to_float(value));
    }
  }
  return values;
}

TEST(synthetic, embeds_the_published_config) {
  EXPECT_EQ(parse_json(published_config_text(), "x"), read_json_file(kGoldens / "configs/published-bf16.json"));
}

TEST(synthetic, active_parameters_of_the_published_model) {
  // Dense trunk 3,676,300,160, routed 2,359,296,000, output head 635,699,200.
  EXPECT_EQ(active_parameters(load_config(kGoldens / "configs/published-bf16.json")), 6'671'295'360);
}

TEST(synthetic, bytes_depend_on_seed_name_and_index_only) {
  const Config config = load_config(kTinyConfig);
  const ExpectedTensor tensor{"model.language_model.layers.0.linear_attn.in_proj_z.weight", DType::kBF16, {384, 256}, 384 * 256 * 2};
  std::vector<std::byte> whole(tensor.num_bytes), again(tensor.num_bytes), pieces(tensor.num_bytes), other(tensor.num_bytes);
  fill_synthetic(tensor, config, 1, 0, whole);
  fill_synthetic(tensor, config, 1, 0, again);
  EXPECT_EQ(whole, again);
  for (std::size_t first = 0; first < 384 * 256; first += 1001) {
    const std::size_t count = std::min<std::size_t>(1001, 384 * 256 - first);
    fill_synthetic(tensor, config, 1, static_cast<std::int64_t>(first), std::span(pieces).subspan(2 * first, 2 * count));
  }
  EXPECT_EQ(whole, pieces);
  fill_synthetic(tensor, config, 2, 0, other);
  EXPECT_NE(whole, other);
  ExpectedTensor renamed = tensor;
  renamed.name = "model.language_model.layers.2.linear_attn.in_proj_z.weight";
  fill_synthetic(renamed, config, 1, 0, other);
  EXPECT_NE(whole, other);
}

TEST(synthetic, values_have_the_scale_that_keeps_activations_finite) {
  const Config config = load_config(kTinyConfig);
  for (const auto& tensor : expected_tensors(config, published_layout(config))) {
    if (tensor.dtype == DType::kI64) continue;
    double sum = 0, squares = 0, low = 1e30, high = -1e30;
    const auto values = values_of(tensor, config, 3);
    for (const double v : values) {
      sum += v;
      squares += v * v;
      low = std::min(low, v);
      high = std::max(high, v);
    }
    const auto count = static_cast<double>(values.size());
    const double mean = sum / count, deviation = std::sqrt(squares / count - mean * mean);
    const bool a_log = tensor.name.ends_with("A_log"), dt = tensor.name.ends_with("dt_bias"),
               plain = tensor.name.ends_with("linear_attn.norm.weight");
    if (a_log) {
      EXPECT_TRUE(low >= 0.0 && high <= 2.8) << tensor.name;
    }
    if (dt) {
      EXPECT_TRUE(low >= -5.0 && high <= -1.0) << tensor.name;
    }
    if (plain) {
      EXPECT_TRUE(low >= 0.89 && high <= 1.11) << tensor.name;
    }
    if (a_log || dt || plain || values.size() < 1000) continue;
    EXPECT_NEAR(mean, 0.0, 6 * deviation / std::sqrt(count)) << tensor.name;
    if (tensor.shape.size() == 1) {
      EXPECT_TRUE(low >= -0.1005 && high <= 0.1005) << tensor.name;
    }
    if (tensor.name.ends_with("q_proj.weight")) {
      EXPECT_NEAR(deviation, 1 / std::sqrt(256.0), 1e-3) << tensor.name;
    }
  }
}

TEST(synthetic, fp8_weights_have_the_size_of_bf16_ones) {
  Config config = load_config(kTinyConfig);
  config.quantization = QuantizationConfig{"fp8", 128, 128};
  const std::string name = "model.language_model.layers.0.mlp.experts.0.up_proj.weight";
  const auto codes = values_of({name, DType::kF8E4M3, {128, 256}, 128 * 256}, config, 1);
  const auto scale = values_of({name + "_scale_inv", DType::kBF16, {1, 2}, 4}, config, 1);
  const auto plain = values_of({name, DType::kBF16, {128, 256}, 128 * 256 * 2}, config, 1);
  const auto deviation = [](const std::vector<float>& v, double factor) {
    double squares = 0;
    for (const double x : v) squares += factor * x * factor * x;
    return std::sqrt(squares / static_cast<double>(v.size()));
  };
  EXPECT_NEAR(deviation(codes, scale[0]) / deviation(plain, 1.0), 1.0, 0.3);
  EXPECT_GT(*std::max_element(codes.begin(), codes.end()), 400.0f) << "codes span the format";
}

TEST(synthetic, sizes) {
  const auto base = read_json_file(kGoldens / "configs/published-bf16.json");
  SyntheticSize size;
  size.scale = 0.05;
  const Config small = parse_config(synthetic_config(base, size, false, false, false), "x");
  EXPECT_EQ(small.hidden_size, 128);
  EXPECT_EQ(small.moe_intermediate, 128);
  EXPECT_EQ(small.gdn_value_heads, 3 * small.gdn_key_heads);
  EXPECT_EQ(small.num_layers, 48);
  EXPECT_EQ(small.mtp_layers, 0);
  EXPECT_EQ(small.vision_json, "");
  EXPECT_LT(small.ple_eos_token, small.vocab_size);
  size = {};
  size.layers = 5;
  size.experts = 12;
  const Config five = parse_config(synthetic_config(base, size, true, true, true), "x");
  EXPECT_EQ(five.num_layers, 5);
  EXPECT_EQ(five.layer_kinds[3], LayerKind::kQsa);
  EXPECT_EQ(five.layer_kinds[4], LayerKind::kGdn);
  EXPECT_EQ(five.mtp_layers, 1);
  EXPECT_TRUE(five.quantization);
  EXPECT_NE(five.vision_json, "");
  size.layers = 1;  // the n-gram layer is layer 2
  EXPECT_TRUE(parse_config(synthetic_config(base, size, false, false, false), "x").ple_layers.empty());
  size.experts = 3;
  EXPECT_THROW(synthetic_config(base, size, false, false, false), LoadError) << "ten experts per token of three";
  size.scale = 0;
  EXPECT_THROW(synthetic_config(base, size, false, false, false), InputError);
  EXPECT_THROW(synthetic_config(nlohmann::json::array(), {}, false, false, false), InputError);
}

TEST(synth_command, writes_checkpoints_that_load) {
  for (const std::vector<std::string>& extra : std::vector<std::vector<std::string>>{
           {}, {"--weights", "fp8"}, {"--weights", "bf16,fp8", "--mtp", "--vision"}, {"--flat"}, {"--shard-mib", "4", "--layers", "6"}}) {
    const TempDir dir;
    std::vector<std::string> arguments{"--like", "tetrad-tiny", "--seed", "5", "--out", (dir / "m").string()};
    arguments.insert(arguments.end(), extra.begin(), extra.end());
    ASSERT_EQ(run_synth(arguments), 0);
    const Config config = load_config(dir / "m/config.json");
    const auto checkpoint = Checkpoint::open(dir / "m");
    EXPECT_NO_THROW(load_weights(checkpoint, config));
    EXPECT_EQ(checkpoint->declared_bytes(), checkpoint->total_bytes());
    EXPECT_TRUE(fs::exists(dir / "m/generation_config.json"));
    if (extra == std::vector<std::string>{"--shard-mib", "4", "--layers", "6"}) {
      EXPECT_GT(checkpoint->files().size(), 3u);
    }
  }
}

TEST(synth_command, refusals) {
  const TempDir dir;
  EXPECT_THROW(run_synth({"--like", "no-such-model", "--out", (dir / "m").string()}), InputError);
  EXPECT_THROW(run_synth({"--like", "tetrad-tiny", "--weights", "int4", "--out", (dir / "m").string()}), InputError);
  EXPECT_THROW(run_synth({"--like", "tetrad-tiny"}), CLI::RequiredError);
  EXPECT_THROW(run_synth({"--like", "tetrad-tiny", "--layers", "0", "--out", (dir / "m").string()}), CLI::ValidationError);
  fs::create_directories(dir / "full");
  test::write_bytes(dir / "full/model.safetensors", "x");
  EXPECT_THROW(run_synth({"--like", "tetrad-tiny", "--out", (dir / "full").string()}), InputError) << "nothing is overwritten";
}

}  // namespace
}  // namespace tetrad::synth_test

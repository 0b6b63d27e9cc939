#include <gtest/gtest.h>

#include <filesystem>

#include "io/checkpoint.h"
#include "model/config.h"
#include "model/load_weights.h"
#include "model/weights_table.h"

namespace tetrad {
namespace {

namespace fs = std::filesystem;

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
  options.mtp = std::any_of(checkpoint->tensors().begin(), checkpoint->tensors().end(), [](const auto& t) { return t.name.starts_with("mtp."); });
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

}  // namespace
}  // namespace tetrad

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "support/checkpoint_edit.h"

namespace tetrad::inspect_test {
namespace {

namespace fs = std::filesystem;
using test::TempDir;

const fs::path kGoldens = TETRAD_GOLDENS;
const fs::path kTiny = fs::path(TETRAD_MODELS) / "tetrad-tiny";

struct Outcome {
  int exit_code = -1;
  std::string text;
};

Outcome run_inspect(std::vector<std::string> arguments) {
  CLI::App app;
  Outcome outcome;
  cli::add_inspect(*app.add_subcommand("inspect"), outcome.exit_code);
  arguments.insert(arguments.begin(), "inspect");
  std::reverse(arguments.begin(), arguments.end());
  ::testing::internal::CaptureStdout();
  try {
    app.parse(arguments);
  } catch (...) {
    ::testing::internal::GetCapturedStdout();
    throw;
  }
  outcome.text = ::testing::internal::GetCapturedStdout();
  return outcome;
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const auto& part : parts) EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in:\n" << text;
}

TEST(inspect, a_sound_checkpoint) {
  const Outcome got = run_inspect({kTiny.string()});
  EXPECT_EQ(got.exit_code, 0);
  expect_parts(got.text, {"qwen4_exp", "3 gated delta net, 1 sparse attention", "draft head         present (31 tensors",
                          "vision tower       present (21 tensors", "166", "23465628", "in 3 files", "loads"});
}

TEST(inspect, json) {
  const Outcome got = run_inspect({kTiny.string(), "--json"});
  EXPECT_EQ(got.exit_code, 0);
  const auto json = nlohmann::json::parse(got.text);
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["tensors"], 166);
  EXPECT_EQ(json["bytes"], 23465628);
  EXPECT_EQ(json["mtp"], true);
  EXPECT_EQ(json["vision"], true);
  EXPECT_TRUE(json["problems"].empty());
  std::size_t count = 0;
  std::uint64_t bytes = 0;
  for (const auto& row : json["census"]) {
    count += row["count"].get<std::size_t>();
    bytes += row["bytes"].get<std::uint64_t>();
    EXPECT_NE(row["group"], "other") << "every tensor has a group";
  }
  EXPECT_EQ(count, 166u);
  EXPECT_EQ(bytes, 23465628u);
}

TEST(inspect, lists_every_problem_and_exits_2) {
  const TempDir dir;
  auto edit = test::read_checkpoint(kGoldens / "rand-small");
  edit.erase("lm_head.weight");
  edit.at("model.layers.0.mlp.gate.weight").shape = {64, 16};
  edit.write(dir.path());
  const Outcome got = run_inspect({dir.path().string()});
  EXPECT_EQ(got.exit_code, 2);
  expect_parts(got.text, {"refused", "lm_head.weight", "model.layers.0.mlp.gate.weight", "note: tokenizer.json is absent"});

  test::write_bytes(dir / "config.json", "{}");
  fs::resize_file(dir / "model.safetensors", fs::file_size(dir / "model.safetensors") - 1);
  const Outcome both = run_inspect({dir.path().string(), "--json"});
  EXPECT_EQ(both.exit_code, 2);
  const auto json = nlohmann::json::parse(both.text);
  EXPECT_EQ(json["problems"].size(), 2u) << "config and file, not only the first";
  EXPECT_EQ(json["ok"], false);
}

TEST(inspect, nowhere) {
  const Outcome got = run_inspect({"/nonexistent/model"});
  EXPECT_EQ(got.exit_code, 2);
  expect_parts(got.text, {"/nonexistent/model"});
  EXPECT_THROW(run_inspect({}), InputError);
}

TEST(inspect, expected_tensors_of_the_published_releases) {
  const Outcome bf16 = run_inspect({"--expect", (kGoldens / "configs/published-bf16.json").string()});
  EXPECT_EQ(bf16.exit_code, 0);
  expect_parts(bf16.text,
               {"model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_127.weight BF16 [2500012, 160] 800003840\n",
                "mtp.layers.0.mlp.experts.gate_up_proj BF16 [512, 1280, 2560] 3355443200\n",
                "model.visual.blocks.26.attn.qkv.weight BF16 [3456, 1152] 7962624\n", "\n1658 tensors, 359999963128 bytes\n"});
  const Outcome fp8 = run_inspect({"--expect", (kGoldens / "configs/published-fp8.json").string(), "--json"});
  const auto json = nlohmann::json::parse(fp8.text);
  EXPECT_EQ(json["count"], 152089);
  EXPECT_EQ(json["bytes"], 185502232570);
  EXPECT_EQ(json["tensors"].size(), 152089u);
}

TEST(inspect, a_checkpoint_against_another_config) {
  const Outcome got = run_inspect({kTiny.string(), "--expect", (kGoldens / "rand-heads/config.json").string()});
  EXPECT_EQ(got.exit_code, 2);
  expect_parts(got.text, {"refused", "embed_tokens.weight"});
}

}  // namespace
}  // namespace tetrad::inspect_test

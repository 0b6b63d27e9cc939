#include "engine/generation_config.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"

namespace tetrad::generation_config_test {
namespace {

GenerationConfig parse(std::string_view json) { return parse_generation_config(json, "generation_config.json", 4096); }

std::string error_of(std::string_view json) {
  try {
    parse(json);
  } catch (const LoadError& error) {
    return error.what();
  }
  return "";
}

TEST(generation_config, the_tiny_checkpoint) {
  const GenerationConfig config = load_generation_config(TETRAD_MODELS "/tetrad-tiny", 4096);
  EXPECT_EQ(config.stop_ids, (std::vector<int>{4034, 4032}));
  EXPECT_EQ(config.sampling.temperature, 0.7);
  EXPECT_EQ(config.sampling.top_k, 20);
  EXPECT_EQ(config.sampling.top_p, 0.95);
  EXPECT_EQ(config.sampling.min_p, 0.0);
  EXPECT_EQ(config.sampling.repetition_penalty, 1.0);
}

TEST(generation_config, without_do_sample_it_is_greedy) {
  EXPECT_TRUE(parse(R"({"temperature": 0.7, "do_sample": false})").sampling.greedy());
  EXPECT_TRUE(parse(R"({"temperature": 0.7})").sampling.greedy());
  EXPECT_TRUE(parse("{}").sampling.greedy());
  EXPECT_FALSE(parse(R"({"do_sample": true})").sampling.greedy());
}

TEST(generation_config, stop_ids_are_one_or_a_list) {
  EXPECT_EQ(parse(R"({"eos_token_id": 7})").stop_ids, (std::vector<int>{7}));
  EXPECT_EQ(parse(R"({"eos_token_id": [7, 9, 7]})").stop_ids, (std::vector<int>{7, 9}));
  EXPECT_TRUE(parse(R"({"eos_token_id": null})").stop_ids.empty());
  EXPECT_TRUE(parse(R"({"eos_token_id": []})").stop_ids.empty());
}

TEST(generation_config, whole_numbers_may_be_written_as_floats_and_unknown_fields_are_ignored) {
  const GenerationConfig config = parse(R"({"top_k": 50.0, "transformers_version": "5", "num_beams": 4, "top_p": null})");
  EXPECT_EQ(config.sampling.top_k, 50);
  EXPECT_EQ(config.sampling.top_p, 1.0);
}

TEST(generation_config, a_directory_without_the_file_is_greedy) {
  const GenerationConfig config = load_generation_config(::testing::TempDir(), 4096);
  EXPECT_TRUE(config.sampling.greedy());
  EXPECT_TRUE(config.stop_ids.empty());
}

TEST(generation_config, errors_name_file_field_and_value) {
  EXPECT_NE(error_of("nonsense").find("generation_config.json: not valid JSON"), std::string::npos);
  EXPECT_NE(error_of("[1]").find("expected an object, got array"), std::string::npos);
  EXPECT_NE(error_of(R"({"eos_token_id": 4096})").find("eos_token_id = 4096 is outside the vocabulary [0, 4096)"), std::string::npos);
  EXPECT_NE(error_of(R"({"eos_token_id": [1, -1]})").find("eos_token_id[1] = -1"), std::string::npos);
  EXPECT_NE(error_of(R"({"eos_token_id": "x"})").find("eos_token_id must be a whole number, got string"), std::string::npos);
  EXPECT_NE(error_of(R"({"eos_token_id": 1e99})").find("eos_token_id must be a whole number"), std::string::npos);
  EXPECT_NE(error_of(R"({"eos_token_id": 18446744073709551615})").find("eos_token_id must be a whole number"), std::string::npos);
  EXPECT_NE(error_of(R"({"top_k": 1.5})").find("top_k must be a whole number, got 1.5"), std::string::npos);
  EXPECT_NE(error_of(R"({"temperature": "hot"})").find("temperature must be a number, got string"), std::string::npos);
  EXPECT_NE(error_of(R"({"do_sample": 1})").find("do_sample must be true or false, got 1"), std::string::npos);
  EXPECT_NE(error_of(R"({"do_sample": true, "temperature": -1})").find("temperature must be between"), std::string::npos);
  EXPECT_NE(error_of(R"({"top_p": 0})").find("generation_config.json: top_p must be"), std::string::npos);
}

TEST(generation_config, hostile_files_are_bounded) {
  EXPECT_NE(error_of(std::string(100000, '[')).find("generation_config.json"), std::string::npos);
  EXPECT_NE(error_of(fmt::format("{{\"a\":{}{}}}", std::string(1000, '['), std::string(1000, ']'))).find("nested deeper"),
            std::string::npos);
  EXPECT_NE(error_of(fmt::format("{{}}{}", std::string(2 << 20, ' '))).find("more than"), std::string::npos);
  std::string ids = "0";
  for (int i = 1; i < 1000; ++i) ids += fmt::format(",{}", i);
  EXPECT_NE(error_of(fmt::format("{{\"eos_token_id\":[{}]}}", ids)).find("lists 1000 ids"), std::string::npos);
}

}  // namespace
}  // namespace tetrad::generation_config_test

#include "model/config.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/json_file.h"
#include "support/checkpoint_edit.h"

namespace tetrad::config_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kGoldens = TETRAD_GOLDENS;

json nested() { return read_json_file(kGoldens / "configs/published-bf16.json"); }
json flat() { return read_json_file(kGoldens / "rand-small/config.json"); }

std::string refusal(const json& config) {
  try {
    parse_config(config, "config.json");
  } catch (const LoadError& e) {
    return e.what();
  }
  return "";
}

// Both layouts of the same change are refused, with a message that names file and field and holds `parts`.
void expect_refused(const std::function<void(json&)>& change, const std::vector<std::string>& parts) {
  json wrapped = nested(), plain = flat();
  change(wrapped["text_config"]);
  change(plain);
  for (const auto& config : {wrapped, plain}) {
    const std::string message = refusal(config);
    EXPECT_NE(message, "") << "accepted";
    EXPECT_TRUE(message.starts_with("config.json: ")) << message;
    for (const auto& part : parts) EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in: " << message;
  }
}

void expect_field_refused(const std::string& field, const json& value, const std::string& expected = "expected") {
  expect_refused([&](json& text) { text[field] = value; }, {field, expected});
}

Config parse_flat(const std::function<void(json&)>& change) {
  json config = flat();
  change(config);
  return parse_config(config, "config.json");
}

TEST(config, published) {
  const Config c = parse_config(nested(), "x");
  EXPECT_EQ(c.vocab_size, 248320);
  EXPECT_EQ(c.hidden_size, 2560);
  EXPECT_EQ(c.num_layers, 48);
  for (int l = 0; l < 48; ++l) EXPECT_EQ(c.layer_kinds[static_cast<std::size_t>(l)], l % 4 == 3 ? LayerKind::kQsa : LayerKind::kGdn);
  EXPECT_EQ(c.max_positions, 262144);
  EXPECT_DOUBLE_EQ(c.rms_norm_eps, 1e-6);
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_EQ(c.streams_size(), 10240);
  EXPECT_EQ(c.hc_lowrank, 320);
  EXPECT_EQ(c.num_attention_heads, 24);
  EXPECT_EQ(c.num_kv_heads, 2);
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_EQ(c.rope.type, RopeType::kDefault);
  EXPECT_EQ(c.rope.rotary_dim, 64);
  EXPECT_DOUBLE_EQ(c.rope.theta, 1e7);
  EXPECT_EQ(c.rope.mrope_section, (std::array<int, 3>{11, 11, 10}));
  EXPECT_EQ(c.gdn_conv_dim(), 10240);
  EXPECT_EQ(c.gdn_value_size(), 6144);
  EXPECT_EQ(c.gdn_conv_width, 4);
  EXPECT_EQ(c.output_gate, OutputGate::kSigmoid);
  EXPECT_EQ(c.num_experts, 512);
  EXPECT_EQ(c.experts_per_token, 10);
  EXPECT_EQ(c.moe_intermediate, 640);
  EXPECT_EQ(c.shared_expert_intermediate, 640);
  EXPECT_TRUE(c.norm_topk_prob) << "absent: true";
  EXPECT_EQ(c.block_topk(), 512);
  EXPECT_EQ(c.ple_layers, (std::vector<int>{1})) << "layer 2 counted from one";
  EXPECT_TRUE(c.has_ple(1));
  EXPECT_FALSE(c.has_ple(2));
  EXPECT_EQ(c.ngram_heads(), 16);
  EXPECT_EQ(c.ngram_row_dim(), 160);
  EXPECT_EQ(c.ple_conv_rows(), 9);
  EXPECT_EQ(c.hash_seed, 1234) << "absent: 1234";
  EXPECT_EQ(c.split_ngram_parts, 128);
  EXPECT_EQ(c.ple_eos_token, 248044);
  EXPECT_EQ(c.bos_token, 248044);
  EXPECT_EQ(c.mtp_layers, 1);
  EXPECT_FALSE(c.quantization);
  EXPECT_EQ(c.model_type, "qwen4_exp");
  EXPECT_NE(c.vision_json.find("\"depth\":27"), std::string::npos);
}

TEST(config, published_fp8) {
  const Config c = load_config(kGoldens / "configs/published-fp8.json");
  ASSERT_TRUE(c.quantization);
  EXPECT_EQ(c.quantization->method, "fp8");
  EXPECT_EQ(c.quantization->block_rows, 128);
}

TEST(config, flat) {
  const Config c = parse_config(flat(), "x");
  EXPECT_EQ(c.num_layers, 6);
  EXPECT_EQ(c.layer_kinds[2], LayerKind::kQsa);
  EXPECT_EQ(c.layer_kinds[3], LayerKind::kGdn);
  EXPECT_EQ(c.block_topk(), 4) << "small budgets are legal";
  EXPECT_EQ(c.model_type, "qwen4_exp_text");
  EXPECT_EQ(c.vision_json, "");
  EXPECT_FALSE(c.bos_token) << "null is absent";
}

TEST(config, nested_and_flat_of_the_same_fields_agree) {
  json wrapped{{"model_type", "qwen4_exp"}, {"text_config", flat()}};
  const Config a = parse_config(wrapped, "x"), b = parse_config(flat(), "x");
  EXPECT_EQ(a.hidden_size, b.hidden_size);
  EXPECT_EQ(a.layer_kinds, b.layer_kinds);
  EXPECT_EQ(a.ngram_vocab_base, b.ngram_vocab_base);
}

// --- Structure ---

TEST(config, refuses_other_documents_and_models) {
  EXPECT_NE(refusal(json::array()), "");
  EXPECT_NE(refusal(json()), "");
  EXPECT_NE(refusal(json::object()).find("model_type"), std::string::npos);
  json other = flat();
  other["model_type"] = "qwen3_next";
  EXPECT_NE(refusal(other).find("qwen3_next"), std::string::npos);
  json bad = nested();
  bad["text_config"] = 3;
  EXPECT_NE(refusal(bad).find("text_config"), std::string::npos);
  bad = nested();
  bad["text_config"]["model_type"] = "llama";
  EXPECT_NE(refusal(bad).find("llama"), std::string::npos);
}

TEST(config, contradictions_between_the_levels_are_refused) {
  json config = nested();
  config["max_position_embeddings"] = 4096;
  EXPECT_NE(refusal(config).find("max_position_embeddings is 4096 at the top level and 262144 in text_config"), std::string::npos)
      << refusal(config);
  config["max_position_embeddings"] = 262144;
  EXPECT_EQ(refusal(config), "");
  config["rope_parameters"] = config["text_config"]["rope_parameters"];
  EXPECT_EQ(refusal(config), "");
  config["rope_parameters"]["rope_theta"] = 10000.0;
  EXPECT_NE(refusal(config).find("rope_parameters"), std::string::npos);
}

TEST(config, a_field_only_at_the_top_level_counts) {
  json config = nested();
  config["rope_parameters"] = config["text_config"]["rope_parameters"];
  config["rope_parameters"]["rope_theta"] = 5e6;
  config["text_config"].erase("rope_parameters");
  EXPECT_DOUBLE_EQ(parse_config(config, "x").rope.theta, 5e6);
}

TEST(config, every_size_is_required_and_range_checked) {
  for (const char* field : {"vocab_size",
                            "hidden_size",
                            "num_hidden_layers",
                            "max_position_embeddings",
                            "hc_count",
                            "hc_lowrank",
                            "num_attention_heads",
                            "num_key_value_heads",
                            "head_dim",
                            "linear_num_key_heads",
                            "linear_num_value_heads",
                            "linear_key_head_dim",
                            "linear_value_head_dim",
                            "linear_conv_kernel_dim",
                            "num_experts",
                            "num_experts_per_tok",
                            "moe_intermediate_size",
                            "shared_expert_intermediate_size",
                            "indexer_n_heads",
                            "indexer_kv_heads",
                            "indexer_head_dim",
                            "indexer_budget",
                            "indexer_compress_ratio"}) {
    SCOPED_TRACE(field);
    expect_refused([&](json& text) { text.erase(field); }, {field, "no such field"});
    expect_field_refused(field, nullptr);
    expect_field_refused(field, 0);
    expect_field_refused(field, -1);
    expect_field_refused(field, 1.5);
    expect_field_refused(field, "4");
    expect_field_refused(field, true);
    expect_field_refused(field, json::array({1}));
    expect_field_refused(field, std::int64_t{1} << 40);
    expect_field_refused(field, std::uint64_t{1} << 63);
    expect_field_refused(field, std::numeric_limits<std::int64_t>::min());
  }
}

TEST(config, rules_of_single_fields) {
  expect_field_refused("hc_count", 1, "[2, ");
  expect_field_refused("indexer_compress_ratio", 1, "[2, ");
  expect_field_refused("indexer_kv_heads", 2, "one key head");
  expect_field_refused("hidden_act", "gelu", "silu");
  expect_field_refused("attention_bias", true, "no bias");
  expect_field_refused("attention_bias", "no", "true or false");
  expect_field_refused("output_gate_type", "tanh", "sigmoid or silu");
  expect_field_refused("output_gate_type", 1, "a text");
  expect_field_refused("norm_topk_prob", 1, "true or false");
  expect_field_refused("rms_norm_eps", 0, "a number");
  expect_field_refused("rms_norm_eps", "1e-6", "a number");
  expect_field_refused("linear_conv_kernel_dim", 1, "[2, ");
  expect_field_refused("mtp_num_hidden_layers", -1, "[0, ");
  expect_field_refused("bos_token_id", 1 << 20, "[0, ");
}

TEST(config, rules_between_fields) {
  expect_field_refused("num_experts_per_tok", 513, "num_experts");
  expect_refused([](json& text) { text["indexer_budget"] = 18; }, {"indexer_budget", "multiple of indexer_compress_ratio = 4", "18"});
  expect_refused([](json& text) { text["num_attention_heads"] = 25; }, {"num_attention_heads", "multiple of num_key_value_heads"});
  expect_refused([](json& text) { text["linear_num_value_heads"] = 49; }, {"linear_num_value_heads", "multiple of linear_num_key_heads"});
  expect_refused([](json& text) { text["indexer_head_dim"] = 4; }, {"rotary dimension", "at most indexer_head_dim = 4"});
  expect_refused([](json& text) { text["ple_embed_dim"] = 100; }, {"ple_embed_dim", "n-gram heads", "= 16"});
}

// --- Layers ---

TEST(config, layer_type_names) {
  for (const char* alias : {"full_attention", "qwen_sparse_attention", "deepseek_sparse_attention", "hybrid_indexed"})
    EXPECT_EQ(parse_flat([&](json& c) { c["layer_types"][2] = alias; }).layer_kinds[2], LayerKind::kQsa) << alias;
  expect_refused([](json& text) { text["layer_types"][2] = "sliding_attention"; }, {"layer_types[2]", "sliding_attention"});
  expect_refused([](json& text) { text["layer_types"][2] = 1; }, {"layer_types[2]"});
  expect_refused([](json& text) { text["layer_types"].push_back("linear_attention"); }, {"layer_types", "entries"});
  expect_field_refused("layer_types", "linear_attention", "a list");
}

TEST(config, layer_types_from_the_interval) {
  const auto kinds = [](const Config& c) {
    std::string text;
    for (const auto kind : c.layer_kinds) text += kind == LayerKind::kQsa ? 'Q' : 'G';
    return text;
  };
  EXPECT_EQ(kinds(parse_flat([](json& c) { c.erase("layer_types"); })), "GGGQGG") << "every fourth";
  EXPECT_EQ(kinds(parse_flat([](json& c) {
              c.erase("layer_types");
              c["full_attention_interval"] = 3;
            })),
            "GGQGGQ");
  EXPECT_EQ(kinds(parse_flat([](json& c) { c["full_attention_interval"] = 2; })), "GGQGGQ") << "the list wins over the hint";
  expect_field_refused("full_attention_interval", 0);
}

// --- Gate, experts, defaults ---

TEST(config, output_gate_falls_back_to_the_hidden_activation) {
  EXPECT_EQ(parse_flat([](json& c) { c.erase("output_gate_type"); }).output_gate, OutputGate::kSilu);
  EXPECT_EQ(parse_flat([](json& c) { c["output_gate_type"] = nullptr; }).output_gate, OutputGate::kSilu);
  EXPECT_EQ(parse_flat([](json& c) { c["output_gate_type"] = "silu"; }).output_gate, OutputGate::kSilu);
  EXPECT_EQ(parse_flat([](json&) {}).output_gate, OutputGate::kSigmoid);
}

TEST(config, defaults_of_absent_fields) {
  const Config c = parse_flat([](json& j) {
    for (const char* field :
         {"seed", "norm_topk_prob", "rms_norm_eps", "ple_conv_kernel_size", "ngram_size", "heads_per_ngram", "ngram_vocab_size_base",
          "make_ngram_vocab_size_divisible_by", "ple_embed_dim", "hidden_act", "attention_bias", "tie_word_embeddings"})
      j.erase(field);
  });
  EXPECT_EQ(c.hash_seed, 1234);
  EXPECT_TRUE(c.norm_topk_prob);
  EXPECT_DOUBLE_EQ(c.rms_norm_eps, 1e-6);
  EXPECT_EQ(c.ple_conv_width, 4);
  EXPECT_EQ(c.ngram_size, 3);
  EXPECT_EQ(c.heads_per_ngram, 8);
  EXPECT_EQ(c.ngram_vocab_base, 20'000'000);
  EXPECT_EQ(c.ngram_vocab_divisor, 128);
  EXPECT_EQ(c.ple_embed_dim, 64) << "the hidden size";
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_FALSE(parse_flat([](json& j) { j["norm_topk_prob"] = false; }).norm_topk_prob);
  EXPECT_EQ(parse_flat([](json& j) { j["seed"] = -5; }).hash_seed, -5);
}

TEST(config, other_geometries) {
  const Config c = parse_flat([](json& j) {
    j["hc_count"] = 3;
    j["indexer_compress_ratio"] = 8;
    j["ngram_size"] = 4;
    j["heads_per_ngram"] = 4;
    j["ple_embed_dim"] = 60;
    j["ple_layer_ids"] = {5, 1, 5};
    j["num_experts_per_tok"] = 16;
  });
  EXPECT_EQ(c.hc_count, 3);
  EXPECT_EQ(c.block_topk(), 2);
  EXPECT_EQ(c.ngram_heads(), 12);
  EXPECT_EQ(c.ngram_row_dim(), 5);
  EXPECT_EQ(c.ple_conv_rows(), 12);
  EXPECT_EQ(c.ple_layers, (std::vector<int>{0, 4})) << "sorted, without repeats, counted from zero";
  EXPECT_EQ(c.ple_index(4), 1);
  EXPECT_EQ(c.ple_index(3), -1);
}

// --- N-gram embedding ---

TEST(config, ple_layers) {
  expect_refused([](json& text) { text["ple_layer_ids"] = {0}; }, {"ple_layer_ids", "counted from one", "0"});
  expect_refused([](json& text) { text["ple_layer_ids"] = {49}; }, {"ple_layer_ids", "49"});
  expect_refused([](json& text) { text["ple_layer_ids"] = {"2"}; }, {"ple_layer_ids"});
  expect_refused([](json& text) { text["ple_layer_ids"] = 2; }, {"ple_layer_ids", "a list"});
  expect_refused([](json& text) { text["ple_layer_ids"] = {text["num_hidden_layers"] == 6 ? 3 : 4}; },
                 {"ple_layer_ids", "linear_attention layers only"});
  expect_field_refused("ngram_size", 1, "[2, ");
  expect_field_refused("heads_per_ngram", 0);
  expect_field_refused("ngram_vocab_size_base", 1);
  expect_field_refused("ngram_vocab_size_base", std::int64_t{1} << 50);
  expect_field_refused("make_ngram_vocab_size_divisible_by", 0);
  expect_field_refused("ple_conv_kernel_size", 1);
  expect_field_refused("seed", 1.5);
  expect_refused(
      [](json& text) {
        text["ngram_size"] = 16;
        text["heads_per_ngram"] = 256;
        text["ple_embed_dim"] = 15 * 256;
      },
      {"heads_per_ngram", "2048"});
}

TEST(config, without_ple_every_size_of_it_is_empty) {
  for (const json& ids : {json::array(), json()}) {
    const Config c = parse_flat([&](json& j) {
      j["ple_layer_ids"] = ids;
      j["ngram_size"] = 0;  // not looked at
      j.erase("eos_token_id");
    });
    EXPECT_TRUE(c.ple_layers.empty());
    EXPECT_EQ(c.ple_conv_rows(), 0);
    EXPECT_EQ(c.ngram_size - 1, 0) << "no history is kept";
  }
}

TEST(config, end_of_text) {
  EXPECT_EQ(parse_flat([](json& j) { j["eos_token_id"] = {7, 1}; }).ple_eos_token, 7) << "the first of a list";
  expect_refused([](json& text) { text.erase("eos_token_id"); }, {"eos_token_id", "n-gram contexts are cut at it"});
  expect_field_refused("eos_token_id", json::array(), "empty list");
  expect_field_refused("eos_token_id", -1);
  expect_field_refused("eos_token_id", 1 << 22);
  expect_field_refused("eos_token_id", json::array({1, "x"}));
  json config = nested();
  config["eos_token_id"] = 248046;  // generation's, not the segment id
  EXPECT_EQ(parse_config(config, "x").ple_eos_token, 248044);
}

// --- Rotary ---

TEST(config, rope_older_spelling) {
  const Config c = parse_flat([](json& j) {
    j.erase("rope_parameters");
    j["rope_theta"] = 1e6;
    j["partial_rotary_factor"] = 0.5;
    j["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 1024}, {"mrope_section", {3, 3, 2}}};
  });
  EXPECT_EQ(c.rope.type, RopeType::kYarn);
  EXPECT_DOUBLE_EQ(c.rope.theta, 1e6);
  EXPECT_EQ(c.rope.rotary_dim, 16);
  EXPECT_DOUBLE_EQ(c.rope.yarn_factor, 4.0);
  EXPECT_EQ(c.rope.yarn_original_positions, 1024);
  EXPECT_EQ(c.rope.mrope_section, (std::array<int, 3>{3, 3, 2}));
  const Config plain = parse_flat([](json& j) {
    j.erase("rope_parameters");
    j["rope_theta"] = 1e6;
  });
  EXPECT_EQ(plain.rope.type, RopeType::kDefault);
  EXPECT_EQ(plain.rope.rotary_dim, 32) << "the whole head without a factor";
}

TEST(config, rope_yarn) {
  const Config c = parse_flat([](json& j) {
    j["rope_parameters"].update({{"rope_type", "yarn"}, {"factor", 2.0}, {"beta_fast", 16}, {"beta_slow", 2}, {"attention_factor", 1.25}});
  });
  EXPECT_EQ(c.rope.type, RopeType::kYarn);
  EXPECT_EQ(c.rope.yarn_original_positions, 4096) << "max_position_embeddings, when not given";
  EXPECT_DOUBLE_EQ(c.rope.yarn_beta_fast, 16);
  EXPECT_DOUBLE_EQ(c.rope.yarn_beta_slow, 2);
  EXPECT_DOUBLE_EQ(c.rope.yarn_attention_factor.value(), 1.25);
  const auto yarn = [](const char* key, const json& value) {
    return [=](json& text) {
      text["rope_parameters"]["rope_type"] = "yarn";
      text["rope_parameters"]["factor"] = 2.0;
      if (value.is_null())
        text["rope_parameters"].erase(key);
      else
        text["rope_parameters"][key] = value;
    };
  };
  expect_refused(yarn("factor", nullptr), {"rope_parameters.factor"});
  expect_refused(yarn("factor", 0.5), {"rope_parameters.factor"});
  expect_refused(yarn("original_max_position_embeddings", 0), {"original_max_position_embeddings"});
  expect_refused(yarn("beta_fast", 0.5), {"beta_fast", "beta_slow"});
  expect_refused(yarn("attention_factor", -1), {"attention_factor"});
  expect_refused(yarn("mscale", 1), {"mscale", "not supported"});
  expect_refused(yarn("truncate", false), {"truncate"});
}

TEST(config, rope_refusals) {
  for (const char* type : {"linear", "dynamic", "longrope", "llama3", "mrope"})
    expect_refused([&](json& text) { text["rope_parameters"]["rope_type"] = type; }, {"rope_type", "default or yarn", type});
  expect_refused([](json& text) { text["rope_parameters"].erase("rope_theta"); }, {"rope_theta"});
  expect_refused([](json& text) { text["rope_parameters"]["rope_theta"] = 0; }, {"rope_theta"});
  expect_refused([](json& text) { text["rope_theta"] = 1e4; }, {"rope_theta", "10000"});
  expect_refused([](json& text) { text["partial_rotary_factor"] = 0.5; }, {"partial_rotary_factor", "0.5"});
  expect_refused([](json& text) { text["rope_scaling"] = {{"rope_type", "default"}}; }, {"rope_scaling"});
  expect_refused([](json& text) { text["rope_parameters"]["type"] = "yarn"; }, {"type"});
  expect_refused([](json& text) { text["rope_parameters"] = "default"; }, {"rope_parameters", "an object"});
  for (const json& section : {json(3), json::array({1, 2}), json::array({1, 2, -3}), json::array({1, 2, "3"})})
    expect_refused([&](json& text) { text["rope_parameters"]["mrope_section"] = section; }, {"mrope_section"});
  for (const double factor : {0.0, 1.5, -0.25})
    expect_refused(
        [&](json& text) {
          text["rope_parameters"]["partial_rotary_factor"] = factor;
          text.erase("partial_rotary_factor");
        },
        {"partial_rotary_factor"});
  // 32 * 0.1 = 3 and 256 * 0.02 = 5: odd numbers of dimensions
  const Config c = parse_config(flat(), "x");
  EXPECT_EQ(c.rope.rotary_dim, 8);
  json odd = flat();
  odd["rope_parameters"]["partial_rotary_factor"] = 0.1;
  EXPECT_NE(refusal(odd).find("even number"), std::string::npos);
}

// --- Tie flag, quantization, MTP, vision ---

TEST(config, tie_flag_at_both_levels_the_outer_decides) {
  const json absent;
  for (const auto& [outer, inner, expected] : {std::tuple{json(true), json(false), true},
                                               {json(false), json(true), false},
                                               {json(true), absent, true},
                                               {absent, json(true), true},
                                               {absent, json(false), false},
                                               {absent, absent, false},
                                               {json(true), json(true), true}}) {
    json config = nested();
    config["tie_word_embeddings"] = outer;
    config["text_config"]["tie_word_embeddings"] = inner;
    EXPECT_EQ(parse_config(config, "x").tie_word_embeddings, expected) << outer << " " << inner;
  }
  EXPECT_TRUE(parse_flat([](json& j) { j["tie_word_embeddings"] = true; }).tie_word_embeddings);
  expect_field_refused("tie_word_embeddings", 1, "true or false");
}

TEST(config, quantization) {
  const auto quantized = [](const json& group) { return parse_flat([&](json& j) { j["quantization_config"] = group; }).quantization; };
  EXPECT_FALSE(quantized(nullptr));
  EXPECT_EQ(quantized({{"quant_method", "fp8"}})->block_columns, 128);
  EXPECT_EQ(quantized({{"quant_method", "fp8"}, {"weight_block_size", {64, 32}}})->block_rows, 64);
  for (const char* method : {"modelopt", "gptq", "awq", "compressed-tensors"})
    expect_refused([&](json& text) { text["quantization_config"] = {{"quant_method", method}}; }, {"quant_method", method, "NVFP4"});
  expect_refused([](json& text) { text["quantization_config"] = json::object(); }, {"quant_method"});
  expect_refused([](json& text) { text["quantization_config"] = 1; }, {"quantization_config"});
  for (const json& block : {json(128), json::array({128}), json::array({0, 128}), json::array({128, -1}), json::array({"a", 1})})
    expect_refused(
        [&](json& text) {
          text["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", block}};
        },
        {"weight_block_size"});
  expect_refused([](json& text) { text["quantization_config"] = {{"quant_method", "fp8"}, {"fmt", "e5m2"}}; }, {"fmt", "e4m3"});
  expect_refused(
      [](json& text) {
        text["quantization_config"] = {{"quant_method", "fp8"}, {"activation_scheme", "static"}};
      },
      {"activation_scheme"});
}

TEST(config, draft_layers) {
  EXPECT_EQ(parse_flat([](json&) {}).mtp_layers, 0);
  EXPECT_EQ(parse_flat([](json& j) { j["mtp"] = {{"num_hidden_layers", 2}}; }).mtp_layers, 2);
  EXPECT_EQ(parse_flat([](json& j) { j["mtp_num_hidden_layers"] = 1; }).mtp_layers, 1);
  expect_refused([](json& text) { text["mtp"] = {{"num_hidden_layers", -1}}; }, {"mtp.num_hidden_layers"});
}

TEST(config, vision_does_not_hinder_text) {
  json config = nested();
  config["vision_config"] = {{"num_heads", 3}};
  EXPECT_EQ(refusal(config), "");
  config["vision_config"] = 3;
  EXPECT_NE(refusal(config).find("vision_config"), std::string::npos);
  config.erase("vision_config");
  EXPECT_EQ(parse_config(config, "x").vision_json, "");
}

TEST(load_config, names_the_file) {
  const test::TempDir dir;
  test::write_bytes(dir / "config.json", "{\"model_type\":");
  for (const auto& path : {dir / "config.json", dir / "absent.json"}) {
    try {
      load_config(path);
      FAIL();
    } catch (const LoadError& e) {
      EXPECT_NE(std::string(e.what()).find(path.string()), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace tetrad::config_test

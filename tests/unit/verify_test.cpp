// `tetrad verify` must not pass what it did not compare: damaged, empty and undecided goldens (engine/verify.h, engine/verify_text.h).
#include "engine/verify.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "engine/golden_json.h"
#include "engine/verify_text.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "support/checkpoint_edit.h"
#include "support/loaded_model.h"

namespace tetrad::verify_test {
namespace {

using nlohmann::json;

const std::filesystem::path kTiny = TETRAD_MODELS "/tetrad-tiny";

template <class E>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "(nothing thrown)";
}

void expect_part(const std::string& text, const std::string& part) { EXPECT_NE(text.find(part), std::string::npos) << text; }

json read_json(const std::string& name) { return json::parse(std::ifstream(kTiny / name)); }

// Answers of a checkpoint with random weights: no golden, but enough to see what verify_generation makes of a file.
class Answers : public ::testing::Test {
 protected:
  std::vector<TextCheck> check(const json& golden) {
    test::write_bytes(file_, golden.dump());
    return verify_generation(file_, *model_.pool, tokenizer_);
  }
  std::string refusal(const json& golden) {
    return message_of<LoadError>([&] { check(golden); });
  }

  test::TempDir folder_;
  std::filesystem::path file_ = folder_ / "golden-generate.json";
  json golden_ = read_json("golden-generate.json");
  test::LoadedModel model_{kTiny};
  Tokenizer tokenizer_ = Tokenizer::load(kTiny / "tokenizer.json");
};

TEST_F(Answers, undecided_cases_are_reported_and_keep_their_number) {
  golden_["cases"].erase(golden_["cases"].begin() + 3, golden_["cases"].end());
  json& other = golden_["cases"][1]["gpu_bf16"];
  other["ids"] = {50, 282};
  other["text"] = tokenizer_.decode(std::vector<int>{50, 282});
  const std::vector<TextCheck> checks = check(golden_);
  ASSERT_EQ(checks.size(), 3u);
  EXPECT_TRUE(checks[1].undecided);
  EXPECT_TRUE(checks[1].pass());
  EXPECT_EQ(checks[1].checked, 0);
  expect_part(checks[1].note, "undecided: the reference's own runs differ");
  EXPECT_FALSE(checks[2].undecided);
  EXPECT_TRUE(checks[2].pass()) << checks[2].note;
  expect_part(checks[2].what, "case 2");
}

TEST_F(Answers, ids_changed_in_the_file_fail) {
  golden_["cases"].erase(golden_["cases"].begin() + 1, golden_["cases"].end());
  json one_run = golden_, both_runs = golden_;
  one_run["cases"][0]["cpu_bf16"]["ids"][2] = 7;
  for (const char* run : {"cpu_bf16", "gpu_bf16"}) {
    both_runs["cases"][0][run]["ids"][2] = 7;
    both_runs["cases"][0][run]["text"] = tokenizer_.decode(both_runs["cases"][0][run]["ids"].get<std::vector<int>>());
  }
  EXPECT_FALSE(check(one_run)[0].pass());
  expect_part(check(one_run)[0].note, "the recorded ids do not give the recorded text");
  EXPECT_FALSE(check(both_runs)[0].pass());
  expect_part(check(both_runs)[0].note, "token 2 of the answer");
}

TEST_F(Answers, a_damaged_file_names_the_field) {
  const auto without = [&](const json::json_pointer& place) {
    json copy = golden_;
    copy[place.parent_pointer()].erase(place.back());
    return copy;
  };
  const auto with = [&](const json::json_pointer& place, const json& value) {
    json copy = golden_;
    copy[place] = value;
    return copy;
  };
  using Pointer = json::json_pointer;
  expect_part(refusal(json::array()), "golden-generate.json: expected an object, got array");
  expect_part(refusal({{"cases", json::array()}}), "golden-generate.json: cases: the list is empty");
  expect_part(refusal(json::object()), "golden-generate.json: cases: missing");
  expect_part(refusal(without(Pointer("/cases/0/gpu_bf16"))), "cases[0].gpu_bf16: missing");
  expect_part(refusal(without(Pointer("/cases/0/cpu_bf16/margin"))), "cases[0].cpu_bf16.margin: missing");
  expect_part(refusal(with(Pointer("/cases/0/prompt_ids"), "x")), "cases[0].prompt_ids: expected a list of token ids, got string");
  expect_part(refusal(with(Pointer("/cases/0/cpu_bf16/ids"), json::array())), "cases[0].cpu_bf16.ids: an answer has at least one token");
  expect_part(refusal(with(Pointer("/cases/0/cpu_bf16/ids/1"), -1)), "cases[0].cpu_bf16.ids: entry 1 is -1, expected a token id");
  expect_part(refusal(with(Pointer("/cases/0/cpu_bf16/ids/1"), 1.5)), "entry 1 is 1.5");
  expect_part(refusal(with(Pointer("/cases/0/prompt_ids/0"), 1 << 20)), "cases[0]: prompt token 0 has id 1048576");
  expect_part(refusal(with(Pointer("/cases/0/cpu_bf16/text"), nullptr)), "cases[0].cpu_bf16.text: expected a string, got null");
}

TEST(verify_text, damaged_tokenizer_and_template_goldens_name_the_field) {
  const test::TempDir folder;
  const auto file = folder / "golden.json";
  const Tokenizer tokenizer = Tokenizer::load(kTiny / "tokenizer.json");
  const ChatTemplate chat_template = ChatTemplate::load(kTiny);
  const auto refusals = [&](const std::string& text) {
    test::write_bytes(file, text);
    return message_of<LoadError>([&] { verify_tokenizer(file, tokenizer); }) + "\n" +
           message_of<LoadError>([&] { verify_template(file, chat_template, tokenizer); });
  };
  for (const char* text :
       {"[]", "{}", "[1]", "[{}]", "[", R"([{"text": 1, "ids": []}])", R"([{"rendered": "", "ids": [], "messages": 1}])"})
    EXPECT_EQ(refusals(text).find("nothing thrown"), std::string::npos) << text << "\n" << refusals(text);
  expect_part(refusals("[{}]"), "golden.json: [0].text: missing");
  expect_part(refusals("[{}]"), "golden.json: [0].rendered: missing");
  expect_part(refusals("["), "golden.json: not valid JSON");
}

// Copies the golden tensors that `keep` wants, `change` applied to the bytes of each.
void copy_goldens(const std::filesystem::path& to, const std::function<bool(const std::string&)>& keep,
                  const std::function<void(const std::string&, std::vector<std::byte>&)>& change = {}) {
  const SafetensorsFile from = SafetensorsFile::open(test::golden_directory("rand-small") / "golden.safetensors");
  std::vector<TensorSpec> specs;
  for (const TensorInfo& info : from.tensors())
    if (keep(info.name)) specs.push_back({info.name, info.dtype, info.shape});
  SafetensorsWriter writer(to, specs);
  for (const TensorSpec& spec : specs) {
    const auto bytes = from.bytes(from.at(spec.name));
    std::vector<std::byte> copy(bytes.begin(), bytes.end());
    if (change) change(spec.name, copy);
    writer.write(copy);
  }
  writer.finish();
}

class Tensors : public ::testing::Test {
 protected:
  // A description of the first `count` cases, as it lies beside the tensors.
  void describe(std::size_t count) {
    json description = json::parse(std::ifstream(test::golden_directory("rand-small") / "golden.json"));
    description["cases"].erase(description["cases"].begin() + static_cast<std::ptrdiff_t>(count), description["cases"].end());
    test::write_bytes(folder_ / "golden.json", description.dump());
  }
  std::string refusal() {
    return message_of<LoadError>([&] { verify_goldens(*model_.pool, file_); });
  }

  test::TempDir folder_;
  std::filesystem::path file_ = folder_ / "golden.safetensors";
  test::LoadedModel model_{test::golden_directory("rand-small")};
};

TEST_F(Tensors, without_stages_nothing_is_verified) {
  describe(1);
  copy_goldens(file_, [](const std::string& name) { return name.starts_with("case0."); });
  const VerifyReport report = verify_goldens(*model_.pool, file_);
  EXPECT_EQ(report.rows.size(), 2u);
  EXPECT_FALSE(report.passed());
  expect_part(report.table(), "FAIL: no stage was compared");
}

TEST_F(Tensors, runs_that_lie_far_apart_are_damage) {
  describe(1);
  copy_goldens(
      file_, [](const std::string& name) { return name.starts_with("case0."); },
      [](const std::string& name, std::vector<std::byte>& bytes) {
        const float wide = 1e6f;
        if (name == "case0.logits.f32_cpu") std::memcpy(bytes.data(), &wide, sizeof wide);
      });
  expect_part(message_of<LoadError>([&] { verify_goldens(*model_.pool, file_); }),
              "case0.logits: the reference's runs f32_cpu and bf16_cpu lie");
}

TEST_F(Tensors, a_case_missing_from_the_middle_is_damage) {
  describe(1);
  copy_goldens(file_, [](const std::string& name) { return name.starts_with("case0.") || name.starts_with("case2."); });
  expect_part(message_of<LoadError>([&] { verify_goldens(*model_.pool, file_); }), "belongs to no case from 0 to 0");
}

TEST_F(Tensors, what_the_description_names_must_be_there) {
  describe(8);
  copy_goldens(file_, [](const std::string& name) { return !name.starts_with("case7."); });
  expect_part(refusal(), "case7.tokens is missing");
  copy_goldens(file_, [](const std::string& name) { return !name.starts_with("case5.layer") && !name.starts_with("case5.final"); });
  expect_part(refusal(), "cases[5].taps: case 5 holds 0 stages");
  describe(7);
  copy_goldens(file_, [](const std::string& name) { return name.starts_with("case"); });
  expect_part(refusal(), "holds 8 cases, golden.json beside it describes 7");
  std::filesystem::remove(folder_ / "golden.json");
  expect_part(refusal(), "golden.json");
}

TEST_F(Tensors, a_gpu_spread_that_no_rounding_explains_is_damage) {
  copy_goldens(file_, [](const std::string& name) { return name.starts_with("case0."); });
  const auto refused = [&](const std::string& stages, const std::string& logits) {
    describe(1);
    json description = json::parse(std::ifstream(folder_ / "golden.json"));
    description["gpu_spread"] = json::parse(R"({"stages": )" + stages + R"(, "logits": )" + logits + "}");
    test::write_bytes(folder_ / "golden.json", description.dump());
    return refusal();
  };
  expect_part(refused(R"([1])", "{}"), "gpu_spread.stages: expected an object");
  expect_part(refused("{}", "3"), "gpu_spread.logits: expected an object");
  expect_part(refused(R"({"case0.final.mixed": {"l2": 0.5, "unequal": 0}})", "{}"), "l2: 0.5 is outside 0 to 0.05");
  expect_part(refused(R"({"case0.final.mixed": {"l2": 0.001, "unequal": "all"}})", "{}"), "unequal: expected a number");
  expect_part(refused("{}", R"({"case0.logits": {"regret": 0, "mean": 50, "p99": 0.1}})"), "mean: 50 is outside 0 to ");
  expect_part(refused("{}", R"({"case0.logits": {"regret": 0, "mean": 0.01}})"), "p99: missing");
  EXPECT_EQ(
      refused(R"({"case0.final.mixed": {"l2": 0.001, "unequal": 0.01}})", R"({"case0.logits": {"regret": 0, "mean": 0.01, "p99": 0.1}})"),
      "(nothing thrown)");
}

TEST_F(Tensors, ids_outside_the_vocabulary_are_damage) {
  describe(1);
  copy_goldens(
      file_, [](const std::string& name) { return name.starts_with("case0."); },
      [](const std::string& name, std::vector<std::byte>& bytes) {
        if (name == "case0.tokens") bytes[3] = std::byte{0x7f};
      });
  expect_part(message_of<LoadError>([&] { verify_goldens(*model_.pool, file_); }), "case0.tokens: id ");
}

}  // namespace
}  // namespace tetrad::verify_test

// Files that a reader could take for something else: bytes after a NUL, links to nothing, sizes that no machine has.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "cpu/cpu_backend.h"
#include "engine/generation_config.h"
#include "io/checkpoint.h"
#include "io/json_file.h"
#include "io/safetensors.h"
#include "model/check_batch.h"
#include "model/config.h"
#include "support/checkpoint_edit.h"
#include "support/loaded_model.h"
#include "text/chat_template.h"
#include "text/json_bounded.h"
#include "text/unicode.h"

namespace tetrad::hostile_files_test {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;

template <class Error, class Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void expect_contains(const std::string& message, const std::string& part) { EXPECT_NE(message.find(part), std::string::npos) << message; }

TEST(hostile_files, a_nul_byte_does_not_end_json) {
  const std::string text = "{\"a\": 1}\0{garbage"s;
  expect_contains(message_of<LoadError>([&] { parse_json(text, "config.json"); }), "config.json: not valid JSON: a NUL byte at 8");
  expect_contains(message_of<InputError>([&] { parse_json_bounded(text, "messages"); }), "messages: not valid JSON: a NUL byte at 8");
  expect_contains(message_of<LoadError>([&] { parse_generation_config(text, "generation_config.json", 10); }), "a NUL byte at 8");
}

std::string safetensors_message(const std::string& header) {
  std::vector<std::byte> file(8 + header.size());
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<std::byte>(header.size() >> 8 * i & 0xff);
  for (std::size_t i = 0; i < header.size(); ++i) file[8 + i] = static_cast<std::byte>(header[i]);
  return message_of<LoadError>([&] { parse_safetensors_header(file, "x.safetensors"); });
}

TEST(hostile_files, a_safetensors_header_is_one_object_and_nothing_else) {
  EXPECT_EQ(safetensors_message("{}      "), "nothing was thrown");
  expect_contains(safetensors_message("{}\0,\"evil\":{}"s), "x.safetensors: the header has a NUL byte at 2");
  expect_contains(safetensors_message("{\"a\":null}"), "x.safetensors: tensor a: null where its header entry, an object, should be");
  expect_contains(safetensors_message(" {}"), "x.safetensors: the header begins with byte 32");
  expect_contains(safetensors_message("\xef\xbb\xbf{}"), "x.safetensors: the header begins with byte 239");
}

TEST(hostile_files, a_link_to_nothing_is_not_an_absent_file) {
  const test::TempDir directory;
  fs::create_symlink("gone.json", directory.path() / "generation_config.json");
  fs::create_symlink("chat_template.jinja", directory.path() / "chat_template.jinja");  // to itself
  expect_contains(message_of<LoadError>([&] { load_generation_config(directory.path(), 10); }),
                  "generation_config.json: not a regular file");
  expect_contains(message_of<Error>([&] { ChatTemplate::load(directory.path()); }), "chat_template.jinja");
}

TEST(hostile_files, names_that_cannot_be_looked_up_are_refused_like_absent_ones) {
  const test::TempDir directory;
  std::ofstream(directory.path() / "model.safetensors.index.json")
      << R"({"weight_map": {"a": ")" << std::string(300, 'x') << R"(.safetensors"}})";
  expect_contains(message_of<LoadError>([&] { Checkpoint::open(directory.path()); }), "but absent");
  expect_contains(message_of<LoadError>([&] { Checkpoint::open(std::string(5000, 'y')); }), "not a directory");
}

TEST(hostile_files, flags_are_bounded) {
  nlohmann::ordered_json conversation = {{"messages", nlohmann::ordered_json::array()}, {"flags", nlohmann::ordered_json::object()}};
  for (int i = 0; i < 300; ++i) conversation["flags"]["flag" + std::to_string(i)] = i;
  expect_contains(message_of<InputError>([&] { conversation_variables(conversation); }), "flags: 300 of them, at most 256");
}

TEST(hostile_files, a_budget_beyond_the_sequence_needs_no_memory_and_changes_nothing) {
  const auto directory = test::golden_directory("rand-small");
  Config config = load_config(directory / "config.json");
  const test::LoadedModel model(directory, {.num_slots = 2, .max_tokens = 256, .max_rows = 64, .num_threads = 2});
  config.index_budget = 1 << 20;
  const test::LoadedModel wide(directory, {.num_slots = 2, .max_tokens = 256, .max_rows = 64, .num_threads = 2}, config);
  EXPECT_LT(wide.backend->memory_plan().total_bytes(), 2 * model.backend->memory_plan().total_bytes());
  EXPECT_LE(wide.backend->config().index_budget, 64 * 7);
}

TEST(hostile_files, mtp_must_be_an_object) {
  nlohmann::json json = read_json_file(test::golden_directory("rand-small") / "config.json");
  (json.contains("text_config") ? json["text_config"] : json)["mtp"] = "yes";
  expect_contains(message_of<LoadError>([&] { parse_config(json, "config.json"); }), "mtp");
}

TEST(hostile_files, young_marks_stay_where_they_are_as_in_the_reference) {
  EXPECT_EQ(text::nfc("a\u0301\u0334"), "\u00e1\u0334");           // old marks: ordered by class, then composed
  EXPECT_EQ(text::nfc("a\u0c3c\u0334"), "a\u0c3c\u0334");          // TELUGU SIGN NUKTA, Unicode 14
  EXPECT_EQ(text::nfc("a\U0001e4ec\u0334"), "a\U0001e4ec\u0334");  // NAG MUNDARI SIGN MUHOR, Unicode 15
}

}  // namespace
}  // namespace tetrad::hostile_files_test

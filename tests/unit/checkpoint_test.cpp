#include "io/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "io/json_file.h"
#include "support/checkpoint_edit.h"

namespace tetrad::checkpoint_test {
namespace {

namespace fs = std::filesystem;
using test::read_bytes;
using test::TempDir;
using test::write_bytes;

const fs::path kTiny = fs::path(TETRAD_MODELS) / "tetrad-tiny";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kSecond = "model-00002-of-00003.safetensors";

std::string refusal(const fs::path& directory) {
  try {
    Checkpoint::open(directory);
  } catch (const LoadError& e) {
    return e.what();
  }
  return "";
}

void expect_refused(const fs::path& directory, const std::vector<std::string>& parts) {
  const std::string message = refusal(directory);
  EXPECT_NE(message, "") << "accepted";
  for (const auto& part : parts) EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in: " << message;
}

// A copy of the tiny checkpoint to damage.
class DamagedCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override { test::copy_checkpoint(kTiny, dir_.path()); }
  nlohmann::json index() const { return read_json_file(dir_ / kIndex); }
  void write_index(const nlohmann::json& json) const { write_bytes(dir_ / kIndex, json.dump()); }

  TempDir dir_;
};

TEST_F(DamagedCheckpoint, undamaged_is_accepted) {
  const auto checkpoint = Checkpoint::open(dir_.path());
  EXPECT_EQ(checkpoint->files().size(), 3u);
  EXPECT_EQ(checkpoint->tensors().size(), 166u);
  EXPECT_EQ(checkpoint->total_bytes(), 23465628u);
  EXPECT_EQ(checkpoint->declared_bytes(), 23465628u);
  const CheckpointTensor* head = checkpoint->find("lm_head.weight");
  ASSERT_NE(head, nullptr);
  EXPECT_EQ(checkpoint->file_name(*head), "model-00003-of-00003.safetensors");
  EXPECT_EQ(checkpoint->find("lm_head"), nullptr);
}

TEST_F(DamagedCheckpoint, shard_missing) {
  fs::remove(dir_ / kSecond);
  fs::remove(dir_ / "model-00003-of-00003.safetensors");
  expect_refused(dir_.path(), {kSecond, "model-00003-of-00003.safetensors", "absent"});
}

TEST_F(DamagedCheckpoint, shard_cut_by_one_byte) {
  fs::resize_file(dir_ / kSecond, fs::file_size(dir_ / kSecond) - 1);
  expect_refused(dir_.path(), {kSecond, "cut short", "model.language_model.layers.3.self_attn.v_proj.weight"});
}

TEST_F(DamagedCheckpoint, shard_with_trailing_bytes) {
  write_bytes(dir_ / kSecond, read_bytes(dir_ / kSecond) + "xyz");
  expect_refused(dir_.path(), {kSecond, "longer than its header says"});
}

TEST_F(DamagedCheckpoint, empty_shard) {
  write_bytes(dir_ / kSecond, "");
  expect_refused(dir_.path(), {kSecond, "0 bytes"});
}

TEST_F(DamagedCheckpoint, faults_of_several_shards_are_listed_together) {
  write_bytes(dir_ / kSecond, "");
  fs::resize_file(dir_ / "model-00003-of-00003.safetensors", 1000);
  expect_refused(dir_.path(), {kSecond, "model-00003-of-00003.safetensors"});
}

TEST_F(DamagedCheckpoint, index_names_absent_file) {
  auto json = index();
  json["weight_map"]["lm_head.weight"] = "model-00004-of-00004.safetensors";
  write_index(json);
  expect_refused(dir_.path(), {"model-00004-of-00004.safetensors", "absent"});
}

TEST_F(DamagedCheckpoint, index_names_tensor_not_in_its_shard) {
  auto json = index();
  json["weight_map"]["ghost.weight"] = kSecond;
  json["weight_map"]["lm_head.weight"] = kSecond;
  write_index(json);
  expect_refused(dir_.path(), {"ghost.weight", "lm_head.weight", "model-00003-of-00003.safetensors", kSecond});
}

TEST_F(DamagedCheckpoint, tensor_of_a_shard_not_in_the_index) {
  auto json = index();
  json["weight_map"].erase("lm_head.weight");
  write_index(json);
  expect_refused(dir_.path(), {"lm_head.weight", "not in the index"});
}

TEST_F(DamagedCheckpoint, unlisted_shards_are_refused_and_other_files_left_alone) {
  fs::copy(dir_ / kSecond, dir_ / "golden.safetensors");
  fs::copy(dir_ / kSecond, dir_ / "adapter.safetensors");
  EXPECT_EQ(refusal(dir_.path()), "");
  fs::copy(dir_ / kSecond, dir_ / "model-00004-of-00004.safetensors");
  expect_refused(dir_.path(), {"model-00004-of-00004.safetensors", "does not name"});
}

TEST_F(DamagedCheckpoint, whole_file_beside_shards_is_refused) {
  fs::copy(dir_ / kSecond, dir_ / "model.safetensors");
  expect_refused(dir_.path(), {"model.safetensors", "does not name"});
}

TEST_F(DamagedCheckpoint, shards_without_index) {
  fs::remove(dir_ / kIndex);
  expect_refused(dir_.path(), {kIndex, "missing", kSecond});
}

TEST_F(DamagedCheckpoint, malformed_index) {
  for (const char* text : {"", "{", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})"}) {
    write_bytes(dir_ / kIndex, text);
    expect_refused(dir_.path(), {kIndex});
  }
  write_bytes(dir_ / kIndex, R"({"weight_map":{"a":"model-00002-of-00003.safetensors","a":"model-00001-of-00003.safetensors"}})");
  expect_refused(dir_.path(), {kIndex, "\"a\"", "twice"});
}

TEST_F(DamagedCheckpoint, index_does_not_reach_outside_the_directory) {
  for (const char* name : {"../model.safetensors", "/etc/passwd", "..", "a/b.safetensors", ""}) {
    write_bytes(dir_ / kIndex, nlohmann::json{{"weight_map", {{"a", name}}}}.dump());
    expect_refused(dir_.path(), {kIndex, "not the name of a file"});
  }
}

TEST(checkpoint, one_file_without_and_with_index) {
  const TempDir dir;
  auto edit = test::read_checkpoint(kTiny);
  edit.write(dir.path());
  EXPECT_EQ(Checkpoint::open(dir.path())->tensors().size(), 166u);
  nlohmann::json map;
  for (const auto& t : edit.tensors) map[t.name] = "model.safetensors";
  write_bytes(dir / kIndex, nlohmann::json{{"weight_map", map}}.dump());
  EXPECT_EQ(Checkpoint::open(dir.path())->tensors().size(), 166u);
}

TEST(checkpoint, a_file_of_another_name_is_not_guessed_at) {
  const TempDir dir;
  expect_refused(dir.path(), {"no .safetensors file"});
  test::read_checkpoint(kTiny).write(dir.path());
  fs::rename(dir / "model.safetensors", dir / "golden.safetensors");
  expect_refused(dir.path(), {"golden.safetensors", "expected model.safetensors"});
  expect_refused(dir / "nowhere", {"nowhere", "not a directory"});
}

// Old writers did not pad headers, so data may start anywhere.
TEST(checkpoint, misaligned_tensors_are_read_aligned) {
  const TempDir dir;
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})";
  const float value = 1.5f;
  std::string data = "x" + std::string(4, '\0');
  std::memcpy(data.data() + 1, &value, 4);
  for (const char* padding : {"", " ", "  ", "   "}) {
    write_bytes(dir / "model.safetensors", test::safetensors_bytes(header + padding, data));
    const auto checkpoint = Checkpoint::open(dir.path());
    const CheckpointTensor* tensor = checkpoint->find("b");
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor->data) % 4, 0u);
    EXPECT_EQ(std::memcmp(tensor->data, &value, 4), 0);
    checkpoint->prefetch(*tensor);
  }
}

TEST(json_file, refuses_what_parsers_let_pass) {
  EXPECT_THROW(parse_json(R"({"a":1,"a":1})", "x"), LoadError);
  EXPECT_THROW(parse_json(R"({"o":{"a":1,"b":{},"a":2}})", "x"), LoadError);
  EXPECT_NO_THROW(parse_json(R"({"a":{"a":1},"b":[{"a":1},{"a":2}]})", "x"));
  EXPECT_THROW(parse_json("{} x", "x"), LoadError);
  EXPECT_THROW(parse_json("\"\xff\"", "x"), LoadError);
  EXPECT_THROW(parse_json("1e999", "x"), LoadError);
  EXPECT_THROW(parse_json(std::string(100'000, '['), "x"), LoadError);
  EXPECT_THROW(parse_json(std::string(65, '[') + std::string(65, ']'), "x"), LoadError);
  EXPECT_NO_THROW(parse_json(std::string(64, '[') + std::string(64, ']'), "x"));
}

}  // namespace
}  // namespace tetrad::checkpoint_test

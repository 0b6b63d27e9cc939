#include "io/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "io/safetensors_writer.h"
#include "support/checkpoint_edit.h"

namespace tetrad::safetensors_test {
namespace {

using test::safetensors_bytes;
using test::TempDir;

std::span<const std::byte> as_bytes(const std::string& text) { return {reinterpret_cast<const std::byte*>(text.data()), text.size()}; }

SafetensorsHeader parse(const std::string& file) { return parse_safetensors_header(as_bytes(file), "f.safetensors"); }

// The message with which a file is refused; empty if it is accepted.
std::string refusal(const std::string& file) {
  try {
    parse(file);
  } catch (const LoadError& e) {
    return e.what();
  }
  return "";
}

void expect_refused(const std::string& file, const std::vector<std::string>& parts) {
  const std::string message = refusal(file);
  EXPECT_NE(message, "") << "accepted";
  EXPECT_NE(message.find("f.safetensors"), std::string::npos) << message;
  for (const auto& part : parts) EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in: " << message;
}

std::string with(const std::string& entries, std::size_t data_bytes) {
  return safetensors_bytes("{" + entries + "}", std::string(data_bytes, 'x'));
}

const std::string kA = R"("a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]})";
const std::string kB = R"("b":{"dtype":"F32","shape":[],"data_offsets":[12,16]})";

TEST(safetensors, reads_tensors_in_order_of_their_data) {
  const auto header = parse(with(kB + "," + kA, 16));
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[0].dtype, DType::kBF16);
  EXPECT_EQ(header.tensors[0].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(header.tensors[1].name, "b");
  EXPECT_TRUE(header.tensors[1].shape.empty()) << "a scalar has no dimensions";
  EXPECT_EQ(header.tensors[1].begin, 12u);
}

TEST(safetensors, accepts_padding_metadata_empty_tensors_and_no_tensors) {
  EXPECT_EQ(refusal(safetensors_bytes("{}   ", "")), "");
  EXPECT_EQ(parse(with(R"("__metadata__":{"format":"pt","n":""},)" + kA, 12)).metadata.at("format"), "pt");
  EXPECT_EQ(refusal(with(R"("e":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},)" + kA, 12)), "");
}

TEST(safetensors, every_dtype) {
  for (const auto& [name, size] : {std::pair{"BF16", 2}, {"F16", 2}, {"F32", 4}, {"F8_E4M3", 1}, {"U8", 1}, {"I32", 4}, {"I64", 8}}) {
    const auto header = parse(
        with(fmt::format(R"("t":{{"dtype":"{}","shape":[3],"data_offsets":[0,{}]}})", name, 3 * size), static_cast<std::size_t>(3 * size)));
    EXPECT_EQ(dtype_name(header.tensors[0].dtype), name);
  }
}

TEST(safetensors, refuses_bad_header_lengths) {
  expect_refused("", {"0 bytes"});
  expect_refused("1234567", {"7 bytes"});
  expect_refused(std::string(8, '\0') + "{}", {"header length is 0"});
  std::string huge(10, '\0');
  huge[7] = '\x80';  // 2^63
  expect_refused(huge, {"9223372036854775808", "100000000"});
  expect_refused(std::string(8, '\xff') + "{}", {"18446744073709551615"});
  std::string larger = safetensors_bytes("{}", "");
  larger[0] = 3;
  expect_refused(larger, {"header length is 3", "only 2 bytes"});
}

TEST(safetensors, refuses_headers_that_are_not_json) {
  expect_refused(safetensors_bytes("{\"a\":", ""), {"not valid JSON"});
  expect_refused(safetensors_bytes("garbage!", ""), {"not valid JSON"});
  expect_refused(safetensors_bytes("{} {}", ""), {"not valid JSON"});
  expect_refused(safetensors_bytes("{\"\xff\":1}", ""), {"not valid JSON"});
  expect_refused(safetensors_bytes(std::string(200000, '['), ""), {"an array"});
}

TEST(safetensors, refuses_json_of_another_structure) {
  expect_refused(safetensors_bytes("[]", ""), {"one JSON object", "an array"});
  expect_refused(safetensors_bytes("17", ""), {"one JSON object", "17"});
  expect_refused(with(R"("a":1)", 0), {"tensor a", "number 1"});
  expect_refused(with(R"("a":null)", 0), {"tensor a", "null"});
  expect_refused(with(R"("":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})", 0), {"without a name"});
  expect_refused(with(R"("a":{"dtype":3,"shape":[1],"data_offsets":[0,1]})", 1), {"tensor a", "dtype", "number 3"});
  expect_refused(with(R"("a":{"dtype":"U8","shape":"x","data_offsets":[0,1]})", 1), {"tensor a", "shape", "\"x\""});
  expect_refused(with(R"("a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]})", 1), {"tensor a", "shape", "1.5"});
  expect_refused(with(R"("a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]})", 1), {"tensor a", "shape", "-1"});
  expect_refused(with(R"("a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]})", 1), {"tensor a", "shape", "an array"});
  expect_refused(with(R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0]})", 1), {"tensor a", "data_offsets", "expected 2"});
  expect_refused(with(R"("a":{"dtype":"U8","shape":[1],"data_offsets":{"x":0}})", 1), {"tensor a", "an object"});
  expect_refused(with(R"("a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]})", 1), {"tensor a", "more than 8"});
  expect_refused(with(R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"stride":[1]})", 1), {"tensor a", "stride"});
  expect_refused(with(R"("__metadata__":{"k":1})", 0), {"number 1"});
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    std::string entry = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
    entry.replace(entry.find(field), std::strlen(field), "x");
    EXPECT_NE(refusal(with(entry, 1)), "") << field;
  }
  expect_refused(with(R"("a":{"shape":[1],"data_offsets":[0,1]})", 1), {"tensor a", "\"dtype\" is missing"});
  expect_refused(with(R"("a":{"dtype":"U8","data_offsets":[0,1]})", 1), {"tensor a", "\"shape\" is missing"});
  expect_refused(with(R"("a":{"dtype":"U8","shape":[1]})", 1), {"tensor a", "\"data_offsets\" is missing"});
}

TEST(safetensors, refuses_duplicates) {
  expect_refused(with(kA + "," + kA, 12), {"tensor a", "twice"});
  expect_refused(with(R"("a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]})", 1), {"tensor a", "dtype", "twice"});
  expect_refused(with(R"("__metadata__":{},"__metadata__":{})", 0), {"__metadata__", "twice"});
}

TEST(safetensors, refuses_unknown_dtypes) {
  expect_refused(with(R"("a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]})", 1), {"tensor a", "\"F4\"", "BF16"});
  expect_refused(with(R"("a":{"dtype":"bf16","shape":[1],"data_offsets":[0,2]})", 2), {"tensor a", "\"bf16\""});
}

TEST(safetensors, refuses_offsets_that_do_not_tile_the_data) {
  expect_refused(with(R"("a":{"dtype":"U8","shape":[2],"data_offsets":[2,0]})", 2), {"tensor a", "backward", "[2, 0]"});
  expect_refused(with(kA + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]})", 12), {"tensor b", "overlap", "byte 8", "byte 12"});
  expect_refused(with(kA + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})", 12), {"overlap"});
  expect_refused(with(kA + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[16,20]})", 20), {"tensor b", "gap", "byte 16", "byte 12"});
  expect_refused(with(R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]})", 2), {"tensor a", "gap", "byte 1"});
}

TEST(safetensors, refuses_shapes_that_disagree_with_their_bytes) {
  expect_refused(with(R"("a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,11]})", 11), {"tensor a", "needs 12 bytes", "give 11"});
  expect_refused(with(R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,12]})", 12), {"tensor a", "needs 24 bytes", "give 12"});
  expect_refused(with(R"("a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]})", 0), {"tensor a", "overflows"});
  expect_refused(with(R"("a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,0]})", 0), {"tensor a", "2^63-1"});
  expect_refused(with(R"("a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,0]})", 0), {"tensor a"});
}

TEST(safetensors, refuses_files_cut_short_or_too_long) {
  const std::string good = with(kA + "," + kB, 16);
  EXPECT_EQ(refusal(good), "");
  expect_refused(good.substr(0, good.size() - 1),
                 {"tensor b", "cut short", fmt::format("expected {} bytes", good.size()), fmt::format("got {}", good.size() - 1)});
  expect_refused(good + "x",
                 {"longer than its header says", fmt::format("expected {} bytes", good.size()), fmt::format("got {}", good.size() + 1)});
  for (std::size_t length = 0; length < good.size(); ++length) EXPECT_NE(refusal(good.substr(0, length)), "") << length;
}

TEST(safetensors_file, finds_tensors_and_their_bytes) {
  const TempDir dir;
  test::write_bytes(dir / "t.safetensors", safetensors_bytes("{" + kA + "," + kB + "}", "abcdefghijkl0123"));
  const auto file = SafetensorsFile::open(dir / "t.safetensors");
  const auto bytes = file.bytes(file.at("b"));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), "0123");
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_THROW(file.at("c"), LoadError);
}

TEST(safetensors_file, names_what_cannot_be_opened) {
  const TempDir dir;
  for (const auto& path : {dir / "absent.safetensors", dir.path()}) {
    try {
      SafetensorsFile::open(path);
      FAIL() << path;
    } catch (const LoadError& e) {
      EXPECT_NE(std::string(e.what()).find(path.string()), std::string::npos) << e.what();
    }
  }
}

TEST(safetensors_writer, what_is_written_is_read_back) {
  const TempDir dir;
  {
    SafetensorsWriter writer(dir / "w.safetensors", {{"q\"uote", DType::kI64, {2}}, {"x", DType::kU8, {}}, {"none", DType::kF32, {0}}},
                             {{"k", "v"}});
    const std::string data = "0123456789abcdefZ";
    writer.write(as_bytes(data).subspan(0, 3));
    writer.write(as_bytes(data).subspan(3));
    EXPECT_FALSE(std::filesystem::exists(dir / "w.safetensors")) << "incomplete files do not appear";
    writer.finish();
  }
  const auto file = SafetensorsFile::open(dir / "w.safetensors");
  EXPECT_EQ(file.metadata().at("k"), "v");
  EXPECT_EQ(file.at("q\"uote").shape, (std::vector<std::int64_t>{2}));
  EXPECT_EQ(static_cast<char>(file.bytes(file.at("x"))[0]), 'Z');
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file.bytes(file.at("q\"uote")).data()) % 8, 0u);
}

TEST(safetensors_writer, leaves_nothing_behind_unless_finished) {
  const TempDir dir;
  const std::vector<TensorSpec> specs{{"x", DType::kU8, {2}}};
  {
    SafetensorsWriter writer(dir / "w.safetensors", specs);
    writer.write(as_bytes("a"));
    EXPECT_THROW(writer.finish(), InternalError);
    EXPECT_THROW(writer.write(as_bytes("bc")), InternalError);
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  EXPECT_THROW(SafetensorsWriter(dir / "no/such/dir.safetensors", specs), InputError);
  EXPECT_THROW(SafetensorsWriter(dir / "w.safetensors", {specs[0], specs[0]}), InternalError);
}

}  // namespace
}  // namespace tetrad::safetensors_test

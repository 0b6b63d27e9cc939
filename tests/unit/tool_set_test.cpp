// How the text of an argument becomes JSON.
#include "server/tool_set.h"

#include <gtest/gtest.h>

#include <string>

#include "server/api_error.h"

namespace tetrad::tool_set_test {
namespace {

using Json = nlohmann::ordered_json;

JsonTypes types_of(const std::string& property) {
  const Json schema = Json::parse(R"({"type": "object", "properties": {"p": )" + property +
                                  R"(}, "$defs": {"text": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}, "a/b~": {"type": "null"},
                                     "either": {"anyOf": [{"$ref": "#/$defs/text"}, {"type": "integer"}]}}})");
  return OfferedTool::from_schema("f", schema, "p").types_of("p");
}

std::string as(const std::string& property, const std::string& text) { return argument_json(text, types_of(property)); }

TEST(tool_set, schemas_say_which_types_are_allowed) {
  EXPECT_EQ(types_of(R"({"type": "string"})"), kStringType);
  EXPECT_EQ(types_of(R"({"type": "number"})"), kNumberType | kIntegerType);
  EXPECT_EQ(types_of(R"({"type": ["string", "null"]})"), kStringType | kNullType);
  EXPECT_EQ(types_of(R"({"type": "string", "nullable": true})"), kStringType | kNullType);
  EXPECT_EQ(types_of(R"({"enum": ["a", 1, null]})"), kStringType | kIntegerType | kNullType);
  EXPECT_EQ(types_of(R"({"type": "string", "enum": ["a", 1]})"), kStringType);
  EXPECT_EQ(types_of(R"({"const": 1.5})"), kNumberType);
  EXPECT_EQ(types_of(R"({"oneOf": [{"type": "array"}, {"type": "object"}]})"), kArrayType | kObjectType);
  EXPECT_EQ(types_of(R"({"allOf": [{"type": ["string", "null"]}, {"type": "string"}]})"), kStringType);
  EXPECT_EQ(types_of(R"({"$ref": "#/$defs/text"})"), kStringType);
  EXPECT_EQ(types_of(R"({"$ref": "#/$defs/either"})"), kStringType | kIntegerType);
  EXPECT_EQ(types_of(R"({"$ref": "#/$defs/a~1b~0"})"), kNullType);
}

TEST(tool_set, what_a_schema_leaves_open_allows_everything) {
  for (const char* property : {"{}", "true", "null", "[]", "5", R"({"type": 5})", R"({"type": []})", R"({"type": "text"})",
                               R"({"enum": []})", R"({"$ref": "#/$defs/loop"})", R"({"$ref": "http://x"})", R"({"$ref": "#nowhere"})",
                               R"({"$ref": 5})", R"({"allOf": [{"type": "string"}, {"type": "null"}]})"})
    EXPECT_EQ(types_of(property), kAnyType) << property;
  EXPECT_EQ(OfferedTool::from_schema("f", Json(), "p").types_of("x"), kAnyType);
  EXPECT_EQ(OfferedTool::from_schema("f", Json::parse(R"({"additionalProperties": {"type": "integer"}})"), "p").types_of("x"),
            kIntegerType);
  EXPECT_EQ(OfferedTool::from_schema("f", Json::parse(R"({"properties": {"a": {}}})"), "p").types_of("x"), kStringType);
}

TEST(tool_set, no_schema_takes_long) {
  // Each level doubles the ways through: 2^32 of them.
  std::string defs = R"({"properties": {"p": {"$ref": "#/d0"}})";
  for (int i = 0; i < 40; ++i) defs += fmt::format(R"(, "d{0}": {{"anyOf": [{{"$ref": "#/d{1}"}}, {{"$ref": "#/d{1}"}}]}})", i, i + 1);
  EXPECT_EQ(OfferedTool::from_schema("f", Json::parse(defs + "}"), "p").types_of("p"), kAnyType);
  Json many = Json::parse(R"({"properties": {}})");
  for (std::size_t i = 0; i <= kMaxToolParameters; ++i)
    many["properties"].get_ref<Json::object_t&>().Json::object_t::Container::emplace_back(fmt::format("p{}", i), Json::object());
  EXPECT_THROW(OfferedTool::from_schema("f", many, "tools[0].function.parameters"), RequestError);
}

TEST(tool_set, strings_stay_as_they_are) {
  for (const char* text : {"42", "true", "null", "None", "1.0", "[1]", "{}", "", " x "})
    EXPECT_EQ(as(R"({"type": "string"})", text), Json(text).dump()) << text;
  EXPECT_EQ(as(R"({"type": "string"})", "\"q\""), R"("\"q\"")");
}

TEST(tool_set, other_types_are_json) {
  EXPECT_EQ(as(R"({"type": "integer"})", " 42 "), "42");
  EXPECT_EQ(as(R"({"type": "integer"})", "1.0"), "1.0");
  EXPECT_EQ(as(R"({"type": "integer"})", "1e3"), "1e3");
  EXPECT_EQ(as(R"({"type": "integer"})", "123456789012345678901234567890"), "123456789012345678901234567890");
  EXPECT_EQ(as(R"({"type": "number"})", "-0.5"), "-0.5");
  EXPECT_EQ(as(R"({"type": "boolean"})", "true"), "true");
  EXPECT_EQ(as(R"({"type": "boolean"})", "False"), "false");
  EXPECT_EQ(as(R"({"type": "null"})", "None"), "null");
  EXPECT_EQ(as(R"({"type": "array"})", "[1, {\"a\": []}]\n"), "[1, {\"a\": []}]");
  EXPECT_EQ(as(R"({"type": "object"})", "{\"b\": 1, \"a\": 2}"), "{\"b\": 1, \"a\": 2}");
}

TEST(tool_set, what_is_not_json_becomes_a_string) {
  EXPECT_EQ(as(R"({"type": "integer"})", ""), "\"\"");
  EXPECT_EQ(as(R"({"type": "number"})", "nan"), "\"nan\"");
  EXPECT_EQ(as(R"({"type": "number"})", "1e999"), "\"1e999\"");
  EXPECT_EQ(as(R"({"type": "object"})", "{'a': 1}"), R"("{'a': 1}")");
  EXPECT_EQ(as(R"({"type": "array"})", std::string("[1\0]", 4)), R"("[1\u0000]")");
  EXPECT_EQ(as(R"({"type": "array"})", std::string(1000, '[')), "\"" + std::string(1000, '[') + "\"");
  EXPECT_EQ(as(R"({"type": "array"})", std::string(100000, '[') + std::string(100000, ']')).front(), '"');
  // JSON of a type that the schema does not allow is for whoever owns the function to refuse.
  EXPECT_EQ(as(R"({"type": "boolean"})", "0"), "0");
}

TEST(tool_set, unions_take_json_of_an_allowed_type_and_else_the_string) {
  const std::string text_or_integer = R"({"anyOf": [{"type": "string"}, {"type": "integer"}]})";
  EXPECT_EQ(as(text_or_integer, "42"), "42");
  EXPECT_EQ(as(text_or_integer, "4.5"), "\"4.5\"");
  EXPECT_EQ(as(text_or_integer, "true"), "\"true\"");
  EXPECT_EQ(as(text_or_integer, "x"), "\"x\"");
  EXPECT_EQ(as(R"({"type": ["string", "null"]})", "null"), "null");
  EXPECT_EQ(as(R"({"type": ["string", "null"]})", "42"), "\"42\"");
  EXPECT_EQ(as("{}", "42"), "42");
  EXPECT_EQ(as("{}", "[1]"), "[1]");
  EXPECT_EQ(as("{}", "\"q\""), R"("\"q\"")");
  EXPECT_EQ(as("{}", "hello"), "\"hello\"");
}

}  // namespace
}  // namespace tetrad::tool_set_test

// Regular expressions, choices and JSON schemas as grammars: what they read, what they refuse, and within which bounds.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "grammar/json_schema.h"
#include "grammar/matcher.h"
#include "grammar/regex.h"

namespace tetrad::grammar::grammar_test {
namespace {

bool reads(const GrammarPtr& grammar, std::string_view text) {
  constexpr std::size_t kPiece = 64;  // as tokens would come: what one of them may cost is bounded
  Matcher matcher(grammar);
  for (; text.size() > kPiece; text.remove_prefix(kPiece))
    if (!matcher.accept(text.substr(0, kPiece))) return false;
  return matcher.accept(text) && matcher.may_end();
}

std::string refusal(const std::function<GrammarPtr()>& compile) {
  try {
    compile();
  } catch (const GrammarError& error) {
    return error.what();
  }
  return "";
}

GrammarPtr schema_of(std::string_view text) { return compile_json_schema(Json::parse(text)); }

struct Table {
  std::string_view source;
  std::vector<std::string> read, not_read;
};

void check(const std::vector<Table>& tables, const std::function<GrammarPtr(std::string_view)>& compile) {
  for (const Table& table : tables) {
    SCOPED_TRACE(table.source);
    const GrammarPtr grammar = compile(table.source);
    for (const std::string& text : table.read) EXPECT_TRUE(reads(grammar, text)) << text;
    for (const std::string& text : table.not_read) EXPECT_FALSE(reads(grammar, text)) << text;
  }
}

TEST(grammar_regex, reads_what_ecmascript_reads) {
  check(
      {
          {"", {""}, {"a"}},
          {"abc", {"abc"}, {"ab", "abcd", ""}},
          {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
          {"a*b+c?", {"b", "aabbc", "bb"}, {"a", "ac", "bcc"}},
          {"(ab){2,3}", {"abab", "ababab"}, {"ab", "abababab"}},
          {"[a-c]{3}", {"abc"}, {"ab", "abca"}},
          {"[a-c]{100,200}", {std::string(100, 'b'), std::string(200, 'a')}, {std::string(99, 'a'), std::string(201, 'a')}},
          {"(ab|c){20,}", {std::string(20, 'c'), std::string(50, 'c') + "ab"}, {std::string(19, 'c')}},
          {"\\d+\\.\\d{2}", {"12.50"}, {"12.5", "12,50", "\xD9\xA1.00"}},
          {"[^a-y]", {"z", "\xC3\xA9", "\n"}, {"b", "", "zz", "\xC3", "\xFF"}},
          {".", {"x", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}, {"\n", "\r", "\xE2\x80\xA8", "\xED\xA0\x80", "\xC0\x80", "\xF4\x90\x80\x80"}},
          {"\\u20ac\\u{1F600}\\uD83D\\uDE00\\x41",
           {"\xE2\x82\xAC\xF0\x9F\x98\x80\xF0\x9F\x98\x80"
            "A"},
           {"A"}},
          {"(?:a(?<name>b))+?", {"ab", "abab"}, {"a"}},
          {"^(a|b)$", {"a", "b"}, {"ab"}},
          {"(a*)*b", {"b", "aaab"}, {"a"}},
          {"(a?){0,30}b", {"b", "aab"}, {std::string(31, 'a') + "b"}},
          {"[\\w.-]+@[\\d\\-]", {"a.b-c@1", "x@-"}, {"@1", "a@b"}},
          {"\\[\\]\\{\\}\\(\\)\\/\\^\\$", {"[]{}()/^$"}, {}},
          {"[]]", {}, {}},
      },
      [](std::string_view pattern) { return pattern == "[]]" ? compile_choice({"x"}) : compile_regex(pattern); });
}

TEST(grammar_regex, what_is_not_regular_or_not_known_is_refused_by_name) {
  const std::pair<const char*, const char*> kRefused[] = {
      {"(?=a)", "lookahead"},
      {"(?<!a)", "lookbehind"},
      {"(a)\\1", "back reference"},
      {"\\bx", "word boundary"},
      {"\\p{L}", "Unicode property"},
      {"a**", "quantifier"},
      {"*a", "quantifier"},
      {"a{2,1}", "out of order"},
      {"[z-a]", "out of order"},
      {"(a", "without its )"},
      {"a)", "without its ("},
      {"[a", "without its ]"},
      {"a\\", "backslash"},
      {"a{9999999999}", "more than"},
      {"a^b", "ends only"},
      {"(?i)a", "kind of group"},
      {"a{x}", "number"},
      {"\\uD800", "surrogate"},
      {"[]", "without a character"},
      {"\\07", "octal"},
      {"\\q", "unknown escape"},
      {"(a?){0,5000}", "may be empty"},
      {"]", "unescaped"},
  };
  for (const auto& [pattern, why] : kRefused)
    EXPECT_NE(refusal([&, &p = pattern] { return compile_regex(p); }).find(why), std::string::npos)
        << pattern << ": " << refusal([&, &p = pattern] { return compile_regex(p); });
  EXPECT_NE(refusal([] { return compile_regex(std::string(100, '(') + "a" + std::string(100, ')')); }).find("nest"), std::string::npos);
  EXPECT_NE(refusal([] { return compile_regex(std::string(kMaxRegexBytes + 1, 'a')); }).find("bytes"), std::string::npos);
  EXPECT_NE(refusal([] { return compile_regex("((((((a|bc|d){17}){17}){17}){17}){17}){1,9}"); }), "x");
  EXPECT_NE(refusal([] { return compile_regex("(((((ab){16}){16}){16}){16}){16}"); }).find("instructions"), std::string::npos);
}

TEST(grammar_choice, one_of_the_texts) {
  const GrammarPtr grammar = compile_choice({"yes", "yesterday", "no", "\xC3\xA9t\xC3\xA9"});
  for (const char* text : {"yes", "yesterday", "no", "\xC3\xA9t\xC3\xA9"}) EXPECT_TRUE(reads(grammar, text)) << text;
  for (const char* text : {"", "ye", "yesno", "n", "\xC3\xA9"}) EXPECT_FALSE(reads(grammar, text)) << text;
  Matcher matcher(grammar);
  EXPECT_TRUE(matcher.accept("yes"));
  EXPECT_TRUE(matcher.may_end());
  EXPECT_FALSE(matcher.must_end());
  EXPECT_FALSE(matcher.accept("x"));
  EXPECT_TRUE(matcher.accept("terday"));
  EXPECT_TRUE(matcher.must_end());
  EXPECT_NE(refusal([] { return compile_choice({}); }), "");
  EXPECT_NE(refusal([] { return compile_choice({"a", ""}); }), "");
  EXPECT_NE(refusal([] { return compile_choice({"\xFF"}); }), "");
}

TEST(grammar_json, any_object) {
  const GrammarPtr grammar = compile_json_object();
  for (const char* text : {"{}", "{\"a\":1}", "{ \"a\": [1, 2.5e-3, null, true, \"x\"], \"b\": {} }", "{\n  \"a\": \"\\u00e9\\n\\\"\"\n}",
                           "{\"a\":-0.0}", "{\"\xF0\x9F\x98\x80\":\"\\ud83d\\ude00\"}", "{\n\t\"a\": [\n\t\t1,\n\t\t2\n\t]\n}"})
    EXPECT_TRUE(reads(grammar, text)) << text;
  for (const char* text : {"",
                           "[]",
                           "1",
                           "{",
                           "{\"a\"}",
                           "{\"a\":}",
                           "{\"a\":1,}",
                           "{a:1}",
                           "{\"a\":01}",
                           "{\"a\":\"\\ud83d\"}",
                           "{\"a\":\"\n\"}",
                           "{\"a\":\"\xFF\"}",
                           "{} ",
                           "{\"a\":1}{}",
                           "{\"a\":.5}",
                           "{\"a\":1.}",
                           "{\"a\":nul}",
                           "{\"a\" :1}",
                           "{\n\n\"a\":1}",
                           "{\"a\":\"\\x\"}"})
    EXPECT_FALSE(reads(grammar, text)) << text;
  Matcher matcher(grammar);
  ASSERT_TRUE(matcher.accept("{\"a\":1}"));
  EXPECT_TRUE(matcher.must_end());
}

TEST(grammar_json, nesting_is_bounded_and_can_always_be_closed) {
  Matcher matcher(compile_json_object());
  std::string text = "{\"a\":";
  ASSERT_TRUE(matcher.accept(text));
  std::uint32_t depth = 1;
  while (depth < 2000 && matcher.accept("[")) ++depth;
  EXPECT_EQ(depth, kMaxNesting);
  ASSERT_TRUE(matcher.accept("7"));
  for (std::uint32_t i = 1; i < depth; ++i) ASSERT_TRUE(matcher.accept("]"));
  ASSERT_TRUE(matcher.accept("}"));
  EXPECT_TRUE(matcher.must_end());
}

TEST(grammar_schema, keywords) {
  check(
      {
          {"{}", {"1", "\"x\"", "null", "[1]", "{\"a\":{}}"}, {"x", ""}},
          {"true", {"1"}, {""}},
          {R"({"type":"object"})", {"{}", R"({"a":1})"}, {"[]"}},
          {R"({"type":["integer","null"]})", {"1", "-7", "null"}, {"1.5", "\"1\"", "01"}},
          {R"({"type":"number"})", {"1", "-1.5", "1e5", "2.5E-3"}, {"+1", ".5", "1e", "--1"}},
          {R"({"type":"boolean"})", {"true", "false"}, {"True", "1"}},
          {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"]})",
           {R"({"a":1})", R"({"a": 1, "b": "x"})", "{\n  \"a\": 1,\n  \"b\": \"\"\n}"},
           {"{}", R"({"b":"x"})", R"({"b":"x","a":1})", R"({"a":1,"c":2})", R"({"a":1,})", R"({"a":1,"a":1})"}},
          {R"({"properties":{"a":{},"b":{},"c":{}}})",
           {"{}", R"({"a":1})", R"({"b":1})", R"({"a":1,"c":[]})", R"({"a":1,"b":2,"c":3})"},
           {R"({"c":1,"a":1})", "1", R"({,"a":1})"}},
          {R"({"properties":{"ab":{"type":"integer"}},"additionalProperties":{"type":"boolean"},"required":["ab"]})",
           {R"({"ab":1})", R"({"ab":1,"a":true})", R"({"ab":1,"abc":true,"":false,"b":true})", "{\"ab\":1,\"\xC3\xA9\":true}"},
           {R"({"ab":1,"ab":true})", R"({"a":true})", R"({"ab":1,"x":1})"}},
          {R"({"type":"object","additionalProperties":{"type":"integer"}})", {"{}", R"({"x":1,"y":2})"}, {R"({"x":""})"}},
          {R"({"type":"object","additionalProperties":false})", {"{}"}, {R"({"x":1})"}},
          {R"({"type":"object","properties":{"a":{"type":"null"}},"required":["a","z"],"additionalProperties":{"type":"integer"}})",
           {R"({"a":null,"z":3})"},
           {R"({"a":null})"}},
          {R"({"items":{"type":"integer"},"minItems":2,"maxItems":3})",
           {"[1,2]", "[1, 2, 3]", "[\n 1,\n 2\n]"},
           {"[]", "[1]", "[1,2,3,4]", "[1,]", "[,1]"}},
          {R"({"type":"array","items":{"type":"integer"},"maxItems":100000})", {"[]", "[1]", "[1,2,3]"}, {"[\"a\"]"}},
          {R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"}},
          {R"({"prefixItems":[{"type":"integer"},{"type":"string"}],"minItems":1})",
           {"[1]", R"([1,"a"])"},
           {"[]", R"([1,"a",2])", R"(["a"])"}},
          {R"({"prefixItems":[{"type":"integer"}],"items":{"type":"null"},"maxItems":3})",
           {"[]", "[1]", "[1,null]", "[1,null,null]"},
           {"[null]", "[1,1]", "[1,null,null,null]"}},
          {R"({"items":[{"type":"integer"}],"additionalItems":false})", {"[]", "[3]"}, {"[3,3]"}},
          {R"({"enum":["a","b\"c",1,null,{"k":[1,2]}]})",
           {"\"a\"", R"("b\"c")", "1", "null", R"({"k":[1,2]})", R"({"k": [1, 2]})"},
           {"2", "\"b\"", "{}"}},
          {R"({"type":"integer","enum":["a",1,2.0,3]})", {"1", "3"}, {"\"a\""}},
          {R"({"const":"x"})", {"\"x\""}, {"\"y\""}},
          {R"({"anyOf":[{"type":"integer"},{"type":"string","maxLength":1}]})", {"1", "\"a\""}, {"\"ab\"", "null"}},
          {R"({"type":"object","properties":{"k":{"type":"integer"},"a":{"type":"integer"},"b":{"type":"integer"}},"required":["k"],"anyOf":[{"required":["a"]},{"required":["b"]}]})",
           {R"({"k":1,"a":1})", R"({"k":1,"b":1})", R"({"k":1,"a":1,"b":2})"},
           {R"({"k":1})", R"({"a":1})"}},
          {R"({"oneOf":[{"type":"object","properties":{"t":{"const":"x"},"v":{"type":"integer"}},"required":["t","v"]},{"type":"object","properties":{"t":{"const":"y"}},"required":["t"]},{"type":"null"}]})",
           {R"({"t":"x","v":1})", R"({"t":"y"})", "null"},
           {R"({"t":"x"})", R"({"t":"y","v":1})"}},
          {R"({"allOf":[{"type":"object","properties":{"a":{"type":"number"}},"required":["a"]},{"properties":{"a":{"maximum":5,"type":"integer"},"b":{"type":"null"}},"required":["b"]}]})",
           {R"({"a":5,"b":null})"},
           {R"({"a":6,"b":null})", R"({"a":1.5,"b":null})", R"({"a":5})"}},
          {R"({"$ref":"#/$defs/t","$defs":{"t":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/t"},{"type":"null"}]}},"required":["v","next"]}}})",
           {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":{"v":3,"next":null}}})"},
           {R"({"v":1})", R"({"v":1,"next":{}})"}},
          {R"({"type":"array","items":{"$ref":"#"}})", {"[]", "[[],[[]]]"}, {"[1]"}},
          {R"({"$id":"x","type":"object","properties":{"v":{"type":"integer"},"c":{"$ref":"#"},"$id":{"type":"null"}},)"
           R"("anyOf":[{"required":["v"]},{"required":["c"]}]})",
           {R"({"v":1})", R"({"v":1,"c":{"v":2,"$id":null}})"},
           {"{}", R"({"$id":null})", R"({"c":{}})", R"({"v":1,"$id":1})"}},
          {R"({"$id":"x","$ref":"#/$defs/n","nullable":false,"$defs":{"n":{"type":"array","items":{"$ref":"#"}}}})",
           {"[]", "[[],[[]]]"},
           {"[1]"}},
          {R"({"$ref":"#/definitions/a~1b%20c","definitions":{"a/b c":{"const":1}}})", {"1"}, {"2"}},
          {R"({"type":"string","nullable":true,"title":"t","description":"d","default":null,"x-any":[1]})", {"\"\"", "null"}, {"1"}},
          {R"({"type":"string","minLength":2,"maxLength":3})",
           {"\"ab\"", R"("\u00e9\n")", "\"\xF0\x9F\x98\x80\xC3\xA9x\"", R"("\ud83d\ude00a")"},
           {"\"a\"", "\"abcd\"", R"("\ud83d\ude00")"}},
          {R"({"type":"string","minLength":1})",
           {"\"a\"",
            "\""
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\""},
           {"\"\""}},
          {R"({"type":"string","pattern":"^[a-z]{2}$"})", {"\"ab\""}, {"\"abc\"", "\"a\"", "\"AB\""}},
          {R"({"type":"string","pattern":"b"})", {"\"b\"", "\"abc\""}, {"\"ac\""}},
          {R"({"type":"string","pattern":"^\"\\\\$"})", {R"("\"\\")"}, {"\"\""}},
          {R"({"type":"string","pattern":"^[A-Z]{2}-\\d+$","minLength":5,"maxLength":6})",
           {"\"AB-12\"", "\"AB-123\""},
           {"\"AB-1\"", "\"AB-1234\""}},
          {R"({"type":"string","pattern":"^a","maxLength":3})", {"\"a\"", "\"abc\""}, {"\"abcd\"", "\"b\""}},
          {R"({"type":"string","format":"date"})",
           {"\"2024-02-29\"", "\"2000-02-29\"", "\"2023-12-31\""},
           {"\"2023-02-29\"", "\"1900-02-29\"", "\"2023-04-31\"", "\"2023-13-01\""}},
          {R"({"type":"string","format":"date-time"})",
           {"\"2024-01-31T23:59:59Z\"", "\"2024-01-31T00:00:00.123+05:30\""},
           {"\"2024-01-31\"", "\"2024-01-31T24:00:00Z\""}},
          {R"({"type":"string","format":"uuid"})", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123e4567\""}},
          {R"({"type":"string","format":"ipv4"})", {"\"192.168.0.255\""}, {"\"256.1.1.1\"", "\"01.1.1.1\""}},
          {R"({"type":"string","format":"email"})", {"\"a.b+c@example.org\""}, {"\"a@b\"", "\"@x.y\""}},
          {R"({"type":"string","format":"uri"})", {"\"https://example.org/a?b=c#d\""}, {"\"example\""}},
      },
      [](std::string_view schema) { return schema_of(schema); });
}

TEST(grammar_schema, numbers_are_bounded_exactly) {
  const std::vector<std::string> kNumbers = {
      "-1000", "-101", "-100", "-99",  "-12.75", "-12.5", "-2",    "-1.5",  "-1.01", "-1",  "-0.999", "-0.5", "-0.1", "0",    "0.0",
      "0.05",  "0.1",  "0.10", "0.11", "0.5",    "0.9",   "0.90",  "0.901", "1",     "1.0", "1.01",   "1.5",  "2",    "2.25", "3",
      "9",     "10",   "11",   "12.5", "12.75",  "99",    "99.99", "100",   "100.0", "101", "999",    "1000", "12345"};
  const std::vector<std::tuple<const char*, double, bool, double, bool>> kBounds = {
      {R"("minimum":0)", 0, false, 1e9, false},
      {R"("exclusiveMinimum":0)", 0, true, 1e9, false},
      {R"("maximum":0)", -1e9, false, 0, false},
      {R"("exclusiveMaximum":0)", -1e9, false, 0, true},
      {R"("minimum":0,"maximum":1)", 0, false, 1, false},
      {R"("minimum":0.1,"maximum":0.9)", 0.1, false, 0.9, false},
      {R"("exclusiveMinimum":0.1,"exclusiveMaximum":0.9)", 0.1, true, 0.9, true},
      {R"("minimum":-1.5,"exclusiveMaximum":12.75)", -1.5, false, 12.75, true},
      {R"("minimum":-100,"maximum":-1)", -100, false, -1, false},
      {R"("exclusiveMinimum":-100,"exclusiveMaximum":-1)", -100, true, -1, true},
      {R"("minimum":9,"maximum":101)", 9, false, 101, false},
      {R"("exclusiveMinimum":1,"exclusiveMaximum":2)", 1, true, 2, true},
      {R"("minimum":-1e3,"maximum":1.2345e4)", -1000, false, 12345, false},
      {R"("minimum":2.25,"maximum":2.25)", 2.25, false, 2.25, false},
      {R"("maximum":99.99)", -1e9, false, 99.99, false},
  };
  for (const char* type : {"number", "integer"}) {
    for (const auto& [bounds, low, low_open, high, high_open] : kBounds) {
      const std::string schema = fmt::format(R"({{"type":"{}",{}}})", type, bounds);
      SCOPED_TRACE(schema);
      bool any = false;
      const auto expected = [&, &l = low, &lo = low_open, &h = high, &ho = high_open](const std::string& text) {
        const double x = std::stod(text);
        const bool whole = type == std::string("integer");
        return (lo ? x > l : x >= l) && (ho ? x < h : x <= h) && (!whole || text.find('.') == std::string::npos);
      };
      for (const std::string& text : kNumbers) any = any || expected(text);
      if (!any) {
        EXPECT_NE(refusal([&] { return schema_of(schema); }), "");
        continue;
      }
      const GrammarPtr grammar = schema_of(schema);
      for (const std::string& text : kNumbers) EXPECT_EQ(reads(grammar, text), expected(text)) << text;
      EXPECT_FALSE(reads(grammar, "1e1"));
      EXPECT_FALSE(reads(grammar, "01"));
      EXPECT_FALSE(reads(grammar, "-"));
    }
  }
  check(
      {
          {R"({"type":"integer","multipleOf":7})", {"0", "7", "-14", "7000", "21"}, {"8", "-1", "07"}},
          {R"({"type":"integer","multipleOf":5,"minimum":0})", {"0", "5", "100"}, {"-5", "3"}},
          {R"({"type":"integer","multipleOf":5,"exclusiveMinimum":0})", {"5"}, {"0"}},
          {R"({"type":"number","multipleOf":0.01,"minimum":0})", {"0", "1.25", "3.5"}, {"1.255", "-1"}},
          {R"({"type":"number","multipleOf":1})", {"3"}, {"3.5"}},
          {R"({"type":"integer","format":"int32"})", {"2147483647", "-2147483648"}, {"2147483648"}},
          {R"({"type":"integer","minimum":-9223372036854775808,"maximum":18446744073709551615})",
           {"9223372036854775808", "-9223372036854775808"},
           {"-9223372036854775809"}},
      },
      [](std::string_view schema) { return schema_of(schema); });
}

TEST(grammar_schema, what_cannot_be_kept_is_refused_with_its_place) {
  const std::pair<const char*, const char*> kRefused[] = {
      {R"({"type":"object","properties":{"a":{"not":{}}}})", "schema.properties.a: not"},
      {R"({"patternProperties":{}})", "patternProperties"},
      {R"({"type":"array","uniqueItems":true})", "uniqueItems"},
      {R"({"type":"array","items":{"contains":{}}})", "schema.items: contains"},
      {R"({"tpye":"string"})", "\"tpye\" is not known"},
      {R"({"type":"strin"})", "schema.type"},
      {R"({"type":"string","format":"idn-email"})", "idn-email"},
      {R"x({"type":"string","pattern":"(?=a)"})x", "schema.pattern: expression: lookahead"},
      {R"({"type":"string","pattern":"^(ab)+$","maxLength":5})", "maxLength"},
      {R"({"oneOf":[{"type":"string"},{"type":"string","maxLength":3}]})", "oneOf: alternatives 0 and 1 may both hold"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "may both hold"},
      {R"({"$ref":"https://example.org/x"})", "only references inside"},
      {R"({"$ref":"#/$defs/none"})", "leads nowhere"},
      {R"({"properties":{"a":{"$id":"https://example.org/a","type":"integer"}}})", "schema.properties.a: $id below the root"},
      {R"({"$ref":"#/$defs/a/$defs/b","$defs":{"a":{"$id":"a","$defs":{"b":{"type":"integer"}}}}})", "$id below the root"},
      {R"({"$id":"x","items":{"anyOf":[{"type":"null"},{"$id":"y","items":{"$ref":"#"}}]}})", "items.anyOf[1]: $id below the root"},
      {R"({"$ref":"#"})", "references in a row"},
      {R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", "refers to itself"},
      {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})", "no text can match"},
      {R"({"type":"object","additionalProperties":false,"required":["a"]})", "required and not allowed"},
      {R"({"type":"string","minLength":3,"maxLength":2})", "minLength is above"},
      {R"({"type":"integer","minimum":3,"maximum":2})", "no text can match"},
      {R"({"type":"integer","multipleOf":7,"maximum":20})", "multipleOf"},
      {R"({"type":"integer","enum":["a"]})", "none of the values"},
      {R"({"enum":[]})", "enum"},
      {R"({"enum":["a"],"minLength":1})", "minLength beside enum"},
      {R"({"allOf":[{"type":"string"},{"type":"integer"}]})", "no type is left"},
      {R"({"allOf":[{"pattern":"a"},{"pattern":"b"}]})", "pattern is given by two parts"},
      {R"({"type":"object","minProperties":1})", "minProperties"},
      {R"({"minLength":-1})", "minLength"},
      {R"({"minItems":1.5})", "minItems"},
      {R"("x")", "schema: a schema must be"},
      {"false", "no text can match"},
  };
  for (const auto& [schema, why] : kRefused) {
    const std::string message = refusal([&, &s = schema] { return schema_of(s); });
    EXPECT_NE(message.find(why), std::string::npos) << schema << ": " << message;
    EXPECT_TRUE(message.starts_with("schema")) << message;
  }
}

// The shape of agents' tools that other engines refuse or choke on.
TEST(grammar_schema, large_real_shapes_stay_small) {
  Json schema = {{"type", "string"}, {"maxLength", 65536}, {"pattern", "^[a-z0-9_-]*$"}};
  for (int depth = 0; depth < 12; ++depth) {
    Json values = Json::array();
    for (int i = 0; i < 200; ++i) values.push_back(fmt::format("value-{}-{}", depth, i));
    schema = {{"type", "object"},
              {"properties",
               {{"inner", schema},
                {"choice", {{"type", "string"}, {"enum", values}}},
                {"text", {{"type", "string"}, {"maxLength", 65536}}},
                {"tree", {{"$ref", "#/$defs/tree"}}}}},
              {"required", {"inner", "choice"}}};
  }
  schema["$defs"]["tree"] = {{"type", "object"},
                             {"properties", {{"children", {{"type", "array"}, {"items", {{"$ref", "#/$defs/tree"}}}}}}}};
  const GrammarPtr grammar = compile_json_schema(schema);
  EXPECT_LT(grammar->code.size(), 50'000u);
  std::string text = "\"a\"";
  for (int depth = 0; depth < 12; ++depth)
    text = fmt::format(R"({{"inner":{},"choice":"value-{}-199","text":"{}","tree":{{"children":[{{}}]}}}})", text, depth,
                       std::string(10'000, 'x'));
  EXPECT_TRUE(reads(grammar, text));
  const GrammarPtr longest = schema_of(R"({"type":"string","maxLength":65536})");
  EXPECT_LT(longest->code.size(), 2000u);
  EXPECT_TRUE(reads(longest, '"' + std::string(65536, 'x') + '"'));
  EXPECT_FALSE(reads(longest, '"' + std::string(65537, 'x') + '"'));

  Json optional = {{"type", "object"}};
  for (int i = 0; i < 200; ++i) optional["properties"][fmt::format("property_{}", i)] = {{"type", "integer"}};
  EXPECT_TRUE(reads(compile_json_schema(optional), R"({"property_3":1,"property_199":2})"));
  EXPECT_FALSE(reads(compile_json_schema(optional), R"({"property_199":1,"property_3":2})"));
}

TEST(grammar_schema, limits_are_named) {
  const std::string nested = [] {
    std::string text = "{}";
    for (int i = 0; i < 30; ++i) text = R"({"type":"array","items":)" + text + "}";
    return text;
  }();
  EXPECT_TRUE(reads(schema_of(nested), std::string(30, '[') + std::string(30, ']')));
  Json many = {{"enum", Json::array()}};
  for (int i = 0; i < 10'001; ++i) many["enum"].push_back(i);
  EXPECT_NE(refusal([&] { return compile_json_schema(many); }).find("at most 10000 values"), std::string::npos);
  Json wide;
  for (int i = 0; i < 300; ++i) wide["anyOf"].push_back({{"const", i}});
  EXPECT_NE(refusal([&] { return compile_json_schema(wide); }).find("at most 256 alternatives"), std::string::npos);
  // allOf of pairs of anyOf: what doubles with every level ends at the bound on steps, and soon.
  Json doubling = {{"type", "object"}};
  for (int i = 0; i < 40; ++i)
    doubling["$defs"][fmt::format("d{}", i)] = {
        {"allOf",
         {{{"properties", {{"a", {{"$ref", fmt::format("#/$defs/d{}", i + 1)}}}}}},
          {{"properties", {{"a", {{"$ref", fmt::format("#/$defs/d{}", i + 1)}, {"title", "x"}}}}}}}}};
  doubling["$defs"]["d40"] = {{"type", "integer"}};
  doubling["properties"]["a"] = {{"$ref", "#/$defs/d0"}};
  EXPECT_NO_THROW(refusal([&] { return compile_json_schema(doubling); }));
  Json huge;
  for (int i = 0; i < 200; ++i) huge["properties"][fmt::format("p{}", i)] = {{"enum", {std::string(4000, 'a') + std::to_string(i)}}};
  EXPECT_NE(refusal([&] { return compile_json_schema(huge); }).find("instructions"), std::string::npos);
}

// The document lists every keyword once, as what it is.
TEST(grammar_schema, document_lists_the_keywords) {
  std::ifstream file(std::string(TETRAD_MODELS) + "/../docs/structured-output.md");
  std::map<std::string, KeywordUse> documented;
  bool in_table = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) in_table = line == "## JSON schema";
    const std::size_t end = line.find(" | ");
    if (!in_table || !line.starts_with("| `") || end == std::string::npos) continue;
    const std::string_view says = std::string_view(line).substr(end + 3);
    const KeywordUse use = says.starts_with("supported")     ? KeywordUse::kSupported
                           : says.starts_with("annotations") ? KeywordUse::kAnnotation
                                                             : KeywordUse::kRefused;
    for (std::size_t at = line.find('`'); at < end;) {
      const std::size_t close = line.find('`', at + 1);
      EXPECT_TRUE(documented.emplace(line.substr(at + 1, close - at - 1), use).second) << line;
      at = line.find('`', close + 1);
    }
  }
  EXPECT_EQ(documented.erase("x-..."), 1u);
  for (const Keyword& keyword : schema_keywords()) {
    const auto found = documented.find(std::string(keyword.name));
    ASSERT_NE(found, documented.end()) << keyword.name;
    EXPECT_EQ(found->second, keyword.use) << keyword.name;
    documented.erase(found);
  }
  EXPECT_TRUE(documented.empty()) << documented.begin()->first;
}

TEST(grammar_matcher, hopeless_ambiguity_fails_and_does_not_hang) {
  Matcher matcher(compile_regex("((a|aa|aaa){17,5000}){17,5000}"));
  EXPECT_THROW(
      for (int i = 0; i < 20'000; ++i) {
        if (!matcher.accept("a")) break;
      },
      GrammarError);
}

}  // namespace
}  // namespace tetrad::grammar::grammar_test

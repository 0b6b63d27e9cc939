// Masks of tokens by a grammar: equal to asking each token alone, whatever is cached; and grammars as constraints of an answer.
#include "grammar/token_masks.h"

#include <gtest/gtest.h>

#include <random>

#include "grammar/json_schema.h"
#include "grammar/tool_calls.h"
#include "support/sanitized.h"

namespace tetrad::grammar::token_masks_test {
namespace {

const Tokenizer& tiny() {
  static const Tokenizer tokenizer = Tokenizer::load(std::string(TETRAD_MODELS) + "/tetrad-tiny/tokenizer.json");
  return tokenizer;
}

std::shared_ptr<const Vocabulary> tiny_vocabulary() {
  static const auto vocabulary = std::make_shared<const Vocabulary>(tiny(), 4096);
  return vocabulary;
}

std::vector<std::uint32_t> full_mask(int vocab_size) {
  std::vector<std::uint32_t> words((static_cast<std::size_t>(vocab_size) + 31) / 32, ~0u);
  if (vocab_size % 32 != 0) words.back() >>= 32 - vocab_size % 32;
  return words;
}

bool bit(const std::vector<std::uint32_t>& words, int id) { return (words[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1) != 0; }

bool takes(const Matcher& matcher, const Vocabulary& vocabulary, int id) {
  Matcher copy = matcher;
  if (vocabulary.is_added(id)) return copy.accept_symbol(id);
  return !vocabulary.token_bytes(id).empty() && copy.accept(vocabulary.token_bytes(id));
}

void take(Matcher& matcher, const Vocabulary& vocabulary, int id) {
  ASSERT_TRUE(vocabulary.is_added(id) ? matcher.accept_symbol(id) : matcher.accept(vocabulary.token_bytes(id)));
}

const Json& tool_schema() {
  static const Json schema =
      Json::parse(R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":14},
    "units":{"enum":["metric","imperial"]},"note":{"type":"string","maxLength":12},"filter":{"type":"object","properties":{"a":{"type":"number"}}}},"required":["city","days"]})");
  return schema;
}

std::vector<std::pair<std::string, GrammarPtr>> grammars() {
  const CallTags tags{4046, 4047};
  const std::vector<ToolSpec> tools = {{"get_weather", &tool_schema(), true, "tools[0]"}, {"get_time", nullptr, true, "tools[1]"}};
  return {
      {"object", compile_json_object()},
      {"schema",
       compile_json_schema(Json::parse(
           R"({"type":"object","properties":{"name":{"type":"string","maxLength":9,"minLength":3},"tags":{"type":"array","items":{"type":"string"},"maxItems":4},
        "kind":{"enum":["one","only","other thing"]},"n":{"type":"integer","minimum":-5,"maximum":120},"deep":{"$ref":"#"}},"required":["name","kind"],"additionalProperties":{"type":"boolean"}})"))},
      {"two strings",
       compile_json_schema(Json::parse(
           R"({"anyOf":[{"type":"string","maxLength":3},{"const":"a longer text than that"},{"type":"string","pattern":"^x+$"}]})"))},
      {"regex", compile_regex("(yes|no), (because|although) .{3,40}\\.")},
      {"words", compile_regex("[^\"]*")},
      {"choice", compile_choice({"red", "green", "greenish", "\xC3\xA9t\xC3\xA9"})},
      {"calls", compile_required_calls(tools, tags, true)},
      {"calls or schema", compile_required_calls(tools, tags, false, &tool_schema())},
      {"strict", compile_strict_calls(tools, tags)},
  };
}

// Random answers: at every place each token is allowed exactly if it is one that the matcher takes, with a cold cache, a warm one and one
// that holds next to nothing. Masks are made of all tokens in every tree; under a sanitizer some are compared, others at each step.
TEST(token_masks, equal_what_each_token_does_alone) {
  constexpr int kApart = testing::kSanitized ? 17 : 1;
  const Vocabulary& vocabulary = *tiny_vocabulary();
  TokenMasks warm(tiny_vocabulary()), small(tiny_vocabulary(), 1);
  std::mt19937 random(7);
  for (const auto& [name, grammar] : grammars()) {
    SCOPED_TRACE(name);
    for (int walk = 0; walk < 3; ++walk) {
      Matcher matcher(grammar);
      for (int step = 0; step < 14 && !matcher.must_end(); ++step) {
        std::vector<std::uint32_t> words = full_mask(4096), again = words;
        warm.narrow(matcher, words);
        small.narrow(matcher, again);
        ASSERT_EQ(words, again);
        std::vector<int> allowed;
        for (int id = 0; id < 4096; ++id) {
          if ((id + step) % kApart == 0 || vocabulary.is_added(id)) {
            ASSERT_EQ(bit(words, id), takes(matcher, vocabulary, id)) << "token " << id << " at step " << step;
          }
          if (bit(words, id)) allowed.push_back(id);
        }
        ASSERT_TRUE(!allowed.empty() || matcher.may_end());
        if (allowed.empty()) break;
        take(matcher, vocabulary, allowed[random() % allowed.size()]);
      }
    }
  }
  EXPECT_GT(warm.counts().found, 0u);
  EXPECT_GT(small.counts().dropped, 0u);
  EXPECT_LE(warm.counts().bytes, TokenMasks::kCacheBytes);
}

// Another mask's limits stay: only bits that are set are cleared.
TEST(token_masks, only_narrow) {
  TokenMasks masks(tiny_vocabulary());
  for (const auto& [name, grammar] : grammars()) {
    const Matcher matcher(grammar);
    std::vector<std::uint32_t> none(128, 0), all = full_mask(4096);
    masks.narrow(matcher, none);
    EXPECT_EQ(none, std::vector<std::uint32_t>(128, 0)) << name;
    masks.narrow(matcher, all);
    std::vector<std::uint32_t> half = full_mask(4096);
    for (std::uint32_t& word : half) word &= 0x55555555u;
    masks.narrow(matcher, half);
    for (std::size_t i = 0; i < half.size(); ++i) EXPECT_EQ(half[i], all[i] & 0x55555555u) << name;
  }
}

// Vocabularies whose size is no multiple of a word: the bits past it stay clear, and ids without a token, special or added are never
// allowed.
TEST(token_masks, nothing_past_the_vocabulary) {
  const std::vector<std::string> letters = [] {
    std::vector<std::string> list;
    for (char c = 'a'; c <= 'z'; ++c) list.push_back(std::string(1, c));
    for (const char* more : {"\"", "{", "}", ":", ",", "ab"}) list.emplace_back(more);
    return list;
  }();
  for (const int size : {33, 40, 64}) {
    std::vector<std::string_view> bytes(letters.begin(), letters.end());
    bytes.resize(static_cast<std::size_t>(size));
    bytes[32] = "<end>";
    const auto vocabulary = std::make_shared<const Vocabulary>(bytes, std::vector<int>{32}, size);
    TokenMasks masks(vocabulary);
    for (const char* pattern : {".*", "[a-z]*", "ab+"}) {
      std::vector<std::uint32_t> words((static_cast<std::size_t>(size) + 31) / 32, ~0u);  // bits past the end set on purpose
      masks.narrow(Matcher(compile_regex(pattern)), words);
      EXPECT_EQ(words[0] & 1u, 1u);
      EXPECT_EQ(words[1], 0u) << pattern << " " << size;
    }
  }
}

TEST(token_masks, places_of_the_prelude_are_shared_by_grammars) {
  TokenMasks masks(tiny_vocabulary());
  const auto in_string = [](std::string_view schema) {
    Matcher matcher(compile_json_schema(Json::parse(schema)));
    EXPECT_TRUE(matcher.accept("{\"a\":\"xyz"));
    return matcher;
  };
  std::vector<std::uint32_t> words = full_mask(4096);
  masks.narrow(in_string(R"({"properties":{"a":{"type":"string"}}})"), words);
  EXPECT_EQ(masks.counts().made, 1u);
  masks.narrow(in_string(R"({"properties":{"a":{"type":"string"},"b":{"type":"integer"}}})"), words);
  EXPECT_EQ(masks.counts().made, 1u);
  EXPECT_EQ(masks.counts().found, 1u);
}

TEST(token_masks, hostile_grammars_fail_within_their_bound) {
  TokenMasks masks(tiny_vocabulary());
  // Many ways to read every beginning.
  Matcher matcher(compile_regex("((.|..|...){17,200}){17,200}"));
  std::vector<std::uint32_t> words = full_mask(4096);
  EXPECT_THROW(
      for (int i = 0; i < 100; ++i) {
        masks.narrow(matcher, words);
        matcher.accept("aaaaaaaa");
      },
      GrammarError);
}

std::string read_by(const GrammarPtr& grammar, const std::string& text) {
  Matcher matcher(grammar);
  for (const int id : tiny().encode(text)) {
    if (!takes(matcher, *tiny_vocabulary(), id)) return fmt::format("stops before {}", tiny().token_bytes(id));
    take(matcher, *tiny_vocabulary(), id);
  }
  return matcher.must_end() ? "ends" : matcher.may_end() ? "may end" : "goes on";
}

constexpr const char* kCall =
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nK\xC3\xB6ln & <b>\nNord</b>\n</parameter>\n<parameter=days>\n3\n</parameter>\n";
constexpr const char* kClose = "</function>\n</tool_call>";

TEST(tool_call_grammar, required_calls) {
  const std::vector<ToolSpec> tools = {{"get_weather", &tool_schema(), true, "tools[0]"}, {"get_time", nullptr, true, "tools[1]"}};
  const CallTags tags{4046, 4047};
  const GrammarPtr one = compile_required_calls(tools, tags, false), several = compile_required_calls(tools, tags, true);
  const std::string call = std::string(kCall) + kClose, time = "<tool_call>\n<function=get_time>\n</function>\n</tool_call>";
  EXPECT_EQ(read_by(one, call), "ends");
  EXPECT_EQ(read_by(one, time), "ends");
  EXPECT_EQ(read_by(several, call), "may end");
  EXPECT_EQ(read_by(several, call + "\n" + time + "\n" + call), "may end");
  EXPECT_EQ(read_by(one, std::string(kCall) + "<parameter=units>\nmetric\n</parameter>\n<parameter=note>\n12 characters\n</parameter>\n")
                .substr(0, 5),
            "stops");
  EXPECT_EQ(
      read_by(one, std::string(kCall) + "<parameter=units>\nmetric\n</parameter>\n<parameter=note>\n12 character\n</parameter>\n" + kClose),
      "ends");
  EXPECT_EQ(read_by(one, std::string(kCall) + "<parameter=filter>\n{\"a\": 1.5}\n</parameter>\n" + kClose), "ends");
  for (const char* wrong : {"Sure!", "<tool_call>\n<function=other>", "<tool_call>\n<function=get_weather>\n</function>",
                            "<tool_call>\n<function=get_weather>\n<parameter=days>",
                            "<tool_call>\n<function=get_weather>\n<parameter=city>\nx\n</parameter>\n<parameter=days>\n15"})
    EXPECT_EQ(read_by(one, wrong).substr(0, 5), "stops") << wrong;
  // Beside a schema of the content either may come.
  const GrammarPtr either = compile_required_calls(tools, tags, false, &tool_schema());
  EXPECT_EQ(read_by(either, call), "ends");
  EXPECT_EQ(read_by(either, R"({"city":"x","days":3})"), "ends");
  EXPECT_EQ(read_by(either, "Sure").substr(0, 5), "stops");
}

TEST(tool_call_grammar, strict_tools_are_bound_where_their_function_opens) {
  const std::vector<ToolSpec> tools = {{"get_weather", &tool_schema(), true, "tools[0]"}};
  const GrammarPtr grammar = compile_strict_calls(tools, {4046, 4047});
  const std::string call = std::string(kCall) + kClose;
  EXPECT_EQ(read_by(grammar, "Hello <b> <function=other>\n<function=get_wea <function=<functio"), "may end");
  EXPECT_EQ(read_by(grammar, "I look.\n\n" + call + "\nDone " + call), "may end");
  EXPECT_EQ(read_by(grammar, "<function=get_weather>\n<parameter=days>").substr(0, 5), "stops");
  EXPECT_EQ(read_by(grammar, "<<function=get_weather>\n<parameter=city>\n"), "goes on");
}

TEST(tool_call_grammar, schemas_that_cannot_be_kept) {
  const Json schema = Json::parse(
      R"x({"type":"object","properties":{"a":{"type":"array","uniqueItems":true},"b":{"not":{}},"c":{"type":"string","pattern":"(?=x)"}},"required":["a","b","c"]})x");
  EXPECT_THROW(compile_required_calls({{"f", &schema, true, "tools[0]"}}, {4046, 4047}, false), GrammarError);
  const GrammarPtr loose = compile_required_calls({{"f", &schema, false, "tools[0]"}}, {4046, 4047}, false);
  EXPECT_EQ(
      read_by(loose,
              "<tool_call>\n<function=f>\n<parameter=a>\n[1,1]\n</parameter>\n<parameter=b>\nanything\n</parameter>\n<parameter=c>\ny\n"
              "</parameter>\n</function>\n</tool_call>"),
      "ends");
  const Json open = Json::parse(R"({"type":"object"})");
  EXPECT_EQ(read_by(compile_required_calls({{"f", &open, true, "tools[0]"}}, {4046, 4047}, false),
                    "<tool_call>\n<function=f>\n<parameter=any_name>\nx\n</parameter>\n</function>\n</tool_call>"),
            "ends");
}

}  // namespace
}  // namespace tetrad::grammar::token_masks_test

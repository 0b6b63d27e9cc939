// The tokenizer against the checkpoint's goldens, the reference library's answers, and files that must be refused.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "text/byte_level.h"
#include "text/unicode.h"

namespace tetrad::tokenizer_test {
namespace {

using nlohmann::json;

json read_json(const std::string& path) {
  std::ifstream stream(path);
  EXPECT_TRUE(stream.good()) << path;
  return json::parse(stream);
}

const std::string kTiny = std::string(TETRAD_MODELS) + "/tetrad-tiny/";

const Tokenizer& tiny() {
  static const Tokenizer tokenizer = Tokenizer::load(kTiny + "tokenizer.json");
  return tokenizer;
}

// A list of merges; json's own braces would read a list of pairs as an object.
json pairs(std::initializer_list<std::array<std::string, 2>> list) {
  json merges = json::array();
  for (const auto& pair : list) merges.push_back(json::array({pair[0], pair[1]}));
  return merges;
}

// The 256 bytes (ids 0 to 255), then "ab", "abc" and " a".
json small_file() {
  json vocab = json::object();
  const auto name = [](std::string_view bytes) {
    std::string out;
    for (const char c : bytes) text::append_utf8(out, text::byte_to_code_point(static_cast<unsigned char>(c)));
    return out;
  };
  for (int byte = 0; byte < 256; ++byte) vocab[name(std::string(1, static_cast<char>(byte)))] = byte;
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  vocab[name(" a")] = 258;
  return {{"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer",
           {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Split"}, {"pattern", {{"Regex", " ?\\p{L}+|\\s+|[^\\s\\p{L}]+"}}}, {"behavior", "Isolated"}, {"invert", false}},
              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", pairs({{"a", "b"}, {"ab", "c"}, {name(" "), "a"}})}}},
          {"added_tokens", json::array()}};
}

json added(int id, const std::string& content, std::initializer_list<const char*> flags = {}) {
  json token = {{"id", id}, {"content", content}, {"normalized", false}, {"special", false}};
  for (const char* flag : flags) token[flag] = true;
  return token;
}

Tokenizer parse(const json& file) { return Tokenizer::parse(file.dump(), "test.json"); }

// The message of the error that `call` throws.
template <class E>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void expect_refused(const json& file, const std::string& part) {
  const std::string message = message_of<LoadError>([&] { parse(file); });
  EXPECT_NE(message.find("test.json"), std::string::npos) << message;
  EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
}

TEST(tokenizer, golden_strings) {
  const json golden = read_json(kTiny + "golden-tokenizer.json");
  ASSERT_EQ(golden.size(), 140U);
  for (const json& entry : golden) {
    const auto text = entry["text"].get<std::string>();
    const auto ids = entry["ids"].get<std::vector<int>>();
    EXPECT_EQ(tiny().encode(text), ids) << text;
    EXPECT_EQ(tiny().decode(ids), text::nfc(text));
  }
}

TEST(tokenizer, golden_prompts) {
  for (const json& entry : read_json(kTiny + "golden-template.json")) {
    EXPECT_EQ(tiny().encode(entry["rendered"].get<std::string>()), entry["ids"].get<std::vector<int>>());
  }
  const json golden = read_json(kTiny + "golden-generate.json");
  ASSERT_FALSE(golden["cases"].empty());
  for (const json& entry : golden["cases"]) {
    EXPECT_EQ(tiny().encode(entry["prompt"].get<std::string>()), entry["prompt_ids"].get<std::vector<int>>());
  }
}

TEST(tokenizer, agrees_with_the_reference_library) {
  const json golden = read_json(std::string(TETRAD_GOLDENS) + "/tokenizer-fuzz.json");
  ASSERT_GE(golden["cases"].size(), 300U);
  for (const json& entry : golden["cases"]) {
    const auto text = entry["text"].get<std::string>();
    EXPECT_EQ(tiny().encode(text), entry["ids"].get<std::vector<int>>()) << entry["text"].dump(-1, ' ', true);
    EXPECT_EQ(tiny().encode(text, false), entry["ids_without_added"].get<std::vector<int>>()) << entry["text"].dump(-1, ' ', true);
  }
}

// The same, over files of our own making: flags of added tokens, ignore_merges, other split expressions.
TEST(tokenizer, agrees_with_the_reference_library_on_variants) {
  const json golden = read_json(std::string(TETRAD_GOLDENS) + "/tokenizer-fuzz.json");
  ASSERT_GE(golden["variants"].size(), 4U);
  json base = read_json(kTiny + "tokenizer.json");
  for (const json& variant : golden["variants"]) {
    json file = base;
    file.merge_patch(variant["patch"]);
    const Tokenizer tokenizer = parse(file);
    ASSERT_FALSE(variant["cases"].empty());
    for (const json& entry : variant["cases"]) {
      EXPECT_EQ(tokenizer.encode(entry["text"].get<std::string>()), entry["ids"].get<std::vector<int>>())
          << variant["name"] << " " << entry["text"].dump(-1, ' ', true);
    }
  }
}

TEST(tokenizer, empty_text_has_no_ids) {
  EXPECT_TRUE(tiny().encode("").empty());
  EXPECT_EQ(tiny().decode({}), "");
}

TEST(tokenizer, added_tokens_can_be_switched_off) {
  const int start = *tiny().added_token("<|im_start|>");
  EXPECT_EQ(tiny().encode("a<|im_start|>b").at(1), start);
  const std::vector<int> plain = tiny().encode("a<|im_start|>b", false);
  for (const int id : plain) EXPECT_FALSE(tiny().is_added(id)) << id;
  EXPECT_EQ(tiny().decode(plain), "a<|im_start|>b");
}

TEST(tokenizer, facts_about_ids) {
  EXPECT_EQ(tiny().size(), 4065);
  EXPECT_EQ(tiny().token_bytes(4033), "<|im_start|>");
  EXPECT_EQ(tiny().token_bytes(220), " ");
  EXPECT_EQ(tiny().token_bytes(4065), "");
  EXPECT_EQ(tiny().token_bytes(-1), "");
  EXPECT_TRUE(tiny().is_special(4034));
  EXPECT_TRUE(tiny().is_added(4056));
  EXPECT_FALSE(tiny().is_special(4056));
  EXPECT_FALSE(tiny().is_added(100));
  EXPECT_EQ(tiny().added_token("<think>"), 4056);
  EXPECT_EQ(tiny().added_token("think"), std::nullopt);
}

TEST(tokenizer, decode_refuses_ids_without_a_token) {
  for (const int id : {-1, 4065, 4095, 1 << 30, std::numeric_limits<int>::min()}) {
    const std::vector<int> ids = {4033, id};
    const std::string message = message_of<InputError>([&] { tiny().decode(ids); });
    EXPECT_NE(message.find(std::to_string(id)), std::string::npos) << message;
  }
}

TEST(tokenizer, decode_skips_special_tokens) {
  const std::vector<int> ids = tiny().encode("<|im_start|>a<think>b<|im_end|>");
  EXPECT_EQ(tiny().decode(ids, true), "a<think>b");
}

TEST(tokenizer, invalid_utf8_is_an_input_error_with_its_offset) {
  const std::vector<std::pair<std::string, int>> cases = {{"\xFF", 0},          {"ab\x80", 2},           {"\xC0\xAF", 0},
                                                          {"x\xED\xA0\x80", 1}, {"\xF4\x90\x80\x80", 0}, {"\xE4\xB8", 0},
                                                          {"ok \xE4\xB8g", 3},  {"\xC3\xA9\xC3", 2},     {std::string("\0\xF8", 2), 1}};
  for (const auto& [text, offset] : cases) {
    for (const bool added_tokens : {true, false}) {
      const std::string message = message_of<InputError>([&, &bytes = text] { tiny().encode(bytes, added_tokens); });
      EXPECT_NE(message.find("byte " + std::to_string(offset) + " "), std::string::npos) << message;
    }
  }
}

TEST(tokenizer, merges_lowest_rank_first_then_leftmost) {
  const Tokenizer tokenizer = parse(small_file());
  EXPECT_EQ(tokenizer.encode("abc"), (std::vector<int>{257}));
  EXPECT_EQ(tokenizer.encode("ababc"), (std::vector<int>{256, 257}));
  // "a" "b" comes before " " "a".
  EXPECT_EQ(tokenizer.encode(" ab"), (std::vector<int>{' ', 256}));
  EXPECT_EQ(tokenizer.encode(" a"), (std::vector<int>{258}));
  json file = small_file();
  file["model"]["vocab"]["aa"] = 259;
  file["model"]["merges"] = pairs({{"a", "a"}});
  EXPECT_EQ(parse(file).encode("aaaaa"), (std::vector<int>{259, 259, 'a'}));
}

TEST(tokenizer, merges_in_the_text_form) {
  json file = small_file();
  file["model"]["merges"] = json::array({"a b", "ab c"});
  EXPECT_EQ(parse(file).encode("abcab"), (std::vector<int>{257, 256}));
}

TEST(tokenizer, ignore_merges_takes_whole_words) {
  json file = small_file();
  file["model"]["vocab"]["xyz"] = 259;
  EXPECT_EQ(parse(file).encode("xyz xyz"), (std::vector<int>{'x', 'y', 'z', ' ', 'x', 'y', 'z'}));
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(parse(file).encode("xyz xyz"), (std::vector<int>{259, ' ', 'x', 'y', 'z'}));
}

TEST(tokenizer, without_a_normalizer_text_is_kept) {
  json file = small_file();
  EXPECT_EQ(parse(file).decode(parse(file).encode("e\u0301")), "\u00e9");
  file["normalizer"] = nullptr;
  EXPECT_EQ(parse(file).decode(parse(file).encode("e\u0301")), "e\u0301");
}

TEST(tokenizer, longest_added_token_wins) {
  json file = small_file();
  file["added_tokens"] = json::array({added(300, "<a>"), added(301, "<a><b>"), added(302, "a><")});
  const Tokenizer tokenizer = parse(file);
  EXPECT_EQ(tokenizer.encode("<a><b>"), (std::vector<int>{301}));
  EXPECT_EQ(tokenizer.encode("<a><a>"), (std::vector<int>{300, 300}));
  EXPECT_EQ(tokenizer.encode("a><a>"), (std::vector<int>{302, 'a', '>'}));
  EXPECT_EQ(tokenizer.encode("<a><c"), (std::vector<int>{300, '<', 'c'}));
  EXPECT_EQ(tokenizer.size(), 303);
  EXPECT_EQ(tokenizer.token_bytes(299), "");
}

TEST(tokenizer, added_token_flags) {
  json file = small_file();
  file["added_tokens"] = json::array({added(300, "<s>", {"single_word"}), added(301, "<l>", {"lstrip"}), added(302, "<r>", {"rstrip"}),
                                      added(303, "\u1ec7", {"normalized"}), added(304, "e\u0302\u0323x")});
  const Tokenizer tokenizer = parse(file);
  EXPECT_EQ(tokenizer.encode("<s>"), (std::vector<int>{300}));
  EXPECT_EQ(tokenizer.encode("x<s>"), (std::vector<int>{'x', '<', 's', '>'}));
  EXPECT_EQ(tokenizer.encode(",<s>,"), (std::vector<int>{',', 300, ','}));
  EXPECT_EQ(tokenizer.encode("x \u3000<l> x"), (std::vector<int>{'x', 301, ' ', 'x'}));
  EXPECT_EQ(tokenizer.encode("x <r>\u2003\n x"), (std::vector<int>{'x', ' ', 302, 'x'}));
  EXPECT_EQ(tokenizer.encode("<r> <l>"), (std::vector<int>{302, 301}));
  // Found after normalisation, where a raw token is found before.
  EXPECT_EQ(tokenizer.encode("e\u0302\u0323"), (std::vector<int>{303}));
  EXPECT_EQ(tokenizer.encode("e\u0302\u0323x"), (std::vector<int>{304}));
}

// PCRE2's \s also holds U+180E; the reference's does not.
TEST(tokenizer, white_space_is_the_reference_s) {
  json file = small_file();
  file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\s";
  file["model"]["vocab"]["xx"] = 259;
  file["model"]["merges"] = pairs({{"x", "x"}});
  const Tokenizer tokenizer = parse(file);
  int spaces = 0;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    if (!text::is_white_space(c)) continue;
    ++spaces;
    std::string text = "xx";
    text::append_utf8(text, c);
    EXPECT_EQ(tokenizer.encode(text + "xx").front(), 259);
  }
  EXPECT_EQ(spaces, 25);
  // "\u180Exx" is one word here, so U+180E is no white space: the pieces would be the same ids, hence a merge across.
  file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "x\\s";
  EXPECT_EQ(parse(file).encode("x\u180E").size(), 4U);
  file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "x\\S|x";
  json split_off = file;
  split_off["model"]["vocab"]["x\u00e1"] = 260;  // "x" and byte E1
  split_off["model"]["merges"] = pairs({{"x", "\u00e1"}});
  EXPECT_EQ(parse(split_off).encode("x\u180E").front(), 260);
  EXPECT_EQ(parse(split_off).encode("x\u1680").front(), 'x');
}

TEST(tokenizer, malformed_files_are_refused_by_name) {
  EXPECT_NE(message_of<LoadError>([] { Tokenizer::parse("{", "cut.json"); }).find("cut.json"), std::string::npos);
  EXPECT_NE(message_of<LoadError>([] { Tokenizer::parse(std::string(100000, '['), "deep.json"); }).find("nested"), std::string::npos);
  EXPECT_NE(message_of<LoadError>([] { Tokenizer::load("/nonexistent/tokenizer.json"); }).find("/nonexistent"), std::string::npos);
  EXPECT_NE(message_of<LoadError>([] { Tokenizer::load(TETRAD_MODELS); }).find(TETRAD_MODELS), std::string::npos);
  expect_refused(json::array(), "a JSON object");

  const std::string twice = R"({"model":{"type":"BPE","vocab":{"a":1,"a":2}}})";
  EXPECT_NE(message_of<LoadError>([&] { Tokenizer::parse(twice, "t"); }).find("distinct"), std::string::npos);
}

// The small file with one value replaced is refused with a message that holds `part`.
void refused(const char* pointer, const json& value, const std::string& part) {
  json file = small_file();
  file[json::json_pointer(pointer)] = value;
  expect_refused(file, part);
}

TEST(tokenizer, unsupported_fields_are_refused_by_name) {
  refused("/normalizer", {{"type", "NFKC"}}, "normalizer");
  refused("/truncation", {{"max_length", 5}}, "truncation");
  refused("/padding", {{"length", 5}}, "padding");
  refused("/post_processor", {{"type", "TemplateProcessing"}}, "post_processor");
  refused("/decoder", nullptr, "decoder");
  refused("/pre_tokenizer", {{"type", "ByteLevel"}}, "pre_tokenizer");
  refused("/pre_tokenizer/pretokenizers/0/behavior", "Removed", "behavior");
  refused("/pre_tokenizer/pretokenizers/0/invert", true, "invert");
  refused("/pre_tokenizer/pretokenizers/0/pattern", {{"String", " "}}, "pattern");
  refused("/pre_tokenizer/pretokenizers/1/add_prefix_space", true, "add_prefix_space");
  refused("/pre_tokenizer/pretokenizers/1/use_regex", true, "use_regex");
  refused("/model/type", "WordPiece", "model");
  refused("/model/dropout", 0.1, "dropout");
  refused("/model/unk_token", "<unk>", "unk_token");
  refused("/model/byte_fallback", true, "byte_fallback");
  refused("/model/end_of_word_suffix", "</w>", "end_of_word_suffix");
  refused("/model/ignore_merges", 1, "ignore_merges");
}

TEST(tokenizer, bad_vocabularies_merges_and_added_tokens_are_refused_by_name) {
  refused("/model/vocab", json::array(), "model.vocab");
  refused("/model/vocab/ab", -1, "model.vocab[\"ab\"]");
  refused("/model/vocab/ab", 1LL << 40, "model.vocab[\"ab\"]");
  refused("/model/vocab/ab", 1.5, "model.vocab[\"ab\"]");
  refused("/model/vocab/ab", 65, "id 65");
  refused("/model/vocab/a b", 300, "byte-level alphabet");
  refused("/model/vocab/", 300, "0 bytes");
  refused("/model/merges", "a b", "model.merges");
  refused("/model/merges/0", "a  b", "model.merges[0]");
  refused("/model/merges/0", json::array({"a", 1}), "model.merges[0]");
  refused("/model/merges/0", json::array({"b", "a"}), "\"ba\"");
  refused("/model/merges/1", json::array({"a", "b"}), "twice");
  refused("/model/merges/1", json::array({"zz", "b"}), "\"zz\"");
  refused("/added_tokens", 5, "added_tokens");
  refused("/added_tokens", json::array({5}), "added_tokens[0]");
  refused("/added_tokens", json::array({added(300, "")}), "added_tokens[0].content");
  refused("/added_tokens", json::array({added(65, "<a>")}), "id 65");
  refused("/added_tokens", json::array({added(300, "ab")}), "256");
  refused("/added_tokens", json::array({added(300, "<a>"), added(301, "<a>")}), "twice");
  refused("/added_tokens", json::array({added(300, "<a>"), added(300, "<b>")}), "id 300");
  refused("/added_tokens", json::array({{{"id", 300}, {"content", "<a>"}, {"lstrip", 1}}}), "lstrip");

  json no_byte = small_file();
  no_byte["model"]["vocab"].erase("z");
  expect_refused(no_byte, "0x7a");
}

TEST(tokenizer, split_expressions_that_the_two_libraries_read_differently_are_refused) {
  for (const char* expression : {"\\w+",
                                 "\\b",
                                 "\\h",
                                 "\\R",
                                 "\\X",
                                 "\\G",
                                 "\\K",
                                 "\\A",
                                 "\\z",
                                 "^a",
                                 "a$",
                                 "(?i)a",
                                 "(?m:a)",
                                 "(?<n>a)",
                                 "(?P<n>a)",
                                 "(?#x)a",
                                 "(?R)",
                                 "(a)\\1",
                                 "[a[b]]",
                                 "[a&&b]",
                                 "[[:alpha:]]",
                                 "[]a]",
                                 "[a",
                                 "(a",
                                 "a)",
                                 "a**",
                                 "*a",
                                 "(?C1)a",
                                 "(*LIMIT_MATCH=1)a",
                                 "a{,3}",
                                 "a{5,2}",
                                 "a{99999}",
                                 "a{2}+",
                                 "a{2}?",
                                 "\\p{Han}",
                                 "\\p{Cn}",
                                 "\\pL",
                                 "[\\P{L}]",
                                 "(?i:\u00e9)",
                                 "(?i:ss)",
                                 "(?i:\\p{Lu})",
                                 "\\xE9",
                                 "\\x{110000}",
                                 "\\x{D800}",
                                 "[z-a]",
                                 "[\\s-z]",
                                 "\\"}) {
    json file = small_file();
    file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = expression;
    expect_refused(file, "split expression");
  }
  json nested = small_file();
  nested["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = std::string(1000, '(') + std::string(1000, ')');
  expect_refused(nested, "nesting");
}

TEST(tokenizer, a_split_expression_that_explodes_ends_in_an_error) {
  json file = small_file();
  file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(?:a+)+b";
  const Tokenizer tokenizer = parse(file);
  EXPECT_EQ(tokenizer.encode("aab").size(), 2U);
  const std::string message = message_of<InputError>([&] { tokenizer.encode(std::string(200, 'a') + "xb"); });
  EXPECT_NE(message.find("at byte 0"), std::string::npos) << message;
}

TEST(tokenizer, empty_matches_do_not_loop) {
  json file = small_file();
  file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "x*";
  EXPECT_EQ(parse(file).encode("axxb\u4e00").size(), 7U);
}

// Processor time, so that other work on the machine does not count.
double seconds(const std::function<void()>& call) {
  const std::clock_t begin = std::clock();
  call();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
constexpr bool kTimed = false;
#else
constexpr bool kTimed = true;
#endif

// A merge loop that scanned the word once per merge would need hours for a million letters.
TEST(tokenizer, long_words_take_no_quadratic_time) {
  const std::string letters(1'000'000, 'a');
  std::string marks = "a";
  for (int i = 0; i < 250'000; ++i) marks += "\u0301\u0316";
  for (const std::string& text : {letters, std::string(1'000'000, ' '), std::string(1'000'000, '\n'), marks}) {
    std::vector<int> ids;
    const double elapsed = seconds([&] { ids = tiny().encode(text); });
    EXPECT_EQ(tiny().decode(ids), text::nfc(text));
    if (kTimed) {
      EXPECT_LT(elapsed, 10.0);
    }
  }
}

TEST(tokenizer, speed_on_english_text) {
  std::string text;
  std::uint64_t state = 1;
  std::vector<std::string> parts;
  for (const json& entry : read_json(kTiny + "golden-generate.json")["cases"]) parts.push_back(entry["prompt"].get<std::string>());
  for (const json& entry : read_json(kTiny + "golden-tokenizer.json")) {
    const auto part = entry["text"].get<std::string>();
    if (std::all_of(part.begin(), part.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) parts.push_back(part);
  }
  while (text.size() < 4'000'000) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    text += parts[(state >> 33) % parts.size()] + '\n';
  }
  if (!kTimed) GTEST_SKIP() << "not timed: a build with sanitizers or without optimisation; the floor of 1 MB/s went unchecked";
  constexpr int kPasses = 3;
  tiny().encode(text.substr(0, 100'000));
  const double elapsed = seconds([&] {
    for (int i = 0; i < kPasses; ++i) tiny().encode(text);
  });
  const double rate = kPasses * static_cast<double>(text.size()) / elapsed / 1e6;
  std::printf("tokenizer: %.1f MB per second of processor time (mean of %d passes over %zu bytes of English)\n", rate, kPasses,
              text.size());
  EXPECT_GT(rate, 1.0);
}

TEST(tokenizer, encodes_in_several_threads) {
  const json golden = read_json(kTiny + "golden-tokenizer.json");
  std::vector<std::thread> threads;
  std::array<int, 4> wrong{};
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 20; ++round) {
        for (const json& entry : golden) {
          wrong[t] += tiny().encode(entry["text"].get_ref<const std::string&>()) != entry["ids"].get<std::vector<int>>();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, (std::array<int, 4>{}));
}

TEST(tokenizer, survives_a_move) {
  Tokenizer first = Tokenizer::load(kTiny + "tokenizer.json");
  const std::vector<int> ids = first.encode("<think> moved words");
  Tokenizer second = std::move(first);
  EXPECT_EQ(second.encode("<think> moved words"), ids);
  EXPECT_EQ(second.added_token("<think>"), 4056);
}

}  // namespace
}  // namespace tetrad::tokenizer_test

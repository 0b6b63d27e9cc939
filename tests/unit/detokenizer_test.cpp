// Bytes to text: alphabet, lossy decoding, and the stream that holds back what is incomplete.
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "text/byte_level.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace tetrad::detokenizer_test {
namespace {

const Tokenizer& tiny() {
  static const Tokenizer tokenizer = Tokenizer::load(std::string(TETRAD_MODELS) + "/tetrad-tiny/tokenizer.json");
  return tokenizer;
}

int byte_id(unsigned char byte) {
  static const std::vector<int> ids = [] {
    std::vector<int> table(256, -1);
    for (int id = 0; id < tiny().size(); ++id) {
      const std::string_view bytes = tiny().token_bytes(id);
      if (bytes.size() == 1) table[static_cast<unsigned char>(bytes[0])] = id;
    }
    return table;
  }();
  return ids[byte];
}

std::vector<std::string> stream(std::string_view bytes) {
  StreamDetokenizer detokenizer(tiny());
  std::vector<std::string> out;
  for (const char c : bytes) out.push_back(detokenizer.feed(byte_id(static_cast<unsigned char>(c))));
  out.push_back(detokenizer.finish());
  return out;
}

using Strings = std::vector<std::string>;

TEST(detokenizer, the_alphabet_is_one_to_one) {
  std::set<char32_t> seen;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t c = text::byte_to_code_point(static_cast<unsigned char>(byte));
    EXPECT_TRUE(seen.insert(c).second) << byte;
    std::string name;
    text::append_utf8(name, c);
    EXPECT_EQ(text::byte_level_decode(name), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(text::byte_to_code_point(' '), 0x120U);
  EXPECT_EQ(text::byte_to_code_point('\n'), 0x10AU);
  EXPECT_EQ(text::byte_to_code_point(0xAD), 0x143U);
  EXPECT_EQ(text::byte_level_decode(" "), std::nullopt);
  EXPECT_EQ(text::byte_level_decode("\u0144"), std::nullopt);
}

TEST(detokenizer, holds_back_parts_of_a_code_point) {
  EXPECT_EQ(stream("\u00e9"), (Strings{"", "\u00e9", ""}));
  EXPECT_EQ(stream("a\u20acb"), (Strings{"a", "", "", "\u20ac", "b", ""}));
  EXPECT_EQ(stream("\U0001F600"), (Strings{"", "", "", "\U0001F600", ""}));
}

TEST(detokenizer, a_literal_replacement_character_passes_at_once) { EXPECT_EQ(stream("\uFFFDx"), (Strings{"", "", "\uFFFD", "x", ""})); }

TEST(detokenizer, invalid_bytes_become_replacement_characters) {
  EXPECT_EQ(stream("\x80"
                   "a"),
            (Strings{"\uFFFD", "a", ""}));
  EXPECT_EQ(stream("\xF0\x9F\x98"), (Strings{"", "", "", "\uFFFD"}));
  EXPECT_EQ(stream("\xF0\x9F"
                   "a"),
            (Strings{"", "",
                     "\uFFFD"
                     "a",
                     ""}));
  EXPECT_EQ(stream("\xE2\x82\xE2\x82\xAC"), (Strings{"", "", "\uFFFD", "", "\u20ac", ""}));
  // A surrogate is three stretches of one byte each; so is an overlong form.
  EXPECT_EQ(stream("\xED\xA0\x80"), (Strings{"", "\uFFFD\uFFFD", "\uFFFD", ""}));
}

TEST(detokenizer, an_added_token_ends_what_is_pending) {
  StreamDetokenizer detokenizer(tiny());
  EXPECT_EQ(detokenizer.feed(byte_id(0xE2)), "");
  EXPECT_EQ(detokenizer.feed(*tiny().added_token("<think>")), "\uFFFD<think>");
}

TEST(detokenizer, skipped_special_tokens_leave_no_trace) {
  StreamDetokenizer detokenizer(tiny(), true);
  EXPECT_EQ(detokenizer.feed(byte_id(0xC3)), "");
  EXPECT_EQ(detokenizer.feed(*tiny().added_token("<|im_end|>")), "");
  EXPECT_EQ(detokenizer.feed(byte_id(0xA9)), "\u00e9");
  EXPECT_EQ(detokenizer.feed(*tiny().added_token("<think>")), "<think>");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(detokenizer, refuses_ids_without_a_token) {
  StreamDetokenizer detokenizer(tiny());
  EXPECT_THROW(detokenizer.feed(-1), InputError);
  EXPECT_THROW(detokenizer.feed(4095), InputError);
}

TEST(detokenizer, finish_can_be_called_again) {
  StreamDetokenizer detokenizer(tiny());
  EXPECT_EQ(detokenizer.feed(byte_id(0xC3)), "");
  EXPECT_EQ(detokenizer.finish(), "\uFFFD");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(unicode, normal_form_c) {
  EXPECT_EQ(text::nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(text::nfc("e\u0323\u0302"), "\u1ec7");
  EXPECT_EQ(text::nfc("e\u0302\u0323"), "\u1ec7");       // marks are put in order first
  EXPECT_EQ(text::nfc("\u1112\u1161\u11ab"), "\ud55c");  // Hangul
  EXPECT_EQ(text::nfc("\u2126"), "\u03a9");
  EXPECT_EQ(text::nfc("\u0958"), "\u0915\u093c");  // a composition exclusion
  EXPECT_EQ(text::nfc("\ufb01"), "\ufb01");        // compatibility forms stay
  EXPECT_EQ(text::nfc(std::string("a\0b", 3)), std::string("a\0b", 3));
  EXPECT_EQ(text::nfc(""), "");
}

}  // namespace
}  // namespace tetrad::detokenizer_test

// Round trips over random Unicode.
#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "text/added_tokens.h"
#include "text/unicode.h"

namespace tetrad::tokenizer_test {
namespace {

const Tokenizer& tiny() {
  static const Tokenizer tokenizer = Tokenizer::load(std::string(TETRAD_MODELS) + "/tetrad-tiny/tokenizer.json");
  return tokenizer;
}

rc::Gen<char32_t> between(char32_t first, char32_t last) {
  return rc::gen::cast<char32_t>(rc::gen::inRange<std::uint32_t>(first, static_cast<std::uint32_t>(last) + 1));
}

// Any scalar value, with extra weight on what tokenizers trip over.
rc::Gen<char32_t> code_point() {
  return rc::gen::weightedOneOf<char32_t>({{6, between(0x20, 0x7E)},
                                           {2, between(0, 0x1F)},
                                           {2, between(0x80, 0x24F)},
                                           {3, between(0x300, 0x36F)},  // combining marks
                                           {1, between(0x1AB0, 0x1ACE)},
                                           {2, between(0x2000, 0x206F)},  // white space, joiners, directions
                                           {1, rc::gen::element<char32_t>(0x85, 0xA0, 0x1680, 0x180E, 0x3000, 0xFEFF, 0xFFFD, 0x17F)},
                                           {2, between(0x900, 0xDFF)},
                                           {2, between(0x1100, 0x11FF)},  // Hangul that composes
                                           {2, between(0x4E00, 0x9FFF)},
                                           {1, between(0xAC00, 0xD7A3)},
                                           {1, between(0xE000, 0xFFFF)},
                                           {2, between(0x1F300, 0x1FAFF)},
                                           {1, between(0x10000, 0x10FFFF)},
                                           {1, between(0xA0, 0xD7FF)}});
}

rc::Gen<std::string> unicode_text() {
  return rc::gen::map(rc::gen::container<std::u32string>(code_point()), [](const std::u32string& code_points) {
    std::string out;
    for (const char32_t c : code_points) text::append_utf8(out, c);
    return out;
  });
}

struct Mixed {
  std::string text, expected;
};

// Text with added tokens in it, and what it decodes to: the tokens as they are, the text between them in form C.
Mixed mixed_text() {
  static const std::vector<std::string> kTokens = {"<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "<|endoftext|>"};
  Mixed mixed;
  const int parts = *rc::gen::inRange(0, 6);
  for (int i = 0; i < parts; ++i) {
    const std::string between_tokens = *unicode_text();
    const std::string token = *rc::gen::elementOf(kTokens);
    mixed.text += between_tokens + token;
    mixed.expected += text::nfc(between_tokens) + token;
  }
  return mixed;
}

std::string streamed(std::span<const int> ids, bool skip_special) {
  StreamDetokenizer detokenizer(tiny(), skip_special);
  std::string out;
  for (const int id : ids) {
    const std::string piece = detokenizer.feed(id);
    RC_ASSERT(text::find_invalid_utf8(piece) == std::string_view::npos);
    out += piece;
  }
  return out + detokenizer.finish();
}

RC_GTEST_PROP(tokenizer, decode_of_encode_is_form_c, ()) {
  const std::string text = *unicode_text();
  const std::vector<int> ids = tiny().encode(text, false);
  RC_ASSERT(tiny().decode(ids) == text::nfc(text));
  RC_ASSERT(streamed(ids, false) == text::nfc(text));
}

RC_GTEST_PROP(tokenizer, added_tokens_inside_the_text_survive, ()) {
  const Mixed mixed = mixed_text();
  const std::vector<int> ids = tiny().encode(mixed.text);
  RC_ASSERT(tiny().decode(ids) == mixed.expected);
  RC_ASSERT(streamed(ids, true) == tiny().decode(ids, true));
  // Switched off, none of their ids appears, and the whole text is normalised as one.
  const std::vector<int> plain = tiny().encode(mixed.text, false);
  for (const int id : plain) RC_ASSERT(!tiny().is_added(id));
  RC_ASSERT(tiny().decode(plain) == text::nfc(mixed.text));
}

RC_GTEST_PROP(tokenizer, encode_is_repeatable, ()) {
  const std::string text = *unicode_text();
  const Tokenizer fresh = Tokenizer::load(std::string(TETRAD_MODELS) + "/tetrad-tiny/tokenizer.json");
  RC_PRE(text.size() < 4000U);
  const std::vector<int> ids = fresh.encode(text);
  RC_ASSERT(tiny().encode(text) == ids);
  RC_ASSERT(fresh.encode(text) == ids);
}

// Random ids are mostly broken UTF-8: the stream still ends where decode() does, and never shows half a code point.
RC_GTEST_PROP(tokenizer, stream_of_any_ids_is_decode, ()) {
  const auto ids = *rc::gen::container<std::vector<int>>(
      rc::gen::weightedOneOf<int>({{3, rc::gen::inRange(0, 256)}, {1, rc::gen::inRange(0, tiny().size())}}));
  for (const bool skip_special : {false, true}) RC_ASSERT(streamed(ids, skip_special) == tiny().decode(ids, skip_special));
}

RC_GTEST_PROP(tokenizer, invalid_bytes_are_found_where_they_are, ()) {
  const std::string before = *unicode_text();
  const std::string after = *unicode_text();
  const auto bad = static_cast<char>(*rc::gen::element(0x80, 0xBF, 0xC0, 0xC1, 0xF5, 0xFF));
  RC_ASSERT(text::find_invalid_utf8(before + bad + after) == before.size());
}

RC_GTEST_PROP(unicode, form_c_is_stable, ()) {
  const std::string once = text::nfc(*unicode_text());
  RC_ASSERT(text::find_invalid_utf8(once) == std::string_view::npos);
  RC_ASSERT(text::nfc(once) == once);
}

}  // namespace
}  // namespace tetrad::tokenizer_test

#include "grammar/builder.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <string>
#include <utility>

#include "grammar/code_check.h"
#include "text/unicode.h"

namespace tetrad::grammar {
namespace {

constexpr std::string_view kEndParameter = "</parameter>", kEndCall = "</tool_call>";

ByteSet bytes_of(std::string_view bytes) {
  ByteSet set{};
  for (const char c : bytes) set[static_cast<unsigned char>(c) / 64] |= std::uint64_t{1} << (static_cast<unsigned char>(c) % 64);
  return set;
}

std::string json_escape(char32_t c) {
  static constexpr std::pair<char32_t, std::string_view> kShort[] = {{'"', "\\\""}, {'\\', "\\\\"}, {'\n', "\\n"}, {'\r', "\\r"},
                                                                     {'\t', "\\t"}, {'\b', "\\b"},  {'\f', "\\f"}};
  for (const auto& [escaped, text] : kShort)
    if (c == escaped) return std::string(text);
  return c < 0x20 ? fmt::format("\\u{:04x}", static_cast<unsigned>(c)) : std::string();
}

std::u32string decode(std::string_view utf8) {
  std::u32string points;
  while (!utf8.empty()) {
    const text::Utf8Step step = text::utf8_step(utf8);
    TETRAD_CHECK(step.kind == text::Utf8Step::Kind::kCodePoint, "text of a grammar that is not UTF-8");
    points += step.code_point;
    utf8.remove_prefix(step.length);
  }
  return points;
}

}  // namespace

const CodePoints& plain_text() {
  static const CodePoints points = CodePoints{{0x20, 0x7E}, {0x80, kLastCodePoint}}.without({{'"', '"'}, {'\\', '\\'}, {'<', '<'}});
  return points;
}

Builder::Builder() {
  emit({.op = Op::kFail});
  emit({.op = Op::kReturn});
  build_prelude();
  grammar_.prelude_end = static_cast<Pc>(size());
}

Pc Builder::emit(Instruction instruction) {
  if (size() >= kMaxInstructions) fail<GrammarError>("too large: it compiles to more than {} instructions", kMaxInstructions);
  grammar_.code.push_back(instruction);
  return static_cast<Pc>(size()) - 1;
}

Pc Builder::range(unsigned low, unsigned high, Pc next) {
  const std::uint64_t key = std::uint64_t{low} << 40 | std::uint64_t{high} << 32 | static_cast<std::uint32_t>(next);
  const auto [at, fresh] = ranges_.try_emplace(key, 0);
  if (fresh)
    at->second = emit({.op = Op::kRange, .low = static_cast<std::uint8_t>(low), .high = static_cast<std::uint8_t>(high), .a = next});
  return at->second;
}

Pc Builder::set(const ByteSet& bytes, Pc next) {
  std::size_t i = grammar_.sets.size();
  // The sets of one grammar are few, and equal ones tend to follow each other.
  constexpr std::size_t kLookBack = 8;
  for (std::size_t back = 1; back <= std::min(kLookBack, grammar_.sets.size()); ++back)
    if (grammar_.sets[grammar_.sets.size() - back] == bytes) i = grammar_.sets.size() - back;
  if (i == grammar_.sets.size()) grammar_.sets.push_back(bytes);
  return emit({.op = Op::kSet, .a = next, .b = static_cast<Pc>(i)});
}

Pc Builder::literal(std::string_view text, Pc next) {
  for (std::size_t i = text.size(); i > 0; --i) next = byte(text[i - 1], next);
  return next;
}

Pc Builder::digits(int min, int max, Pc next) {
  if (max < 0) max = kMaxDigits;
  Pc at = next;
  for (int i = max; i > 0; --i) at = i <= min ? range('0', '9', at) : split(range('0', '9', at), next);
  return at;
}

Pc Builder::split(Pc a, Pc b) {
  if (a == b || b == nowhere()) return a;
  if (a == nowhere()) return b;
  return emit({.op = Op::kSplit, .a = a, .b = b});
}

Pc Builder::choice(std::span<const Pc> ways) {
  Pc all = nowhere();
  for (std::size_t i = ways.size(); i > 0; --i) all = split(ways[i - 1], all);
  return all;
}

Builder::OpenLoop Builder::open_loop(std::uint32_t min, std::uint32_t max) {
  if (grammar_.loops.size() >= kMaxLoops) fail<GrammarError>("too large: more than {} counted repetitions", kMaxLoops);
  OpenLoop open;
  open.loop = static_cast<int>(grammar_.loops.size());
  grammar_.loops.push_back({min, max});
  open.head = reserve();
  open.tick = emit({.op = Op::kTick, .a = open.head});
  return open;
}

Pc Builder::close_loop(const OpenLoop& open, Pc body, Pc next) {
  patch(open.head, {.op = Op::kLoop, .a = body, .b = next});
  return emit({.op = Op::kPush, .a = open.head, .b = open.loop});
}

Pc Builder::characters(const CodePoints& points, TextForm form, Pc next) {
  ByteSet ascii{};
  std::vector<Pc> ways;
  for (auto [first, last] : points.ranges()) {
    for (; first <= std::min<char32_t>(last, 0x7F); ++first) {
      const std::string escape = form == TextForm::kJson ? json_escape(first) : std::string();
      if (escape.empty())
        ascii[first / 64] |= std::uint64_t{1} << (first % 64);
      else
        ways.push_back(literal(escape, next));
    }
    if (first > last) continue;
    for_each_utf8_sequence(first, last, [&](std::span<const ByteRange> sequence) {
      Pc at = next;
      for (std::size_t i = sequence.size(); i > 0; --i) at = range(sequence[i - 1].low, sequence[i - 1].high, at);
      ways.push_back(at);
    });
  }
  if (ascii != ByteSet{}) ways.push_back(set(ascii, next));
  return choice(ways);
}

Pc Builder::text(std::string_view utf8, TextForm form, Pc next) {
  const std::u32string points = decode(utf8);
  for (std::size_t i = points.size(); i > 0; --i) {
    const std::string escape = form == TextForm::kJson ? json_escape(points[i - 1]) : std::string();
    std::string bytes = escape;
    if (escape.empty()) text::append_utf8(bytes, points[i - 1]);
    next = literal(bytes, next);
  }
  return next;
}

Pc Builder::one_of(std::vector<std::string> texts, TextForm form, Pc next) {
  // Byte tries; a level at a time so that long texts do not recurse.
  if (form == TextForm::kJson) {
    for (std::string& text : texts) {
      std::string escaped;
      for (const char32_t c : decode(text)) {
        const std::string escape = json_escape(c);
        escaped += escape;
        if (escape.empty()) text::append_utf8(escaped, c);
      }
      text = std::move(escaped);
    }
  }
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  struct Node {
    std::size_t parent;
    char byte;
    bool ends = false;
    std::vector<Pc> ways = {};
  };
  std::vector<Node> nodes = {{0, 0}};
  std::vector<std::size_t> path = {0};  // nodes of the text before, from the root
  std::string_view before;
  for (const std::string& text : texts) {
    const std::size_t common =
        static_cast<std::size_t>(std::mismatch(text.begin(), text.end(), before.begin(), before.end()).first - text.begin());
    path.resize(common + 1);
    for (std::size_t i = common; i < text.size(); ++i) {
      if (nodes.size() > kMaxInstructions) fail<GrammarError>("too large: it compiles to more than {} instructions", kMaxInstructions);
      nodes.push_back({path.back(), text[i]});
      path.push_back(nodes.size() - 1);
    }
    nodes[path.back()].ends = true;
    before = text;
  }
  for (std::size_t i = nodes.size(); i > 0; --i) {
    Node& node = nodes[i - 1];
    if (node.ends) node.ways.push_back(next);
    const Pc here = choice(node.ways);
    if (i == 1) return here;
    nodes[node.parent].ways.push_back(byte(node.byte, here));
  }
  return nowhere();
}

Pc Builder::space(Pc next) { return split(byte(' ', next), next); }

Pc Builder::space_or_break(Pc next) {
  const OpenLoop indentation = open_loop(0, kMaxIndentation);
  const Pc broken = close_loop(indentation, set(bytes_of(" \t"), indentation.tick), next);
  return choice({next, byte(' ', next), byte('\n', broken)});
}

Pc Builder::json_character(Pc next) {
  const auto hex = [&](std::string_view digits, Pc to) { return set(bytes_of(digits), to); };
  constexpr std::string_view kHex = "0123456789abcdefABCDEF";
  const Pc hex1 = hex(kHex, next), hex2 = hex(kHex, hex1), hex3 = hex(kHex, hex2);
  // Surrogates come in pairs.
  const Pc low_surrogate = literal("\\u", hex("dD", hex("cdefCDEF", hex2)));
  const Pc low2 = hex(kHex, low_surrogate), low3 = hex(kHex, low2);
  const Pc unit = choice({hex("0123456789abcefABCEF", hex3), hex("dD", split(hex("01234567", hex2), hex("89abAB", low3)))});
  const Pc escape = byte('\\', split(set(bytes_of("\"\\/bfnrt"), next), byte('u', unit)));
  static const CodePoints written = CodePoints{{0x20, kLastCodePoint}}.without({{'"', '"'}, {'\\', '\\'}});
  return split(characters(written, TextForm::kPlain, next), escape);
}

Pc Builder::json_string(std::uint32_t min, std::uint32_t max, Pc next) {
  if (min == 0 && max == kUnbounded) return call(any_string_, next);
  const OpenLoop loop = open_loop(min, max);
  return byte('"', close_loop(loop, split(text_mark(true), json_character(loop.tick)), byte('"', next)));
}

// Text without the two tags that the reader of an answer would take for the parameter's end; where `exit` begins, the text may end. Its
// states are the beginnings of the tags.
Pc Builder::text_loop_to_tag(Pc exit, const OpenLoop* counted) {
  std::vector<std::string> beginnings = {""};
  for (const std::string_view tag : {kEndParameter, kEndCall})
    for (std::size_t n = 1; n < tag.size(); ++n)
      if (std::find(beginnings.begin(), beginnings.end(), tag.substr(0, n)) == beginnings.end()) beginnings.emplace_back(tag.substr(0, n));
  std::vector<Pc> heads, ticks;  // by state; a counted character passes its state's tick
  for (std::size_t s = 0; s < beginnings.size(); ++s) {
    heads.push_back(counted != nullptr && s == 0 ? counted->head : reserve());
    ticks.push_back(counted == nullptr ? heads[s] : emit({.op = Op::kTick, .a = heads[s]}));
  }
  static const CodePoints kWritten{{'\t', '\n'}, {'\r', '\r'}, {0x20, 0x7E}, {0x80, kLastCodePoint}};
  for (std::size_t s = 0; s < beginnings.size(); ++s) {
    CodePoints others = kWritten;
    std::vector<Pc> ways;
    if (s == 0) ways.push_back(text_mark(counted != nullptr));
    // What goes on in a tag; everything else leads back to the start, as no tag begins inside another but at its "<".
    for (const char c : std::string_view("<>/_abcdefghijklmnopqrstuvwxyz")) {
      std::string seen = beginnings[s] + c;
      const bool ends_tag = seen == kEndParameter || seen == kEndCall;
      while (!ends_tag && std::find(beginnings.begin(), beginnings.end(), seen) == beginnings.end()) seen.erase(0, 1);
      if (!ends_tag && seen.empty()) continue;
      const auto point = static_cast<char32_t>(static_cast<unsigned char>(c));
      others = others.without({{point, point}});
      if (ends_tag) continue;
      const auto to = static_cast<std::size_t>(std::find(beginnings.begin(), beginnings.end(), seen) - beginnings.begin());
      ways.push_back(byte(c, ticks[to]));
    }
    ways.push_back(characters(others, TextForm::kPlain, ticks[0]));
    const Pc body = choice(ways);
    if (counted != nullptr)
      patch(heads[s], {.op = Op::kLoop, .a = body, .b = exit});
    else
      patch(heads[s], {.op = Op::kSplit, .a = body, .b = exit});
  }
  return heads[0];
}

Pc Builder::parameter_text(std::uint32_t min, std::uint32_t max, Pc next) {
  if (min == 0 && max == kUnbounded) return call(any_parameter_text_, next);
  const Pc exit = literal(fmt::format("\n{}", kEndParameter), next);
  const OpenLoop loop = open_loop(min, max);
  const Pc head = text_loop_to_tag(exit, &loop);
  return emit({.op = Op::kPush, .a = head, .b = loop.loop});
}

int Builder::add_rule(bool nests) {
  if (grammar_.rules.size() >= kMaxRules) fail<GrammarError>("too large: it compiles to more than {} rules", kMaxRules);
  grammar_.rules.push_back({nowhere(), nests});
  return static_cast<int>(grammar_.rules.size()) - 1;
}

void Builder::build_prelude() {
  any_value_ = add_rule(false);
  any_object_ = add_rule(true);
  any_array_ = add_rule(true);
  any_string_ = add_rule(false);
  any_number_ = add_rule(false);
  any_integer_ = add_rule(false);
  any_parameter_text_ = add_rule(false);

  const Pc in_string = reserve();
  patch(in_string, {.op = Op::kSplit, .a = split(text_mark(false), json_character(in_string)), .b = byte('"', end())});
  define(any_string_, byte('"', in_string));

  const auto whole = [&](Pc next) { return split(byte('0', next), range('1', '9', digits(0, kMaxDigits - 1, next))); };
  const auto signed_from = [&](Pc digits_at) { return split(byte('-', digits_at), digits_at); };
  define(any_integer_, signed_from(whole(end())));
  const Pc exponent = set(bytes_of("eE"), split(set(bytes_of("+-"), digits(1, 2, end())), digits(1, 2, end())));
  const Pc fraction = byte('.', digits(1, kMaxDigits, split(exponent, end())));
  define(any_number_, signed_from(whole(choice({fraction, exponent, end()}))));

  const Pc close_object = byte('}', end()), close_array = byte(']', end());
  const Pc after_value = reserve();
  const Pc pair = call(any_string_, byte(':', space(call(any_value_, after_value))));
  patch(after_value, {.op = Op::kSplit, .a = byte(',', space_or_break(pair)), .b = space_or_break(close_object)});
  define(any_object_, byte('{', space_or_break(split(pair, close_object))));
  const Pc after_item = reserve();
  const Pc item = call(any_value_, after_item);
  patch(after_item, {.op = Op::kSplit, .a = byte(',', space_or_break(item)), .b = space_or_break(close_array)});
  define(any_array_, byte('[', space_or_break(split(item, close_array))));
  define(any_value_, choice({call(any_string_, end()), call(any_number_, end()), call(any_object_, end()), call(any_array_, end()),
                             literal("true", end()), literal("false", end()), literal("null", end())}));

  define(any_parameter_text_, text_loop_to_tag(literal(fmt::format("\n{}", kEndParameter), end()), nullptr));
}

GrammarPtr Builder::finish(Pc start) {
  static std::atomic<std::uint64_t> last_id = 0;
  grammar_.start = start;
  grammar_.id = ++last_id;
  remove_dead_code(grammar_);
  check_recursion(grammar_);
  return std::make_shared<const Grammar>(std::move(grammar_));
}

}  // namespace tetrad::grammar

// From the tree of an expression to code.
#include <algorithm>
#include <utility>

#include "grammar/regex.h"

namespace tetrad::grammar {

class RegexEmitter {
 public:
  RegexEmitter(Builder& builder, const Regex& regex, const RegexUse& use) : builder_(builder), regex_(regex), use_(use) {}

  Pc emit_all(Pc next) { return emit_way(regex_.root_, next); }

 private:
  using Kind = Regex::Kind;
  using Node = Regex::Node;

  // A whole expression, or one way of a choice that stands for the whole of it: here ^ and $ may stand at the ends.
  Pc emit_way(int id, Pc next) {
    const Node& node = regex_.node(id);
    if (node.kind == Kind::kChoice) {
      std::vector<Pc> ways;
      for (const int child : node.children) ways.push_back(emit_way(child, next));
      return builder_.choice(ways);
    }
    std::vector<int> items = node.kind == Kind::kSequence ? node.children : std::vector<int>{id};
    bool from_start = !use_.search, to_end = !use_.search;
    while (!items.empty() && regex_.node(items.front()).kind == Kind::kStart) {
      from_start = true;
      items.erase(items.begin());
    }
    while (!items.empty() && regex_.node(items.back()).kind == Kind::kEnd) {
      to_end = true;
      items.pop_back();
    }
    if (items.size() == 1 && regex_.node(items[0]).kind == Kind::kChoice && (items[0] != id)) {
      // ^(a|b)$: what stands around the group holds for each of its ways.
      RegexUse whole = use_;
      whole.search = false;
      if (from_start && to_end) return RegexEmitter(builder_, regex_, whole).emit_way(items[0], next);
    }
    std::vector<Part> parts = parts_of(items);
    if (!from_start) parts.insert(parts.begin(), Part{-1, 0, kUnbounded});
    if (!to_end) parts.push_back(Part{-1, 0, kUnbounded});
    fit_lengths(parts);
    for (std::size_t i = parts.size(); i > 0; --i) next = emit_part(parts[i - 1], next);
    return next;
  }

  // An item of a sequence, or any characters (-1); of a repeated set the counts, which the length of the whole may narrow.
  struct Part {
    int item = -1;
    std::uint32_t min = 0, max = 0;
    bool counted = true;
  };

  std::vector<Part> parts_of(const std::vector<int>& items) const {
    std::vector<Part> parts;
    for (const int item : items) {
      const Node& node = regex_.node(item);
      const bool counted = node.kind == Kind::kRepeat && regex_.node(node.children[0]).kind == Kind::kSet;
      const Regex::Lengths lengths = regex_.lengths_[static_cast<std::size_t>(item)];
      parts.push_back(counted ? Part{item, node.min, node.max} : Part{item, lengths.min, lengths.max, false});
    }
    return parts;
  }

  // Where all parts but one have a fixed length, and that one is a repeated character, bounds of the whole are bounds of it.
  void fit_lengths(std::vector<Part>& parts) const {
    std::uint64_t min = 0, max = 0;
    for (const Part& part : parts) {
      min += part.min;
      max += part.max;
    }
    const bool unbounded = std::any_of(parts.begin(), parts.end(), [](const Part& part) { return part.max == kUnbounded; });
    if (min >= use_.min_length && (use_.max_length == kUnbounded || (!unbounded && max <= use_.max_length))) return;
    Part* open = nullptr;
    std::uint64_t fixed = 0;
    for (Part& part : parts) {
      if (part.min == part.max) {
        fixed += part.min;
        continue;
      }
      if (open != nullptr || !part.counted)
        fail<GrammarError>(
            "a pattern of varying length together with minLength or maxLength is not supported, but where one character repeats");
      open = &part;
    }
    const std::uint64_t least = use_.min_length > fixed ? use_.min_length - fixed : 0;
    const std::uint64_t most =
        use_.max_length == kUnbounded ? kUnbounded : use_.max_length - std::min<std::uint64_t>(fixed, use_.max_length);
    if ((use_.max_length != kUnbounded && fixed > use_.max_length) || (open == nullptr && least > 0))
      fail<GrammarError>("no text matches the pattern and has the length");
    if (open == nullptr) return;
    open->min = static_cast<std::uint32_t>(std::max<std::uint64_t>(open->min, least));
    open->max = static_cast<std::uint32_t>(std::min<std::uint64_t>(open->max, most));
    if (open->min > open->max) fail<GrammarError>("no text matches the pattern and has the length");
  }

  Pc emit_part(const Part& part, Pc next) {
    if (part.item < 0) return repeat_set(any_character(), part.min, part.max, next);
    const Node& node = regex_.node(part.item);
    if (part.counted) return repeat_set(regex_.node(node.children[0]).points, part.min, part.max, next);
    return emit(part.item, next);
  }

  CodePoints any_character() const {
    return use_.form == TextForm::kJson ? CodePoints::all() : CodePoints{{0x9, 0xA}, {0xD, 0xD}, {0x20, kLastCodePoint}};
  }

  // As deep as the groups of the expression nest.
  Pc emit(int id, Pc next) {
    const Node& node = regex_.node(id);
    switch (node.kind) {
      case Kind::kSet: return set(node.points, next);
      case Kind::kSequence:
        for (std::size_t i = node.children.size(); i > 0; --i) next = emit(node.children[i - 1], next);
        return next;
      case Kind::kChoice: {
        std::vector<Pc> ways;
        for (const int child : node.children) ways.push_back(emit(child, next));
        return builder_.choice(ways);
      }
      case Kind::kRepeat: {
        const Node& child = regex_.node(node.children[0]);
        return child.kind == Kind::kSet ? repeat_set(child.points, node.min, node.max, next) : repeat(node, next);
      }
      case Kind::kStart:
      case Kind::kEnd: fail<GrammarError>("expression: ^ and $ are supported at its ends only");
    }
    return builder_.nowhere();
  }

  Pc set(const CodePoints& points, Pc next) {
    const auto ranges = points.ranges();
    const bool single = ranges.size() == 1 && ranges[0].first == ranges[0].second;
    return builder_.characters(use_.without_tags && !single ? points.without({{'<', '<'}}) : points, use_.form, next);
  }

  static constexpr std::uint32_t kFewCopies = 16;  // up to which copies take less room than a counter costs time

  Pc repeat_set(const CodePoints& points, std::uint32_t min, std::uint32_t max, Pc next) {
    const bool holds_text = !use_.without_tags && points.contains_all(plain_text());
    if ((max != kUnbounded && max <= kFewCopies) || (max == kUnbounded && min <= kFewCopies)) {
      Pc at = next;
      if (max == kUnbounded) {
        at = builder_.reserve();
        const Pc body = set(points, at);
        builder_.patch(at, {.op = Op::kSplit, .a = holds_text ? builder_.split(builder_.text_mark(false), body) : body, .b = next});
      }
      for (std::uint32_t i = max == kUnbounded ? min : max; i > 0; --i)
        at = i <= min ? set(points, at) : builder_.split(set(points, at), next);
      return at;
    }
    const Builder::OpenLoop loop = builder_.open_loop(min, max);
    const Pc body = set(points, loop.tick);
    return builder_.close_loop(loop, holds_text ? builder_.split(builder_.text_mark(true), body) : body, next);
  }

  Pc repeat(const Node& node, Pc next) {
    const int child = node.children[0];
    const bool may_be_empty = regex_.lengths_[static_cast<std::size_t>(child)].min == 0;
    const std::uint32_t min = may_be_empty ? 0 : node.min;
    if (node.max == kUnbounded && min <= 1) {
      const Pc head = builder_.reserve();
      const Pc body = emit(child, head);
      builder_.patch(head, {.op = Op::kSplit, .a = body, .b = next});
      return min == 1 ? body : head;
    }
    const std::size_t before = builder_.size();
    Pc at = next;
    if (node.max != kUnbounded && (node.max <= kFewCopies || may_be_empty)) {
      // A counter could go up without an end over nothing: what may be empty is copied.
      if (node.max > kMaxCopies)
        fail<GrammarError>("expression: a repetition of up to {} of something that may be empty; at most {} are supported", node.max,
                           kMaxCopies);
      for (std::uint32_t i = node.max; i > 0; --i) {
        const Pc one = emit(child, at);
        at = i <= min ? one : builder_.split(one, next);
        if (may_be_empty && builder_.size() - before > kMaxCopiedCode)
          fail<GrammarError>("expression: a repetition of something that may be empty is too large");
      }
      return at;
    }
    const Builder::OpenLoop loop = builder_.open_loop(min, node.max);
    return builder_.close_loop(loop, emit(child, loop.tick), next);
  }

  static constexpr std::uint32_t kMaxCopies = 1000;
  static constexpr std::size_t kMaxCopiedCode = 20'000;

  Builder& builder_;
  const Regex& regex_;
  RegexUse use_;
};

Pc Regex::emit(Builder& builder, const RegexUse& use, Pc next) const { return RegexEmitter(builder, *this, use).emit_all(next); }

}  // namespace tetrad::grammar

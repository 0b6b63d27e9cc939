// Attributes, items, slices and Python's printed forms of template values (jinja_value.h).
#include <algorithm>
#include <array>
#include <limits>

#include "text/jinja_methods.h"
#include "text/jinja_text.h"

namespace tetrad::jinja {

namespace {

std::string owner_name(const Value& object) { return object.is_none() ? "'None'" : fmt::format("'{} object'", type_name(object)); }

// Position `index` of a sequence of `size`, negative counted from the end; false outside.
bool resolve(Int index, std::size_t size, std::size_t& position) {
  if (index < 0) index += static_cast<Int>(size);
  if (index < 0 || index >= static_cast<Int>(size)) return false;
  position = static_cast<std::size_t>(index);
  return true;
}

Value loop_attribute(Heap& heap, const Loop& loop, std::string_view name) {
  const auto& items = loop.items->items;
  const auto at = static_cast<std::int64_t>(loop.position), count = static_cast<std::int64_t>(items.size());
  if (name == "index") return Value::integral(at + 1);
  if (name == "index0") return Value::integral(at);
  if (name == "revindex") return Value::integral(count - at);
  if (name == "revindex0") return Value::integral(count - at - 1);
  if (name == "first") return Value::boolean(at == 0);
  if (name == "last") return Value::boolean(at + 1 == count);
  if (name == "length") return Value::integral(count);
  if (name == "depth") return Value::integral(loop.level);
  if (name == "depth0") return Value::integral(loop.level - 1);
  if (name == "previtem") return at > 0 ? items[loop.position - 1] : heap.undefined("there is no previous item");
  if (name == "nextitem") return at + 1 < count ? items[loop.position + 1] : heap.undefined("there is no next item");
  return heap.undefined(fmt::format("the loop variable has no attribute '{}'", name));
}

}  // namespace

Value attribute(Heap& heap, const Value& object, std::string_view name) {
  if (object.is_undefined()) refuse_undefined(object);
  if (object.is(Kind::kLoop)) return loop_attribute(heap, *static_cast<const Loop*>(object.object.get()), name);
  if (object.is(Kind::kNamespace)) {
    for (const auto& [known, value] : static_cast<const Namespace*>(object.object.get())->attributes) {
      if (known == name) return value;
    }
    return heap.undefined(fmt::format("the namespace has no attribute '{}'", name));
  }
  if (has_method(object, name)) return heap.method(object, name);
  if (object.is_dict()) {
    heap.step();
    if (const Value* found = find(heap, object.dict(), heap.string(std::string(name)))) return *found;
  }
  return heap.undefined(fmt::format("{} has no attribute '{}'", owner_name(object), name));
}

Value item(Heap& heap, const Value& object, const Value& key) {
  if (object.is_undefined()) refuse_undefined(object);
  std::size_t position = 0;
  if (object.is_dict()) {
    if (const Value* found = key.is_undefined() ? nullptr : find(heap, object.dict(), key)) return *found;
  } else if (key.is_integer()) {
    if (object.is_string()) {
      const std::string& text = object.text();
      heap.step_bytes(text.size());
      if (resolve(key.integer, count_code_points(text), position)) {
        const std::size_t start = byte_offset(text, position);
        std::size_t end = start;
        next_code_point(text, end);
        return heap.string(text.substr(start, end - start));
      }
    } else if (object.is(Kind::kList) || object.is(Kind::kTuple) || object.is(Kind::kRange)) {
      if (resolve(key.integer, object.sequence().items.size(), position)) return object.sequence().items[position];
    }
  }
  if (key.is_string() && !object.is_dict()) return attribute(heap, object, key.text());
  if (key.is_string() && has_method(object, key.text())) return heap.method(object, key.text());
  std::string shown = key.is_string() ? key.text() : key.is_number() ? to_repr(heap, key) : type_name(key);
  if (shown.size() > 80) shown.resize(80), shown = valid_utf8(shown) ? shown : "...";
  return heap.undefined(fmt::format("{} has no element '{}'", owner_name(object), shown));
}

namespace {

// A bound of a slice, clamped to 64 bits; Python clamps it to the length anyway.
std::int64_t slice_bound(const Value& v) {
  if (v.is_undefined()) refuse_undefined(v);
  if (!v.is_integer()) refuse("slice bounds must be integers, got {}", type_name(v));
  return static_cast<std::int64_t>(std::min<Int>(v.integer, std::numeric_limits<std::int64_t>::max() / 4));
}

}  // namespace

Value slice(Heap& heap, const Value& object, const Value* start, const Value* stop, const Value* step_value) {
  if (object.is_undefined()) refuse_undefined(object);
  if (!object.is_string() && !object.is(Kind::kList) && !object.is(Kind::kTuple) && !object.is(Kind::kRange)) {
    refuse("a {} cannot be sliced", type_name(object));
  }
  const auto given = [](const Value* v) { return v != nullptr && !v->is_none(); };
  const std::int64_t step = given(step_value) ? slice_bound(*step_value) : 1;
  if (step == 0) refuse("the step of a slice cannot be zero");
  std::vector<std::size_t> offsets;  // of a string's code points
  const std::string* text = object.is_string() ? &object.text() : nullptr;
  std::int64_t count = 0;
  if (text != nullptr) {
    heap.step_bytes(text->size());
    count = static_cast<std::int64_t>(count_code_points(*text));
  } else {
    count = static_cast<std::int64_t>(object.sequence().items.size());
  }
  const auto clamp = [&](const Value* v, std::int64_t absent) {
    if (!given(v)) return absent;
    std::int64_t bound = slice_bound(*v);
    if (bound < 0) bound = bound < -count ? (step < 0 ? -1 : 0) : bound + count;
    return std::min(bound, step < 0 ? count - 1 : count);
  };
  const std::int64_t first = clamp(start, step < 0 ? count - 1 : 0), last = clamp(stop, step < 0 ? -1 : count);
  if (text != nullptr && step == 1) {
    if (first >= last) return heap.string("");
    const std::size_t begin = byte_offset(*text, static_cast<std::size_t>(first));
    const std::size_t end = begin + byte_offset(std::string_view(*text).substr(begin), static_cast<std::size_t>(last - first));
    return heap.string(text->substr(begin, end - begin));
  }
  if (object.is(Kind::kRange)) {
    const Sequence& range = object.sequence();
    return heap.range(range.start + first * range.stride, range.start + last * range.stride, range.stride * step);
  }
  std::vector<std::size_t> picked;
  const std::int64_t stride = std::clamp<std::int64_t>(step, -count - 1, count + 1);
  for (std::int64_t i = first; step < 0 ? i > last : i < last; i += stride) picked.push_back(static_cast<std::size_t>(i));
  if (text == nullptr) {
    std::vector<Value> items;
    items.reserve(picked.size());
    for (const std::size_t i : picked) items.push_back(object.sequence().items[i]);
    return heap.list(std::move(items), object.kind);
  }
  for (std::size_t i = 0; i < text->size(); next_code_point(*text, i)) offsets.push_back(i);
  std::string out;
  for (const std::size_t i : picked) {
    std::size_t end = offsets[i];
    next_code_point(*text, end);
    out.append(*text, offsets[i], end - offsets[i]);
  }
  return heap.string(std::move(out));
}

namespace {

void append_repr(Heap& heap, std::string& out, const Value& v, bool quoted, int depth);

void append_items(Heap& heap, std::string& out, const std::vector<Value>& items, int depth) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(heap, out, items[i], true, depth);
  }
}

void append_repr(Heap& heap, std::string& out, const Value& v, bool quoted, int depth) {
  if (depth > heap.limits().value_depth) refuse("a value nested more than {} deep cannot be printed", heap.limits().value_depth);
  heap.step();
  heap.check_string(out.size());
  switch (v.kind) {
    case Kind::kUndefined: out += quoted ? "Undefined" : ""; return;
    case Kind::kNone: out += "None"; return;
    case Kind::kBool: out += v.integer != 0 ? "True" : "False"; return;
    case Kind::kInt: out += int_text(v.integer); return;
    case Kind::kFloat: out += float_text(v.real); return;
    case Kind::kString: out += quoted ? string_repr(v.text()) : v.text(); return;
    case Kind::kList:
      out += '[';
      append_items(heap, out, v.sequence().items, depth + 1);
      out += ']';
      return;
    case Kind::kTuple:
      out += '(';
      append_items(heap, out, v.sequence().items, depth + 1);
      out += v.sequence().items.size() == 1 ? ",)" : ")";
      return;
    case Kind::kRange: {
      const Sequence& range = v.sequence();
      out += fmt::format("range({}, {}", range.start, range.stop);
      out += range.stride == 1 ? ")" : fmt::format(", {})", range.stride);
      return;
    }
    case Kind::kView:
      out += v.sequence().label + "([";
      append_items(heap, out, v.sequence().items, depth + 1);
      out += "])";
      return;
    case Kind::kDict:
    case Kind::kNamespace: {
      const bool space = v.kind == Kind::kNamespace;
      out += space ? "<Namespace {" : "{";
      bool first = true;
      const auto separate = [&] {
        out += first ? "" : ", ";
        first = false;
      };
      if (space) {
        for (const auto& [key, value] : static_cast<const Namespace*>(v.object.get())->attributes) {
          separate();
          out += string_repr(key) + ": ";
          append_repr(heap, out, value, true, depth + 1);
        }
      } else {
        for (const auto& [key, value] : v.dict().entries) {
          separate();
          append_repr(heap, out, key, true, depth + 1);
          out += ": ";
          append_repr(heap, out, value, true, depth + 1);
        }
      }
      out += space ? "}>" : "}";
      return;
    }
    default: refuse("a {} cannot be printed", type_name(v));
  }
}

}  // namespace

std::string to_text(Heap& heap, const Value& v) {
  if (v.is_string()) return v.text();
  std::string out;
  append_repr(heap, out, v, false, 0);
  return out;
}

std::string to_repr(Heap& heap, const Value& v) {
  std::string out;
  append_repr(heap, out, v, true, 0);
  return out;
}

}  // namespace tetrad::jinja

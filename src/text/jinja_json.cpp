// The filter tojson: json.dumps without ASCII escaping, key order kept.
#include <algorithm>

#include "text/jinja_filters.h"
#include "text/jinja_text.h"

namespace tetrad::jinja {

namespace {

struct JsonWriter {
  Heap& heap;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  std::string indent;
  bool pretty = false;
  bool ascii = false;
  bool sort_keys = false;
  std::string out;

  void unicode_escape(std::uint32_t code) { out += fmt::format("\\u{:04x}", code); }

  void write_string(const std::string& text) {
    heap.step_bytes(text.size());
    out += '"';
    for (std::size_t i = 0; i < text.size();) {
      const std::size_t start = i;
      const auto c = static_cast<std::uint32_t>(next_code_point(text, i));
      switch (c) {
        case '"': out += "\\\""; break;
        case '\\': out += "\\\\"; break;
        case '\n': out += "\\n"; break;
        case '\r': out += "\\r"; break;
        case '\t': out += "\\t"; break;
        case '\b': out += "\\b"; break;
        case '\f': out += "\\f"; break;
        default:
          if (c < 0x20 || (ascii && c > 0x7E && c < 0x10000)) {
            unicode_escape(c);
          } else if (ascii && c >= 0x10000) {
            unicode_escape(0xD800 + ((c - 0x10000) >> 10));
            unicode_escape(0xDC00 + ((c - 0x10000) & 0x3FF));
          } else {
            out.append(text, start, i - start);
          }
      }
    }
    out += '"';
  }

  static std::string number(const Value& v) {
    if (!v.is(Kind::kFloat)) return int_text(v.integer);
    const std::string text = float_text(v.real);
    return text == "nan" ? "NaN" : text == "inf" ? "Infinity" : text == "-inf" ? "-Infinity" : text;
  }

  static std::string key_text(const Value& key) {
    if (key.is_string()) return key.text();
    if (key.is_none()) return "null";
    if (key.is(Kind::kBool)) return key.integer != 0 ? "true" : "false";
    if (key.is_number()) return number(key);
    refuse("tojson: a {} cannot be a key", type_name(key));
  }

  void new_line(int depth) {
    if (!pretty) return;
    out += '\n';
    for (int i = 0; i < depth; ++i) out += indent;
  }

  void write_list(const std::vector<Value>& items, int depth) {
    if (items.empty()) {
      out += "[]";
      return;
    }
    out += '[';
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += item_separator;
      new_line(depth + 1);
      write(items[i], depth + 1);
    }
    new_line(depth);
    out += ']';
  }

  void write_dict(const Dict& dict, int depth) {
    if (dict.entries.empty()) {
      out += "{}";
      return;
    }
    std::vector<std::size_t> order(dict.entries.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    if (sort_keys) {
      std::stable_sort(order.begin(), order.end(),
                       [&](std::size_t a, std::size_t b) { return compare(heap, dict.entries[a].first, dict.entries[b].first) < 0; });
    }
    out += '{';
    bool first = true;
    for (const std::size_t i : order) {
      if (!first) out += item_separator;
      first = false;
      new_line(depth + 1);
      write_string(key_text(dict.entries[i].first));
      out += key_separator;
      write(dict.entries[i].second, depth + 1);
    }
    new_line(depth);
    out += '}';
  }

  void write(const Value& v, int depth) {
    heap.step();
    heap.check_string(out.size());
    switch (v.kind) {
      case Kind::kNone: out += "null"; return;
      case Kind::kBool: out += v.integer != 0 ? "true" : "false"; return;
      case Kind::kInt:
      case Kind::kFloat: out += number(v); return;
      case Kind::kString: return write_string(v.text());
      case Kind::kList:
      case Kind::kTuple: return write_list(v.sequence().items, depth);
      case Kind::kDict: return write_dict(v.dict(), depth);
      case Kind::kUndefined: refuse_undefined(v);
      default: refuse("tojson: a {} has no form in JSON", type_name(v));
    }
  }
};

constexpr Int kMaxJsonIndent = 64;

}  // namespace

Value filter_tojson(Heap& heap, const Value& input, const Args& args) {
  const auto a = args.bind("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonWriter writer{.heap = heap, .indent = {}, .out = {}};
  writer.ascii = a[0] != nullptr && truthy(*a[0]);
  writer.sort_keys = a[3] != nullptr && truthy(*a[3]);
  if (a[1] != nullptr && !a[1]->is_none()) {
    writer.pretty = true;
    writer.item_separator.pop_back();
    if (a[1]->is_string()) {
      writer.indent = a[1]->text();
    } else if (a[1]->is_integer() && a[1]->integer <= kMaxJsonIndent) {
      writer.indent.assign(static_cast<std::size_t>(std::max<Int>(a[1]->integer, 0)), ' ');
    } else {
      refuse("tojson: indent must be a string or an integer of at most {}", static_cast<int>(kMaxJsonIndent));
    }
  }
  if (a[2] != nullptr && !a[2]->is_none()) {
    const std::vector<Value> pair = items_of(heap, *a[2]);
    if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) refuse("tojson: separators must be two strings");
    writer.item_separator = pair[0].text();
    writer.key_separator = pair[1].text();
  }
  writer.write(input, 0);
  return heap.string(std::move(writer.out));
}

}  // namespace tetrad::jinja

#include "text/jinja_methods.h"

#include <algorithm>
#include <array>

#include "text/jinja_text.h"

namespace tetrad::jinja {

namespace {

using MethodFunction = Value (*)(Heap&, const Method&, const Args&);

struct MethodEntry {
  std::string_view name;
  MethodFunction call;
};

const std::string& self_text(const Method& method) { return method.self.text(); }

const std::string& text_argument(const Method& method, const Value& v) {
  if (v.is_undefined()) refuse_undefined(v);
  if (!v.is_string()) refuse("{}() needs a string, got {}", method.name, type_name(v));
  return v.text();
}

std::int64_t count_argument(const Method& method, const Value& v) {
  if (v.is_undefined()) refuse_undefined(v);
  if (!v.is_integer()) refuse("{}() needs an integer, got {}", method.name, type_name(v));
  return static_cast<std::int64_t>(std::clamp<Int>(v.integer, -1, 1 << 30));
}

Value strings(Heap& heap, const std::vector<std::string_view>& parts, Kind kind = Kind::kList) {
  heap.check_list(parts.size());
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const auto part : parts) items.push_back(heap.string(std::string(part)));
  return heap.list(std::move(items), kind);
}

Value strip_with(Heap& heap, const Method& method, const Args& args, Side side) {
  const auto a = args.bind(method.name, {"chars"});
  if (a[0] == nullptr || a[0]->is_none()) return heap.string(std::string(strip(self_text(method), side)));
  return heap.string(std::string(strip(self_text(method), text_argument(method, *a[0]), side)));
}

Value split_with(Heap& heap, const Method& method, const Args& args, bool from_right) {
  const auto a = args.bind(method.name, {"sep", "maxsplit"});
  const std::int64_t most = a[1] == nullptr ? -1 : count_argument(method, *a[1]);
  const std::string& text = self_text(method);
  heap.step_bytes(text.size());
  if (a[0] == nullptr || a[0]->is_none()) return strings(heap, split_space(text, most, from_right));
  const std::string& separator = text_argument(method, *a[0]);
  if (separator.empty()) refuse("{}() needs a separator that is not empty", method.name);
  return strings(heap, split(text, separator, most, from_right));
}

Value partition_with(Heap& heap, const Method& method, const Args& args, bool from_right) {
  const std::string& separator = text_argument(method, *args.bind(method.name, {"sep"}, 1)[0]);
  if (separator.empty()) refuse("{}() needs a separator that is not empty", method.name);
  const std::string_view text = self_text(method);
  const std::size_t hit = from_right ? rfind_bytes(text, separator) : find_bytes(text, separator);
  if (hit == std::string_view::npos) {
    if (from_right) return strings(heap, {"", "", text}, Kind::kTuple);
    return strings(heap, {text, "", ""}, Kind::kTuple);
  }
  return strings(heap, {text.substr(0, hit), separator, text.substr(hit + separator.size())}, Kind::kTuple);
}

Value starts_or_ends(const Method& method, const Args& args, bool at_end) {
  const Value& wanted = *args.bind(method.name, {"affix"}, 1)[0];
  const std::string_view text = self_text(method);
  const auto matches = [&](const Value& v) {
    const std::string& affix = text_argument(method, v);
    return at_end ? text.ends_with(affix) : text.starts_with(affix);
  };
  if (!wanted.is(Kind::kTuple)) return Value::boolean(matches(wanted));
  const auto& options = wanted.sequence().items;
  return Value::boolean(std::any_of(options.begin(), options.end(), matches));
}

Value find_with(Heap& heap, const Method& method, const Args& args, bool from_right, bool must_exist) {
  const std::string& needle = text_argument(method, *args.bind(method.name, {"sub"}, 1)[0]);
  const std::string& text = self_text(method);
  heap.step_bytes(text.size());
  const std::size_t hit = from_right ? rfind_bytes(text, needle) : find_bytes(text, needle);
  if (hit == std::string_view::npos) {
    if (must_exist) refuse("{}(): the substring was not found", method.name);
    return Value::integral(-1);
  }
  return Value::integral(static_cast<std::int64_t>(count_code_points(std::string_view(text).substr(0, hit))));
}

Value count_text(Heap& heap, const Method& method, const Args& args) {
  const std::string& needle = text_argument(method, *args.bind(method.name, {"sub"}, 1)[0]);
  const std::string& text = self_text(method);
  heap.step_bytes(text.size());
  if (needle.empty()) return Value::integral(static_cast<std::int64_t>(count_code_points(text)) + 1);
  std::int64_t count = 0;
  for (std::size_t at = find_bytes(text, needle); at != std::string_view::npos; at = find_bytes(text, needle, at + needle.size())) ++count;
  return Value::integral(count);
}

Value replace_text(Heap& heap, const Method& method, const Args& args) {
  const auto a = args.bind(method.name, {"old", "new", "count"}, 2);
  const std::int64_t count = a[2] == nullptr ? -1 : count_argument(method, *a[2]);
  heap.step_bytes(self_text(method).size());
  return heap.string(replace(heap, self_text(method), text_argument(method, *a[0]), text_argument(method, *a[1]), count));
}

Value join_text(Heap& heap, const Method& method, const Args& args) {
  const std::vector<Value> parts = items_of(heap, *args.bind(method.name, {"iterable"}, 1)[0]);
  std::string out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].is_string()) refuse("join() needs strings, item {} is {}", i, type_name(parts[i]));
    heap.check_string(out.size() + self_text(method).size() + parts[i].text().size());
    if (i > 0) out += self_text(method);
    out += parts[i].text();
  }
  return heap.string(std::move(out));
}

Value remove_affix(Heap& heap, const Method& method, const Args& args) {
  const std::string& affix = text_argument(method, *args.bind(method.name, {"affix"}, 1)[0]);
  std::string_view text = self_text(method);
  if (method.name == "removeprefix" && text.starts_with(affix))
    text.remove_prefix(affix.size());
  else if (method.name == "removesuffix" && text.ends_with(affix))
    text.remove_suffix(affix.size());
  return heap.string(std::string(text));
}

Value split_lines_of(Heap& heap, const Method& method, const Args& args) {
  const auto a = args.bind(method.name, {"keepends"});
  return strings(heap, split_lines(self_text(method), a[0] != nullptr && truthy(*a[0])));
}

Value map_text(Heap& heap, const Method& method, const Args& args) {
  args.bind(method.name, {});
  const std::string& text = self_text(method);
  heap.step_bytes(text.size() * 8);
  if (method.name == "upper") return heap.string(upper(text));
  if (method.name == "lower") return heap.string(lower(text));
  if (method.name == "capitalize") return heap.string(capitalize(text));
  return heap.string(title(text));
}

Value classify_text(Heap& heap, const Method& method, const Args& args) {
  args.bind(method.name, {});
  heap.step_bytes(self_text(method).size() * 8);
  return Value::boolean(all_of_class(self_text(method), method.name));
}

constexpr std::array kStringMethods = {
    MethodEntry{"strip", [](Heap& h, const Method& m, const Args& a) { return strip_with(h, m, a, Side::kBoth); }},
    MethodEntry{"lstrip", [](Heap& h, const Method& m, const Args& a) { return strip_with(h, m, a, Side::kLeft); }},
    MethodEntry{"rstrip", [](Heap& h, const Method& m, const Args& a) { return strip_with(h, m, a, Side::kRight); }},
    MethodEntry{"split", [](Heap& h, const Method& m, const Args& a) { return split_with(h, m, a, false); }},
    MethodEntry{"rsplit", [](Heap& h, const Method& m, const Args& a) { return split_with(h, m, a, true); }},
    MethodEntry{"partition", [](Heap& h, const Method& m, const Args& a) { return partition_with(h, m, a, false); }},
    MethodEntry{"rpartition", [](Heap& h, const Method& m, const Args& a) { return partition_with(h, m, a, true); }},
    MethodEntry{"startswith", [](Heap&, const Method& m, const Args& a) { return starts_or_ends(m, a, false); }},
    MethodEntry{"endswith", [](Heap&, const Method& m, const Args& a) { return starts_or_ends(m, a, true); }},
    MethodEntry{"find", [](Heap& h, const Method& m, const Args& a) { return find_with(h, m, a, false, false); }},
    MethodEntry{"rfind", [](Heap& h, const Method& m, const Args& a) { return find_with(h, m, a, true, false); }},
    MethodEntry{"index", [](Heap& h, const Method& m, const Args& a) { return find_with(h, m, a, false, true); }},
    MethodEntry{"rindex", [](Heap& h, const Method& m, const Args& a) { return find_with(h, m, a, true, true); }},
    MethodEntry{"count", count_text},
    MethodEntry{"replace", replace_text},
    MethodEntry{"join", join_text},
    MethodEntry{"removeprefix", remove_affix},
    MethodEntry{"removesuffix", remove_affix},
    MethodEntry{"splitlines", split_lines_of},
    MethodEntry{"upper", map_text},
    MethodEntry{"lower", map_text},
    MethodEntry{"title", map_text},
    MethodEntry{"capitalize", map_text},
    MethodEntry{"isdigit", classify_text},
    MethodEntry{"isdecimal", classify_text},
    MethodEntry{"isnumeric", classify_text},
    MethodEntry{"isalpha", classify_text},
    MethodEntry{"isalnum", classify_text},
    MethodEntry{"isspace", classify_text},
    MethodEntry{"isupper", classify_text},
    MethodEntry{"islower", classify_text},
};

Value dict_get(Heap& heap, const Method& method, const Args& args) {
  if (!args.named.empty()) refuse("get() takes no named arguments");
  const auto a = args.bind(method.name, {"key", "default"}, 1);
  if (a[0]->is_undefined()) return a[1] != nullptr ? *a[1] : Value::none();
  if (a[0]->is(Kind::kList) || a[0]->is_dict()) refuse("a {} cannot be a key", type_name(*a[0]));
  const Value* found = find(heap, method.self.dict(), *a[0]);
  return found != nullptr ? *found : a[1] != nullptr ? *a[1] : Value::none();
}

Value dict_view(Heap& heap, const Method& method, const Args& args) {
  args.bind(method.name, {});
  std::vector<Value> items;
  for (const auto& [key, value] : method.self.dict().entries) {
    if (method.name == "keys")
      items.push_back(key);
    else if (method.name == "values")
      items.push_back(value);
    else
      items.push_back(heap.list({key, value}, Kind::kTuple));
  }
  return heap.list(std::move(items), Kind::kView, "dict_" + method.name);
}

Value dict_copy(Heap&, const Method& method, const Args& args) {
  args.bind(method.name, {});
  return method.self;
}

constexpr std::array kDictMethods = {
    MethodEntry{"get", dict_get},     MethodEntry{"items", dict_view}, MethodEntry{"keys", dict_view},
    MethodEntry{"values", dict_view}, MethodEntry{"copy", dict_copy},
};

Value list_index(Heap& heap, const Method& method, const Args& args) {
  const Value& wanted = *args.bind(method.name, {"value"}, 1)[0];
  const auto& items = method.self.sequence().items;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!equal(heap, items[i], wanted)) continue;
    if (method.name == "index") return Value::integral(static_cast<std::int64_t>(i));
    ++count;
  }
  if (method.name == "index") refuse("index(): the value is not in the {}", type_name(method.self));
  return Value::integral(count);
}

constexpr std::array kListMethods = {MethodEntry{"index", list_index}, MethodEntry{"count", list_index}, MethodEntry{"copy", dict_copy}};

// Methods that Python's types have and a template of the subset cannot call; a lookup still yields the method and not a key.
constexpr std::array<std::string_view, 16> kOtherStringMethods = {
    "casefold",    "center",  "encode", "expandtabs", "format", "format_map", "isascii",   "isidentifier",
    "isprintable", "istitle", "ljust",  "maketrans",  "rjust",  "swapcase",   "translate", "zfill"};
constexpr std::array<std::string_view, 6> kOtherDictMethods = {"clear", "fromkeys", "pop", "popitem", "setdefault", "update"};
constexpr std::array<std::string_view, 8> kOtherListMethods = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"};

template <class Table>
MethodFunction lookup(const Table& table, std::string_view name) {
  const auto at = std::find_if(table.begin(), table.end(), [&](const MethodEntry& entry) { return entry.name == name; });
  return at == table.end() ? nullptr : at->call;
}

template <class Names>
bool listed(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

MethodFunction method_of(const Value& object, std::string_view name) {
  if (object.is_string()) return lookup(kStringMethods, name);
  if (object.is_dict()) return lookup(kDictMethods, name);
  if (object.is(Kind::kList)) return lookup(kListMethods, name);
  if (object.is(Kind::kTuple) || object.is(Kind::kRange)) return name == "copy" ? nullptr : lookup(kListMethods, name);
  return nullptr;
}

}  // namespace

bool has_method(const Value& object, std::string_view name) {
  if (method_of(object, name) != nullptr) return true;
  if (object.is_string()) return listed(kOtherStringMethods, name);
  if (object.is_dict()) return listed(kOtherDictMethods, name);
  return object.is(Kind::kList) && listed(kOtherListMethods, name);
}

bool known_method(std::string_view name) {
  return lookup(kStringMethods, name) != nullptr || lookup(kDictMethods, name) != nullptr || lookup(kListMethods, name) != nullptr;
}

Value call_method(Heap& heap, const Method& method, const Args& args) {
  heap.step();
  const MethodFunction call = method_of(method.self, method.name);
  if (call == nullptr) refuse("the method '{}' of {} is not supported", method.name, type_name(method.self));
  return call(heap, method, args);
}

}  // namespace tetrad::jinja

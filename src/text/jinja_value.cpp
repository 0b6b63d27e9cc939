#include "text/jinja_value.h"

#include <algorithm>
#include <limits>

#include "text/jinja_text.h"

namespace tetrad::jinja {

Value Value::none() {
  Value v;
  v.kind = Kind::kNone;
  return v;
}

Value Value::boolean(bool b) {
  Value v;
  v.kind = Kind::kBool;
  v.integer = b ? 1 : 0;
  return v;
}

Value Value::integral(Int i) {
  if (i < Int(std::numeric_limits<std::int64_t>::min()) || i > Int(std::numeric_limits<std::uint64_t>::max())) {
    refuse("integer overflow: a result lies outside -2^63 .. 2^64-1");
  }
  Value v;
  v.kind = Kind::kInt;
  v.integer = i;
  return v;
}

Value Value::floating(double d) {
  Value v;
  v.kind = Kind::kFloat;
  v.real = d;
  return v;
}

const std::string& Value::text() const { return static_cast<const String*>(object.get())->text; }
const Sequence& Value::sequence() const { return *static_cast<const Sequence*>(object.get()); }
const Dict& Value::dict() const { return *static_cast<const Dict*>(object.get()); }

std::vector<const Value*> Args::bind(std::string_view callee, std::initializer_list<std::string_view> names, std::size_t required) const {
  std::vector<const Value*> bound(names.size(), nullptr);
  if (positional.size() > names.size()) {
    refuse("{} takes at most {} argument(s), got {}", callee, names.size(), positional.size() + named.size());
  }
  for (std::size_t i = 0; i < positional.size(); ++i) bound[i] = &positional[i];
  for (const auto& [name, value] : named) {
    const auto* at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) refuse("{} has no argument named '{}'", callee, name);
    auto& slot = bound[static_cast<std::size_t>(at - names.begin())];
    if (slot != nullptr) refuse("{} got the argument '{}' twice", callee, name);
    slot = &value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (bound[i] == nullptr) refuse("{} needs the argument '{}'", callee, *(names.begin() + i));
  }
  return bound;
}

void Heap::out_of_steps() const { refuse("the template took more than {} evaluation steps", limits_.steps); }

void Heap::check_string(std::size_t bytes) const {
  if (bytes > limits_.string_bytes) refuse("an intermediate string would exceed {} bytes", limits_.string_bytes);
}

void Heap::check_list(std::size_t items) const {
  if (items > limits_.list_items) refuse("an intermediate list would exceed {} items", limits_.list_items);
}

void Heap::adopt(Object& object, std::size_t bytes, int depth) {
  if (depth > limits_.value_depth) refuse("values are nested more than {} deep", limits_.value_depth);
  object.depth = depth;
  object.account = &live_;
  object.charged = static_cast<std::int64_t>(bytes);
  live_ += object.charged;
  if (live_ > limits_.live_bytes) refuse("the template holds more than {} bytes of values", limits_.live_bytes);
}

Value Heap::string(std::string text) {
  check_string(text.size());
  step_bytes(text.size());
  auto made = std::make_shared<String>();
  made->text = std::move(text);
  adopt(*made, sizeof(String) + made->text.size(), 0);
  Value v;
  v.kind = Kind::kString;
  v.object = std::move(made);
  return v;
}

namespace {

int depth_of(const Value& v) { return v.object ? v.object->depth : 0; }

constexpr std::size_t kIndexedDict = 8;  // entries from which a dict keeps an index of its string keys

}  // namespace

Value Heap::list(std::vector<Value> items, Kind kind, std::string label) {
  check_list(items.size());
  step(1 + static_cast<std::int64_t>(items.size()));
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, depth_of(item));
  auto made = std::make_shared<Sequence>();
  made->items = std::move(items);
  made->label = std::move(label);
  adopt(*made, sizeof(Sequence) + made->items.size() * sizeof(Value), depth + 1);
  Value v;
  v.kind = kind;
  v.object = std::move(made);
  return v;
}

Value Heap::range(Int start, Int stop, Int stride) {
  std::vector<Value> items;
  for (Int i = start; stride > 0 ? i < stop : i > stop; i += stride) items.push_back(Value::integral(i));
  Value v = list(std::move(items), Kind::kRange);
  auto& sequence = const_cast<Sequence&>(v.sequence());
  sequence.start = start;
  sequence.stop = stop;
  sequence.stride = stride;
  return v;
}

Value Heap::dict(std::vector<std::pair<Value, Value>> entries) {
  check_list(entries.size());
  auto made = std::make_shared<Dict>();
  int depth = 0;
  for (auto& [key, value] : entries) {
    if (!(key.is_string() || key.is_number() || key.is_none() || key.is(Kind::kTuple))) refuse("a {} cannot be a key", type_name(key));
    depth = std::max({depth, depth_of(key), depth_of(value)});
    step();
    if (const Value* known = find(*this, *made, key)) {
      *const_cast<Value*>(known) = std::move(value);
      continue;
    }
    made->entries.emplace_back(std::move(key), std::move(value));
    if (made->entries.size() == kIndexedDict) {
      for (std::size_t i = 0; i < kIndexedDict; ++i) {
        if (made->entries[i].first.is_string()) made->index.emplace(made->entries[i].first.text(), i);
      }
    } else if (made->entries.size() > kIndexedDict && made->entries.back().first.is_string()) {
      made->index.emplace(made->entries.back().first.text(), made->entries.size() - 1);
    }
  }
  adopt(*made, sizeof(Dict) + made->entries.size() * 4 * sizeof(Value), depth + 1);
  Value v;
  v.kind = Kind::kDict;
  v.object = std::move(made);
  return v;
}

const Value* find(Heap& heap, const Dict& dict, const Value& key) {
  if (key.is_string()) heap.step_bytes(key.text().size());
  if (key.is_string() && dict.entries.size() >= kIndexedDict) {
    const auto at = dict.index.find(key.text());
    return at == dict.index.end() ? nullptr : &dict.entries[at->second].second;
  }
  for (const auto& [known, value] : dict.entries) {
    if (known.kind == Kind::kString ? key.is_string() && known.text() == key.text() : equal(heap, known, key)) return &value;
  }
  return nullptr;
}

Value Heap::undefined(std::string why) {
  Value v = string(std::move(why));
  v.kind = Kind::kUndefined;
  return v;
}

Value Heap::make_namespace(std::vector<std::pair<std::string, Value>> attributes) {
  auto made = std::make_shared<Namespace>();
  made->attributes = std::move(attributes);
  adopt(*made, sizeof(Namespace) + 128, 1);
  namespaces_.push_back(made);
  Value v;
  v.kind = Kind::kNamespace;
  v.object = std::move(made);
  return v;
}

void Heap::clear_namespaces() {
  for (const auto& space : namespaces_) space->attributes.clear();
  namespaces_.clear();
}

Value Heap::method(const Value& self, std::string_view name) {
  auto made = std::make_shared<Method>();
  made->self = self;
  made->name = name;
  adopt(*made, sizeof(Method), depth_of(self) + 1);
  Value v;
  v.kind = Kind::kMethod;
  v.object = std::move(made);
  return v;
}

Value Heap::from_json(const nlohmann::ordered_json& json, int depth) {
  if (depth > limits_.value_depth) refuse("the variables are nested more than {} deep", limits_.value_depth);
  switch (json.type()) {
    case nlohmann::json::value_t::null: return Value::none();
    case nlohmann::json::value_t::boolean: return Value::boolean(json.get<bool>());
    case nlohmann::json::value_t::number_integer: return Value::integral(json.get<std::int64_t>());
    case nlohmann::json::value_t::number_unsigned: return Value::integral(json.get<std::uint64_t>());
    case nlohmann::json::value_t::number_float: return Value::floating(json.get<double>());
    case nlohmann::json::value_t::string: {
      const auto& text = json.get_ref<const std::string&>();
      if (!valid_utf8(text)) refuse("a string of the variables is not valid UTF-8");
      return string(text);
    }
    case nlohmann::json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& entry : json) items.push_back(from_json(entry, depth + 1));
      return list(std::move(items));
    }
    case nlohmann::json::value_t::object: {
      std::vector<std::pair<Value, Value>> entries;
      entries.reserve(json.size());
      for (const auto& [key, entry] : json.items()) {
        if (!valid_utf8(key)) refuse("a key of the variables is not valid UTF-8");
        Value name = string(key);
        entries.emplace_back(std::move(name), from_json(entry, depth + 1));
      }
      return dict(std::move(entries));
    }
    default: refuse("the variables hold a value that JSON does not have");
  }
}

std::string type_name(const Value& v) {
  switch (v.kind) {
    case Kind::kUndefined: return "undefined value";
    case Kind::kNone: return "None";
    case Kind::kBool: return "bool";
    case Kind::kInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kString: return "str";
    case Kind::kList: return "list";
    case Kind::kTuple: return "tuple";
    case Kind::kRange: return "range";
    case Kind::kView: return "dict view";
    case Kind::kIterator: return "iterator";
    case Kind::kDict: return "dict";
    case Kind::kNamespace: return "namespace";
    case Kind::kLoop: return "loop";
    case Kind::kMacro: return "macro";
    case Kind::kMethod: return "method";
    case Kind::kFunction: return "function";
  }
  return "value";
}

void refuse_undefined(const Value& v) { refuse("{}", v.object ? v.text() : "a value is undefined"); }

bool truthy(const Value& v) {
  switch (v.kind) {
    case Kind::kUndefined:
    case Kind::kNone: return false;
    case Kind::kBool:
    case Kind::kInt: return v.integer != 0;
    case Kind::kFloat: return v.real != 0.0;
    case Kind::kString: return !v.text().empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView: return !v.sequence().items.empty();
    case Kind::kDict: return !v.dict().entries.empty();
    default: return true;
  }
}

std::vector<Value> items_of(Heap& heap, const Value& iterable) {
  std::vector<Value> items;
  switch (iterable.kind) {
    case Kind::kUndefined: return items;
    case Kind::kString: {
      const std::string& text = iterable.text();
      heap.check_list(text.size());
      for (std::size_t i = 0; i < text.size();) {
        const std::size_t start = i;
        next_code_point(text, i);
        items.push_back(heap.string(text.substr(start, i - start)));
      }
      return items;
    }
    case Kind::kDict:
      heap.step(1 + static_cast<std::int64_t>(iterable.dict().entries.size()));
      for (const auto& entry : iterable.dict().entries) items.push_back(entry.first);
      return items;
    case Kind::kLoop: refuse("a loop variable cannot be iterated");
    default: break;
  }
  if (!iterable.is_sequence()) refuse("a {} cannot be iterated", type_name(iterable));
  const Sequence& sequence = iterable.sequence();
  heap.step(1 + static_cast<std::int64_t>(sequence.items.size()));
  if (iterable.kind != Kind::kIterator) return sequence.items;
  items.assign(sequence.items.begin() + static_cast<std::ptrdiff_t>(sequence.next), sequence.items.end());
  sequence.next = sequence.items.size();
  return items;
}

Value length_of(Heap& heap, const Value& v) {
  switch (v.kind) {
    case Kind::kUndefined: return Value::integral(0);
    case Kind::kString: heap.step_bytes(v.text().size()); return Value::integral(static_cast<std::int64_t>(count_code_points(v.text())));
    case Kind::kDict: return Value::integral(static_cast<std::int64_t>(v.dict().entries.size()));
    case Kind::kLoop: return Value::integral(static_cast<std::int64_t>(static_cast<const Loop*>(v.object.get())->items->items.size()));
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView: return Value::integral(static_cast<std::int64_t>(v.sequence().items.size()));
    default: refuse("a {} has no length", type_name(v));
  }
}

}  // namespace tetrad::jinja

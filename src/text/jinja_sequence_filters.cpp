#include <algorithm>

#include "text/jinja_filters.h"
#include "text/jinja_text.h"

namespace tetrad::jinja {

namespace {

// The value that an attribute path such as "function.name" or 0 reaches.
Value follow(Heap& heap, const Value& object, const Value& path) {
  if (path.is_integer()) return item(heap, object, path);
  if (!path.is_string()) refuse("an attribute must be a name or a number, got {}", type_name(path));
  Value reached = object;
  for (const auto part : split(path.text(), ".", -1, false)) {
    Int index = 0;
    const bool is_index = all_of_class(part, "isdigit") && parse_int(part, 10, index);
    reached = item(heap, reached, is_index ? Value::integral(index) : heap.string(std::string(part)));
  }
  return reached;
}

// What sorting and comparing filters look at: an attribute where one is named, without case unless asked for.
Value sort_key(Heap& heap, const Value& value, const Value* path, bool case_sensitive) {
  Value key = path != nullptr && !path->is_none() ? follow(heap, value, *path) : value;
  return key.is_string() && !case_sensitive ? heap.string(lower(key.text())) : key;
}

bool flag(const Value* v) { return v != nullptr && truthy(*v); }

// Stable order by key; checks every pair it compares, so mixed types are refused.
std::vector<std::size_t> sorted_order(Heap& heap, const std::vector<Value>& keys, bool reverse) {
  std::vector<std::size_t> order(keys.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (const Value& key : keys) {
    if (unordered(key, key)) refuse("a list with NaN cannot be sorted");
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const int c = compare(heap, keys[a], keys[b]);
    return reverse ? c > 0 : c < 0;
  });
  return order;
}

Value extreme(Heap& heap, const Value& input, const Args& args, int sign) {
  const auto a = args.bind(sign < 0 ? "min" : "max", {"case_sensitive", "attribute"});
  const std::vector<Value> items = items_of(heap, input);
  if (items.empty()) return heap.undefined("no aggregated item, the sequence was empty");
  std::size_t best = 0;
  Value best_key = sort_key(heap, items[0], a[1], flag(a[0]));
  for (std::size_t i = 1; i < items.size(); ++i) {
    Value key = sort_key(heap, items[i], a[1], flag(a[0]));
    const int c = compare(heap, key, best_key);
    if (unordered(key, best_key) || c * sign <= 0) continue;
    best = i;
    best_key = std::move(key);
  }
  return items[best];
}

// The arguments after the first `count`, for a test or filter applied to each item.
Args rest_of(const Args& args, std::size_t count) {
  Args rest;
  rest.positional.assign(args.positional.begin() + static_cast<std::ptrdiff_t>(std::min(count, args.positional.size())),
                         args.positional.end());
  rest.named = args.named;
  return rest;
}

// These filters take any false value for an empty sequence.
std::vector<Value> items_unless_false(Heap& heap, const Value& input) {
  return truthy(input) ? items_of(heap, input) : std::vector<Value>{};
}

Value choose(Heap& heap, const Value& input, const Args& args, bool by_attribute, bool keep) {
  const std::size_t at = by_attribute ? 1 : 0;
  if (by_attribute && args.positional.empty()) refuse("selectattr and rejectattr need the name of an attribute");
  TestFunction test = nullptr;
  if (args.positional.size() > at) {
    const Value& name = args.positional[at];
    test = name.is_string() ? find_test(name.text()) : nullptr;
    if (test == nullptr) refuse("there is no test named {}", to_repr(heap, name));
  }
  const Args test_args = rest_of(args, at + 1);
  std::vector<Value> chosen;
  for (Value& value : items_unless_false(heap, input)) {
    const Value probe = by_attribute ? follow(heap, value, args.positional[0]) : value;
    const bool holds = test != nullptr ? test(heap, probe, test_args) : truthy(probe);
    if (holds == keep) chosen.push_back(std::move(value));
  }
  return heap.list(std::move(chosen), Kind::kIterator);
}

}  // namespace

Value filter_join(Heap& heap, const Value& input, const Args& args) {
  const auto a = args.bind("join", {"d", "attribute"});
  const std::string separator = a[0] != nullptr ? to_text(heap, *a[0]) : "";
  const std::vector<Value> items = items_of(heap, input);
  std::string out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string piece = to_text(heap, a[1] != nullptr && !a[1]->is_none() ? follow(heap, items[i], *a[1]) : items[i]);
    heap.check_string(out.size() + separator.size() + piece.size());
    heap.step_bytes(separator.size() + piece.size());
    if (i > 0) out += separator;
    out += piece;
  }
  return heap.string(std::move(out));
}

Value filter_first(Heap& heap, const Value& input, const Args& args) {
  args.bind("first", {});
  if (input.is_string() && !input.text().empty()) return item(heap, input, Value::integral(0));
  if (input.kind == Kind::kIterator) {
    const Sequence& sequence = input.sequence();
    if (sequence.next < sequence.items.size()) return sequence.items[sequence.next++];
  } else {
    const std::vector<Value> items = items_of(heap, input);
    if (!items.empty()) return items.front();
  }
  return heap.undefined("no first item, the sequence was empty");
}

Value filter_last(Heap& heap, const Value& input, const Args& args) {
  args.bind("last", {});
  if (input.is_string() && !input.text().empty()) return item(heap, input, Value::integral(-1));
  if (input.kind == Kind::kIterator) refuse("last needs a sequence, got an iterator");
  const std::vector<Value> items = items_of(heap, input);
  return items.empty() ? heap.undefined("no last item, the sequence was empty") : items.back();
}

Value filter_list(Heap& heap, const Value& input, const Args& args) {
  args.bind("list", {});
  return heap.list(items_of(heap, input));
}

Value filter_reverse(Heap& heap, const Value& input, const Args& args) {
  args.bind("reverse", {});
  if (input.is_string()) {
    const Value step = Value::integral(-1);
    return slice(heap, input, nullptr, nullptr, &step);
  }
  std::vector<Value> items = items_of(heap, input);
  std::reverse(items.begin(), items.end());
  // An iterator is read into a list first; anything else is walked backwards as it stands.
  return heap.list(std::move(items), input.kind == Kind::kIterator ? Kind::kList : Kind::kIterator);
}

Value filter_items(Heap& heap, const Value& input, const Args& args) {
  args.bind("items", {});
  std::vector<Value> pairs;
  if (!input.is_undefined()) {
    if (!input.is_dict()) refuse("items needs a mapping, got {}", type_name(input));
    for (const auto& [key, value] : input.dict().entries) pairs.push_back(heap.list({key, value}, Kind::kTuple));
  }
  return heap.list(std::move(pairs), Kind::kIterator);
}

Value filter_map(Heap& heap, const Value& input, const Args& args) {
  const auto named = [&](std::string_view name) -> const Value* {
    for (const auto& [known, value] : args.named) {
      if (known == name) return &value;
    }
    return nullptr;
  };
  std::vector<Value> mapped;
  if (args.positional.empty()) {
    const Value* path = named("attribute");
    const Value* fallback = named("default");
    if (path == nullptr || args.named.size() != (fallback != nullptr ? 2u : 1u))
      refuse("map needs a filter, or attribute and perhaps default");
    for (const Value& value : items_unless_false(heap, input)) {
      Value reached = follow(heap, value, *path);
      if (reached.is_undefined() && fallback != nullptr)
        mapped.push_back(*fallback);
      else
        mapped.push_back(std::move(reached));
    }
  } else {
    const Value& name = args.positional[0];
    const FilterFunction filter = name.is_string() ? find_filter(name.text()) : nullptr;
    if (filter == nullptr) refuse("there is no filter named {}", to_repr(heap, name));
    // Each level of map inside map uses the stack.
    if (filter == filter_map) refuse("map cannot apply map");
    const Args filter_args = rest_of(args, 1);
    for (const Value& value : items_unless_false(heap, input)) mapped.push_back(filter(heap, value, filter_args));
  }
  return heap.list(std::move(mapped), Kind::kIterator);
}

Value filter_select(Heap& heap, const Value& input, const Args& args) { return choose(heap, input, args, false, true); }
Value filter_reject(Heap& heap, const Value& input, const Args& args) { return choose(heap, input, args, false, false); }
Value filter_selectattr(Heap& heap, const Value& input, const Args& args) { return choose(heap, input, args, true, true); }
Value filter_rejectattr(Heap& heap, const Value& input, const Args& args) { return choose(heap, input, args, true, false); }

Value filter_sort(Heap& heap, const Value& input, const Args& args) {
  const auto a = args.bind("sort", {"reverse", "case_sensitive", "attribute"});
  const std::vector<Value> items = items_of(heap, input);
  std::vector<Value> keys, sorted;
  for (const Value& value : items) keys.push_back(sort_key(heap, value, a[2], flag(a[1])));
  for (const std::size_t i : sorted_order(heap, keys, flag(a[0]))) sorted.push_back(items[i]);
  return heap.list(std::move(sorted));
}

Value filter_dictsort(Heap& heap, const Value& input, const Args& args) {
  const auto a = args.bind("dictsort", {"case_sensitive", "by", "reverse"});
  if (!input.is_dict()) refuse("dictsort needs a mapping, got {}", type_name(input));
  const std::string by = a[1] == nullptr ? "key" : to_text(heap, *a[1]);
  if (by != "key" && by != "value") refuse("dictsort sorts by 'key' or 'value'");
  std::vector<Value> keys, sorted;
  const auto& entries = input.dict().entries;
  for (const auto& [key, value] : entries) keys.push_back(sort_key(heap, by == "key" ? key : value, nullptr, flag(a[0])));
  for (const std::size_t i : sorted_order(heap, keys, flag(a[2]))) {
    sorted.push_back(heap.list({entries[i].first, entries[i].second}, Kind::kTuple));
  }
  return heap.list(std::move(sorted));
}

Value filter_unique(Heap& heap, const Value& input, const Args& args) {
  const auto a = args.bind("unique", {"case_sensitive", "attribute"});
  std::vector<Value> kept, seen;
  for (Value& value : items_of(heap, input)) {
    Value key = sort_key(heap, value, a[1], flag(a[0]));
    if (key.is(Kind::kList) || key.is_dict()) refuse("a {} cannot be a key", type_name(key));
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& known) { return equal(heap, known, key); })) continue;
    seen.push_back(std::move(key));
    kept.push_back(std::move(value));
  }
  return heap.list(std::move(kept), Kind::kIterator);
}

Value filter_min(Heap& heap, const Value& input, const Args& args) { return extreme(heap, input, args, -1); }
Value filter_max(Heap& heap, const Value& input, const Args& args) { return extreme(heap, input, args, 1); }

Value filter_sum(Heap& heap, const Value& input, const Args& args) {
  const auto a = args.bind("sum", {"attribute", "start"});
  Value total = a[1] != nullptr ? *a[1] : Value::integral(0);
  if (total.is_string()) refuse("sum cannot add strings");
  for (const Value& value : items_of(heap, input)) {
    total = add(heap, total, a[0] != nullptr && !a[0]->is_none() ? follow(heap, value, *a[0]) : value);
  }
  return total;
}

}  // namespace tetrad::jinja

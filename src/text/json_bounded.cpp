#include "text/json_bounded.h"

#include <memory>
#include <unordered_map>
#include <vector>

#include "base/json_reason.h"

namespace tetrad {

namespace {

using Json = nlohmann::ordered_json;

// Builds the tree from the parser's events. The parser itself does not recurse, so the bound on nesting holds before anything deep exists.
class Builder {
 public:
  Builder(std::string_view where, int max_depth, EqualKeys equal_keys)
      : where_(where), max_depth_(static_cast<std::size_t>(max_depth)), equal_keys_(equal_keys) {}

  bool null() { return add(nullptr); }
  bool boolean(bool v) { return add(v); }
  bool number_integer(std::int64_t v) { return add(v); }
  bool number_unsigned(std::uint64_t v) { return add(v); }
  bool string(std::string& v) { return add(std::move(v)); }
  bool binary(Json::binary_t&) { return false; }

  bool number_float(double v, const std::string& text) {
    // An integer too large for 64 bits arrives here, already rounded.
    if (text.find_first_of(".eE") == std::string::npos) fail<InputError>("{}: the integer {} is out of range", where_, text.substr(0, 40));
    return add(v);
  }

  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& v) {
    open_.back().key = std::move(v);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) {
    fail<InputError>("{}: not valid JSON at byte {}: {}", where_, position, json_reason(error));
  }

  Json take() { return std::move(root_); }

 private:
  struct Open {
    Json value;
    std::string key;
    std::unordered_map<std::string, std::size_t> index;  // of the keys, once there are many
  };

  static constexpr std::size_t kManyKeys = 16;

  bool open(Json value) {
    if (open_.size() >= max_depth_) fail<InputError>("{}: the JSON nests more than {} deep", where_, max_depth_);
    open_.push_back({std::move(value), {}, {}});
    return true;
  }

  bool close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }

  bool add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().value.is_array()) {
      open_.back().value.push_back(std::move(value));
    } else {
      add_member(open_.back(), std::move(value));
    }
    return true;
  }

  // The map's own insertion compares with every key it holds; with many keys an index finds the equal one instead.
  void add_member(Open& object, Json value) const {
    auto& members = object.value.get_ref<Json::object_t&>();
    if (members.size() < kManyKeys) {
      if (equal_keys_ == EqualKeys::kRefused && members.find(object.key) != members.end()) given_twice(object.key);
      members[object.key] = std::move(value);
      return;
    }
    if (object.index.empty()) {
      for (std::size_t i = 0; i < members.size(); ++i) object.index.emplace((members.begin() + static_cast<std::ptrdiff_t>(i))->first, i);
    }
    const auto [at, inserted] = object.index.emplace(object.key, members.size());
    if (inserted) {
      members.Json::object_t::Container::emplace_back(std::move(object.key), std::move(value));
    } else if (equal_keys_ == EqualKeys::kRefused) {
      given_twice(at->first);
    } else {
      (members.begin() + static_cast<std::ptrdiff_t>(at->second))->second = std::move(value);
    }
  }

  [[noreturn]] void given_twice(std::string_view key) const {
    fail<InputError>("{}: the key \"{}\" is given twice in one object", where_, key.substr(0, 100));
  }

  std::string_view where_;
  std::size_t max_depth_;
  EqualKeys equal_keys_;
  Json root_;
  std::vector<Open> open_;
};

}  // namespace

nlohmann::ordered_json parse_json_bounded(std::string_view text, std::string_view where, int max_depth, EqualKeys equal_keys) {
  if (const auto at = nul_byte(text)) fail<InputError>("{}: not valid JSON: a NUL byte at {}", where, *at);
  Builder builder(where, max_depth, equal_keys);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace tetrad

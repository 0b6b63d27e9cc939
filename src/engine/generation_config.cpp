#include "engine/generation_config.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/json_reason.h"

namespace tetrad {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;
constexpr std::size_t kMaxStopIds = 256;
constexpr int kMaxDepth = 32;

using nlohmann::json;

// The bound on depth keeps everything that walks the value harmless; what is too deep is dropped while it is parsed.
json parse_bounded(std::string_view text, std::string_view where) {
  if (text.size() > kMaxFileBytes) fail<LoadError>("{}: {} bytes, more than the {} allowed", where, text.size(), kMaxFileBytes);
  if (const auto at = nul_byte(text)) fail<LoadError>("{}: not valid JSON: a NUL byte at {}", where, *at);
  bool too_deep = false;
  const auto watch_depth = [&](int depth, json::parse_event_t, json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  json parsed;
  try {
    parsed = json::parse(text, watch_depth);
  } catch (const json::exception& error) {
    fail<LoadError>("{}: not valid JSON: {}", where, json_reason(error));
  }
  if (too_deep) fail<LoadError>("{}: nested deeper than {} levels", where, kMaxDepth);
  if (!parsed.is_object()) fail<LoadError>("{}: expected an object, got {}", where, parsed.type_name());
  return parsed;
}

class Fields {
 public:
  Fields(const json& object, std::string_view where) : object_(object), where_(where) {}

  const json* find(const char* field) const {  // null counts as absent
    const auto it = object_.find(field);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  bool boolean(const char* field, bool fallback) const {
    const json* value = find(field);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) fail<LoadError>("{}: {} must be true or false, got {}", where_, field, describe(*value));
    return value->get<bool>();
  }
  double number(const char* field, double fallback) const {
    const json* value = find(field);
    if (value == nullptr) return fallback;
    if (!value->is_number()) fail<LoadError>("{}: {} must be a number, got {}", where_, field, describe(*value));
    return value->get<double>();
  }
  int integer(const char* field, int fallback) const {
    const json* value = find(field);
    return value == nullptr ? fallback : to_int(field, *value);
  }
  int to_int(const std::string& field, const json& value) const {
    constexpr double kLargest = std::numeric_limits<int>::max();
    const double number = value.is_number() ? value.get<double>() : kLargest + 1;
    if (!(std::abs(number) <= kLargest) || number != std::floor(number))
      fail<LoadError>("{}: {} must be a whole number, got {}", where_, field, describe(value));
    return static_cast<int>(number);
  }

 private:
  static std::string describe(const json& value) { return value.is_number() ? value.dump() : std::string(value.type_name()); }

  const json& object_;
  std::string_view where_;
};

std::vector<int> read_stop_ids(const Fields& fields, std::string_view where, int vocab_size) {
  const json* value = fields.find("eos_token_id");
  if (value == nullptr) return {};
  std::vector<int> ids;
  const auto add = [&](const std::string& field, const json& item) {
    const int id = fields.to_int(field, item);
    if (id < 0 || id >= vocab_size) fail<LoadError>("{}: {} = {} is outside the vocabulary [0, {})", where, field, id, vocab_size);
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  };
  if (!value->is_array()) {
    add("eos_token_id", *value);
    return ids;
  }
  if (value->size() > kMaxStopIds) fail<LoadError>("{}: eos_token_id lists {} ids, at most {} allowed", where, value->size(), kMaxStopIds);
  for (std::size_t i = 0; i < value->size(); ++i) add(fmt::format("eos_token_id[{}]", i), (*value)[i]);
  return ids;
}

}  // namespace

GenerationConfig parse_generation_config(std::string_view text, std::string_view where, int vocab_size) {
  const json parsed = parse_bounded(text, where);
  const Fields fields(parsed, where);
  GenerationConfig config;
  SamplingParams& sampling = config.sampling;
  sampling.temperature = fields.number("temperature", sampling.temperature);
  sampling.top_k = fields.integer("top_k", sampling.top_k);
  sampling.top_p = fields.number("top_p", sampling.top_p);
  sampling.min_p = fields.number("min_p", sampling.min_p);
  sampling.repetition_penalty = fields.number("repetition_penalty", sampling.repetition_penalty);
  sampling.presence_penalty = fields.number("presence_penalty", sampling.presence_penalty);
  sampling.frequency_penalty = fields.number("frequency_penalty", sampling.frequency_penalty);
  if (!fields.boolean("do_sample", false)) sampling.temperature = 0;
  config.stop_ids = read_stop_ids(fields, where, vocab_size);
  try {
    validate(sampling, vocab_size);
  } catch (const InputError& error) {
    fail<LoadError>("{}: {}", where, error.what());
  }
  return config;
}

GenerationConfig load_generation_config(const std::filesystem::path& model_directory, int vocab_size) {
  const std::filesystem::path path = model_directory / "generation_config.json";
  std::error_code code;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, code))) {  // a link to nothing is there, and broken
    GenerationConfig config;
    config.sampling.temperature = 0;
    return config;
  }
  if (!std::filesystem::is_regular_file(path, code)) fail<LoadError>("{}: not a regular file, nor a link to one", path.string());
  std::ifstream file(path, std::ios::binary);
  if (!file) fail<LoadError>("{}: cannot be opened for reading", path.string());
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return parse_generation_config(text, path.string(), vocab_size);
}

}  // namespace tetrad

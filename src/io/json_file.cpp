#include "io/json_file.h"

#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json_reason.h"
#include "io/mapped_file.h"

namespace tetrad {

nlohmann::json parse_json(std::string_view text, std::string_view where) {
  if (text.size() > kMaxJsonBytes) fail<LoadError>("{}: {} bytes of JSON, at most {} are read", where, text.size(), kMaxJsonBytes);
  if (const auto at = nul_byte(text)) fail<LoadError>("{}: not valid JSON: a NUL byte at {}", where, *at);
  std::vector<std::set<std::string>> keys;  // of the objects now open
  using Event = nlohmann::json::parse_event_t;
  const auto check = [&](int depth, Event event, nlohmann::json& value) {
    const bool opens = event == Event::object_start || event == Event::array_start;
    if (opens && depth >= kMaxJsonDepth) fail<LoadError>("{}: nested deeper than {} levels", where, kMaxJsonDepth);
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second)
      fail<LoadError>("{}: key \"{}\" is given twice in one object", where, value.get<std::string>());
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), check);
  } catch (const nlohmann::json::exception& e) {
    fail<LoadError>("{}: not valid JSON: {}", where, json_reason(e));
  }
}

nlohmann::json read_json_file(const std::filesystem::path& path) {
  const MappedFile file = MappedFile::open(path);
  const auto bytes = file.bytes();
  return parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

}  // namespace tetrad

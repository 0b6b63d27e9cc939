#pragma once
// JSON from outside, read strictly: UTF-8, bounded in size and depth, and no key given twice (which parsers commonly resolve in silence).
#include <cstddef>
#include <filesystem>
#include <string_view>

#include <nlohmann/json.hpp>

namespace tetrad {

inline constexpr std::size_t kMaxJsonBytes = std::size_t{64} << 20;
inline constexpr int kMaxJsonDepth = 64;

// Throws LoadError: `where`, then the line or the key at fault.
nlohmann::json parse_json(std::string_view text, std::string_view where);
nlohmann::json read_json_file(const std::filesystem::path& path);

}  // namespace tetrad

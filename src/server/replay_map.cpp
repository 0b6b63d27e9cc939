#include "server/replay_map.h"

#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

namespace tetrad {
namespace {

constexpr std::size_t kEntryBytes = 512;  // of an entry besides its tokens, what the maps need for it included

std::string_view without_space(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\f\v";
  const std::size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string_view::npos ? std::string_view{} : text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// The same value in one form: keys sorted, and 2.0 as 2. Its nesting is bounded by whoever parsed it.
nlohmann::json canonical(const nlohmann::ordered_json& value) {
  if (value.is_object()) {
    nlohmann::json object = nlohmann::json::object();
    for (const auto& [key, item] : value.items()) object[key] = canonical(item);
    return object;
  }
  if (value.is_array()) {
    nlohmann::json array = nlohmann::json::array();
    for (const auto& item : value) array.push_back(canonical(item));
    return array;
  }
  if (value.is_number_float()) {
    constexpr double kExact = 9007199254740992.0;  // 2^53: whole numbers up to here are what they seem
    const double number = value.get<double>();
    if (std::abs(number) <= kExact && std::floor(number) == number) return static_cast<std::int64_t>(number);
    return number;
  }
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_unsigned()) return value.get<std::uint64_t>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  return nullptr;
}

Digest joined(const Digest& a, const Digest& b) {
  const auto bytes = [](const Digest& digest) { return std::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()); };
  return DigestBuilder().add(bytes(a)).add(bytes(b)).digest();
}

}  // namespace

Digest visible_digest(std::string_view salt, std::string_view content, const nlohmann::ordered_json& calls) {
  DigestBuilder builder;
  builder.add(salt).add(without_space(content));
  for (const auto& call : calls.is_array() ? calls : nlohmann::ordered_json::array()) {
    const auto& function = call.at("function");
    builder.add(call.value("id", std::string())).add(function.at("name").get_ref<const std::string&>());
    builder.add(canonical(function.at("arguments")).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  return builder.digest();
}

Digest reasoning_digest(std::string_view reasoning) { return DigestBuilder().add(without_space(reasoning)).digest(); }

ReplayMap::ReplayMap(std::size_t max_bytes, std::size_t max_entries) : max_bytes_(max_bytes), max_entries_(max_entries) {}

void ReplayMap::drop(Entries::iterator entry) {
  const auto look = looks_.find(entry->visible);
  if (--look->second.entries == 0) looks_.erase(look);
  stats_.bytes -= entry->bytes;
  by_key_.erase(entry->key);
  entries_.erase(entry);
}

void ReplayMap::add(const Digest& visible, const Digest& prompt, ReplayTurn turn) {
  const std::size_t bytes = kEntryBytes + turn.tokens.size() * sizeof(int);
  if (bytes > max_bytes_ || max_entries_ == 0) return;
  turn.tokens.shrink_to_fit();
  const Digest key = joined(visible, prompt);
  const std::lock_guard lock(mutex_);
  if (const auto found = by_key_.find(key); found != by_key_.end()) drop(found->second);
  while (!entries_.empty() && (stats_.bytes + bytes > max_bytes_ || entries_.size() >= max_entries_)) {
    drop(std::prev(entries_.end()));
    ++stats_.evictions;
  }
  Look& look = looks_[visible];
  ++look.entries;
  look.starts_in_reasoning = turn.starts_in_reasoning;
  entries_.push_front({key, visible, std::make_shared<const ReplayTurn>(std::move(turn)), bytes});
  by_key_[key] = entries_.begin();
  stats_.bytes += bytes;
}

std::optional<bool> ReplayMap::known_start(const Digest& visible) const {
  const std::lock_guard lock(mutex_);
  const auto found = looks_.find(visible);
  return found == looks_.end() ? std::nullopt : std::optional(found->second.starts_in_reasoning);
}

std::shared_ptr<const ReplayTurn> ReplayMap::find(const Digest& visible, const Digest& prompt) {
  const Digest key = joined(visible, prompt);
  const std::lock_guard lock(mutex_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->turn;
}

void ReplayMap::count(std::uint64_t hits, std::uint64_t misses) {
  const std::lock_guard lock(mutex_);
  stats_.hits += hits;
  stats_.misses += misses;
}

ReplayStats ReplayMap::stats() const {
  const std::lock_guard lock(mutex_);
  ReplayStats stats = stats_;
  stats.entries = entries_.size();
  return stats;
}

}  // namespace tetrad

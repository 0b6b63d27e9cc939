#include "cli/suggest.h"

#include <algorithm>

namespace tetrad::cli {
namespace {

constexpr std::size_t kMaxLength = 64;  // longer words are nobody's typing mistake

char canonical(char c) {
  if (c == '_') return '-';
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last, last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const char x = canonical(a[i - 1]), y = canonical(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (x == y ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && x == canonical(b[j - 2]) && canonical(a[i - 2]) == y;
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = last;
    last = row;
  }
  return last[b.size()];
}

std::string nearest_name(std::string_view given, const std::vector<std::string>& known) {
  if (given.size() > kMaxLength) return {};
  std::string nearest;
  std::size_t least = std::max<std::size_t>(given.size() / 2, 2);  // at this distance or beyond it is another word
  for (const std::string& name : known) {
    // A name cut short is meant more surely than its distance says.
    const bool prefix = given.size() >= 4 && name.starts_with(given);
    const std::size_t distance = prefix ? 1 : edit_distance(given, name);
    if (distance >= least) continue;
    least = distance;
    nearest = name;
  }
  return nearest;
}

}  // namespace tetrad::cli

#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"
#include "text/unicode_categories.h"

namespace tetrad::text {
namespace {

// The code point that ends `text`, which is valid UTF-8 and not empty, and its length in bytes.
Utf8Step last_code_point(std::string_view text) {
  std::size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return utf8_step(text.substr(begin));
}

bool touches_word(std::string_view before, std::string_view after) {
  return (!before.empty() && is_word(last_code_point(before).code_point)) || (!after.empty() && is_word(utf8_step(after).code_point));
}

std::size_t white_space_at_end(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size()) {
    const Utf8Step step = last_code_point(text.substr(0, text.size() - length));
    if (!is_white_space(step.code_point)) break;
    length += step.length;
  }
  return length;
}

std::size_t white_space_at_start(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size()) {
    const Utf8Step step = utf8_step(text.substr(length));
    if (!is_white_space(step.code_point)) break;
    length += step.length;
  }
  return length;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(const std::vector<Entry>& entries) : nodes_(1) {
  for (const Entry& entry : entries) insert(entry);
}

void AddedTokenMatcher::insert(const Entry& entry) {
  int node = 0;
  for (const char c : entry.content) {
    const auto byte = static_cast<unsigned char>(c);
    int next = child(node, byte);
    if (next < 0) {
      next = static_cast<int>(nodes_.size());
      auto& children = nodes_[static_cast<std::size_t>(node)].children;
      children.insert(std::lower_bound(children.begin(), children.end(), std::pair(byte, 0)), {byte, next});
      nodes_.emplace_back();
    }
    node = next;
  }
  if (node == 0) return;
  starts_[static_cast<unsigned char>(entry.content[0])] = true;
  auto& token = nodes_[static_cast<std::size_t>(node)].token;
  if (token == nullptr) token = entry.token;
}

int AddedTokenMatcher::child(int node, unsigned char byte) const {
  const auto& children = nodes_[static_cast<std::size_t>(node)].children;
  const auto found = std::lower_bound(children.begin(), children.end(), std::pair(byte, 0));
  return found != children.end() && found->first == byte ? found->second : -1;
}

AddedTokenMatcher::Match AddedTokenMatcher::longest_at(std::string_view text) const {
  Match match{nullptr, 0};
  int node = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    node = child(node, static_cast<unsigned char>(text[i]));
    if (node < 0) break;
    if (const AddedToken* token = nodes_[static_cast<std::size_t>(node)].token) match = {token, i + 1};
  }
  return match;
}

std::vector<Segment> AddedTokenMatcher::cut(std::string_view text) const {
  std::vector<Segment> segments;
  std::size_t done = 0;  // everything before it is in `segments`
  std::size_t at = 0;
  while (!empty() && at < text.size()) {
    const Match match = starts_[static_cast<unsigned char>(text[at])] ? longest_at(text.substr(at)) : Match{nullptr, 0};
    if (match.token == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + match.length;
    // The search goes on behind the match even when it is turned down, as in the reference.
    at = end;
    if (match.token->single_word && touches_word(text.substr(0, begin), text.substr(end))) continue;
    if (match.token->lstrip) begin -= white_space_at_end(text.substr(std::min(done, begin), begin - std::min(done, begin)));
    if (match.token->rstrip) end += white_space_at_start(text.substr(end));
    begin = std::max(begin, done);
    end = std::max(end, done);
    if (done < begin) segments.push_back({text.substr(done, begin - done), -1});
    segments.push_back({text.substr(begin, end - begin), match.token->id});
    done = end;
  }
  if (done < text.size()) segments.push_back({text.substr(done), -1});
  return segments;
}

}  // namespace tetrad::text

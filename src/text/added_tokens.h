#pragma once
// Added tokens: texts that are cut out of the input before it is split into words.
#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tetrad::text {

struct AddedToken {
  int id = 0;
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and after it
  bool normalized = false;   // found in the normalised text, by its normalised content
  bool special = false;
};

// A stretch of the input: text, or an added token with the white space it took along.
struct Segment {
  std::string_view text;
  int id;  // -1 for text
};

// Finds a set of added tokens: leftmost first, the longest at a place.
class AddedTokenMatcher {
 public:
  struct Entry {
    std::string content;  // as searched for: not empty, valid UTF-8
    const AddedToken* token;
  };
  // The tokens outlive the matcher; of equal contents the first counts.
  explicit AddedTokenMatcher(const std::vector<Entry>& entries);

  bool empty() const { return nodes_.size() <= 1; }
  // Cuts `text` (valid UTF-8). Text segments are not empty; a token may be empty when an earlier one took its white space.
  std::vector<Segment> cut(std::string_view text) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, int>> children;  // by byte
    const AddedToken* token = nullptr;
  };
  struct Match {
    const AddedToken* token;
    std::size_t length;
  };

  void insert(const Entry& entry);
  int child(int node, unsigned char byte) const;
  Match longest_at(std::string_view text) const;

  std::vector<Node> nodes_;
  std::array<bool, 256> starts_{};  // bytes that some content begins with
};

}  // namespace tetrad::text

#include "text/tokenizer_json.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <unordered_set>

#include "base/error.h"
#include "base/json_reason.h"
#include "text/byte_level.h"
#include "text/unicode.h"

namespace tetrad::text {
namespace {

using nlohmann::json;

constexpr int kMaxIds = 1 << 21;  // ids run below this; the released model has 248,320
constexpr int kMaxJsonDepth = 32;
constexpr std::size_t kMaxTokenBytes = 4096;
constexpr std::size_t kMaxAddedTokens = 1 << 16;
constexpr std::size_t kMaxAddedBytes = 512;
constexpr std::size_t kMaxMerges = 1 << 22;

// A part of a name from the file, fit for a message.
std::string excerpt(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  std::string out;
  append_lossy(out, text.substr(0, kLongest), true);
  return text.size() > kLongest ? out + "..." : out;
}

// Parses with a bound on depth; a key that an object has twice is an error, since one of the two would be lost.
json parse_json(std::string_view text, std::string_view where) {
  if (const auto at = nul_byte(text)) fail<LoadError>("{}: not valid JSON: a NUL byte at {}", where, *at);
  std::vector<std::size_t> keys;  // seen so far, per open object
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMaxJsonDepth) fail<LoadError>("{}: nested deeper than {} levels", where, kMaxJsonDepth);
    if (event == json::parse_event_t::object_start) {
      keys.push_back(0);
    } else if (event == json::parse_event_t::key) {
      ++keys.back();
    } else if (event == json::parse_event_t::object_end) {
      if (value.size() != keys.back()) {
        fail<LoadError>("{}: an object at depth {} has {} keys but {} distinct ones; every key may appear once", where, depth, keys.back(),
                        value.size());
      }
      keys.pop_back();
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), watch);
  } catch (const json::exception& error) {
    fail<LoadError>("{}: not valid JSON: {}", where, json_reason(error));
  }
}

class Reader {
 public:
  Reader(const json& root, std::string_view where) : root_(root), where_(where) {}

  TokenizerFile run() {
    if (!root_.is_object()) refuse("the file", "a JSON object", root_);
    expect_null(root_, "truncation");
    expect_null(root_, "padding");
    read_normalizer();
    read_pre_tokenizer();
    check_post_processor();
    check_decoder();
    const json& model = member(root_, "model", "");
    check_model(model);
    read_vocab(member(model, "vocab", "model."));
    read_merges(member(model, "merges", "model."));
    read_added_tokens();
    return std::move(file_);
  }

 private:
  [[noreturn]] void refuse(std::string_view field, std::string_view expected, const json& got) const {
    fail<LoadError>("{}: {}: expected {}, got {}", where_, field, expected,
                    excerpt(got.dump(-1, ' ', false, json::error_handler_t::replace)));
  }

  // A missing member reads as null.
  static const json& optional_member(const json& object, const char* key) {
    static const json kNull;
    const auto found = object.find(key);
    return found == object.end() ? kNull : *found;
  }

  const json& member(const json& object, const char* key, std::string_view prefix) const {
    const auto found = object.find(key);
    if (found == object.end()) fail<LoadError>("{}: {}{} is missing", where_, prefix, key);
    return *found;
  }

  void expect_null(const json& object, const char* key) const {
    const json& value = optional_member(object, key);
    if (!value.is_null()) refuse(key, "null (nothing else is supported)", value);
  }

  void expect_false(const json& object, const char* key, const std::string& prefix) const {
    const json& value = optional_member(object, key);
    if (!value.is_null() && value != false) refuse(prefix + key, "false (nothing else is supported)", value);
  }

  static bool has_type(const json& value, std::string_view type) {
    if (!value.is_object()) return false;
    const json& name = optional_member(value, "type");
    return name.is_string() && name.get_ref<const std::string&>() == type;
  }

  void read_normalizer() {
    const json& value = optional_member(root_, "normalizer");
    if (!value.is_null() && !has_type(value, "NFC")) refuse("normalizer", "null or type NFC", value);
    file_.nfc = !value.is_null();
  }

  void read_pre_tokenizer() {
    const json& value = member(root_, "pre_tokenizer", "");
    if (!has_type(value, "Sequence")) refuse("pre_tokenizer", "type Sequence", value);
    const json& list = member(value, "pretokenizers", "pre_tokenizer.");
    if (!list.is_array() || list.size() != 2 || !has_type(list[0], "Split") || !has_type(list[1], "ByteLevel")) {
      refuse("pre_tokenizer.pretokenizers", "a list of one Split and one ByteLevel", list);
    }
    const json& split = list[0];
    const json& pattern = member(split, "pattern", "pre_tokenizer.pretokenizers[0].");
    if (!pattern.is_object() || pattern.size() != 1 || !optional_member(pattern, "Regex").is_string()) {
      refuse("pre_tokenizer.pretokenizers[0].pattern", "{\"Regex\": text}", pattern);
    }
    file_.split_expression = pattern["Regex"].get<std::string>();
    const json& behavior = optional_member(split, "behavior");
    if (behavior != "Isolated") refuse("pre_tokenizer.pretokenizers[0].behavior", "\"Isolated\"", behavior);
    expect_false(split, "invert", "pre_tokenizer.pretokenizers[0].");
    // Absent, these two are true in the reference.
    for (const char* key : {"add_prefix_space", "use_regex"}) {
      const json& flag = optional_member(list[1], key);
      if (flag != false) refuse(std::string("pre_tokenizer.pretokenizers[1].") + key, "false", flag);
    }
  }

  // A ByteLevel post-processor only moves offsets; any other adds tokens.
  void check_post_processor() const {
    const json& value = optional_member(root_, "post_processor");
    if (!value.is_null() && !has_type(value, "ByteLevel")) refuse("post_processor", "null or type ByteLevel", value);
  }

  void check_decoder() const {
    const json& value = optional_member(root_, "decoder");
    if (!has_type(value, "ByteLevel")) refuse("decoder", "type ByteLevel", value);
  }

  void check_model(const json& model) {
    if (!has_type(model, "BPE")) refuse("model", "type BPE", model);
    for (const char* key : {"unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
      const json& value = optional_member(model, key);
      const bool none = value.is_null() || (value.is_string() && value.get_ref<const std::string&>().empty());
      if (!none) refuse(std::string("model.") + key, "null (nothing else is supported)", value);
    }
    const json& dropout = optional_member(model, "dropout");
    if (!dropout.is_null() && dropout != 0) refuse("model.dropout", "null (encoding must be repeatable)", dropout);
    expect_false(model, "fuse_unk", "model.");
    expect_false(model, "byte_fallback", "model.");
    const json& ignore_merges = optional_member(model, "ignore_merges");
    if (!ignore_merges.is_null() && !ignore_merges.is_boolean()) refuse("model.ignore_merges", "true or false", ignore_merges);
    file_.ignore_merges = ignore_merges == true;
  }

  int read_id(const json& value, const std::string& field) const {
    if (!value.is_number_integer() || value < 0 || value >= kMaxIds) refuse(field, fmt::format("an id from 0 to {}", kMaxIds - 1), value);
    return value.get<int>();
  }

  // Gives `id` its bytes; false when it has some already.
  bool assign(int id, std::string bytes) {
    const auto index = static_cast<std::size_t>(id);
    if (file_.token_bytes.size() <= index) file_.token_bytes.resize(index + 1);
    if (!file_.token_bytes[index].empty()) return false;
    file_.token_bytes[index] = std::move(bytes);
    return true;
  }

  // Contents of added tokens: the only entries of the vocabulary that may be written in plain text.
  std::unordered_set<std::string> added_contents() const {
    std::unordered_set<std::string> contents;
    const json& list = optional_member(root_, "added_tokens");
    if (!list.is_array()) return contents;
    for (const json& token : list) {
      if (token.is_object() && optional_member(token, "content").is_string()) contents.insert(token["content"].get<std::string>());
    }
    return contents;
  }

  void read_vocab(const json& vocab) {
    if (!vocab.is_object() || vocab.empty()) refuse("model.vocab", "an object of tokens and ids", vocab);
    if (vocab.size() > static_cast<std::size_t>(kMaxIds)) {
      fail<LoadError>("{}: model.vocab has {} entries, more than the {} supported", where_, vocab.size(), kMaxIds);
    }
    const std::unordered_set<std::string> added = added_contents();
    file_.words.reserve(vocab.size());
    for (const auto& [token, value] : vocab.items()) {
      const std::string field = fmt::format("model.vocab[\"{}\"]", excerpt(token));
      const int id = read_id(value, field);
      if (token.empty() || token.size() > kMaxTokenBytes) {
        fail<LoadError>("{}: {}: a token of {} bytes; expected 1 to {}", where_, field, token.size(), kMaxTokenBytes);
      }
      std::optional<std::string> bytes = byte_level_decode(token);
      if (added.contains(token)) {
        vocab_of_added_.emplace(token, id);
        bytes = token;
      } else if (!bytes) {
        fail<LoadError>("{}: {}: holds a character outside the byte-level alphabet", where_, field);
      }
      if (!assign(id, *bytes)) fail<LoadError>("{}: {}: id {} belongs to another token already; ids are unique", where_, field, id);
      ids_by_name_.emplace(token, id);
      if (const auto word = byte_level_decode(token)) file_.words.emplace(*word, id);
    }
    find_byte_ids();
  }

  void find_byte_ids() {
    for (int byte = 0; byte < 256; ++byte) {
      const auto found = file_.words.find(std::string(1, static_cast<char>(static_cast<unsigned char>(byte))));
      const bool never_in_utf8 = byte == 0xC0 || byte == 0xC1 || byte >= 0xF5;
      if (found == file_.words.end() && !never_in_utf8) {
        fail<LoadError>("{}: model.vocab has no token for byte {:#04x}; byte-level encoding needs one for each", where_, byte);
      }
      file_.byte_ids[static_cast<std::size_t>(byte)] = found == file_.words.end() ? -1 : found->second;
    }
  }

  // "a b" or ["a", "b"].
  std::pair<std::string, std::string> read_pair(const json& entry, const std::string& field) const {
    if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
      return {entry[0].get<std::string>(), entry[1].get<std::string>()};
    }
    if (entry.is_string()) {
      const auto& text = entry.get_ref<const std::string&>();
      const std::size_t space = text.find(' ');
      if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos)
        return {text.substr(0, space), text.substr(space + 1)};
    }
    refuse(field, "two tokens, as a list or separated by one space", entry);
  }

  int id_of(const std::string& name, const std::string& field) const {
    const auto found = ids_by_name_.find(name);
    if (found == ids_by_name_.end()) fail<LoadError>("{}: {}: token \"{}\" is not in model.vocab", where_, field, excerpt(name));
    return found->second;
  }

  void read_merges(const json& merges) {
    if (!merges.is_array() || merges.size() > kMaxMerges)
      refuse("model.merges", fmt::format("a list of at most {} pairs", kMaxMerges), merges);
    std::unordered_set<std::uint64_t> seen;
    seen.reserve(merges.size());
    file_.merges.reserve(merges.size());
    for (std::size_t i = 0; i < merges.size(); ++i) {
      const std::string field = fmt::format("model.merges[{}]", i);
      const auto [left, right] = read_pair(merges[i], field);
      const Merge merge{id_of(left, field), id_of(right, field), id_of(left + right, field)};
      const auto key = static_cast<std::uint64_t>(merge.left) << 32 | static_cast<std::uint32_t>(merge.right);
      if (!seen.insert(key).second) {
        fail<LoadError>("{}: {}: the pair \"{}\" \"{}\" is listed twice", where_, field, excerpt(left), excerpt(right));
      }
      file_.merges.push_back(merge);
    }
  }

  bool read_flag(const json& token, const char* key, const std::string& field, bool absent) const {
    const json& value = optional_member(token, key);
    if (value.is_null()) return absent;
    if (!value.is_boolean()) refuse(field + "." + key, "true or false", value);
    return value.get<bool>();
  }

  void read_added_tokens() {
    const json& list = optional_member(root_, "added_tokens");
    if (list.is_null()) return;
    if (!list.is_array() || list.size() > kMaxAddedTokens)
      refuse("added_tokens", fmt::format("a list of at most {}", kMaxAddedTokens), list);
    std::unordered_set<std::string> contents;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::string field = fmt::format("added_tokens[{}]", i);
      const json& entry = list[i];
      if (!entry.is_object()) refuse(field, "an object", entry);
      AddedToken token;
      token.id = read_id(member(entry, "id", field + "."), field + ".id");
      const json& content = member(entry, "content", field + ".");
      if (!content.is_string()) refuse(field + ".content", "a text", content);
      token.content = content.get<std::string>();
      if (token.content.empty() || token.content.size() > kMaxAddedBytes) {
        refuse(field + ".content", fmt::format("a text of 1 to {} bytes", kMaxAddedBytes), content);
      }
      token.special = read_flag(entry, "special", field, false);
      token.single_word = read_flag(entry, "single_word", field, false);
      token.lstrip = read_flag(entry, "lstrip", field, false);
      token.rstrip = read_flag(entry, "rstrip", field, false);
      token.normalized = read_flag(entry, "normalized", field, !token.special);
      if (!contents.insert(token.content).second)
        fail<LoadError>("{}: {}: content \"{}\" is listed twice", where_, field, excerpt(token.content));
      claim_id(token, field);
      file_.added.push_back(std::move(token));
    }
  }

  void claim_id(const AddedToken& token, const std::string& field) {
    const auto in_vocab = vocab_of_added_.find(token.content);
    if (in_vocab == vocab_of_added_.end()) {
      if (!assign(token.id, token.content))
        fail<LoadError>("{}: {}: id {} belongs to another token already; ids are unique", where_, field, token.id);
    } else if (in_vocab->second != token.id) {
      fail<LoadError>("{}: {}: \"{}\" has id {} here and {} in model.vocab", where_, field, excerpt(token.content), token.id,
                      in_vocab->second);
    }
  }

  const json& root_;
  std::string_view where_;
  TokenizerFile file_;
  std::unordered_map<std::string, int> ids_by_name_;     // model.vocab as spelled in the file
  std::unordered_map<std::string, int> vocab_of_added_;  // its entries that are added tokens too
};

}  // namespace

TokenizerFile read_tokenizer_json(std::string_view json_text, std::string_view where) {
  const json root = parse_json(json_text, where);
  return Reader(root, where).run();
}

}  // namespace tetrad::text

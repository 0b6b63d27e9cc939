#include "text/tokenizer.h"

#include <fstream>
#include <unordered_map>

#include "base/error.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/split_pattern.h"
#include "text/tokenizer_json.h"
#include "text/unicode.h"

namespace tetrad {
namespace {

constexpr std::uintmax_t kMaxTokenizerBytes = 256ULL << 20;
constexpr std::size_t kMaxTextBytes = 64ULL << 20;

using text::AddedToken;
using text::AddedTokenMatcher;

std::vector<AddedTokenMatcher::Entry> entries(const std::vector<AddedToken>& tokens, bool normalized, bool nfc) {
  std::vector<AddedTokenMatcher::Entry> list;
  for (const AddedToken& token : tokens) {
    if (token.normalized == normalized) list.push_back({normalized && nfc ? text::nfc(token.content) : token.content, &token});
  }
  return list;
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(text::TokenizerFile&& file, std::string_view where)
      : nfc(file.nfc),
        added(std::move(file.added)),
        token_bytes(std::move(file.token_bytes)),
        raw_matcher(entries(added, false, nfc)),
        normalized_matcher(entries(added, true, nfc)),
        split(file.split_expression, where),
        bpe(file.byte_ids, file.merges, static_cast<int>(token_bytes.size())) {
    if (file.ignore_merges) bpe.set_whole_words(std::move(file.words));
    for (const AddedToken& token : added) {
      by_id.emplace(token.id, &token);
      by_content.emplace(token.content, token.id);
    }
  }

  // Normalised text without added tokens.
  void encode_words(std::string_view text, text::Bpe::Encoder& encoder, std::vector<int>& ids) const {
    text::SplitPattern::Walk walk(split, text);
    while (const auto word = walk.next()) encoder.encode(*word, ids);
  }

  void encode_raw(std::string_view raw, bool added_tokens, text::Bpe::Encoder& encoder, std::vector<int>& ids) const {
    const std::string normalized = nfc ? text::nfc(raw) : std::string(raw);
    if (!added_tokens || normalized_matcher.empty()) return encode_words(normalized, encoder, ids);
    for (const text::Segment& segment : normalized_matcher.cut(normalized)) {
      if (segment.id >= 0) {
        ids.push_back(segment.id);
      } else {
        encode_words(segment.text, encoder, ids);
      }
    }
  }

  // Throws InputError on an id that no token has.
  const std::string& bytes_of(int id) const {
    if (id < 0 || static_cast<std::size_t>(id) >= token_bytes.size()) {
      fail<InputError>("token id {} is out of range: the tokenizer has ids 0 to {}", id, token_bytes.size() - 1);
    }
    const std::string& bytes = token_bytes[static_cast<std::size_t>(id)];
    if (bytes.empty()) fail<InputError>("token id {} has no token (the vocabulary is padded there)", id);
    return bytes;
  }

  bool nfc;
  std::vector<AddedToken> added;
  std::vector<std::string> token_bytes;  // by id
  AddedTokenMatcher raw_matcher, normalized_matcher;
  text::SplitPattern split;
  text::Bpe bpe;
  std::unordered_map<int, const AddedToken*> by_id;
  std::unordered_map<std::string_view, int> by_content;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::filesystem::path& tokenizer_json) {
  const std::string where = tokenizer_json.string();
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(tokenizer_json, error);
  if (error) fail<LoadError>("{}: cannot be read: {}", where, error.message());
  if (bytes > kMaxTokenizerBytes)
    fail<LoadError>("{}: {} bytes, more than the {} allowed for a tokenizer.json", where, bytes, kMaxTokenizerBytes);
  std::string json(static_cast<std::size_t>(bytes), '\0');
  std::ifstream stream(tokenizer_json, std::ios::binary);
  if (!stream.read(json.data(), static_cast<std::streamsize>(json.size()))) fail<LoadError>("{}: cannot read its {} bytes", where, bytes);
  return parse(json, where);
}

Tokenizer Tokenizer::parse(std::string_view json, std::string_view where) {
  return Tokenizer(std::make_unique<Impl>(text::read_tokenizer_json(json, where), where));
}

std::vector<int> Tokenizer::encode(std::string_view text, bool added_tokens) const {
  if (text.size() > kMaxTextBytes) fail<InputError>("text of {} bytes; at most {} can be tokenized at once", text.size(), kMaxTextBytes);
  const std::size_t invalid = text::find_invalid_utf8(text);
  if (invalid != std::string_view::npos) {
    fail<InputError>("the text is not valid UTF-8 at byte {} ({:#04x})", invalid, static_cast<unsigned char>(text[invalid]));
  }
  std::vector<int> ids;
  text::Bpe::Encoder encoder(impl_->bpe);
  if (!added_tokens) {
    impl_->encode_raw(text, false, encoder, ids);
    return ids;
  }
  for (const text::Segment& segment : impl_->raw_matcher.cut(text)) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
    } else {
      impl_->encode_raw(segment.text, true, encoder, ids);
    }
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int> ids, bool skip_special) const {
  std::string bytes;
  for (const int id : ids) {
    const std::string& token = impl_->bytes_of(id);
    if (!skip_special || !is_special(id)) bytes += token;
  }
  std::string out;
  out.reserve(bytes.size());
  text::append_lossy(out, bytes, true);
  return out;
}

std::string_view Tokenizer::token_bytes(int id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= impl_->token_bytes.size()) return {};
  return impl_->token_bytes[static_cast<std::size_t>(id)];
}

bool Tokenizer::is_added(int id) const { return impl_->by_id.contains(id); }

bool Tokenizer::is_special(int id) const {
  const auto found = impl_->by_id.find(id);
  return found != impl_->by_id.end() && found->second->special;
}

std::optional<int> Tokenizer::added_token(std::string_view content) const {
  const auto found = impl_->by_content.find(content);
  if (found == impl_->by_content.end()) return std::nullopt;
  return found->second;
}

int Tokenizer::size() const { return static_cast<int>(impl_->token_bytes.size()); }

}  // namespace tetrad

#include "base/error.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace tetrad {

StreamDetokenizer::StreamDetokenizer(const Tokenizer& tokenizer, bool skip_special) : tokenizer_(&tokenizer), skip_special_(skip_special) {}

std::string StreamDetokenizer::feed(int id) {
  const std::string_view bytes = tokenizer_->token_bytes(id);
  if (bytes.empty()) fail<InputError>("token id {} has no token: the tokenizer's ids end at {}", id, tokenizer_->size() - 1);
  std::string out;
  // A skipped token does not end a code point that is under way: decode() joins its neighbours as well.
  if (skip_special_ && tokenizer_->is_special(id)) return out;
  pending_ += bytes;
  pending_.erase(0, text::append_lossy(out, pending_, false));
  return out;
}

std::string StreamDetokenizer::finish() {
  std::string out;
  text::append_lossy(out, pending_, true);
  pending_.clear();
  return out;
}

}  // namespace tetrad

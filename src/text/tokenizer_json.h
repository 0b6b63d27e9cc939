#pragma once
// tokenizer.json, read and checked: what comes out of here is what the encoder supports.
#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"

namespace tetrad::text {

struct TokenizerFile {
  bool nfc = false;                            // normalizer
  std::string split_expression;                // pre_tokenizer's Split
  std::unordered_map<std::string, int> words;  // model.vocab by the bytes each entry stands for
  std::vector<std::string> token_bytes;        // by id, added tokens included; empty where an id has no token
  std::array<int, 256> byte_ids{};             // -1 for the bytes that UTF-8 never holds and the vocabulary lacks
  std::vector<Merge> merges;
  bool ignore_merges = false;
  std::vector<AddedToken> added;  // contents and ids are unique
};

// Throws LoadError naming `where`, the field, and what is malformed or not supported.
TokenizerFile read_tokenizer_json(std::string_view json, std::string_view where);

}  // namespace tetrad::text

#pragma once
// Replays the text goldens that may lie beside a checkpoint: token ids, rendered prompts, greedy answers. A damaged file is a LoadError
// that names the field.
#include <filesystem>
#include <string>
#include <vector>

#include "engine/stepper.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tetrad {

struct TextCheck {
  std::string what;  // "golden-tokenizer.json", "golden-generate.json case 3 (define)"
  int checked = 0;   // strings, conversations, or tokens
  int wrong = 0;
  std::string note;        // the first disagreement, or the least margin between the reference's first and second candidate
  bool undecided = false;  // the reference's own runs differ: no answer to compare with
  bool pass() const { return wrong == 0 && (checked > 0 || undecided); }
};

// golden-tokenizer.json: strings and their ids.
TextCheck verify_tokenizer(const std::filesystem::path& file, const Tokenizer& tokenizer);
// golden-template.json: conversations, the rendered text and its ids.
TextCheck verify_template(const std::filesystem::path& file, const ChatTemplate& chat_template, const Tokenizer& tokenizer);
// golden-generate.json: one check for every case, where the reference's CPU and GPU runs agree of the greedy ids and their text.
std::vector<TextCheck> verify_generation(const std::filesystem::path& file, StatePool& pool, const Tokenizer& tokenizer);

}  // namespace tetrad

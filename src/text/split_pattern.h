#pragma once
// The split expression of tokenizer.json. It is written for Oniguruma and run by PCRE2; a construct that both read the same way, or that
// can be rewritten to mean the same, is taken over, everything else is refused when the file is loaded.
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tetrad::text {

// The PCRE2 spelling of an Oniguruma expression. Rewritten: `\s` and `\S` (PCRE2 adds U+180E), `\d`, `\p{..}`, `.`, captures,
// escapes. Throws LoadError naming `where`, the construct and its byte offset.
std::string translate_split_expression(std::string_view expression, std::string_view where);

class SplitPattern {
 public:
  // Throws LoadError naming `where`.
  SplitPattern(std::string_view expression, std::string_view where);
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;
  ~SplitPattern();

  // Walks over a text, cutting it at the start and end of every match (behaviour "Isolated"): the pieces together are the text, none is
  // empty. Several walks over one pattern may run in different threads.
  class Walk {
   public:
    // `text` is valid UTF-8 and outlives the walk.
    Walk(const SplitPattern& pattern, std::string_view text);
    ~Walk();
    Walk(const Walk&) = delete;
    Walk& operator=(const Walk&) = delete;
    // The next piece, or nothing at the end. Throws InputError when the expression exceeds its limits on this text.
    std::optional<std::string_view> next();

   private:
    bool find_match();

    struct Scratch;
    const SplitPattern* pattern_;
    std::string_view text_;
    std::string subject_storage_;
    std::string_view subject_;  // what is matched: text_ with stand-ins, byte for byte as long
    std::unique_ptr<Scratch> scratch_;
    std::size_t cut_ = 0;  // everything before it has been handed out
    std::size_t search_from_ = 0;
    std::size_t match_begin_ = 0, match_end_ = 0;  // the match being handed out, when in_match_
    std::size_t last_match_end_ = std::string_view::npos;
    bool in_match_ = false, exhausted_ = false;
  };

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace tetrad::text

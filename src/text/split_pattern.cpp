#include "text/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "text/unicode.h"
#include "text/unicode_categories.h"

namespace tetrad::text {
namespace {

// Steps of backtracking that one match may take: a part for the expression and a part for every byte of the text, since a run of white
// space is legitimately walked back to its start.
constexpr std::uint64_t kMatchLimitBase = 1'000'000;
constexpr std::uint64_t kMatchLimitPerByte = 16;
constexpr std::uint32_t kHeapLimitKib = 256 * 1024;

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};

using CodePointer = std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;

}  // namespace

struct SplitPattern::Code {
  CodePointer regex;
  bool compiled_to_machine_code = false;
};

SplitPattern::SplitPattern(std::string_view expression, std::string_view where) : code_(std::make_unique<Code>()) {
  const std::string translated = translate_split_expression(expression, where);
  const CompileContext context(pcre2_compile_context_create(nullptr));
  TETRAD_CHECK(context, "pcre2_compile_context_create");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  const auto options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE;
  code_->regex.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options, &error, &offset, context.get()));
  if (!code_->regex) {
    fail<LoadError>("{}: the split expression does not compile: {} (in its PCRE2 form, at byte {}: {})", where, pcre2_message(error),
                    offset, translated);
  }
  // Where this build or machine has no just-in-time compiler the call fails and the expression is interpreted.
  code_->compiled_to_machine_code = pcre2_jit_compile(code_->regex.get(), PCRE2_JIT_COMPLETE) == 0;
}

SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;
SplitPattern::~SplitPattern() = default;

struct SplitPattern::Walk::Scratch {
  MatchContext context;
  MatchData data;
};

SplitPattern::Walk::Walk(const SplitPattern& pattern, std::string_view text)
    : pattern_(&pattern), text_(text), subject_(with_known_categories(text, subject_storage_)), scratch_(std::make_unique<Scratch>()) {
  scratch_->context.reset(pcre2_match_context_create(nullptr));
  scratch_->data.reset(pcre2_match_data_create(1, nullptr));
  TETRAD_CHECK(scratch_->context && scratch_->data, "pcre2_match_data_create");
  const std::uint64_t limit = kMatchLimitBase + kMatchLimitPerByte * text.size();
  pcre2_set_match_limit(scratch_->context.get(), static_cast<std::uint32_t>(std::min<std::uint64_t>(limit, UINT32_MAX)));
  pcre2_set_heap_limit(scratch_->context.get(), kHeapLimitKib);
}

SplitPattern::Walk::~Walk() = default;

// Finds the next match from search_from_ on. An empty match that touches the previous match is passed over, as the reference does.
bool SplitPattern::Walk::find_match() {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(subject_.data());
  const pcre2_code* regex = pattern_->code_->regex.get();
  pcre2_match_data* data = scratch_->data.get();
  pcre2_match_context* context = scratch_->context.get();
  while (search_from_ <= text_.size()) {
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (pattern_->code_->compiled_to_machine_code) rc = pcre2_jit_match(regex, subject, text_.size(), search_from_, 0, data, context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(regex, subject, text_.size(), search_from_, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) return false;
    if (rc < 0) {
      fail<InputError>("the tokenizer's split expression gave up at byte {} of the text: {}", search_from_, pcre2_message(rc));
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data);
    TETRAD_CHECK(range[0] >= cut_ && range[0] <= range[1] && range[1] <= text_.size(), "split match {}..{} after {}", range[0], range[1],
                 cut_);
    if (range[0] == range[1] && range[1] == last_match_end_) {
      search_from_ += search_from_ < text_.size() ? utf8_step(text_.substr(search_from_)).length : 1;
      continue;
    }
    match_begin_ = range[0];
    match_end_ = search_from_ = last_match_end_ = range[1];
    return true;
  }
  return false;
}

std::optional<std::string_view> SplitPattern::Walk::next() {
  while (cut_ < text_.size()) {
    std::size_t end = text_.size();
    if (in_match_) {
      in_match_ = false;
      end = match_end_;
    } else if (!exhausted_) {
      exhausted_ = !find_match();
      in_match_ = !exhausted_;
      if (in_match_) end = match_begin_;
    }
    if (end == cut_) continue;
    const std::string_view piece = text_.substr(cut_, end - cut_);
    cut_ = end;
    return piece;
  }
  return std::nullopt;
}

}  // namespace tetrad::text

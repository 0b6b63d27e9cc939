// Any text as a regular expression, alone and as the pattern of a string; what it makes reads without a crash.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "grammar/json_schema.h"
#include "grammar/matcher.h"
#include "grammar/regex.h"

namespace {

void attempt(std::string_view pattern, const tetrad::grammar::RegexUse& use) {
  using namespace tetrad::grammar;
  try {
    Builder builder;
    const Pc start = Regex::parse(pattern).emit(builder, use, builder.end());
    const GrammarPtr grammar = builder.finish(start);
    if (grammar->code.size() > kMaxInstructions) std::abort();
    Matcher matcher(grammar);
    for (const char c : std::string_view("aab01 -_\n<>\xC3\xA9\\\"zz")) matcher.accept(std::string_view(&c, 1));
  } catch (const GrammarError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view pattern(reinterpret_cast<const char*>(data), size);
  attempt(pattern, {});
  attempt(pattern, {.form = tetrad::grammar::TextForm::kJson, .search = true, .min_length = 2, .max_length = 40});
  attempt(pattern, {.search = true, .without_tags = true});
  return 0;
}

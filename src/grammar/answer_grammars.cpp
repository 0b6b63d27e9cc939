// Grammars of whole answers, and the formats of strings.
#include <utility>

#include "grammar/json_schema.h"
#include "grammar/regex.h"
#include "text/unicode.h"

namespace tetrad::grammar {
namespace {

constexpr std::size_t kMaxChoices = 10'000, kMaxChoiceBytes = std::size_t{1} << 20;

#define TETRAD_DATE                                                                                                                       \
  "(([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])))|([0-9]{2}(0[48]|[" \
  "2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
#define TETRAD_TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define TETRAD_LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
#define TETRAD_URI_CHAR "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"

}  // namespace

const char* format_pattern(std::string_view format) {
  static constexpr std::pair<std::string_view, const char*> kFormats[] = {
      {"date", TETRAD_DATE},
      {"time", TETRAD_TIME},
      {"date-time", TETRAD_DATE "T" TETRAD_TIME},
      {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
      {"ipv4", "((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"},
      {"hostname", TETRAD_LABEL "(\\." TETRAD_LABEL "){0,6}"},
      {"email", "[A-Za-z0-9_%+-]+(\\.[A-Za-z0-9_%+-]+)*@" TETRAD_LABEL "(\\." TETRAD_LABEL "){1,6}"},
      {"uri", "[A-Za-z][A-Za-z0-9+.-]*://" TETRAD_LABEL "(\\." TETRAD_LABEL "){0,6}(:[0-9]{1,5})?(/" TETRAD_URI_CHAR
              "*)*(\\?(" TETRAD_URI_CHAR "|[/?])*)?(#(" TETRAD_URI_CHAR "|[/?])*)?"},
  };
  for (const auto& [name, pattern] : kFormats)
    if (name == format) return pattern;
  return nullptr;
}

#undef TETRAD_DATE
#undef TETRAD_TIME
#undef TETRAD_LABEL
#undef TETRAD_URI_CHAR

GrammarPtr compile_json_schema(const Json& schema, const std::string& path) {
  Builder builder;
  SchemaCompiler compiler(builder, schema, path);
  try {
    return builder.finish(compiler.value(schema, path, builder.end()));
  } catch (const GrammarError& error) {
    const std::string_view what = error.what();
    if (what.starts_with(path)) throw;
    fail<GrammarError>("{}: {}", path, what);
  }
}

GrammarPtr compile_json_object() {
  Builder builder;
  const Pc start = builder.call(builder.any_object(), builder.end());
  return builder.finish(start);
}

GrammarPtr compile_regex(std::string_view pattern) {
  Builder builder;
  return builder.finish(Regex::parse(pattern).emit(builder, {}, builder.end()));
}

GrammarPtr compile_choice(const std::vector<std::string>& choices) {
  if (choices.empty()) fail<GrammarError>("at least one choice is needed");
  if (choices.size() > kMaxChoices) fail<GrammarError>("at most {} choices, got {}", kMaxChoices, choices.size());
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].empty()) fail<GrammarError>("choice {} is empty", i);
    if (text::find_invalid_utf8(choices[i]) != std::string::npos) fail<GrammarError>("choice {} is not valid UTF-8", i);
    bytes += choices[i].size();
  }
  if (bytes > kMaxChoiceBytes) fail<GrammarError>("choices of {} bytes; at most {} are allowed", bytes, kMaxChoiceBytes);
  Builder builder;
  return builder.finish(builder.one_of(choices, TextForm::kPlain, builder.end()));
}

}  // namespace tetrad::grammar

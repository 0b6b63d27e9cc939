// Any text as a JSON schema: a grammar within its limits that can be run, or a refusal.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "grammar/matcher.h"
#include "grammar/tool_calls.h"
#include "text/json_bounded.h"

namespace {

void run(const tetrad::grammar::GrammarPtr& grammar, std::string_view text) {
  if (grammar->code.size() > tetrad::grammar::kMaxInstructions) std::abort();
  tetrad::grammar::Matcher matcher(grammar);
  for (const char c : text.substr(0, 256)) {
    if (!matcher.accept(std::string_view(&c, 1))) break;
    // What can go on can be left.
    if (matcher.configurations().empty()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto schema = tetrad::parse_json_bounded(text, "schema", 64, tetrad::EqualKeys::kRefused);
    for (const char* answer : {"{\"a\":[1,\"x\"]}", "\"a\"", "12.5", "null", "[{\"a\":1}]"}) {
      try {
        run(tetrad::grammar::compile_json_schema(schema), answer);
      } catch (const tetrad::grammar::GrammarError&) {
        break;
      }
    }
    for (const bool strict : {false, true}) {
      try {
        run(tetrad::grammar::compile_required_calls({{"f", &schema, strict, "tools"}}, {}, true),
            "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n");
      } catch (const tetrad::grammar::GrammarError&) {
      }
    }
  } catch (const tetrad::InputError&) {
  }
  return 0;
}

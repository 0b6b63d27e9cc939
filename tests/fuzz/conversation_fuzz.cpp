// Any text as the JSON of a conversation: read, checked and rendered, or refused.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "text/chat_template.h"
#include "text/json_bounded.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const tetrad::ChatTemplate chat = tetrad::ChatTemplate::parse(
      "{% for m in messages %}{{ m.role }}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c|tojson }}{% for k, v in "
      "c.function.arguments|items %}"
      "{{ k }}{{ v|string|trim }}{% endfor %}{% endfor %}{% endfor %}{{ tools|tojson if tools }}",
      "fuzz");
  try {
    chat.render(
        tetrad::conversation_variables(tetrad::parse_json_bounded(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz")));
  } catch (const tetrad::InputError&) {
  }
  return 0;
}

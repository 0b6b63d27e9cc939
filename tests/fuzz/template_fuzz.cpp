// Any template, over a fixed conversation: parsed and rendered or refused, within small limits.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "text/jinja_evaluator.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const nlohmann::ordered_json variables = nlohmann::ordered_json::parse(
      R"({"messages": [{"role": "user", "content": "h\u00e9 <think>\nx</think>"}, {"role": "assistant", "content": null, "tool_calls":
          [{"function": {"name": "f", "arguments": {"a": [1, 2.5, null, true]}}}]}], "tools": [], "add_generation_prompt": true, "x": [3, 1, 2]})");
  tetrad::jinja::Limits limits;
  limits.steps = 100'000;
  limits.output_bytes = limits.string_bytes = 1 << 20;
  limits.live_bytes = 16 << 20;
  try {
    const auto source = tetrad::jinja::parse_template(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    tetrad::jinja::render(source, variables, limits);
  } catch (const tetrad::LoadError&) {
  } catch (const tetrad::InputError&) {
  }
  return 0;
}

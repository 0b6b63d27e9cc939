// Any text as the body of a request to each endpoint: a value, or a refusal that both error bodies can carry.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/anthropic_request.h"
#include "server/api_error.h"
#include "server/completion_request.h"
#include "server/responses_request.h"

namespace {

template <class Parse>
void attempt(Parse parse, std::string_view body) {
  static const tetrad::RequestContext context = [] {
    tetrad::RequestContext c;
    c.vocab_size = 4096;
    c.stop_ids = {7};
    return c;
  }();
  try {
    const auto request = parse(body, context);
    const auto& sampling = request.engine.generation.sampling;
    tetrad::validate(sampling, context.vocab_size);  // what was accepted, the engine accepts
  } catch (const tetrad::RequestError& error) {
    if (error.error().status != 400 || error.error().message.empty()) std::abort();
    tetrad::openai_error_body(error.error());
    tetrad::anthropic_error_body(error.error());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  attempt([](std::string_view text, const tetrad::RequestContext& c) { return tetrad::parse_chat_request(text, c); }, body);
  attempt(tetrad::parse_completion_request, body);
  attempt([](std::string_view text, const tetrad::RequestContext& c) { return tetrad::parse_responses_request(text, c).chat; }, body);
  attempt(tetrad::parse_anthropic_request, body);
  attempt(tetrad::parse_anthropic_count_request, body);
  return 0;
}

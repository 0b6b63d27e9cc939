#include "cli/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/terminal.h"

namespace tetrad::cli {
namespace {

// As a JSON string: control characters and pieces of code points stay on their line.
std::string quoted(const Tokenizer& tokenizer, int id) {
  return nlohmann::json(tokenizer.token_bytes(id)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string stats_line(const GenerationResult& result) {
  const GenerationTimings& timings = result.timings;
  const std::string cached = timings.cached_tokens > 0 ? fmt::format(" ({} more were in the state)", timings.cached_tokens) : "";
  return fmt::format(
      "prompt {} tokens{} in {:.3f} s ({:.0f} tokens/s), first token after {:.3f} s, answer {} tokens, {} steps in {:.3f} s ({:.0f} "
      "tokens/s), end: {}",
      timings.prefill_tokens, cached, timings.prefill_seconds, timings.prefill_rate(), timings.first_token_seconds, result.ids.size(),
      timings.decode_steps, timings.decode_seconds, timings.decode_rate(), finish_reason_name(result.finish));
}

void print_stats(const GenerationResult& result) { say("{}\n", stats_line(result)); }

void print_logprobs(const GenerationResult& result, const Tokenizer& tokenizer) {
  for (const SampledToken& token : result.tokens) {
    std::string line = fmt::format("logprob {} {} {:.6f}", token.id, quoted(tokenizer, token.id), token.logprob->logprob);
    for (const TokenLogprob& top : token.top) line += fmt::format("  {} {} {:.6f}", top.id, quoted(tokenizer, top.id), top.logprob);
    say("{}\n", line);
  }
}

}  // namespace tetrad::cli

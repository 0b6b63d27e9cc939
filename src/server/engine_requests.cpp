#include "server/engine_requests.h"

#include <fmt/format.h>

#include <span>
#include <utility>

namespace tetrad {
namespace {

// Log probabilities of prompts in one answer, which grows by 40 bytes each.
constexpr std::int64_t kMaxPromptScores = std::int64_t{1} << 21;

// The answer holds all of them at once.
void check_prompt_scores(std::span<const EngineRequest> requests) {
  std::int64_t scores = 0;
  for (const EngineRequest& request : requests)
    scores +=
        static_cast<std::int64_t>(request.generation.prompt_ids.size()) * (request.generation.prompt_logprobs + 1) * request.num_choices;
  if (scores > kMaxPromptScores)
    refuse(
        "prompt_logprobs",
        "prompt_logprobs: {} log probabilities of prompts were asked for, {} are computed at most: send fewer prompts at a time or ask for "
        "fewer of the best",
        scores, kMaxPromptScores);
}

}  // namespace

ChatWork chat_work(const Service& service, const ChatRequest& chat, ApiShape shape, ReplayCount count) {
  ChatWork work{.engine = chat.engine, .prompt = chat_prompt(service, chat, count)};
  GenerationRequest& generation = work.engine.generation;
  generation.prompt_ids = std::move(work.prompt.ids);
  if (auto constraint = answer_constraint(service, chat, work.prompt.in_reasoning); constraint != nullptr && !generation.prompt_only) {
    work.is_bound = true;
    generation.constraints.push_back(std::move(constraint));
  }
  if (const auto budget = thinking_budget(service, chat, work.prompt.in_reasoning)) generation.constraints.push_back(budget);
  generation.max_length = service.context_tokens;
  work.engine.take_what_fits = shape == ApiShape::kAnthropic;
  if (work.engine.take_what_fits)
    check_context_anthropic(static_cast<int>(generation.prompt_ids.size()), service.context_tokens);
  else
    check_context(work.engine, service.context_tokens, chat.prompt_field);
  check_prompt_scores(std::span(&work.engine, 1));
  return work;
}

std::vector<EngineRequest> completion_work(const Service& service, const CompletionRequest& completion) {
  std::vector<EngineRequest> requests;
  const auto constraint = service.grammars->constraint(completion.form, {}, CallRule::kFree);
  for (std::size_t i = 0; i < completion.prompts.size(); ++i) {
    const std::string field = completion.prompts.size() == 1 ? "prompt" : fmt::format("prompt[{}]", i);
    EngineRequest engine = completion.engine;
    if (constraint != nullptr && !engine.generation.prompt_only) engine.generation.constraints.push_back(constraint);
    engine.generation.max_length = service.context_tokens;
    const auto* text = std::get_if<std::string>(&completion.prompts[i]);
    engine.generation.prompt_ids = text != nullptr ? service.encode(*text, field) : std::get<std::vector<int>>(completion.prompts[i]);
    if (engine.generation.prompt_ids.empty()) refuse(field, "{}: at least one token is needed, got an empty prompt", field);
    check_context(engine, service.context_tokens, field);
    requests.push_back(std::move(engine));
  }
  check_prompt_scores(requests);
  return requests;
}

}  // namespace tetrad

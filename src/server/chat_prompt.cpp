#include "server/chat_prompt.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace tetrad {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kThinkTag = "<think>", kEndThinkTag = "</think>";
// Stands where the last message ends, so that the place is found in the rendered text: characters of private use.
constexpr std::string_view kHere = "\xEE\x80\x80\xEF\xA3\xBF\xEE\x80\x80";

std::string render_to_last_message(const Service& service, const ChatRequest& chat) {
  Json variables = chat.variables;
  Json& content = variables["messages"].back()["content"];
  content = content.get<std::string>() + std::string(kHere);
  std::string prompt = service.chat_template->render(variables);
  const std::size_t here = prompt.rfind(kHere);
  if (here == std::string::npos)
    refuse("messages", "messages: the chat template does not show the last message, so it cannot be continued");
  prompt.resize(here);
  return prompt;
}

// Whether the message that the prompt ends in has begun to think and not ended it.
bool message_thinks(std::string_view prompt) {
  const std::size_t start = prompt.rfind("<|im_start|>");
  const std::string_view message = start == std::string_view::npos ? prompt : prompt.substr(start);
  const std::size_t opened = message.rfind(kThinkTag), closed = message.rfind(kEndThinkTag);
  return opened != std::string_view::npos && (closed == std::string_view::npos || closed < opened);
}

}  // namespace

ChatPrompt chat_prompt(const Service& service, const ChatRequest& chat, ReplayCount count) {
  ChatPrompt prompt;
  if (chat.continues_last) {
    prompt.text = render_to_last_message(service, chat);
    prompt.in_reasoning = message_thinks(prompt.text);
    prompt.ids = service.encode(prompt.text, chat.prompt_field);
    return prompt;
  }
  ReplayPrompt replayed = replay_prompt(service, chat, count);
  return {.text = std::move(replayed.text),
          .ids = std::move(replayed.ids),
          .in_reasoning = replayed.opens_reasoning,
          .digest = replayed.digest};
}

std::shared_ptr<const TokenConstraint> thinking_budget(const Service& service, const ChatRequest& chat, bool in_reasoning) {
  const int budget = chat.thinking_budget.value_or(service.settings.reasoning_budget);
  if (budget < 0) return nullptr;
  if (!service.thinking)
    refuse("thinking_token_budget", "thinking_token_budget: not supported: this model's tokenizer has no tokens for {} and {}", kThinkTag,
           kEndThinkTag);
  return std::make_shared<ThinkingBudget>(ThinkingBudget::Options{.start_id = service.thinking->start_id,
                                                                  .end_id = service.thinking->end_id,
                                                                  .inside = in_reasoning,
                                                                  .budget = budget,
                                                                  .end_phrase = service.thinking->end_phrase});
}

std::shared_ptr<const TokenConstraint> answer_constraint(const Service& service, const ChatRequest& chat, bool in_reasoning) {
  const bool named = chat.tool_choice == ToolChoice::kNamed;
  std::vector<BoundTool> tools;
  for (const OfferedTool& tool : chat.tools.tools())
    if (!named || tool.name == chat.named_tool) tools.push_back({tool.name, tool.schema, tool.strict, tool.path});
  CallRule rule = CallRule::kFree;
  if (named || chat.tool_choice == ToolChoice::kRequired) rule = chat.max_tool_calls == 1 ? CallRule::kOne : CallRule::kSeveral;
  auto constraint = service.grammars->constraint(chat.form, tools, rule);
  if (constraint == nullptr || !in_reasoning) return constraint;
  if (!service.thinking)
    refuse("enable_thinking", "enable_thinking: not together with an answer in a given form: this model's tokenizer has no token for {}",
           kEndThinkTag);
  // Behind the tag comes what the template puts there, as in the phrase that ends a budget.
  const std::vector<int>& phrase = service.thinking->end_phrase;
  const auto end = std::find(phrase.begin(), phrase.end(), service.thinking->end_id);
  return std::make_shared<AfterThinking>(std::move(constraint), service.thinking->end_id, std::vector<int>(end + 1, phrase.end()));
}

}  // namespace tetrad

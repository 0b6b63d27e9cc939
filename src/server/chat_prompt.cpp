#include "server/chat_prompt.h"

#include <string_view>

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

ChatPrompt chat_prompt(const Service& service, const ChatRequest& chat) {
  ChatPrompt prompt;
  if (chat.continues_last) {
    prompt.text = render_to_last_message(service, chat);
    prompt.in_reasoning = message_thinks(prompt.text);
  } else {
    prompt.text = service.chat_template->render(chat.variables);
    prompt.in_reasoning = prompt_opens_reasoning(prompt.text) && chat.answer_prefix.empty();
  }
  prompt.text += chat.answer_prefix;
  prompt.ids = service.encode(prompt.text);
  return prompt;
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

}  // namespace tetrad

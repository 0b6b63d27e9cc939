#include "cli/chat_session.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "cli/text_input.h"

namespace tetrad::cli {
namespace {

constexpr std::string_view kThinkOpen = "<think>", kThinkClose = "</think>", kSpace = " \t\r\n";

std::string trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin));
}

}  // namespace

SplitAnswer split_answer(const std::string& text, bool starts_thinking) {
  const std::string_view view = text;
  std::size_t begin = 0;
  if (!starts_thinking) {
    const std::size_t open = std::min(view.find_first_not_of(kSpace), view.size());
    if (!view.substr(open).starts_with(kThinkOpen)) return {{}, trimmed(view)};
    begin = open + kThinkOpen.size();
  }
  const std::size_t close = view.find(kThinkClose, begin);
  if (close == std::string_view::npos) return {trimmed(view.substr(begin)), {}};
  return {trimmed(view.substr(begin, close - begin)), trimmed(view.substr(close + kThinkClose.size()))};
}

ChatSession::ChatSession(StatePool& pool, const Tokenizer& tokenizer, const ChatTemplate& chat_template, GenerationRequest request,
                         TemplateOptions options)
    : tokenizer_(&tokenizer),
      template_(&chat_template),
      generator_(pool, tokenizer),
      conversation_(pool),
      request_(std::move(request)),
      options_(std::move(options)) {}

void ChatSession::set_system(const std::string& text) {
  system_ = text;
  reset();
}

void ChatSession::reset() {
  messages_.clear();
  if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
  conversation_.clear();
}

std::vector<int> ChatSession::render(bool with_generation_prompt) {
  nlohmann::ordered_json variables = template_variables({{"messages", messages_}}, options_);
  variables["add_generation_prompt"] = with_generation_prompt;
  const std::string text = template_->render(variables);
  if (with_generation_prompt) {
    const std::size_t end = text.find_last_not_of(kSpace);
    starts_thinking_ = end != std::string::npos && std::string_view(text).substr(0, end + 1).ends_with(kThinkOpen);
  }
  return tokenizer_->encode(text);
}

GenerationResult ChatSession::answer(const Generator::OnToken& on_token, const Generator::IsCancelled& is_cancelled) {
  request_.prompt_ids = render(true);
  const std::vector<int>& prompt = request_.prompt_ids;
  SequenceState& state = conversation_.state();
  const int reused = conversation_.align(prompt);

  // The end of the question is where the next prompt departs, if the template rewrites answers: keep that point.
  const std::vector<int> question = render(false);
  const bool is_prefix = question.size() < prompt.size() && std::equal(question.begin(), question.end(), prompt.begin());
  const bool fits = request_.max_length <= 0 || static_cast<int>(prompt.size()) < request_.max_length;
  if (is_prefix && fits && static_cast<int>(question.size()) > reused) {
    const bool done = generator_.prefill(state, std::span(question).subspan(static_cast<std::size_t>(reused)), is_cancelled);
    conversation_.record(prompt);
    if (done) conversation_.save();
  }
  GenerationResult result = generator_.generate(state, request_, on_token, is_cancelled);
  result.timings.prefill_tokens += result.timings.cached_tokens - reused;
  result.timings.cached_tokens = reused;
  std::vector<int> tokens = prompt;
  tokens.insert(tokens.end(), result.ids.begin(), result.ids.end());
  conversation_.record(tokens);
  return result;
}

GenerationResult ChatSession::ask(const std::string& question, const Generator::OnToken& on_token,
                                  const Generator::IsCancelled& is_cancelled) {
  const nlohmann::ordered_json before = messages_;
  messages_.push_back({{"role", "user"}, {"content", question}});
  try {
    GenerationResult result = answer(on_token, is_cancelled);
    if (result.ids.empty()) {
      messages_ = before;
      return result;
    }
    const SplitAnswer split = split_answer(result.text, starts_thinking_);
    nlohmann::ordered_json message{{"role", "assistant"}, {"content", split.content}};
    if (!split.thinking.empty()) message["reasoning_content"] = split.thinking;
    messages_.push_back(std::move(message));
    return result;
  } catch (...) {
    messages_ = before;
    throw;
  }
}

}  // namespace tetrad::cli

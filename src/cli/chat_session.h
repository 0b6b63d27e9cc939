#pragma once
// A conversation: messages, the state that stands for them, and the answer to the next one. Knows nothing of terminals.
#include <functional>
#include <string>

#include <nlohmann/json.hpp>

#include "cli/options.h"
#include "engine/conversation_state.h"
#include "engine/generator.h"
#include "text/chat_template.h"

namespace tetrad::cli {

// What an answer says, taken apart: the thinking before the closing tag, and the rest.
struct SplitAnswer {
  std::string thinking, content;
};
SplitAnswer split_answer(const std::string& text, bool starts_thinking);

class ChatSession {
 public:
  ChatSession(StatePool& pool, const Tokenizer& tokenizer, const ChatTemplate& chat_template, GenerationRequest request,
              TemplateOptions options);

  void set_system(const std::string& text);  // starts over
  void reset();                              // keeps the system message
  // Whether the answer to come begins inside a thinking block; valid within ask()'s callbacks.
  bool starts_thinking() const { return starts_thinking_; }

  // Adds the question, streams the answer and adds it too. If it throws, or is cancelled before the first token, the question is taken
  // back. A cancelled answer stays as far as it came.
  GenerationResult ask(const std::string& question, const Generator::OnToken& on_token, const Generator::IsCancelled& is_cancelled);

  const nlohmann::ordered_json& messages() const { return messages_; }

 private:
  std::vector<int> render(bool with_generation_prompt);
  GenerationResult answer(const Generator::OnToken& on_token, const Generator::IsCancelled& is_cancelled);

  const Tokenizer* tokenizer_;
  const ChatTemplate* template_;
  Generator generator_;
  ConversationState conversation_;
  GenerationRequest request_;
  TemplateOptions options_;
  std::string system_;
  nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();
  bool starts_thinking_ = false;
};

}  // namespace tetrad::cli

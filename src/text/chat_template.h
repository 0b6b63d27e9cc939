#pragma once
// Chat templates: the Jinja subset that checkpoints of this line use (docs/chat-template.md lists it). Parsed once, rendered per request.
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace tetrad {

// What the template itself raised (raise_exception), or a failure while rendering; the message is the template's own words.
class TemplateError : public InputError {
 public:
  using InputError::InputError;
};

class ChatTemplate {
 public:
  // Throws LoadError with line and construct for a syntax error or anything outside the subset.
  static ChatTemplate parse(std::string_view source, std::string_view where);
  // chat_template.jinja of the directory, else "chat_template" of tokenizer_config.json; LoadError if there is neither.
  static ChatTemplate load(const std::filesystem::path& model_directory);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // `variables` is an object: messages, tools, add_generation_prompt, enable_thinking, ... Key order is kept to the output.
  std::string render(const nlohmann::ordered_json& variables) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A conversation as given by a file or a request: {"messages": [...], "tools": [...], "flags": {...}}. Checks the shape (InputError names
// the path, e.g. "messages[2].content"), parses tool-call arguments that are JSON strings into objects, and yields render()'s variables.
nlohmann::ordered_json conversation_variables(const nlohmann::ordered_json& conversation);

}  // namespace tetrad

#include "text/chat_template.h"

#include <fstream>
#include <sstream>

#include "text/jinja_evaluator.h"
#include "text/json_bounded.h"

namespace tetrad {

namespace {

constexpr std::uintmax_t kMaxTemplateBytes = 64u << 20;

std::string read_file(const std::filesystem::path& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) fail<LoadError>("{}: cannot be read: {}", path.string(), error.message());
  if (size > kMaxTemplateBytes) fail<LoadError>("{}: {} bytes, at most {} are read", path.string(), size, kMaxTemplateBytes);
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) fail<LoadError>("{}: cannot be read", path.string());
  return std::move(text).str();
}

}  // namespace

struct ChatTemplate::Impl {
  jinja::Template source;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

ChatTemplate ChatTemplate::parse(std::string_view source, std::string_view where) {
  auto impl = std::make_unique<Impl>();
  impl->source = jinja::parse_template(source, where);
  return ChatTemplate(std::move(impl));
}

ChatTemplate ChatTemplate::load(const std::filesystem::path& model_directory) {
  const auto file = model_directory / "chat_template.jinja";
  // A link to nothing is there, and reading it says what is wrong.
  const auto there = [](const std::filesystem::path& path) {
    std::error_code error;
    return std::filesystem::exists(std::filesystem::symlink_status(path, error));
  };
  if (there(file)) return parse(read_file(file), file.string());
  const auto config = model_directory / "tokenizer_config.json";
  if (!there(config)) {
    fail<LoadError>("{}: no chat template: neither chat_template.jinja nor tokenizer_config.json is there", model_directory.string());
  }
  nlohmann::ordered_json json;
  try {
    json = parse_json_bounded(read_file(config), config.string());
  } catch (const InputError& error) {
    throw LoadError(error.what());
  }
  const auto found = json.is_object() ? json.find("chat_template") : json.end();
  if (found == json.end() || !found->is_string()) {
    fail<LoadError>("{}: no chat template: the directory has no chat_template.jinja, and this file no string \"chat_template\"",
                    config.string());
  }
  return parse(found->get_ref<const std::string&>(), config.string() + ":chat_template");
}

std::string ChatTemplate::render(const nlohmann::ordered_json& variables) const { return jinja::render(impl_->source, variables); }

}  // namespace tetrad

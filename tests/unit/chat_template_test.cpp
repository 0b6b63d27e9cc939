// The chat template of tetrad-tiny against the renderings of the reference, and loading.
#include "text/chat_template.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "text/json_bounded.h"

namespace tetrad::chat_template_test {
namespace {

namespace fs = std::filesystem;

const fs::path kTiny = fs::path(TETRAD_MODELS) / "tetrad-tiny";

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

nlohmann::ordered_json read_json(const fs::path& path) { return parse_json_bounded(read(path), path.string()); }

nlohmann::ordered_json conversation_of(const nlohmann::ordered_json& example, bool prompt) {
  nlohmann::ordered_json conversation = {{"messages", example["messages"]}, {"tools", example["tools"]}, {"flags", example["flags"]}};
  if (prompt) conversation["flags"]["add_generation_prompt"] = true;
  return conversation;
}

// A directory that is removed with the test.
class ChatTemplateLoad : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() /
                 ("tetrad-template-" + std::to_string(::getpid()) + "-" + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(directory_ / name, std::ios::binary) << text; }
  std::string load_error() const {
    try {
      ChatTemplate::load(directory_);
    } catch (const LoadError& error) {
      return error.what();
    }
    return "loaded";
  }
  fs::path directory_;
};

TEST(ChatTemplateGolden, RendersTheConversationsOfTheReference) {
  const ChatTemplate chat = ChatTemplate::load(kTiny);
  const auto examples = read_json(kTiny / "golden-template.json");
  ASSERT_EQ(examples.size(), 10u);
  for (std::size_t i = 0; i < examples.size(); ++i) {
    EXPECT_EQ(chat.render(conversation_variables(conversation_of(examples[i], false))), examples[i]["rendered"].get<std::string>()) << i;
  }
}

TEST(ChatTemplateGolden, RendersThePromptsOfTheReference) {
  const ChatTemplate chat = ChatTemplate::load(kTiny);
  const auto examples = read_json(kTiny / "golden-generate.json")["cases"];
  ASSERT_EQ(examples.size(), 14u);
  for (std::size_t i = 0; i < examples.size(); ++i) {
    EXPECT_EQ(chat.render(conversation_variables(conversation_of(examples[i], true))), examples[i]["prompt"].get<std::string>()) << i;
  }
}

std::string tiny_error(const char* conversation) {
  try {
    return ChatTemplate::load(kTiny).render(conversation_variables(parse_json_bounded(conversation, "test")));
  } catch (const TemplateError& error) {
    return error.what();
  }
}

TEST(ChatTemplateGolden, RaisesInTheTemplatesOwnWords) {
  EXPECT_EQ(tiny_error(R"({"messages": []})"), "There are no messages.");
  EXPECT_EQ(tiny_error(R"({"messages": [{"role": "assistant", "content": "a"}]})"), "No message of a user asks anything.");
  EXPECT_EQ(tiny_error(R"({"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]})"),
            "A system message can only come first.");
  EXPECT_EQ(tiny_error(R"({"messages": [{"role": "user", "content": "a"}, {"role": "developer", "content": "b"}]})"),
            "Unknown role developer.");
  EXPECT_EQ(tiny_error(R"({"messages": [{"role": "user", "content": "a"}], "flags": {"reasoning_effort": "high"}})"),
            "Unknown reasoning effort high: xhigh, medium or low.");
  EXPECT_EQ(tiny_error(R"({"messages": [{"role": "user", "content": "a"}], "flags": {"reasoning_effort": null}})"),
            "Unknown reasoning effort None: xhigh, medium or low.");
}

TEST(ChatTemplateGolden, ArgumentsGivenAsTextRenderAsObjects) {
  const auto call = [](const std::string& arguments) {
    return tiny_error(
        (R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": )" +
         arguments + "}}]}]}")
            .c_str());
  };
  const std::string object = call(R"({"a": "x\ny", "n": 1, "l": [true, null, 1.5]})");
  EXPECT_NE(object.find("<parameter=a>\nx\ny\n</parameter>\n<parameter=n>\n1\n</parameter>\n<parameter=l>\n[true, null, 1.5]\n"),
            std::string::npos)
      << object;
  EXPECT_EQ(call(R"("{\"a\": \"x\\ny\", \"n\": 1, \"l\": [true, null, 1.5]}")"), object);
  EXPECT_EQ(call(R"("")"), call("{}"));
  EXPECT_EQ(call(R"("{}")"), call("{}"));
  EXPECT_EQ(call("null"), call("{}"));
}

TEST_F(ChatTemplateLoad, PrefersTheFileOverTheConfiguration) {
  write("tokenizer_config.json", R"({"chat_template": "from {{ 'config' }}"})");
  EXPECT_EQ(ChatTemplate::load(directory_).render(nlohmann::ordered_json::object()), "from config");
  write("chat_template.jinja", "from file\n");
  EXPECT_EQ(ChatTemplate::load(directory_).render(nlohmann::ordered_json::object()), "from file");
}

TEST_F(ChatTemplateLoad, NamesWhatIsMissing) {
  EXPECT_NE(load_error().find("no chat template"), std::string::npos);
  write("tokenizer_config.json", R"({"chat_template": [1]})");
  EXPECT_NE(load_error().find("tokenizer_config.json: no chat template"), std::string::npos);
  write("tokenizer_config.json", "{");
  EXPECT_NE(load_error().find("not valid JSON"), std::string::npos);
}

TEST_F(ChatTemplateLoad, NamesFileLineAndConstruct) {
  write("chat_template.jinja", "one\n{{ x | urlencode }}");
  EXPECT_NE(load_error().find("chat_template.jinja:2: construct 'filter urlencode' is not supported"), std::string::npos) << load_error();
}

TEST(ChatTemplateRender, VariablesMustBeAnObject) {
  EXPECT_THROW(ChatTemplate::parse("x", "t").render(nlohmann::ordered_json::array()), InputError);
}

}  // namespace
}  // namespace tetrad::chat_template_test

// Chunks written without a document are those that a document gives.
#include "server/chunk_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tetrad::chunk_text_test {
namespace {

TEST(chunk_text, strings_as_the_library_writes_them) {
  std::string all;
  for (int c = 0; c < 128; ++c) all += static_cast<char>(c);
  for (const std::string& text : {std::string(), all, std::string("caf\u00e9 \u20ac \U0001f600 \u2028 </script>"), std::string("\\\"\n")}) {
    std::string out;
    append_json_string(out, text);
    EXPECT_EQ(out, nlohmann::json(text).dump());
  }
}

TEST(chunk_text, chunks_as_the_library_writes_them) {
  for (const bool null_usage : {false, true}) {
    const ChunkText chunks("chatcmpl-1", "chat.completion.chunk", 1700000000, "a \"model\"", null_usage);
    for (const bool both : {false, true}) {
      nlohmann::ordered_json delta = {{"reasoning_content", "so \\ it\tis"}};
      if (both) delta["reasoning"] = "so \\ it\tis";
      const nlohmann::ordered_json choice = {{"index", 7}, {"delta", delta}, {"finish_reason", nullptr}};
      nlohmann::ordered_json json = {{"id", "chatcmpl-1"}, {"object", "chat.completion.chunk"}, {"created", 1700000000}};
      json["model"] = "a \"model\"";
      json["choices"] = nlohmann::ordered_json::array({choice});
      if (null_usage) json["usage"] = nullptr;
      EXPECT_EQ(chunks.delta(7, "so \\ it\tis", "reasoning_content", both ? "reasoning" : ""), json.dump());
    }
  }
}

}  // namespace
}  // namespace tetrad::chunk_text_test

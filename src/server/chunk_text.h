#pragma once
// The JSON of a chunk that brings a piece of text and nothing else, written without a document: most chunks of most streams are such.
#include <cstdint>
#include <string>
#include <string_view>

namespace tetrad {

void append_json_string(std::string& out, std::string_view text);  // with its quotes; text is UTF-8

class ChunkText {
 public:
  // object: "chat.completion.chunk"; null_usage: chunks say "usage":null.
  ChunkText(const std::string& id, std::string_view object, std::int64_t created, const std::string& model, bool null_usage);

  // {...,"choices":[{"index":N,"delta":{"FIELD":"TEXT"},"finish_reason":null}]}; with a second field of the same text if it is not empty.
  std::string delta(int index, std::string_view text, std::string_view field, std::string_view second_field = {}) const;

 private:
  std::string head_, tail_;
};

}  // namespace tetrad

#include "server/chunk_text.h"

#include <fmt/format.h>

#include <iterator>

namespace tetrad {
namespace {

// What stands for a byte that a JSON string cannot hold; 0: it stands for itself.
char short_escape(char c) {
  switch (c) {
    case '"': return '"';
    case '\\': return '\\';
    case '\b': return 'b';
    case '\f': return 'f';
    case '\n': return 'n';
    case '\r': return 'r';
    case '\t': return 't';
    default: return 0;
  }
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (const char escape = short_escape(c); escape != 0) {
      out += '\\';
      out += escape;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

ChunkText::ChunkText(const std::string& id, std::string_view object, std::int64_t created, const std::string& model, bool null_usage) {
  head_ = "{\"id\":";
  append_json_string(head_, id);
  head_ += ",\"object\":";
  append_json_string(head_, object);
  fmt::format_to(std::back_inserter(head_), ",\"created\":{},\"model\":", created);
  append_json_string(head_, model);
  head_ += ",\"choices\":[{\"index\":";
  tail_ = null_usage ? "},\"finish_reason\":null}],\"usage\":null}" : "},\"finish_reason\":null}]}";
}

std::string ChunkText::delta(int index, std::string_view text, std::string_view field, std::string_view second_field) const {
  std::string out;
  out.reserve(head_.size() + tail_.size() + 2 * text.size() + 80);
  out += head_;
  fmt::format_to(std::back_inserter(out), "{},\"delta\":{{\"{}\":", index, field);
  append_json_string(out, text);
  if (!second_field.empty()) {
    fmt::format_to(std::back_inserter(out), ",\"{}\":", second_field);
    append_json_string(out, text);
  }
  out += tail_;
  return out;
}

}  // namespace tetrad

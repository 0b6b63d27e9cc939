#pragma once
// The functions a request offers to the model, and how an argument's text becomes JSON by the function's schema.
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace tetrad {

inline constexpr std::size_t kMaxTools = 1024;
inline constexpr std::size_t kMaxToolName = 256;  // bytes

// How the text of a parameter is written as JSON.
struct ParameterKind {
  bool text = true;      // a string is allowed
  bool other = false;    // so is something else: the text is read as JSON where it is JSON
  bool boolean = false;  // True and False are read too
  bool null = false;     // None is read too
  bool integer_or_number = false;

  bool only_text() const { return text && !other; }
};

struct OfferedTool {
  std::string name;
  std::map<std::string, ParameterKind, std::less<>> parameters;  // of its schema's properties; one that is missing here is text

  // `schema` is the JSON schema of the arguments, null if there is none. Understands type (one or a list), enum, const, anyOf, oneOf,
  // allOf, nullable and local $ref; whatever says nothing about the type allows every type. Bounded: cyclic or deep schemas allow every
  // type.
  static OfferedTool from_schema(std::string name, const nlohmann::ordered_json& schema);
};

class ToolSet {
 public:
  void add(OfferedTool tool) { tools_.push_back(std::move(tool)); }
  const OfferedTool* find(std::string_view name) const;
  bool has_name_starting(std::string_view prefix) const;  // a proper or improper prefix of some name
  bool empty() const { return tools_.empty(); }
  std::size_t size() const { return tools_.size(); }
  const std::vector<OfferedTool>& tools() const { return tools_; }

 private:
  std::vector<OfferedTool> tools_;
};

// JSON of an argument. Text that is not JSON, or not of a kind that is allowed where a string is, becomes a JSON string: nothing is lost.
std::string argument_json(std::string_view text, const ParameterKind& kind);
// Text inside a JSON string, without the quotes. Bytes from 0x80 on are left as they are.
void append_json_escaped(std::string& out, std::string_view text);

}  // namespace tetrad

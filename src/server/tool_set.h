#pragma once
// The functions a request offers to the model, and how an argument's text becomes JSON by the function's schema.
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace tetrad {

inline constexpr std::size_t kMaxTools = 1024;
inline constexpr std::size_t kMaxToolName = 256;         // bytes
inline constexpr std::size_t kMaxToolParameters = 4096;  // of one function

// Sets of JSON types.
using JsonTypes = unsigned;
inline constexpr JsonTypes kStringType = 1, kIntegerType = 2, kNumberType = 4, kBooleanType = 8, kNullType = 16, kArrayType = 32,
                           kObjectType = 64, kAnyType = 127;  // a whole number is of both number types

struct OfferedTool {
  std::string name;
  std::map<std::string, JsonTypes, std::less<>> parameters;  // of its schema's properties
  JsonTypes other_parameters = kStringType;                  // of a parameter that is not among them
  std::shared_ptr<const nlohmann::ordered_json> schema;      // of the arguments; null: none was given
  bool strict = false;                                       // the arguments keep to the schema, or the request is refused
  std::string path;                                          // of the schema in the request

  JsonTypes types_of(std::string_view parameter) const;

  // `schema` is the JSON schema of the arguments, null if there is none. Understands type (one or a list), enum, const, anyOf, oneOf,
  // allOf, nullable, additionalProperties and local $ref; a property that says nothing about its type allows every type, and so does one
  // whose schema takes too long to follow (cycles, nested unions). Throws RequestError for more than kMaxToolParameters properties.
  static OfferedTool from_schema(std::string name, const nlohmann::ordered_json& schema, const std::string& path);
};

class ToolSet {
 public:
  void add(OfferedTool tool) { tools_.push_back(std::move(tool)); }
  const OfferedTool* find(std::string_view name) const;
  bool has_name_starting(std::string_view prefix) const;  // whole names count too
  bool empty() const { return tools_.empty(); }
  const std::vector<OfferedTool>& tools() const { return tools_; }

 private:
  std::vector<OfferedTool> tools_;
};

// JSON of an argument whose schema allows `types`. The text as it is, if it is JSON; a JSON string of the text if it is not, or if a string
// is allowed and what the text would be is not: nothing is lost. True, False and None are understood where true and null are allowed.
std::string argument_json(std::string_view text, JsonTypes types);
// Text inside a JSON string, without the quotes. Bytes from 0x80 on are left as they are.
void append_json_escaped(std::string& out, std::string_view text);

}  // namespace tetrad

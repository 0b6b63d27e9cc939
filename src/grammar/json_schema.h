#pragma once
// From JSON schemas to grammars (docs/structured-output.md has what is supported, and in which form values are written).
//
// What is written is valid by the schema; not all that is valid can be written: properties come in the order of the schema, white space is
// bounded. A keyword that cannot be kept is refused by its name and place.
#include <map>
#include <string>
#include <string_view>

#include "grammar/builder.h"
#include "grammar/decimal.h"
#include "grammar/schema_document.h"

namespace tetrad::grammar {

inline constexpr std::size_t kMaxSchemaBytes = std::size_t{1} << 20;  // as text
inline constexpr std::size_t kMaxEnumValues = 10'000;
inline constexpr std::size_t kMaxAlternatives = 256;  // of anyOf and oneOf

// Sets of JSON types.
enum SchemaType : unsigned {
  kNullBit = 1,
  kBooleanBit = 2,
  kIntegerBit = 4,
  kNumberBit = 8,
  kStringBit = 16,
  kArrayBit = 32,
  kObjectBit = 64,
  kAllTypes = 127
};

class SchemaCompiler {
 public:
  // `root` is what references start from; it outlives this. Messages name places below `path`.
  SchemaCompiler(Builder& builder, const Json& root, std::string path) : builder_(&builder), document_(root), root_path_(std::move(path)) {}

  // Code for a value of the schema. Throws GrammarError; what was compiled before stays usable.
  Pc value(const Json& schema, const std::string& path, Pc next);

  SchemaDocument& document() { return document_; }
  // What the schema, flat, allows; for one that states no type, what its keywords speak of.
  unsigned types_of(const Json& flat_schema, const std::string& path);
  // Strings of a flat schema, without quotes in plain form: enum and const included, anyOf and oneOf not. In plain form the text of a
  // parameter follows, up to its end tag.
  Pc string_content(const Json& schema, const std::string& path, TextForm form, Pc next);
  // A flat schema's alternatives, each with what stands beside them; empty if it has none.
  std::vector<const Json*> alternatives(const Json& schema, const std::string& path);

 private:
  struct Waiting {
    int rule;
    const Json* schema;
    std::string path;
  };

  int rule_of(const Json& schema, const std::string& path);
  void define_waiting();
  Pc define_value(const Json& schema, const std::string& path);
  Pc literal_values(const Json& schema, const std::string& path, Pc next);
  Pc literal(const Json& value, Pc next, int depth);
  Pc object(const Json& schema, const std::string& path, Pc next);
  Pc array(const Json& schema, const std::string& path, Pc next);
  Pc number(const Json& schema, const std::string& path, bool whole, Pc next);
  Pc other_key(const std::vector<std::string>& names, Pc next);
  void check_disjoint(const std::vector<const Json*>& ways, const std::string& path);
  bool disjoint(const Json& a, const Json& b, const std::string& path, int depth);

  Builder* builder_;
  SchemaDocument document_;
  std::string root_path_;
  std::map<const Json*, int> rules_;  // by flat schema
  std::vector<Waiting> waiting_;
};

// The values that enum and const leave, null if the schema has neither. Throws for what stands beside them and is no type.
std::optional<std::vector<Json>> listed_values(const Json& schema, unsigned types, const std::string& path);
unsigned type_bit(const Json& value);
// A whole number of the schema, at least 0; `fallback` if it is absent.
std::uint32_t count_of(const Json& schema, const char* keyword, std::uint32_t fallback, const std::string& path);
// The expression of a format, null for one that is not supported.
const char* format_pattern(std::string_view format);

// Grammars of whole answers. Texts are checked against their limits.
GrammarPtr compile_json_schema(const Json& schema, const std::string& path = "schema");
GrammarPtr compile_json_object();
GrammarPtr compile_regex(std::string_view pattern);
GrammarPtr compile_choice(const std::vector<std::string>& choices);

}  // namespace tetrad::grammar

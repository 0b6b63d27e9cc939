#pragma once
// A JSON schema with its references and combinations: looks up $ref, and makes one schema of several that must hold together.
#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "grammar/grammar.h"

namespace tetrad::grammar {

using Json = nlohmann::ordered_json;

enum class KeywordUse {
  kSupported,
  kAnnotation,  // says nothing about what is valid
  kRefused,
};
struct Keyword {
  std::string_view name;
  KeywordUse use;
};
std::span<const Keyword> schema_keywords();
// Throws GrammarError with the path for a keyword that is refused or unknown.
void check_keywords(const Json& schema, const std::string& path);
bool is_annotation(std::string_view keyword);

inline constexpr std::size_t kMaxSchemaSteps = 1'000'000;  // values looked at or copied while a schema is compiled
inline constexpr int kMaxReferenceDepth = 64;              // $ref to $ref, allOf in allOf

class SchemaDocument {
 public:
  // `root` outlives this.
  explicit SchemaDocument(const Json& root) : root_(&root) {}

  // The schema without $ref, allOf and nullable: itself, what it refers to, or a new one. Lives as long as this. `path` is for messages.
  const Json& flat(const Json& schema, const std::string& path) { return flat(schema, path, 0); }
  // Of a schema and others that must hold with it.
  const Json& both(const Json& a, const Json& b, const std::string& path);

  const Json& keep(Json schema);  // as long as this lives
  void pay(std::size_t steps);

 private:
  const Json& flat(const Json& schema, const std::string& path, int depth);
  void check_base(const Json& schema, const std::string& path) const;
  const Json& resolve(const std::string& reference, const std::string& path);
  Json merge(const Json& a, const Json& b, const std::string& path);
  void merge_objects(Json& into, const Json& a, const Json& b);
  std::size_t size_of(const Json& value, int depth = 0) const;

  const Json* root_;
  std::deque<Json> made_;
  std::unordered_map<const Json*, const Json*> flattened_;
  std::size_t steps_ = 0;
};

}  // namespace tetrad::grammar

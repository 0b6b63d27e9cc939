#pragma once
// The form that a request gives its answer: which fields say so, and the constraint that keeps it. docs/structured-output.md has the rules.
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/token_constraint.h"
#include "grammar/token_masks.h"
#include "grammar/tool_calls.h"
#include "server/request_json.h"

namespace tetrad {

class Tokenizer;

struct OutputForm {
  enum class Kind { kText, kJsonObject, kJsonSchema, kRegex, kChoice };
  Kind kind = Kind::kText;
  std::string field;  // that asked for it, as a path
  nlohmann::ordered_json schema;
  std::string regex;
  std::vector<std::string> choices;
};

// Of chat and completions: response_format, structured_outputs, guided_*, regex and json_schema. At most one of them; forms that are not
// there (grammars in EBNF and the like) are refused by name.
OutputForm read_output_form(RequestFields& fields);
// Refuses the fields that ask for a form in some API and have not been read in this one, where `here` does.
void refuse_foreign_forms(RequestFields& fields, std::string_view here);
// One object {"type": ...}, as response_format and its relatives are.
OutputForm read_format_object(const nlohmann::ordered_json& format, const std::string& path);

// A tool that answers may call, as far as its calls are bound.
struct BoundTool {
  std::string name;
  std::shared_ptr<const nlohmann::ordered_json> schema;  // of the arguments; null: nothing is said of them
  bool strict = false;
  std::string path;  // of the schema in the request
};
enum class CallRule { kFree, kOne, kSeveral };  // kFree: the model decides; of the others the answer consists

// Compiled grammars by their text, the ones used last, and the masks that they share. Every member may be called from any thread.
class OutputGrammars {
 public:
  static constexpr std::size_t kMaxKept = 128;
  static constexpr std::size_t kMaxKeptInstructions = 4'000'000;  // of all together

  OutputGrammars(const Tokenizer& tokenizer, int vocab_size);

  // Null where nothing binds the answer. Throws RequestError that names the field. A form beside tools leaves them callable.
  std::shared_ptr<const TokenConstraint> constraint(const OutputForm& form, const std::vector<BoundTool>& tools, CallRule rule);

  const grammar::TokenMasks& masks() const { return *masks_; }
  std::size_t kept() const;

 private:
  struct Kept {
    std::string key;
    grammar::GrammarPtr grammar;
  };

  grammar::GrammarPtr find_or_compile(const OutputForm& form, const std::vector<BoundTool>& tools, CallRule rule);

  std::shared_ptr<grammar::TokenMasks> masks_;
  grammar::CallTags tags_;
  mutable std::mutex mutex_;
  std::list<Kept> kept_;  // the one used last first
  std::unordered_map<std::string_view, std::list<Kept>::iterator> index_;
  std::size_t instructions_ = 0;
};

}  // namespace tetrad

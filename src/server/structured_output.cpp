#include "server/structured_output.h"

#include <algorithm>
#include <utility>

#include "engine/grammar_constraint.h"
#include "text/json_bounded.h"
#include "text/tokenizer.h"

namespace tetrad {

using Json = nlohmann::ordered_json;

namespace {

using Kind = OutputForm::Kind;

constexpr std::string_view kNoGrammars = "grammars in this notation are not supported: use a JSON schema, a regex or a choice";
constexpr std::string_view kNoTags = "structural tags are not supported: use tools with strict";

OutputForm schema_form(const Json& schema, std::string field) {
  if (!schema.is_object() && !schema.is_boolean()) refuse(field, "{}: expected a JSON schema, got {}", field, described(schema));
  OutputForm form;
  form.kind = Kind::kJsonSchema;
  form.schema = schema;
  form.field = std::move(field);
  return form;
}

// A schema, or its text.
OutputForm schema_or_text_form(const Json& given, const std::string& field) {
  if (!given.is_string()) return schema_form(given, field);
  const auto& text = given.get_ref<const std::string&>();
  if (text.size() > grammar::kMaxSchemaBytes) refuse(field, "{}: at most {} bytes, got {}", field, grammar::kMaxSchemaBytes, text.size());
  try {
    return schema_form(parse_json_bounded(text, field, kMaxRequestNesting, EqualKeys::kRefused), field);
  } catch (const RequestError&) {
    throw;
  } catch (const InputError& error) {
    refuse(field, "{}", error.what());
  }
}

OutputForm regex_form(const Json& given, const std::string& field) {
  if (!given.is_string()) refuse(field, "{}: expected a string, got {}", field, described(given));
  OutputForm form;
  form.kind = Kind::kRegex;
  form.regex = given.get<std::string>();
  form.field = field;
  return form;
}

OutputForm choice_form(const Json& given, const std::string& field) {
  if (!given.is_array() || given.empty()) refuse(field, "{}: expected a list of strings, got {}", field, described(given));
  OutputForm form;
  form.kind = Kind::kChoice;
  form.field = field;
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (!given[i].is_string()) refuse(fmt::format("{}[{}]", field, i), "{}[{}]: expected a string, got {}", field, i, described(given[i]));
    form.choices.push_back(given[i].get<std::string>());
  }
  return form;
}

OutputForm read_structured_outputs(const Json& given) {
  RequestFields fields(given, "structured_outputs");
  fields.refuse_field("grammar", kNoGrammars);
  fields.refuse_field("structural_tag", kNoTags);
  fields.refuse_field("whitespace_pattern", "white space has one form");
  fields.refuse_field("disable_any_whitespace", "white space has one form");
  fields.refuse_field("disable_additional_properties", "say additionalProperties in the schema");
  for (const char* field : {"disable_fallback", "_backend", "backend", "_backend_was_auto"}) fields.accept_field(field);
  std::vector<OutputForm> forms;
  if (const Json* json = fields.find("json")) forms.push_back(schema_or_text_form(*json, fields.path_of("json")));
  if (const Json* regex = fields.find("regex")) forms.push_back(regex_form(*regex, fields.path_of("regex")));
  if (const Json* choice = fields.find("choice")) forms.push_back(choice_form(*choice, fields.path_of("choice")));
  if (fields.boolean("json_object").value_or(false)) {
    forms.emplace_back();
    forms.back().kind = Kind::kJsonObject;
    forms.back().field = fields.path_of("json_object");
  }
  for (const std::string& unknown : fields.unknown()) refuse(unknown, "{}: no such form of an answer", unknown);
  if (forms.size() != 1) refuse("structured_outputs", "structured_outputs: exactly one of json, regex, choice and json_object is needed");
  return std::move(forms[0]);
}

// What the grammar is made of, as text: equal texts are one grammar.
std::string key_of(const OutputForm& form, const std::vector<BoundTool>& tools, CallRule rule) {
  Json key = {{"kind", static_cast<int>(form.kind)}, {"rule", static_cast<int>(rule)}};
  if (form.kind == Kind::kJsonSchema) key["schema"] = form.schema;
  if (form.kind == Kind::kRegex) key["regex"] = form.regex;
  if (form.kind == Kind::kChoice) key["choices"] = form.choices;
  for (const BoundTool& tool : tools) key["tools"].push_back({tool.name, tool.strict, tool.schema == nullptr ? Json() : *tool.schema});
  return key.dump();
}

grammar::GrammarPtr compile_form(const OutputForm& form) {
  switch (form.kind) {
    case Kind::kJsonObject: return grammar::compile_json_object();
    case Kind::kJsonSchema: return grammar::compile_json_schema(form.schema, form.field);
    case Kind::kRegex: return grammar::compile_regex(form.regex);
    case Kind::kChoice: return grammar::compile_choice(form.choices);
    case Kind::kText: break;
  }
  return nullptr;
}

}  // namespace

OutputForm read_format_object(const Json& format, const std::string& path) {
  RequestFields fields(format, path);
  const std::string type = fields.required_text("type");
  OutputForm form;
  form.field = path;
  // What is not known here could ask for more than the answer would keep.
  const auto refuse_unknown = [](const RequestFields& read) {
    for (const std::string& unknown : read.unknown()) refuse(unknown, "{}: no such field of a form", unknown);
  };
  if (type == "text") {
    refuse_unknown(fields);
    return form;
  }
  if (type == "structural_tag") refuse(path + ".type", "{}.type: {}", path, kNoTags);
  if (type != "json_object" && type != "json_schema")
    refuse(path + ".type", "{}.type: expected text, json_object or json_schema, got {}", path, described(Json(type)));
  const Json* schema = fields.find("schema");  // written here by some clients
  std::string schema_path = fields.path_of("schema");
  if (const Json* inner = fields.object("json_schema")) {
    RequestFields inner_fields(*inner, path + ".json_schema");
    inner_fields.boolean("strict");  // a schema is kept either way
    for (const char* field : {"name", "description"}) inner_fields.accept_field(field);
    if (const Json* nested = inner_fields.find("schema")) {
      schema = nested;
      schema_path = inner_fields.path_of("schema");
    }
    refuse_unknown(inner_fields);
  }
  for (const char* field : {"name", "description", "strict"}) fields.accept_field(field);
  refuse_unknown(fields);
  if (schema != nullptr) return schema_form(*schema, schema_path);
  if (type == "json_schema") refuse(path + ".json_schema", "{}.json_schema.schema: missing: a JSON schema is required", path);
  form.kind = Kind::kJsonObject;
  return form;
}

OutputForm read_output_form(RequestFields& fields) {
  for (const char* field : {"grammar", "guided_grammar", "ebnf"}) fields.refuse_field(field, kNoGrammars);
  fields.refuse_field("structural_tag", kNoTags);
  fields.refuse_field("guided_whitespace_pattern", "white space has one form");
  fields.accept_field("guided_decoding_backend");
  std::vector<OutputForm> forms;
  const auto add = [&](OutputForm form) {
    if (form.kind != Kind::kText) forms.push_back(std::move(form));
  };
  if (const Json* format = fields.object("response_format")) add(read_format_object(*format, "response_format"));
  if (const Json* outputs = fields.object("structured_outputs"); outputs != nullptr && !outputs->empty())
    add(read_structured_outputs(*outputs));
  for (const char* field : {"guided_json", "json_schema"})
    if (const Json* schema = fields.find(field)) add(schema_or_text_form(*schema, field));
  for (const char* field : {"guided_regex", "regex"})
    if (const Json* regex = fields.find(field)) add(regex_form(*regex, field));
  if (const Json* choice = fields.find("guided_choice")) add(choice_form(*choice, "guided_choice"));
  if (forms.size() > 1) refuse(forms[1].field, "{}: the form of the answer is given by {} already", forms[1].field, forms[0].field);
  return forms.empty() ? OutputForm() : std::move(forms[0]);
}

void refuse_foreign_forms(RequestFields& fields, std::string_view here) {
  // Of OpenAI's and Anthropic's APIs, vLLM, SGLang, llama.cpp, TGI, Ollama, Gemini, and adapters between them.
  static constexpr std::string_view kForms[] = {"response_format",
                                                "structured_outputs",
                                                "text",
                                                "output_config",
                                                "output_format",
                                                "output_schema",
                                                "guided_json",
                                                "guided_regex",
                                                "guided_choice",
                                                "guided_grammar",
                                                "guided_json_object",
                                                "guided_decoding",
                                                "json_schema",
                                                "json_object",
                                                "json_mode",
                                                "regex",
                                                "choice",
                                                "grammar",
                                                "ebnf",
                                                "structural_tag",
                                                "format",
                                                "response_schema",
                                                "response_mime_type",
                                                "responseSchema",
                                                "structured_output",
                                                "response_model",
                                                "lark",
                                                "response_json_schema"};
  const std::vector<std::string> unknown = fields.unknown();
  for (const std::string_view field : kForms)
    if (std::find(unknown.begin(), unknown.end(), fields.path_of(field)) != unknown.end())
      fields.refuse_field(field, fmt::format("here an answer is bound to a form by {}", here));
}

OutputGrammars::OutputGrammars(const Tokenizer& tokenizer, int vocab_size)
    : masks_(std::make_shared<grammar::TokenMasks>(std::make_shared<const grammar::Vocabulary>(tokenizer, vocab_size))),
      tags_{tokenizer.added_token("<tool_call>"), tokenizer.added_token("</tool_call>")} {}

std::size_t OutputGrammars::kept() const {
  const std::lock_guard lock(mutex_);
  return kept_.size();
}

std::shared_ptr<const TokenConstraint> OutputGrammars::constraint(const OutputForm& form, const std::vector<BoundTool>& tools,
                                                                  CallRule rule) {
  const bool strict = std::any_of(tools.begin(), tools.end(), [](const BoundTool& tool) { return tool.strict; });
  const bool formed = form.kind != Kind::kText;
  if (rule != CallRule::kFree && formed)
    refuse(form.field, "{}: not together with a tool_choice that requires a call: the answer consists of calls", form.field);
  if (rule == CallRule::kFree && formed && !tools.empty() && form.kind != Kind::kJsonSchema && form.kind != Kind::kJsonObject)
    refuse(form.field, "{}: together with tools only JSON is supported", form.field);
  if (rule == CallRule::kFree && !formed && !strict) return nullptr;
  grammar::GrammarPtr compiled = find_or_compile(form, tools, rule);
  std::string name = formed ? form.field : rule != CallRule::kFree ? "tool_choice" : "strict tools";
  return std::make_shared<GrammarConstraint>(std::move(name), std::move(compiled), masks_);
}

grammar::GrammarPtr OutputGrammars::find_or_compile(const OutputForm& form, const std::vector<BoundTool>& tools, CallRule rule) {
  std::string key = key_of(form, tools, rule);
  const std::string field = form.kind != Kind::kText ? form.field : "tools";
  if (key.size() > grammar::kMaxSchemaBytes + 1024)
    refuse(field, "{}: schemas of {} bytes; at most {} are compiled", field, key.size(), grammar::kMaxSchemaBytes);
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = index_.find(key); it != index_.end()) {
      kept_.splice(kept_.begin(), kept_, it->second);
      return it->second->grammar;
    }
  }
  grammar::GrammarPtr compiled;
  try {
    if (tools.empty()) {
      compiled = compile_form(form);
    } else {
      std::vector<grammar::ToolSpec> specs;
      for (const BoundTool& tool : tools)
        if (rule != CallRule::kFree || form.kind != Kind::kText || tool.strict)
          specs.push_back({tool.name, tool.schema.get(), tool.strict, tool.path});
      const Json any_object = {{"type", "object"}};
      const Json* content = form.kind == Kind::kJsonSchema ? &form.schema : form.kind == Kind::kJsonObject ? &any_object : nullptr;
      compiled = rule == CallRule::kFree && content == nullptr
                     ? grammar::compile_strict_calls(specs, tags_)
                     : grammar::compile_required_calls(specs, tags_, rule != CallRule::kOne, content);
    }
  } catch (const grammar::GrammarError& error) {
    const std::string_view what = error.what();
    const bool placed = what.starts_with(field);
    const std::size_t end = what.find(": ");
    refuse(placed && end != std::string_view::npos ? std::string(what.substr(0, end)) : field, "{}{}", placed ? "" : field + ": ", what);
  }
  const std::lock_guard lock(mutex_);
  if (index_.contains(key)) return compiled;
  instructions_ += compiled->code.size();
  kept_.push_front({std::move(key), compiled});
  index_.emplace(kept_.front().key, kept_.begin());
  while (kept_.size() > kMaxKept || (instructions_ > kMaxKeptInstructions && kept_.size() > 1)) {
    instructions_ -= kept_.back().grammar->code.size();
    index_.erase(kept_.back().key);
    kept_.pop_back();
  }
  return compiled;
}

}  // namespace tetrad

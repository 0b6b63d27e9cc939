#include "grammar/tool_calls.h"

#include <algorithm>
#include <map>
#include <utility>

#include "grammar/schema_document.h"

namespace tetrad::grammar {
namespace {

constexpr std::string_view kOpenCall = "<tool_call>", kCloseCall = "</tool_call>";

Pc tag(Builder& builder, const std::optional<int>& id, std::string_view text, Pc next) {
  return id ? builder.symbol(*id, next) : builder.literal(text, next);
}

class CallBuilder {
 public:
  CallBuilder(Builder& builder, const ToolSpec& tool)
      : builder_(builder), tool_(tool), root_(tool.schema == nullptr ? kNoSchema : *tool.schema), compiler_(builder, root_, tool.path) {}

  // What follows "<function=NAME>" and its line break, with "</function>".
  Pc body(Pc next) {
    const Pc close = builder_.literal("</function>", next);
    const Json& flat = flat_schema();
    const auto properties = flat.is_object() ? flat.find("properties") : flat.end();
    const bool has_properties = flat.is_object() && properties != flat.end() && properties->is_object() && !properties->empty();
    if (!has_properties && tool_.strict) check_unbound(flat);
    if (!has_properties)
      return flat.is_object() && flat.find("additionalProperties") != flat.end() && flat["additionalProperties"] == false
                 ? close
                 : any_parameters(close);
    const auto required = flat.find("required");
    const auto is_required = [&](const std::string& name) {
      return required != flat.end() && required->is_array() && std::find(required->begin(), required->end(), Json(name)) != required->end();
    };
    std::vector<std::pair<std::string, const Json*>> members;
    for (const auto& [name, schema] : properties->items()) members.emplace_back(name, &schema);
    if (tool_.strict) check_strict(flat, *properties);
    Pc at = close;
    for (std::size_t i = members.size(); i > 0; --i) {
      const auto& [name, schema] = members[i - 1];
      if (*schema == false || !writable(name)) {
        if (is_required(name) && tool_.strict)
          fail<GrammarError>("{}: a required parameter that cannot be written: {}", tool_.path, Json(name).dump());
        continue;
      }
      const Pc begun = builder_.literal(fmt::format("<parameter={}>\n", name),
                                        value(*schema, fmt::format("{}.properties.{}", tool_.path, name), builder_.byte('\n', at)));
      at = is_required(name) ? begun : builder_.split(begun, at);
    }
    return at;
  }

 private:
  static inline const Json kNoSchema = Json::object();

  static bool writable(const std::string& name) {
    return !name.empty() && name.size() <= 256 && name.find_first_of(">\n") == std::string::npos;
  }

  const Json& flat_schema() {
    try {
      const Json& flat = compiler_.document().flat(root_, tool_.path);
      if (flat.is_object() && tool_.strict && !compiler_.alternatives(flat, tool_.path).empty())
        fail<GrammarError>("{}: anyOf and oneOf of all arguments together are not supported", tool_.path);
      return flat;
    } catch (const GrammarError&) {
      if (tool_.strict) throw;
      return root_;  // its own properties, whatever else it says
    }
  }

  void check_strict(const Json& flat, const Json& properties) {
    for (const char* keyword : {"minProperties", "maxProperties"})
      if (flat.find(keyword) != flat.end()) fail<GrammarError>("{}: {} of the arguments is not supported", tool_.path, keyword);
    const auto required = flat.find("required");
    if (required == flat.end()) return;
    if (!required->is_array()) fail<GrammarError>("{}.required: expected a list of names", tool_.path);
    for (const Json& name : *required)
      if (!name.is_string() || properties.find(name.get<std::string>()) == properties.end())
        fail<GrammarError>("{}.required: {} is not among the properties", tool_.path, name.dump());
  }

  // Arguments without properties are whatever the model writes, or none: what more a schema says of them could not be kept.
  void check_unbound(const Json& flat) {
    if (!flat.is_object()) return;
    const auto says_nothing = [](const std::string& key, const Json& value) {
      if (key == "type") return value == "object" || (value.is_array() && std::find(value.begin(), value.end(), "object") != value.end());
      if (key == "required") return value.is_array() && value.empty();
      if (key == "additionalProperties") return value.is_boolean();
      return key == "properties" || is_annotation(key);
    };
    for (const auto& [key, value] : flat.items())
      if (!says_nothing(key, value)) fail<GrammarError>("{}: {} of arguments without properties is not supported", tool_.path, key);
  }

  // A parameter's text and its end tag.
  Pc value(const Json& schema, const std::string& path, Pc next) {
    if (tool_.strict) return schema_value(schema, path, next, 0);
    try {
      return schema_value(schema, path, next, 0);
    } catch (const GrammarError&) {
      return free_value(schema, path, next);
    }
  }

  Pc schema_value(const Json& schema, const std::string& path, Pc next, int depth) {
    constexpr int kMaxDepth = 16;  // of anyOf in anyOf
    const Json& flat = compiler_.document().flat(schema, path);
    if (const auto ways = compiler_.alternatives(flat, path); !ways.empty()) {
      if (depth >= kMaxDepth) fail<GrammarError>("{}: anyOf nests more than {} deep", path, kMaxDepth);
      std::vector<Pc> places;
      for (const Json* way : ways) places.push_back(schema_value(*way, path, next, depth + 1));
      return builder_.choice(places);
    }
    unsigned types = compiler_.types_of(flat, path);
    const bool listed = flat.is_object() && (flat.find("enum") != flat.end() || flat.find("const") != flat.end());
    if (listed) {
      const auto values = *listed_values(flat, types, path);
      types = 0;
      for (const Json& one : values) types |= type_bit(one);
    }
    std::vector<Pc> ways;
    if ((types & kStringBit) != 0) ways.push_back(compiler_.string_content(flat, path, TextForm::kPlain, next));
    if ((types & ~unsigned{kStringBit}) != 0) {
      Json others = flat.is_object() ? flat : Json::object();
      others.erase("$id");  // of the root, which a parameter may refer to
      others["type"] = type_names(types & ~unsigned{kStringBit});
      kept_.push_back(std::move(others));
      ways.push_back(compiler_.value(kept_.back(), path, builder_.literal("\n</parameter>", next)));
    }
    return builder_.choice(ways);
  }

  // The types that the schema allows, as far as that can be told.
  Pc free_value(const Json& schema, const std::string& path, Pc next) {
    unsigned types = kAllTypes;
    try {
      types = compiler_.types_of(compiler_.document().flat(schema, path), path);
    } catch (const GrammarError&) {
    }
    if ((types & kStringBit) != 0 || types == 0) return builder_.parameter_text(0, kUnbounded, next);
    return builder_.call(builder_.any_value(), builder_.literal("\n</parameter>", next));
  }

  // For schemas without properties.
  Pc any_parameters(Pc close) {
    const Pc head = builder_.reserve();
    const Pc text = builder_.byte('\n', builder_.parameter_text(0, kUnbounded, builder_.byte('\n', head)));
    Pc name = builder_.byte('>', text);
    const CodePoints letters{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}, {'-', '.'}};
    constexpr int kMaxName = 64;
    for (int i = 0; i < kMaxName; ++i)
      name = builder_.characters(letters, TextForm::kPlain, i == 0 ? name : builder_.split(name, builder_.byte('>', text)));
    builder_.patch(head, {.op = Op::kSplit, .a = builder_.literal("<parameter=", name), .b = close});
    return head;
  }

  static Json type_names(unsigned types) {
    Json names = Json::array();
    if ((types & kNullBit) != 0) names.push_back("null");
    if ((types & kBooleanBit) != 0) names.push_back("boolean");
    if ((types & kNumberBit) != 0)
      names.push_back("number");
    else if ((types & kIntegerBit) != 0)
      names.push_back("integer");
    if ((types & kArrayBit) != 0) names.push_back("array");
    if ((types & kObjectBit) != 0) names.push_back("object");
    return names;
  }

  Builder& builder_;
  const ToolSpec& tool_;
  const Json& root_;
  SchemaCompiler compiler_;
  std::deque<Json> kept_;
};

// The call builders hold schemas that rules of the builder stand for by address, so they live until the grammar is finished.
using CallBuilders = std::deque<CallBuilder>;

// From `from` to the end of one call.
Pc call_of_any(Builder& builder, CallBuilders& calls, const std::vector<ToolSpec>& tools, const CallTags& tags, Pc next) {
  const Pc end = builder.byte('\n', tag(builder, tags.close, kCloseCall, next));
  std::vector<Pc> ways;
  for (const ToolSpec& tool : tools) {
    calls.emplace_back(builder, tool);
    ways.push_back(builder.literal(tool.name + ">\n", calls.back().body(end)));
  }
  return tag(builder, tags.open, kOpenCall, builder.literal("\n<function=", builder.choice(ways)));
}

}  // namespace

GrammarPtr compile_required_calls(const std::vector<ToolSpec>& tools, const CallTags& tags, bool several, const Json* content) {
  Builder builder;
  CallBuilders calls;
  std::optional<SchemaCompiler> compiler;
  Pc start;
  if (several) {
    const Builder::OpenLoop loop = builder.open_loop(0, kMaxCallsInGrammar - 1);
    const int call = builder.add_rule(false);
    builder.define(call, call_of_any(builder, calls, tools, tags, builder.end()));
    start = builder.call(call, builder.close_loop(loop, builder.byte('\n', builder.call(call, loop.tick)), builder.end()));
  } else {
    start = call_of_any(builder, calls, tools, tags, builder.end());
  }
  if (content != nullptr) {
    compiler.emplace(builder, *content, "schema");
    start = builder.split(compiler->value(*content, "schema", builder.end()), start);
  }
  return builder.finish(start);
}

GrammarPtr compile_strict_calls(const std::vector<ToolSpec>& tools, const CallTags&) {
  Builder builder;
  CallBuilders calls;
  // The beginnings of "<function=NAME>", as a tree; text that leaves it starts again, at the root or at a "<".
  struct Node {
    std::map<char, std::size_t> children = {};
    const ToolSpec* tool = nullptr;
  };
  std::vector<Node> nodes(1);
  for (const ToolSpec& tool : tools) {
    std::size_t at = 0;
    for (const char c : fmt::format("<function={}>", tool.name)) {
      const auto [child, fresh] = nodes[at].children.try_emplace(c, nodes.size());
      at = child->second;
      if (fresh) nodes.emplace_back();
    }
    nodes[at].tool = &tool;
  }
  std::vector<Pc> heads;
  for (std::size_t i = 0; i < nodes.size(); ++i) heads.push_back(builder.reserve());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    if (node.tool != nullptr) {
      calls.emplace_back(builder, *node.tool);
      builder.patch(heads[i], {.op = Op::kRange, .low = '\n', .high = '\n', .a = calls.back().body(heads[0])});
      continue;
    }
    ByteSet others{};
    others.fill(~std::uint64_t{0});
    const auto leave_out = [&](char c) {
      others[static_cast<unsigned char>(c) / 64] &= ~(std::uint64_t{1} << (static_cast<unsigned char>(c) % 64));
    };
    std::vector<Pc> ways;
    if (i == 0) ways.push_back(builder.text_mark(false));
    for (const auto& [c, child] : node.children) {
      leave_out(c);
      ways.push_back(builder.byte(c, heads[child]));
    }
    if (!node.children.contains('<')) {
      leave_out('<');
      ways.push_back(builder.byte('<', heads[nodes[0].children.at('<')]));
    }
    ways.push_back(builder.set(others, heads[0]));
    ways.push_back(builder.emit({.op = Op::kAnySymbol, .a = heads[0]}));
    ways.push_back(builder.end());
    const Pc all = builder.choice(ways);
    builder.patch(heads[i], {.op = Op::kSplit, .a = all, .b = builder.nowhere()});
  }
  return builder.finish(heads[0]);
}

}  // namespace tetrad::grammar

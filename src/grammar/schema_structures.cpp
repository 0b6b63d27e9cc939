// Objects and arrays of a schema, and when alternatives exclude each other.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "grammar/json_schema.h"
#include "grammar/regex.h"
#include "text/unicode.h"

namespace tetrad::grammar {
namespace {

const Json kAnything = true;

bool has_key(const Json& schema, const char* key) { return schema.find(key) != schema.end(); }

}  // namespace

Pc SchemaCompiler::object(const Json& schema, const std::string& path, Pc next) {
  struct Member {
    std::string name;
    const Json* schema;
    std::string path;
    bool required = false;
  };
  std::vector<Member> members;
  std::vector<std::string> names;  // that additional properties must not have
  std::map<std::string, std::size_t> index;
  const auto properties = schema.find("properties"), others = schema.find("additionalProperties"), required = schema.find("required");
  if (properties != schema.end()) {
    if (!properties->is_object()) fail<GrammarError>("{}.properties: expected an object", path);
    document_.pay(properties->size());
    for (const auto& [name, property] : properties->items()) {
      names.push_back(name);
      if (property == false) continue;
      index.emplace(name, members.size());
      members.push_back({name, &property, fmt::format("{}.properties.{}", path, name.substr(0, 100))});
    }
  }
  if (others != schema.end() && !others->is_boolean() && !others->is_object())
    fail<GrammarError>("{}.additionalProperties: expected a schema, true or false", path);
  const bool others_allowed = others != schema.end() ? *others != false : members.empty();
  const Json& other_schema = others != schema.end() && others->is_object() ? *others : kAnything;
  if (required != schema.end()) {
    if (!required->is_array()) fail<GrammarError>("{}.required: expected a list of names", path);
    for (const Json& name : *required) {
      if (!name.is_string()) fail<GrammarError>("{}.required: expected a list of names", path);
      const auto& text = name.get_ref<const std::string&>();
      if (const auto known = index.find(text); known != index.end()) {
        members[known->second].required = true;
        continue;
      }
      const bool forbidden = (others != schema.end() && *others == false) || std::find(names.begin(), names.end(), text) != names.end();
      if (forbidden) fail<GrammarError>("{}.required: {} is required and not allowed", path, Json(text).dump());
      index.emplace(text, members.size());
      names.push_back(text);
      members.push_back({text, &other_schema, path + ".additionalProperties", true});
    }
  }
  const auto num_required =
      static_cast<std::uint32_t>(std::count_if(members.begin(), members.end(), [](const Member& m) { return m.required; }));
  if (count_of(schema, "minProperties", 0, path) > num_required)
    fail<GrammarError>("{}: minProperties above the number of required properties is not supported", path);
  if (const std::uint32_t most = count_of(schema, "maxProperties", kUnbounded, path);
      most != kUnbounded && (others_allowed || most < members.size()))
    fail<GrammarError>("{}: maxProperties below the number of properties is not supported", path);

  const Pc close = builder_->byte('}', next);
  const Pc spaced_close = builder_->space_or_break(close);
  // From the last to the first: where a member must come, and where one has come.
  Pc member_here = builder_->nowhere(), after = spaced_close;
  bool may_close = true;
  if (others_allowed) {
    after = builder_->reserve();
    const int rule = rule_of(other_schema, path + ".additionalProperties");
    member_here = other_key(names, builder_->byte(':', builder_->space(builder_->call(rule, after))));
    builder_->patch(after, {.op = Op::kSplit, .a = builder_->byte(',', builder_->space_or_break(member_here)), .b = spaced_close});
  }
  for (std::size_t i = members.size(); i > 0; --i) {
    const Member& member = members[i - 1];
    const Pc content = builder_->call(rule_of(*member.schema, member.path), after);
    const Pc begun = builder_->byte('"', builder_->text(member.name, TextForm::kJson, builder_->literal("\":", builder_->space(content))));
    member_here = member.required ? begun : builder_->split(begun, member_here);
    may_close = may_close && !member.required;
    after = builder_->split(builder_->byte(',', builder_->space_or_break(member_here)), may_close ? spaced_close : builder_->nowhere());
  }
  return builder_->byte('{', builder_->space_or_break(may_close ? builder_->split(member_here, close) : member_here));
}

// A key with its quotes, written without escapes, that is none of the names.
Pc SchemaCompiler::other_key(const std::vector<std::string>& names, Pc next) {
  if (names.empty()) return builder_->call(builder_->any_string(), next);
  const Pc quote = builder_->byte('"', next);
  static const CodePoints kUnescaped = CodePoints{{0x20, kLastCodePoint}}.without({{'"', '"'}, {'\\', '\\'}});
  const Pc free = builder_->reserve();
  builder_->patch(free, {.op = Op::kSplit,
                         .a = builder_->split(builder_->text_mark(false), builder_->characters(kUnescaped, TextForm::kPlain, free)),
                         .b = quote});
  struct Node {
    std::map<char32_t, std::size_t> children = {};
    bool is_name = false;
  };
  std::vector<Node> nodes(1);
  for (const std::string& name : names) {
    std::size_t at = 0;
    std::string_view rest = name;
    bool writable = true;
    while (!rest.empty() && writable) {
      const text::Utf8Step step = text::utf8_step(rest);
      rest.remove_prefix(step.length);
      writable = step.code_point >= 0x20 && step.code_point != '"' && step.code_point != '\\';
      if (!writable) break;
      document_.pay(1);
      const auto [child, fresh] = nodes[at].children.try_emplace(step.code_point, nodes.size());
      at = child->second;
      if (fresh) nodes.emplace_back();
    }
    if (writable) nodes[at].is_name = true;
  }
  std::vector<Pc> begin(nodes.size());
  for (std::size_t i = nodes.size(); i > 0; --i) {  // children come after their parents
    const Node& node = nodes[i - 1];
    CodePoints others = kUnescaped;
    CodePoints taken;
    std::vector<Pc> ways;
    for (const auto& [c, child] : node.children) {
      taken.add(c, c);
      std::string bytes;
      text::append_utf8(bytes, c);
      ways.push_back(builder_->literal(bytes, begin[child]));
    }
    ways.push_back(builder_->characters(others.without(taken), TextForm::kPlain, free));
    if (!node.is_name) ways.push_back(quote);
    begin[i - 1] = builder_->choice(ways);
  }
  return builder_->byte('"', begin[0]);
}

Pc SchemaCompiler::array(const Json& schema, const std::string& path, Pc next) {
  if (const auto unique = schema.find("uniqueItems"); unique != schema.end() && *unique != false)
    fail<GrammarError>("{}: uniqueItems is not supported", path);
  const auto given = schema.find("items"), prefix = schema.find("prefixItems"), additional = schema.find("additionalItems");
  // Before 2020 a list of items was the prefix, and additionalItems the rest.
  const bool old_form = given != schema.end() && given->is_array();
  if (old_form && prefix != schema.end()) fail<GrammarError>("{}: items as a list beside prefixItems", path);
  const Json* first = old_form ? &*given : prefix != schema.end() ? &*prefix : nullptr;
  const Json* rest = old_form ? (additional != schema.end() ? &*additional : nullptr) : given != schema.end() ? &*given : nullptr;
  if (first != nullptr && !first->is_array()) fail<GrammarError>("{}.prefixItems: expected a list of schemas", path);
  const std::size_t num_first = first == nullptr ? 0 : first->size();
  if (num_first == 0 && rest == nullptr) rest = &kAnything;
  const std::uint32_t min = count_of(schema, "minItems", 0, path), max = count_of(schema, "maxItems", kUnbounded, path);
  if (min > max) fail<GrammarError>("{}: minItems is above maxItems", path);
  const bool has_rest = rest != nullptr && *rest != false && max > num_first;
  if (!has_rest && min > num_first) fail<GrammarError>("{}: minItems is above the number of items", path);

  const Pc close = builder_->byte(']', next);
  const Pc spaced_close = builder_->space_or_break(close);
  const std::string rest_path = path + (old_form ? ".additionalItems" : ".items");
  // Behind `written` items, all that come are of the rest.
  const auto more_of_rest = [&](std::uint32_t written) {
    const int rule = rule_of(*rest, rest_path);
    const auto another = [&](Pc after) { return builder_->byte(',', builder_->space_or_break(builder_->call(rule, after))); };
    const std::uint32_t least = min > written ? min - written : 0, most = max == kUnbounded ? kUnbounded : max - written;
    if (most == 0) return spaced_close;
    if (least == 0 && most == kUnbounded) {
      const Pc head = builder_->reserve();
      builder_->patch(head, {.op = Op::kSplit, .a = another(head), .b = spaced_close});
      return head;
    }
    const Builder::OpenLoop loop = builder_->open_loop(least, most);
    return builder_->close_loop(loop, another(loop.tick), spaced_close);
  };
  const std::uint32_t of_prefix = static_cast<std::uint32_t>(std::min<std::size_t>(num_first, max));
  Pc item_here = builder_->nowhere();
  if (of_prefix == 0 && has_rest) item_here = builder_->call(rule_of(*rest, rest_path), more_of_rest(1));
  Pc after = has_rest && of_prefix > 0 ? more_of_rest(of_prefix) : spaced_close;
  for (std::uint32_t i = of_prefix; i > 0; --i) {
    if (i < of_prefix)
      after = builder_->split(builder_->byte(',', builder_->space_or_break(item_here)), i >= min ? spaced_close : builder_->nowhere());
    item_here = builder_->call(rule_of((*first)[i - 1], fmt::format("{}.prefixItems[{}]", path, i - 1)), after);
  }
  return builder_->byte('[', builder_->space_or_break(min == 0 ? builder_->split(item_here, close) : item_here));
}

void SchemaCompiler::check_disjoint(const std::vector<const Json*>& ways, const std::string& path) {
  for (std::size_t i = 0; i < ways.size(); ++i)
    for (std::size_t j = i + 1; j < ways.size(); ++j) {
      document_.pay(16);
      if (!disjoint(*ways[i], *ways[j], path, 0))
        fail<GrammarError>(
            "{}.oneOf: alternatives {} and {} may both hold: give them different types, or a required property with different "
            "const or enum, or use anyOf",
            path, i, j);
    }
}

bool SchemaCompiler::disjoint(const Json& a, const Json& b, const std::string& path, int depth) {
  constexpr int kMaxDepth = 3;  // of properties that tell the alternatives apart
  if (depth > kMaxDepth || !a.is_object() || !b.is_object()) return a == false || b == false;
  const auto values = [](const Json& schema) {
    std::vector<const Json*> list;
    if (const auto single = schema.find("const"); single != schema.end()) list.push_back(&*single);
    const auto several = schema.find("enum");
    if (list.empty() && several != schema.end() && several->is_array())
      for (const Json& value : *several) list.push_back(&value);
    return list;
  };
  const std::vector<const Json*> left = values(a), right = values(b);
  document_.pay(left.size() + right.size());
  if (!left.empty() && !right.empty()) {
    document_.pay(left.size() * right.size());
    return std::none_of(left.begin(), left.end(),
                        [&](const Json* x) { return std::any_of(right.begin(), right.end(), [&](const Json* y) { return *x == *y; }); });
  }
  const bool typed = (has_key(a, "type") || !left.empty()) && (has_key(b, "type") || !right.empty());
  if (!typed) return false;
  const auto types = [&](const Json& schema, const std::vector<const Json*>& list) {
    if (has_key(schema, "type")) return types_of(schema, path);
    unsigned bits = 0;
    for (const Json* value : list) bits |= type_bit(*value);
    return bits;
  };
  const unsigned common = types(a, left) & types(b, right);
  if (common == 0) return true;
  if (common != kObjectBit || !has_key(a, "properties") || !has_key(b, "properties") || !has_key(a, "required") || !has_key(b, "required"))
    return false;
  const auto requires_name = [](const Json& schema, const std::string& name) {
    const Json& list = schema["required"];
    return list.is_array() && std::find(list.begin(), list.end(), name) != list.end();
  };
  for (const auto& [name, property] : a["properties"].items()) {
    const auto other = b["properties"].find(name);
    if (other == b["properties"].end() || !requires_name(a, name) || !requires_name(b, name)) continue;
    document_.pay(1);
    if (disjoint(document_.flat(property, path), document_.flat(*other, path), path, depth + 1)) return true;
  }
  return false;
}

}  // namespace tetrad::grammar

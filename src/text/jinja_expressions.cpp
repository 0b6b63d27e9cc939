#include <algorithm>
#include <array>

#include "text/jinja_methods.h"
#include "text/jinja_parser.h"

namespace tetrad::jinja {

namespace {

constexpr std::size_t kMaxNames = 1000;
constexpr int kMaxParserNesting = 300;  // several of them make one level of the tree

constexpr std::pair<std::string_view, Op> kComparisons[] = {{"==", Op::kEqual},     {"!=", Op::kNotEqual}, {"<", Op::kLess},
                                                            {"<=", Op::kLessEqual}, {">", Op::kGreater},   {">=", Op::kGreaterEqual}};

}  // namespace

Parser::Nesting::Nesting(Parser& parser) : parser_(parser) {
  if (++parser_.nesting_ > kMaxParserNesting) {
    --parser_.nesting_;
    parser_.refuse_line(parser_.current().line, "the template nests too deeply");
  }
}

bool Parser::skip_if(std::string_view op) {
  if (!current().is(op)) return false;
  take();
  return true;
}

bool Parser::skip_if_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  take();
  return true;
}

std::string Parser::describe(const Token& token) const {
  switch (token.kind) {
    case TokenKind::kText: return "text";
    case TokenKind::kOutputBegin: return "'{{'";
    case TokenKind::kOutputEnd: return "'}}'";
    case TokenKind::kBlockBegin: return "'{%'";
    case TokenKind::kBlockEnd: return "'%}'";
    case TokenKind::kString: return "a string";
    case TokenKind::kEnd: return "the end of the template";
    default: return "'" + token.text + "'";
  }
}

void Parser::refuse_token(std::string_view wanted) const {
  refuse_line(current().line, fmt::format("expected {}, got {}", wanted, describe(current())));
}

void Parser::expect(std::string_view op) {
  if (!skip_if(op)) refuse_token(fmt::format("'{}'", op));
}

void Parser::expect_name(std::string_view name) {
  if (!skip_if_name(name)) refuse_token(fmt::format("'{}'", name));
}

void Parser::expect_kind(TokenKind kind, std::string_view what) {
  if (current().kind != kind) refuse_token(what);
  take();
}

std::string Parser::take_name(std::string_view what) {
  if (current().kind != TokenKind::kName) refuse_token(what);
  return take().text;
}

int Parser::number_of(const std::string& name) {
  const auto [at, inserted] = numbers_.emplace(name, static_cast<int>(numbers_.size()));
  if (inserted) {
    if (numbers_.size() > kMaxNames) refuse_line(current().line, fmt::format("the template uses more than {} names", kMaxNames));
    out_.names.push_back(name);
  }
  return at->second;
}

ExprPtr Parser::make(ExprKind kind, int line, std::vector<ExprPtr> children) {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->line = line;
  for (const auto& child : children) {
    if (child) node->depth = std::max(node->depth, child->depth + 1);
  }
  node->children = std::move(children);
  if (node->depth > kMaxTreeDepth) refuse_line(line, fmt::format("the expression nests more than {} deep", kMaxTreeDepth));
  return node;
}

namespace {

std::vector<ExprPtr> list_of(ExprPtr a) {
  std::vector<ExprPtr> out;
  out.push_back(std::move(a));
  return out;
}

std::vector<ExprPtr> list_of(ExprPtr a, ExprPtr b) {
  std::vector<ExprPtr> out = list_of(std::move(a));
  out.push_back(std::move(b));
  return out;
}

}  // namespace

ExprPtr Parser::parse_expression() {
  const Nesting nesting(*this);
  ExprPtr value = parse_or();
  while (current().is_name("if")) {
    const int line = take().line;
    std::vector<ExprPtr> children = list_of(std::move(value), parse_or());
    children.push_back(skip_if_name("else") ? parse_expression() : nullptr);
    value = make(ExprKind::kConditional, line, std::move(children));
  }
  return value;
}

ExprPtr Parser::parse_or() {
  ExprPtr left = parse_and();
  while (current().is_name("or")) {
    const int line = take().line;
    left = make(ExprKind::kOr, line, list_of(std::move(left), parse_and()));
  }
  return left;
}

ExprPtr Parser::parse_and() {
  ExprPtr left = parse_not();
  while (current().is_name("and")) {
    const int line = take().line;
    left = make(ExprKind::kAnd, line, list_of(std::move(left), parse_not()));
  }
  return left;
}

ExprPtr Parser::parse_not() {
  if (!current().is_name("not")) return parse_compare();
  const Nesting nesting(*this);
  const int line = take().line;
  return make(ExprKind::kNot, line, list_of(parse_not()));
}

ExprPtr Parser::parse_compare() {
  const int line = current().line;
  std::vector<ExprPtr> operands = list_of(parse_sum());
  std::vector<Op> ops;
  while (true) {
    const auto* known =
        std::find_if(std::begin(kComparisons), std::end(kComparisons), [&](const auto& c) { return current().is(c.first); });
    if (known != std::end(kComparisons)) {
      ops.push_back(known->second);
      take();
    } else if (current().is_name("in")) {
      ops.push_back(Op::kIn);
      take();
    } else if (current().is_name("not") && tokens_[std::min(at_ + 1, tokens_.size() - 1)].is_name("in")) {
      ops.push_back(Op::kNotIn);
      take();
      take();
    } else {
      break;
    }
    operands.push_back(parse_sum());
  }
  if (ops.empty()) return std::move(operands.front());
  ExprPtr node = make(ExprKind::kCompare, line, std::move(operands));
  node->ops = std::move(ops);
  return node;
}

ExprPtr Parser::parse_sum() {
  ExprPtr left = parse_concat();
  while (current().is("+") || current().is("-")) {
    const Token op = take();
    left = make(ExprKind::kBinary, op.line, list_of(std::move(left), parse_concat()));
    left->op = op.text == "+" ? Op::kAdd : Op::kSubtract;
  }
  return left;
}

ExprPtr Parser::parse_concat() {
  const int line = current().line;
  std::vector<ExprPtr> operands = list_of(parse_product());
  while (skip_if("~")) operands.push_back(parse_product());
  if (operands.size() == 1) return std::move(operands.front());
  return make(ExprKind::kConcat, line, std::move(operands));
}

ExprPtr Parser::parse_product() {
  static constexpr std::pair<std::string_view, Op> kOps[] = {
      {"*", Op::kMultiply}, {"/", Op::kTrueDivide}, {"//", Op::kFloorDivide}, {"%", Op::kModulo}};
  ExprPtr left = parse_power();
  while (true) {
    const auto* known = std::find_if(std::begin(kOps), std::end(kOps), [&](const auto& o) { return current().is(o.first); });
    if (known == std::end(kOps)) return left;
    const int line = take().line;
    left = make(ExprKind::kBinary, line, list_of(std::move(left), parse_power()));
    left->op = known->second;
  }
}

ExprPtr Parser::parse_power() {
  ExprPtr left = parse_unary(true);
  while (current().is("**")) {
    const int line = take().line;
    left = make(ExprKind::kBinary, line, list_of(std::move(left), parse_unary(true)));
    left->op = Op::kPower;
  }
  return left;
}

ExprPtr Parser::parse_unary(bool with_filters) {
  const Nesting nesting(*this);
  ExprPtr node;
  if (current().is("-") || current().is("+")) {
    const Token op = take();
    node = make(op.text == "-" ? ExprKind::kNegate : ExprKind::kPositive, op.line, list_of(parse_unary(false)));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filters ? parse_filters(std::move(node)) : std::move(node);
}

ExprPtr Parser::parse_name_or_literal() {
  const Token token = take();
  ExprPtr node = make(ExprKind::kConst, token.line);
  if (token.text == "true" || token.text == "True" || token.text == "false" || token.text == "False") {
    node->constant = Value::boolean(token.text[0] == 't' || token.text[0] == 'T');
  } else if (token.text == "none" || token.text == "None") {
    node->constant = Value::none();
  } else {
    if (token.text == "varargs" || token.text == "kwargs" || token.text == "self" || token.text == "super") {
      refuse_line(token.line, fmt::format("construct '{}' is not supported", token.text));
    }
    if (token.text == "caller") ++caller_uses_;
    node->kind = ExprKind::kName;
    node->name = number_of(token.text);
    node->text = token.text;
  }
  return node;
}

ExprPtr Parser::parse_primary() {
  const int line = current().line;
  switch (current().kind) {
    case TokenKind::kName: return parse_name_or_literal();
    case TokenKind::kString: {
      auto text = std::make_shared<String>();
      while (current().kind == TokenKind::kString) text->text += take().text;
      ExprPtr node = make(ExprKind::kConst, line);
      node->constant.kind = Kind::kString;
      node->constant.object = std::move(text);
      return node;
    }
    case TokenKind::kInteger: {
      ExprPtr node = make(ExprKind::kConst, line);
      node->constant = Value::integral(take().integer);
      return node;
    }
    case TokenKind::kFloat: {
      ExprPtr node = make(ExprKind::kConst, line);
      node->constant = Value::floating(take().real);
      return node;
    }
    default: break;
  }
  if (skip_if("(")) {
    ExprPtr node = parse_tuple(true, true);
    expect(")");
    return node;
  }
  if (current().is("[")) return parse_list();
  if (current().is("{")) return parse_dict();
  refuse_token("an expression");
}

bool Parser::ends_tuple() const {
  return current().kind == TokenKind::kOutputEnd || current().kind == TokenKind::kBlockEnd || current().is(")");
}

ExprPtr Parser::parse_tuple(bool with_conditional, bool parenthesised) {
  const Nesting nesting(*this);
  const int line = current().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (!ends_tuple()) {
    items.push_back(with_conditional ? parse_expression() : parse_or());
    if (!current().is(",")) break;
    is_tuple = true;
    take();
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items.front());
    if (!parenthesised) refuse_token("an expression");
  }
  return make(ExprKind::kTuple, line, std::move(items));
}

ExprPtr Parser::parse_list() {
  const int line = take().line;
  std::vector<ExprPtr> items;
  while (!current().is("]")) {
    items.push_back(parse_expression());
    if (!skip_if(",")) break;
  }
  expect("]");
  return make(ExprKind::kList, line, std::move(items));
}

ExprPtr Parser::parse_dict() {
  const int line = take().line;
  std::vector<ExprPtr> items;
  while (!current().is("}")) {
    items.push_back(parse_expression());
    expect(":");
    items.push_back(parse_expression());
    if (!skip_if(",")) break;
  }
  expect("}");
  return make(ExprKind::kDict, line, std::move(items));
}

ExprPtr Parser::parse_postfix(ExprPtr node) {
  while (true) {
    if (current().is(".") || current().is("[")) {
      node = parse_subscript(std::move(node));
    } else if (current().is("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr Parser::parse_filters(ExprPtr node) {
  while (true) {
    if (current().is("|")) {
      node = parse_filter(std::move(node));
    } else if (current().is_name("is")) {
      node = parse_test(std::move(node));
    } else if (current().is("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr Parser::parse_subscript(ExprPtr object) {
  const int line = current().line;
  if (skip_if(".")) {
    if (current().kind == TokenKind::kInteger) {
      ExprPtr key = make(ExprKind::kConst, line);
      key->constant = Value::integral(take().integer);
      return make(ExprKind::kItem, line, list_of(std::move(object), std::move(key)));
    }
    std::string name = take_name("a name after '.'");
    ExprPtr node = make(ExprKind::kAttribute, line, list_of(std::move(object)));
    node->text = std::move(name);
    return node;
  }
  expect("[");
  const auto part = [&]() -> ExprPtr { return current().is(":") || current().is("]") || current().is(",") ? nullptr : parse_expression(); };
  ExprPtr first = part();
  if (!current().is(":")) {
    if (!first) refuse_token("an expression");
    if (current().is(",")) refuse_line(line, "construct 'x[a, b]' is not supported");
    expect("]");
    return make(ExprKind::kItem, line, list_of(std::move(object), std::move(first)));
  }
  take();
  std::vector<ExprPtr> children = list_of(std::move(object), std::move(first));
  children.push_back(part());
  children.push_back(skip_if(":") ? part() : nullptr);
  if (current().is(",")) refuse_line(line, "construct 'x[a, b]' is not supported");
  expect("]");
  return make(ExprKind::kSlice, line, std::move(children));
}

ExprPtr Parser::parse_call(ExprPtr callee) {
  const int line = current().line;
  if (callee->kind == ExprKind::kName) {
    calls_.emplace_back(callee->text, line);
  } else if (callee->kind != ExprKind::kAttribute) {
    refuse_line(line, "construct 'call of an expression' is not supported: only names and methods can be called");
  } else if (!known_method(callee->text)) {
    refuse_line(line, fmt::format("construct '.{}()' is not supported", callee->text));
  }
  ExprPtr node = make(ExprKind::kCall, line, list_of(std::move(callee)));
  parse_arguments(*node);
  return node;
}

void Parser::parse_arguments(Expr& call) {
  expect("(");
  bool named = false;
  while (!current().is(")")) {
    if (current().is("*") || current().is("**"))
      refuse_line(current().line, fmt::format("construct '{}arguments' is not supported", current().text));
    std::string name;
    if (current().kind == TokenKind::kName && tokens_[std::min(at_ + 1, tokens_.size() - 1)].is("=")) {
      name = take().text;
      take();
      named = true;
    } else if (named) {
      refuse_line(current().line, "a positional argument follows a named one");
    }
    ExprPtr value = parse_expression();
    call.depth = std::max(call.depth, value->depth + 1);
    if (call.depth > kMaxTreeDepth) refuse_line(call.line, fmt::format("the expression nests more than {} deep", kMaxTreeDepth));
    call.children.push_back(std::move(value));
    call.argument_names.push_back(std::move(name));
    if (!skip_if(",")) break;
  }
  expect(")");
}

ExprPtr Parser::parse_filter(ExprPtr input) {
  const int line = take().line;
  const std::string name = take_name("the name of a filter");
  const FilterFunction filter = find_filter(name);
  if (filter == nullptr) refuse_line(line, fmt::format("construct 'filter {}' is not supported", name));
  ExprPtr node = make(ExprKind::kFilter, line, list_of(std::move(input)));
  node->text = name;
  node->filter = filter;
  if (current().is("(")) parse_arguments(*node);
  check_named_argument(*node);
  return node;
}

// A filter or test that another one applies by name must be known as well, where the name is written out.
void Parser::check_named_argument(const Expr& node) const {
  const bool by_attribute = node.text == "selectattr" || node.text == "rejectattr";
  const std::size_t at = by_attribute ? 2 : 1;
  const bool applies = by_attribute || node.text == "map" || node.text == "select" || node.text == "reject";
  if (!applies || node.children.size() <= at || !node.argument_names[at - 1].empty()) return;
  const Expr& given = *node.children[at];
  if (given.kind != ExprKind::kConst || !given.constant.is_string()) return;
  const std::string& name = given.constant.text();
  const bool is_filter = node.text == "map";
  if (is_filter ? find_filter(name) != nullptr : find_test(name) != nullptr) return;
  refuse_line(node.line, fmt::format("construct '{} {}' is not supported", is_filter ? "filter" : "test", name));
}

ExprPtr Parser::parse_test(ExprPtr input) {
  const int line = take().line;
  const bool negated = skip_if_name("not");
  const std::string name = take_name("the name of a test");
  const TestFunction test = find_test(name);
  if (test == nullptr) refuse_line(line, fmt::format("construct 'test {}' is not supported", name));
  ExprPtr node = make(ExprKind::kTest, line, list_of(std::move(input)));
  node->text = name;
  node->test = test;
  const Token& next = current();
  const bool starts_argument = next.kind == TokenKind::kName || next.kind == TokenKind::kString || next.kind == TokenKind::kInteger ||
                               next.kind == TokenKind::kFloat || next.is("[") || next.is("{");
  if (next.is("(")) {
    parse_arguments(*node);
  } else if (starts_argument && !next.is_name("else") && !next.is_name("or") && !next.is_name("and")) {
    if (next.is_name("is")) refuse_line(line, "tests cannot be chained with 'is'");
    ExprPtr argument = parse_postfix(parse_primary());
    node->depth = std::max(node->depth, argument->depth + 1);
    if (node->depth > kMaxTreeDepth) refuse_line(line, fmt::format("the expression nests more than {} deep", kMaxTreeDepth));
    node->children.push_back(std::move(argument));
    node->argument_names.emplace_back();
  }
  return negated ? make(ExprKind::kNot, line, list_of(std::move(node))) : std::move(node);
}

}  // namespace tetrad::jinja

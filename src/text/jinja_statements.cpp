#include <algorithm>
#include <utility>

#include "text/jinja_parser.h"

namespace tetrad::jinja {

namespace {

constexpr std::string_view kReserved[] = {"true", "false", "none", "True", "False",  "None",    "and",    "or",   "not",  "if",
                                          "else", "in",    "is",   "loop", "caller", "varargs", "kwargs", "self", "super"};

}  // namespace

Template Parser::run() {
  number_of("loop");    // number 0, which the evaluator relies on
  number_of("caller");  // number 1
  out_.body = parse_block({});
  check_calls();
  out_.where = where_;
  return std::move(out_);
}

// A called name must be a function of the interpreter or something the template itself defines.
void Parser::check_calls() const {
  for (const auto& [name, line] : calls_) {
    if (known_function(name) || bound_.contains(name) || name == "caller") continue;
    refuse_line(line, fmt::format("construct 'function {}' is not supported", name));
  }
}

StmtPtr Parser::make_stmt(StmtKind kind, int line) const {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = kind;
  stmt->line = line;
  return stmt;
}

void Parser::finish(Stmt& stmt) const {
  const auto cover = [&](int depth) { stmt.depth = std::max(stmt.depth, depth + 1); };
  for (const auto& expr : stmt.exprs) {
    if (expr) cover(expr->depth);
  }
  for (const auto& expr : stmt.macro.defaults) cover(expr->depth);
  for (const auto& block : stmt.blocks) {
    for (const auto& inner : block) cover(inner->depth);
  }
  if (stmt.depth > kMaxTreeDepth) refuse_line(stmt.line, fmt::format("the statement nests more than {} deep", kMaxTreeDepth));
}

// Statements up to a tag named in `ends`; that tag's name is the current token afterwards. Without `ends`, up to the end of the template.
Block Parser::parse_block(std::initializer_list<std::string_view> ends) {
  const Nesting nesting(*this);
  Block block;
  while (true) {
    const Token& token = current();
    if (token.kind == TokenKind::kEnd) {
      if (ends.size() == 0) return block;
      refuse_token(fmt::format("'{}'", *ends.begin()));
    }
    StmtPtr stmt;
    if (token.kind == TokenKind::kText) {
      stmt = make_stmt(StmtKind::kText, token.line);
      stmt->text = take().text;
    } else if (token.kind == TokenKind::kOutputBegin) {
      stmt = make_stmt(StmtKind::kOutput, take().line);
      stmt->exprs.push_back(parse_tuple(true, false));
      expect_kind(TokenKind::kOutputEnd, "'}}'");
    } else {
      expect_kind(TokenKind::kBlockBegin, "a tag");
      if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return current().is_name(end); })) return block;
      stmt = parse_tag();
    }
    finish(*stmt);
    block.push_back(std::move(stmt));
  }
}

void Parser::end_tag(std::string_view name) {
  expect_name(name);
  expect_kind(TokenKind::kBlockEnd, "'%}'");
}

StmtPtr Parser::parse_tag() {
  const int line = current().line;
  const std::string name = take_name("the name of a tag");
  if (name == "for") return parse_for(line);
  if (name == "if") return parse_if(line);
  if (name == "set") return parse_set(line);
  if (name == "macro") return parse_macro(line);
  if (name == "call") return parse_call_block(line);
  if (name == "filter") return parse_filter_block(line);
  if (name == "with") return parse_with(line);
  if (name == "generation") return parse_generation(line);
  if (name == "break" || name == "continue") {
    if (loops_ == 0) refuse_line(line, fmt::format("'{}' outside a loop", name));
    expect_kind(TokenKind::kBlockEnd, "'%}'");
    return make_stmt(name == "break" ? StmtKind::kBreak : StmtKind::kContinue, line);
  }
  if (name.starts_with("end") || name == "else" || name == "elif") refuse_line(line, fmt::format("unexpected '{}'", name));
  refuse_line(line, fmt::format("construct '{{% {} %}}' is not supported", name));
}

Target Parser::bind_target(const Token& token) {
  if (token.kind != TokenKind::kName || std::find(std::begin(kReserved), std::end(kReserved), token.text) != std::end(kReserved)) {
    refuse_line(token.line, fmt::format("{} cannot be assigned to", describe(token)));
  }
  Target target;
  target.text = token.text;
  target.name = number_of(token.text);
  return target;
}

Target Parser::parse_single_target(bool with_attribute) {
  const Nesting nesting(*this);
  if (skip_if("(")) {
    Target target = parse_target(with_attribute);
    expect(")");
    return target;
  }
  Target target = bind_target(take());
  if (with_attribute && skip_if(".")) {
    target.attribute = take_name("an attribute");
  } else {
    bound_[target.text] = true;
  }
  return target;
}

Target Parser::parse_target(bool with_attribute) {
  Target first = parse_single_target(with_attribute);
  if (!current().is(",")) return first;
  Target tuple;
  tuple.parts.push_back(std::move(first));
  while (skip_if(",") && current().kind != TokenKind::kBlockEnd && !current().is("=") && !current().is_name("in") && !current().is(")")) {
    tuple.parts.push_back(parse_single_target(with_attribute));
  }
  return tuple;
}

StmtPtr Parser::parse_for(int line) {
  StmtPtr stmt = make_stmt(StmtKind::kFor, line);
  stmt->targets.push_back(parse_target(false));
  expect_name("in");
  stmt->exprs.push_back(parse_tuple(false, false));
  stmt->exprs.push_back(skip_if_name("if") ? parse_expression() : nullptr);
  if (current().is_name("recursive")) refuse_line(line, "construct 'for ... recursive' is not supported");
  expect_kind(TokenKind::kBlockEnd, "'%}'");
  ++loops_;
  stmt->blocks.push_back(parse_block({"endfor", "else"}));
  --loops_;
  if (skip_if_name("else")) {
    expect_kind(TokenKind::kBlockEnd, "'%}'");
    stmt->blocks.push_back(parse_block({"endfor"}));
  }
  end_tag("endfor");
  return stmt;
}

StmtPtr Parser::parse_if(int line) {
  StmtPtr stmt = make_stmt(StmtKind::kIf, line);
  do {
    stmt->exprs.push_back(parse_tuple(false, false));
    expect_kind(TokenKind::kBlockEnd, "'%}'");
    stmt->blocks.push_back(parse_block({"endif", "elif", "else"}));
  } while (skip_if_name("elif"));
  if (skip_if_name("else")) {
    expect_kind(TokenKind::kBlockEnd, "'%}'");
    stmt->blocks.push_back(parse_block({"endif"}));
  }
  end_tag("endif");
  return stmt;
}

// Filters applied to the text of a block: `| a | b(...)`, or null.
ExprPtr Parser::parse_filter_chain() {
  ExprPtr chain;
  while (current().is("|")) chain = parse_filter(std::move(chain));
  return chain;
}

StmtPtr Parser::parse_set(int line) {
  StmtPtr stmt = make_stmt(StmtKind::kSet, line);
  stmt->targets.push_back(parse_target(true));
  if (skip_if("=")) {
    stmt->exprs.push_back(parse_tuple(true, false));
    expect_kind(TokenKind::kBlockEnd, "'%}'");
    return stmt;
  }
  stmt->kind = StmtKind::kSetBlock;
  stmt->exprs.push_back(parse_filter_chain());
  expect_kind(TokenKind::kBlockEnd, "'=' or '%}'");
  const int outer_loops = std::exchange(loops_, 0);
  stmt->blocks.push_back(parse_block({"endset"}));
  loops_ = outer_loops;
  end_tag("endset");
  return stmt;
}

void Parser::parse_signature(Macro& macro) {
  expect("(");
  while (!current().is(")")) {
    const Target parameter = bind_target(take());
    bound_[parameter.text] = true;
    if (std::find(macro.parameters.begin(), macro.parameters.end(), parameter.name) != macro.parameters.end()) {
      refuse_line(current().line, fmt::format("the parameter '{}' is given twice", parameter.text));
    }
    macro.parameters.push_back(parameter.name);
    macro.parameter_names.push_back(parameter.text);
    if (skip_if("=")) {
      macro.defaults.push_back(parse_expression());
    } else if (!macro.defaults.empty()) {
      refuse_line(current().line, "a parameter without a default follows one with a default");
    }
    if (!skip_if(",")) break;
  }
  expect(")");
}

StmtPtr Parser::parse_macro(int line) {
  StmtPtr stmt = make_stmt(StmtKind::kMacro, line);
  const Target name = bind_target(take());
  bound_[name.text] = true;
  stmt->name = name.name;
  stmt->macro.text = name.text;
  parse_signature(stmt->macro);
  expect_kind(TokenKind::kBlockEnd, "'%}'");
  const int outer_loops = std::exchange(loops_, 0);
  const int caller_uses = caller_uses_;
  stmt->blocks.push_back(parse_block({"endmacro"}));
  stmt->macro.takes_caller = caller_uses_ > caller_uses;
  loops_ = outer_loops;
  expect_name("endmacro");
  if (current().kind == TokenKind::kName) take();
  expect_kind(TokenKind::kBlockEnd, "'%}'");
  return stmt;
}

StmtPtr Parser::parse_call_block(int line) {
  StmtPtr stmt = make_stmt(StmtKind::kCallBlock, line);
  stmt->macro.text = "caller";
  if (current().is("(")) parse_signature(stmt->macro);
  ExprPtr call = parse_expression();
  if (call->kind != ExprKind::kCall || call->children[0]->kind != ExprKind::kName)
    refuse_line(line, "a call block needs the call of a macro");
  stmt->exprs.push_back(std::move(call));
  expect_kind(TokenKind::kBlockEnd, "'%}'");
  const int outer_loops = std::exchange(loops_, 0);
  stmt->blocks.push_back(parse_block({"endcall"}));
  loops_ = outer_loops;
  end_tag("endcall");
  return stmt;
}

StmtPtr Parser::parse_filter_block(int line) {
  StmtPtr stmt = make_stmt(StmtKind::kFilterBlock, line);
  // The first filter of a filter block has no bar; the parser of filters takes the token before a name for one.
  --at_;
  ExprPtr chain = parse_filter(nullptr);
  while (current().is("|")) chain = parse_filter(std::move(chain));
  stmt->exprs.push_back(std::move(chain));
  expect_kind(TokenKind::kBlockEnd, "'%}'");
  const int outer_loops = std::exchange(loops_, 0);
  stmt->blocks.push_back(parse_block({"endfilter"}));
  loops_ = outer_loops;
  end_tag("endfilter");
  return stmt;
}

StmtPtr Parser::parse_with(int line) {
  StmtPtr stmt = make_stmt(StmtKind::kWith, line);
  while (current().kind != TokenKind::kBlockEnd) {
    stmt->targets.push_back(parse_target(false));
    expect("=");
    stmt->exprs.push_back(parse_expression());
    if (!skip_if(",")) break;
  }
  expect_kind(TokenKind::kBlockEnd, "'%}'");
  stmt->blocks.push_back(parse_block({"endwith"}));
  end_tag("endwith");
  return stmt;
}

StmtPtr Parser::parse_generation(int line) {
  StmtPtr stmt = make_stmt(StmtKind::kScope, line);
  expect_kind(TokenKind::kBlockEnd, "'%}'");
  const int outer_loops = std::exchange(loops_, 0);
  stmt->blocks.push_back(parse_block({"endgeneration"}));
  loops_ = outer_loops;
  end_tag("endgeneration");
  return stmt;
}

Template parse_template(std::string_view source, std::string_view where) { return Parser(tokenize(source, where), where).run(); }

}  // namespace tetrad::jinja

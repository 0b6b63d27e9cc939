#pragma once
// Recursive descent over the tokens of a template; expressions in jinja_expressions.cpp, statements in jinja_statements.cpp.
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace tetrad::jinja {

class Parser {
 public:
  Parser(std::vector<Token> tokens, std::string_view where) : tokens_(std::move(tokens)), where_(where) {}
  Template run();

 private:
  // A chain of calls of the parser; refuses a template that nests too deeply.
  class Nesting {
   public:
    explicit Nesting(Parser& parser);
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Parser& parser_;
  };

  const Token& current() const { return tokens_[at_]; }
  Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool skip_if(std::string_view op);
  bool skip_if_name(std::string_view name);
  void expect(std::string_view op);
  void expect_name(std::string_view name);
  void expect_kind(TokenKind kind, std::string_view what);
  std::string take_name(std::string_view what);
  std::string describe(const Token& token) const;
  [[noreturn]] void refuse_token(std::string_view wanted) const;
  [[noreturn]] void refuse_line(int line, std::string_view message) const { refuse_template(where_, line, message); }
  int number_of(const std::string& name);

  ExprPtr make(ExprKind kind, int line, std::vector<ExprPtr> children = {});
  ExprPtr parse_expression();
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filters);
  ExprPtr parse_primary();
  ExprPtr parse_name_or_literal();
  ExprPtr parse_postfix(ExprPtr node);
  ExprPtr parse_filters(ExprPtr node);
  ExprPtr parse_filter(ExprPtr input);
  ExprPtr parse_test(ExprPtr input);
  ExprPtr parse_subscript(ExprPtr object);
  ExprPtr parse_call(ExprPtr callee);
  ExprPtr parse_dict();
  ExprPtr parse_list();
  ExprPtr parse_tuple(bool with_conditional, bool parenthesised);
  void parse_arguments(Expr& call);
  void check_named_argument(const Expr& node) const;
  bool ends_tuple() const;

  Block parse_block(std::initializer_list<std::string_view> ends);
  StmtPtr parse_tag();
  StmtPtr parse_for(int line);
  StmtPtr parse_if(int line);
  StmtPtr parse_set(int line);
  StmtPtr parse_macro(int line);
  StmtPtr parse_call_block(int line);
  StmtPtr parse_filter_block(int line);
  StmtPtr parse_with(int line);
  StmtPtr parse_generation(int line);
  StmtPtr make_stmt(StmtKind kind, int line) const;
  void finish(Stmt& stmt) const;
  ExprPtr parse_filter_chain();
  void parse_signature(Macro& macro);
  Target parse_target(bool with_attribute);
  Target parse_single_target(bool with_attribute);
  Target bind_target(const Token& token);
  void end_tag(std::string_view name);
  void check_calls() const;

  std::vector<Token> tokens_;
  std::string where_;
  std::size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;        // loops around the statement being parsed, within its macro
  int caller_uses_ = 0;  // so far
  Template out_;
  std::unordered_map<std::string, int> numbers_;
  std::unordered_map<std::string, bool> bound_;     // names that some statement assigns
  std::vector<std::pair<std::string, int>> calls_;  // names called, with their lines
};

}  // namespace tetrad::jinja

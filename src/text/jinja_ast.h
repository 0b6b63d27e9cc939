#pragma once
// The parsed template. Every node knows how deep its tree is, and the parser refuses trees deeper than kMaxTreeDepth, so that walking or
// freeing one cannot exhaust the stack.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace tetrad::jinja {

inline constexpr int kMaxTreeDepth = 150;

using FilterFunction = Value (*)(Heap&, const Value& input, const Args& args);
using TestFunction = bool (*)(Heap&, const Value& input, const Args& args);

enum class ExprKind : std::uint8_t {
  kConst,
  kName,
  kList,
  kTuple,
  kDict,
  kAttribute,
  kItem,
  kSlice,
  kCall,
  kFilter,
  kTest,
  kNot,
  kNegate,
  kPositive,
  kBinary,
  kConcat,
  kAnd,
  kOr,
  kCompare,
  kConditional,
};

enum class Op : std::uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kTrueDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  ExprKind kind = ExprKind::kConst;
  int line = 0;
  int depth = 1;
  int name = -1;     // kName: number of the name
  Op op = Op::kAdd;  // kBinary
  Value constant;
  std::string text;  // kName, kAttribute, kFilter, kTest: the name
  // kItem: object, key. kSlice: object, start, stop, step (absent ones null). kDict: key, value, key, value...
  // kCall: callee, arguments. kFilter, kTest: input, arguments. kConditional: value if true, condition, value if false (or null).
  // The input of a kFilter is null for the filter of a block.
  std::vector<ExprPtr> children;
  std::vector<std::string> argument_names;  // kCall, kFilter, kTest: one per argument, empty for a positional one
  std::vector<Op> ops;                      // kCompare: between the children
  FilterFunction filter = nullptr;
  TestFunction test = nullptr;
};

enum class StmtKind : std::uint8_t {
  kText,
  kOutput,
  kFor,
  kIf,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kScope,
  kBreak,
  kContinue,
};

// What an assignment writes: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  int name = -1;
  std::string text;
  std::string attribute;
  std::vector<Target> parts;
};

struct Macro {
  std::string text;
  std::vector<int> parameters;
  std::vector<std::string> parameter_names;
  std::vector<ExprPtr> defaults;  // of the last parameters
  bool takes_caller = false;      // the body speaks of `caller`
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Block = std::vector<StmtPtr>;

struct Stmt {
  StmtKind kind = StmtKind::kText;
  int line = 0;
  int depth = 1;
  std::string text;             // kText
  std::vector<Target> targets;  // kFor, kSet, kSetBlock: one; kWith: one per value
  // kOutput, kSet: value. kSetBlock, kFilterBlock: filter chain or null. kFor: iterable, condition or null. kIf: one per branch.
  // kCallBlock: the call. kWith: values.
  std::vector<ExprPtr> exprs;
  std::vector<Block> blocks;  // kIf: one per branch, then else if there is one. kFor: body, else. Others: body.
  Macro macro;                // kMacro, kCallBlock
  int name = -1;              // kMacro: the name it binds
};

struct Template {
  Block body;
  std::vector<std::string> names;  // by number
  std::string where;
};

// Known filters, tests and functions; null for an unknown name.
FilterFunction find_filter(std::string_view name);
TestFunction find_test(std::string_view name);
bool known_function(std::string_view name);

// Throws LoadError "WHERE:LINE: ..." for a syntax error or a construct outside the subset.
Template parse_template(std::string_view source, std::string_view where);

}  // namespace tetrad::jinja

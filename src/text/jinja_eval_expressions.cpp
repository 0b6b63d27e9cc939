#include <algorithm>
#include <array>

#include "text/jinja_evaluator.h"
#include "text/jinja_methods.h"

namespace tetrad::jinja {

namespace {

constexpr int kCallerName = 1;      // the parser numbers "caller" second
constexpr Int kMaxRange = 100'000;  // as the sandbox of Jinja2 has it
constexpr std::array<std::string_view, 4> kFunctions = {"range", "namespace", "dict", "raise_exception"};

}  // namespace

bool known_function(std::string_view name) { return std::find(kFunctions.begin(), kFunctions.end(), name) != kFunctions.end(); }

Value Evaluator::eval(const Expr& node) {
  const Frame frame(*this);
  line_ = node.line;
  switch (node.kind) {
    case ExprKind::kConst: return node.constant;
    case ExprKind::kName: return eval_name(node);
    case ExprKind::kList:
    case ExprKind::kTuple:
    case ExprKind::kDict: return eval_collection(node);
    case ExprKind::kAttribute: return attribute(heap_, eval(*node.children[0]), node.text);
    case ExprKind::kItem: {
      const Value object = eval(*node.children[0]);
      return item(heap_, object, eval(*node.children[1]));
    }
    case ExprKind::kSlice: return eval_slice(node);
    case ExprKind::kCall: return eval_call(node);
    case ExprKind::kFilter: return eval_filter(node);
    case ExprKind::kTest: return eval_test(node);
    case ExprKind::kNot: return Value::boolean(!truthy(eval(*node.children[0])));
    case ExprKind::kNegate: return negate(eval(*node.children[0]));
    case ExprKind::kPositive: return positive(eval(*node.children[0]));
    case ExprKind::kBinary: return eval_binary(node);
    case ExprKind::kConcat: return eval_concat(node);
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value left = eval(*node.children[0]);
      return truthy(left) == (node.kind == ExprKind::kOr) ? left : eval(*node.children[1]);
    }
    case ExprKind::kCompare: return eval_compare(node);
    case ExprKind::kConditional: return eval_conditional(node);
  }
  fail<InternalError>("an expression of unknown kind {}", static_cast<int>(node.kind));
}

Value Evaluator::eval_name(const Expr& node) {
  if (const Value* known = lookup(node.name)) return *known;
  Value v = heap_.undefined(fmt::format("'{}' is undefined", node.text));
  if (known_function(node.text)) {
    v = heap_.string(node.text);
    v.kind = Kind::kFunction;
  }
  return v;
}

Value Evaluator::eval_collection(const Expr& node) {
  if (node.kind == ExprKind::kDict) {
    std::vector<std::pair<Value, Value>> entries;
    for (std::size_t i = 0; i + 1 < node.children.size(); i += 2) {
      Value key = eval(*node.children[i]);
      entries.emplace_back(std::move(key), eval(*node.children[i + 1]));
    }
    return heap_.dict(std::move(entries));
  }
  std::vector<Value> items;
  items.reserve(node.children.size());
  for (const auto& child : node.children) items.push_back(eval(*child));
  return heap_.list(std::move(items), node.kind == ExprKind::kList ? Kind::kList : Kind::kTuple);
}

Value Evaluator::eval_slice(const Expr& node) {
  const Value object = eval(*node.children[0]);
  std::array<Value, 3> bounds;
  std::array<const Value*, 3> given = {};
  for (std::size_t i = 0; i < 3; ++i) {
    if (!node.children[i + 1]) continue;
    bounds[i] = eval(*node.children[i + 1]);
    given[i] = &bounds[i];
  }
  return slice(heap_, object, given[0], given[1], given[2]);
}

Value Evaluator::eval_binary(const Expr& node) {
  const Value left = eval(*node.children[0]);
  const Value right = eval(*node.children[1]);
  line_ = node.line;
  switch (node.op) {
    case Op::kAdd: return add(heap_, left, right);
    case Op::kSubtract: return subtract(left, right);
    case Op::kMultiply: return multiply(heap_, left, right);
    case Op::kTrueDivide: return true_divide(left, right);
    case Op::kFloorDivide: return floor_divide(left, right);
    case Op::kModulo: return modulo(left, right);
    default: return power(left, right);
  }
}

Value Evaluator::eval_concat(const Expr& node) {
  std::string text;
  for (const auto& child : node.children) {
    const Value piece = eval(*child);
    const std::string shown = piece.is_string() ? std::string() : to_text(heap_, piece);
    const std::string& added = piece.is_string() ? piece.text() : shown;
    heap_.check_string(text.size() + added.size());
    text += added;
  }
  return heap_.string(std::move(text));
}

Value Evaluator::eval_compare(const Expr& node) {
  Value left = eval(*node.children[0]);
  for (std::size_t i = 0; i < node.ops.size(); ++i) {
    Value right = eval(*node.children[i + 1]);
    bool holds = false;
    switch (node.ops[i]) {
      case Op::kEqual: holds = equal(heap_, left, right); break;
      case Op::kNotEqual: holds = !equal(heap_, left, right); break;
      case Op::kIn: holds = contains(heap_, right, left); break;
      case Op::kNotIn: holds = !contains(heap_, right, left); break;
      default: {
        const int order = compare(heap_, left, right);
        holds = !unordered(left, right) && (node.ops[i] == Op::kLess        ? order < 0
                                            : node.ops[i] == Op::kLessEqual ? order <= 0
                                            : node.ops[i] == Op::kGreater   ? order > 0
                                                                            : order >= 0);
      }
    }
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Evaluator::eval_conditional(const Expr& node) {
  if (truthy(eval(*node.children[1]))) return eval(*node.children[0]);
  if (node.children[2]) return eval(*node.children[2]);
  return heap_.undefined("the inline if-expression evaluated to false and has no else");
}

Args Evaluator::eval_arguments(const Expr& node) {
  Args args;
  for (std::size_t i = 1; i < node.children.size(); ++i) {
    Value value = eval(*node.children[i]);
    const std::string& name = node.argument_names[i - 1];
    if (name.empty())
      args.positional.push_back(std::move(value));
    else
      args.named.emplace_back(name, std::move(value));
  }
  return args;
}

Value Evaluator::eval_filter(const Expr& node) {
  const Value input = node.children[0] ? eval(*node.children[0]) : *block_input_;
  const Args args = eval_arguments(node);
  line_ = node.line;
  return node.filter(heap_, input, args);
}

Value Evaluator::eval_test(const Expr& node) {
  const Value input = eval(*node.children[0]);
  const Args args = eval_arguments(node);
  line_ = node.line;
  return Value::boolean(node.test(heap_, input, args));
}

Value Evaluator::eval_call(const Expr& node, const Value* caller) {
  const Value callee = eval(*node.children[0]);
  Args args = eval_arguments(node);
  line_ = node.line;
  switch (callee.kind) {
    case Kind::kMacro: return call_macro(*static_cast<const MacroValue*>(callee.object.get()), std::move(args), caller);
    case Kind::kMethod: return call_method(heap_, *static_cast<const Method*>(callee.object.get()), args);
    case Kind::kFunction: return call_function(callee.text(), args);
    case Kind::kUndefined: refuse_undefined(callee);
    default: refuse("a {} cannot be called", type_name(callee));
  }
}

Value Evaluator::call_macro(const MacroValue& macro, Args args, const Value* caller) {
  const Frame frame(*this);
  // The macro value may die while its body runs, as when the body rebinds its name.
  const Stmt& stmt = *macro.stmt;
  const std::shared_ptr<Scope> scope = macro.scope;
  if (macro_depth_ >= heap_.limits().macro_depth) refuse("macros call each other more than {} deep", heap_.limits().macro_depth);
  if (caller != nullptr && !stmt.macro.takes_caller)
    refuse("macro '{}' does not take the block of a call: it never uses 'caller'", stmt.macro.text);
  ++macro_depth_;
  try {
    const Entered entered(*this, open_scope(scope));
    bind_parameters(macro, std::move(args));
    bind(kCallerName, caller != nullptr ? *caller : heap_.undefined("no caller is defined"));
    std::string text = capture(stmt.blocks[0]);
    --macro_depth_;
    return heap_.string(std::move(text));
  } catch (...) {
    --macro_depth_;
    throw;
  }
}

void Evaluator::bind_parameters(const MacroValue& macro, Args args) {
  const Macro& signature = macro.stmt->macro;
  const std::size_t count = signature.parameters.size();
  if (args.positional.size() > count)
    refuse("macro '{}' takes at most {} argument(s), got {}", signature.text, count, args.positional.size());
  std::vector<const Value*> given(count, nullptr);
  for (std::size_t i = 0; i < args.positional.size(); ++i) given[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    const auto at = std::find(signature.parameter_names.begin(), signature.parameter_names.end(), name);
    if (at == signature.parameter_names.end()) refuse("macro '{}' has no parameter '{}'", signature.text, name);
    const Value*& slot = given[static_cast<std::size_t>(at - signature.parameter_names.begin())];
    if (slot != nullptr) refuse("macro '{}' got the parameter '{}' twice", signature.text, name);
    slot = &value;
  }
  const std::size_t first_default = count - signature.defaults.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (given[i] != nullptr) {
      bind(signature.parameters[i], *given[i]);
    } else if (i >= first_default) {
      bind(signature.parameters[i], eval(*signature.defaults[i - first_default]));
    } else {
      bind(signature.parameters[i], heap_.undefined(fmt::format("parameter '{}' was not provided", signature.parameter_names[i])));
    }
  }
}

Value Evaluator::make_range(const Args& args) {
  if (!args.named.empty() || args.positional.empty() || args.positional.size() > 3) refuse("range takes one to three integers");
  std::array<Int, 3> v = {0, 0, 1};
  for (std::size_t i = 0; i < args.positional.size(); ++i) {
    const Value& given = args.positional[i];
    if (given.is_undefined()) refuse_undefined(given);
    if (!given.is_integer()) refuse("range takes integers, got {}", type_name(given));
    v[args.positional.size() == 1 ? 1 : i] = given.integer;
  }
  const auto [start, stop, step] = v;
  if (step == 0) refuse("the step of a range cannot be zero");
  const Int span = step > 0 ? stop - start : start - stop, stride = step > 0 ? step : -step;
  const Int count = span > 0 ? (span + stride - 1) / stride : 0;
  if (count > kMaxRange) refuse("a range of more than {} items is not allowed", static_cast<int>(kMaxRange));
  return heap_.range(start, stop, step);
}

Value Evaluator::call_function(std::string_view name, const Args& args) {
  if (name == "raise_exception") throw TemplateError(to_text(heap_, *args.bind(name, {"message"}, 1)[0]));
  if (name == "range") return make_range(args);
  // namespace and dict: an optional mapping, then named values.
  if (args.positional.size() > 1) refuse("{} takes at most one mapping", name);
  std::vector<std::pair<Value, Value>> entries;
  if (!args.positional.empty()) {
    if (!args.positional[0].is_dict()) refuse("{} takes a mapping, got {}", name, type_name(args.positional[0]));
    entries = args.positional[0].dict().entries;
  }
  for (const auto& [key, value] : args.named) {
    Value text = heap_.string(key);
    entries.emplace_back(std::move(text), value);
  }
  Value dict = heap_.dict(std::move(entries));
  if (name == "dict") return dict;
  std::vector<std::pair<std::string, Value>> attributes;
  for (const auto& [key, value] : dict.dict().entries) {
    if (!key.is_string()) refuse("a namespace needs names, got {}", type_name(key));
    attributes.emplace_back(key.text(), value);
  }
  return heap_.make_namespace(std::move(attributes));
}

}  // namespace tetrad::jinja

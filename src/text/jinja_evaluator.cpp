// Statements, scopes and output; expressions are in jinja_eval_expressions.cpp.
#include "text/jinja_evaluator.h"

#include <algorithm>

namespace tetrad::jinja {

namespace {

constexpr int kLoopName = 0;  // the parser numbers "loop" first
constexpr std::int64_t kScopeBytes = 128;

}  // namespace

std::string render(const Template& source, const nlohmann::ordered_json& variables, const Limits& limits) {
  if (!variables.is_object()) fail<InputError>("the variables of a template must be an object, got {}", variables.type_name());
  Evaluator evaluator(source, limits);
  try {
    return evaluator.run(variables);
  } catch (const Failure& failure) {
    fail<TemplateError>("{}:{}: {}", source.where, evaluator.line(), failure.what());
  }
}

Evaluator::~Evaluator() {
  heap_.clear_namespaces();
  for (const auto& scope : captured_) {
    scope->variables.clear();
    scope->parent.reset();
  }
}

std::string Evaluator::run(const nlohmann::ordered_json& variables) {
  scope_ = std::make_shared<Scope>();
  for (std::size_t i = 0; i < source_.names.size(); ++i) {
    const auto at = variables.find(source_.names[i]);
    if (at != variables.end()) bind(static_cast<int>(i), heap_.from_json(*at));
  }
  scope_ = open_scope(scope_);
  exec_block(source_.body);
  return std::move(output_);
}

void Evaluator::too_deep() const { refuse("the template nests more than {} deep while rendering", heap_.limits().nesting); }

std::shared_ptr<Scope> Evaluator::open_scope(std::shared_ptr<Scope> parent) {
  auto scope = std::make_shared<Scope>();
  scope->parent = std::move(parent);
  return scope;
}

const Value* Evaluator::lookup(int name) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    heap_.step(1 + static_cast<std::int64_t>(scope->variables.size() / 32));
    for (const auto& [known, value] : scope->variables) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

void Evaluator::bind(int name, Value value) {
  heap_.step(1 + static_cast<std::int64_t>(scope_->variables.size() / 32));
  for (auto& [known, old] : scope_->variables) {
    if (known != name) continue;
    old = std::move(value);
    return;
  }
  scope_->variables.emplace_back(name, std::move(value));
}

void Evaluator::assign(const Target& target, Value value) {
  if (!target.parts.empty()) {
    const std::vector<Value> items = items_of(heap_, value);
    if (items.size() != target.parts.size()) refuse("cannot unpack {} value(s) into {} names", items.size(), target.parts.size());
    for (std::size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i]);
    return;
  }
  if (target.attribute.empty()) return bind(target.name, std::move(value));
  const Value* space = lookup(target.name);
  if (space == nullptr || !space->is(Kind::kNamespace)) refuse("cannot assign an attribute of '{}': it is not a namespace", target.text);
  auto& attributes = static_cast<const Namespace*>(space->object.get())->attributes;
  const auto known = std::find_if(attributes.begin(), attributes.end(), [&](const auto& a) { return a.first == target.attribute; });
  heap_.step(1 + static_cast<std::int64_t>(attributes.size() / 16));
  if (known != attributes.end()) {
    const Value old = std::exchange(known->second, std::move(value));
  } else {
    attributes.emplace_back(target.attribute, std::move(value));
  }
}

void Evaluator::write(std::string_view text) {
  buffered_ += text.size();
  if (buffered_ > heap_.limits().output_bytes) refuse("the output would exceed {} bytes", heap_.limits().output_bytes);
  heap_.step_bytes(text.size());
  *out_ += text;
}

Evaluator::Flow Evaluator::exec_block(const Block& block) {
  const Frame frame(*this);
  for (const auto& stmt : block) {
    const Flow flow = exec(*stmt);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::exec(const Stmt& stmt) {
  heap_.step();
  line_ = stmt.line;
  switch (stmt.kind) {
    case StmtKind::kText: write(stmt.text); return Flow::kNormal;
    case StmtKind::kOutput: {
      const Value value = eval(*stmt.exprs[0]);
      value.is_string() ? write(value.text()) : write(to_text(heap_, value));
      return Flow::kNormal;
    }
    case StmtKind::kIf: return exec_if(stmt);
    case StmtKind::kFor: return exec_for(stmt);
    case StmtKind::kSet: assign(stmt.targets[0], eval(*stmt.exprs[0])); return Flow::kNormal;
    case StmtKind::kSetBlock:
      assign(stmt.targets[0], apply_block_filter(stmt.exprs[0].get(), capture(stmt.blocks[0])));
      return Flow::kNormal;
    case StmtKind::kFilterBlock:
      write(to_text(heap_, apply_block_filter(stmt.exprs[0].get(), capture(stmt.blocks[0]))));
      return Flow::kNormal;
    case StmtKind::kMacro: exec_macro(stmt); return Flow::kNormal;
    case StmtKind::kCallBlock: {
      const Value caller = macro_value(stmt);
      write(to_text(heap_, eval_call(*stmt.exprs[0], &caller)));
      return Flow::kNormal;
    }
    case StmtKind::kWith: return exec_with(stmt);
    case StmtKind::kScope: {
      const Entered entered(*this, open_scope(scope_));
      return exec_block(stmt.blocks[0]);
    }
    case StmtKind::kBreak: return Flow::kBreak;
    case StmtKind::kContinue: return Flow::kContinue;
  }
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::exec_if(const Stmt& stmt) {
  for (std::size_t i = 0; i < stmt.exprs.size(); ++i) {
    if (truthy(eval(*stmt.exprs[i]))) return exec_block(stmt.blocks[i]);
  }
  return stmt.blocks.size() > stmt.exprs.size() ? exec_block(stmt.blocks.back()) : Flow::kNormal;
}

// What the loop runs over, after its condition.
std::vector<Value> Evaluator::loop_items(const Stmt& stmt) {
  std::vector<Value> items = items_of(heap_, eval(*stmt.exprs[0]));
  const Expr* condition = stmt.exprs[1].get();
  if (condition == nullptr) return items;
  std::vector<Value> kept;
  for (Value& value : items) {
    const Entered entered(*this, open_scope(scope_));
    assign(stmt.targets[0], value);
    if (truthy(eval(*condition))) kept.push_back(std::move(value));
  }
  return kept;
}

Evaluator::Flow Evaluator::exec_for(const Stmt& stmt) {
  const Value items = heap_.list(loop_items(stmt));
  const std::size_t count = items.sequence().items.size();
  auto loop = std::make_shared<Loop>();
  loop->items = std::static_pointer_cast<const Sequence>(items.object);
  heap_.adopt(*loop, sizeof(Loop), items.object->depth + 1);
  Value loop_value;
  loop_value.kind = Kind::kLoop;
  loop_value.object = loop;
  std::shared_ptr<Scope> body;
  bool finished_one = false;  // a round that breaks or continues does not count, as Jinja2 has it
  for (std::size_t i = 0; i < count; ++i) {
    // A scope that a macro holds must stay as it is.
    if (body == nullptr || body.use_count() > 1) body = open_scope(scope_);
    body->variables.clear();
    const Entered entered(*this, body);
    loop->position = i;
    assign(stmt.targets[0], items.sequence().items[i]);
    bind(kLoopName, loop_value);
    const Flow flow = exec_block(stmt.blocks[0]);
    if (flow == Flow::kBreak) break;
    finished_one = finished_one || flow == Flow::kNormal;
  }
  if (finished_one || stmt.blocks.size() < 2) return Flow::kNormal;
  const Entered entered(*this, open_scope(scope_));
  return exec_block(stmt.blocks[1]);
}

Evaluator::Flow Evaluator::exec_with(const Stmt& stmt) {
  std::vector<Value> values;
  for (const auto& expr : stmt.exprs) values.push_back(eval(*expr));
  const Entered entered(*this, open_scope(scope_));
  for (std::size_t i = 0; i < values.size(); ++i) assign(stmt.targets[i], std::move(values[i]));
  return exec_block(stmt.blocks[0]);
}

Value Evaluator::macro_value(const Stmt& stmt) {
  auto macro = std::make_shared<MacroValue>();
  macro->stmt = &stmt;
  macro->scope = scope_;
  heap_.adopt(*macro, sizeof(MacroValue) + kScopeBytes, 1);
  if (captured_.empty() || captured_.back() != scope_) captured_.push_back(scope_);
  Value v;
  v.kind = Kind::kMacro;
  v.object = std::move(macro);
  return v;
}

void Evaluator::exec_macro(const Stmt& stmt) { bind(stmt.name, macro_value(stmt)); }

// Runs a block into a buffer of its own. The scope is the block's.
std::string Evaluator::capture(const Block& block) {
  std::string buffer;
  const std::size_t before = buffered_;
  std::string* const outer = std::exchange(out_, &buffer);
  try {
    const Entered entered(*this, open_scope(scope_));
    exec_block(block);
  } catch (...) {
    out_ = outer;
    throw;
  }
  out_ = outer;
  buffered_ = before;
  return buffer;
}

Value Evaluator::apply_block_filter(const Expr* chain, std::string text) {
  const Value input = heap_.string(std::move(text));
  if (chain == nullptr) return input;
  const Value* const outer = std::exchange(block_input_, &input);
  try {
    Value filtered = eval(*chain);
    block_input_ = outer;
    return filtered;
  } catch (...) {
    block_input_ = outer;
    throw;
  }
}

}  // namespace tetrad::jinja

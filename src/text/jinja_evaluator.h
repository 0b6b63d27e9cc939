#pragma once
// Renders a parsed template. One Evaluator per rendering.
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/chat_template.h"
#include "text/jinja_ast.h"

namespace tetrad::jinja {

// Names by number. A loop iteration, a macro call, a `with` and the like each open one; names not found are looked up in the parent.
struct Scope {
  std::vector<std::pair<int, Value>> variables;
  std::shared_ptr<Scope> parent;
};

struct MacroValue : Object {
  const Stmt* stmt = nullptr;    // kMacro or kCallBlock: signature and body
  std::shared_ptr<Scope> scope;  // where it was defined
};

// Throws TemplateError: with the template's own words for raise_exception, else "WHERE:LINE: what went wrong".
std::string render(const Template& source, const nlohmann::ordered_json& variables, const Limits& limits = {});

class Evaluator {
 public:
  Evaluator(const Template& source, const Limits& limits) : source_(source), heap_(limits) {}
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;
  ~Evaluator();

  std::string run(const nlohmann::ordered_json& variables);
  int line() const { return line_; }

 private:
  enum class Flow { kNormal, kBreak, kContinue };

  // One frame of the walk over the tree; bounds the native stack.
  class Frame {
   public:
    explicit Frame(Evaluator& evaluator) : evaluator_(evaluator) {
      evaluator_.heap_.step();
      if (evaluator_.depth_ >= evaluator_.heap_.limits().nesting) evaluator_.too_deep();
      ++evaluator_.depth_;
    }
    ~Frame() { --evaluator_.depth_; }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    Evaluator& evaluator_;
  };

  // Makes a scope the current one for as long as it lives.
  class Entered {
   public:
    Entered(Evaluator& evaluator, std::shared_ptr<Scope> scope)
        : evaluator_(evaluator), outer_(std::exchange(evaluator.scope_, std::move(scope))) {}
    ~Entered() { evaluator_.scope_ = std::move(outer_); }
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;

   private:
    Evaluator& evaluator_;
    std::shared_ptr<Scope> outer_;
  };

  [[noreturn]] void too_deep() const;
  std::shared_ptr<Scope> open_scope(std::shared_ptr<Scope> parent);
  const Value* lookup(int name);
  void bind(int name, Value value);
  void assign(const Target& target, Value value);
  void write(std::string_view text);

  Flow exec_block(const Block& block);
  Flow exec(const Stmt& stmt);
  Flow exec_if(const Stmt& stmt);
  Flow exec_for(const Stmt& stmt);
  Flow exec_with(const Stmt& stmt);
  void exec_macro(const Stmt& stmt);
  std::vector<Value> loop_items(const Stmt& stmt);
  std::string capture(const Block& block);
  Value apply_block_filter(const Expr* chain, std::string text);

  Value eval(const Expr& node);
  Value eval_name(const Expr& node);
  Value eval_binary(const Expr& node);
  Value eval_concat(const Expr& node);
  Value eval_compare(const Expr& node);
  Value eval_conditional(const Expr& node);
  Value eval_slice(const Expr& node);
  Value eval_collection(const Expr& node);
  Value eval_filter(const Expr& node);
  Value eval_test(const Expr& node);
  Value eval_call(const Expr& node, const Value* caller = nullptr);
  Args eval_arguments(const Expr& node);
  Value macro_value(const Stmt& stmt);
  Value call_macro(const MacroValue& macro, Args args, const Value* caller);
  void bind_parameters(const MacroValue& macro, Args args);
  Value call_function(std::string_view name, const Args& args);
  Value make_range(const Args& args);

  const Template& source_;
  Heap heap_;                                     // outlives every value below
  std::vector<std::shared_ptr<Scope>> captured_;  // scopes that macros hold; emptied at the end, as they may hold the macros
  std::shared_ptr<Scope> scope_;
  std::string output_;
  std::string* out_ = &output_;
  const Value* block_input_ = nullptr;  // the text of the block whose filters are being applied
  std::size_t buffered_ = 0;            // bytes in all output buffers
  int depth_ = 0;
  int macro_depth_ = 0;
  int line_ = 1;
};

}  // namespace tetrad::jinja

#pragma once
// Values of the template interpreter, with Python's meaning, and the heap that bounds what one rendering may use. Values are immutable
// (a template cannot change a list or a dict, only rebind names and set attributes of a namespace), cheap to copy and never cyclic except
// through namespaces and scopes, which the evaluator owns and empties at the end.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tetrad::jinja {

__extension__ typedef __int128 Int;  // wide enough that no checked operation on -2^63 .. 2^64-1 wraps before its check

// What went wrong while rendering, without the place; the evaluator adds file and line and throws TemplateError.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure(fmt::format(format, std::forward<Args>(args)...));
}

struct Limits {
  std::int64_t steps = 10'000'000;  // evaluation steps; long strings and lists cost in proportion
  std::size_t output_bytes = 32u << 20;
  std::size_t string_bytes = 32u << 20;  // of one intermediate string
  std::size_t list_items = 1u << 20;     // of one intermediate list
  std::int64_t live_bytes = 256 << 20;   // of all values alive at one time
  int nesting = 500;                     // evaluator frames
  int macro_depth = 64;                  // macros that call macros
  int value_depth = 128;                 // lists in lists
};

enum class Kind : std::uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kRange,
  kView,
  kIterator,  // all backed by a Sequence; a view is what dict.items() yields, an iterator is read once
  kDict,
  kNamespace,
  kLoop,
  kMacro,
  kMethod,
  kFunction,
};

// Base of everything that lives on the heap; gives its bytes back to the heap's account when it dies.
struct Object {
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() {
    if (account != nullptr) *account -= charged;
  }
  std::int64_t* account = nullptr;
  std::int64_t charged = 0;
  int depth = 0;  // 1 + the largest depth of what it holds; 0 for strings
};

struct Value {
  Kind kind = Kind::kUndefined;
  union {
    Int integer;  // kBool (0 or 1) and kInt
    double real;  // kFloat
  };
  std::shared_ptr<const Object> object;  // kUndefined may carry its explanation as a String

  Value() : integer(0) {}
  static Value none();
  static Value boolean(bool b);
  static Value integral(Int i);  // throws Failure outside -2^63 .. 2^64-1
  static Value floating(double d);

  bool is(Kind k) const { return kind == k; }
  bool is_undefined() const { return kind == Kind::kUndefined; }
  bool is_none() const { return kind == Kind::kNone; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_dict() const { return kind == Kind::kDict; }
  bool is_integer() const { return kind == Kind::kInt || kind == Kind::kBool; }
  bool is_number() const { return is_integer() || kind == Kind::kFloat; }
  bool is_sequence() const { return kind >= Kind::kList && kind <= Kind::kIterator; }

  const std::string& text() const;          // kString
  const struct Sequence& sequence() const;  // is_sequence()
  const struct Dict& dict() const;          // kDict
};

struct String : Object {
  std::string text;  // valid UTF-8
};

struct Sequence : Object {
  std::vector<Value> items;
  std::string label;                    // of a view: how Python prints it
  Int start = 0, stop = 0, stride = 1;  // of a range
  mutable std::size_t next = 0;         // of an iterator: items already read
};

struct Dict : Object {
  std::vector<std::pair<Value, Value>> entries;   // insertion order
  std::map<std::string_view, std::size_t> index;  // string keys, once there are more than a few entries
};

struct Namespace : Object {
  mutable std::vector<std::pair<std::string, Value>> attributes;
};

struct Loop : Object {
  std::shared_ptr<const Sequence> items;
  mutable std::size_t position = 0;
  int level = 1;
};

struct Method : Object {  // `x.name` where Python's type of x has a method of that name
  Value self;
  std::string name;
};

// Arguments of a call, filter, test or method.
struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The arguments in the order of `names`; an absent one is a null pointer. Throws Failure on one too many, unknown or given twice.
  std::vector<const Value*> bind(std::string_view callee, std::initializer_list<std::string_view> names, std::size_t required = 0) const;
};

// Makes values and keeps the accounts. Must outlive every value made from it.
class Heap {
 public:
  explicit Heap(const Limits& limits) : limits_(limits) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  const Limits& limits() const { return limits_; }
  void step(std::int64_t n = 1) {
    steps_ += n;
    if (steps_ > limits_.steps) out_of_steps();
  }
  void step_bytes(std::size_t n) { step(1 + static_cast<std::int64_t>(n / 64)); }
  void check_string(std::size_t bytes) const;  // before it is built
  void check_list(std::size_t items) const;

  Value string(std::string text);
  Value list(std::vector<Value> items, Kind kind = Kind::kList, std::string label = {});
  Value range(Int start, Int stop, Int stride);              // stride is not zero; the caller has bounded the number of items
  Value dict(std::vector<std::pair<Value, Value>> entries);  // a later equal key replaces the value of an earlier one
  Value undefined(std::string why);
  Value make_namespace(std::vector<std::pair<std::string, Value>> attributes);
  Value method(const Value& self, std::string_view name);
  Value from_json(const nlohmann::ordered_json& json, int depth = 0);
  void adopt(Object& object, std::size_t bytes, int depth);  // charges the account

  // Empties every namespace, so that values which hold each other are freed.
  void clear_namespaces();

 private:
  [[noreturn]] void out_of_steps() const;
  Limits limits_;
  std::int64_t steps_ = 0;
  std::int64_t live_ = 0;
  std::vector<std::shared_ptr<const Namespace>> namespaces_;
};

// Python's operations. Those that can fail throw Failure.
bool truthy(const Value& v);
bool equal(Heap& heap, const Value& a, const Value& b);
int compare(Heap& heap, const Value& a, const Value& b);  // <0, 0, >0; Failure where Python has no order
bool unordered(const Value& a, const Value& b);           // a NaN is among them: every ordering is false
bool contains(Heap& heap, const Value& container, const Value& item);
const Value* find(Heap& heap, const Dict& dict, const Value& key);
std::string type_name(const Value& v);
std::vector<Value> items_of(Heap& heap, const Value& iterable);  // what a for loop sees; consumes an iterator
Value length_of(Heap& heap, const Value& v);
std::string to_text(Heap& heap, const Value& v);  // str()
std::string to_repr(Heap& heap, const Value& v);  // repr()

Value add(Heap& heap, const Value& a, const Value& b);
Value subtract(const Value& a, const Value& b);
Value multiply(Heap& heap, const Value& a, const Value& b);
Value true_divide(const Value& a, const Value& b);
Value floor_divide(const Value& a, const Value& b);
Value modulo(const Value& a, const Value& b);
Value power(const Value& a, const Value& b);
Value negate(const Value& a);
Value positive(const Value& a);

Value attribute(Heap& heap, const Value& object, std::string_view name);  // x.name
Value item(Heap& heap, const Value& object, const Value& key);            // x[key]
Value slice(Heap& heap, const Value& object, const Value* start, const Value* stop, const Value* step);
[[noreturn]] void refuse_undefined(const Value& v);  // "'x' is undefined"

}  // namespace tetrad::jinja

// Runs a parsed template: scopes, statements, expressions, calls. One Interpreter per render; the Template is
// shared and never written. A Failure ends the render, so nothing is restored on its way out.
//
// Attribute rules are those of Jinja's sandbox: x.name looks for a method first and a key second, x["name"]
// the other way round. A name that starts with an underscore is no method. Unlike the sandbox, list.append
// and its kind are allowed: all data is this render's own copy.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/value.h"

namespace oar::jinja {

// Wall-clock time for strftime_now, in the caller's zone.
struct ClockTime {
  int year = 1970, month = 1, day = 1;  // month, day from 1
  int hour = 0, minute = 0, second = 0;
};
// Python's strftime in the C locale, without time zone. Fails for a directive it does not know.
std::string format_time(const ClockTime& t, std::string_view format);

// Variables of one block. Macros keep the scope they were defined in alive.
struct Scope {
  Scope(Heap& h, std::shared_ptr<Scope> p) : heap(h), parent(std::move(p)) {}
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope() { heap.refund(values.size() * kVariableBytes); }

  static constexpr size_t kVariableBytes = sizeof(Value) + sizeof(Symbol);
  Heap& heap;
  std::shared_ptr<Scope> parent;
  std::vector<Symbol> symbols;
  std::vector<Value> values;

  Value* find(Symbol s) {
    for (size_t i = 0; i < symbols.size(); ++i)
      if (symbols[i] == s) return &values[i];
    return nullptr;
  }
};
using ScopePtr = std::shared_ptr<Scope>;

// Something to call: a macro, a method of a value, a global function, or a macro-like helper object.
struct Callable : Object {
  enum class Kind : uint8_t { kMacro, kMethod, kFunction, kCycler, kJoiner };
  Kind kind = Kind::kFunction;
  const MacroDefinition* macro = nullptr;
  ScopePtr scope;                    // kMacro: where it was defined
  const Builtin* builtin = nullptr;  // kMethod, kFunction
  Value self;                        // kMethod: the object; kJoiner: the separator
  std::vector<Value> items;          // kCycler
  size_t position = 0;               // kCycler, kJoiner (calls so far)

  void drop_values() override {
    scope.reset();
    self = Value();
    items.clear();
  }
};

// The `loop` variable.
struct LoopState : Object {
  std::vector<Value> items;
  size_t index = 0;
  int depth = 0;                  // of a recursive loop, from 0
  const ForStmt* body = nullptr;  // recursive loops only
  ScopePtr scope;                 // recursive loops only: where the loop stands
  bool changed_called = false;
  std::vector<Value> last_changed;

  void drop_values() override {
    items.clear();
    scope.reset();
    last_changed.clear();
  }
};

inline Value Value::of(Callable* p) { return Value(Type::kCallable, p); }
inline Value Value::of(LoopState* p) { return Value(Type::kLoop, p); }
inline Callable* Value::callable() const { return static_cast<Callable*>(object()); }
inline LoopState* Value::loop() const { return static_cast<LoopState*>(object()); }

class Interpreter {
 public:
  // `now` is what strftime_now prints.
  Interpreter(const Template& t, const Limits& limits, const ClockTime& now);

  // Visible to the whole template.
  void define(std::string_view name, Value v);
  // Whether the template mentions the name at all; others need not be defined.
  bool mentions(std::string_view name) const;

  // Throws Failure, with the line where it happened.
  Text render();

  Heap& heap() { return heap_; }
  const ClockTime& now() const { return now_; }

  // --- for builtins ---
  Value call(const Value& callee, const CallArguments& arguments);
  Value attribute(const Value& object, const Value& name);  // object.name
  Value element(const Value& object, const Value& key);     // object[key]
  // A dotted path of filters ("a.b.0"), or an integer; None is the object itself. `fallback` (null or None:
  // none) stands in for each step that is undefined.
  Value path(const Value& object, const Value& dotted, const Value* fallback = nullptr);
  Value filter(std::string_view name, const Value& v, const CallArguments& arguments);
  bool test(std::string_view name, const Value& v, const CallArguments& arguments);

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };
  // One level of this class's own recursion.
  class Deeper {
   public:
    explicit Deeper(Interpreter& in) : in_(in) {
      in_.heap_.step();
      if (++in_.depth_ > in_.heap_.limits().max_depth) in_.too_deep();
    }
    ~Deeper() { --in_.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    Interpreter& in_;
  };
  [[noreturn]] void too_deep() const;

  Flow run(const Block& block);
  Flow run(const Stmt& stmt);
  Flow run_if(const IfStmt& s);
  Flow run_for(const ForStmt& s);
  Flow loop_over(const ForStmt& s, std::vector<Value> items, int depth);
  void run_set_block(const SetBlockStmt& s);
  void run_call_block(const CallBlockStmt& s);
  Flow run_scoped(const Block& body);
  Flow run_with(const WithStmt& s);

  Value eval(const Expr& e);
  Value eval_binary(const Binary& e);
  Value eval_logical(const Binary& e);
  Value eval_compare(const Compare& e);
  Value eval_concat(const ItemsExpr& e);
  Value eval_items(const ItemsExpr& e);
  Value eval_dict(const DictExpr& e);
  Value eval_slice(const Slice& e);
  Value eval_call(const Call& e);
  Value eval_applied(const Applied& e, const Value* block_text);
  Value apply_chain(const Expr& e, const Value& text);
  void eval_arguments(const Arguments& a, CallArguments& out);

  Value call_macro(const Callable& c, const CallArguments& arguments);
  Value call_loop(LoopState& loop, const CallArguments& arguments);
  Value call_helper(Callable& c, const CallArguments& arguments);
  Value bind_macro(const MacroDefinition& m);
  Value method(const Value& object, std::string_view name);  // kUndefined type when there is none
  Value loop_attribute(LoopState& loop, std::string_view name);
  Value callable_attribute(Callable& c, std::string_view name);

  Value lookup(Symbol s);
  void assign(Symbol s, Value v);
  void assign_target(const Expr& target, Value v);
  void push_scope();

  void write(const Value& text);
  // Runs `body` with output going to a string of its own.
  template <class Body>
  Value capture(Body body) {
    Text outer = std::exchange(out_, {});
    const bool was_capturing = std::exchange(capturing_, true);
    body();
    heap_.refund(out_.weight());
    capturing_ = was_capturing;
    std::swap(out_, outer);
    return heap_.string(std::move(outer));
  }

  const Template& template_;
  Heap heap_;
  ClockTime now_;
  ScopePtr scope_;
  Text out_;
  bool capturing_ = false;
  int depth_ = 0;
  int line_ = 0;
};

// Operators of operators.cc.
Value binary_operation(Interpreter& in, Operator op, const Value& a, const Value& b);
Value negate(const Value& v, bool minus);
bool compare_operation(Interpreter& in, Operator op, const Value& a, const Value& b);
bool contains(Interpreter& in, const Value& container, const Value& item);
// object[start:stop:step]; None for a bound that is not given. Fails for what cannot be sliced.
Value slice_value(Interpreter& in, const Value& object, const Value& start, const Value& stop,
                  const Value& step);
// a + b of any mix of plain text and markup.
Value concatenate(Heap& heap, const Value& a, const Value& b);

// Printed forms of objects (print.cc).
std::string describe_callable(const Callable& c);
std::string describe_loop(const LoopState& l);

}  // namespace oar::jinja

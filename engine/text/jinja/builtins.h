// Filters, tests, methods and global functions of the template language: one shape for all of them, one table
// each. A builtin names its parameters; the binder fills them from positional and keyword arguments and
// reports what is missing or too much, so the functions themselves only compute.
#pragma once

#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/jinja/value.h"

namespace oar::jinja {

class Interpreter;

struct CallArguments {
  std::vector<Value> positional;
  std::vector<std::pair<Value, Value>> keyword;  // name (a string), value
};

inline constexpr size_t kMaxParameters = 5;

// The arguments of one builtin call. p[i] is null when parameter i was not given. Variadic builtins read
// `all`.
struct Bound {
  const Value* p[kMaxParameters] = {};
  const CallArguments* all = nullptr;

  bool has(size_t i) const { return p[i] != nullptr; }
  const Value& operator[](size_t i) const { return *p[i]; }
};

struct Builtin {
  using Function = Value (*)(Interpreter&, const Value& self, const Bound&);
  std::string_view name;
  Function function;
  std::string_view parameters = {};  // names, separated by blanks
  size_t required = 0;               // how many of them must be given
  bool variadic = false;             // takes anything; see Bound::all
};

// Calls `b` with `self` (the filtered or tested value, the method's object; undefined for a global function).
Value call_builtin(Interpreter& in, const Builtin& b, const Value& self, const CallArguments& arguments);

// Null when there is none of that name.
const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_function(std::string_view name);  // range, dict, namespace, raise_exception, ...
const Builtin* find_method(const Value& object, std::string_view name);

// The tables behind them, one per file.
std::span<const Builtin> sequence_filters();
std::span<const Builtin> text_filters();
std::span<const Builtin> string_methods();
std::span<const Builtin> container_methods(Type type, SequenceKind kind);

// --- shared by the files of builtins ---

inline Value number(size_t n) { return Value::integer(static_cast<Int>(n)); }
inline Value yes_no(bool b) { return Value::boolean(b); }
// Whether argument i is given and true.
inline bool flag(const Bound& a, size_t i) { return a.has(i) && truthy(a[i]); }

// Argument readers: fail with the parameter's meaning when the type is wrong.
Int to_int(const Value& v, std::string_view what);
std::string_view to_text(const Value& v, std::string_view what);

// dict(mapping or pairs, **more) into `d`; `name` is the function to blame.
void fill_dict(Interpreter& in, Dict& d, const Bound& a, std::string_view name);

// Python's "%" and str.format; strftime without locale.
Value format_percent(Interpreter& in, const Value& format, const Value& arguments);
Value format_braces(Interpreter& in, const Value& format, const CallArguments& arguments);
struct ClockTime;
// The text of one value under a format spec ("5.2f", ">10"): what format() does.
std::string format_spec(Interpreter& in, const Value& v, std::string_view spec);

}  // namespace oar::jinja

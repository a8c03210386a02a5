// Global functions and tests, and the look-up of every builtin by name.
#include <algorithm>

#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/interpreter.h"

namespace oar::jinja {
namespace {

// --- global functions ---

Value g_range(Interpreter& in, const Value&, const Bound& a) {
  Int start = 0, step = 1;
  Int stop = to_int(a[0], "range's argument");
  if (a.has(1)) {
    start = stop;
    stop = to_int(a[1], "range's end");
  }
  if (a.has(2)) step = to_int(a[2], "range's step");
  if (step == 0) fail("range() arg 3 must not be zero");
  Heap& heap = in.heap();
  std::vector<Value> items;
  for (Int i = start; step > 0 ? i < stop : i > stop;) {
    if (items.size() >= heap.limits().max_range)
      fail("Range too big. The sandbox blocks ranges larger than ", heap.limits().max_range, ".");
    items.push_back(Value::integer(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  heap.step(items.size() / 4);
  Value r = heap.make(SequenceKind::kRange, std::move(items));
  r.sequence()->stop = stop;
  return r;
}

Value g_dict(Interpreter& in, const Value&, const Bound& a) {
  Dict* d = in.heap().dict();
  fill_dict(in, *d, a, "dict");
  return Value::of(d);
}

Value g_namespace(Interpreter& in, const Value&, const Bound& a) {
  auto ns = std::make_unique<Namespace>();
  ns->attributes = Value::of(in.heap().dict());
  fill_dict(in, *ns->attributes.dict(), a, "namespace");
  for (const auto& [key, value] : ns->attributes.dict()->entries)
    if (key.is_string() && key.str().starts_with('_'))
      fail("cannot store the underscore-prefixed attribute '", key.str(), "' on a namespace");
  return Value::of(in.heap().adopt(std::move(ns)));
}

Value g_cycler(Interpreter& in, const Value&, const Bound& a) {
  if (a.all->positional.empty()) fail("at least one item has to be provided");
  auto c = std::make_unique<Callable>();
  c->kind = Callable::Kind::kCycler;
  c->items = a.all->positional;
  return Value::of(in.heap().adopt(std::move(c)));
}

Value g_joiner(Interpreter& in, const Value&, const Bound& a) {
  auto c = std::make_unique<Callable>();
  c->kind = Callable::Kind::kJoiner;
  c->self = a.has(0) ? a[0] : Value::borrowed(", ");
  return Value::of(in.heap().adopt(std::move(c)));
}

Value g_raise_exception(Interpreter& in, const Value&, const Bound& a) {
  fail(to_str(in.heap(), a[0]).str());
}

Value g_strftime_now(Interpreter& in, const Value&, const Bound& a) {
  const std::string_view format = to_text(a[0], "strftime_now's format");
  if (format.size() > 1000) fail("strftime_now's format is longer than 1000 bytes");
  return in.heap().string(format_time(in.now(), format), true);
}

constexpr Builtin kFunctions[] = {
    {"cycler", g_cycler, "", 0, true},
    {"dict", g_dict, "", 0, true},
    {"joiner", g_joiner, "sep"},
    {"namespace", g_namespace, "", 0, true},
    {"raise_exception", g_raise_exception, "message", 1},
    {"range", g_range, "start stop step", 1},
    {"strftime_now", g_strftime_now, "format", 1},
};

// --- tests ---

template <Type... kTypes>
Value t_type(Interpreter&, const Value& v, const Bound&) {
  return yes_no((v.is(kTypes) || ...));
}

Value t_defined(Interpreter&, const Value& v, const Bound&) { return yes_no(!v.is_undefined()); }
Value t_undefined(Interpreter&, const Value& v, const Bound&) { return yes_no(v.is_undefined()); }
Value t_true(Interpreter&, const Value& v, const Bound&) { return yes_no(v.is(Type::kBool) && v.as_bool()); }
Value t_false(Interpreter&, const Value& v, const Bound&) {
  return yes_no(v.is(Type::kBool) && !v.as_bool());
}
Value t_iterable(Interpreter&, const Value& v, const Bound&) { return yes_no(is_iterable(v)); }
Value t_escaped(Interpreter&, const Value& v, const Bound&) { return yes_no(v.is_markup()); }
Value t_sameas(Interpreter&, const Value& v, const Bound& a) { return yes_no(same(v, a[0])); }
Value t_in(Interpreter& in, const Value& v, const Bound& a) { return yes_no(contains(in, a[0], v)); }

Value t_sequence(Interpreter&, const Value& v, const Bound&) {
  return yes_no(v.is_undefined() || v.is_string() || v.is(Type::kDict) ||
                (v.is(Type::kSequence) && v.sequence()->indexable()));
}

Value t_callable(Interpreter&, const Value& v, const Bound&) {
  return yes_no(v.is_undefined() || v.is(Type::kCallable) || v.is(Type::kLoop));
}

template <Operator kOp>
Value t_compare(Interpreter& in, const Value& v, const Bound& a) {
  return yes_no(compare_operation(in, kOp, v, a[0]));
}

bool remainder_is(Interpreter& in, const Value& v, const Value& divisor, Int wanted) {
  return equals(in.heap(), binary_operation(in, Operator::kModulo, v, divisor), Value::integer(wanted));
}
Value t_odd(Interpreter& in, const Value& v, const Bound&) {
  return yes_no(remainder_is(in, v, Value::integer(2), 1));
}
Value t_even(Interpreter& in, const Value& v, const Bound&) {
  return yes_no(remainder_is(in, v, Value::integer(2), 0));
}
Value t_divisibleby(Interpreter& in, const Value& v, const Bound& a) {
  return yes_no(remainder_is(in, v, a[0], 0));
}

Value case_test(Interpreter& in, const Value& v, std::string_view method) {
  const Value s = to_str(in.heap(), v);
  return call_builtin(in, *find_method(s, method), s, {});
}
Value t_lower(Interpreter& in, const Value& v, const Bound&) { return case_test(in, v, "islower"); }
Value t_upper(Interpreter& in, const Value& v, const Bound&) { return case_test(in, v, "isupper"); }

Value t_filter(Interpreter&, const Value& v, const Bound&) {
  return yes_no(v.is_string() && find_filter(v.str()) != nullptr);
}
Value t_test(Interpreter&, const Value& v, const Bound&) {
  return yes_no(v.is_string() && find_test(v.str()) != nullptr);
}

constexpr Builtin kTests[] = {
    {"!=", t_compare<Operator::kNotEqual>, "other", 1},
    {"<", t_compare<Operator::kLess>, "other", 1},
    {"<=", t_compare<Operator::kLessEqual>, "other", 1},
    {"==", t_compare<Operator::kEqual>, "other", 1},
    {">", t_compare<Operator::kGreater>, "other", 1},
    {">=", t_compare<Operator::kGreaterEqual>, "other", 1},
    {"boolean", t_type<Type::kBool>},
    {"callable", t_callable},
    {"defined", t_defined},
    {"divisibleby", t_divisibleby, "num", 1},
    {"eq", t_compare<Operator::kEqual>, "other", 1},
    {"equalto", t_compare<Operator::kEqual>, "other", 1},
    {"escaped", t_escaped},
    {"even", t_even},
    {"false", t_false},
    {"filter", t_filter},
    {"float", t_type<Type::kFloat>},
    {"ge", t_compare<Operator::kGreaterEqual>, "other", 1},
    {"greaterthan", t_compare<Operator::kGreater>, "other", 1},
    {"gt", t_compare<Operator::kGreater>, "other", 1},
    {"in", t_in, "seq", 1},
    {"integer", t_type<Type::kInt>},
    {"iterable", t_iterable},
    {"le", t_compare<Operator::kLessEqual>, "other", 1},
    {"lessthan", t_compare<Operator::kLess>, "other", 1},
    {"lower", t_lower},
    {"lt", t_compare<Operator::kLess>, "other", 1},
    {"mapping", t_type<Type::kDict>},
    {"ne", t_compare<Operator::kNotEqual>, "other", 1},
    {"none", t_type<Type::kNone>},
    {"number", t_type<Type::kInt, Type::kBool, Type::kFloat>},
    {"odd", t_odd},
    {"sameas", t_sameas, "other", 1},
    {"sequence", t_sequence},
    {"string", t_type<Type::kString>},
    {"test", t_test},
    {"true", t_true},
    {"undefined", t_undefined},
    {"upper", t_upper},
};

const Builtin* find(std::span<const Builtin> table, std::string_view name) {
  const auto at = std::lower_bound(table.begin(), table.end(), name,
                                   [](const Builtin& b, std::string_view n) { return b.name < n; });
  return at != table.end() && at->name == name ? &*at : nullptr;
}

}  // namespace

const Builtin* find_filter(std::string_view name) {
  const Builtin* b = find(text_filters(), name);
  return b != nullptr ? b : find(sequence_filters(), name);
}

const Builtin* find_test(std::string_view name) { return find(kTests, name); }
const Builtin* find_function(std::string_view name) { return find(kFunctions, name); }

const Builtin* find_method(const Value& object, std::string_view name) {
  if (object.is_string()) return find(string_methods(), name);
  const SequenceKind kind = object.is(Type::kSequence) ? object.sequence()->kind : SequenceKind::kIterator;
  return find(container_methods(object.type(), kind), name);
}

Int to_int(const Value& v, std::string_view what) {
  if (v.is_undefined()) fail(v.undefined_message());
  if (!v.is_integral()) fail(what, " must be an integer, not ", type_name(v));
  return v.as_int();
}

std::string_view to_text(const Value& v, std::string_view what) {
  if (v.is_undefined()) fail(v.undefined_message());
  if (!v.is_string()) fail(what, " must be a string, not ", type_name(v));
  return v.str();
}

}  // namespace oar::jinja

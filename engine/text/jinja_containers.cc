// Methods of list, tuple, dict and the helper objects; global functions; tests; and the look-up of all
// builtins.
#include <algorithm>
#include <cmath>

#include "engine/text/jinja_builtins.h"
#include "engine/text/jinja_interpreter.h"
#include "engine/text/jinja_text.h"

namespace oar::jinja {
namespace {

Value number(size_t n) { return Value::integer(static_cast<Int>(n)); }
Value yes_no(bool b) { return Value::boolean(b); }
std::vector<Value>& items_of(const Value& self) { return self.sequence()->items; }

// --- list and tuple ---

// insert() clamps positions; pop() does not.
size_t clamped(const std::vector<Value>& items, Int i) {
  const auto n = static_cast<Int>(items.size());
  if (i < 0) i += n;
  return static_cast<size_t>(std::clamp<Int>(i, 0, n));
}

Value l_append(Interpreter& in, const Value& self, const Bound& a) {
  in.heap().append(*self.sequence(), a[0]);
  return Value::none();
}

Value l_extend(Interpreter& in, const Value& self, const Bound& a) {
  for (Value& v : iterate(in.heap(), a[0])) in.heap().append(*self.sequence(), std::move(v));
  return Value::none();
}

Value l_insert(Interpreter& in, const Value& self, const Bound& a) {
  auto& items = items_of(self);
  in.heap().charge(sizeof(Value));
  in.heap().step(items.size() / 8);
  items.insert(items.begin() + static_cast<ptrdiff_t>(clamped(items, to_int(a[0], "insert's index"))), a[1]);
  return Value::none();
}

Value l_pop(Interpreter& in, const Value& self, const Bound& a) {
  auto& items = items_of(self);
  if (items.empty()) fail("pop from empty list");
  Int i = a.has(0) ? to_int(a[0], "pop's index") : -1;
  if (i < 0) i += static_cast<Int>(items.size());
  if (i < 0 || i >= static_cast<Int>(items.size())) fail("pop index out of range");
  in.heap().step(items.size() / 8);
  const auto at = items.begin() + static_cast<ptrdiff_t>(i);
  Value v = std::move(*at);
  items.erase(at);
  return v;
}

// Position of the first equal item, or the size.
size_t position(Interpreter& in, const Value& self, const Value& wanted) {
  const auto& items = items_of(self);
  for (size_t i = 0; i < items.size(); ++i)
    if (equals(in.heap(), items[i], wanted)) return i;
  return items.size();
}

Value l_remove(Interpreter& in, const Value& self, const Bound& a) {
  const size_t at = position(in, self, a[0]);
  if (at == items_of(self).size()) fail("list.remove(x): x not in list");
  in.heap().step(items_of(self).size() / 8);
  items_of(self).erase(items_of(self).begin() + static_cast<ptrdiff_t>(at));
  return Value::none();
}

Value l_index(Interpreter& in, const Value& self, const Bound& a) {
  const size_t at = position(in, self, a[0]);
  if (at == items_of(self).size()) fail(repr(in.heap(), a[0]), " is not in ", type_name(self));
  return number(at);
}

Value l_count(Interpreter& in, const Value& self, const Bound& a) {
  size_t n = 0;
  for (const Value& v : items_of(self)) n += equals(in.heap(), v, a[0]);
  return number(n);
}

Value l_reverse(Interpreter& in, const Value& self, const Bound&) {
  in.heap().step(items_of(self).size() / 8);
  std::reverse(items_of(self).begin(), items_of(self).end());
  return Value::none();
}

Value l_sort(Interpreter& in, const Value& self, const Bound& a) {
  CallArguments arguments;
  arguments.positional = {yes_no(a.has(0) && truthy(a[0])), yes_no(true)};
  const Value sorted = in.filter("sort", self, arguments);
  items_of(self) = items_of(sorted);
  return Value::none();
}

Value l_copy(Interpreter& in, const Value& self, const Bound&) {
  return in.heap().list(iterate(in.heap(), self));
}

Value l_clear(Interpreter&, const Value& self, const Bound&) {
  items_of(self).clear();
  return Value::none();
}

constexpr Builtin kListMethods[] = {
    {"append", l_append, "object", 1},
    {"clear", l_clear},
    {"copy", l_copy},
    {"count", l_count, "value", 1},
    {"extend", l_extend, "iterable", 1},
    {"index", l_index, "value", 1},
    {"insert", l_insert, "index object", 2},
    {"pop", l_pop, "index"},
    {"remove", l_remove, "value", 1},
    {"reverse", l_reverse},
    {"sort", l_sort, "reverse"},
};
constexpr Builtin kTupleMethods[] = {{"count", l_count, "value", 1}, {"index", l_index, "value", 1}};

// --- dict ---

Value view(Interpreter& in, const Value& self, SequenceKind kind) {
  Heap& heap = in.heap();
  std::vector<Value> out;
  const auto& entries = self.dict()->entries;
  heap.step(entries.size());
  for (const auto& [key, value] : entries)
    out.push_back(kind == SequenceKind::kKeys     ? key
                  : kind == SequenceKind::kValues ? value
                                                  : heap.tuple({key, value}));
  return heap.make(kind, std::move(out));
}

Value d_keys(Interpreter& in, const Value& self, const Bound&) { return view(in, self, SequenceKind::kKeys); }
Value d_values(Interpreter& in, const Value& self, const Bound&) {
  return view(in, self, SequenceKind::kValues);
}
Value d_items(Interpreter& in, const Value& self, const Bound&) {
  return view(in, self, SequenceKind::kItems);
}

Value d_get(Interpreter&, const Value& self, const Bound& a) {
  require_hashable(a[0]);
  if (const Value* v = self.dict()->find(a[0])) return *v;
  return a.has(1) ? a[1] : Value::none();
}

Value d_pop(Interpreter& in, const Value& self, const Bound& a) {
  require_hashable(a[0]);
  if (const Value* found = self.dict()->find(a[0])) {
    Value v = *found;
    self.dict()->erase(in.heap(), a[0]);
    return v;
  }
  if (!a.has(1)) fail("pop: the dict has no key ", repr(in.heap(), a[0]));
  return a[1];
}

Value d_popitem(Interpreter& in, const Value& self, const Bound&) {
  if (self.dict()->entries.empty()) fail("popitem(): dictionary is empty");
  const auto [key, value] = self.dict()->entries.back();
  self.dict()->erase(in.heap(), key);
  return in.heap().tuple({key, value});
}

Value d_setdefault(Interpreter& in, const Value& self, const Bound& a) {
  require_hashable(a[0]);
  if (const Value* v = self.dict()->find(a[0])) return *v;
  self.dict()->set(in.heap(), a[0], a.has(1) ? a[1] : Value::none());
  return a.has(1) ? a[1] : Value::none();
}

// dict(mapping or pairs, **more) into `d`.
void fill(Interpreter& in, Dict& d, const Bound& a, std::string_view name) {
  Heap& heap = in.heap();
  if (a.all->positional.size() > 1)
    fail(name, " expected at most 1 argument, got ", a.all->positional.size());
  for (const Value& source : a.all->positional) {
    if (source.is(Type::kDict)) {
      const auto entries = source.dict()->entries;
      heap.step(entries.size());
      for (const auto& [key, value] : entries) d.set(heap, key, value);
      continue;
    }
    for (const Value& item : iterate(heap, source)) {
      const std::vector<Value> two = iterate(heap, item);
      if (two.size() != 2) fail(name, ": an item has length ", two.size(), "; 2 is required");
      require_hashable(two[0]);
      d.set(heap, two[0], two[1]);
    }
  }
  for (const auto& [key, value] : a.all->keyword) d.set(heap, key, value);
}

Value d_update(Interpreter& in, const Value& self, const Bound& a) {
  fill(in, *self.dict(), a, "update");
  return Value::none();
}

Value d_copy(Interpreter& in, const Value& self, const Bound&) {
  Dict* d = in.heap().dict();
  in.heap().step(self.dict()->entries.size());
  for (const auto& [key, value] : self.dict()->entries) d->set(in.heap(), key, value);
  return Value::of(d);
}

Value d_clear(Interpreter&, const Value& self, const Bound&) {
  self.dict()->clear();
  return Value::none();
}

constexpr Builtin kDictMethods[] = {
    {"clear", d_clear},
    {"copy", d_copy},
    {"get", d_get, "key default", 1},
    {"items", d_items},
    {"keys", d_keys},
    {"pop", d_pop, "key default", 1},
    {"popitem", d_popitem},
    {"setdefault", d_setdefault, "key default", 1},
    {"update", d_update, "", 0, true},
    {"values", d_values},
};

// --- loop, cycler, numbers ---

Value loop_cycle(Interpreter&, const Value& self, const Bound& a) {
  if (a.all->positional.empty()) fail("no items for cycling given");
  return a.all->positional[self.loop()->index % a.all->positional.size()];
}

Value loop_changed(Interpreter& in, const Value& self, const Bound& a) {
  LoopState& l = *self.loop();
  const auto& now = a.all->positional;
  bool changed = !l.changed_called || now.size() != l.last_changed.size();
  for (size_t i = 0; !changed && i < now.size(); ++i) changed = !equals(in.heap(), now[i], l.last_changed[i]);
  l.changed_called = true;
  l.last_changed = now;
  return yes_no(changed);
}

constexpr Builtin kLoopMethods[] = {{"changed", loop_changed, "", 0, true},
                                    {"cycle", loop_cycle, "", 0, true}};

Value cycler_next(Interpreter&, const Value& self, const Bound&) {
  Callable& c = *self.callable();
  Value v = c.items[c.position];
  c.position = (c.position + 1) % c.items.size();
  return v;
}

Value cycler_reset(Interpreter&, const Value& self, const Bound&) {
  self.callable()->position = 0;
  return Value::none();
}

constexpr Builtin kCyclerMethods[] = {{"next", cycler_next}, {"reset", cycler_reset}};

Value float_is_integer(Interpreter&, const Value& self, const Bound&) {
  return yes_no(std::isfinite(self.as_double()) && std::floor(self.as_double()) == self.as_double());
}

constexpr Builtin kFloatMethods[] = {{"is_integer", float_is_integer}};

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
  fill(in, *d, a, "dict");
  return Value::of(d);
}

Value g_namespace(Interpreter& in, const Value&, const Bound& a) {
  auto ns = std::make_unique<Namespace>();
  ns->attributes = in.heap().dict();
  fill(in, *ns->attributes, a, "namespace");
  for (const auto& [key, value] : ns->attributes->entries)
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
  return in.heap().string(format_time(in.now(), format));
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

std::span<const Builtin> container_methods(Type type, SequenceKind kind) {
  if (type == Type::kDict) return kDictMethods;
  if (type == Type::kLoop) return kLoopMethods;
  if (type == Type::kFloat) return kFloatMethods;
  if (type == Type::kCallable) return kCyclerMethods;
  if (type == Type::kSequence && kind == SequenceKind::kList) return kListMethods;
  if (type == Type::kSequence &&
      (kind == SequenceKind::kTuple || kind == SequenceKind::kGroup || kind == SequenceKind::kRange))
    return kTupleMethods;
  return {};
}

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

// Methods of list, tuple, dict, float, the loop variable and cyclers.
#include <algorithm>
#include <cmath>

#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/interpreter.h"

namespace oar::jinja {
namespace {

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
  in.heap().charge(*self.sequence(), sizeof(Value));
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

Value d_update(Interpreter& in, const Value& self, const Bound& a) {
  fill_dict(in, *self.dict(), a, "update");
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

// dict(mapping or pairs, **more) into `d`.
void fill_dict(Interpreter& in, Dict& d, const Bound& a, std::string_view name) {
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

}  // namespace oar::jinja

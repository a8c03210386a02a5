// Filters over sequences and mappings: choosing, ordering, grouping, aggregating. What Jinja returns as a
// generator is an iterator here too (one pass, no length), computed at once.
#include <algorithm>
#include <cmath>

#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/text.h"

namespace oar::jinja {
namespace {

using Items = std::vector<Value>;

Value hint(std::string_view message) { return Value::undefined(Missing::kHint, Value::borrowed(message)); }

Value lowered(Interpreter& in, const Value& v) {
  if (!v.is_string()) return v;
  in.heap().work(4 * v.str().size());
  return in.heap().string(to_lower(v.str()), v.has_user_bytes());
}

// The sort key of filters with case_sensitive and attribute parameters; `attribute` null: the item itself.
Value key_of(Interpreter& in, const Value& item, const Value* attribute, bool case_sensitive,
             const Value* fallback = nullptr) {
  const Value v = attribute == nullptr ? item : in.path(item, *attribute, fallback);
  return case_sensitive ? v : lowered(in, v);
}

struct Keyed {
  Value key, item;
};

// Stable, in either direction.
void sort_keyed(Interpreter& in, std::vector<Keyed>& items, bool reverse) {
  if (reverse) std::reverse(items.begin(), items.end());
  std::stable_sort(items.begin(), items.end(),
                   [&](const Keyed& a, const Keyed& b) { return less(in.heap(), a.key, b.key); });
  if (reverse) std::reverse(items.begin(), items.end());
}

Items items_of(const std::vector<Keyed>& keyed) {
  Items out;
  out.reserve(keyed.size());
  for (const Keyed& k : keyed) out.push_back(k.item);
  return out;
}

Value f_first(Interpreter& in, const Value& v, const Bound&) {
  if (v.is(Type::kSequence) && v.sequence()->kind == SequenceKind::kIterator) {
    Sequence& s = *v.sequence();
    return s.taken < s.items.size() ? s.items[s.taken++] : hint("No first item, sequence was empty.");
  }
  if (v.is(Type::kSequence) && !v.sequence()->items.empty()) return v.sequence()->items.front();
  if (v.is_string() && !v.str().empty()) return in.element(v, Value::integer(0));
  const Items items = iterate(in.heap(), v);
  return items.empty() ? hint("No first item, sequence was empty.") : items.front();
}

Value f_last(Interpreter& in, const Value& v, const Bound&) {
  if (!is_iterable(v) || (v.is(Type::kSequence) && v.sequence()->kind == SequenceKind::kIterator))
    fail("'", type_name(v), "' object is not reversible");
  if (v.is(Type::kSequence) && !v.sequence()->items.empty()) return v.sequence()->items.back();
  if (v.is_string() && !v.str().empty()) return in.element(v, Value::integer(-1));
  const Items items = iterate(in.heap(), v);
  return items.empty() ? hint("No last item, sequence was empty.") : items.back();
}

Value f_length(Interpreter& in, const Value& v, const Bound&) { return number(length(in.heap(), v)); }

Value f_list(Interpreter& in, const Value& v, const Bound&) { return in.heap().list(iterate(in.heap(), v)); }

Value f_join(Interpreter& in, const Value& v, const Bound& a) {
  Heap& heap = in.heap();
  const Value joint = a.has(0) ? to_str(heap, a[0]) : Value::borrowed("");
  const std::string_view separator = joint.str();
  Text out;
  bool first = true;
  for (const Value& item : iterate(heap, v)) {
    if (!first) out.add(joint);
    first = false;
    const Value piece = to_str(heap, a.has(1) && !a[1].is_none() ? in.path(item, a[1]) : item);
    heap.expect(out.weight() + piece.str().size() + separator.size());
    heap.work(piece.str().size() + separator.size());
    out.add(piece);
  }
  return heap.string(std::move(out));
}

// map("filter", ...) or map(attribute="path", default=x).
Value f_map(Interpreter& in, const Value& v, const Bound& a) {
  if (!truthy(v)) return in.heap().iterator({});
  const Value* attribute = nullptr;
  const Value* fallback = nullptr;
  CallArguments rest;
  if (a.all->positional.empty()) {
    for (const auto& [name, value] : a.all->keyword) {
      if (name.str() == "attribute") attribute = &value;
      else if (name.str() == "default") fallback = &value;
      else fail("map() got an unexpected keyword argument '", name.str(), "'");
    }
    if (attribute == nullptr) fail("map requires a filter argument");
  } else {
    rest.positional.assign(a.all->positional.begin() + 1, a.all->positional.end());
    rest.keyword = a.all->keyword;
  }
  Items out;
  for (const Value& item : iterate(in.heap(), v)) {
    if (attribute == nullptr) {
      out.push_back(in.filter(to_text(a.all->positional[0], "map's filter name"), item, rest));
      continue;
    }
    out.push_back(in.path(item, *attribute, fallback));
  }
  return in.heap().iterator(std::move(out));
}

// select("test", ...), selectattr("path", "test", ...) and their opposites.
Value select(Interpreter& in, const Value& v, const Bound& a, bool by_attribute, bool keep_when) {
  if (!truthy(v)) return in.heap().iterator({});
  const auto& given = a.all->positional;
  if (by_attribute && given.empty()) fail("Missing parameter for attribute name");
  const size_t test_at = by_attribute ? 1 : 0;
  CallArguments rest;
  if (given.size() > test_at) {
    rest.positional.assign(given.begin() + static_cast<ptrdiff_t>(test_at) + 1, given.end());
    rest.keyword = a.all->keyword;
  }
  Items out;
  for (const Value& item : iterate(in.heap(), v)) {
    const Value subject = by_attribute ? in.path(item, given[0]) : item;
    const bool passed = given.size() > test_at
                            ? in.test(to_text(given[test_at], "the test's name"), subject, rest)
                            : truthy(subject);
    if (passed == keep_when) out.push_back(item);
  }
  return in.heap().iterator(std::move(out));
}

Value f_select(Interpreter& in, const Value& v, const Bound& a) { return select(in, v, a, false, true); }
Value f_reject(Interpreter& in, const Value& v, const Bound& a) { return select(in, v, a, false, false); }
Value f_selectattr(Interpreter& in, const Value& v, const Bound& a) { return select(in, v, a, true, true); }
Value f_rejectattr(Interpreter& in, const Value& v, const Bound& a) { return select(in, v, a, true, false); }

// sort(reverse, case_sensitive, attribute): attribute may list several paths, separated by commas.
Value f_sort(Interpreter& in, const Value& v, const Bound& a) {
  std::vector<Keyed> keyed;
  std::vector<Value> paths;
  if (a.has(2) && a[2].is_string()) {
    for (const std::string_view part : split_at(a[2].str(), ",", -1, false))
      paths.push_back(a[2].slice(static_cast<size_t>(part.data() - a[2].str().data()), part.size()));
  } else if (a.has(2) && !a[2].is_none()) {
    paths.push_back(a[2]);
  }
  for (Value& item : iterate(in.heap(), v)) {
    Items keys;
    for (const Value& p : paths) keys.push_back(key_of(in, item, &p, flag(a, 1)));
    Value key = paths.empty() ? key_of(in, item, nullptr, flag(a, 1)) : in.heap().list(std::move(keys));
    keyed.push_back({std::move(key), std::move(item)});
  }
  sort_keyed(in, keyed, flag(a, 0));
  return in.heap().list(items_of(keyed));
}

Value f_unique(Interpreter& in, const Value& v, const Bound& a) {
  const Value keys = Value::of(in.heap().dict());
  Dict* const seen = keys.dict();
  Items out;
  for (const Value& item : iterate(in.heap(), v)) {
    const Value key = key_of(in, item, a.has(1) ? &a[1] : nullptr, flag(a, 0));
    require_hashable(key);
    if (seen->find(key) != nullptr) continue;
    seen->set(in.heap(), key, Value::none());
    out.push_back(item);
  }
  return in.heap().iterator(std::move(out));
}

Value extreme(Interpreter& in, const Value& v, const Bound& a, bool largest) {
  const Items items = iterate(in.heap(), v);
  if (items.empty()) return hint("No aggregated item, sequence was empty.");
  const Value* attribute = a.has(1) ? &a[1] : nullptr;
  size_t best = 0;
  Value best_key = key_of(in, items[0], attribute, flag(a, 0));
  for (size_t i = 1; i < items.size(); ++i) {
    Value key = key_of(in, items[i], attribute, flag(a, 0));
    const bool better = largest ? less(in.heap(), best_key, key, ">", true) : less(in.heap(), key, best_key);
    if (!better) continue;
    best = i;
    best_key = std::move(key);
  }
  return items[best];
}

Value f_min(Interpreter& in, const Value& v, const Bound& a) { return extreme(in, v, a, false); }
Value f_max(Interpreter& in, const Value& v, const Bound& a) { return extreme(in, v, a, true); }

Value f_sum(Interpreter& in, const Value& v, const Bound& a) {
  Value total = a.has(1) ? a[1] : Value::integer(0);
  if (total.is_string()) fail("sum() can't sum strings [use join instead]");
  for (const Value& item : iterate(in.heap(), v))
    total =
        binary_operation(in, Operator::kAdd, total, a.has(0) && !a[0].is_none() ? in.path(item, a[0]) : item);
  return total;
}

Value f_reverse(Interpreter& in, const Value& v, const Bound&) {
  if (v.is_string()) return slice_value(in, v, Value::none(), Value::none(), Value::integer(-1));
  if (!is_iterable(v)) fail("reverse: the value of type '", type_name(v), "' is not iterable");
  Items items = iterate(in.heap(), v);
  std::reverse(items.begin(), items.end());
  return in.heap().iterator(std::move(items));
}

Value f_items(Interpreter& in, const Value& v, const Bound&) {
  Items out;
  if (!v.is_undefined()) {
    if (!v.is(Type::kDict)) fail("Can only get item pairs from a mapping.");
    in.heap().step(v.dict()->entries.size());
    for (const auto& [key, value] : v.dict()->entries) out.push_back(in.heap().tuple({key, value}));
  }
  return in.heap().iterator(std::move(out));
}

// dictsort(case_sensitive, by, reverse)
Value f_dictsort(Interpreter& in, const Value& v, const Bound& a) {
  const std::string_view by = a.has(1) ? to_text(a[1], "dictsort's by") : "key";
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  if (v.is_undefined()) fail(v.undefined_message());
  if (!v.is(Type::kDict)) fail("dictsort needs a mapping, not ", type_name(v));
  std::vector<Keyed> keyed;
  in.heap().step(v.dict()->entries.size());
  for (const auto& [key, value] : v.dict()->entries)
    keyed.push_back(
        {key_of(in, by == "key" ? key : value, nullptr, flag(a, 0)), in.heap().tuple({key, value})});
  sort_keyed(in, keyed, flag(a, 2));
  return in.heap().list(items_of(keyed));
}

// groupby(attribute, default, case_sensitive)
Value f_groupby(Interpreter& in, const Value& v, const Bound& a) {
  Heap& heap = in.heap();
  const Value* fallback = a.has(1) ? &a[1] : nullptr;
  const bool case_sensitive = flag(a, 2);
  std::vector<Keyed> keyed;
  for (Value& item : iterate(heap, v)) {
    Value key = key_of(in, item, &a[0], case_sensitive, fallback);
    keyed.push_back({std::move(key), std::move(item)});
  }
  sort_keyed(in, keyed, false);
  Items groups;
  for (size_t i = 0; i < keyed.size();) {
    Items members;
    const Value key = keyed[i].key;
    const Value shown = key_of(in, keyed[i].item, &a[0], true, fallback);
    for (; i < keyed.size() && equals(heap, key, keyed[i].key); ++i) members.push_back(keyed[i].item);
    if (members.empty()) members.push_back(keyed[i++].item);  // a NaN key equals nothing, not even itself
    groups.push_back(heap.make(SequenceKind::kGroup, {shown, heap.list(std::move(members))}));
  }
  return heap.list(std::move(groups));
}

// batch(linecount, fill_with): rows of `linecount` items.
Value f_batch(Interpreter& in, const Value& v, const Bound& a) {
  const Int width = to_int(a[0], "batch's linecount");
  Heap& heap = in.heap();
  Items rows, row;
  for (Value& item : iterate(heap, v)) {
    if (static_cast<Int>(row.size()) == width) rows.push_back(heap.list(std::exchange(row, {})));
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    if (a.has(1) && !a[1].is_none() && static_cast<Int>(row.size()) < width) {
      if (width > static_cast<Int>(heap.limits().max_range))
        fail("batch: a linecount past ", heap.limits().max_range, " cannot be filled");
      row.resize(static_cast<size_t>(width), a[1]);
    }
    rows.push_back(heap.list(std::move(row)));
  }
  return heap.iterator(std::move(rows));
}

// slice(slices, fill_with): `slices` columns.
Value f_slice(Interpreter& in, const Value& v, const Bound& a) {
  const Int slices = to_int(a[0], "slice's count");
  Heap& heap = in.heap();
  if (slices == 0) fail("integer division or modulo by zero");
  if (slices > static_cast<Int>(heap.limits().max_range))
    fail("slice: more than ", heap.limits().max_range, " slices");
  const Items items = iterate(heap, v);
  Items columns;
  const auto n = slices < 0 ? 0 : static_cast<size_t>(slices);
  size_t at = 0;
  for (size_t i = 0; i < n; ++i) {
    const bool extra = i < items.size() % n;
    const size_t size = items.size() / n + (extra ? 1 : 0);
    Items column(items.begin() + static_cast<ptrdiff_t>(at),
                 items.begin() + static_cast<ptrdiff_t>(at + size));
    at += size;
    if (a.has(1) && !a[1].is_none() && !extra) column.push_back(a[1]);
    columns.push_back(heap.list(std::move(column)));
  }
  return heap.iterator(std::move(columns));
}

Value f_default(Interpreter&, const Value& v, const Bound& a) {
  if (v.is_undefined() || (flag(a, 1) && !truthy(v))) return a.has(0) ? a[0] : Value::borrowed("");
  return v;
}

Value f_attr(Interpreter& in, const Value& v, const Bound& a) {
  to_text(a[0], "attr's name");
  // Only a real attribute: never a key of a mapping.
  if (v.is(Type::kDict) && find_method(v, a[0].str()) == nullptr)
    return Value::undefined(Missing::kAttribute, a[0], Type::kDict);
  return in.attribute(v, a[0]);
}

Value f_random(Interpreter&, const Value&, const Bound&) {
  fail("the filter random is not supported: a prompt must be reproducible");
}

constexpr Builtin kSequenceFilters[] = {
    {"attr", f_attr, "name", 1},
    {"batch", f_batch, "linecount fill_with", 1},
    {"count", f_length},
    {"d", f_default, "default_value boolean"},
    {"default", f_default, "default_value boolean"},
    {"dictsort", f_dictsort, "case_sensitive by reverse"},
    {"first", f_first},
    {"groupby", f_groupby, "attribute default case_sensitive", 1},
    {"items", f_items},
    {"join", f_join, "d attribute"},
    {"last", f_last},
    {"length", f_length},
    {"list", f_list},
    {"map", f_map, "", 0, true},
    {"max", f_max, "case_sensitive attribute"},
    {"min", f_min, "case_sensitive attribute"},
    {"random", f_random},
    {"reject", f_reject, "", 0, true},
    {"rejectattr", f_rejectattr, "", 0, true},
    {"reverse", f_reverse},
    {"select", f_select, "", 0, true},
    {"selectattr", f_selectattr, "", 0, true},
    {"slice", f_slice, "slices fill_with", 1},
    {"sort", f_sort, "reverse case_sensitive attribute"},
    {"sum", f_sum, "attribute start"},
    {"unique", f_unique, "case_sensitive attribute"},
};

}  // namespace

std::span<const Builtin> sequence_filters() { return kSequenceFilters; }

}  // namespace oar::jinja

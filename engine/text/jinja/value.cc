#include "engine/text/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "engine/text/jinja/text.h"

namespace oar::jinja {
namespace {

// Three-way order of any two numbers, exact where a 128-bit integer meets a double. NaN: unordered (2).
int compare_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int();
  if (a.is(Type::kFloat) && b.is(Type::kFloat)) {
    const double x = a.as_double(), y = b.as_double();
    if (std::isnan(x) || std::isnan(y)) return 2;
    return x < y ? -1 : x > y;
  }
  if (b.is(Type::kFloat)) {
    const double y = b.as_double();
    if (std::isnan(y)) return 2;
    // 2^126: within it the floor of a double is an exact Int.
    if (y >= 0x1p126) return -1;
    if (y <= -0x1p126) return 1;
    const double whole = std::floor(y);
    const Int floor_y = static_cast<Int>(whole);
    if (a.as_int() != floor_y) return a.as_int() < floor_y ? -1 : 1;
    return y > whole ? -1 : 0;
  }
  const int r = compare_numbers(b, a);
  return r == 2 ? 2 : -r;
}

int key_class(const Value& v) {
  switch (v.type()) {
    case Type::kUndefined: return 0;
    case Type::kNone: return 1;
    case Type::kBool:
    case Type::kInt:
    case Type::kFloat: return 2;
    case Type::kString: return 3;
    case Type::kSequence: return 4;
    default: return 5;
  }
}

int compare_keys(const Value& a, const Value& b) {
  const int ca = key_class(a), cb = key_class(b);
  if (ca != cb) return ca < cb ? -1 : 1;
  switch (ca) {
    case 2: {
      const int r = compare_numbers(a, b);
      if (r != 2) return r;
      // All NaNs are one key, after every other number.
      const bool na = a.is(Type::kFloat) && std::isnan(a.as_double());
      const bool nb = b.is(Type::kFloat) && std::isnan(b.as_double());
      return na == nb ? 0 : na ? 1 : -1;
    }
    case 3: {
      const int r = a.str().compare(b.str());
      return r < 0 ? -1 : r > 0;
    }
    case 4: {
      const auto &x = a.sequence()->items, &y = b.sequence()->items;
      for (size_t i = 0; i < x.size() && i < y.size(); ++i)
        if (const int r = compare_keys(x[i], y[i]); r != 0) return r;
      return x.size() < y.size() ? -1 : x.size() > y.size();
    }
    case 5: return a.identity() < b.identity() ? -1 : a.identity() > b.identity();
    default: return 0;
  }
}

std::string_view sequence_name(SequenceKind kind) {
  switch (kind) {
    case SequenceKind::kList: return "list";
    case SequenceKind::kTuple: return "tuple";
    case SequenceKind::kGroup: return "_GroupTuple";
    case SequenceKind::kRange: return "range";
    case SequenceKind::kKeys: return "dict_keys";
    case SequenceKind::kValues: return "dict_values";
    case SequenceKind::kItems: return "dict_items";
    case SequenceKind::kIterator: return "generator";
  }
  return "sequence";
}

std::string_view name_of(Type type, SequenceKind kind) {
  switch (type) {
    case Type::kUndefined: return "Undefined";
    case Type::kNone: return "NoneType";
    case Type::kBool: return "bool";
    case Type::kInt: return "int";
    case Type::kFloat: return "float";
    case Type::kString: return "str";
    case Type::kSequence: return sequence_name(kind);
    case Type::kDict: return "dict";
    case Type::kNamespace: return "Namespace";
    case Type::kCallable: return "function";
    case Type::kLoop: return "LoopContext";
  }
  return "object";
}

// The first span that ends behind `position`.
std::vector<TextSpan>::const_iterator first_behind(const std::vector<TextSpan>& spans, size_t position) {
  return std::upper_bound(spans.begin(), spans.end(), position,
                          [](size_t p, const TextSpan& s) { return p < s.end; });
}

void check_depth(int depth, std::string_view doing) {
  if (depth > kMaxDataDepth)
    throw Failure{StatusCode::kResourceExhausted,
                  cat("cannot ", doing, ": the value is nested deeper than ", kMaxDataDepth, " levels")};
}

}  // namespace

Value Value::undefined(Missing how, const Value& name, Type object, uint8_t object_kind) {
  Value v;
  v.aux_ = static_cast<uint8_t>(how);
  v.object_type_ = object;
  v.object_kind_ = object_kind;
  if (name.is_string()) {
    v.size_ = name.size_;
    v.string_ = name.string_;
    if (v.string_.owner != nullptr) ++v.string_.owner->references;
  }
  return v;
}

std::string Value::undefined_message() const {
  const std::string_view name{string_.data, size_};
  const std::string_view object = object_type_ == Type::kNone
                                      ? std::string_view("None")
                                      : name_of(object_type_, static_cast<SequenceKind>(object_kind_));
  const std::string_view suffix = object_type_ == Type::kNone ? "" : " object";
  switch (static_cast<Missing>(aux_)) {
    case Missing::kName: return size_ == 0 ? "value is undefined" : cat("'", name, "' is undefined");
    case Missing::kAttribute: return cat("'", object, suffix, "' has no attribute '", name, "'");
    case Missing::kElement: return cat(object, suffix, " has no element ", name);
    case Missing::kHint: return std::string(name);
  }
  return "value is undefined";
}

void Value::release() {
  Heap& heap = *string_.owner->heap;
  if (type_ > Type::kString) return heap.bury(object());
  auto* bytes = static_cast<StringBytes*>(string_.owner);
  heap.refund(bytes->weight());
  delete bytes;
}

Heap::~Heap() {
  // What is left lies in cycles: nobody goes before all are empty.
  for (const auto& o : objects_) ++o->references;
  for (const auto& o : objects_) o->drop_values();
}

void Heap::bury(Object* object) {
  object->next = std::exchange(dead_, object);
  if (burying_) return;  // the loop below meets it
  burying_ = true;
  while (dead_ != nullptr) {
    const size_t place = dead_->place;
    const std::unique_ptr<Object> gone = std::move(objects_[place]);
    dead_ = gone->next;
    refund(gone->charged);
    if (place + 1 < objects_.size()) {
      objects_[place] = std::move(objects_.back());
      objects_[place]->place = place;
    }
    objects_.pop_back();
  }
  burying_ = false;
}

bool Value::has_user_bytes() const {
  if (type_ != Type::kString || size_ == 0) return false;
  if ((aux_ & kUser) != 0) return true;
  if (string_.owner == nullptr) return false;
  const Text& all = static_cast<const StringBytes*>(string_.owner)->text;
  const auto begin = static_cast<size_t>(string_.data - all.bytes.data());
  const auto span = first_behind(all.user, begin);
  return span != all.user.end() && span->begin < begin + size_;
}

void Text::add_marked(std::string_view text, bool from_user) {
  if (from_user && !text.empty()) mark(bytes.size(), bytes.size() + text.size());
  bytes += text;
}

void Text::add(const Value& string) {
  const std::string_view text = string.str();
  if ((string.aux_ & Value::kUser) != 0 || string.string_.owner == nullptr)
    return add_marked(text, (string.aux_ & Value::kUser) != 0);
  const Text& all = static_cast<const StringBytes*>(string.string_.owner)->text;
  const auto begin = static_cast<size_t>(text.data() - all.bytes.data());
  const size_t end = begin + text.size(), at = bytes.size();
  for (auto s = first_behind(all.user, begin); s != all.user.end() && s->begin < end; ++s)
    mark(at + std::max(s->begin, begin) - begin, at + std::min(s->end, end) - begin);
  bytes += text;
}

void Text::mark(size_t begin, size_t end) {
  if (!user.empty() && user.back().end == begin) user.back().end = end;
  else user.push_back({begin, end});
}

bool KeyLess::operator()(const Value& a, const Value& b) const { return compare_keys(a, b) < 0; }

ptrdiff_t Dict::locate(const Value& key) const {
  if (entries.size() <= kScan) {
    for (size_t i = 0; i < entries.size(); ++i)
      if (compare_keys(entries[i].first, key) == 0) return static_cast<ptrdiff_t>(i);
    return -1;
  }
  const auto it = index_.find(key);
  return it == index_.end() ? -1 : static_cast<ptrdiff_t>(it->second);
}

const Value* Dict::find(const Value& key) const {
  const ptrdiff_t at = locate(key);
  return at < 0 ? nullptr : &entries[static_cast<size_t>(at)].second;
}

void Dict::set(Heap& heap, const Value& key, Value value) {
  if (const ptrdiff_t at = locate(key); at >= 0) {
    entries[static_cast<size_t>(at)].second = std::move(value);
    return;
  }
  heap.charge(*this, 3 * sizeof(Value));
  entries.emplace_back(key, std::move(value));
  if (entries.size() == kScan + 1) {
    for (size_t i = 0; i < entries.size(); ++i) index_.emplace(entries[i].first, i);
  } else if (entries.size() > kScan) {
    index_.emplace(key, entries.size() - 1);
  }
}

bool Dict::erase(Heap& heap, const Value& key) {
  const ptrdiff_t at = locate(key);
  if (at < 0) return false;
  heap.step(entries.size() / 4);
  entries.erase(entries.begin() + at);
  index_.clear();
  if (entries.size() > kScan)
    for (size_t i = 0; i < entries.size(); ++i) index_.emplace(entries[i].first, i);
  return true;
}

void Dict::clear() {
  entries.clear();
  index_.clear();
}

Value Heap::string(Text text) {
  if (text.bytes.empty()) return Value::borrowed("");
  auto owner = std::make_unique<StringBytes>(StringBytes{{this, 1}, std::move(text)});
  charge(owner->weight());
  Value v(Type::kString);
  v.size_ = owner->text.bytes.size();
  v.string_ = {owner->text.bytes.data(), owner.get()};
  owner.release();
  return v;
}

Value Heap::string(std::string bytes, bool from_user) {
  const Value v = string(Text{std::move(bytes), {}});
  return from_user ? v.from_user() : v;
}

bool Heap::has_user_bytes(const Value& v, int depth) {
  step();
  if (v.is_string()) return v.has_user_bytes();
  if (depth > kMaxDataDepth) return true;
  const auto any = [&](const auto& items) {
    return std::any_of(items.begin(), items.end(),
                       [&](const Value& x) { return has_user_bytes(x, depth + 1); });
  };
  switch (v.type()) {
    case Type::kSequence: return any(v.sequence()->items);
    case Type::kNamespace: return has_user_bytes(v.name_space()->attributes, depth + 1);
    case Type::kDict:
      return std::any_of(v.dict()->entries.begin(), v.dict()->entries.end(), [&](const auto& e) {
        return has_user_bytes(e.first, depth + 1) || has_user_bytes(e.second, depth + 1);
      });
    // Their printed forms name what the template wrote.
    default: return false;
  }
}

Value Heap::make(SequenceKind kind, std::vector<Value> items) {
  auto s = std::make_unique<Sequence>();
  charge(*s, items.capacity() * sizeof(Value));
  s->kind = kind;
  s->items = std::move(items);
  return Value::of(adopt(std::move(s)));
}

Value Heap::from_json(const json::value& v, int depth) {
  check_depth(depth, "read the request's JSON");
  step();
  switch (v.kind()) {
    case json::kind::null: return Value::none();
    case json::kind::bool_: return Value::boolean(v.get_bool());
    case json::kind::int64: return Value::integer(v.get_int64());
    case json::kind::uint64: return Value::integer(v.get_uint64());
    case json::kind::double_: return Value::real(v.get_double());
    case json::kind::string:
      return Value::borrowed({v.get_string().data(), v.get_string().size()}).from_user();
    case json::kind::array: {
      std::vector<Value> items;
      expect(v.get_array().size() * sizeof(Value));
      items.reserve(v.get_array().size());
      for (const json::value& item : v.get_array()) items.push_back(from_json(item, depth + 1));
      return list(std::move(items));
    }
    case json::kind::object: {
      Dict* d = dict();
      for (const auto& [key, item] : v.get_object())
        d->set(*this, Value::borrowed({key.data(), key.size()}).from_user(), from_json(item, depth + 1));
      return Value::of(d);
    }
  }
  return Value::none();
}

void Heap::too_many_steps() const {
  throw Failure{StatusCode::kResourceExhausted, cat("the template needs more than ", limits_.max_steps,
                                                    " steps; shorten its loops or the conversation")};
}

void Heap::too_much_memory() const {
  throw Failure{StatusCode::kResourceExhausted,
                cat("the template needs more than ", format_bytes(limits_.max_memory),
                    " of memory; shorten its strings and lists or the conversation")};
}

std::string_view type_name(const Value& v) {
  return name_of(v.type(), v.is(Type::kSequence) ? v.sequence()->kind : SequenceKind::kList);
}

bool truthy(const Value& v) {
  switch (v.type()) {
    case Type::kUndefined:
    case Type::kNone: return false;
    case Type::kBool:
    case Type::kInt: return v.as_int() != 0;
    case Type::kFloat: return v.as_double() != 0;
    case Type::kString: return !v.str().empty();
    case Type::kSequence:
      return v.sequence()->kind == SequenceKind::kIterator || !v.sequence()->items.empty();
    case Type::kDict: return !v.dict()->entries.empty();
    default: return true;
  }
}

bool equals(Heap& heap, const Value& a, const Value& b, int depth) {
  check_depth(depth, "compare");
  heap.step();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.type() != b.type()) return false;
  switch (a.type()) {
    case Type::kUndefined:
    case Type::kNone: return true;
    case Type::kString: heap.work(a.str().size()); return a.str() == b.str();
    case Type::kSequence: {
      const Sequence &x = *a.sequence(), &y = *b.sequence();
      if (&x == &y) return true;
      const bool comparable = (x.is_tuple() && y.is_tuple()) || (x.kind == y.kind && x.indexable());
      if (!comparable || x.items.size() != y.items.size()) return false;
      for (size_t i = 0; i < x.items.size(); ++i)
        if (!equals(heap, x.items[i], y.items[i], depth + 1)) return false;
      return true;
    }
    case Type::kDict: {
      const Dict &x = *a.dict(), &y = *b.dict();
      if (&x == &y) return true;
      if (x.entries.size() != y.entries.size()) return false;
      for (const auto& [key, value] : x.entries) {
        const Value* other = y.find(key);
        if (other == nullptr || !equals(heap, value, *other, depth + 1)) return false;
      }
      return true;
    }
    default: return a.identity() == b.identity();
  }
}

bool less(Heap& heap, const Value& a, const Value& b, std::string_view op, bool swapped, int depth) {
  check_depth(depth, "compare");
  heap.step();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == -1;
  if (a.is_string() && b.is_string()) {
    heap.work(std::min(a.str().size(), b.str().size()));
    return a.str() < b.str();  // UTF-8 orders like code points
  }
  if (a.is(Type::kSequence) && b.is(Type::kSequence)) {
    const Sequence &x = *a.sequence(), &y = *b.sequence();
    if ((x.is_list() && y.is_list()) || (x.is_tuple() && y.is_tuple())) {
      for (size_t i = 0; i < x.items.size() && i < y.items.size(); ++i)
        if (!equals(heap, x.items[i], y.items[i], depth + 1))
          return less(heap, x.items[i], y.items[i], op, swapped, depth + 1);
      return x.items.size() < y.items.size();
    }
  }
  if (a.is_undefined()) fail(a.undefined_message());
  if (b.is_undefined()) fail(b.undefined_message());
  fail("'", op, "' not supported between instances of '", type_name(swapped ? b : a), "' and '",
       type_name(swapped ? a : b), "'");
}

bool same(const Value& a, const Value& b) {
  if (a.type() != b.type()) return false;
  switch (a.type()) {
    case Type::kUndefined: return false;
    case Type::kNone: return true;
    case Type::kBool:
    case Type::kInt: return a.as_int() == b.as_int();
    case Type::kFloat: return a.as_double() == b.as_double();
    case Type::kString: return a.str() == b.str();
    default: return a.identity() == b.identity();
  }
}

void require_hashable(const Value& v, int depth) {
  check_depth(depth, "use as a key");
  if (v.is(Type::kDict) || (v.is(Type::kSequence) && v.sequence()->is_list()))
    fail("unhashable type: '", type_name(v), "'");
  if (v.is(Type::kSequence) && v.sequence()->is_tuple())
    for (const Value& item : v.sequence()->items) require_hashable(item, depth + 1);
}

std::string format_int(Int i) {
  if (i >= std::numeric_limits<int64_t>::min() && i <= std::numeric_limits<int64_t>::max())
    return std::to_string(static_cast<int64_t>(i));
  // The magnitude of the smallest Int has no positive Int, hence the unsigned detour.
  __extension__ typedef unsigned __int128 Unsigned;
  Unsigned u = i < 0 ? -static_cast<Unsigned>(i) : static_cast<Unsigned>(i);
  char digits[40];
  char* p = digits + sizeof digits;
  for (; u != 0; u /= 10) *--p = static_cast<char>('0' + static_cast<int>(u % 10));
  if (i < 0) *--p = '-';
  return {p, static_cast<size_t>(digits + sizeof digits - p)};
}

std::string format_float(double f) {
  if (std::isnan(f)) return "nan";
  if (std::isinf(f)) return f < 0 ? "-inf" : "inf";
  char buf[400];
  const double magnitude = std::fabs(f);
  // Python's repr switches to an exponent below 1e-4 and from 1e16 on.
  if (magnitude != 0 && (magnitude < 1e-4 || magnitude >= 1e16)) {
    const auto r = std::to_chars(buf, buf + sizeof buf, f, std::chars_format::scientific);
    return {buf, r.ptr};
  }
  const auto r = std::to_chars(buf, buf + sizeof buf, f, std::chars_format::fixed);
  std::string s(buf, r.ptr);
  if (s.find('.') == std::string::npos) s += ".0";
  return s;
}

bool parse_int(std::string_view text, int base, Int* out) {
  text = strip(text, nullptr, true, true);
  bool negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  const auto prefixed = [&](char letter) {
    return text.size() > 1 && text[0] == '0' && (text[1] | 0x20) == letter;
  };
  bool prefix = false;
  for (const auto& [letter, value] : {std::pair{'x', 16}, {'o', 8}, {'b', 2}})
    if (prefixed(letter) && (base == value || base == 0)) {
      base = value;
      prefix = true;
    }
  if (prefix) {
    text.remove_prefix(2);
    if (!text.empty() && text[0] == '_') text.remove_prefix(1);
  }
  if (base == 0) base = 10;
  if (text.empty()) return false;
  Int value = 0;
  bool underscore_allowed = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '_') {
      if (!underscore_allowed || i + 1 == text.size()) return false;
      underscore_allowed = false;
      continue;
    }
    int digit = -1;
    if (c >= '0' && c <= '9') digit = c - '0';
    else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') digit = (c | 0x20) - 'a' + 10;
    if (digit < 0 || digit >= base) return false;
    if (__builtin_mul_overflow(value, static_cast<Int>(base), &value) ||
        __builtin_add_overflow(value, static_cast<Int>(negative ? -digit : digit), &value))
      fail("the integer ", text.substr(0, 60), " does not fit 128 bits");
    underscore_allowed = true;
  }
  *out = value;
  return true;
}

bool parse_float(std::string_view text, double* out) {
  text = strip(text, nullptr, true, true);
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      digits += text[i];
      continue;
    }
    const auto digit = [&](size_t k) { return k < text.size() && text[k] >= '0' && text[k] <= '9'; };
    if (i == 0 || !digit(i - 1) || !digit(i + 1)) return false;
  }
  const char *first = digits.data(), *last = first + digits.size();
  if (first != last && *first == '+') ++first;
  if (first == last || (first[0] == '-' && first != digits.data())) return false;
  // from_chars takes "nan(...)", Python does not.
  if (digits.find('(') != std::string::npos) return false;
  double value = 0;
  const auto [end, error] = std::from_chars(first, last, value);
  if (end != last) return false;
  if (error == std::errc::result_out_of_range) {
    // Too large reads as infinity, too small as zero, as in Python.
    const bool small = digits.find("e-") != std::string::npos || digits.find("E-") != std::string::npos;
    value = small ? 0.0 : std::numeric_limits<double>::infinity();
    if (*first == '-') value = -value;
  } else if (error != std::errc()) {
    return false;
  }
  *out = value;
  return true;
}

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '\'': out += "&#39;"; break;
      case '"': out += "&#34;"; break;
      default: out += c;
    }
  return out;
}

bool is_iterable(const Value& v) {
  switch (v.type()) {
    case Type::kUndefined:
    case Type::kString:
    case Type::kSequence:
    case Type::kDict: return true;
    default: return false;
  }
}

std::vector<Value> iterate(Heap& heap, const Value& v) {
  std::vector<Value> items;
  switch (v.type()) {
    case Type::kUndefined: return items;
    case Type::kString: {
      const std::string_view s = v.str();
      heap.step(s.size() / 2);
      heap.expect(s.size() * sizeof(Value));
      for (size_t pos = 0; pos < s.size();) {
        const size_t start = pos;
        decode_at(s, pos);
        items.push_back(v.slice(start, pos - start).with_markup(false));
      }
      return items;
    }
    case Type::kSequence: {
      Sequence& s = *v.sequence();
      heap.step(s.items.size() / 2);
      heap.expect(s.items.size() * sizeof(Value));
      items.assign(s.items.begin() + static_cast<ptrdiff_t>(s.taken), s.items.end());
      if (s.kind == SequenceKind::kIterator) s.taken = s.items.size();
      return items;
    }
    case Type::kDict:
      heap.step(v.dict()->entries.size() / 2);
      heap.expect(v.dict()->entries.size() * sizeof(Value));
      for (const auto& [key, value] : v.dict()->entries) items.push_back(key);
      return items;
    default: fail("'", type_name(v), "' object is not iterable");
  }
}

size_t length(Heap& heap, const Value& v) {
  switch (v.type()) {
    case Type::kUndefined: return 0;
    case Type::kString: heap.work(v.str().size()); return count_code_points(v.str());
    case Type::kSequence:
      if (v.sequence()->kind != SequenceKind::kIterator) return v.sequence()->items.size();
      break;
    case Type::kDict: return v.dict()->entries.size();
    default: break;
  }
  fail("object of type '", type_name(v), "' has no len()");
}

}  // namespace oar::jinja

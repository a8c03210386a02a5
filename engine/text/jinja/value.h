// Values of the template language: Python's data model as far as chat templates see it, with Python's truth,
// equality, ordering, repr and JSON text. There are None, bool, int, float, str, list, tuple, dict and a few
// more.
//
// Memory: one Heap per render. Strings, containers and callables are reference counted; a slice shares its
// string's bytes, cycles of containers live until the Heap dies, and destruction never recurses. Everything
// is charged against the Limits as it is made and refunded as it goes. So a hostile template ends with an
// error and never exhausts the machine.
//
// Strings know which of their bytes came with the request: whoever makes one has to say so. What is put
// together from pieces keeps each piece's marks (Text); where bytes are changed, one marked byte marks all.
//
// Not here: names, statements and attribute lookup (interpreter.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/text/text_span.h"

namespace oar::jinja {

// Python's int is unbounded; 128 bits hold every JSON integer and every product a template computes. Overflow
// is an error, never a wrap.
__extension__ typedef __int128 Int;

// What one render may use. Steps are about one evaluated node or 32 bytes of string work each: 20 million
// take about a second.
struct Limits {
  uint64_t max_steps = 20'000'000;
  size_t max_memory = size_t{256} << 20;  // live strings, containers and variables, bytes
  size_t max_output = size_t{32} << 20;   // rendered text, bytes
  int max_depth = 1500;                   // nested evaluation: statements, expressions and macro calls
  size_t max_range = 100'000;             // items of one range(), as in Jinja's sandbox
};

// Inside this room a fault travels as an exception; ChatTemplate turns it into a Status. `line` 0: not known
// yet.
struct Failure {
  StatusCode code = StatusCode::kInvalidArgument;
  std::string message;
  int line = 0;
};

template <class... Ts>
[[noreturn]] void fail(const Ts&... pieces) {
  throw Failure{StatusCode::kInvalidArgument, cat(pieces...)};
}

class Heap;
class Value;
struct Sequence;
struct Dict;
struct Namespace;
struct Callable;
struct LoopState;

// What Values share; a single-threaded reference count.
struct Counted {
  Heap* heap = nullptr;
  uint32_t references = 0;
};

// Text being put together, and which of it came with the request.
struct Text {
  std::string bytes;
  std::vector<TextSpan> user;  // ascending, apart from each other

  void add(std::string_view text) { bytes += text; }  // the template's own
  void add_marked(std::string_view text, bool from_user);
  void add(const Value& string);
  size_t size() const { return bytes.size(); }
  size_t weight() const { return bytes.size() + user.size() * sizeof(TextSpan); }

 private:
  void mark(size_t begin, size_t end);
};

// Bytes of strings and their slices.
struct StringBytes : Counted {
  Text text;

  size_t weight() const {
    return sizeof(StringBytes) + text.bytes.capacity() + text.user.capacity() * sizeof(TextSpan);
  }
};

// Containers, callables and loops.
struct Object : Counted {
  virtual ~Object() = default;
  // Lets go of every Value: what ends cycles.
  virtual void drop_values() = 0;

  size_t charged = 0;      // bytes of the heap's account that go when this goes
  size_t place = 0;        // among the heap's objects
  Object* next = nullptr;  // of those about to be deleted
};

enum class Type : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kSequence,
  kDict,
  kNamespace,
  kCallable,
  kLoop,
};

// How an undefined value came about: decides the error message when it is used.
enum class Missing : uint8_t { kName, kAttribute, kElement, kHint };

// 32 bytes, cheap to copy. Strings are UTF-8.
class Value {
 public:
  Value() : type_(Type::kUndefined) {}
  Value(const Value& o) { copy_from(o); }
  Value(Value&& o) noexcept { move_from(o); }
  Value& operator=(const Value& o) {
    if (this != &o) {
      const Value old(std::move(*this));  // may hold `o`
      copy_from(o);
    }
    return *this;
  }
  Value& operator=(Value&& o) noexcept {
    if (this != &o) {
      const Value old(std::move(*this));
      move_from(o);
    }
    return *this;
  }
  ~Value() { drop(); }

  static Value none() { return Value(Type::kNone); }
  static Value boolean(bool b) {
    Value v(Type::kBool);
    v.integer_ = b ? 1 : 0;
    return v;
  }
  static Value integer(Int i) {
    Value v(Type::kInt);
    v.integer_ = i;
    return v;
  }
  static Value real(double f) {
    Value v(Type::kFloat);
    v.real_ = f;
    return v;
  }
  // `bytes` must outlive the render (a template's constant, a request's JSON, a literal).
  static Value borrowed(std::string_view bytes) {
    Value v(Type::kString);
    v.size_ = bytes.size();
    v.string_ = {bytes.data(), nullptr};
    return v;
  }
  // Shares `p`, which is the Heap's; the last Value to go deletes it.
  static Value of(Sequence* p);
  static Value of(Dict* p);
  static Value of(Namespace* p);
  static Value of(Callable* p);
  static Value of(LoopState* p);
  // `name` is a string Value: the missing name, attribute or element, or for kHint the whole message.
  // `object_type` is a type_name() literal for kAttribute and kElement.
  static Value undefined(Missing how, const Value& name, Type object = Type::kUndefined,
                         uint8_t object_kind = 0);

  Type type() const { return type_; }
  bool is(Type t) const { return type_ == t; }
  bool is_undefined() const { return type_ == Type::kUndefined; }
  bool is_none() const { return type_ == Type::kNone; }
  bool is_string() const { return type_ == Type::kString; }
  // int, bool or float; int and bool only.
  bool is_number() const { return type_ == Type::kInt || type_ == Type::kBool || type_ == Type::kFloat; }
  bool is_integral() const { return type_ == Type::kInt || type_ == Type::kBool; }

  bool as_bool() const { return integer_ != 0; }  // kBool
  Int as_int() const { return integer_; }         // kInt, kBool
  double as_double() const {                      // any number
    return type_ == Type::kFloat ? real_ : static_cast<double>(integer_);
  }
  std::string_view str() const { return {string_.data, size_}; }  // kString
  Sequence* sequence() const;
  Dict* dict() const;
  Namespace* name_space() const;
  Callable* callable() const;
  LoopState* loop() const;
  const void* identity() const { return string_.owner; }

  // Markup: a string that |safe or |escape made; joining it with plain text escapes the plain text.
  bool is_markup() const { return type_ == Type::kString && (aux_ & kMarkup) != 0; }
  Value with_markup(bool markup) const {
    Value v = *this;
    v.aux_ = static_cast<uint8_t>((aux_ & ~kMarkup) | (markup ? kMarkup : 0));
    return v;
  }
  // This string, all of which came with the request.
  Value from_user() const {
    Value v = *this;
    v.aux_ |= kUser;
    return v;
  }
  // Whether any byte of this string did.
  bool has_user_bytes() const;
  // Bytes [pos, pos + n) of this string, sharing its storage, its markup flag and its marks.
  Value slice(size_t pos, size_t n) const {
    Value v = *this;
    v.string_.data += pos;
    v.size_ = n;
    return v;
  }

  // The message of an operation on this undefined value.
  std::string undefined_message() const;

 private:
  friend class Heap;
  friend struct Text;
  static constexpr uint8_t kMarkup = 1, kUser = 2;
  struct Shared {
    const char* data;  // of strings
    Counted* owner;    // StringBytes, null where the bytes are borrowed, or an Object
  };
  explicit Value(Type t) : type_(t) {}
  Value(Type t, Object* p) : type_(t) {
    ++p->references;
    string_.owner = p;
  }
  Object* object() const { return static_cast<Object*>(string_.owner); }
  bool counted() const { return type_ == Type::kUndefined || type_ >= Type::kString; }
  void copy_from(const Value& o) {
    type_ = o.type_;
    aux_ = o.aux_;
    object_type_ = o.object_type_;
    object_kind_ = o.object_kind_;
    size_ = o.size_;
    if (counted()) {
      string_ = o.string_;
      if (string_.owner != nullptr) ++string_.owner->references;
    } else {
      integer_ = o.integer_;
    }
  }
  void move_from(Value& o) {
    type_ = o.type_;
    aux_ = o.aux_;
    object_type_ = o.object_type_;
    object_kind_ = o.object_kind_;
    size_ = o.size_;
    if (counted()) {
      string_ = o.string_;
      o.type_ = Type::kUndefined;
      o.string_ = {nullptr, nullptr};
      o.size_ = 0;
    } else {
      integer_ = o.integer_;
    }
  }
  void drop() {
    if (counted() && string_.owner != nullptr && --string_.owner->references == 0) release();
  }
  void release();

  Type type_;
  uint8_t aux_ = 0;                      // kString: kMarkup, kUser; kUndefined: Missing
  Type object_type_ = Type::kUndefined;  // kUndefined: what the attribute was missing from
  uint8_t object_kind_ = 0;              // kUndefined: that object's SequenceKind
  size_t size_ = 0;                      // kString, kUndefined: bytes
  union {
    Shared string_ = {nullptr, nullptr};
    Int integer_;
    double real_;
  };
};

enum class SequenceKind : uint8_t {
  kList,
  kTuple,
  kGroup,  // groupby's (grouper, list) pair: a tuple with names
  kRange,
  kKeys,
  kValues,
  kItems,
  kIterator,  // one pass only, no length: what map, select, reverse and the like return
};

struct Sequence : Object {
  SequenceKind kind = SequenceKind::kList;
  std::vector<Value> items;
  size_t taken = 0;  // kIterator: items already consumed
  Int stop = 0;      // kRange: its end, which the items do not tell

  void drop_values() override { items.clear(); }
  bool is_list() const { return kind == SequenceKind::kList; }
  bool is_tuple() const { return kind == SequenceKind::kTuple || kind == SequenceKind::kGroup; }
  bool indexable() const { return is_list() || is_tuple() || kind == SequenceKind::kRange; }
};

// Orders hashable values so that 1, 1.0 and True are one key. Strings, numbers, None and tuples of those.
struct KeyLess {
  bool operator()(const Value& a, const Value& b) const;
};

// Insertion-ordered. Small ones are scanned; larger ones keep an ordered index, whose cost no choice of keys
// can spoil.
struct Dict : Object {
  std::vector<std::pair<Value, Value>> entries;

  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const { return find(Value::borrowed(key)); }
  void set(Heap& heap, const Value& key, Value value);
  bool erase(Heap& heap, const Value& key);
  void clear();
  void drop_values() override { clear(); }

 private:
  static constexpr size_t kScan = 8;
  ptrdiff_t locate(const Value& key) const;
  std::map<Value, size_t, KeyLess> index_;  // filled only past kScan entries
};

struct Namespace : Object {
  Value attributes;  // a dict
  void drop_values() override { attributes = Value(); }
};

inline Value Value::of(Sequence* p) { return Value(Type::kSequence, p); }
inline Value Value::of(Dict* p) { return Value(Type::kDict, p); }
inline Value Value::of(Namespace* p) { return Value(Type::kNamespace, p); }
inline Sequence* Value::sequence() const { return static_cast<Sequence*>(object()); }
inline Dict* Value::dict() const { return static_cast<Dict*>(object()); }
inline Namespace* Value::name_space() const { return static_cast<Namespace*>(object()); }

// Makes values and keeps the account of one render. Not thread-safe: one per render.
class Heap {
 public:
  explicit Heap(const Limits& limits) : limits_(limits) {}
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  const Limits& limits() const { return limits_; }

  Value string(Text text);
  // `from_user`: whether the bytes were made of anything that came with the request.
  Value string(std::string bytes, bool from_user);
  // Whether anything in the value came with the request.
  bool has_user_bytes(const Value& v, int depth = 0);
  Value make(SequenceKind kind, std::vector<Value> items);
  Value list(std::vector<Value> items) { return make(SequenceKind::kList, std::move(items)); }
  Value tuple(std::vector<Value> items) { return make(SequenceKind::kTuple, std::move(items)); }
  Value iterator(std::vector<Value> items) { return make(SequenceKind::kIterator, std::move(items)); }
  Dict* dict() { return adopt(std::make_unique<Dict>()); }
  // `v` must outlive the render: strings are borrowed. They are marked as the request's.
  Value from_json(const json::value& v, int depth = 0);

  template <class T>
  T* adopt(std::unique_ptr<T> object) {
    T* raw = object.get();
    charge(*raw, sizeof(T) + sizeof(void*));
    raw->heap = this;
    raw->place = objects_.size();
    objects_.push_back(std::move(object));
    return raw;
  }
  // Deletes an object that no Value shares any more.
  void bury(Object* object);

  void append(Sequence& s, Value v) {
    charge(s, sizeof(Value));
    s.items.push_back(std::move(v));
  }

  // Accounts. step() is called per node; work() per scanned or copied bytes.
  void step(uint64_t n = 1) {
    steps_ += n;
    if (steps_ > limits_.max_steps) [[unlikely]]
      too_many_steps();
  }
  void work(size_t bytes) { step(bytes / 32); }
  void charge(size_t bytes) {
    memory_ += bytes;
    if (memory_ > limits_.max_memory) [[unlikely]]
      too_much_memory();
  }
  // Until `object` goes.
  void charge(Object& object, size_t bytes) {
    charge(bytes);
    object.charged += bytes;
  }
  void refund(size_t bytes) { memory_ -= bytes; }
  // Fails early when a result of this size could not be kept, before anybody builds it.
  void expect(size_t bytes) {
    if (bytes > limits_.max_memory - memory_) [[unlikely]]
      too_much_memory();
  }
  uint64_t steps() const { return steps_; }

 private:
  [[noreturn]] void too_many_steps() const;
  [[noreturn]] void too_much_memory() const;

  Limits limits_;
  uint64_t steps_ = 0;
  size_t memory_ = 0;
  std::vector<std::unique_ptr<Object>> objects_;
  Object* dead_ = nullptr;
  bool burying_ = false;
};

// "str", "dict", "list": Python's names, for messages.
std::string_view type_name(const Value& v);

bool truthy(const Value& v);
// ==. Containers compare by content; `depth` guards against values nested without end.
bool equals(Heap& heap, const Value& a, const Value& b, int depth = 0);
// <, for numbers, strings, lists and tuples; anything else fails like Python, naming `op`, with b before a
// when the template wrote them in that order.
bool less(Heap& heap, const Value& a, const Value& b, std::string_view op = "<", bool swapped = false,
          int depth = 0);
// is: the same object, or the same None, bool, number or string.
bool same(const Value& a, const Value& b);
// Fails unless `v` can be a dict key.
void require_hashable(const Value& v, int depth = 0);

// str(v) and repr(v). str() of a string is the string itself; to_str() keeps its storage and its markup.
Value to_str(Heap& heap, const Value& v);
std::string repr(Heap& heap, const Value& v);
std::string format_int(Int i);
std::string format_float(double f);  // Python's repr: shortest digits that read back
// Reads digits (sign and underscores as in Python) in `base` 2..36; false when malformed. Fails when past 128
// bits.
bool parse_int(std::string_view text, int base, Int* out);
bool parse_float(std::string_view text, double* out);

// Python's json.dumps.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool pretty = false;  // one item per line, `indent` per level
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
std::string to_json(Heap& heap, const Value& v, const JsonStyle& style);

// HTML-escapes & < > ' ".
std::string escape_html(std::string_view text);

// Items of anything iterable, in order; an iterator is used up. Fails for what Python cannot iterate.
std::vector<Value> iterate(Heap& heap, const Value& v);
bool is_iterable(const Value& v);
// len(v); fails for what has none.
size_t length(Heap& heap, const Value& v);

// How deep nested data may be when it is printed, compared, converted or serialized.
inline constexpr int kMaxDataDepth = 200;

}  // namespace oar::jinja

// Arithmetic, comparison, membership and slicing with Python's rules.
#include <algorithm>
#include <cmath>

#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/text.h"

namespace oar::jinja {
namespace {

std::string_view symbol_of(Operator op) {
  switch (op) {
    case Operator::kAdd: return "+";
    case Operator::kSubtract: return "-";
    case Operator::kMultiply: return "*";
    case Operator::kDivide: return "/";
    case Operator::kFloorDivide: return "//";
    case Operator::kModulo: return "%";
    case Operator::kPower: return "** or pow()";
    case Operator::kLess: return "<";
    case Operator::kLessEqual: return "<=";
    case Operator::kGreater: return ">";
    case Operator::kGreaterEqual: return ">=";
    default: return "operator";
  }
}

[[noreturn]] void overflow() { fail("integer result does not fit 128 bits"); }

[[noreturn]] void unsupported(Operator op, const Value& a, const Value& b) {
  if (a.is_undefined()) fail(a.undefined_message());
  if (b.is_undefined()) fail(b.undefined_message());
  if (op == Operator::kAdd && a.is_string())
    fail("can only concatenate str (not \"", type_name(b), "\") to str");
  if (op == Operator::kAdd && a.is(Type::kSequence) && (a.sequence()->is_list() || a.sequence()->is_tuple()))
    fail("can only concatenate ", type_name(a), " (not \"", type_name(b), "\") to ", type_name(a));
  fail("unsupported operand type(s) for ", symbol_of(op), ": '", type_name(a), "' and '", type_name(b), "'");
}

Int floor_divide(Int a, Int b) {
  if (b == -1) {  // the one quotient that may not fit
    Int r = 0;
    if (__builtin_sub_overflow(Int{0}, a, &r)) overflow();
    return r;
  }
  const Int q = a / b;
  return a % b != 0 && ((a < 0) != (b < 0)) ? q - 1 : q;
}

Int modulo(Int a, Int b) {
  if (b == -1) return 0;
  const Int r = a % b;
  return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;
}

double float_modulo(double a, double b) {
  double r = std::fmod(a, b);
  if (r != 0 ? (b < 0) != (r < 0) : false) r += b;
  return r == 0 ? std::copysign(0.0, b) : r;
}

double float_floor_divide(double a, double b) {
  const double quotient = (a - float_modulo(a, b)) / b;
  if (quotient == 0) return std::copysign(0.0, a / b);
  double whole = std::floor(quotient);
  if (quotient - whole > 0.5) whole += 1;
  return whole;
}

Value power(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral() && b.as_int() >= 0) {
    Int base = a.as_int(), exponent = b.as_int(), result = 1;
    if (base == 0 || base == 1) return Value::integer(exponent == 0 ? 1 : base);
    if (base == -1) return Value::integer(exponent % 2 == 0 ? 1 : -1);
    if (exponent > 127) overflow();
    for (; exponent > 0; --exponent)
      if (__builtin_mul_overflow(result, base, &result)) overflow();
    return Value::integer(result);
  }
  const double x = a.as_double(), y = b.as_double();
  if (x == 0 && y < 0) fail("0.0 cannot be raised to a negative power");
  if (x < 0 && std::isfinite(y) && y != std::floor(y))
    fail("a negative number to a fractional power is complex");
  const double r = std::pow(x, y);
  if (std::isinf(r) && std::isfinite(x) && std::isfinite(y))
    fail("the result of ** is too large for a float");
  return Value::real(r);
}

Value arithmetic(Operator op, const Value& a, const Value& b) {
  const bool integral = a.is_integral() && b.is_integral();
  const bool divides = op == Operator::kDivide || op == Operator::kFloorDivide || op == Operator::kModulo;
  if (divides && b.as_double() == 0) {
    if (op == Operator::kDivide) fail(integral ? "division by zero" : "float division by zero");
    if (integral) fail("integer division or modulo by zero");
    fail(op == Operator::kModulo ? "float modulo" : "float floor division by zero");
  }
  if (op == Operator::kPower) return power(a, b);
  if (integral && op != Operator::kDivide) {
    const Int x = a.as_int(), y = b.as_int();
    Int r = 0;
    switch (op) {
      case Operator::kAdd:
        if (__builtin_add_overflow(x, y, &r)) overflow();
        break;
      case Operator::kSubtract:
        if (__builtin_sub_overflow(x, y, &r)) overflow();
        break;
      case Operator::kMultiply:
        if (__builtin_mul_overflow(x, y, &r)) overflow();
        break;
      case Operator::kFloorDivide: r = floor_divide(x, y); break;
      default: r = modulo(x, y);
    }
    return Value::integer(r);
  }
  const double x = a.as_double(), y = b.as_double();
  switch (op) {
    case Operator::kAdd: return Value::real(x + y);
    case Operator::kSubtract: return Value::real(x - y);
    case Operator::kMultiply: return Value::real(x * y);
    case Operator::kDivide: return Value::real(x / y);
    case Operator::kFloorDivide: return Value::real(float_floor_divide(x, y));
    default: return Value::real(float_modulo(x, y));
  }
}

// "ab" * 3, [1] * 3; a negative count gives nothing.
Value repeat(Heap& heap, const Value& v, Int count) {
  const bool text = v.is_string();
  const size_t unit = text ? v.str().size() : v.sequence()->items.size() * sizeof(Value);
  if (count < 0 || unit == 0) count = 0;
  const size_t budget = heap.limits().max_memory;
  if (count > 0 && static_cast<Int>(unit) > static_cast<Int>(budget) / count) heap.expect(budget + 1);
  const auto n = static_cast<size_t>(count);
  heap.expect(unit * n);
  heap.work(unit * n);
  if (text) {
    Text out;
    out.bytes.reserve(unit * n);
    for (size_t i = 0; i < n; ++i) {
      out.add(v);
      heap.expect(out.weight());
    }
    return heap.string(std::move(out)).with_markup(v.is_markup());
  }
  std::vector<Value> items;
  items.reserve(n * v.sequence()->items.size());
  for (size_t i = 0; i < n; ++i)
    items.insert(items.end(), v.sequence()->items.begin(), v.sequence()->items.end());
  return heap.make(v.sequence()->is_list() ? SequenceKind::kList : SequenceKind::kTuple, std::move(items));
}

bool repeatable(const Value& v) {
  return v.is_string() || (v.is(Type::kSequence) && (v.sequence()->is_list() || v.sequence()->is_tuple()));
}

}  // namespace

Value concatenate(Heap& heap, const Value& a, const Value& b) {
  const bool markup = a.is_markup() || b.is_markup();
  const auto piece = [&](const Value& v) -> Value {
    if (!markup || v.is_markup()) return v;
    heap.work(v.str().size());
    return heap.string(escape_html(v.str()), v.has_user_bytes());
  };
  const Value x = piece(a), y = piece(b);
  if (y.str().empty()) return x.with_markup(markup);
  if (x.str().empty()) return y.with_markup(markup);
  heap.expect(x.str().size() + y.str().size());
  heap.work(x.str().size() + y.str().size());
  Text out;
  out.bytes.reserve(x.str().size() + y.str().size());
  out.add(x);
  out.add(y);
  return heap.string(std::move(out)).with_markup(markup);
}

Value binary_operation(Interpreter& in, Operator op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return arithmetic(op, a, b);
  Heap& heap = in.heap();
  switch (op) {
    case Operator::kAdd:
      if (a.is_string() && b.is_string()) return concatenate(heap, a, b);
      if (a.is(Type::kSequence) && b.is(Type::kSequence)) {
        const Sequence &x = *a.sequence(), &y = *b.sequence();
        if ((x.is_list() && y.is_list()) || (x.is_tuple() && y.is_tuple())) {
          heap.expect((x.items.size() + y.items.size()) * sizeof(Value));
          heap.step((x.items.size() + y.items.size()) / 4);
          std::vector<Value> items;
          items.reserve(x.items.size() + y.items.size());
          items.insert(items.end(), x.items.begin(), x.items.end());
          items.insert(items.end(), y.items.begin(), y.items.end());
          return heap.make(x.is_list() ? SequenceKind::kList : SequenceKind::kTuple, std::move(items));
        }
      }
      break;
    case Operator::kMultiply:
      if (repeatable(a) && b.is_integral()) return repeat(heap, a, b.as_int());
      if (repeatable(b) && a.is_integral()) return repeat(heap, b, a.as_int());
      break;
    case Operator::kModulo:
      if (a.is_string()) return format_percent(in, a, b);
      break;
    default: break;
  }
  unsupported(op, a, b);
}

Value negate(const Value& v, bool minus) {
  if (v.is_undefined()) fail(v.undefined_message());
  if (!v.is_number()) fail("bad operand type for unary ", minus ? "-" : "+", ": '", type_name(v), "'");
  if (v.is(Type::kFloat)) return Value::real(minus ? -v.as_double() : v.as_double());
  Int r = v.as_int();
  if (minus && __builtin_sub_overflow(Int{0}, r, &r)) overflow();
  return Value::integer(r);
}

bool contains(Interpreter& in, const Value& container, const Value& item) {
  Heap& heap = in.heap();
  switch (container.type()) {
    case Type::kUndefined: return false;
    case Type::kString:
      if (item.is_undefined()) fail(item.undefined_message());
      if (!item.is_string()) fail("'in <string>' requires string as left operand, not ", type_name(item));
      heap.work(container.str().size());
      return find_text(container.str(), item.str()) != std::string_view::npos;
    case Type::kDict: require_hashable(item); return container.dict()->find(item) != nullptr;
    case Type::kSequence:
      for (const Value& x : iterate(heap, container))
        if (same(x, item) || equals(heap, x, item)) return true;
      return false;
    default: fail("argument of type '", type_name(container), "' is not iterable");
  }
}

bool compare_operation(Interpreter& in, Operator op, const Value& a, const Value& b) {
  Heap& heap = in.heap();
  const auto unordered = [&] {  // a NaN on either side
    return (a.is(Type::kFloat) && std::isnan(a.as_double())) ||
           (b.is(Type::kFloat) && std::isnan(b.as_double()));
  };
  switch (op) {
    case Operator::kEqual: return equals(heap, a, b);
    case Operator::kNotEqual: return !equals(heap, a, b);
    case Operator::kLess: return less(heap, a, b, "<");
    case Operator::kGreater: return less(heap, b, a, ">", true);
    case Operator::kLessEqual: return !less(heap, b, a, "<=", true) && !unordered();
    case Operator::kGreaterEqual: return !less(heap, a, b, ">=") && !unordered();
    case Operator::kIn: return contains(in, b, a);
    case Operator::kNotIn: return !contains(in, b, a);
    default: break;
  }
  OAR_CHECK(false, "not a comparison");
}

namespace {

// Where a sliced range would go on: repr() prints it.
void set_range_stop(Sequence& s) {
  if (s.items.empty()) return;
  const Int last = s.items.back().as_int();
  s.stop = last + (s.items.size() > 1 ? last - s.items[s.items.size() - 2].as_int() : 1);
}

// One bound of a slice, clamped as Python does for `length` items.
Int slice_bound(const Value& v, Int length, Int step, bool is_start) {
  if (v.is_none()) {
    if (step > 0) return is_start ? 0 : length;
    return is_start ? length - 1 : -1;
  }
  if (v.is_undefined()) fail(v.undefined_message());
  if (!v.is_integral()) fail("slice indices must be integers or None or have an __index__ method");
  Int i = v.as_int();
  if (i < 0) i = i < -length ? -1 : i + length;
  const Int low = step > 0 ? 0 : -1, high = step > 0 ? length : length - 1;
  return std::clamp(i, low, high);
}

}  // namespace

Value slice_value(Interpreter& in, const Value& object, const Value& start, const Value& stop,
                  const Value& step_value) {
  Heap& heap = in.heap();
  const bool text = object.is_string();
  if (object.is_undefined()) fail(object.undefined_message());
  if (!text && !(object.is(Type::kSequence) && object.sequence()->indexable()))
    fail("'", type_name(object), "' object cannot be sliced");
  Int step = 1;
  if (!step_value.is_none()) {
    if (!step_value.is_integral()) fail("slice indices must be integers or None or have an __index__ method");
    step = step_value.as_int();
    if (step == 0) fail("slice step cannot be zero");
  }
  // The common cuts of a string need no count of its code points: s[n:], s[:n], s[a:b] with nothing negative.
  const auto plain = [](const Value& v) { return v.is_none() || (v.is_integral() && v.as_int() >= 0); };
  if (text && step == 1 && plain(start) && plain(stop)) {
    const std::string_view s = object.str();
    const auto offset = [&](const Value& v) {
      const Int i = std::min<Int>(v.as_int(), static_cast<Int>(s.size()));
      return byte_offset(s, static_cast<size_t>(i));
    };
    const size_t a = start.is_none() ? 0 : offset(start);
    const size_t b = stop.is_none() ? s.size() : offset(stop);
    heap.work(a + (stop.is_none() ? 0 : b));
    return object.slice(a, b > a ? b - a : 0);
  }
  std::vector<size_t> starts;  // byte offset of each code point, and the end
  Int length = 0;
  if (text) {
    const std::string_view s = object.str();
    heap.step(s.size() / 8);
    heap.expect(s.size() * sizeof(size_t));
    for (size_t pos = 0; pos < s.size(); decode_at(s, pos)) starts.push_back(pos);
    starts.push_back(s.size());
    length = static_cast<Int>(starts.size() - 1);
  } else {
    length = static_cast<Int>(object.sequence()->items.size());
  }
  const Int a = slice_bound(start, length, step, true), b = slice_bound(stop, length, step, false);
  if (text && step == 1) {
    const size_t from = starts[static_cast<size_t>(a)];
    return object.slice(from, b > a ? starts[static_cast<size_t>(b)] - from : 0);
  }
  Text out;
  std::vector<Value> items;
  // A huge step must not overflow the index: stop as soon as the next one would leave [0, length).
  for (Int i = a; step > 0 ? i < b : i > b;) {
    const auto k = static_cast<size_t>(i);
    if (text) out.add(object.slice(starts[k], starts[k + 1] - starts[k]));
    else items.push_back(object.sequence()->items[k]);
    if (step > length || step < -length) break;
    i += step;
  }
  heap.step((out.size() + items.size()) / 4);
  if (text) return heap.string(std::move(out)).with_markup(object.is_markup());
  const SequenceKind kind = object.sequence()->kind;
  Value out_value = heap.make(kind == SequenceKind::kGroup ? SequenceKind::kTuple : kind, std::move(items));
  if (kind == SequenceKind::kRange) set_range_stop(*out_value.sequence());
  return out_value;
}

}  // namespace oar::jinja

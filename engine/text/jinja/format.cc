// Python's two string formatters: "%5.2f" % x and "{:>10}".format(x). Widths and precisions
// are bounded, so a format cannot make a string the memory limit would not allow.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/text.h"

namespace oar::jinja {
namespace {

constexpr size_t kMaxWidth = 100'000;
constexpr size_t kMaxPrecision = 300;

// A decimal number at text[pos...]; false when there is none.
bool read_size(std::string_view text, size_t& pos, size_t limit, std::string_view what, size_t* out) {
  const size_t start = pos;
  size_t v = 0;
  for (; pos < text.size() && is_digit(text[pos]); ++pos) {
    v = v * 10 + static_cast<size_t>(text[pos] - '0');
    if (v > limit) fail("format: the ", what, " is past ", limit);
  }
  *out = v;
  return pos > start;
}

std::string upper_ascii(std::string s) {
  for (char& c : s)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
  return s;
}

// |f| in the manner of 'e', 'f', 'g' or '%', without sign. `alternate` keeps trailing zeros and the point.
std::string float_digits(double magnitude, char kind, size_t precision, bool alternate) {
  if (std::isnan(magnitude)) return "nan";
  if (std::isinf(magnitude)) return "inf";
  char buf[1000];
  const auto digits = static_cast<int>(std::min(precision, kMaxPrecision));
  const auto print = [&](std::chars_format how, int n) {
    return std::string(buf, std::to_chars(buf, buf + sizeof buf, magnitude, how, n).ptr);
  };
  std::string s;
  if (kind == 'f') s = print(std::chars_format::fixed, digits);
  else if (kind == 'e') s = print(std::chars_format::scientific, digits);
  else if (!alternate) return print(std::chars_format::general, std::max(digits, 1));
  else s = print(std::chars_format::general, std::max(digits, 1));
  if (alternate && s.find('.') == std::string::npos) s.insert(std::min(s.find('e'), s.size()), 1, '.');
  return s;
}

// |i| in base 2, 8, 10 or 16, lower case.
std::string int_digits(Int i, unsigned base) {
  __extension__ typedef unsigned __int128 Unsigned;
  Unsigned u = i < 0 ? -static_cast<Unsigned>(i) : static_cast<Unsigned>(i);
  std::string s;
  do s += "0123456789abcdef"[static_cast<size_t>(u % base)];
  while ((u /= base) != 0);
  std::reverse(s.begin(), s.end());
  return s;
}

Int whole(const Value& v, char kind) {
  if (v.is_undefined()) fail(v.undefined_message());
  if (v.is_integral()) return v.as_int();
  if (!v.is(Type::kFloat)) fail("%", kind, " format: a real number is required, not ", type_name(v));
  const double f = v.as_double();
  if (!std::isfinite(f) || std::fabs(f) >= 0x1p126)
    fail("cannot convert the float ", format_float(f), " to an integer");
  return static_cast<Int>(f);
}

double real(const Value& v) {
  if (v.is_undefined()) fail(v.undefined_message());
  if (!v.is_number()) fail("must be real number, not ", type_name(v));
  return v.as_double();
}

std::string first_code_points(std::string_view s, size_t n) {
  return std::string(s.substr(0, byte_offset(s, n)));
}

std::string ascii_repr(std::string_view r) {
  std::string out;
  for (size_t pos = 0; pos < r.size();) {
    const char32_t c = decode_at(r, pos);
    if (c < 0x80) {
      out += static_cast<char>(c);
      continue;
    }
    const int digits = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
    out += digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U";
    for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += "0123456789abcdef"[(c >> shift) & 15];
  }
  return out;
}

// sign + prefix + body, padded to `width` code points. align: '<' '>' '^' '=' (between sign and digits).
std::string pad(std::string_view sign, std::string_view body, size_t width, std::string_view fill,
                char align) {
  const size_t have = count_code_points(sign) + count_code_points(body);
  const size_t missing = width > have ? width - have : 0;
  const size_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  std::string out;
  const auto put = [&](size_t n) {
    for (size_t i = 0; i < n; ++i) out += fill;
  };
  if (align == '=') {
    out += sign;
    put(missing);
    out += body;
    return out;
  }
  put(left);
  out += sign;
  out += body;
  put(missing - left);
  return out;
}

struct PercentSpec {
  bool minus = false, plus = false, space = false, zero = false, alternate = false;
  size_t width = 0, precision = 0;
  bool has_precision = false;
};

std::string percent_item(Interpreter& in, const Value& v, char kind, const PercentSpec& p) {
  Heap& heap = in.heap();
  std::string sign, body;
  bool numeric = true;
  switch (kind) {
    case 'd':
    case 'i':
    case 'u':
    case 'o':
    case 'x':
    case 'X': {
      if ((kind == 'o' || (kind | 0x20) == 'x') && v.is(Type::kFloat))
        fail("%", kind, " format: an integer is required, not float");
      const Int i = whole(v, kind);
      body = int_digits(i, kind == 'o' ? 8 : (kind | 0x20) == 'x' ? 16 : 10);
      if (p.has_precision && body.size() < p.precision) body.insert(0, p.precision - body.size(), '0');
      if (kind == 'X') body = upper_ascii(body);
      sign = i < 0 ? "-" : p.plus ? "+" : p.space ? " " : "";
      if (p.alternate && (kind == 'o' || (kind | 0x20) == 'x')) sign += std::string("0") + kind;
      break;
    }
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G': {
      const double f = real(v);
      body = float_digits(std::fabs(f), static_cast<char>(kind | 0x20), p.has_precision ? p.precision : 6,
                          p.alternate);
      if (kind < 'a') body = upper_ascii(body);
      sign = std::signbit(f) && !std::isnan(f) ? "-" : p.plus ? "+" : p.space ? " " : "";
      break;
    }
    case 'c':
      numeric = false;
      if (v.is_string() && count_code_points(v.str()) == 1) body = v.str();
      else if (v.is_integral() && v.as_int() >= 32 && v.as_int() < 127)
        body = std::string(1, static_cast<char>(v.as_int()));
      else fail("%c requires int or char");
      break;
    case 's':
    case 'r':
    case 'a':
      numeric = false;
      body = kind == 's' ? std::string(to_str(heap, v).str()) : repr(heap, v);
      if (kind == 'a') body = ascii_repr(body);
      if (p.has_precision) body = first_code_points(body, p.precision);
      break;
    default: fail("unsupported format character '", kind, "'");
  }
  const char align = p.minus ? '<' : numeric && p.zero ? '=' : '>';
  return pad(sign, body, p.width, align == '=' ? "0" : " ", align);
}

}  // namespace

Value format_percent(Interpreter& in, const Value& format, const Value& arguments) {
  Heap& heap = in.heap();
  const std::string_view f = format.str();
  const bool is_tuple = arguments.is(Type::kSequence) && arguments.sequence()->is_tuple();
  size_t next = 0;
  const auto take = [&]() -> Value {
    if (!is_tuple) {
      if (next++ > 0) fail("not enough arguments for format string");
      return arguments;
    }
    if (next >= arguments.sequence()->items.size()) fail("not enough arguments for format string");
    return arguments.sequence()->items[next++];
  };
  bool by_name = false;
  Text out;
  for (size_t pos = 0; pos < f.size();) {
    const size_t at = std::min(f.find('%', pos), f.size());
    out.add(format.slice(pos, at - pos));
    pos = at + 1;
    if (at == f.size()) break;
    PercentSpec p;
    Value v;
    bool named = false;
    if (pos < f.size() && f[pos] == '(') {
      int open = 1;
      size_t end = pos + 1;
      for (; end < f.size() && open > 0; ++end) open += f[end] == '(' ? 1 : f[end] == ')' ? -1 : 0;
      if (open != 0) fail("incomplete format key");
      if (!arguments.is(Type::kDict)) fail("format requires a mapping");
      const Value* found = arguments.dict()->find(f.substr(pos + 1, end - pos - 2));
      if (found == nullptr) fail("format: the mapping has no key '", f.substr(pos + 1, end - pos - 2), "'");
      v = *found;
      named = by_name = true;
      pos = end;
    }
    for (; pos < f.size(); ++pos) {
      if (f[pos] == '-') p.minus = true;
      else if (f[pos] == '+') p.plus = true;
      else if (f[pos] == ' ') p.space = true;
      else if (f[pos] == '0') p.zero = true;
      else if (f[pos] == '#') p.alternate = true;
      else break;
    }
    const auto size = [&](size_t limit, std::string_view what) {
      size_t n = 0;
      if (pos < f.size() && f[pos] == '*') {
        ++pos;
        const Int i = to_int(take(), "* in a format");
        if (i < -static_cast<Int>(limit) || i > static_cast<Int>(limit))
          fail("format: the ", what, " is past ", limit);
        if (i < 0) p.minus = true;
        return static_cast<size_t>(i < 0 ? -i : i);
      }
      read_size(f, pos, limit, what, &n);
      return n;
    };
    p.width = size(kMaxWidth, "width");
    if (pos < f.size() && f[pos] == '.') {
      ++pos;
      p.has_precision = true;
      p.precision = size(kMaxPrecision, "precision");
    }
    while (pos < f.size() && (f[pos] == 'h' || f[pos] == 'l' || f[pos] == 'L')) ++pos;
    if (pos >= f.size()) fail("incomplete format");
    const char kind = f[pos++];
    if (kind == '%') {
      out.add(format.slice(pos - 1, 1));
      continue;
    }
    if (!named) v = take();
    const bool escaped = format.is_markup() && !v.is_markup();
    if (kind == 's' && v.is_string() && p.width == 0 && !p.has_precision && !escaped) {
      heap.expect(out.weight() + v.str().size());
      heap.work(v.str().size());
      out.add(v);
      continue;
    }
    std::string item = percent_item(in, v, kind, p);
    if (escaped) item = escape_html(item);
    heap.expect(out.weight() + item.size());
    heap.work(item.size());
    out.add_marked(item, heap.has_user_bytes(v));
  }
  const bool all_used = arguments.is_undefined() ||
                        (is_tuple ? next >= arguments.sequence()->items.size()
                                  : next > 0 || by_name || arguments.is(Type::kDict) ||
                                        (arguments.is(Type::kSequence) && arguments.sequence()->is_list()));
  if (!all_used) fail("not all arguments converted during string formatting");
  heap.work(out.size());
  return heap.string(std::move(out)).with_markup(format.is_markup());
}

// [[fill]align][sign][#][0][width][grouping][.precision][type]
std::string format_spec(Interpreter& in, const Value& v, std::string_view spec) {
  Heap& heap = in.heap();
  if (v.is_undefined()) {
    if (!spec.empty()) fail("unsupported format string passed to Undefined.__format__");
    return "";
  }
  if (spec.empty() || (!v.is_string() && !v.is_number())) {
    if (!spec.empty()) fail("unsupported format string passed to ", type_name(v), ".__format__");
    return std::string(to_str(heap, v).str());
  }
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  size_t pos = 0;
  std::string_view fill = " ";
  char align = '\0';
  size_t first_end = 0;
  decode_at(spec, first_end);
  if (first_end < spec.size() && is_align(spec[first_end])) {
    fill = spec.substr(0, first_end);
    align = spec[first_end];
    pos = first_end + 1;
  } else if (is_align(spec[0])) {
    align = spec[pos++];
  }
  const auto accept = [&](std::string_view set) {
    return pos < spec.size() && set.find(spec[pos]) != std::string_view::npos ? spec[pos++] : '\0';
  };
  const char sign_mode = accept("+- ");
  const bool alternate = accept("#") != '\0';
  if (accept("0") != '\0') {
    if (align == '\0') {
      fill = "0";
      align = v.is_string() ? '<' : '=';
    }
  }
  size_t width = 0, precision = 0;
  read_size(spec, pos, kMaxWidth, "width", &width);
  const char group = accept(",_");
  bool has_precision = false;
  if (accept(".") != '\0') {
    has_precision = true;
    if (!read_size(spec, pos, kMaxPrecision, "precision", &precision))
      fail("Format specifier missing precision");
  }
  const char kind = pos < spec.size() ? spec[pos++] : '\0';
  if (pos < spec.size())
    fail("Invalid format specifier '", spec, "' for object of type '", type_name(v), "'");
  const auto unknown = [&] {
    fail("Unknown format code '", kind, "' for object of type '", type_name(v), "'");
  };

  if (v.is_string()) {
    if (kind != '\0' && kind != 's') unknown();
    if (sign_mode != '\0' || align == '=' || group != '\0')
      fail("Invalid format specifier '", spec, "' for object of type 'str'");
    const std::string body = has_precision ? first_code_points(v.str(), precision) : std::string(v.str());
    return pad("", body, width, fill, align == '\0' ? '<' : align);
  }

  std::string body, prefix;
  bool negative = false;
  const bool as_float = v.is(Type::kFloat) ||
                        (kind != '\0' && std::string_view("eEfFgG%").find(kind) != std::string_view::npos);
  if (v.is(Type::kBool) && kind == '\0' && !as_float)
    return pad("", v.as_bool() ? "1" : "0", width, fill, align == '\0' ? '>' : align);
  if (as_float) {
    const double f = v.as_double();
    negative = std::signbit(f) && !std::isnan(f);
    const double magnitude = std::fabs(f);
    switch (kind) {
      case '\0':
        if (!has_precision) body = format_float(magnitude);
        else {
          body = float_digits(magnitude, 'g', std::max<size_t>(precision, 1), alternate);
          if (body.find_first_of(".en") == std::string::npos) body += ".0";
        }
        break;
      case '%':
        body = float_digits(magnitude * 100, 'f', has_precision ? precision : 6, alternate) + "%";
        break;
      case 'n':
      case 'g':
      case 'G': body = float_digits(magnitude, 'g', has_precision ? precision : 6, alternate); break;
      case 'e':
      case 'E': body = float_digits(magnitude, 'e', has_precision ? precision : 6, alternate); break;
      case 'f':
      case 'F': body = float_digits(magnitude, 'f', has_precision ? precision : 6, alternate); break;
      default: unknown();
    }
    if (kind == 'E' || kind == 'F' || kind == 'G') body = upper_ascii(body);
  } else {
    if (has_precision) fail("Precision not allowed in integer format specifier");
    const Int i = v.as_int();
    negative = i < 0;
    switch (kind) {
      case '\0':
      case 'd':
      case 'n': body = int_digits(i, 10); break;
      case 'b': body = int_digits(i, 2); break;
      case 'o': body = int_digits(i, 8); break;
      case 'x': body = int_digits(i, 16); break;
      case 'X': body = upper_ascii(int_digits(i, 16)); break;
      case 'c':
        if (i < 32 || i > 126) fail("%c arg not in range of printable ASCII");
        return pad("", std::string(1, static_cast<char>(i)), width, fill, align == '\0' ? '<' : align);
      default: unknown();
    }
    if (alternate && kind != '\0' && kind != 'd' && kind != 'n') prefix = std::string("0") + kind;
  }
  if (group != '\0') {
    const size_t step = kind == 'b' || kind == 'o' || (kind | 0x20) == 'x' ? 4 : 3;
    size_t end = body.find_first_not_of("0123456789abcdefABCDEF");
    if (as_float) end = body.find_first_not_of("0123456789");
    end = std::min(end, body.size());
    for (size_t i = end; i > step; i -= step) body.insert(i - step, 1, group);
  }
  const std::string sign = (negative ? "-" : sign_mode == '+' ? "+" : sign_mode == ' ' ? " " : "") + prefix;
  return pad(sign, body, width, fill, align == '\0' ? '>' : align);
}

namespace {

class BraceFormatter {
 public:
  BraceFormatter(Interpreter& in, const Value& format, const CallArguments& arguments)
      : in_(in), markup_(format.is_markup()), arguments_(arguments) {}

  Text run(const Value& format, int depth) {
    if (depth > 2) fail("Max string recursion exceeded");
    Heap& heap = in_.heap();
    const std::string_view f = format.str();
    Text out;
    for (size_t pos = 0; pos < f.size();) {
      const size_t brace = std::min(f.find_first_of("{}", pos), f.size());
      out.add(format.slice(pos, brace - pos));
      pos = brace;
      if (pos == f.size()) break;
      const char c = f[pos];
      if (pos + 1 < f.size() && f[pos + 1] == c) {
        out.add(format.slice(pos, 1));
        pos += 2;
        continue;
      }
      if (c == '}') fail("Single '}' encountered in format string");
      size_t end = ++pos;
      for (int open = 1;; ++end) {
        if (end >= f.size()) fail("expected '}' before end of string");
        if (f[end] == '{') ++open;
        if (f[end] == '}' && --open == 0) break;
      }
      const Value item = field(format.slice(pos, end - pos), depth);
      heap.expect(out.weight() + item.str().size());
      heap.work(item.str().size());
      out.add(item);
      pos = end + 1;
    }
    heap.work(out.size());
    return out;
  }

 private:
  // name[.attribute|[index]]...[!conversion][:spec]
  Value field(const Value& format, int depth) {
    const std::string_view f = format.str();
    size_t pos = 0;
    while (pos < f.size() && f[pos] != '!' && f[pos] != ':')
      pos += f[pos] == '[' ? std::min(f.find(']', pos), f.size() - 1) - pos + 1 : 1;
    const std::string_view name = f.substr(0, pos);
    char conversion = '\0';
    if (pos < f.size() && f[pos] == '!') {
      if (pos + 1 >= f.size()) fail("end of string while looking for conversion specifier");
      conversion = f[pos + 1];
      pos += 2;
      if (pos < f.size() && f[pos] != ':') fail("expected ':' after conversion specifier");
    }
    Value v = value(name);  // before those of the spec: they share the automatic numbering
    std::string spec;
    if (pos < f.size()) spec = run(format.slice(pos + 1, f.size() - pos - 1), depth + 1).bytes;
    Heap& heap = in_.heap();
    if (conversion == 's') v = to_str(heap, v);
    else if (conversion == 'r') v = heap.string(repr(heap, v), heap.has_user_bytes(v));
    else if (conversion == 'a') v = heap.string(ascii_repr(repr(heap, v)), heap.has_user_bytes(v));
    else if (conversion != '\0') fail("Unknown conversion specifier '", conversion, "'");
    const bool escaped = markup_ && !v.is_markup();
    if (v.is_string() && spec.empty() && !escaped) return v;
    std::string text = format_spec(in_, v, spec);
    return heap.string(escaped ? escape_html(text) : text, heap.has_user_bytes(v));
  }

  Value value(std::string_view path) {
    Heap& heap = in_.heap();
    size_t pos = std::min(path.find_first_of(".["), path.size());
    const std::string_view first = path.substr(0, pos);
    Value v;
    Int index = 0;
    if (first.empty() || std::all_of(first.begin(), first.end(), is_digit)) {
      if (first.empty() ? manual_ : automatic_)
        fail("cannot switch between automatic field numbering and manual field specification");
      (first.empty() ? automatic_ : manual_) = true;
      if (first.empty()) index = static_cast<Int>(next_++);
      else if (first.size() > 9 || !parse_int(first, 10, &index))
        fail("Too many decimal digits in format string");
      if (index >= static_cast<Int>(arguments_.positional.size()))
        fail("Replacement index ", format_int(index), " out of range for positional args tuple");
      v = arguments_.positional[static_cast<size_t>(index)];
    } else {
      const auto at = std::find_if(arguments_.keyword.begin(), arguments_.keyword.end(),
                                   [&](const auto& k) { return k.first.str() == first; });
      if (at == arguments_.keyword.end()) fail("format: there is no argument '", first, "'");
      v = at->second;
    }
    while (pos < path.size()) {
      if (path[pos] == '.') {
        const size_t end = std::min(path.find_first_of(".[", pos + 1), path.size());
        v = in_.attribute(v, heap.string(std::string(path.substr(pos + 1, end - pos - 1)), true));
        pos = end;
        continue;
      }
      const size_t end = path.find(']', pos);
      if (path[pos] != '[' || end == std::string_view::npos) fail("Missing ']' in format string");
      const std::string_view key = path.substr(pos + 1, end - pos - 1);
      const bool numeric = !key.empty() && key.size() < 10 && std::all_of(key.begin(), key.end(), is_digit);
      v = in_.element(v, numeric && parse_int(key, 10, &index) ? Value::integer(index)
                                                               : heap.string(std::string(key), true));
      pos = end + 1;
    }
    return v;
  }

  Interpreter& in_;
  const bool markup_;
  const CallArguments& arguments_;
  size_t next_ = 0;
  bool manual_ = false, automatic_ = false;
};

}  // namespace

Value format_braces(Interpreter& in, const Value& format, const CallArguments& arguments) {
  return in.heap()
      .string(BraceFormatter(in, format, arguments).run(format, 0))
      .with_markup(format.is_markup());
}

}  // namespace oar::jinja

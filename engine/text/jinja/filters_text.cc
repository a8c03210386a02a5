// Filters over text and numbers: case, padding, wrapping, escaping, conversion, JSON.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/text.h"

namespace oar::jinja {
namespace {

// The value as text; the result of `change` keeps the markup flag, as Jinja's soft_str filters do.
template <class Change>
Value changed(Interpreter& in, const Value& v, Change change) {
  const Value s = to_str(in.heap(), v);
  in.heap().expect(4 * s.str().size());
  in.heap().work(4 * s.str().size());
  return in.heap().string(change(s.str()), s.has_user_bytes()).with_markup(s.is_markup());
}

Value f_string(Interpreter& in, const Value& v, const Bound&) { return to_str(in.heap(), v); }
Value f_upper(Interpreter& in, const Value& v, const Bound&) { return changed(in, v, to_upper); }
Value f_lower(Interpreter& in, const Value& v, const Bound&) { return changed(in, v, to_lower); }
Value f_capitalize(Interpreter& in, const Value& v, const Bound&) { return changed(in, v, to_capital); }

// Words begin behind blanks, hyphens and opening brackets only, unlike str.title.
Value f_title(Interpreter& in, const Value& v, const Bound&) {
  Value out = changed(in, v, [](std::string_view s) {
    std::string out;
    size_t word = 0;
    const auto flush = [&](size_t end) {
      if (end <= word) return;
      const size_t rest = word + byte_offset(s.substr(word), 1);
      out += to_upper(s.substr(word, rest - word));
      out += to_lower(s.substr(rest, end - rest));
    };
    for (size_t pos = 0; pos < s.size();) {
      const size_t start = pos;
      const char32_t c = decode_at(s, pos);
      if (!is_space(c) && c != '-' && c != '(' && c != '{' && c != '[' && c != '<') continue;
      flush(start);
      out += s.substr(start, pos - start);
      word = pos;
    }
    flush(s.size());
    return out;
  });
  return out.with_markup(false);
}

Value f_trim(Interpreter& in, const Value& v, const Bound& a) {
  const Value s = to_str(in.heap(), v);
  std::string_view set;
  const bool chosen = a.has(0) && !a[0].is_none();
  if (chosen) set = to_text(a[0], "trim's chars");
  const std::string_view kept = strip(s.str(), chosen ? &set : nullptr, true, true);
  in.heap().work(s.str().size() - kept.size() + set.size());
  return s.slice(static_cast<size_t>(kept.data() - s.str().data()), kept.size());
}

Value f_replace(Interpreter& in, const Value& v, const Bound& a) {
  CallArguments arguments;
  Heap& heap = in.heap();
  arguments.positional = {to_str(heap, a[0]).with_markup(false), to_str(heap, a[1]).with_markup(false)};
  if (a.has(2) && !a[2].is_none()) arguments.positional.push_back(a[2]);
  const Value s = to_str(heap, v).with_markup(false);
  return call_builtin(in, *find_method(s, "replace"), s, arguments);
}

// indent(width=4, first=False, blank=False); width may be the indentation itself.
Value f_indent(Interpreter& in, const Value& v, const Bound& a) {
  Heap& heap = in.heap();
  if (v.is_undefined()) fail(v.undefined_message());
  const std::string_view s = to_text(v, "indent's value");
  std::string pad(4, ' ');
  const bool chosen = a.has(0) && a[0].is_string();
  if (chosen) {
    pad = a[0].str();
  } else if (a.has(0)) {
    const Int width = to_int(a[0], "indent's width");
    if (width > 10'000) fail("indent's width ", format_int(width), " is past 10000");
    pad.assign(width < 0 ? 0 : static_cast<size_t>(width), ' ');
  }
  const bool first = flag(a, 1), blank = flag(a, 2);
  // Jinja appends a newline before it splits, so that a final one survives as an empty line.
  heap.expect(s.size());
  const std::string closed = cat(s, '\n');
  const std::vector<std::string_view> lines = split_lines(closed, false);
  heap.expect(s.size() + lines.size() * (pad.size() + 1));
  heap.work(s.size() + lines.size() * (pad.size() + 1));
  const Value padding = chosen ? a[0] : heap.string(std::move(pad), false);
  Text out;
  if (first) out.add(padding);
  for (size_t i = 0; i < lines.size(); ++i) {
    heap.expect(out.weight());
    if (i != 0) out.add("\n");
    if (i != 0 && (blank || !lines[i].empty())) out.add(padding);
    out.add(v.slice(static_cast<size_t>(lines[i].data() - closed.data()), lines[i].size()));
  }
  return heap.string(std::move(out)).with_markup(v.is_markup());
}

Value f_center(Interpreter& in, const Value& v, const Bound& a) {
  CallArguments arguments;
  arguments.positional.push_back(a.has(0) ? a[0] : Value::integer(80));
  const Value s = to_str(in.heap(), v);
  return call_builtin(in, *find_method(s, "center"), s, arguments);
}

// truncate(length=255, killwords=False, end="...", leeway=5), lengths in code points.
Value f_truncate(Interpreter& in, const Value& v, const Bound& a) {
  Heap& heap = in.heap();
  const Value s = v.is_string() ? v : Value::borrowed(to_text(v, "truncate's value"));
  const Int limit = a.has(0) ? to_int(a[0], "truncate's length") : 255;
  const Value end = a.has(2) ? a[2] : Value::borrowed("...");
  to_text(end, "truncate's end");
  const Int leeway = a.has(3) && !a[3].is_none() ? to_int(a[3], "truncate's leeway") : 5;
  const Int end_length = static_cast<Int>(count_code_points(end.str()));
  if (limit < end_length) fail("expected length >= ", format_int(end_length), ", got ", format_int(limit));
  if (leeway < 0) fail("expected leeway >= 0, got ", format_int(leeway));
  const auto total = static_cast<Int>(length(heap, s));
  if (total <= limit || total - limit <= leeway) return s;
  Value cut = s.slice(0, byte_offset(s.str(), static_cast<size_t>(limit - end_length)));
  if (!flag(a, 1)) {
    const size_t blank = cut.str().rfind(' ');
    if (blank != std::string_view::npos) cut = cut.slice(0, blank);
  }
  return concatenate(heap, cut, end);
}

Value f_wordcount(Interpreter& in, const Value& v, const Bound&) {
  const Value s = to_str(in.heap(), v);
  in.heap().work(4 * s.str().size());
  Int count = 0;
  bool inside = false;
  for (size_t pos = 0; pos < s.str().size();) {
    const bool word = is_word_char(decode_at(s.str(), pos));
    count += word && !inside;
    inside = word;
  }
  return Value::integer(count);
}

Value f_escape(Interpreter& in, const Value& v, const Bound&) {
  if (v.is_markup()) return v;
  return changed(in, v, escape_html).with_markup(true);
}
Value f_forceescape(Interpreter& in, const Value& v, const Bound&) {
  return changed(in, v, escape_html).with_markup(true);
}
Value f_safe(Interpreter& in, const Value& v, const Bound&) { return to_str(in.heap(), v).with_markup(true); }

void quote_url(std::string& out, std::string_view s, bool for_query) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  for (const char c : s) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || c == '.' || c == '-' || c == '~' || (c == '/' && !for_query);
    if (plain) {
      out += c;
    } else if (c == ' ' && for_query) {
      out += '+';
    } else {
      out += '%';
      out += kHex[static_cast<unsigned char>(c) >> 4];
      out += kHex[static_cast<unsigned char>(c) & 15];
    }
  }
}

Value f_urlencode(Interpreter& in, const Value& v, const Bound&) {
  Heap& heap = in.heap();
  if (v.is_string() || !is_iterable(v))
    return changed(in, v,
                   [](std::string_view s) {
                     std::string out;
                     quote_url(out, s, false);
                     return out;
                   })
        .with_markup(false);
  std::string out;
  const auto pair = [&](const Value& key, const Value& value) {
    if (!out.empty()) out += '&';
    const Value k = to_str(heap, key), x = to_str(heap, value);
    heap.expect(out.size() + 3 * (k.str().size() + x.str().size()));
    heap.work(k.str().size() + x.str().size());
    quote_url(out, k.str(), true);
    out += '=';
    quote_url(out, x.str(), true);
  };
  const bool marked = heap.has_user_bytes(v);
  if (v.is(Type::kDict)) {
    for (const auto& [key, value] : v.dict()->entries) pair(key, value);
  } else {
    for (const Value& item : iterate(heap, v)) {
      const std::vector<Value> two = iterate(heap, item);
      if (two.size() != 2) fail("urlencode needs pairs, got ", two.size(), " values");
      pair(two[0], two[1]);
    }
  }
  return heap.string(std::move(out), marked);
}

Value f_xmlattr(Interpreter& in, const Value& v, const Bound& a) {
  Heap& heap = in.heap();
  if (!v.is(Type::kDict)) fail("xmlattr needs a mapping, not ", type_name(v));
  std::string out;
  for (const auto& [key, value] : v.dict()->entries) {
    if (value.is_none() || value.is_undefined()) continue;
    const std::string_view name = to_text(key, "an attribute name");
    if (name.find_first_of(" \t\n\r\f\v/>=") != std::string_view::npos)
      fail("Invalid character in attribute name: ", repr(heap, key));
    const Value text = to_str(heap, value);
    heap.expect(out.size() + 6 * (name.size() + text.str().size()));
    heap.work(name.size() + text.str().size());
    out += cat(out.empty() ? "" : " ", escape_html(name), "=\"",
               text.is_markup() ? std::string(text.str()) : escape_html(text.str()), "\"");
  }
  if (!out.empty() && (!a.has(0) || truthy(a[0]))) out.insert(0, 1, ' ');
  return heap.string(std::move(out), heap.has_user_bytes(v));
}

Value f_format(Interpreter& in, const Value& v, const Bound& a) {
  Heap& heap = in.heap();
  const auto& given = *a.all;
  if (!given.positional.empty() && !given.keyword.empty())
    fail("can't handle positional and keyword arguments at the same time");
  const Value format = to_str(heap, v);
  if (given.keyword.empty()) return format_percent(in, format, heap.tuple(given.positional));
  Dict* d = heap.dict();
  for (const auto& [name, value] : given.keyword) d->set(heap, name, value);
  return format_percent(in, format, Value::of(d));
}

// int(default=0, base=10)
Value f_int(Interpreter&, const Value& v, const Bound& a) {
  const Value fallback = a.has(0) ? a[0] : Value::integer(0);
  if (v.is_undefined()) fail(v.undefined_message());
  double f = 0;
  if (v.is_integral()) return Value::integer(v.as_int());
  if (v.is(Type::kFloat)) {
    f = v.as_double();
  } else if (v.is_string()) {
    const Int base = a.has(1) ? to_int(a[1], "int's base") : 10;
    Int i = 0;
    if ((base == 0 || (base >= 2 && base <= 36)) && parse_int(v.str(), static_cast<int>(base), &i))
      return Value::integer(i);
    if (!parse_float(v.str(), &f)) return fallback;
  } else {
    return fallback;
  }
  if (!std::isfinite(f)) return fallback;
  if (std::fabs(f) >= 0x1p126) fail("int: ", format_float(f), " does not fit 128 bits");
  return Value::integer(static_cast<Int>(f));
}

Value f_float(Interpreter&, const Value& v, const Bound& a) {
  if (v.is_undefined()) fail(v.undefined_message());
  double f = 0;
  if (v.is_number()) return Value::real(v.as_double());
  if (v.is_string() && parse_float(v.str(), &f)) return Value::real(f);
  return a.has(0) ? a[0] : Value::real(0.0);
}

Value f_abs(Interpreter&, const Value& v, const Bound&) {
  if (v.is_undefined()) fail(v.undefined_message());
  if (!v.is_number()) fail("bad operand type for abs(): '", type_name(v), "'");
  if (v.is(Type::kFloat)) return Value::real(std::fabs(v.as_double()));
  return negate(v, v.as_int() < 0);
}

// Python's round(): half to even, on the exact binary value.
Value round_common(const Value& v, Int digits) {
  if (v.is_integral()) {
    if (digits >= 0) return Value::integer(v.as_int());
    Int unit = 1;
    for (Int i = digits; i < 0; ++i)
      if (__builtin_mul_overflow(unit, Int{10}, &unit)) return Value::integer(0);
    const Int magnitude = v.as_int() < 0 ? -v.as_int() : v.as_int();
    Int quotient = magnitude / unit;
    const Int rest = magnitude % unit;
    if (rest > unit - rest || (rest == unit - rest && quotient % 2 != 0)) ++quotient;
    const Int r = quotient * unit;
    return Value::integer(v.as_int() < 0 ? -r : r);
  }
  const double f = v.as_double();
  if (!std::isfinite(f) || digits > 323) return v;
  if (digits >= 0) {
    char buf[700];
    const auto r =
        std::to_chars(buf, buf + sizeof buf, f, std::chars_format::fixed, static_cast<int>(digits));
    double back = 0;
    std::from_chars(buf, r.ptr, back);
    return Value::real(back);
  }
  if (digits < -308) return Value::real(std::copysign(0.0, f));
  const double unit = std::pow(10.0, static_cast<double>(-digits));
  return Value::real(std::nearbyint(f / unit) * unit);
}

// round(precision=0, method="common")
Value f_round(Interpreter&, const Value& v, const Bound& a) {
  const Int digits = a.has(0) ? to_int(a[0], "round's precision") : 0;
  const std::string_view method = a.has(1) ? to_text(a[1], "round's method") : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    fail("method must be common, ceil or floor");
  if (v.is_undefined()) fail(v.undefined_message());
  if (!v.is_number()) fail("round needs a number, not ", type_name(v));
  if (method == "common") return round_common(v, digits);
  if (digits > 300 || digits < -300) fail("round's precision ", format_int(digits), " is out of range");
  const double unit = std::pow(10.0, static_cast<double>(digits));
  const double scaled = v.as_double() * unit;
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
}

Value f_filesizeformat(Interpreter& in, const Value& v, const Bound& a) {
  double bytes = 0;
  if (v.is_number()) bytes = v.as_double();
  else if (!v.is_string() || !parse_float(v.str(), &bytes)) fail("filesizeformat needs a number");
  const bool binary = flag(a, 0);
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return Value::borrowed("1 Byte");
  if (bytes < base) return in.heap().string(cat(format_int(static_cast<Int>(bytes)), " Bytes"), false);
  static constexpr std::string_view kPrefixes = "kMGTPEZY";
  double unit = base;
  size_t i = 0;
  while (i + 1 < kPrefixes.size() && bytes >= unit * base) {
    unit *= base;
    ++i;
  }
  const std::string prefix(1, binary && i == 0 ? 'K' : kPrefixes[i]);
  return in.heap().string(
      cat(format_spec(in, Value::real(bytes / unit), ".1f"), " ", prefix, binary ? "iB" : "B"), false);
}

// Hugging Face's tojson: json.dumps(x, ensure_ascii=False, indent, separators, sort_keys), no HTML escaping.
Value f_tojson(Interpreter& in, const Value& v, const Bound& a) {
  JsonStyle style;
  style.ensure_ascii = flag(a, 0);
  style.sort_keys = flag(a, 3);
  if (a.has(1) && !a[1].is_none()) {
    style.pretty = true;
    style.item_separator = ",";
    if (a[1].is_string()) {
      style.indent = a[1].str();
    } else {
      const Int width = to_int(a[1], "tojson's indent");
      if (width > 1000) fail("tojson's indent ", format_int(width), " is past 1000");
      style.indent.assign(width < 0 ? 0 : static_cast<size_t>(width), ' ');
    }
  }
  if (a.has(2) && !a[2].is_none()) {
    const std::vector<Value> two = iterate(in.heap(), a[2]);
    if (two.size() != 2) fail("tojson's separators must be a pair of strings");
    style.item_separator = to_text(two[0], "tojson's item separator");
    style.key_separator = to_text(two[1], "tojson's key separator");
  }
  const bool marked = in.heap().has_user_bytes(v);
  return in.heap().string(to_json(in.heap(), v, style), marked);
}

constexpr Builtin kTextFilters[] = {
    {"abs", f_abs},
    {"capitalize", f_capitalize},
    {"center", f_center, "width"},
    {"e", f_escape},
    {"escape", f_escape},
    {"filesizeformat", f_filesizeformat, "binary"},
    {"float", f_float, "default"},
    {"forceescape", f_forceescape},
    {"format", f_format, "", 0, true},
    {"indent", f_indent, "width first blank"},
    {"int", f_int, "default base"},
    {"lower", f_lower},
    {"replace", f_replace, "old new count", 2},
    {"round", f_round, "precision method"},
    {"safe", f_safe},
    {"string", f_string},
    {"title", f_title},
    {"tojson", f_tojson, "ensure_ascii indent separators sort_keys"},
    {"trim", f_trim, "chars"},
    {"truncate", f_truncate, "length killwords end leeway"},
    {"upper", f_upper},
    {"urlencode", f_urlencode},
    {"wordcount", f_wordcount},
    {"xmlattr", f_xmlattr, "autospace"},
};

}  // namespace

std::span<const Builtin> text_filters() { return kTextFilters; }

}  // namespace oar::jinja

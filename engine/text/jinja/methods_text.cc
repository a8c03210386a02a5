// Methods of str. Like markupsafe, a method of markup returns markup and escapes the plain text it is given.
#include <algorithm>

#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/text.h"

namespace oar::jinja {
namespace {

// Part of `whole`, which `part` points into.
Value share(const Value& whole, std::string_view part) {
  return whole.slice(static_cast<size_t>(part.data() - whole.str().data()), part.size());
}

Value list_of(Interpreter& in, const Value& whole, const std::vector<std::string_view>& parts) {
  std::vector<Value> items;
  in.heap().expect(parts.size() * sizeof(Value));
  items.reserve(parts.size());
  for (const std::string_view p : parts) items.push_back(share(whole, p));
  in.heap().step(parts.size());
  return in.heap().list(std::move(items));
}

bool given(const Bound& a, size_t i) { return a.has(i) && !a[i].is_none(); }

// An argument that becomes part of the result.
Value text_argument(Interpreter& in, const Value& self, const Value& v, std::string_view what) {
  to_text(v, what);
  if (!self.is_markup() || v.is_markup()) return v;
  return in.heap().string(escape_html(v.str()), v.has_user_bytes());
}

template <std::string (*kChange)(std::string_view)>
Value changed(Interpreter& in, const Value& self, const Bound&) {
  in.heap().expect(4 * self.str().size());
  in.heap().work(4 * self.str().size());
  return in.heap().string(kChange(self.str()), self.has_user_bytes()).with_markup(self.is_markup());
}

template <bool kLeft, bool kRight>
Value m_strip(Interpreter& in, const Value& self, const Bound& a) {
  std::string_view set;
  if (given(a, 0)) set = to_text(a[0], "strip's characters");
  const std::string_view kept = strip(self.str(), given(a, 0) ? &set : nullptr, kLeft, kRight);
  in.heap().work(self.str().size() - kept.size() + set.size());
  return share(self, kept);
}

template <bool kFromRight>
Value m_split(Interpreter& in, const Value& self, const Bound& a) {
  long long limit = -1;
  if (a.has(1))
    limit = static_cast<long long>(std::clamp<Int>(to_int(a[1], "split's maxsplit"), -1, 1 << 30));
  in.heap().work(self.str().size());
  in.heap().expect(self.str().size());
  if (!given(a, 0)) return list_of(in, self, split_space(self.str(), limit, kFromRight));
  const std::string_view separator = to_text(a[0], "split's separator");
  if (separator.empty()) fail("empty separator");
  return list_of(in, self, split_at(self.str(), separator, limit, kFromRight));
}

Value m_splitlines(Interpreter& in, const Value& self, const Bound& a) {
  in.heap().work(2 * self.str().size());
  in.heap().expect(self.str().size());
  return list_of(in, self, split_lines(self.str(), a.has(0) && truthy(a[0])));
}

template <bool kFromRight>
Value m_partition(Interpreter& in, const Value& self, const Bound& a) {
  const std::string_view separator = to_text(a[0], "partition's separator");
  if (separator.empty()) fail("empty separator");
  const std::string_view s = self.str();
  in.heap().work(s.size());
  const size_t at = kFromRight ? rfind_text(s, separator) : find_text(s, separator);
  const Value empty = share(self, s.substr(0, 0));
  if (at == std::string_view::npos)
    return in.heap().tuple(kFromRight ? std::vector<Value>{empty, empty, self}
                                      : std::vector<Value>{self, empty, empty});
  return in.heap().tuple({share(self, s.substr(0, at)), share(self, s.substr(at, separator.size())),
                          share(self, s.substr(at + separator.size()))});
}

// The part of the string that optional start and end arguments (code points, as in slices) name.
// `offset`: code points before it. False: start lies behind the end of the string.
bool window(Interpreter& in, const Value& self, const Bound& a, size_t first, std::string_view* part,
            Int* offset) {
  *part = self.str();
  *offset = 0;
  if (!given(a, first) && !given(a, first + 1)) return true;
  const auto length = static_cast<Int>(jinja::length(in.heap(), self));
  const auto bound = [&](size_t i, Int fallback) {
    if (!given(a, i)) return fallback;
    const Int v = to_int(a[i], "a position");
    return v < 0 ? (v < -length ? Int{0} : v + length) : v;
  };
  const Int from = bound(first, 0), to = std::min(bound(first + 1, length), length);
  if (from > length) return false;
  const size_t begin = byte_offset(self.str(), static_cast<size_t>(from));
  const size_t end = to < from ? begin : byte_offset(self.str(), static_cast<size_t>(to));
  if (to < from) return false;
  *part = self.str().substr(begin, end - begin);
  *offset = from;
  return true;
}

template <bool kFromRight, bool kMustFind>
Value m_find(Interpreter& in, const Value& self, const Bound& a) {
  const std::string_view part = to_text(a[0], "the text to find");
  std::string_view s;
  Int offset = 0;
  in.heap().work(self.str().size());
  size_t at = std::string_view::npos;
  if (window(in, self, a, 1, &s, &offset)) at = kFromRight ? rfind_text(s, part) : find_text(s, part);
  if (at == std::string_view::npos) {
    if (kMustFind) fail("substring not found");
    return Value::integer(-1);
  }
  return Value::integer(offset + static_cast<Int>(count_code_points(s.substr(0, at))));
}

Value m_count(Interpreter& in, const Value& self, const Bound& a) {
  const std::string_view part = to_text(a[0], "the text to count");
  std::string_view s;
  Int offset = 0;
  in.heap().work(self.str().size());
  if (!window(in, self, a, 1, &s, &offset)) return number(0);
  if (part.empty()) return number(count_code_points(s) + 1);
  size_t n = 0;
  // One split of all occurrences is one linear pass; repeated searches would prepare a long `part` anew each
  // time.
  in.heap().expect(s.size());
  n = split_at(s, part, -1, false).size() - 1;
  return number(n);
}

template <bool kAtEnd>
Value m_affix(Interpreter& in, const Value& self, const Bound& a) {
  std::string_view s;
  Int offset = 0;
  if (!window(in, self, a, 1, &s, &offset)) return Value::boolean(false);
  const auto matches = [&](const Value& v) {
    const std::string_view part = to_text(v, kAtEnd ? "endswith's suffix" : "startswith's prefix");
    in.heap().work(part.size());
    return kAtEnd ? s.ends_with(part) : s.starts_with(part);
  };
  if (a[0].is(Type::kSequence) && a[0].sequence()->is_tuple()) {
    for (const Value& v : a[0].sequence()->items)
      if (matches(v)) return Value::boolean(true);
    return Value::boolean(false);
  }
  return Value::boolean(matches(a[0]));
}

template <bool kSuffix>
Value m_remove_affix(Interpreter&, const Value& self, const Bound& a) {
  const std::string_view part = to_text(a[0], "the affix"), s = self.str();
  if (kSuffix) return s.ends_with(part) ? share(self, s.substr(0, s.size() - part.size())) : self;
  return s.starts_with(part) ? share(self, s.substr(part.size())) : self;
}

Value m_replace(Interpreter& in, const Value& self, const Bound& a) {
  Heap& heap = in.heap();
  const Value new_value = text_argument(in, self, a[1], "replace's new text");
  const std::string_view s = self.str(), part = to_text(a[0], "replace's old text"), to = new_value.str();
  const Int limit = a.has(2) ? to_int(a[2], "replace's count") : -1;
  const auto cap = static_cast<long long>(std::clamp<Int>(limit, -1, 1LL << 40));
  heap.work(s.size());
  if (cap == 0) return self;
  Text out;
  if (part.empty()) {
    // Between all code points and at both ends.
    long long left = cap;
    const auto insert = [&] {
      if (left == 0) return;
      heap.expect(out.weight() + to.size());
      out.add(new_value);
      --left;
    };
    heap.step(s.size());
    for (size_t pos = 0; pos < s.size();) {
      insert();
      const size_t start = pos;
      decode_at(s, pos);
      out.add(self.slice(start, pos - start));
    }
    insert();
    heap.work(out.size());
    return heap.string(std::move(out)).with_markup(self.is_markup());
  }
  heap.expect(s.size());
  const std::vector<std::string_view> parts = split_at(s, part, cap, false);
  if (parts.size() == 1) return self;
  if (to.size() > part.size()) {
    const size_t growth = to.size() - part.size();
    if (parts.size() > heap.limits().max_memory / growth) heap.expect(heap.limits().max_memory + 1);
    heap.expect(s.size() + (parts.size() - 1) * growth);
    out.bytes.reserve(s.size() + (parts.size() - 1) * growth);
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i != 0) out.add(new_value);
    out.add(share(self, parts[i]));
    heap.expect(out.weight());
  }
  heap.work(out.size());
  return heap.string(std::move(out)).with_markup(self.is_markup());
}

Value m_join(Interpreter& in, const Value& self, const Bound& a) {
  Heap& heap = in.heap();
  Text out;
  size_t i = 0;
  for (const Value& item : iterate(heap, a[0])) {
    if (!item.is_string()) fail("sequence item ", i, ": expected str instance, ", type_name(item), " found");
    const Value piece = text_argument(in, self, item, "join's item");
    heap.expect(out.weight() + piece.str().size() + self.str().size());
    heap.work(piece.str().size() + self.str().size());
    if (i++ != 0) out.add(self);
    out.add(piece);
  }
  return heap.string(std::move(out)).with_markup(self.is_markup());
}

// `left`, `right` fill characters around the string.
Value padded(Interpreter& in, const Value& self, const Bound& a, Int (*left_share)(Int missing, Int width)) {
  Heap& heap = in.heap();
  const Int width = to_int(a[0], "the width");
  const std::string_view fill = a.has(1) ? to_text(a[1], "the fill character") : " ";
  if (count_code_points(fill) != 1) fail("The fill character must be exactly one character long");
  const Int missing = width - static_cast<Int>(length(heap, self));
  if (missing <= 0) return self;
  if (missing > static_cast<Int>(heap.limits().max_memory / 4)) heap.expect(heap.limits().max_memory + 1);
  heap.expect(self.str().size() + static_cast<size_t>(missing) * fill.size());
  heap.work(static_cast<size_t>(missing) * fill.size());
  const Int left = left_share(missing, width);
  const bool fill_marked = a.has(1) && a[1].has_user_bytes();
  Text out;
  for (Int i = 0; i < left; ++i) out.add_marked(fill, fill_marked);
  out.add(self);
  for (Int i = left; i < missing; ++i) out.add_marked(fill, fill_marked);
  return heap.string(std::move(out)).with_markup(self.is_markup());
}

Value m_ljust(Interpreter& in, const Value& self, const Bound& a) {
  return padded(in, self, a, [](Int, Int) { return Int{0}; });
}
Value m_rjust(Interpreter& in, const Value& self, const Bound& a) {
  return padded(in, self, a, [](Int missing, Int) { return missing; });
}
Value m_center(Interpreter& in, const Value& self, const Bound& a) {
  // CPython puts the odd blank on the left when the width is odd too.
  return padded(in, self, a, [](Int missing, Int width) { return missing / 2 + (missing & width & 1); });
}

Value m_zfill(Interpreter& in, const Value& self, const Bound& a) {
  Heap& heap = in.heap();
  const Int missing = to_int(a[0], "zfill's width") - static_cast<Int>(length(heap, self));
  if (missing <= 0) return self;
  if (missing > static_cast<Int>(heap.limits().max_memory)) heap.expect(heap.limits().max_memory + 1);
  heap.expect(self.str().size() + static_cast<size_t>(missing));
  heap.work(static_cast<size_t>(missing));
  const std::string_view s = self.str();
  const size_t sign = !s.empty() && (s[0] == '-' || s[0] == '+') ? 1 : 0;
  std::string out(s.substr(0, sign));
  out.append(static_cast<size_t>(missing), '0');
  out += s.substr(sign);
  return heap.string(std::move(out), self.has_user_bytes());
}

Value m_expandtabs(Interpreter& in, const Value& self, const Bound& a) {
  Heap& heap = in.heap();
  const Int size = a.has(0) ? to_int(a[0], "expandtabs's tabsize") : 8;
  if (size > 1000) fail("expandtabs's tabsize ", format_int(size), " is past 1000");
  std::string out;
  Int column = 0;
  heap.step(self.str().size() / 8);
  for (const char c : self.str()) {
    if (c == '\t') {
      const Int n = size > 0 ? size - column % size : 0;
      heap.expect(out.size() + static_cast<size_t>(n));
      out.append(static_cast<size_t>(n), ' ');
      column += n;
      continue;
    }
    out += c;
    if (c == '\n' || c == '\r') column = 0;
    else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) ++column;
  }
  return heap.string(std::move(out), self.has_user_bytes());
}

// Whether the string is not empty and all its code points pass.
template <bool (*kPasses)(char32_t)>
Value m_all(Interpreter& in, const Value& self, const Bound&) {
  in.heap().work(2 * self.str().size());
  for (size_t pos = 0; pos < self.str().size();)
    if (!kPasses(decode_at(self.str(), pos))) return Value::boolean(false);
  return Value::boolean(!self.str().empty());
}

bool is_alnum(char32_t c) { return is_alpha(c) || is_numeric(c); }

// Some cased character, and none of the other case.
template <bool (*kWanted)(char32_t), bool (*kOther)(char32_t)>
Value m_case(Interpreter& in, const Value& self, const Bound&) {
  in.heap().work(2 * self.str().size());
  bool any = false;
  for (size_t pos = 0; pos < self.str().size();) {
    const char32_t c = decode_at(self.str(), pos);
    if (kOther(c) || is_title(c)) return Value::boolean(false);
    any |= kWanted(c);
  }
  return Value::boolean(any);
}

Value m_istitle(Interpreter& in, const Value& self, const Bound&) {
  in.heap().work(2 * self.str().size());
  bool any = false, inside = false;
  for (size_t pos = 0; pos < self.str().size();) {
    const char32_t c = decode_at(self.str(), pos);
    const bool capital = is_upper(c) || is_title(c);
    if ((capital && inside) || (is_lower(c) && !inside)) return Value::boolean(false);
    inside = capital || is_lower(c);
    any |= inside;
  }
  return Value::boolean(any);
}

Value m_isascii(Interpreter& in, const Value& self, const Bound&) {
  in.heap().work(self.str().size());
  return Value::boolean(
      std::all_of(self.str().begin(), self.str().end(), [](char c) { return (c & 0x80) == 0; }));
}

Value m_isprintable(Interpreter& in, const Value& self, const Bound& a) {
  return Value::boolean(self.str().empty() || truthy(m_all<is_printable>(in, self, a)));
}

Value m_isidentifier(Interpreter& in, const Value& self, const Bound& a) {
  size_t pos = 0;
  if (self.str().empty() || is_numeric(decode_at(self.str(), pos))) return Value::boolean(false);
  return m_all<is_word_char>(in, self, a);
}

Value m_format(Interpreter& in, const Value& self, const Bound& a) { return format_braces(in, self, *a.all); }

Value m_format_map(Interpreter& in, const Value& self, const Bound& a) {
  CallArguments arguments;
  if (!a[0].is(Type::kDict)) fail("format_map() needs a mapping, not ", type_name(a[0]));
  for (const auto& [key, value] : a[0].dict()->entries)
    if (key.is_string()) arguments.keyword.emplace_back(key, value);
  return format_braces(in, self, arguments);
}

constexpr Builtin kMethods[] = {
    {"capitalize", changed<to_capital>},
    {"casefold", changed<to_lower>},
    {"center", m_center, "width fillchar", 1},
    {"count", m_count, "sub start end", 1},
    {"endswith", m_affix<true>, "suffix start end", 1},
    {"expandtabs", m_expandtabs, "tabsize"},
    {"find", m_find<false, false>, "sub start end", 1},
    {"format", m_format, "", 0, true},
    {"format_map", m_format_map, "mapping", 1},
    {"index", m_find<false, true>, "sub start end", 1},
    {"isalnum", m_all<is_alnum>},
    {"isalpha", m_all<is_alpha>},
    {"isascii", m_isascii},
    {"isdecimal", m_all<is_decimal>},
    {"isdigit", m_all<is_digit_like>},
    {"isidentifier", m_isidentifier},
    {"islower", m_case<is_lower, is_upper>},
    {"isnumeric", m_all<is_numeric>},
    {"isprintable", m_isprintable},
    {"isspace", m_all<is_space>},
    {"istitle", m_istitle},
    {"isupper", m_case<is_upper, is_lower>},
    {"join", m_join, "iterable", 1},
    {"ljust", m_ljust, "width fillchar", 1},
    {"lower", changed<to_lower>},
    {"lstrip", m_strip<true, false>, "chars"},
    {"partition", m_partition<false>, "sep", 1},
    {"removeprefix", m_remove_affix<false>, "prefix", 1},
    {"removesuffix", m_remove_affix<true>, "suffix", 1},
    {"replace", m_replace, "old new count", 2},
    {"rfind", m_find<true, false>, "sub start end", 1},
    {"rindex", m_find<true, true>, "sub start end", 1},
    {"rjust", m_rjust, "width fillchar", 1},
    {"rpartition", m_partition<true>, "sep", 1},
    {"rsplit", m_split<true>, "sep maxsplit"},
    {"rstrip", m_strip<false, true>, "chars"},
    {"split", m_split<false>, "sep maxsplit"},
    {"splitlines", m_splitlines, "keepends"},
    {"startswith", m_affix<false>, "prefix start end", 1},
    {"strip", m_strip<true, true>, "chars"},
    {"swapcase", changed<swap_case>},
    {"title", changed<to_title>},
    {"upper", changed<to_upper>},
    {"zfill", m_zfill, "width", 1},
};

}  // namespace

std::span<const Builtin> string_methods() { return kMethods; }

}  // namespace oar::jinja

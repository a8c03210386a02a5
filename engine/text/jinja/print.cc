// str(), repr() and json.dumps() of values: the text side of value.h.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/text.h"
#include "engine/text/jinja/value.h"

namespace oar::jinja {
namespace {

void append_hex(std::string& out, char32_t c, int digits) {
  static constexpr char kHex[] = "0123456789abcdef";
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += kHex[(c >> shift) & 15];
}

void repr_string(std::string& out, std::string_view s) {
  const bool has_single = s.find('\'') != std::string_view::npos;
  const char quote = has_single && s.find('"') == std::string_view::npos ? '"' : '\'';
  out += quote;
  for (size_t pos = 0; pos < s.size();) {
    const size_t start = pos;
    const char32_t c = decode_at(s, pos);
    if (c == static_cast<unsigned char>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out += s.substr(start, pos - start);
    } else if (c < 0x100) {
      out += "\\x";
      append_hex(out, c, 2);
    } else if (c < 0x10000) {
      out += "\\u";
      append_hex(out, c, 4);
    } else {
      out += "\\U";
      append_hex(out, c, 8);
    }
  }
  out += quote;
}

// Shared guard of the two recursive printers: depth, steps and the size reached so far.
class Printer {
 public:
  explicit Printer(Heap& heap) : heap_(heap) {}

  std::string take() { return std::move(out_); }

  void repr(const Value& v, int depth) {
    enter(depth, "print");
    switch (v.type()) {
      case Type::kUndefined: out_ += "Undefined"; return;
      case Type::kString:
        if (v.is_markup()) {
          out_ += "Markup(";
          repr_string(out_, v.str());
          out_ += ')';
        } else {
          repr_string(out_, v.str());
        }
        return;
      case Type::kSequence: sequence(*v.sequence(), depth); return;
      case Type::kDict: braces(*v.dict(), depth); return;
      case Type::kNamespace:
        out_ += "<Namespace ";
        braces(*v.name_space()->attributes.dict(), depth);
        out_ += '>';
        return;
      case Type::kCallable: out_ += describe_callable(*v.callable()); return;
      case Type::kLoop: out_ += describe_loop(*v.loop()); return;
      default: scalar(v); return;
    }
  }

  void dump(const Value& v, const JsonStyle& style, int depth) {
    enter(depth, "serialize to JSON");
    switch (v.type()) {
      case Type::kString: json_string(v.str(), style.ensure_ascii); return;
      case Type::kNone: out_ += "null"; return;
      case Type::kBool: out_ += v.as_bool() ? "true" : "false"; return;
      case Type::kInt: out_ += format_int(v.as_int()); return;
      case Type::kFloat: json_float(v.as_double()); return;
      case Type::kDict: json_object(*v.dict(), style, depth); return;
      case Type::kSequence:
        if (v.sequence()->is_list() || v.sequence()->is_tuple()) {
          json_array(v.sequence()->items, style, depth);
          return;
        }
        break;
      default: break;
    }
    fail("Object of type ", type_name(v), " is not JSON serializable");
  }

 private:
  void enter(int depth, std::string_view doing) {
    if (depth > kMaxDataDepth)
      throw Failure{StatusCode::kResourceExhausted,
                    cat("cannot ", doing, ": the value is nested deeper than ", kMaxDataDepth, " levels")};
    heap_.step();
    heap_.work(out_.size() - charged_);
    charged_ = std::max(charged_, out_.size());
    heap_.expect(out_.size());
  }

  void scalar(const Value& v) {
    switch (v.type()) {
      case Type::kNone: out_ += "None"; break;
      case Type::kBool: out_ += v.as_bool() ? "True" : "False"; break;
      case Type::kInt: out_ += format_int(v.as_int()); break;
      default: out_ += format_float(v.as_double());
    }
  }

  void sequence(const Sequence& s, int depth) {
    const auto items = [&](std::string_view open, std::string_view close) {
      out_ += open;
      for (size_t i = 0; i < s.items.size(); ++i) {
        if (i != 0) out_ += ", ";
        repr(s.items[i], depth + 1);
      }
      out_ += close;
    };
    switch (s.kind) {
      case SequenceKind::kList: items("[", "]"); return;
      case SequenceKind::kTuple:
      case SequenceKind::kGroup: items("(", s.items.size() == 1 ? ",)" : ")"); return;
      case SequenceKind::kKeys: items("dict_keys([", "])"); return;
      case SequenceKind::kValues: items("dict_values([", "])"); return;
      case SequenceKind::kItems: items("dict_items([", "])"); return;
      case SequenceKind::kIterator: out_ += "<generator object>"; return;
      case SequenceKind::kRange: range(s); return;
    }
  }

  void range(const Sequence& s) {
    if (s.items.empty()) {
      out_ += "range(0, 0)";
      return;
    }
    const Int first = s.items[0].as_int();
    const Int step = s.items.size() > 1 ? s.items[1].as_int() - first : 1;
    out_ += cat("range(", format_int(first), ", ", format_int(s.stop));
    if (step != 1) out_ += cat(", ", format_int(step));
    out_ += ')';
  }

  void braces(const Dict& d, int depth) {
    out_ += '{';
    bool first = true;
    for (const auto& [key, value] : d.entries) {
      if (!first) out_ += ", ";
      first = false;
      repr(key, depth + 1);
      out_ += ": ";
      repr(value, depth + 1);
    }
    out_ += '}';
  }

  void json_float(double f) {
    if (std::isnan(f)) out_ += "NaN";
    else if (std::isinf(f)) out_ += f < 0 ? "-Infinity" : "Infinity";
    else out_ += format_float(f);
  }

  void json_string(std::string_view s, bool ensure_ascii) {
    out_ += '"';
    for (size_t pos = 0; pos < s.size();) {
      const size_t start = pos;
      const char32_t c = decode_at(s, pos);
      switch (c) {
        case '"': out_ += "\\\""; continue;
        case '\\': out_ += "\\\\"; continue;
        case '\n': out_ += "\\n"; continue;
        case '\r': out_ += "\\r"; continue;
        case '\t': out_ += "\\t"; continue;
        case '\b': out_ += "\\b"; continue;
        case '\f': out_ += "\\f"; continue;
        default: break;
      }
      if (c < 0x20 || (ensure_ascii && c > 0x7E && c < 0x10000)) {
        out_ += "\\u";
        append_hex(out_, c, 4);
      } else if (ensure_ascii && c >= 0x10000) {
        out_ += "\\u";
        append_hex(out_, 0xD800 + ((c - 0x10000) >> 10), 4);
        out_ += "\\u";
        append_hex(out_, 0xDC00 + ((c - 0x10000) & 0x3FF), 4);
      } else {
        out_ += s.substr(start, pos - start);
      }
    }
    out_ += '"';
  }

  void new_line(const JsonStyle& style, int depth) {
    if (!style.pretty) return;
    heap_.expect(out_.size() + style.indent.size() * static_cast<size_t>(depth));
    out_ += '\n';
    for (int i = 0; i < depth; ++i) out_ += style.indent;
  }

  void json_array(const std::vector<Value>& items, const JsonStyle& style, int depth) {
    if (items.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i != 0) out_ += style.item_separator;
      new_line(style, depth + 1);
      dump(items[i], style, depth + 1);
    }
    new_line(style, depth);
    out_ += ']';
  }

  void json_key(const Value& key, const JsonStyle& style) {
    if (key.is_string()) {
      json_string(key.str(), style.ensure_ascii);
      return;
    }
    out_ += '"';
    switch (key.type()) {
      case Type::kNone: out_ += "null"; break;
      case Type::kBool: out_ += key.as_bool() ? "true" : "false"; break;
      case Type::kInt: out_ += format_int(key.as_int()); break;
      case Type::kFloat: json_float(key.as_double()); break;
      default: fail("keys must be str, int, float, bool or None, not ", type_name(key));
    }
    out_ += '"';
  }

  void json_object(const Dict& d, const JsonStyle& style, int depth) {
    if (d.entries.empty()) {
      out_ += "{}";
      return;
    }
    std::vector<const std::pair<Value, Value>*> order;
    heap_.step(d.entries.size());
    for (const auto& entry : d.entries) order.push_back(&entry);
    if (style.sort_keys)
      std::stable_sort(order.begin(), order.end(),
                       [&](auto* a, auto* b) { return less(heap_, a->first, b->first); });
    out_ += '{';
    bool first = true;
    for (const auto* entry : order) {
      if (!first) out_ += style.item_separator;
      first = false;
      new_line(style, depth + 1);
      json_key(entry->first, style);
      out_ += style.key_separator;
      dump(entry->second, style, depth + 1);
    }
    new_line(style, depth);
    out_ += '}';
  }

  Heap& heap_;
  std::string out_;
  size_t charged_ = 0;
};

}  // namespace

std::string describe_callable(const Callable& c) {
  switch (c.kind) {
    case Callable::Kind::kMacro: return cat("<Macro '", c.macro->name, "'>");
    case Callable::Kind::kMethod:
      return cat("<built-in method ", c.builtin->name, " of ", type_name(c.self), " object>");
    case Callable::Kind::kFunction: return cat("<function ", c.builtin->name, ">");
    case Callable::Kind::kCycler: return "<Cycler>";
    case Callable::Kind::kJoiner: return "<Joiner>";
  }
  return "<function>";
}

std::string describe_loop(const LoopState& l) {
  return cat("<LoopContext ", l.index + 1, "/", l.items.size(), ">");
}

std::string repr(Heap& heap, const Value& v) {
  Printer p(heap);
  p.repr(v, 0);
  return p.take();
}

Value to_str(Heap& heap, const Value& v) {
  if (v.is_string()) return v;
  if (v.is_undefined()) return Value::borrowed("");
  return heap.string(repr(heap, v), heap.has_user_bytes(v));
}

std::string to_json(Heap& heap, const Value& v, const JsonStyle& style) {
  Printer p(heap);
  p.dump(v, style, 0);
  return p.take();
}

}  // namespace oar::jinja

#include "engine/text/jinja/lexer.h"

#include <algorithm>

#include "engine/text/jinja/text.h"
#include "engine/text/utf8.h"

namespace oar::jinja {
namespace {

// \r\n and \r become \n; one newline at the very end goes.
std::string normalize(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize(source)), s_(source_) {}

  std::vector<Token> run() {
    while (pos_ < s_.size()) text();
    emit(TokenKind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void error(std::string message) const {
    throw Failure{StatusCode::kInvalidArgument, std::move(message), line_};
  }

  bool at(std::string_view what) const { return s_.substr(pos_, what.size()) == what; }
  char peek(size_t ahead = 0) const { return pos_ + ahead < s_.size() ? s_[pos_ + ahead] : '\0'; }

  void advance(size_t n) {
    const std::string_view passed = s_.substr(pos_, n);
    line_ += static_cast<int>(std::count(passed.begin(), passed.end(), '\n'));
    // lstrip_blocks asks whether the text before the next tag starts a line.
    if (!passed.empty()) line_start_ = passed.back() == '\n';
    pos_ += n;
  }

  // Length of the whitespace run at s_[from...].
  size_t space_at(size_t from) const {
    size_t p = from;
    while (p < s_.size()) {
      size_t next = p;
      if (!is_space(decode_at(s_, next))) break;
      p = next;
    }
    return p - from;
  }

  void emit(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }

  // Literal text up to the next tag, then that tag. `sign_pos` is where a tag may carry its - or +.
  void text() {
    size_t open = pos_;
    for (;; ++open) {
      open = s_.find('{', open);
      if (open == std::string_view::npos || open + 1 >= s_.size()) {
        emit(TokenKind::kText, std::string(s_.substr(pos_)));
        advance(s_.size() - pos_);
        return;
      }
      const char c = s_[open + 1];
      if (c == '{' || c == '%' || c == '#') break;
    }
    const char c = s_[open + 1];
    const char sign =
        open + 2 < s_.size() && (s_[open + 2] == '-' || s_[open + 2] == '+') ? s_[open + 2] : '\0';
    emit_text(open, sign, c != '{');
    advance(2 + (sign != '\0' ? 1 : 0));
    if (c == '#') {
      comment();
    } else if (c == '{') {
      emit(TokenKind::kPrintBegin, {});
      tag("}}", TokenKind::kPrintEnd);
    } else if (!raw()) {
      emit(TokenKind::kTagBegin, {});
      tag("%}", TokenKind::kTagEnd);
    }
  }

  // Emits s_[pos_, end), stripped as the following tag's sign and lstrip_blocks say, and moves to `end`.
  void emit_text(size_t end, char sign, bool lstrip) {
    std::string_view t = s_.substr(pos_, end - pos_);
    if (sign == '-') {
      t = strip(t, nullptr, false, true);
    } else if (sign != '+' && lstrip) {
      const size_t newline = t.rfind('\n');
      const size_t from = newline == std::string_view::npos ? 0 : newline + 1;
      if ((from > 0 || line_start_) && strip(t.substr(from), nullptr, true, false).empty())
        t = t.substr(0, from);
    }
    if (!t.empty()) emit(TokenKind::kText, std::string(t));
    advance(end - pos_);
  }

  // Behind an end marker: "-" eats all whitespace, "+" keeps it, otherwise trim_blocks eats one newline.
  void after_block_end(char sign) {
    if (sign == '-') advance(space_at(pos_));
    else if (sign != '+' && peek() == '\n') advance(1);
  }

  void comment() {
    if (pos_ >= s_.size()) return;  // Jinja, too, lets an opening at the very end pass
    const size_t end = s_.find("#}", pos_);
    if (end == std::string_view::npos) error("Missing end of comment tag");
    const char sign = end > pos_ && (s_[end - 1] == '-' || s_[end - 1] == '+') ? s_[end - 1] : '\0';
    advance(end + 2 - pos_);
    after_block_end(sign);
  }

  // {% raw %} ... {% endraw %}; the position is behind "{%" and its sign. False: some other tag.
  bool raw() {
    size_t p = pos_ + space_at(pos_);
    if (s_.substr(p, 3) != "raw") return false;
    p += 3;
    p += space_at(p);
    const bool dash = s_.substr(p, 3) == "-%}";
    if (!dash && s_.substr(p, 2) != "%}") return false;
    advance(p + (dash ? 3 : 2) - pos_);
    if (dash) advance(space_at(pos_));  // trim_blocks does not apply behind {% raw %}
    if (pos_ >= s_.size()) return true;
    for (size_t open = pos_;; ++open) {
      open = s_.find("{%", open);
      if (open == std::string_view::npos) error("Missing end of raw directive");
      size_t q = open + 2;
      const char sign = q < s_.size() && (s_[q] == '-' || s_[q] == '+') ? s_[q] : '\0';
      if (sign != '\0') ++q;
      q += space_at(q);
      if (s_.substr(q, 6) != "endraw") continue;
      q += 6;
      q += space_at(q);
      const char end_sign = q < s_.size() && (s_[q] == '-' || s_[q] == '+') ? s_[q] : '\0';
      if (end_sign != '\0') ++q;
      if (s_.substr(q, 2) != "%}") continue;
      emit_text(open, sign, true);
      advance(q + 2 - pos_);
      after_block_end(end_sign);
      return true;
    }
  }

  // Tokens of an expression or statement until `close`; brackets inside must balance, so that }} can end a
  // dict.
  void tag(std::string_view close, TokenKind end_kind) {
    std::string open_brackets;
    for (;;) {
      advance(space_at(pos_));
      if (pos_ >= s_.size()) return;  // the parser reports the unexpected end of the template
      if (open_brackets.empty()) {
        const char sign = peek() == '-' || (peek() == '+' && end_kind == TokenKind::kTagEnd) ? peek() : '\0';
        if (s_.substr(pos_ + (sign != '\0' ? 1 : 0), 2) == close) {
          emit(end_kind, {});
          advance(2 + (sign != '\0' ? 1 : 0));
          if (end_kind == TokenKind::kTagEnd) after_block_end(sign);
          else if (sign == '-') advance(space_at(pos_));
          return;
        }
      }
      const char c = peek();
      if (is_digit(c) && number()) continue;
      if (c == '\'' || c == '"') string(c);
      else if (!name()) operator_token(open_brackets);
    }
  }

  // [0-9]+ groups joined by single underscores; npos when there is no digit at `p`.
  size_t digits_end(size_t p) const {
    if (p >= s_.size() || !is_digit(s_[p])) return std::string_view::npos;
    while (p < s_.size() && (is_digit(s_[p]) || (s_[p] == '_' && p + 1 < s_.size() && is_digit(s_[p + 1]))))
      ++p;
    return p;
  }

  bool number() {
    // A float does not start right behind a dot: "x.0.1" is two subscripts.
    if (pos_ == 0 || s_[pos_ - 1] != '.') {
      size_t p = digits_end(pos_);
      bool is_float = false;
      if (p < s_.size() && s_[p] == '.') {
        if (const size_t q = digits_end(p + 1); q != std::string_view::npos) {
          p = q;
          is_float = true;
        }
      }
      if (p < s_.size() && (s_[p] | 0x20) == 'e') {
        const size_t sign = p + 1 < s_.size() && (s_[p + 1] == '+' || s_[p + 1] == '-') ? 1 : 0;
        if (const size_t q = digits_end(p + 1 + sign); q != std::string_view::npos) {
          p = q;
          is_float = true;
        }
      }
      if (is_float) {
        emit(TokenKind::kFloat, std::string(s_.substr(pos_, p - pos_)));
        if (!parse_float(tokens_.back().text, &tokens_.back().real)) error("malformed number");
        advance(p - pos_);
        return true;
      }
    }
    size_t p = pos_;
    int base = 10;
    if (peek() == '0') {
      // 0x, 0o, 0b prefixes; otherwise a run of zeros only, as in Python.
      const char letter = static_cast<char>(peek(1) | 0x20);
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
      const auto valid = [&](char ch) {
        const char lower = static_cast<char>(ch | 0x20);
        return base == 16 ? is_digit(ch) || (lower >= 'a' && lower <= 'f') : is_digit(ch) && ch < '0' + base;
      };
      size_t q = pos_ + 2;
      while (base != 10 && q < s_.size() &&
             (valid(s_[q]) || (s_[q] == '_' && q + 1 < s_.size() && valid(s_[q + 1]))))
        ++q;
      if (base != 10 && q > pos_ + 2) {
        p = q;
      } else {
        base = 10;
        p = pos_ + 1;
        while (p < s_.size() && (s_[p] == '0' || (s_[p] == '_' && p + 1 < s_.size() && s_[p + 1] == '0')))
          ++p;
      }
    } else {
      p = digits_end(pos_);
    }
    emit(TokenKind::kInteger, std::string(s_.substr(pos_, p - pos_)));
    try {
      if (!parse_int(tokens_.back().text, base, &tokens_.back().integer)) error("malformed number");
    } catch (Failure& f) { error(f.message); }
    advance(p - pos_);
    return true;
  }

  bool name() {
    size_t p = pos_;
    while (p < s_.size()) {
      size_t next = p;
      if (!is_word_char(decode_at(s_, next))) break;
      p = next;
    }
    if (p == pos_) return false;
    if (is_digit(s_[pos_])) error("Invalid character in identifier");
    emit(TokenKind::kName, std::string(s_.substr(pos_, p - pos_)));
    advance(p - pos_);
    return true;
  }

  void string(char quote) {
    size_t p = pos_ + 1;
    while (p < s_.size() && s_[p] != quote) p += s_[p] == '\\' ? 2 : 1;
    if (p >= s_.size())
      error(cat("unexpected char ", std::string_view(quote == '"' ? "'\"'" : "\"'\""),
                ": the string it opens is never closed"));
    const int line = line_;
    std::string text = unescape(s_.substr(pos_ + 1, p - pos_ - 1));
    emit(TokenKind::kString, std::move(text));
    tokens_.back().line = line;
    advance(p + 1 - pos_);
  }

  // Python's string escapes; an unknown one stays as written.
  std::string unescape(std::string_view in) const {
    std::string out;
    out.reserve(in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      if (in[i] != '\\' || i + 1 >= in.size()) {
        out += in[i];
        continue;
      }
      const char c = in[++i];
      switch (c) {
        case '\n': break;  // line continuation
        case '\\':
        case '\'':
        case '"': out += c; break;
        case 'a': out += '\a'; break;
        case 'b': out += '\b'; break;
        case 'f': out += '\f'; break;
        case 'n': out += '\n'; break;
        case 'r': out += '\r'; break;
        case 't': out += '\t'; break;
        case 'v': out += '\v'; break;
        case 'x': i = hex(in, i, 2, out); break;
        case 'u': i = hex(in, i, 4, out); break;
        case 'U': i = hex(in, i, 8, out); break;
        case 'N': error("\\N{...} names are not supported; write \\u with the code point");
        default:
          if (c >= '0' && c <= '7') {
            char32_t v = 0;
            size_t k = i;
            for (; k < in.size() && k < i + 3 && in[k] >= '0' && in[k] <= '7'; ++k)
              v = v * 8 + static_cast<char32_t>(in[k] - '0');
            append_utf8(out, v);
            i = k - 1;
          } else {
            out += '\\';
            out += c;
          }
      }
    }
    return out;
  }

  // in[i] is the letter of \x, \u or \U; returns the index of the last digit.
  size_t hex(std::string_view in, size_t i, size_t digits, std::string& out) const {
    char32_t v = 0;
    for (size_t k = 1; k <= digits; ++k) {
      const char c = i + k < in.size() ? in[i + k] : '\0';
      const char lower = static_cast<char>(c | 0x20);
      if (is_digit(c)) v = v * 16 + static_cast<char32_t>(c - '0');
      else if (lower >= 'a' && lower <= 'f') v = v * 16 + static_cast<char32_t>(lower - 'a' + 10);
      else error(cat("truncated \\", in.substr(i, 1), " escape: it needs ", digits, " hexadecimal digits"));
    }
    if (v > 0x10FFFF || (v >= 0xD800 && v <= 0xDFFF))
      error(cat("the escape \\", in.substr(i, digits + 1), " is not a Unicode character"));
    append_utf8(out, v);
    return i + digits;
  }

  void operator_token(std::string& open_brackets) {
    static constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    static constexpr std::string_view kOne = "+-/*%~[](){}><=.:|,;";
    for (const std::string_view op : kTwo)
      if (at(op)) {
        emit(TokenKind::kOperator, std::string(op));
        advance(2);
        return;
      }
    const char c = peek();
    if (kOne.find(c) == std::string_view::npos) {
      size_t end = pos_;
      decode_at(s_, end);
      error(cat("unexpected char '", s_.substr(pos_, end - pos_), "'"));
    }
    if (c == '(') open_brackets += ')';
    if (c == '[') open_brackets += ']';
    if (c == '{') open_brackets += '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open_brackets.empty()) error(cat("unexpected '", c, "'"));
      if (open_brackets.back() != c)
        error(cat("unexpected '", c, "', expected '", open_brackets.back(), "'"));
      open_brackets.pop_back();
    }
    emit(TokenKind::kOperator, std::string(1, c));
    advance(1);
  }

  std::string source_;
  std::string_view s_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kText: return "template text";
    case TokenKind::kPrintBegin: return "'{{'";
    case TokenKind::kPrintEnd: return "'}}'";
    case TokenKind::kTagBegin: return "'{%'";
    case TokenKind::kTagEnd: return "'%}'";
    case TokenKind::kString: return "a string";
    case TokenKind::kEnd: return "the end of the template";
    default: return cat("'", token.text, "'");
  }
}

}  // namespace oar::jinja

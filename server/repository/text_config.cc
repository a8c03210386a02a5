#include "server/repository/text_config.h"

#include <charconv>

#include "engine/base/format.h"

namespace oar {
namespace {

constexpr size_t kMaxBytes = 1 << 20;
constexpr int kMaxDepth = 32;

class Parser {
 public:
  Parser(std::string_view text, std::string_view what) : text_(text), what_(what) {}

  Result<json::object> document() {
    OAR_ASSIGN(json::object out, fields('\0', 0));
    return out;
  }

 private:
  Status error(std::string why) const {
    size_t line = 1;
    for (size_t i = 0; i < at_ && i < text_.size(); ++i) line += text_[i] == '\n';
    return invalid_argument(cat(what_, ", line ", line, ": ", why));
  }
  void skip() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
        ++at_;
      } else {
        return;
      }
    }
  }
  char peek() {
    skip();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char c) {
    if (peek() != c || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }
  static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '+' || c == '-';
  }
  std::string_view word() {
    skip();
    const size_t begin = at_;
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  // Fields up to `close`, or to the end of the text.
  Result<json::object> fields(char close, int depth) {
    if (depth > kMaxDepth) return error("messages are nested too deeply");
    json::object out;
    for (;;) {
      if (peek() == '\0' && at_ >= text_.size()) {
        if (close == '\0') return out;
        return error(cat("the message is not closed with ", close));
      }
      if (close != '\0' && accept(close)) return out;
      const std::string name(word());
      if (name.empty()) return error(cat("expected the name of a field, got '", peek(), "'"));
      const bool colon = accept(':');
      if (accept('[')) {
        json::value& list = out[name];
        if (!list.is_array()) list = list.is_null() ? json::array() : json::array{list};
        while (!accept(']')) {
          OAR_ASSIGN(json::value v, value(depth, true));
          list.get_array().push_back(std::move(v));
          if (!accept(',') && peek() != ']') return error(cat("the list of ", name, " is not closed with ]"));
        }
      } else {
        OAR_ASSIGN(json::value v, value(depth, colon));
        if (json::value* old = out.if_contains(name)) {
          if (!old->is_array()) *old = json::array{*old};
          old->get_array().push_back(std::move(v));
        } else {
          out[name] = std::move(v);
        }
      }
      if (!accept(',')) accept(';');
    }
  }

  Result<json::value> value(int depth, bool scalar_allowed) {
    if (accept('{')) {
      OAR_ASSIGN(json::object o, fields('}', depth + 1));
      return json::value(std::move(o));
    }
    if (accept('<')) {
      OAR_ASSIGN(json::object o, fields('>', depth + 1));
      return json::value(std::move(o));
    }
    if (!scalar_allowed) return error("expected ':' or '{' after the name of a field");
    const char c = peek();
    if (c == '"' || c == '\'') {
      std::string s;
      while (peek() == '"' || peek() == '\'') OAR_RETURN_IF_ERROR(string(s));
      return json::value(s);
    }
    const std::string_view w = word();
    if (w.empty()) return error("a value is missing");
    if (w == "true" || w == "false") return json::value(w == "true");
    int64_t i = 0;
    const char* end = w.data() + w.size();
    if (const auto r = std::from_chars(w.data(), end, i); r.ec == std::errc() && r.ptr == end)
      return json::value(i);
    double d = 0;
    if (const auto r = std::from_chars(w.data(), end, d); r.ec == std::errc() && r.ptr == end)
      return json::value(d);
    return json::value(json::string_view(w.data(), w.size()));  // an enum
  }

  Status string(std::string& out) {
    const char quote = text_[at_++];
    while (at_ < text_.size() && text_[at_] != quote) {
      char c = text_[at_++];
      if (c == '\n') return error("a string is not closed on its line");
      if (c != '\\') {
        out += c;
        continue;
      }
      if (at_ >= text_.size()) break;
      c = text_[at_++];
      switch (c) {
        case 'n': out += '\n'; break;
        case 't': out += '\t'; break;
        case 'r': out += '\r'; break;
        case '\\':
        case '\'':
        case '"': out += c; break;
        default: return error(cat("the escape \\", c, " is not known"));
      }
    }
    if (at_ >= text_.size()) return error("a string is not closed");
    ++at_;
    return ok_status();
  }

  std::string_view text_, what_;
  size_t at_ = 0;
};

}  // namespace

Result<json::object> parse_text_config(std::string_view text, std::string_view what) {
  if (text.size() > kMaxBytes)
    return invalid_argument(cat(what, " has ", text.size(), " bytes; at most ", kMaxBytes));
  return Parser(text, what).document();
}

}  // namespace oar

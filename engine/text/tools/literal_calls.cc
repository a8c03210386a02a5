// Calls in the notation of a programming language: Python's f(a=1, b='x') of Llama and Gemma 3, and the
// braces f{a:<|"|>x<|"|>,n:1} of Gemma 4. Their values become JSON as they arrive.
#include "engine/text/json_text.h"
#include "engine/text/tools/call_reader.h"
#include "engine/text/utf8.h"

namespace oar::tools {
namespace {

// Values in such a notation to JSON. It begins inside the outermost brackets, those of the arguments.
class LiteralWriter {
 public:
  // `close`: of the outermost brackets; `assign`: between a name and its value there (inside it is a colon);
  // `quote`: around strings, empty for Python's two.
  LiteralWriter(char close, char assign, std::string_view quote, bool object = true)
      : assign_(assign), quote_(quote) {
    open_.push_back({close, object});
  }

  bool in_string() const { return in_string_; }
  bool done() const { return open_.empty(); }

  // Reads on: bytes used, 0 for want of more.
  size_t step(std::string_view text, bool final, std::string& out) {
    if (in_string_) return string(text, final, out);
    if (!quote_.empty()) {
      const Found found = begins_with(text, quote_, final);
      if (found == Found::kMaybe) return 0;
      if (found == Found::kYes) {
        open_string(quote_, out);
        return quote_.size();
      }
    }
    put(text[0], out);
    return 1;
  }

 private:
  struct Bracket {
    char close;
    bool object;  // has names
    bool first = true;
    bool named = false;  // the name has been read, the value is next
  };

  void put(char c, std::string& out) {
    if (c == '"' || (c == '\'' && quote_.empty())) {
      end_word(out);
      return open_string(c == '"' ? "\"" : "'", out);
    }
    Bracket& top = open_.back();
    if (c == top.close || ((c == ']' || c == '}' || c == ')') && open_.size() > 1)) {
      end_word(out);
      if (top.object && top.first) out += '{';
      if (!top.object && top.first) out += '[';
      out += top.object ? '}' : ']';
      open_.pop_back();
      return;
    }
    if (is_space(c)) return end_word(out);
    if (c == ',') return end_word(out), void(top.named = false);
    if (top.object && !top.named && c == (open_.size() == 1 ? assign_ : ':')) {
      end_word(out);
      out += ':';
      top.named = true;
      return;
    }
    if (word_.empty() && (c == '[' || c == '{' || c == '(')) {
      begin_value(out);
      open_.push_back({c == '{' ? '}' : c == '[' ? ']' : ')', c == '{'});
      return;
    }
    word_ += c;
  }

  // What is due before a name, or before a value that has none.
  void begin_value(std::string& out) {
    Bracket& top = open_.back();
    if (top.object && top.named) return;
    out += !top.first ? ',' : top.object ? '{' : '[';
    top.first = false;
  }

  void end_word(std::string& out) {
    if (word_.empty()) return;
    begin_value(out);
    const Bracket& top = open_.back();
    const std::string word = std::exchange(word_, {});
    const bool name = top.object && !top.named;
    if (!name && (word == "true" || word == "True")) out += "true";
    else if (!name && (word == "false" || word == "False")) out += "false";
    else if (!name && (word == "null" || word == "None")) out += "null";
    else if (!name && is_number(word)) out += word;
    else {
      out += '"';
      append_json_escaped(out, word);
      out += '"';
    }
  }

  // JSON's grammar of numbers.
  static bool is_number(std::string_view s) {
    const auto digits = [&] {
      const size_t n = std::min(s.find_first_not_of("0123456789"), s.size());
      s.remove_prefix(n);
      return n;
    };
    if (s.starts_with('-')) s.remove_prefix(1);
    const bool zero = s.starts_with('0');
    const size_t whole = digits();
    if (whole == 0 || (zero && whole > 1)) return false;
    if (s.starts_with('.')) {
      s.remove_prefix(1);
      if (digits() == 0) return false;
    }
    if (s.starts_with('e') || s.starts_with('E')) {
      s.remove_prefix(1);
      if (s.starts_with('+') || s.starts_with('-')) s.remove_prefix(1);
      if (digits() == 0) return false;
    }
    return s.empty();
  }

  void open_string(std::string_view quote, std::string& out) {
    end_word(out);
    begin_value(out);
    out += '"';
    in_string_ = true;
    closing_ = quote;
    escapes_ = quote_.empty() || quote != quote_;
    escape_.clear();
  }

  size_t string(std::string_view text, bool final, std::string& out) {
    if (!escape_.empty()) return escape(text[0], out);
    const Found found = begins_with(text, closing_, final);
    if (found == Found::kMaybe) return 0;
    if (found == Found::kYes) {
      out += '"';
      in_string_ = false;
      return closing_.size();
    }
    if (text[0] == '\\' && escapes_) escape_ = "\\";
    else append_json_escaped(out, text.substr(0, 1));
    return 1;
  }

  // \n, \x41, \u00e9, \U0001f600; of others the character itself, with the backslash as Python leaves it
  // there.
  size_t escape(char c, std::string& out) {
    const bool hex = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
    if (escape_.size() == 1) {
      escape_ += c;
      if (c == 'x' || c == 'u' || c == 'U') return 1;
      const size_t at = std::string_view("ntrbf0\\'\"\n").find(c);
      constexpr std::string_view kMeaning("\n\t\r\b\f\0\\'\"", 9);
      if (at < kMeaning.size()) append_json_escaped(out, kMeaning.substr(at, 1));
      else if (at == std::string_view::npos) append_json_escaped(out, escape_);
      escape_.clear();
      return 1;
    }
    const size_t digits = escape_[1] == 'x' ? 2 : escape_[1] == 'u' ? 4 : 8;
    if (!hex) {  // no escape after all
      append_json_escaped(out, std::exchange(escape_, {}));
      if (c == closing_[0]) {
        out += '"';
        in_string_ = false;
      } else if (c == '\\') {
        escape_ = "\\";
      } else {
        append_json_escaped(out, {&c, 1});
      }
      return 1;
    }
    escape_ += c;
    if (escape_.size() < 2 + digits) return 1;
    const auto code = static_cast<uint32_t>(std::stoul(escape_.substr(2), nullptr, 16));
    escape_.clear();
    const bool valid = code < 0x110000 && (code < 0xD800 || code > 0xDFFF);
    std::string character;
    append_utf8(character, valid ? static_cast<char32_t>(code) : kReplacementCharacter);
    append_json_escaped(out, character);
    return 1;
  }

  char assign_;
  std::string_view quote_;
  std::vector<Bracket> open_;
  std::string word_, escape_;
  std::string_view closing_;  // of the string
  bool in_string_ = false, escapes_ = false;
};

bool is_name_char(char c, bool first) {
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  return letter || (!first && ((c >= '0' && c <= '9') || c == '.' || c == '-'));
}

class Pythonic final : public CallReader {
 public:
  explicit Pythonic(const ToolStyle& style) : CallReader(style), literal_(')', '=', {}) {}

 private:
  enum class State { kOutside, kName, kOpen, kArguments };

  bool at_boundary() const override { return state_ != State::kArguments || !literal_.in_string(); }
  Status close(CallSink&, bool) override { return calls_ > 0 ? Status::kDone : Status::kFailed; }

  Result step(std::string_view text, bool final, CallSink& sink) override {
    const char c = text[0];
    const Result failed{0, calls_ > 0 ? Status::kDone : Status::kFailed};
    switch (state_) {
      case State::kOutside:
        if (calls_ > 0 && !array_) return failed;
        if (is_name_char(c, true)) {
          name_.assign(1, c);
          state_ = State::kName;
          return {1, Status::kMore};
        }
        if (c == ']' && array_ && calls_ > 0) return {1, Status::kDone};
        if (!is_space(c) && !(c == '[' && !array_) && !(c == ',' && calls_ > 0)) return failed;
        array_ |= c == '[';
        return {1, Status::kMore};
      case State::kName:
        if (is_name_char(c, false)) {
          name_ += c;
          return name_.size() > kMaxToolName ? failed : Result{1, Status::kMore};
        }
        if (c != '(') return failed;
        opening_.clear();
        state_ = State::kOpen;
        return {1, Status::kMore};
      case State::kOpen:
        // A call is one when its first argument has a name, or it has none.
        if (is_name_char(c, opening_.empty()) || is_space(c)) {
          opening_ += c;
          return opening_.size() > kMaxToolName ? failed : Result{1, Status::kMore};
        }
        if (c != '=' && !(c == ')' && strip_space(opening_).empty())) return failed;
        return begin(sink) ? Result{1, advance(c, sink)} : failed;
      case State::kArguments: {
        std::string json;
        const size_t used = literal_.step(text, final, json);
        if (!json.empty()) sink.arguments(json);
        end_if_done(sink);
        return {used, Status::kMore};
      }
    }
    return failed;
  }

  // Llama's own tools are called as brave_search.call(query="...").
  bool begin(CallSink& sink) {
    constexpr std::string_view kCall = ".call";
    std::string_view name = name_;
    if (name.ends_with(kCall) && name.size() > kCall.size()) name.remove_suffix(kCall.size());
    if (!sink.begin(name, {})) return false;
    ++calls_;
    literal_ = LiteralWriter(')', '=', {});
    state_ = State::kArguments;
    return true;
  }
  // The first argument's name, which has been held, and the character behind it.
  Status advance(char c, CallSink& sink) {
    std::string json, text = opening_ + c;
    for (size_t i = 0; i < text.size(); ++i) literal_.step(std::string_view(text).substr(i, 1), true, json);
    if (!json.empty()) sink.arguments(json);
    end_if_done(sink);
    return Status::kMore;
  }
  void end_if_done(CallSink& sink) {
    if (!literal_.done()) return;
    sink.end();
    state_ = State::kOutside;
  }

  State state_ = State::kOutside;
  LiteralWriter literal_;
  std::string name_, opening_;
  int64_t calls_ = 0;
  bool array_ = false;
};

class Braces final : public CallReader {
 public:
  explicit Braces(const ToolStyle& style) : CallReader(style), literal_('}', ':', style.quote) {}

 private:
  enum class State { kPrefix, kName, kArguments };

  bool at_boundary() const override { return !literal_.in_string(); }
  Status close(CallSink& sink, bool marker) override {
    if (state_ != State::kArguments) return Status::kFailed;
    if (marker) sink.end();
    return Status::kDone;
  }
  Result step(std::string_view text, bool final, CallSink& sink) override {
    switch (state_) {
      case State::kPrefix: {
        if (is_space(text[0])) return {1, Status::kMore};
        const Found found = begins_with(text, style_.name_begin, final);
        if (found == Found::kMaybe) return {0, Status::kMore};
        if (found == Found::kNo) return {0, Status::kFailed};
        state_ = State::kName;
        return {style_.name_begin.size(), Status::kMore};
      }
      case State::kName:
        if (text[0] == '{') return begin(sink) ? Result{1, Status::kMore} : Result{0, Status::kFailed};
        name_ += text[0];
        return name_.size() > kMaxToolName ? Result{0, Status::kFailed} : Result{1, Status::kMore};
      case State::kArguments: {
        std::string json;
        const size_t used = literal_.step(text, final, json);
        if (!json.empty()) sink.arguments(json);
        if (!literal_.done()) return {used, Status::kMore};
        sink.end();
        return {used, Status::kDone};
      }
    }
    return {0, Status::kFailed};
  }
  bool begin(CallSink& sink) {
    const std::string_view name = strip_space(name_);
    if (name.empty() || name.find_first_of(" \n\t<>\"") != name.npos) return false;
    state_ = State::kArguments;
    return sink.begin(name, {});
  }

  State state_ = State::kPrefix;
  LiteralWriter literal_;
  std::string name_;
};

}  // namespace

std::string python_to_json(std::string_view literal) {
  LiteralWriter writer(']', ':', {}, false);
  std::string json;
  for (size_t i = 0; i < literal.size() && !writer.done(); ++i) writer.step(literal.substr(i, 1), true, json);
  if (!writer.done()) writer.step("]", true, json);
  if (!writer.done() || json.size() < 2) return {};
  return json.substr(1, json.size() - 2);  // it was read as the one element of a list
}

std::unique_ptr<CallReader> pythonic_reader(const ToolStyle& style) {
  return std::make_unique<Pythonic>(style);
}
std::unique_ptr<CallReader> braces_reader(const ToolStyle& style) { return std::make_unique<Braces>(style); }

}  // namespace oar::tools

#include "engine/text/grammar/gbnf.h"

#include <map>
#include <optional>
#include <set>

#include "engine/base/format.h"
#include "engine/text/utf8.h"

namespace oar::grammar {
namespace {

constexpr size_t kMaxSourceBytes = size_t{1} << 20;
constexpr size_t kMaxDepth = 250;
constexpr uint32_t kMaxCount = 1'000'000'000;

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.';
}

class Parser {
 public:
  Parser(std::string_view source, Grammar& grammar) : s_(source), g_(grammar) {}

  Result<Rule> run() {
    if (s_.size() > kMaxSourceBytes)
      return invalid_argument(
          cat("a grammar of ", s_.size(), " bytes is too long; at most ", kMaxSourceBytes, " are accepted"));
    if (!is_valid_utf8(s_)) return invalid_argument("the grammar is not well-formed UTF-8");
    for (skip(); more(); skip()) {
      const size_t begin = pos_;
      const std::string_view name = take_name();
      skip();
      if (name.empty() || !take("::=")) {
        pos_ = begin;
        fail("expected a rule: name ::= ...");
        break;
      }
      const Named& rule = named(name, begin);
      if (!ok()) break;
      if (!defined_.insert(rule.id).second) {
        pos_ = begin;
        fail(cat("the rule \"", name, "\" is defined twice"));
        break;
      }
      const Expr body = choice(0);
      if (ok()) g_.define(rule.id, body);
      if (ok() && at(")")) fail("there is a ) without its (");
    }
    if (ok())
      for (const auto& [name, rule] : rules_)
        if (!defined_.contains(rule.id)) {
          pos_ = rule.used_at;
          fail(cat("the rule \"", name, "\" is not defined"));
          break;
        }
    if (ok() && !rules_.contains("root")) fail("there is no rule \"root\", where a text begins");
    if (g_.full()) return invalid_argument("the grammar is too large");
    if (!ok()) return invalid_argument(error_);
    return rules_.find("root")->second.id;
  }

 private:
  struct Named {
    Rule id;
    size_t used_at;
  };

  bool ok() const { return error_.empty(); }
  bool more() const { return ok() && pos_ < s_.size(); }
  bool at(std::string_view t) const { return s_.substr(pos_).starts_with(t); }
  bool take(std::string_view t) {
    if (!at(t)) return false;
    pos_ += t.size();
    return true;
  }
  Expr fail(std::string why) {
    if (!ok()) return 0;
    size_t line = 1, column = 1;
    for (size_t i = 0; i < pos_ && i < s_.size(); ++i, ++column)
      if (s_[i] == '\n') ++line, column = 0;
    error_ = cat("in the grammar at line ", line, ", column ", column, ": ", why);
    return 0;
  }
  void skip() {
    while (pos_ < s_.size()) {
      if (s_[pos_] == '#')
        while (pos_ < s_.size() && s_[pos_] != '\n') ++pos_;
      else if (s_[pos_] == ' ' || s_[pos_] == '\t' || s_[pos_] == '\n' || s_[pos_] == '\r') ++pos_;
      else return;
    }
  }
  std::string_view take_name() {
    const size_t begin = pos_;
    while (pos_ < s_.size() && is_name(s_[pos_])) ++pos_;
    return s_.substr(begin, pos_ - begin);
  }
  const Named& named(std::string_view name, size_t where) {
    const auto it = rules_.find(name);
    if (it != rules_.end()) return it->second;
    return rules_.emplace(std::string(name), Named{g_.add_rule(std::string(name)), where}).first->second;
  }
  // Whether the next rule begins here.
  bool at_rule() const {
    size_t i = pos_;
    while (i < s_.size() && is_name(s_[i])) ++i;
    if (i == pos_) return false;
    while (i < s_.size() && (s_[i] == ' ' || s_[i] == '\t' || s_[i] == '\n' || s_[i] == '\r')) ++i;
    return s_.substr(i).starts_with("::=");
  }

  Expr choice(size_t depth) {
    if (depth > kMaxDepth) return fail("groups are nested too deeply");
    std::vector<Expr> ways = {sequence(depth)};
    while (more() && take("|")) ways.push_back(sequence(depth));
    return g_.choice(ways);
  }

  Expr sequence(size_t depth) {
    std::vector<Expr> parts;
    for (skip(); more() && !at("|") && !at(")"); skip()) {
      if (at_rule()) break;
      const Expr e = element(depth);
      if (!ok()) return 0;
      parts.push_back(repeated(e));
    }
    return g_.sequence(parts);
  }

  Expr element(size_t depth) {
    if (at("\"") || at("'")) return text();
    if (take("[")) return char_class();
    if (take("(")) {
      if (at("=")) return fail("look-ahead is not supported");
      const Expr inside = choice(depth + 1);
      if (ok() && !take(")")) return fail("there is a ( without its )");
      return inside;
    }
    if (at(".") && (pos_ + 1 == s_.size() || !is_name(s_[pos_ + 1]))) {
      ++pos_;
      return g_.chars(CodePointRanges::all(), Coding::kUtf8);
    }
    const size_t begin = pos_;
    const std::string_view name = take_name();
    if (name.empty()) return fail(cat("unexpected ", s_.substr(pos_, utf8_length(s_[pos_]))));
    return g_.use(named(name, begin).id);
  }

  std::optional<uint32_t> number() {
    skip();
    const size_t begin = pos_;
    uint64_t n = 0;
    for (; pos_ < s_.size() && s_[pos_] >= '0' && s_[pos_] <= '9'; ++pos_)
      n = std::min<uint64_t>(n * 10 + static_cast<uint64_t>(s_[pos_] - '0'), kMaxCount + uint64_t{1});
    const bool any = pos_ > begin;
    skip();
    return any ? std::optional<uint32_t>(static_cast<uint32_t>(n)) : std::nullopt;
  }

  Expr repeated(Expr e) {
    while (more()) {
      if (take("*")) e = g_.repeat(e, 0, kNoLimit);
      else if (take("+")) e = g_.repeat(e, 1, kNoLimit);
      else if (take("?")) e = g_.optional(e);
      else if (take("{")) {
        const auto low = number();
        std::optional<uint32_t> high = low;
        if (take(",")) high = number().value_or(kNoLimit);
        if ((!low && high == low) || !take("}")) return fail("a count is written {m}, {m,} or {m,n}");
        const uint32_t least = low.value_or(0);
        if (least > kMaxCount || (*high > kMaxCount && *high != kNoLimit))
          return fail(cat("a count is larger than ", kMaxCount));
        if (least > *high) return fail(cat("{", least, ",", *high, "} counts down"));
        e = g_.repeat(e, least, *high);
      } else break;
    }
    return e;
  }

  char32_t hex(int count) {
    char32_t value = 0;
    for (int i = 0; i < count; ++i, ++pos_) {
      const char c = pos_ < s_.size() ? s_[pos_] : ' ';
      const char l = static_cast<char>(c | 0x20);
      if (!((c >= '0' && c <= '9') || (l >= 'a' && l <= 'f')))
        return fail(cat("an escape needs ", count, " hexadecimal digits"));
      value = value * 16 + static_cast<char32_t>(c <= '9' ? c - '0' : l - 'a' + 10);
    }
    if (value > kMaxCodePoint || (value >= 0xD800 && value <= 0xDFFF))
      return fail("there is no such character");
    return value;
  }
  char32_t character() {
    if (!take("\\")) {
      const CodePoint c = decode_utf8(s_, pos_);
      pos_ += c.length;
      return c.value;
    }
    if (!more()) return fail("it ends with a backslash");
    const char c = s_[pos_++];
    switch (c) {
      case 'n': return '\n';
      case 'r': return '\r';
      case 't': return '\t';
      case 'x': return hex(2);
      case 'u': return hex(4);
      case 'U': return hex(8);
      case '\\':
      case '"':
      case '\'':
      case '[':
      case ']':
      case '-':
      case '^':
      case '/':
      case '.':
      case '*':
      case '+':
      case '?':
      case '(':
      case ')':
      case '{':
      case '}':
      case '|':
      case '$': return static_cast<char32_t>(c);
      default: return fail(cat("the escape \\", s_.substr(pos_ - 1, 1), " is not known"));
    }
  }

  Expr text() {
    const char quote = s_[pos_++];
    std::string bytes;
    while (more() && s_[pos_] != quote) {
      if (s_[pos_] == '\n') return fail("a text does not end on its line");
      append_utf8(bytes, character());
    }
    if (!more()) return fail("a text does not end");
    ++pos_;
    return g_.text(bytes);
  }

  Expr char_class() {
    const bool negated = take("^");
    std::vector<CodePointRanges::Range> listed;
    while (more() && !at("]")) {
      const char32_t first = character();
      char32_t last = first;
      if (at("-") && !at("-]")) {
        ++pos_;
        if (!more()) break;
        last = character();
      }
      if (!ok()) return 0;
      if (first > last) return fail("a range in [...] counts down");
      listed.push_back({first, last});
    }
    if (!take("]")) return fail("there is a [ without its ]");
    const auto all = CodePointRanges::of(std::move(listed));
    return g_.chars(negated ? all.complement() : all, Coding::kUtf8);
  }

  std::string_view s_;
  Grammar& g_;
  size_t pos_ = 0;
  std::string error_;
  std::map<std::string, Named, std::less<>> rules_;
  std::set<Rule> defined_;
};

}  // namespace

Result<Rule> add_gbnf(std::string_view source, Grammar& grammar) { return Parser(source, grammar).run(); }

}  // namespace oar::grammar

// A recursive-descent parser, and then the anchors: each alternative of the whole pattern may begin with ^
// and end with $; what has none is surrounded by any characters when the pattern is searched for.
#include "engine/text/grammar/regex.h"

#include <optional>

#include "engine/base/format.h"
#include "engine/text/unicode/unicode.h"
#include "engine/text/utf8.h"

namespace oar::grammar {
namespace {

constexpr uint32_t kMaxRepeats = 1'000'000'000;

CodePointRanges one(char32_t c) { return {c, c}; }
CodePointRanges digits() { return {'0', '9'}; }
CodePointRanges word() { return digits().united({'A', 'Z'}).united({'a', 'z'}).united({'_', '_'}); }
CodePointRanges space() {
  return CodePointRanges(0x09, 0x0D)
      .united(one(0xFEFF))
      .united(one(0x2028))
      .united(one(0x2029))
      .united(CodePointRanges::of_categories(category_bit(GeneralCategory::kZs)));
}
CodePointRanges no_line_end() { return one('\n').united(one('\r')).united({0x2028, 0x2029}).complement(); }

struct NamedCategory {
  std::string_view name;
  CategorySet set;
};
constexpr NamedCategory kCategories[] = {
    {"L", kLetters},
    {"Letter", kLetters},
    {"M", kMarks},
    {"N", kNumbers},
    {"P", kPunctuation},
    {"S", kSymbols},
    {"Z", kSeparators},
    {"C", kOthers},
    {"Lu", category_bit(GeneralCategory::kLu)},
    {"Ll", category_bit(GeneralCategory::kLl)},
    {"Lt", category_bit(GeneralCategory::kLt)},
    {"Lm", category_bit(GeneralCategory::kLm)},
    {"Lo", category_bit(GeneralCategory::kLo)},
    {"Mn", category_bit(GeneralCategory::kMn)},
    {"Mc", category_bit(GeneralCategory::kMc)},
    {"Me", category_bit(GeneralCategory::kMe)},
    {"Nd", category_bit(GeneralCategory::kNd)},
    {"digit", category_bit(GeneralCategory::kNd)},
    {"Nl", category_bit(GeneralCategory::kNl)},
    {"No", category_bit(GeneralCategory::kNo)},
    {"Pc", category_bit(GeneralCategory::kPc)},
    {"Pd", category_bit(GeneralCategory::kPd)},
    {"Ps", category_bit(GeneralCategory::kPs)},
    {"Pe", category_bit(GeneralCategory::kPe)},
    {"Pi", category_bit(GeneralCategory::kPi)},
    {"Pf", category_bit(GeneralCategory::kPf)},
    {"Po", category_bit(GeneralCategory::kPo)},
    {"Sm", category_bit(GeneralCategory::kSm)},
    {"Sc", category_bit(GeneralCategory::kSc)},
    {"Sk", category_bit(GeneralCategory::kSk)},
    {"So", category_bit(GeneralCategory::kSo)},
    {"Zs", category_bit(GeneralCategory::kZs)},
    {"Zl", category_bit(GeneralCategory::kZl)},
    {"Zp", category_bit(GeneralCategory::kZp)},
    {"Cc", category_bit(GeneralCategory::kCc)},
    {"Cf", category_bit(GeneralCategory::kCf)},
    {"Co", category_bit(GeneralCategory::kCo)},
    {"Cn", category_bit(GeneralCategory::kCn)},
};

}  // namespace

class RegexParser {
 public:
  RegexParser(std::string_view pattern, Regex::Match match) : p_(pattern), match_(match) {}

  Result<Regex> run() {
    if (p_.size() > Regex::kMaxBytes)
      return invalid_argument(
          cat("a pattern of ", p_.size(), " bytes is too long; at most ", Regex::kMaxBytes, " are accepted"));
    if (!is_valid_utf8(p_)) return invalid_argument("the pattern is not well-formed UTF-8");
    const uint32_t root = choice(0);
    if (ok() && pos_ < p_.size()) fail("there is a ) without its (");
    if (ok()) r_.root_ = anchored(root);
    if (!ok()) return invalid_argument(error_);
    return std::move(r_);
  }

 private:
  using Kind = Regex::Kind;

  bool ok() const { return error_.empty(); }
  uint32_t fail(std::string why) {
    if (ok()) error_ = cat("in the pattern at byte ", pos_, ": ", why);
    return 0;
  }
  bool at(std::string_view s) const { return p_.substr(pos_).starts_with(s); }
  bool take(std::string_view s) {
    if (!at(s)) return false;
    pos_ += s.size();
    return true;
  }
  bool more() const { return ok() && pos_ < p_.size(); }
  char32_t next_char() {
    const CodePoint c = decode_utf8(p_, pos_);
    pos_ += c.length;
    return c.value;
  }
  uint32_t add(Regex::Node n) {
    r_.nodes_.push_back(std::move(n));
    return static_cast<uint32_t>(r_.nodes_.size() - 1);
  }
  uint32_t set(CodePointRanges ranges) {
    if (ignore_case_) ranges = ranges.case_closed();
    return add({Kind::kSet, std::move(ranges), {}, 0, 0});
  }
  uint32_t list(Kind kind, std::vector<uint32_t> parts) {
    if (parts.size() == 1) return parts[0];
    if (parts.empty()) return add({Kind::kEmpty, {}, {}, 0, 0});
    return add({kind, {}, std::move(parts), 0, 0});
  }

  uint32_t choice(size_t depth) {
    if (depth > Regex::kMaxDepth) return fail("groups are nested too deeply");
    std::vector<uint32_t> ways = {sequence(depth)};
    while (more() && take("|")) ways.push_back(sequence(depth));
    return ok() ? list(Kind::kChoice, std::move(ways)) : 0;
  }

  uint32_t sequence(size_t depth) {
    std::vector<uint32_t> parts;
    while (more() && !at("|") && !at(")")) {
      const uint32_t e = atom(depth);
      if (!ok()) return 0;
      parts.push_back(repeated(e));
    }
    return ok() ? list(Kind::kSequence, std::move(parts)) : 0;
  }

  std::optional<uint32_t> number() {
    const size_t begin = pos_;
    uint64_t n = 0;
    while (pos_ < p_.size() && p_[pos_] >= '0' && p_[pos_] <= '9') {
      n = std::min<uint64_t>(n * 10 + static_cast<uint64_t>(p_[pos_] - '0'), kMaxRepeats + uint64_t{1});
      ++pos_;
    }
    if (begin == pos_) return std::nullopt;
    return static_cast<uint32_t>(n);
  }

  uint32_t repeated(uint32_t e) {
    for (bool first = true; more(); first = false) {
      uint32_t low = 0, high = 0;
      const size_t begin = pos_;
      if (take("*")) low = 0, high = kNoLimit;
      else if (take("+")) low = 1, high = kNoLimit;
      else if (take("?")) low = 0, high = 1;
      else if (take("{")) {
        const auto a = number();
        std::optional<uint32_t> b = a;
        if (a && take(",")) b = at("}") ? std::optional<uint32_t>(kNoLimit) : number();
        if (!a || !b || !take("}")) {  // an ordinary character where it counts nothing
          pos_ = begin;
          return e;
        }
        low = *a, high = *b;
        if (low > kMaxRepeats || (high > kMaxRepeats && high != kNoLimit))
          return fail(cat("a count is larger than ", kMaxRepeats));
        if (low > high) return fail(cat("{", low, ",", high, "} counts down"));
      } else return e;
      if (!first) return fail("a repetition of a repetition needs a group between them");
      const Kind kind = r_.node(e).kind;
      if (kind == Kind::kBegin || kind == Kind::kEnd) return fail("^ and $ cannot be repeated");
      if (take("+")) return fail("possessive repetition is not supported");
      take("?");  // lazy: the same texts
      if (low == 1 && high == 1) continue;
      e = add({Kind::kRepeat, {}, {e}, low, high});
    }
    return e;
  }

  uint32_t group(size_t depth) {
    const bool outer = ignore_case_;
    if (take("?")) {
      if (at("=") || at("!") || at("<=") || at("<!")) return fail("look-around is not supported");
      if (at(">")) return fail("atomic groups are not supported");
      if (take("P<") || take("<")) {
        while (more() && !at(">")) ++pos_;
        if (!take(">")) return fail("the group's name does not end");
      } else if (at("P=") || at("P>")) {
        return fail("back references are not supported");
      } else if (!take(":")) {
        bool on = true;
        while (more() && !at(":") && !at(")")) {
          if (take("-")) on = false;
          else if (take("i")) ignore_case_ = on;
          else return fail("of the flags in (?...) only i is supported");
        }
        if (take(")")) return list(Kind::kSequence, {});  // until the enclosing group ends
        if (!take(":")) return fail("a group does not end");
      }
    }
    const uint32_t inside = choice(depth + 1);
    if (ok() && !take(")")) return fail("there is a ( without its )");
    ignore_case_ = outer;
    return inside;
  }

  uint32_t atom(size_t depth) {
    if (take("(")) return group(depth);
    if (take("^")) return add({Kind::kBegin, {}, {}, 0, 0});
    if (take("$")) return add({Kind::kEnd, {}, {}, 0, 0});
    if (take(".")) return set(no_line_end());
    if (take("[")) return set(char_class());
    if (at("*") || at("+") || at("?")) return fail("there is nothing to repeat");
    if (!take("\\")) return set(one(next_char()));
    if (!more()) return fail("it ends with a backslash");
    if (take("A")) return add({Kind::kBegin, {}, {}, 0, 0});
    if (take("Z") || take("z")) return add({Kind::kEnd, {}, {}, 0, 0});
    if (at("b") || at("B")) return fail("word boundaries are not supported");
    if (at("k") || (p_[pos_] >= '1' && p_[pos_] <= '9')) return fail("back references are not supported");
    return set(escape());
  }

  // After the backslash.
  CodePointRanges escape() {
    const char32_t c = next_char();
    switch (c) {
      case 'd': return digits();
      case 'D': return digits().complement();
      case 'w': return word();
      case 'W': return word().complement();
      case 's': return space();
      case 'S': return space().complement();
      case 't': return one('\t');
      case 'n': return one('\n');
      case 'v': return one('\v');
      case 'f': return one('\f');
      case 'r': return one('\r');
      case '0': return one(0);
      case 'a': return one('\a');
      case 'p': return property();
      case 'P': return property().complement();
      case 'x': return one(hex(2));
      case 'u': return unicode();
      case 'U': return one(hex(8));
      case 'c': {
        if (!more()) break;
        const char32_t letter = next_char();
        if ((letter | 0x20) >= 'a' && (letter | 0x20) <= 'z') return one(letter & 0x1F);
        break;
      }
      default:
        if (!((c | 0x20) >= 'a' && (c | 0x20) <= 'z') && !(c >= '0' && c <= '9')) return one(c);
    }
    fail(cat("the escape \\", to_utf8(c), " is not supported"));
    return {};
  }

  char32_t hex(int count) {
    char32_t value = 0;
    for (int i = 0; i < count; ++i) {
      const char c = pos_ < p_.size() ? p_[pos_] : ' ';
      const int digit = c >= '0' && c <= '9'                     ? c - '0'
                        : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                                 : -1;
      if (digit < 0) return fail(cat("an escape needs ", count, " hexadecimal digits"));
      value = value * 16 + static_cast<char32_t>(digit);
      ++pos_;
    }
    if (value > kMaxCodePoint) return fail("there is no such character");
    return value;
  }

  CodePointRanges unicode() {
    if (take("{")) {
      const size_t end = p_.find('}', pos_);
      if (end == std::string_view::npos || end - pos_ < 1 || end - pos_ > 6) {
        fail("\\u{...} needs one to six hexadecimal digits");
        return {};
      }
      const char32_t c = hex(static_cast<int>(end - pos_));
      if (ok()) take("}");
      return one(c);
    }
    const char32_t c = hex(4);
    if (c < 0xD800 || c > 0xDFFF) return one(c);
    if (c < 0xDC00 && take("\\u")) {
      const char32_t low = hex(4);
      if (low >= 0xDC00 && low <= 0xDFFF) return one(0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00));
    }
    fail("a surrogate has no character of its own");
    return {};
  }

  CodePointRanges property() {
    const size_t end = at("{") ? p_.find('}', pos_) : std::string_view::npos;
    if (end == std::string_view::npos) {
      fail("\\p needs a name in braces");
      return {};
    }
    std::string_view name = p_.substr(pos_ + 1, end - pos_ - 1);
    for (const std::string_view prefix : {"General_Category=", "gc="})
      if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
    for (const NamedCategory& c : kCategories) {
      if (c.name != name) continue;
      pos_ = end + 1;
      return CodePointRanges::of_categories(c.set);
    }
    CodePointRanges found;
    if (name == "Alphabetic") found = CodePointRanges::of_alphabetic();
    else if (name == "White_Space") found = CodePointRanges::of_white_space();
    for (const std::string_view prefix : {"Script=", "sc=", "Is"})
      if (found.empty() && name.starts_with(prefix))
        found = CodePointRanges::of_script(name.substr(prefix.size()));
    if (found.empty()) fail(cat("the property \\p{", name, "} is not known"));
    pos_ = end + 1;
    return found;
  }

  // After the bracket.
  CodePointRanges char_class() {
    const bool negated = take("^");
    CodePointRanges sets;  // \w and the like; a long list of characters is sorted once
    std::vector<CodePointRanges::Range> listed;
    while (more() && !at("]")) {
      const auto member = [&]() -> CodePointRanges {
        if (!take("\\")) return one(next_char());
        if (!more()) return {};
        if (take("b")) return one('\b');
        return escape();
      };
      CodePointRanges low = member();
      if (!ok()) return {};
      const auto single = [](const CodePointRanges& r) {
        return r.ranges().size() == 1 && r.ranges()[0].first == r.ranges()[0].last;
      };
      if (at("-") && !at("-]") && pos_ + 1 < p_.size()) {
        ++pos_;
        const CodePointRanges high = member();
        if (!ok()) return {};
        if (!single(low) || !single(high)) {  // [\w-x]: a hyphen, as ECMA-262's Annex B has it
          sets = sets.united(low).united(one('-')).united(high);
          continue;
        }
        const char32_t first = low.ranges()[0].first, last = high.ranges()[0].last;
        if (first > last) {
          fail("a range in [...] counts down");
          return {};
        }
        low = {first, last};
      }
      if (low.ranges().size() == 1) listed.push_back(low.ranges()[0]);
      else sets = sets.united(low);
    }
    CodePointRanges all = sets.united(CodePointRanges::of(std::move(listed)));
    if (!take("]")) fail("there is a [ without its ]");
    if (ignore_case_ && negated) all = all.case_closed();
    return negated ? all.complement() : all;
  }

  // ---- anchors ----

  // Takes the anchor `kind` off the edge of a node. Null: the alternatives inside disagree.
  struct Edge {
    uint32_t node;
    bool anchored;
  };
  std::optional<Edge> strip(uint32_t id, Kind kind) {
    const Regex::Node n = r_.node(id);
    if (n.kind == kind) return Edge{list(Kind::kSequence, {}), true};
    if (n.kind == Kind::kChoice) {
      std::vector<uint32_t> ways;
      bool any = false, every = true;
      for (const uint32_t part : n.parts) {
        const auto e = strip(part, kind);
        if (!e) return e;
        ways.push_back(e->node);
        any |= e->anchored;
        every &= e->anchored;
      }
      if (any && !every) return std::nullopt;
      return Edge{any ? list(Kind::kChoice, std::move(ways)) : id, any};
    }
    if (n.kind == Kind::kSequence) {
      const bool begin = kind == Kind::kBegin;
      std::vector<uint32_t> parts = n.parts;
      const auto e = strip(begin ? parts.front() : parts.back(), kind);
      if (!e || !e->anchored) return e ? std::optional<Edge>(Edge{id, false}) : e;
      (begin ? parts.front() : parts.back()) = e->node;
      return Edge{list(Kind::kSequence, std::move(parts)), true};
    }
    return Edge{id, false};
  }
  bool has_anchor(uint32_t id) const {
    const Regex::Node& n = r_.node(id);
    if (n.kind == Kind::kBegin || n.kind == Kind::kEnd) return true;
    for (const uint32_t part : n.parts)
      if (has_anchor(part)) return true;
    return false;
  }
  void alternatives(uint32_t id, std::vector<uint32_t>& out) const {
    const Regex::Node& n = r_.node(id);
    if (n.kind != Kind::kChoice) {
      out.push_back(id);
      return;
    }
    for (const uint32_t part : n.parts) alternatives(part, out);
  }
  uint32_t anchored(uint32_t root) {
    std::vector<uint32_t> ways, out;
    alternatives(root, ways);
    for (const uint32_t way : ways) {
      const auto left = strip(way, Kind::kBegin);
      const auto right = left ? strip(left->node, Kind::kEnd) : left;
      if (!right || has_anchor(right->node)) {
        pos_ = 0;
        return fail("^ and $ are supported where an alternative of the whole pattern begins and ends");
      }
      std::vector<uint32_t> parts;
      const auto anything = [&] {
        return add({Kind::kRepeat, {}, {add({Kind::kSet, CodePointRanges::all(), {}, 0, 0})}, 0, kNoLimit});
      };
      if (match_ == Regex::Match::kSearch && !left->anchored) parts.push_back(anything());
      parts.push_back(right->node);
      if (match_ == Regex::Match::kSearch && !right->anchored) parts.push_back(anything());
      out.push_back(list(Kind::kSequence, std::move(parts)));
    }
    return list(Kind::kChoice, std::move(out));
  }

  std::string_view p_;
  Regex::Match match_;
  size_t pos_ = 0;
  bool ignore_case_ = false;
  std::string error_;
  Regex r_;
};

Result<Regex> Regex::parse(std::string_view pattern, Match match) {
  return RegexParser(pattern, match).run();
}

Expr Regex::convert(Grammar& g, Coding coding, uint32_t id) const {
  const Node& n = nodes_[id];
  std::vector<Expr> parts;
  switch (n.kind) {
    case Kind::kSet: {
      // One character that is written as it is, is text: fewer units.
      const auto& r = n.set.ranges();
      if (r.size() == 1 && r[0].first == r[0].last && r[0].first >= 0x20 && r[0].first < 0x7F &&
          r[0].first != '"' && r[0].first != '\\')
        return g.text(std::string(1, static_cast<char>(r[0].first)));
      return g.chars(n.set, coding);
    }
    case Kind::kSequence:
    case Kind::kChoice:
      for (const uint32_t p : n.parts) parts.push_back(convert(g, coding, p));
      return n.kind == Kind::kSequence ? g.sequence(parts) : g.choice(parts);
    case Kind::kRepeat: {
      const Expr what = convert(g, coding, n.parts[0]);
      return g.repeat(what, n.low, n.high);
    }
    default: return g.empty();
  }
}

}  // namespace oar::grammar

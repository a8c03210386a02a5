// Compiling a split pattern: a recursive-descent parser to a small tree, then the program of split_pattern.h.
#include <algorithm>
#include <optional>

#include "engine/base/format.h"
#include "engine/text/split_pattern.h"
#include "engine/text/utf8.h"

namespace oar {
namespace {

// Limits on patterns from files; the largest published pattern has 700 bytes and compiles to 60 instructions.
constexpr size_t kMaxPatternBytes = 16384;
constexpr uint32_t kMaxRepeat = 1024;
constexpr size_t kMaxProgram = 20000;
constexpr size_t kMaxSets = 512;
constexpr int kMaxNesting = 32;
constexpr int kMaxStackedRepeats = 4;  // a{2}{3}...

enum class Kind {
  kEmpty,
  kSet,
  kConcat,
  kAlternate,
  kRepeat,
  kLook,
  kAtomic,
  kBehind,
  kLineStart,
  kLineEnd,
  kTextStart,
  kTextEnd,
  kWordBoundary
};
enum class Greed { kGreedy, kLazy, kPossessive };

struct Node {
  Kind kind = Kind::kEmpty;
  CodePointRanges set;
  std::vector<Node> children;
  uint32_t low = 0, high = 0;
  Greed greed = Greed::kGreedy;
  bool negated = false;
};

constexpr uint32_t kNoLimit = 0xFFFFFFFF;

bool nullable(const Node& n) {
  switch (n.kind) {
    case Kind::kSet: return false;
    case Kind::kConcat: return std::all_of(n.children.begin(), n.children.end(), nullable);
    case Kind::kAlternate: return std::any_of(n.children.begin(), n.children.end(), nullable);
    case Kind::kRepeat: return n.low == 0 || nullable(n.children[0]);
    case Kind::kAtomic: return nullable(n.children[0]);
    default: return true;
  }
}

// The code points a non-empty match can begin with; meaningless for nullable nodes.
CodePointRanges first_set(const Node& n) {
  CodePointRanges out;
  switch (n.kind) {
    case Kind::kSet: return n.set;
    case Kind::kConcat:
      for (const Node& c : n.children) {
        out = out.united(first_set(c));
        if (!nullable(c)) break;
      }
      return out;
    case Kind::kAlternate:
      for (const Node& c : n.children) out = out.united(first_set(c));
      return out;
    case Kind::kRepeat:
    case Kind::kAtomic: return first_set(n.children[0]);
    default: return out;
  }
}

std::optional<CategorySet> category_by_name(std::string_view name) {
  using enum GeneralCategory;
  struct Entry {
    std::string_view name;
    CategorySet set;
  };
  static constexpr Entry kEntries[] = {
      {"L", kLetters},
      {"Letter", kLetters},
      {"M", kMarks},
      {"Mark", kMarks},
      {"N", kNumbers},
      {"Number", kNumbers},
      {"P", kPunctuation},
      {"Punctuation", kPunctuation},
      {"S", kSymbols},
      {"Symbol", kSymbols},
      {"Z", kSeparators},
      {"Separator", kSeparators},
      {"C", kOthers},
      {"Other", kOthers},
      {"Cn", category_bit(kCn)},
      {"Lu", category_bit(kLu)},
      {"Ll", category_bit(kLl)},
      {"Lt", category_bit(kLt)},
      {"Lm", category_bit(kLm)},
      {"Lo", category_bit(kLo)},
      {"Mn", category_bit(kMn)},
      {"Mc", category_bit(kMc)},
      {"Me", category_bit(kMe)},
      {"Nd", category_bit(kNd)},
      {"Nl", category_bit(kNl)},
      {"No", category_bit(kNo)},
      {"Pc", category_bit(kPc)},
      {"Pd", category_bit(kPd)},
      {"Ps", category_bit(kPs)},
      {"Pe", category_bit(kPe)},
      {"Pi", category_bit(kPi)},
      {"Pf", category_bit(kPf)},
      {"Po", category_bit(kPo)},
      {"Sm", category_bit(kSm)},
      {"Sc", category_bit(kSc)},
      {"Sk", category_bit(kSk)},
      {"So", category_bit(kSo)},
      {"Zs", category_bit(kZs)},
      {"Zl", category_bit(kZl)},
      {"Zp", category_bit(kZp)},
      {"Cc", category_bit(kCc)},
      {"Cf", category_bit(kCf)},
      {"Cs", category_bit(kCs)},
      {"Co", category_bit(kCo)},
  };
  for (const Entry& e : kEntries)
    if (e.name == name) return e.set;
  return std::nullopt;
}

class Parser {
 public:
  explicit Parser(std::string_view pattern) : p_(pattern) {}

  Result<Node> parse() {
    OAR_ASSIGN(Node n, alternation(0));
    if (!done()) return fail("a closing parenthesis without its opening one");
    return n;
  }

 private:
  bool done() const { return i_ >= p_.size(); }
  char peek(size_t ahead = 0) const { return i_ + ahead < p_.size() ? p_[i_ + ahead] : '\0'; }
  bool take(std::string_view s) {
    if (p_.substr(i_, s.size()) != s) return false;
    i_ += s.size();
    return true;
  }
  char32_t take_code_point() {
    const CodePoint c = decode_utf8(p_, i_);
    i_ += c.length;
    return c.value;
  }
  Status fail(std::string_view what) const {
    return unimplemented(cat("split pattern \"", p_, "\": ", what, " near byte ", i_,
                             " is not supported; re-export the tokenizer with a simpler pattern"));
  }
  Node set_node(CodePointRanges set) const {
    Node n;
    n.kind = Kind::kSet;
    n.set = ignore_case_ ? set.case_closed() : std::move(set);
    return n;
  }

  Result<Node> alternation(int depth) {
    if (depth > kMaxNesting) return fail("nesting this deep");
    const bool outer_case = ignore_case_;
    std::vector<Node> branches;
    for (;;) {
      OAR_ASSIGN(Node branch, concatenation(depth));
      branches.push_back(std::move(branch));
      if (!take("|")) break;
    }
    ignore_case_ = outer_case;
    if (branches.size() == 1) return std::move(branches[0]);
    Node n;
    n.kind = Kind::kAlternate;
    n.children = std::move(branches);
    return n;
  }

  Result<Node> concatenation(int depth) {
    Node n;
    n.kind = Kind::kConcat;
    while (!done() && peek() != '|' && peek() != ')') {
      OAR_ASSIGN(Node atom, repeated(depth));
      n.children.push_back(std::move(atom));
    }
    return n;
  }

  Result<Node> repeated(int depth) {
    OAR_ASSIGN(Node n, atom(depth));
    for (int stacked = 0;; ++stacked) {
      Node r;
      r.kind = Kind::kRepeat;
      bool braces = false;
      if (take("*")) {
        r.low = 0, r.high = kNoLimit;
      } else if (take("+")) {
        r.low = 1, r.high = kNoLimit;
      } else if (take("?")) {
        r.low = 0, r.high = 1;
      } else if (peek() == '{' && counted(r)) {
        braces = true;
      } else {
        return n;
      }
      if (r.low > kMaxRepeat || (r.high != kNoLimit && r.high > kMaxRepeat) || r.low > r.high)
        return fail("this repeat count");
      if (stacked == kMaxStackedRepeats) return fail("this many repeats of repeats");
      if (take("?")) r.greed = Greed::kLazy;
      else if (!braces && take("+"))  // after braces a plus is a second repeat
        r.greed = Greed::kPossessive;
      if (r.high == kNoLimit && nullable(n))
        return fail("an unbounded repeat of something that can be empty");
      r.children.push_back(std::move(n));
      n = std::move(r);
    }
  }

  // {n} {n,} {n,m} {,m}; anything else leaves the brace a literal.
  bool counted(Node& r) {
    size_t j = i_ + 1;
    const auto number = [&](uint32_t& out) {
      const size_t start = j;
      out = 0;
      while (j < p_.size() && p_[j] >= '0' && p_[j] <= '9' && out <= kMaxRepeat)
        out = out * 10 + static_cast<uint32_t>(p_[j++] - '0');
      return j > start;
    };
    const bool has_low = number(r.low);
    if (j < p_.size() && p_[j] == ',') {
      ++j;
      if (!number(r.high)) {
        if (!has_low) return false;
        r.high = kNoLimit;
      }
    } else {
      if (!has_low) return false;
      r.high = r.low;
    }
    if (j >= p_.size() || p_[j] != '}') return false;
    i_ = j + 1;
    return true;
  }

  Result<Node> atom(int depth) {
    switch (peek()) {
      case '(': return group(depth);
      case '[': {
        ++i_;
        OAR_ASSIGN(CodePointRanges set, bracket(depth));
        Node n;  // case was closed element by element
        n.kind = Kind::kSet;
        n.set = std::move(set);
        return n;
      }
      case '.': ++i_; return set_node(CodePointRanges('\n', '\n').complement());
      case '^': ++i_; return anchor(Kind::kLineStart);
      case '$': ++i_; return anchor(Kind::kLineEnd);
      case '*':
      case '+':
      case '?': return fail("a repeat with nothing before it");
      case '\\': {
        ++i_;
        if (take("A")) return anchor(Kind::kTextStart);
        if (take("z")) return anchor(Kind::kTextEnd);
        if (take("b")) return anchor(Kind::kWordBoundary);
        if (take("B")) return anchor(Kind::kWordBoundary, true);
        OAR_ASSIGN(CodePointRanges set, escape());
        return set_node(std::move(set));
      }
      default: {
        const char32_t c = take_code_point();
        return set_node({c, c});
      }
    }
  }

  static Node anchor(Kind kind, bool negated = false) {
    Node n;
    n.kind = kind;
    n.negated = negated;
    return n;
  }

  Result<Node> group(int depth) {
    ++i_;
    Node wrapper;
    bool wrap = true;
    const bool outer_case = ignore_case_;
    if (take("?:")) {
      wrap = false;
    } else if (take("?=")) {
      wrapper.kind = Kind::kLook;
    } else if (take("?!")) {
      wrapper.kind = Kind::kLook, wrapper.negated = true;
    } else if (take("?>")) {
      wrapper.kind = Kind::kAtomic;
    } else if (take("?<=")) {
      wrapper.kind = Kind::kBehind;
    } else if (take("?<!")) {
      wrapper.kind = Kind::kBehind, wrapper.negated = true;
    } else if (take("?i:")) {
      wrap = false, ignore_case_ = true;
    } else if (take("?-i:")) {
      wrap = false, ignore_case_ = false;
    } else if (take("?i)")) {  // for the rest of the enclosing group
      ignore_case_ = true;
      return Node{};
    } else if (peek() == '?') {
      return fail("this kind of group");
    } else {
      wrap = false;
    }
    OAR_ASSIGN(Node inner, alternation(depth + 1));
    ignore_case_ = outer_case;
    if (!take(")")) return fail("an opening parenthesis without its closing one");
    if (!wrap) return inner;
    if (wrapper.kind == Kind::kBehind) {
      while (inner.kind == Kind::kConcat && inner.children.size() == 1) {
        Node only = std::move(inner.children[0]);
        inner = std::move(only);
      }
      if (inner.kind != Kind::kSet) return fail("look-behind over more than one character");
    }
    wrapper.children.push_back(std::move(inner));
    return wrapper;
  }

  Result<char32_t> hex(size_t min_digits, size_t max_digits) {
    char32_t v = 0;
    size_t n = 0;
    for (; n < max_digits; ++n) {
      const char c = peek();
      int digit = -1;
      if (c >= '0' && c <= '9') digit = c - '0';
      if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
      if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
      if (digit < 0) break;
      v = v * 16 + static_cast<char32_t>(digit);
      ++i_;
    }
    if (n < min_digits || v > kMaxCodePoint) return fail("this hexadecimal escape");
    return v;
  }

  // After the backslash.
  Result<CodePointRanges> escape() {
    if (done()) return fail("a backslash at the end");
    const auto digits = CodePointRanges::of_categories(category_bit(GeneralCategory::kNd));
    const char c = peek();
    const auto one = [](char32_t v) { return CodePointRanges(v, v); };
    switch (c) {
      case 's': ++i_; return CodePointRanges::of_white_space();
      case 'S': ++i_; return CodePointRanges::of_white_space().complement();
      case 'd': ++i_; return digits;
      case 'D': ++i_; return digits.complement();
      case 'w': ++i_; return CodePointRanges::of_word();
      case 'W': ++i_; return CodePointRanges::of_word().complement();
      case 'n': ++i_; return one('\n');
      case 'r': ++i_; return one('\r');
      case 't': ++i_; return one('\t');
      case 'f': ++i_; return one('\f');
      case 'v': ++i_; return one('\v');
      case 'a': ++i_; return one('\a');
      case 'e': ++i_; return one(0x1B);
      case 'p':
      case 'P': ++i_; return property(c == 'P');
      case 'x': {
        ++i_;
        if (take("{")) {
          OAR_ASSIGN(const char32_t v, hex(1, 8));
          if (!take("}")) return fail("this hexadecimal escape");
          return one(v);
        }
        OAR_ASSIGN(const char32_t v, hex(1, 2));
        return one(v);
      }
      case 'u': {
        ++i_;
        OAR_ASSIGN(const char32_t v, hex(4, 4));
        return one(v);
      }
      default: break;
    }
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
      return fail(cat("the escape \\", c));
    return one(take_code_point());
  }

  Result<CodePointRanges> property(bool negated) {
    if (!take("{")) return fail("a property without braces");
    if (take("^")) negated = !negated;
    const size_t end = p_.find('}', i_);
    if (end == std::string_view::npos) return fail("a property without its closing brace");
    const std::string_view name = p_.substr(i_, end - i_);
    CodePointRanges set;
    if (const auto category = category_by_name(name)) {
      set = CodePointRanges::of_categories(*category);
    } else if (name == "Alphabetic" || name == "Alpha") {
      set = CodePointRanges::of_alphabetic();
    } else if (name == "White_Space" || name == "Space") {
      set = CodePointRanges::of_white_space();
    } else if (name == "Any") {
      set = CodePointRanges::all();
    } else {
      std::string_view script = name;
      for (const std::string_view prefix : {"Script=", "sc="})
        if (script.starts_with(prefix)) script.remove_prefix(prefix.size());
      set = CodePointRanges::of_script(script);
      if (set.empty()) return fail(cat("the property ", name));
    }
    i_ = end + 1;
    return negated ? set.complement() : set;
  }

  // After the opening bracket; consumes the closing one.
  Result<CodePointRanges> bracket(int depth) {
    if (depth > kMaxNesting) return fail("nesting this deep");
    const bool negated = take("^");
    CodePointRanges set;
    std::optional<CodePointRanges> intersection;  // of the operands before the last &&
    for (bool first = true;; first = false) {
      if (done()) return fail("a character class without its closing bracket");
      if (peek() == ']' && !first) break;
      if (take("&&")) {
        intersection = intersection ? intersection->intersected(set) : set;
        set = {};
        continue;
      }
      if (peek() == '[' && peek(1) == ':') return fail("a POSIX class");
      if (take("[")) {
        OAR_ASSIGN(const CodePointRanges inner, bracket(depth + 1));
        set = set.united(inner);
        continue;
      }
      OAR_ASSIGN(CodePointRanges item, class_item());
      const bool single = item.ranges().size() == 1 && item.ranges()[0].first == item.ranges()[0].last;
      if (single && peek() == '-' && peek(1) != ']' && peek(1) != '\0') {
        ++i_;
        if (peek() == '[') return fail("a range that ends in a class");
        OAR_ASSIGN(const CodePointRanges upper, class_item());
        const bool single_upper =
            upper.ranges().size() == 1 && upper.ranges()[0].first == upper.ranges()[0].last;
        if (!single_upper || upper.ranges()[0].first < item.ranges()[0].first) return fail("this range");
        item = {item.ranges()[0].first, upper.ranges()[0].first};
      }
      set = set.united(ignore_case_ ? item.case_closed() : item);
    }
    ++i_;
    if (intersection) set = intersection->intersected(set);
    return negated ? set.complement() : set;
  }

  Result<CodePointRanges> class_item() {
    if (take("\\")) {
      if (take("b")) return CodePointRanges(0x08, 0x08);
      return escape();
    }
    const char32_t c = take_code_point();
    return CodePointRanges(c, c);
  }

  std::string_view p_;
  size_t i_ = 0;
  bool ignore_case_ = false;
};

}  // namespace

// Writes the program; a friend of SplitPattern.
class PatternCompiler {
 public:
  static Result<SplitPattern> compile(const Node& root, std::string source) {
    SplitPattern p;
    p.source_ = std::move(source);
    PatternCompiler c(p);
    // Top-level alternatives are separate programs behind the first-character filter; past 32 they share one.
    std::vector<const Node*> tops;
    if (root.kind == Kind::kAlternate && root.children.size() <= 32)
      for (const Node& n : root.children) tops.push_back(&n);
    else tops.push_back(&root);
    for (size_t i = 0; i < tops.size(); ++i) {
      p.alternatives_.push_back(static_cast<uint32_t>(p.program_.size()));
      c.emit(*tops[i]);
      c.add({.op = SplitPattern::Op::kAccept});
      const uint32_t bit = uint32_t{1} << i;
      if (nullable(*tops[i])) {
        for (uint32_t& m : p.ascii_first_) m |= bit;
        p.other_first_ |= bit;
        continue;
      }
      const CodePointRanges first = first_set(*tops[i]);
      for (const auto& r : first.ranges()) {
        for (char32_t ch = r.first; ch <= r.last && ch < 128; ++ch) p.ascii_first_[ch] |= bit;
        if (r.last >= 128) p.other_first_ |= bit;
      }
    }
    c.drop_useless_choices();
    if (c.overflow_)
      return unimplemented(cat("split pattern \"", p.source_, "\" is too large (limits: ", kMaxProgram,
                               " instructions, ", kMaxSets, " character classes)"));
    return p;
  }

 private:
  using Op = SplitPattern::Op;
  explicit PatternCompiler(SplitPattern& p) : p_(p) {}

  uint32_t here() const { return static_cast<uint32_t>(p_.program_.size()); }
  uint32_t add(SplitPattern::Inst in) {
    if (p_.program_.size() >= kMaxProgram) {
      overflow_ = true;
      return here() - 1;
    }
    p_.program_.push_back(in);
    return here() - 1;
  }
  uint32_t set_index(const CodePointRanges& set) {
    for (size_t i = 0; i < known_.size(); ++i)
      if (std::equal(known_[i].ranges().begin(), known_[i].ranges().end(), set.ranges().begin(),
                     set.ranges().end(),
                     [](const auto& a, const auto& b) { return a.first == b.first && a.last == b.last; }))
        return static_cast<uint32_t>(i);
    if (known_.size() >= kMaxSets) {
      overflow_ = true;
      return 0;
    }
    known_.push_back(set);
    p_.sets_.emplace_back(set);
    return static_cast<uint32_t>(known_.size() - 1);
  }

  void emit(const Node& n) {
    if (overflow_) return;
    switch (n.kind) {
      case Kind::kEmpty: break;
      case Kind::kSet: add({.op = Op::kSet, .set = set_index(n.set)}); break;
      case Kind::kConcat:
        for (const Node& c : n.children) emit(c);
        break;
      case Kind::kAlternate: {
        std::vector<uint32_t> exits;
        for (size_t i = 0; i < n.children.size(); ++i) {
          const bool last = i + 1 == n.children.size();
          uint32_t split = 0;
          if (!last) split = add({.op = Op::kSplit, .next = here() + 1});
          emit(n.children[i]);
          if (!last) {
            exits.push_back(add({.op = Op::kJump}));
            p_.program_[split].other = here();
          }
        }
        for (const uint32_t e : exits) p_.program_[e].next = here();
        break;
      }
      case Kind::kRepeat: repeat(n); break;
      case Kind::kLook:
      case Kind::kAtomic: {
        const uint32_t head = add({.op = n.kind == Kind::kLook ? Op::kLook : Op::kAtomic, .flag = n.negated});
        emit(n.children[0]);
        add({.op = Op::kAccept});
        p_.program_[head].next = here();
        break;
      }
      case Kind::kBehind:
        add({.op = Op::kBehind, .flag = n.negated, .set = set_index(n.children[0].set)});
        break;
      case Kind::kLineStart: add({.op = Op::kLineStart}); break;
      case Kind::kLineEnd: add({.op = Op::kLineEnd}); break;
      case Kind::kTextStart: add({.op = Op::kTextStart}); break;
      case Kind::kTextEnd: add({.op = Op::kTextEnd}); break;
      case Kind::kWordBoundary: add({.op = Op::kWordBoundary, .flag = n.negated}); break;
    }
  }

  void repeat(const Node& n) {
    const Node* body = &n.children[0];
    while (body->kind == Kind::kConcat && body->children.size() == 1) body = &body->children[0];
    if (body->kind == Kind::kSet && n.greed != Greed::kLazy) {
      add({.op = Op::kLoop,
           .flag = n.greed == Greed::kPossessive,
           .set = set_index(body->set),
           .low = n.low,
           .high = n.high});
      return;
    }
    uint32_t atomic = 0;
    if (n.greed == Greed::kPossessive) atomic = add({.op = Op::kAtomic});
    for (uint32_t i = 0; i < n.low && !overflow_; ++i) emit(*body);
    const bool lazy = n.greed == Greed::kLazy;
    // `enter` and `leave` are the two ways out of a split; greedy tries the body first.
    const auto patch_leave = [&](uint32_t split, uint32_t target) {
      (lazy ? p_.program_[split].next : p_.program_[split].other) = target;
    };
    const auto open = [&] {
      const uint32_t s = add({.op = Op::kSplit});
      (lazy ? p_.program_[s].other : p_.program_[s].next) = s + 1;
      return s;
    };
    if (n.high == kNoLimit) {
      const uint32_t s = open();
      emit(*body);
      add({.op = Op::kJump, .next = s});
      patch_leave(s, here());
    } else {
      std::vector<uint32_t> splits;
      for (uint32_t i = n.low; i < n.high && !overflow_; ++i) {
        splits.push_back(open());
        emit(*body);
      }
      for (const uint32_t s : splits) patch_leave(s, here());
    }
    if (n.greed == Greed::kPossessive) {
      add({.op = Op::kAccept});
      p_.program_[atomic].next = here();
    }
  }

  // A loop need not remember how to give characters back when that cannot help: when nothing follows it, or
  // what follows must begin with a character that the loop does not take.
  void drop_useless_choices() {
    auto& program = p_.program_;
    for (size_t pc = 0; pc + 1 < program.size() && !overflow_; ++pc) {
      if (program[pc].op != Op::kLoop) continue;
      size_t after = pc + 1;
      while (program[after].op == Op::kJump && program[after].next > after) after = program[after].next;
      const SplitPattern::Inst& next = program[after];
      const bool must_take = next.op == Op::kSet || (next.op == Op::kLoop && next.low > 0);
      if (next.op == Op::kAccept ||
          (must_take && known_[program[pc].set].intersected(known_[next.set]).empty()))
        program[pc].flag = true;
    }
  }

  SplitPattern& p_;
  std::vector<CodePointRanges> known_;
  bool overflow_ = false;
};

Result<SplitPattern> SplitPattern::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes)
    return unimplemented(
        cat("a split pattern of ", pattern.size(), " bytes; the limit is ", kMaxPatternBytes));
  if (!is_valid_utf8(pattern)) return invalid_argument("a split pattern is not valid UTF-8");
  OAR_ASSIGN(const Node root, Parser(pattern).parse());
  return PatternCompiler::compile(root, std::string(pattern));
}

Result<SplitPattern> SplitPattern::literal(std::string_view text) {
  if (text.size() > kMaxPatternBytes)
    return unimplemented(cat("a split string of ", text.size(), " bytes; the limit is ", kMaxPatternBytes));
  if (!is_valid_utf8(text)) return invalid_argument("a split string is not valid UTF-8");
  Node root;
  root.kind = Kind::kConcat;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = decode_utf8(text, i);
    Node n;
    n.kind = Kind::kSet;
    n.set = {c.value, c.value};
    root.children.push_back(std::move(n));
    i += c.length;
  }
  return PatternCompiler::compile(root, std::string(text));
}

}  // namespace oar

// Between a and b: for each number of digits that fits, digits from the left, with two notes: whether all
// digits so far equal a's (so the rest must not fall below), and whether they equal b's. Where neither holds,
// the rest is free. A remainder goes along where multiples are asked for.
#include "engine/text/grammar/decimal_grammar.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "engine/base/format.h"

namespace oar::grammar {
namespace {

constexpr size_t kMaxDigits = 18;         // every such integer fits 64 bits
constexpr size_t kMaxRemainders = 2'000;  // without bounds that make a list of the multiples
constexpr uint64_t kMaxListed = 2'000;

// The remainder of a number that is read digit by digit. Remainders that the same further digits complete are
// one, so that trailing zeros are cheap: 10,000 asks for no more than how many zeros came last.
class Remainders {
 public:
  explicit Remainders(uint64_t multiple) : multiple_(multiple) {}

  uint64_t after(uint64_t rest, uint64_t digit) {
    const uint64_t r = (rest * 10 + digit) % multiple_;
    // For each number of further digits, the one value below the multiple that completes it.
    std::vector<uint64_t> complete;
    for (uint64_t power = 1, v = (multiple_ - r) % multiple_;; power *= 10, v = v * 10 % multiple_) {
      complete.push_back(v < power ? v : multiple_);
      if (power >= multiple_) break;
    }
    return known_.try_emplace(std::move(complete), r).first->second;
  }
  // All that occur; null where they are more than `most`.
  std::optional<std::vector<uint64_t>> all(size_t most) {
    std::vector<uint64_t> out = {0};
    std::set<uint64_t> seen = {0};
    for (size_t i = 0; i < out.size() && out.size() <= most; ++i) {
      for (uint64_t d = 0; d < 10; ++d) {
        const uint64_t r = after(out[i], d);
        if (seen.insert(r).second) out.push_back(r);
      }
    }
    return out.size() <= most ? std::optional(std::move(out)) : std::nullopt;
  }

 private:
  uint64_t multiple_;
  std::map<std::vector<uint64_t>, uint64_t> known_;
};

class Magnitudes {
 public:
  Magnitudes(Grammar& g, std::optional<Bound> low, std::optional<Bound> high, uint64_t multiple, bool integer)
      : g_(g),
        low_(std::move(low)),
        high_(std::move(high)),
        multiple_(multiple),
        integer_(integer),
        rests_(multiple) {}

  Expr all() {
    low_digits_ = low_ ? std::max<size_t>(low_->value.digits.size(), 1) : 1;
    endless_ = !high_ && multiple_ > 1;  // one way for all longer numbers, see digits()
    const size_t most = high_      ? std::max<size_t>(high_->value.digits.size(), 1)
                        : endless_ ? low_digits_ + 1
                                   : std::max(kMaxDigits, low_digits_);
    std::vector<Expr> ways;
    for (length_ = low_digits_; length_ <= most; ++length_) {
      const bool on_low = low_ && length_ == low_digits_, on_high = high_ && length_ == most;
      rules_.clear();
      ways.push_back(digits(0, on_low, on_high, 0));
    }
    return g_.choice(ways);
  }

 private:
  // Digit i of `length_` digits before the point, or behind it.
  static int digit(const Decimal& d, size_t i, size_t length) {
    const size_t missing = length - std::min(length, d.digits.size());
    return i < missing ? 0 : d.digits[i - missing] - '0';
  }
  static int fraction_digit(const Decimal& d, size_t i) {
    return i < d.fraction.size() ? d.fraction[i] - '0' : 0;
  }
  Expr one_digit(int first, int last) {
    return first > last ? g_.never()
                        : g_.chars({static_cast<char32_t>('0' + first), static_cast<char32_t>('0' + last)},
                                   Coding::kUtf8);
  }

  template <class F>
  Expr by_digit(int first, bool on_low, bool on_high, int low, int high, F&& after) {
    const int from = on_low ? std::max(first, low) : first, to = on_high ? high : 9;
    std::vector<Expr> ways;
    if (multiple_ > 1) {
      for (int d = from; d <= to; ++d)
        ways.push_back(g_.sequence({one_digit(d, d), after(on_low && d == low, on_high && d == high, d)}));
      return g_.choice(ways);
    }
    // At most the two ends are special.
    int begin = from, end = to;
    const auto single = [&](int d) {
      ways.push_back(g_.sequence({one_digit(d, d), after(on_low && d == low, on_high && d == high, d)}));
    };
    if (on_low && begin == low && begin <= end) single(begin++);
    bool last = false;
    if (on_high && end == high && begin <= end) {
      last = true;
      --end;
    }
    if (begin <= end) ways.push_back(g_.sequence({one_digit(begin, end), after(false, false, 0)}));
    if (last) single(high);
    return g_.choice(ways);
  }

  Expr digits(size_t i, bool on_low, bool on_high, uint64_t rest) {
    if (i == length_) {
      if (endless_ && length_ > low_digits_) return remainder(rest);
      return rest == 0 ? fraction(0, on_low, on_high, true) : g_.never();
    }
    if (!on_low && !on_high && multiple_ == 1) {
      const int first = i == 0 && length_ > 1 ? 1 : 0;
      return g_.sequence({one_digit(first, 9),
                          g_.repeat(one_digit(0, 9), static_cast<uint32_t>(length_ - i - 1),
                                    static_cast<uint32_t>(length_ - i - 1)),
                          fraction(0, false, false, true)});
    }
    // What is free knows only how many digits are left, the same for every length; but not the first digit.
    const bool shared = !on_low && !on_high && i > 0 && !endless_;
    auto& known = shared ? free_ : rules_;
    const auto key = std::make_tuple(shared ? length_ - i : i, on_low, on_high, rest);
    if (const auto it = known.find(key); it != known.end()) return g_.use(it->second);
    const Rule rule = g_.add_rule("a number");
    known[key] = rule;
    const int low = on_low ? digit(low_->value, i, length_) : 0,
              high = on_high ? digit(high_->value, i, length_) : 9;
    const int first = i == 0 && length_ > 1 ? 1 : 0;
    if (g_.full()) return g_.never();
    g_.define(rule, by_digit(first, on_low, on_high, low, high, [&](bool l, bool h, int d) {
                return digits(i + 1, l, h, multiple_ > 1 ? rests_.after(rest, static_cast<uint64_t>(d)) : 0);
              }));
    return g_.use(rule);
  }

  // Any digits after which a number with this remainder so far is a multiple.
  Expr remainder(uint64_t rest) {
    if (remainders_.empty()) {
      const auto all = *rests_.all(kMaxRemainders);
      for (const uint64_t r : all) remainders_[r] = g_.add_rule("a multiple");
      if (g_.full()) return g_.never();
      for (const uint64_t r : all) {
        std::vector<Expr> ways;
        if (r == 0) ways.push_back(g_.empty());
        for (uint64_t d = 0; d < 10; ++d)
          ways.push_back(g_.sequence({g_.text(std::string(1, static_cast<char>('0' + d))),
                                      g_.use(remainders_[rests_.after(r, d)])}));
        g_.define(remainders_[r], g_.choice(ways));
      }
    }
    return g_.use(remainders_[rest]);
  }

  // Whether the number may be over after `i` digits behind the point.
  bool may_end(size_t i, bool on_low, bool on_high) const {
    if (on_low) {
      if (low_->exclusive || low_->value.fraction.size() > i) return false;
    }
    return !on_high || !high_->exclusive || high_->value.fraction.size() > i;
  }

  Expr fraction(size_t i, bool on_low, bool on_high, bool before_point) {
    if (integer_) return may_end(0, on_low, on_high) ? g_.empty() : g_.never();
    const auto left = static_cast<uint32_t>(kMaxDigits + longest_fraction() - i);
    const Expr end = !before_point && may_end(i, on_low, on_high) ? g_.empty() : g_.never();
    const Expr point = before_point ? g_.text(".") : g_.empty();
    Expr more = g_.never();
    if (!on_low && !on_high) {
      more = g_.repeat(one_digit(0, 9), before_point ? 1 : 0, left);
      return before_point ? g_.choice({g_.empty(), g_.sequence({point, more})}) : more;
    }
    if (left > 0) {
      const int low = on_low ? fraction_digit(low_->value, i) : 0,
                high = on_high ? fraction_digit(high_->value, i) : 9;
      more = by_digit(0, on_low, on_high, low, high,
                      [&](bool l, bool h, int) { return fraction(i + 1, l, h, false); });
    }
    if (before_point)
      return g_.choice({may_end(0, on_low, on_high) ? g_.empty() : g_.never(), g_.sequence({point, more})});
    return g_.choice({end, more});
  }
  size_t longest_fraction() const {
    return std::max(low_ ? low_->value.fraction.size() : 0, high_ ? high_->value.fraction.size() : 0);
  }

  Grammar& g_;
  std::optional<Bound> low_, high_;
  uint64_t multiple_;
  bool integer_;
  size_t length_ = 0;
  bool endless_ = false;
  size_t low_digits_ = 1;
  std::map<std::tuple<size_t, bool, bool, uint64_t>, Rule> rules_, free_;
  Remainders rests_;
  std::map<uint64_t, Rule> remainders_;
};

Bound magnitude(const Bound& b) { return {{false, b.value.digits, b.value.fraction}, b.exclusive}; }

// The value of a bound as an integer, rounded up or down; absent beyond 15 digits.
std::optional<int64_t> rounded(const Bound& b, bool up) {
  if (b.value.digits.size() > 15) return std::nullopt;
  int64_t n = 0;
  for (const char c : b.value.digits) n = n * 10 + (c - '0');
  if (b.value.negative) n = -n;
  const bool whole = b.value.fraction.empty();
  if (whole) return b.exclusive ? n + (up ? 1 : -1) : n;
  if (up) return b.value.negative ? n : n + 1;
  return b.value.negative ? n - 1 : n;
}

}  // namespace

Expr any_integer(Grammar& g) {
  const Expr more = g.repeat(g.chars({'0', '9'}, Coding::kUtf8), 0, kMaxDigits - 1);
  return g.sequence({g.optional(g.text("-")),
                     g.choice({g.text("0"), g.sequence({g.chars({'1', '9'}, Coding::kUtf8), more})})});
}

Expr any_number(Grammar& g) {
  const Expr digit = g.chars({'0', '9'}, Coding::kUtf8);
  return g.sequence({any_integer(g), g.optional(g.sequence({g.text("."), g.repeat(digit, 1, kMaxDigits)})),
                     // Up to 99: no such number overflows a double.
                     g.optional(g.sequence(
                         {g.chars(CodePointRanges('E', 'E').united({'e', 'e'}), Coding::kUtf8),
                          g.optional(g.chars(CodePointRanges('+', '+').united({'-', '-'}), Coding::kUtf8)),
                          g.repeat(g.chars({'0', '9'}, Coding::kUtf8), 1, 2)}))});
}

Result<Expr> bounded_number(Grammar& g, const Shape& s, bool integer) {
  if (!s.low && !s.high && s.multiple == 1) return integer ? any_integer(g) : any_number(g);
  if (s.multiple > 1) {
    const auto low = s.low ? rounded(*s.low, true) : std::nullopt;
    const auto high = s.high ? rounded(*s.high, false) : std::nullopt;
    const auto m = static_cast<int64_t>(s.multiple);
    if (low && high && (*high - *low) / m <= static_cast<int64_t>(kMaxListed)) {
      std::vector<std::string> list;
      const int64_t first = *low / m * m + (*low % m > 0 ? m : 0);
      for (int64_t n = first; n <= *high; n += m) list.push_back(cat(n));
      return g.one_of(std::move(list));
    }
    if (!Remainders(s.multiple).all(kMaxRemainders))
      return invalid_argument(
          cat(s.path, ".multipleOf ", s.multiple, " tells more than ", kMaxRemainders,
              " remainders apart, trailing zeros aside; it is supported with a minimum and "
              "a maximum that at most ",
              kMaxListed, " multiples lie between"));
  }
  std::vector<Expr> ways;
  if (!s.high || !s.high->value.negative) {
    std::optional<Bound> low;
    if (s.low && !s.low->value.negative) low = s.low;
    if (!s.high || !s.high->value.zero() || !s.high->exclusive)
      ways.push_back(Magnitudes(g, low, s.high, s.multiple, integer).all());
  }
  if (!s.low || s.low->value.negative) {
    Bound low{{}, true};  // no -0
    if (s.high && s.high->value.negative) low = magnitude(*s.high);
    std::optional<Bound> high;
    if (s.low) high = magnitude(*s.low);
    ways.push_back(g.sequence({g.text("-"), Magnitudes(g, low, high, s.multiple, integer).all()}));
  }
  return g.choice(ways);
}

}  // namespace oar::grammar

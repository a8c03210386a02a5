#include "server/api/token_rules.h"

#include <algorithm>

namespace oar::api {
namespace {

using Words = std::vector<uint32_t>;

bool has(const Words& bits, int32_t token) {
  return (bits[static_cast<size_t>(token / 32)] >> (token % 32) & 1) != 0;
}
void put(std::span<uint32_t> bits, int32_t token, bool on) {
  const uint32_t bit = uint32_t{1} << (token % 32);
  uint32_t& word = bits[static_cast<size_t>(token / 32)];
  word = on ? word | bit : word & ~bit;
}

struct Rules {
  std::shared_ptr<const Constraint> inner;
  Words always;                               // tokens that may be drawn wherever the rest allows them
  std::vector<std::vector<int32_t>> several;  // banned sequences of more than one token
  int32_t vocab_size = 0;
  bool may_end = true;
};

class Cursor final : public ConstraintCursor {
 public:
  explicit Cursor(std::shared_ptr<const Rules> rules)
      : rules_(std::move(rules)), inner_(rules_->inner ? rules_->inner->start() : nullptr) {}
  Cursor(const Cursor& o)
      : rules_(o.rules_), inner_(o.inner_ ? o.inner_->fork() : nullptr), tokens_(o.tokens_) {}

  bool advance(int32_t token) override {
    if (!fits(token) || (inner_ && !inner_->advance(token))) return false;
    tokens_.push_back(token);
    return true;
  }
  void rollback(int64_t count) override {
    tokens_.resize(tokens_.size() - static_cast<size_t>(count));
    if (inner_) inner_->rollback(count);
  }
  void mask(std::span<uint32_t> bits) override {
    if (inner_) {
      inner_->mask(bits);
      for (size_t w = 0; w < bits.size(); ++w) bits[w] &= rules_->always[w];
    } else {
      std::copy_n(rules_->always.begin(), bits.size(), bits.begin());
    }
    for (const auto& banned : rules_->several)
      if (completes(banned)) put(bits, banned.back(), false);
  }
  int32_t only() override {
    const int32_t token = inner_ ? inner_->only() : -1;
    return token >= 0 && fits(token) ? token : -1;
  }
  bool may_end() const override { return rules_->may_end && (!inner_ || inner_->may_end()); }
  bool must_end() const override { return inner_ && inner_->must_end(); }
  std::unique_ptr<ConstraintCursor> fork() const override { return std::make_unique<Cursor>(*this); }

 private:
  // Whether the text so far ends with all of a banned sequence but its last token.
  bool completes(const std::vector<int32_t>& banned) const {
    const size_t before = banned.size() - 1;
    return tokens_.size() >= before &&
           std::equal(banned.begin(), banned.end() - 1, tokens_.end() - static_cast<ptrdiff_t>(before));
  }
  bool fits(int32_t token) const {
    if (token < 0 || token >= rules_->vocab_size || !has(rules_->always, token)) return false;
    return std::none_of(rules_->several.begin(), rules_->several.end(),
                        [&](const auto& banned) { return banned.back() == token && completes(banned); });
  }

  const std::shared_ptr<const Rules> rules_;
  const std::unique_ptr<ConstraintCursor> inner_;
  std::vector<int32_t> tokens_;
};

class RuledConstraint final : public Constraint {
 public:
  explicit RuledConstraint(Rules rules) : rules_(std::make_shared<const Rules>(std::move(rules))) {}
  std::unique_ptr<ConstraintCursor> start() const override { return std::make_unique<Cursor>(rules_); }

 private:
  const std::shared_ptr<const Rules> rules_;
};

}  // namespace

std::shared_ptr<const Constraint> with_rules(std::shared_ptr<const Constraint> inner, TokenRules rules) {
  if (!rules.any()) return inner;
  Rules made{std::move(inner), {}, {}, static_cast<int32_t>(rules.vocab_size), rules.may_end};
  const auto words = static_cast<size_t>(rules.vocab_size + 31) / 32;
  made.always.assign(words, rules.allowed.empty() ? ~uint32_t{0} : 0);
  for (const int32_t token : rules.allowed) put(made.always, token, true);
  if (const int64_t rest = rules.vocab_size % 32; rest != 0)
    made.always.back() &= (uint32_t{1} << rest) - 1;  // no token beyond the last
  for (std::vector<int32_t>& banned : rules.banned) {
    if (banned.size() == 1) put(made.always, banned[0], false);
    else made.several.push_back(std::move(banned));
  }
  return std::make_shared<RuledConstraint>(std::move(made));
}

}  // namespace oar::api

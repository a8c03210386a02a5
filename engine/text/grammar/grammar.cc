#include "engine/text/grammar/grammar.h"

#include <algorithm>

namespace oar::grammar {

namespace {

constexpr size_t kManyTexts = 256;  // one_of() has at most 256 ways at one place

}  // namespace

Grammar::Grammar() { nodes_ = {{Kind::kNever}, {Kind::kEmpty}}; }

Expr Grammar::add(Node node) {
  if (nodes_.size() >= kMaxExprs || children_.size() >= kMaxExprs) full_ = true;
  if (full_) return never();
  nodes_.push_back(node);
  return static_cast<Expr>(nodes_.size() - 1);
}

Expr Grammar::text(std::string_view bytes) {
  if (bytes.empty()) return empty();
  if (text_.size() + bytes.size() > kMaxTextBytes) full_ = true;
  if (full_) return never();
  const auto first = static_cast<uint32_t>(text_.size());
  text_ += bytes;
  return add({Kind::kText, first, static_cast<uint32_t>(bytes.size())});
}

Expr Grammar::chars(const CodePointRanges& set, Coding coding) {
  std::string key = CharUnit::key_of(set, coding);
  const auto it = unit_by_key_.find(key);
  if (it != unit_by_key_.end()) return add({Kind::kUnit, it->second});
  const auto& any = CharUnit::any(coding);
  std::shared_ptr<const CharUnit> unit = key == any->key() ? any : CharUnit::make(set, coding);
  if (unit->empty()) return never();
  const auto id = static_cast<uint32_t>(units_.size());
  unit_by_key_.emplace(std::move(key), id);
  units_.push_back(std::move(unit));
  return add({Kind::kUnit, id});
}

Expr Grammar::add_list(Kind kind, std::span<const Expr> parts) {
  const auto first = static_cast<uint32_t>(children_.size());
  children_.insert(children_.end(), parts.begin(), parts.end());
  return add({kind, first, static_cast<uint32_t>(parts.size())});
}

Expr Grammar::sequence(std::span<const Expr> parts) {
  std::vector<Expr> kept;
  for (const Expr e : parts) {
    if (e == never()) return never();
    if (e == empty()) continue;
    const Node n = node(e);
    if (n.kind == Kind::kText && !kept.empty()) {  // texts that lie one behind the other are one
      const Node before = node(kept.back());
      if (before.kind == Kind::kText && before.first + before.count == n.first) {
        kept.back() = add({Kind::kText, before.first, before.count + n.count});
        continue;
      }
    }
    kept.push_back(e);
  }
  if (kept.empty()) return empty();
  return kept.size() == 1 ? kept[0] : add_list(Kind::kSequence, kept);
}

Expr Grammar::choice(std::span<const Expr> alternatives) {
  std::vector<Expr> kept;
  for (const Expr e : alternatives)
    if (e != never() && (kept.empty() || kept.back() != e)) kept.push_back(e);
  const auto is_text = [&](Expr e) { return node(e).kind == Kind::kText; };
  if (const auto n = static_cast<size_t>(std::ranges::count_if(kept, is_text)); n > kManyTexts) {
    // As places to stand at, thousands of alternatives are too many. What they begin with is shared.
    std::vector<std::string> texts;
    for (const Expr e : kept)
      if (is_text(e)) texts.push_back(text_.substr(node(e).first, node(e).count));
    std::erase_if(kept, is_text);
    kept.push_back(one_of(std::move(texts)));
  }
  if (kept.empty()) return never();
  return kept.size() == 1 ? kept[0] : add_list(Kind::kChoice, kept);
}

Expr Grammar::repeat(Expr what, uint32_t low, uint32_t high) {
  if (high == 0 || what == empty()) return empty();
  if (what == never()) return low == 0 ? empty() : never();
  if (low == 1 && high == 1) return what;
  if (low <= 1 && high == kNoLimit && node(what).kind == Kind::kChoice) {
    // (a | b)* is (a+ | b)*: runs of one unit are what masks have tables for.
    std::vector<Expr> ways;
    for (const Expr e : std::vector<Expr>(children(node(what)).begin(), children(node(what)).end()))
      ways.push_back(node(e).kind == Kind::kUnit ? add({Kind::kRepeat, e, 0, 1, kNoLimit}) : e);
    what = choice(ways);
  }
  const bool counted = low > 1 || (high != kNoLimit && high > 1);
  if (counted && node(what).kind != Kind::kUnit && node(what).kind != Kind::kRule) {
    const Rule rule = add_rule("a repetition");
    if (full_) return never();
    define(rule, what);
    what = use(rule);
  }
  return add({Kind::kRepeat, what, 0, low, high});
}

Expr Grammar::any_but(std::vector<std::string> names, Coding coding) {
  const Expr run = chars(CodePointRanges::all(), coding);
  if (names.empty() || full_) return repeat(run, 0, kNoLimit);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  const auto first = static_cast<uint32_t>(excluded_.size()), count = static_cast<uint32_t>(names.size());
  for (std::string& n : names) excluded_.push_back(std::move(n));
  return add({Kind::kAnyBut, node(run).first, first, count});
}

Expr Grammar::one_of(std::vector<std::string> texts) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  if (texts.empty()) return never();
  return one_of_sorted(texts, 0);
}

// All texts agree in their first `depth` bytes.
Expr Grammar::one_of_sorted(std::span<const std::string> texts, size_t depth) {
  if (full_) return never();
  const std::string& a = texts.front();
  const std::string& z = texts.back();
  size_t common = depth;  // sorted: what the first and the last share, all share
  while (common < a.size() && common < z.size() && a[common] == z[common]) ++common;
  const Expr prefix = text(std::string_view(a).substr(depth, common - depth));
  if (texts.size() == 1) return prefix;
  std::vector<Expr> ways;
  size_t i = 0;
  if (a.size() == common) {
    ways.push_back(empty());
    ++i;
  }
  while (i < texts.size()) {
    size_t j = i + 1;
    while (j < texts.size() && texts[j][common] == texts[i][common]) ++j;
    ways.push_back(one_of_sorted(texts.subspan(i, j - i), common));
    i = j;
  }
  return sequence({prefix, choice(ways)});
}

Rule Grammar::add_rule(std::string name) {
  if (bodies_.size() >= kMaxExprs) full_ = true;
  if (full_) return 0;
  bodies_.push_back(never());
  names_.push_back(std::move(name));
  return static_cast<Rule>(bodies_.size() - 1);
}

Expr Grammar::use(Rule rule) { return add({Kind::kRule, rule}); }

}  // namespace oar::grammar

#include "engine/text/grammar/language.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/text/utf8.h"

namespace oar::grammar {
namespace {

constexpr uint32_t kNone = 0xFFFFFFFF;

Status too_large() {
  return invalid_argument(
      "it is too complex: its automaton has more states than are supported; use smaller counts");
}

}  // namespace

// Thompson's construction, then subsets.
class LanguageBuilder {
 public:
  explicit LanguageBuilder(const Regex& regex) : regex_(regex) {}

  Result<Language> run() {
    const uint32_t end = add({});
    const uint32_t start = emit(regex_.root(), end);
    if (overflow_) return too_large();
    std::map<std::vector<uint32_t>, uint32_t> known;
    std::vector<std::vector<uint32_t>> sets;
    Language out;
    const auto id_of = [&](std::vector<uint32_t> set) {
      close(set);
      const auto [it, fresh] = known.try_emplace(set, static_cast<uint32_t>(sets.size()));
      if (fresh) {
        out.states_.push_back({{}, std::binary_search(set.begin(), set.end(), end)});
        sets.push_back(std::move(set));
      }
      return it->second;
    };
    size_t edges = 0;
    id_of({start});
    for (size_t s = 0; s < sets.size(); ++s) {
      // Where ranges begin (+) and end (-), with where they lead.
      std::map<char32_t, std::pair<std::vector<uint32_t>, std::vector<uint32_t>>> borders;
      for (const uint32_t n : sets[s]) {
        if (states_[n].set == nullptr) continue;
        for (const auto& r : states_[n].set->ranges()) {
          borders[r.first].first.push_back(states_[n].next);
          borders[r.last + 1].second.push_back(states_[n].next);
          ++edges;
        }
      }
      std::vector<uint32_t> active;
      char32_t from = 0;
      for (const auto& [c, change] : borders) {
        if (!active.empty()) {
          const uint32_t target = id_of(active);
          auto& list = out.states_[s].edges;
          if (!list.empty() && list.back().target == target && list.back().last + 1 == from)
            list.back().last = c - 1;
          else list.push_back({from, c - 1, target});
          edges += active.size();
        }
        for (const uint32_t t : change.second) active.erase(std::find(active.begin(), active.end(), t));
        active.insert(active.end(), change.first.begin(), change.first.end());
        from = c;
        if (edges > Language::kMaxEdges || sets.size() > Language::kMaxStates) return too_large();
      }
    }
    out.work_ = edges + sets.size() + closed_ / 3;
    out.trim();
    return out;
  }

 private:
  struct State {
    const CodePointRanges* set = nullptr;  // null: `next` and `other` without reading
    uint32_t next = kNone, other = kNone;
  };
  uint32_t add(State s) {
    if (states_.size() >= Language::kMaxEdges) {
      overflow_ = true;
      return 0;
    }
    states_.push_back(s);
    return static_cast<uint32_t>(states_.size() - 1);
  }
  uint32_t emit(uint32_t id, uint32_t next) {
    if (overflow_) return 0;
    const Regex::Node& n = regex_.node(id);
    switch (n.kind) {
      case Regex::Kind::kSet: return add({&n.set, next, kNone});
      case Regex::Kind::kSequence:
        for (size_t i = n.parts.size(); i-- > 0;) next = emit(n.parts[i], next);
        return next;
      case Regex::Kind::kChoice: {
        uint32_t at = emit(n.parts.back(), next);
        for (size_t i = n.parts.size() - 1; i-- > 0;) at = add({nullptr, emit(n.parts[i], next), at});
        return at;
      }
      case Regex::Kind::kRepeat: {
        if (n.high == kNoLimit) {
          const uint32_t loop = add({nullptr, kNone, next});
          const uint32_t body = emit(n.parts[0], loop);
          if (!overflow_) states_[loop].next = body;
          next = loop;
        } else {
          const uint32_t end = next;
          for (uint32_t i = n.low; i < n.high && !overflow_; ++i)
            next = add({nullptr, emit(n.parts[0], next), end});
        }
        for (uint32_t i = 0; i < n.low && !overflow_; ++i) next = emit(n.parts[0], next);
        return next;
      }
      default: return next;
    }
  }
  void close(std::vector<uint32_t>& set) const {
    std::vector<uint32_t> todo = std::move(set);
    set.clear();
    std::vector<bool>& seen = seen_;
    seen.resize(states_.size());
    while (!todo.empty()) {
      const uint32_t s = todo.back();
      todo.pop_back();
      if (s == kNone || seen[s]) continue;
      seen[s] = true;
      set.push_back(s);
      if (states_[s].set == nullptr) {
        todo.push_back(states_[s].next);
        todo.push_back(states_[s].other);
      }
    }
    for (const uint32_t s : set) seen[s] = false;
    closed_ += set.size();
    std::sort(set.begin(), set.end());
  }

  const Regex& regex_;
  std::vector<State> states_;
  mutable std::vector<bool> seen_;
  mutable size_t closed_ = 0;
  bool overflow_ = false;
};

Result<Language> Language::of(const Regex& regex) { return LanguageBuilder(regex).run(); }

Language Language::of_texts(std::span<const std::string> texts) {
  Language out;
  if (texts.empty()) return out;
  out.states_.emplace_back();
  for (const std::string& t : texts) {
    uint32_t at = 0;
    for (size_t i = 0; i < t.size();) {
      const CodePoint c = decode_utf8(t, i);
      i += c.length;
      auto& edges = out.states_[at].edges;
      const auto it = std::lower_bound(edges.begin(), edges.end(), c.value,
                                       [](const Edge& e, char32_t v) { return e.first < v; });
      if (it != edges.end() && it->first == c.value) {
        at = it->target;
        continue;
      }
      const auto fresh = static_cast<uint32_t>(out.states_.size());
      edges.insert(it, {c.value, c.value, fresh});
      out.states_.emplace_back();
      at = fresh;
    }
    out.states_[at].accepts = true;
  }
  return out;
}

Result<Language> Language::of_lengths(uint64_t low, uint64_t high) {
  Language out;
  if (low > high) return out;
  const uint64_t last = high == UINT64_MAX ? low : high;
  if (last >= kMaxStates) return too_large();
  for (uint64_t i = 0; i <= last; ++i) {
    State s;
    s.accepts = i >= low;
    if (i < last) s.edges.push_back({0, kMaxCodePoint, static_cast<uint32_t>(i + 1)});
    else if (high == UINT64_MAX) s.edges.push_back({0, kMaxCodePoint, static_cast<uint32_t>(i)});
    out.states_.push_back(std::move(s));
  }
  return out;
}

Result<Language> Language::product(const Language& other, bool both) const {
  Language out;
  if (empty()) return out;
  if (other.empty()) return both ? out : *this;
  using Pair = std::pair<uint32_t, uint32_t>;
  std::map<Pair, uint32_t> known;
  std::vector<Pair> pairs;
  const auto id_of = [&](Pair p) {
    const auto [it, fresh] = known.try_emplace(p, static_cast<uint32_t>(pairs.size()));
    if (fresh) {
      pairs.push_back(p);
      const bool theirs = p.second != kNone && other.states_[p.second].accepts;
      out.states_.push_back({{}, states_[p.first].accepts && theirs == both});
    }
    return it->second;
  };
  id_of({0, 0});
  size_t edges = 0;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Pair p = pairs[i];
    std::vector<Edge> list;
    static const std::vector<Edge> kNoEdges;
    const auto& theirs = p.second == kNone ? kNoEdges : other.states_[p.second].edges;
    size_t j = 0;
    for (const Edge& e : states_[p.first].edges) {
      for (char32_t from = e.first; from <= e.last;) {
        while (j < theirs.size() && theirs[j].last < from) ++j;
        const bool inside = j < theirs.size() && theirs[j].first <= from;
        const char32_t end = inside ? std::min(e.last, theirs[j].last)
                             : j < theirs.size() && theirs[j].first <= e.last ? theirs[j].first - 1
                                                                              : e.last;
        if (inside || !both)
          list.push_back({from, end, id_of({e.target, inside ? theirs[j].target : kNone})});
        from = end + 1;
      }
    }
    edges += list.size();
    if (edges > kMaxEdges || pairs.size() > kMaxStates) return too_large();
    out.states_[i].edges = std::move(list);
  }
  out.work_ = edges + pairs.size();
  out.trim();
  return out;
}

void Language::trim() {
  std::vector<std::vector<uint32_t>> from(states_.size());
  std::vector<bool> alive(states_.size());
  std::vector<uint32_t> todo;
  for (uint32_t s = 0; s < states_.size(); ++s) {
    for (const Edge& e : states_[s].edges) from[e.target].push_back(s);
    if (states_[s].accepts) {
      alive[s] = true;
      todo.push_back(s);
    }
  }
  while (!todo.empty()) {
    const uint32_t s = todo.back();
    todo.pop_back();
    for (const uint32_t p : from[s]) {
      if (alive[p]) continue;
      alive[p] = true;
      todo.push_back(p);
    }
  }
  if (states_.empty() || !alive[0]) {
    states_.clear();
    return;
  }
  std::vector<uint32_t> id(states_.size(), kNone);
  std::vector<State> kept;
  for (uint32_t s = 0; s < states_.size(); ++s) {
    if (!alive[s]) continue;
    id[s] = static_cast<uint32_t>(kept.size());
    kept.push_back(std::move(states_[s]));
  }
  for (State& s : kept) {
    std::erase_if(s.edges, [&](const Edge& e) { return id[e.target] == kNone; });
    for (Edge& e : s.edges) e.target = id[e.target];
  }
  states_ = std::move(kept);
}

bool Language::contains(std::string_view text) const {
  if (empty()) return false;
  uint32_t at = 0;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = decode_utf8(text, i);
    i += c.length;
    const auto& edges = states_[at].edges;
    const auto it = std::upper_bound(edges.begin(), edges.end(), c.value,
                                     [](char32_t v, const Edge& e) { return v <= e.last; });
    if (it == edges.end() || it->first > c.value) return false;
    at = it->target;
  }
  return states_[at].accepts;
}

Expr Language::to_grammar(Grammar& g, Coding coding, const std::string& name) const {
  if (empty()) return g.never();
  std::vector<Rule> rules;
  for (size_t s = 0; s < states_.size(); ++s) rules.push_back(g.add_rule(name));
  for (size_t s = 0; s < states_.size() && !g.full(); ++s) {
    std::map<uint32_t, std::vector<CodePointRanges::Range>> by_target;
    for (const Edge& e : states_[s].edges) by_target[e.target].push_back({e.first, e.last});
    std::vector<Expr> ways;
    Expr stay = g.empty();
    for (auto& [target, ranges] : by_target) {
      const auto set = CodePointRanges::of(std::move(ranges));
      if (target == s) stay = g.repeat(g.chars(set, coding), 0, kNoLimit);
      else ways.push_back(g.sequence({g.chars(set, coding), g.use(rules[target])}));
    }
    if (states_[s].accepts) ways.push_back(g.empty());
    g.define(rules[s], g.sequence({stay, g.choice(ways)}));
  }
  return g.use(rules[0]);
}

}  // namespace oar::grammar

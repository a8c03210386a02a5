#include "engine/runtime/core/draft_pacer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "engine/runtime/core/step_pacer.h"

namespace oar {
namespace {

// Drafts tried longer ago than this many count little: of one sequence, and of all.
constexpr double kMemory = 48, kMemoryOfAll = 16;
// Gains below this are no more than what steps differ by.
constexpr double kWorthwhile = 1.02;
// What all have shown counts as so many drafts of a sequence.
constexpr double kWeightOfAll = 1.5;

void remember(DraftChance& chance, int64_t right, int64_t tried, double memory) {
  const double keep = std::pow(1 - 1 / memory, static_cast<double>(tried));
  chance.right = chance.right * keep + static_cast<double>(right);
  chance.tried = chance.tried * keep + static_cast<double>(tried);
}

}  // namespace

// A sequence is taken for one like all others, as if it had shown that with a few drafts. Where nobody has
// shown anything nothing is believed.
double DraftPacer::probability(const DraftChance& c) const {
  return (c.right + kWeightOfAll * all_.right / (all_.tried + 1)) / (c.tried + kWeightOfAll);
}

size_t DraftPacer::kind_of(int64_t rows) {
  const auto r = static_cast<uint64_t>(std::max<int64_t>(rows, 1));
  if (r <= kExact) return static_cast<size_t>(r - 1);
  const auto top = static_cast<size_t>(std::bit_width(r) - 1);  // at least 8
  return std::min<size_t>(kExact + 4 * (top - 8) + ((r >> (top - 2)) & 3), kKinds - 1);
}

int64_t DraftPacer::rows_of(size_t kind) {
  if (kind < kExact) return static_cast<int64_t>(kind) + 1;
  return static_cast<int64_t>((4 + (kind - kExact) % 4) << ((kind - kExact) / 4 + 6));
}

// What was not seen lies on a line: between two that were, or beyond the last in the direction from the
// first. Where that is one and the same, more rows are hoped to cost nothing, so that they are tried; and
// fewer than the first their share of it. A processor waits for memory first and for arithmetic then: one
// step with drafts tells which.
double DraftPacer::Times::by_others(int64_t rows) const {
  const size_t kind = kind_of(rows);
  size_t below = kind, above = kind, first = 0;
  while (below > 0 && (below == kind || seconds_[below] == 0)) --below;
  while (above + 1 < kKinds && (above == kind || seconds_[above] == 0)) ++above;
  while (first < below && seconds_[first] == 0) ++first;
  const bool has_below = below != kind && seconds_[below] > 0,
             has_above = above != kind && seconds_[above] > 0;
  const auto at = [](size_t k) { return static_cast<double>(rows_of(k)); };
  const auto n = static_cast<double>(rows);
  if (!has_below) return has_above ? seconds_[above] * n / at(above) : 0;
  const size_t from = has_above ? below : first, to = has_above ? above : below;
  if (from == to) return seconds_[below];
  const double slope = std::max(0.0, (seconds_[to] - seconds_[from]) / (at(to) - at(from)));
  return seconds_[below] + slope * (n - at(below));
}

double DraftPacer::Times::seconds(int64_t rows) const {
  const double seen = seconds_[kind_of(rows)];
  return seen > 0 ? seen : by_others(rows);
}

void DraftPacer::ran(int64_t rows, double seconds) {
  trial_ = std::min(std::max(1., trial_), trial_ + kTrialShare * static_cast<double>(rows));
  steps_.ran(rows, seconds);
}

void DraftPacer::Times::ran(int64_t rows, double seconds) {
  learn_seconds(seconds_[kind_of(rows)], seconds);
  seen_[kind_of(rows)] = true;
  // What was slow once, and not those beside it, is believed less and less until it is tried again.
  if (++runs_ % kRunsBetweenDoubts != 0) return;
  for (size_t k = 0; k < kKinds; ++k) {
    if (std::exchange(seen_[k], false) || seconds_[k] == 0) continue;
    if (const double others = by_others(rows_of(k)); others > 0 && others < seconds_[k])
      seconds_[k] += 0.25 * (others - seconds_[k]);
  }
}

void DraftPacer::verified(DraftChance& chance, int64_t accepted, int64_t drafts) {
  if (drafts == 0) return;
  const int64_t tried = std::min(accepted + 1, drafts);  // behind the first wrong one nothing was tried
  remember(chance, accepted, tried, kMemory);
  remember(all_, accepted, tried, kMemoryOfAll);
  if (chance.trial) trial_ -= static_cast<double>(drafts - accepted);
  chance.trial = false;
}

// What a draft model takes longer when one sequence more has a draft at `position`.
double DraftPacer::pass_for_one_more(int64_t position) {
  if (passes_.empty()) return 0;
  if (at_.size() <= static_cast<size_t>(position)) at_.resize(static_cast<size_t>(position) + 1);
  const int64_t rows = ++at_[static_cast<size_t>(position)];
  return std::max(0., passes_.seconds(rows) - (rows > 1 ? passes_.seconds(rows - 1) : 0));
}

void DraftPacer::plan(std::span<Candidate> candidates, int64_t rows, int64_t decodes, int64_t most) {
  gain_.resize(candidates.size());
  most_of_.resize(candidates.size());
  const double known = std::min(kWeightOfAll, all_.tried);
  for (size_t i = 0; i < candidates.size(); ++i) {
    candidates[i].take = 0;
    // Chains grow with what was tried: a sequence unlike those before it loses few rows by that.
    most_of_[i] = std::min(candidates[i].available,
                           1 + static_cast<int64_t>(2 * (candidates[i].chance->tried + known)));
    candidates[i].chance->trial = false;
    gain_[i] = candidates[i].available > 0 ? probability(*candidates[i].chance) : 0;
  }
  // One draft more at a time, the likeliest first; what is kept is the number of them with the best rate.
  double tokens = static_cast<double>(decodes), drafting = 0;
  // More rows never take less, whatever a busy machine made of the steps that were seen.
  const double alone = std::max(steps_.seconds(rows), 1e-9);
  const auto seconds = [&](int64_t more) { return std::max(steps_.seconds(rows + more), alone); };
  double best = kWorthwhile * tokens / alone;
  int64_t added = 0, kept = 0;
  std::fill(at_.begin(), at_.end(), 0);
  order_.clear();
  while (added < most && !candidates.empty()) {
    const size_t i = static_cast<size_t>(std::max_element(gain_.begin(), gain_.end()) - gain_.begin());
    if (gain_[i] < 0.01) break;
    tokens += gain_[i];
    order_.push_back(i);
    Candidate& c = candidates[i];
    drafting += pass_for_one_more(c.take);
    ++c.take;
    ++added;
    const double rate = tokens / (seconds(added) + drafting);
    if (rate > best) best = rate, kept = added;
    // Far behind the top; but a pass that one sequence does not pay for may pay for many.
    if (passes_.empty() && rate < 0.8 * best) break;
    gain_[i] = c.take < most_of_[i] ? gain_[i] * probability(*c.chance) : 0;
  }
  for (int64_t k = kept; k < added; ++k) --candidates[order_[static_cast<size_t>(k)]].take;
  // Where drafts would pay if they were right, and are not believed to be, one is tried: of the sequence
  // least is known of.
  if (trial_ < 1 || kept >= most) return;
  Candidate* least = nullptr;
  for (Candidate& c : candidates)
    if (c.take == 0 && c.available > 0 && (least == nullptr || c.chance->tried < least->chance->tried))
      least = &c;
  if (least == nullptr || rate_if_right(candidates, rows, decodes, most) <= best) return;
  least->take = 1;
  least->chance->trial = true;
}

// One draft more of each sequence at a time, since one alone may cost more than it brings where many do not.
double DraftPacer::rate_if_right(std::span<const Candidate> candidates, int64_t rows, int64_t decodes,
                                 int64_t most) const {
  int64_t drafted = 0, longest = 0;
  for (const Candidate& c : candidates) {
    drafted += c.available > 0;
    longest = std::max(longest, c.available);
  }
  const double alone = std::max(steps_.seconds(rows), 1e-9), pass = passes_.seconds(drafted);
  double best = 0;
  for (int64_t length = 1, added = 0; length <= longest && added < most; ++length) {
    added = std::min(length * drafted, most);
    const double seconds = std::max(steps_.seconds(rows + added), alone) + static_cast<double>(length) * pass;
    best = std::max(best, static_cast<double>(decodes + added) / seconds);
  }
  return best;
}

}  // namespace oar

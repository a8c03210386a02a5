// A model whose next token is a hash of the exact token history, kept the way a KV cache is: every slot
// stores what was written there and the history up to it, read back through the block tables. A wrong block,
// a stale page, a missed copy-on-write or a false prefix hit changes the history or fails a check; so
// whatever is scheduled, a sequence must produce the tokens of reference_tokens(), which knows no cache at
// all.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/base/format.h"
#include "engine/runtime/core/model_runner.h"
#include "engine/runtime/core/request.h"

namespace oar_test {

inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
inline constexpr uint64_t kEmptyHistory = 0x6f6172;
inline uint64_t extend(uint64_t history, int32_t token) {
  return mix(history ^ static_cast<uint32_t>(token));
}

// The fake model's logits after `history`, in [-4, 4).
inline float logit(uint64_t history, int32_t token) {
  return static_cast<float>(mix(history + 0x1000003u * static_cast<uint64_t>(token)) >> 40) * 0x1p-21f - 4.f;
}

// What a "device" draws without a sampler: a pure function of history, stream and place.
inline int32_t fake_draw(uint64_t history, uint64_t stream, int64_t n, int32_t vocab) {
  return static_cast<int32_t>(mix(history ^ mix(stream * 31 + static_cast<uint64_t>(n))) %
                              static_cast<uint64_t>(vocab));
}

// The cache and its checks. `error` is the first violation found.
class FakeCache {
 public:
  explicit FakeCache(const oar::RunnerLimits& limits) : limits_(limits) {
    for (size_t g = 0; g < limits.groups.size(); ++g)
      if (kind(g) == oar::CachePages::kOpen) open_ = g;
    for (const oar::CacheGroup& g : limits.groups) {
      slots_.emplace_back(static_cast<size_t>(g.num_blocks) * static_cast<size_t>(limits.page_tokens));
      if (g.pages == oar::CachePages::kState) state_ = slots_.size() - 1;
      if (g.pages == oar::CachePages::kRows) rows_ = slots_.size() - 1;
    }
  }
  std::string error;

  void copy(std::span<const oar::BlockCopy> copies) {
    const size_t page = static_cast<size_t>(limits_.page_tokens);
    for (const oar::BlockCopy& c : copies) {
      if (static_cast<size_t>(c.group) == state_) complain("a state is copied: it is written whole");
      auto& s = slots_[static_cast<size_t>(c.group)];
      for (size_t i = 0; i < page; ++i)
        s[static_cast<size_t>(c.to) * page + i] = s[static_cast<size_t>(c.from) * page + i];
    }
  }

  // Runs the rows; histories[r] is the history of logit row r. `tokens` are the resolved ones.
  void run(const oar::Batch& b, std::span<const int32_t> tokens, std::vector<uint64_t>& histories) {
    histories.clear();
    const size_t sequences = b.context_len.size();
    if (b.seq_start.size() != sequences + 1 || b.positions.size() != tokens.size() ||
        b.groups.size() != slots_.size())
      return complain("sizes of the batch disagree");
    if (static_cast<int64_t>(tokens.size()) > limits_.max_batch_tokens) complain("too many rows");
    if (static_cast<int64_t>(sequences) > limits_.max_sequences) complain("too many sequences");
    if (static_cast<int64_t>(b.logit_rows.size()) > std::max(limits_.max_logit_rows, limits_.max_sequences))
      complain("too many rows of logits");
    // All rows are written before any is read, as a real step does.
    size_t next_logit = 0;
    for (size_t s = 0; s < sequences; ++s) {
      uint64_t state = state_ < slots_.size() ? before_step(b, s) : 0;
      for (int32_t r = b.seq_start[s]; r < b.seq_start[s + 1]; ++r) {
        const int32_t p = b.positions[static_cast<size_t>(r)];
        if (p != b.context_len[s] - (b.seq_start[s + 1] - r)) complain("positions are not consecutive");
        uint64_t history = 0;
        const int32_t token = tokens[static_cast<size_t>(r)];
        for (size_t g = 0; g < slots_.size(); ++g) {
          if (kind(g) == oar::CachePages::kAll) {
            const uint64_t before = p == 0 ? kEmptyHistory : look(b, g, s, p - 1, p).history;
            history = extend(before, token);
          }
        }
        if (state_ < slots_.size()) {
          state = extend(state, token);
          if (history != 0 && state != history) complain("the state belongs to another history");
          history = state;
          keep_state(b, s, r, p, token, state);
        }
        for (size_t g = 0; g < slots_.size(); ++g) {
          if (oar::has_holes(kind(g))) continue;
          const int32_t at = b.groups[g].slots[static_cast<size_t>(r)];
          if (kind(g) == oar::CachePages::kFirst && p >= limits_.page_tokens) {
            if (at != -1) complain("a slot behind the first page");
            continue;
          }
          if (at != slot(b, g, s, p)) complain("slot and block table disagree");
          // Quantized pages are made from the open page once it is full; before that they hold nothing.
          if (open_ < slots_.size() && kind(g) == oar::CachePages::kAll) continue;
          slots_[g][static_cast<size_t>(at)] = {token, p, history};
        }
        if (open_ < slots_.size() && (p + 1) % limits_.page_tokens == 0) fill(b, s, p);
        if (next_logit < b.logit_rows.size() && b.logit_rows[next_logit] == r) {
          ++next_logit;
          histories.push_back(history);
          check_visible(b, s, p, history);
        }
      }
    }
    if (next_logit != b.logit_rows.size()) complain("logit rows are not ascending rows of the batch");
  }

 private:
  struct Slot {
    int32_t token = -1, position = -1;
    uint64_t history = 0;
  };
  oar::CachePages kind(size_t g) const { return limits_.groups[g].pages; }
  // A recurrent layer: the history as the border in front of the step's first page and the rows kept of it
  // give it. A block of borders is its first slot.
  uint64_t before_step(const oar::Batch& b, size_t s) {
    const int32_t P = limits_.page_tokens;
    const int32_t from = b.context_len[s] - (b.seq_start[s + 1] - b.seq_start[s]), start = from / P * P;
    uint64_t history = kEmptyHistory;
    if (start > 0) history = read(b, state_, s, start - P, start).history;
    for (int32_t q = start; q < from; ++q) history = extend(history, read(b, rows_, s, q, q).token);
    return history;
  }
  void keep_state(const oar::Batch& b, size_t s, int32_t r, int32_t p, int32_t token, uint64_t history) {
    const int32_t P = limits_.page_tokens, at = b.groups[rows_].slots[static_cast<size_t>(r)];
    if (at >= 0) {
      if (at != slot(b, rows_, s, p)) complain("slot and block table disagree");
      slots_[rows_][static_cast<size_t>(at)] = {token, p, history};
    }
    const oar::Batch::Group& group = b.groups[state_];
    if ((p + 1) % P != 0) return;
    if (p / P >= group.max_blocks) return complain("table of states too short");
    const int32_t block =
        group.block_tables[s * static_cast<size_t>(group.max_blocks) + static_cast<size_t>(p / P)];
    if (block >= limits_.groups[state_].num_blocks) return complain("block out of the pool");
    if (block >= 0) slots_[state_][static_cast<size_t>(block * P)] = {token, p + 1, history};
  }
  // Position q as a query at position p finds it: in the open page if it is p's own.
  const Slot& look(const oar::Batch& b, size_t g, size_t s, int32_t q, int32_t p) {
    const bool own = q / limits_.page_tokens == p / limits_.page_tokens;
    return read(b, own && open_ < slots_.size() ? open_ : g, s, q);
  }
  // The page that p ends, in every group of quantized pages.
  void fill(const oar::Batch& b, size_t s, int32_t p) {
    for (size_t g = 0; g < slots_.size(); ++g) {
      if (kind(g) != oar::CachePages::kAll) continue;
      for (int32_t q = p + 1 - limits_.page_tokens; q <= p; ++q)
        slots_[g][static_cast<size_t>(slot(b, g, s, q))] = read(b, open_, s, q);
    }
  }
  void complain(const std::string& what) {
    if (error.empty()) error = what;
  }
  int32_t slot(const oar::Batch& b, size_t g, size_t s, int32_t p) {
    const oar::Batch::Group& group = b.groups[g];
    const int64_t page = p / limits_.page_tokens;
    if (page >= group.max_blocks) {
      complain("block table too short");
      return 0;
    }
    const int32_t block =
        group.block_tables[s * static_cast<size_t>(group.max_blocks) + static_cast<size_t>(page)];
    if (block < 0 || block >= limits_.groups[g].num_blocks) {
      complain("block out of the pool");
      return 0;
    }
    return block * limits_.page_tokens + p % limits_.page_tokens;
  }
  const Slot& read(const oar::Batch& b, size_t g, size_t s, int32_t p) { return read(b, g, s, p, p); }
  const Slot& read(const oar::Batch& b, size_t g, size_t s, int32_t p, int32_t position) {
    const Slot& at = slots_[g][static_cast<size_t>(slot(b, g, s, p))];
    if (at.position != position)
      complain(oar::cat("group ", g, ": position ", p, " reads a slot of position ", at.position));
    return at;
  }
  // Everything a query at position p may look at, in every group.
  void check_visible(const oar::Batch& b, size_t s, int32_t p, uint64_t history) {
    for (size_t g = 0; g < slots_.size(); ++g) {
      if (kind(g) == oar::CachePages::kOpen) continue;  // seen through the others
      if (oar::has_holes(kind(g))) continue;            // seen by before_step()
      const int64_t window = limits_.groups[g].window;
      const int32_t first = window == 0 ? 0 : static_cast<int32_t>(std::max<int64_t>(0, p - window + 1));
      uint64_t chain = first == 0 ? kEmptyHistory : 0;
      const bool only_first = kind(g) == oar::CachePages::kFirst;
      const int32_t last = only_first ? std::min(p, limits_.page_tokens - 1) : p;
      for (int32_t q = first; q <= last; ++q) {
        const Slot& at = only_first ? read(b, g, s, q) : look(b, g, s, q, p);
        if (q > first || first == 0) {
          chain = extend(chain, at.token);
          if (chain != at.history)
            complain(oar::cat("group ", g, ": position ", q, " belongs to another history"));
        }
        chain = at.history;
      }
      if (last == p && chain != history) complain("groups disagree about the history");
    }
  }

  oar::RunnerLimits limits_;
  std::vector<std::vector<Slot>> slots_;       // [group][slot]
  size_t open_ = SIZE_MAX;                     // the kOpen group of a quantized cache
  size_t state_ = SIZE_MAX, rows_ = SIZE_MAX;  // of recurrent layers
};

}  // namespace oar_test

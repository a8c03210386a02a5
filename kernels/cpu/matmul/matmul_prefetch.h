// What a matmul asks of memory while it multiplies: the weights that come next and the lines it is about to
// write. Hints only; no value depends on them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/matmul/matmul_driver.h"

namespace oar {
namespace {  // compiled with the flags of every instruction set

// Bytes wanted soon, fetched to the second-level cache in equal parts.
class Ahead {
 public:
  Ahead(const char* at, int64_t bytes, int64_t parts)
      : at_(at), end_(at + bytes), part_((bytes / 64 + parts) / parts * 64) {}
  void fetch() {
    const char* stop = at_ + std::min<int64_t>(part_, end_ - at_);
    for (; at_ < stop; at_ += 64) __builtin_prefetch(at_, 0, 2);
  }

 private:
  const char *at_, *end_;
  int64_t part_;
};

// The lines of the output that a tile will write, asked for in each of its steps: a store that finds its line
// elsewhere would wait for it, and the next one behind it.
class OutLines {
 public:
  static constexpr int64_t kLine = 64 / sizeof(float);
  // `lines` of each of `tokens` tokens from t.
  OutLines(const PanelTask& p, int64_t row, int64_t lines, int64_t t, int64_t tokens, int64_t steps)
      : at_(p.out + t * p.ldo + row),
        ldo_(p.ldo),
        lines_(lines),
        left_(tokens),
        per_step_(tokens / steps + 1) {}
  void fetch() {
    for (int64_t i = std::min(per_step_, left_); i > 0; --i, --left_, at_ += ldo_) {
      for (int64_t l = 0; l < lines_; ++l) __builtin_prefetch(at_ + l * kLine, 1);
    }
  }

 private:
  float* at_;
  int64_t ldo_, lines_, left_, per_step_;
};

}  // namespace
}  // namespace oar

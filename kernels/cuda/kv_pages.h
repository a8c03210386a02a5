// How keys and values lie inside a page on a CUDA device: one head behind the other, its keys, then its
// values. A warp that looks at 32 tokens reads 16 bytes of each side by side, as scores want keys: 8 dims of
// a token together, 4 in f32, tokens next to one another. Values of two tokens lie together, as sums over
// tokens want them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/attention.h"
#include "kernels/cuda/device.h"

namespace oar::cuda {

constexpr int kKeyDims = 8;  // dims of a token that are read at a time: side by side, where two bytes each

// kSide: dims of a token side by side.
template <int kSide>
struct KvPageOf {
  int P, D;
  OAR_DEVICE KvPageOf(const KvShape& s) : P(s.page_tokens), D(s.head_dim) {}
  // Elements from the page's first to those of head h.
  OAR_DEVICE int64_t head(int h) const { return int64_t{2} * h * P * D; }
  // Of a head's elements: dim d of token p of the page.
  OAR_DEVICE int key(int p, int d) const { return (d / kSide * P + p) * kSide + d % kSide; }
  OAR_DEVICE int value(int p, int d) const { return P * D + (p / 2 * D + d) * 2 + p % 2; }
};
using KvPage = KvPageOf<kKeyDims>;

// The same of keys that hold values (KvShape::latent): a head is its keys alone.
template <int kSide>
struct KeyPageOf {
  int P, D;
  OAR_DEVICE KeyPageOf(const KvShape& s) : P(s.page_tokens), D(s.head_dim) {}
  OAR_DEVICE int64_t head(int h) const { return int64_t{1} * h * P * D; }
  OAR_DEVICE int key(int p, int d) const { return (d / kSide * P + p) * kSide + d % kSide; }
};
template <bool kLatent, int kSide = kKeyDims>
using CachePage = std::conditional_t<kLatent, KeyPageOf<kSide>, KvPageOf<kSide>>;

}  // namespace oar::cuda

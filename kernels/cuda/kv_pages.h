// How keys and values lie inside a page on a CUDA device: one head behind the other, its keys, then its
// values. A warp that looks at 32 tokens reads 16 bytes of each side by side, as scores want keys: 8 dims of
// a token together, tokens next to one another. Values of two tokens lie together, as sums over tokens want
// them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/attention.h"
#include "kernels/cuda/device.h"

namespace oar::cuda {

constexpr int kKeyDims = 8;  // dims of a token side by side

struct KvPage {
  int P, D;
  OAR_DEVICE KvPage(const KvShape& s) : P(s.page_tokens), D(s.head_dim) {}
  // Elements from the page's first to those of head h.
  OAR_DEVICE int64_t head(int h) const { return int64_t{2} * h * P * D; }
  // Of a head's elements: dim d of token p of the page.
  OAR_DEVICE int key(int p, int d) const { return (d / kKeyDims * P + p) * kKeyDims + d % kKeyDims; }
  OAR_DEVICE int value(int p, int d) const { return P * D + (p / 2 * D + d) * 2 + p % 2; }
};

// The same of keys that hold values (KvShape::latent): a head is its keys alone.
struct KeyPage {
  int P, D;
  OAR_DEVICE KeyPage(const KvShape& s) : P(s.page_tokens), D(s.head_dim) {}
  OAR_DEVICE int64_t head(int h) const { return int64_t{1} * h * P * D; }
  OAR_DEVICE int key(int p, int d) const { return (d / kKeyDims * P + p) * kKeyDims + d % kKeyDims; }
};
template <bool kLatent>
using CachePage = std::conditional_t<kLatent, KeyPage, KvPage>;

}  // namespace oar::cuda

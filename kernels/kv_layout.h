// Where keys and values lie inside a block of the paged KV cache: the one place that knows. The attention
// kernels of every ISA level, the append kernels and the reference address the cache through KvLayout;
// nothing above kernels/ does.
//
// A block holds P consecutive tokens of one sequence, for all K heads. Heads follow each other. Within a head
// the keys of all its tokens come before their values, so that decoding one head reads one contiguous run:
//
//   block: [head 0][head 1]..[head K-1]        head: [key panel 0]..[key panel P/16-1][value panel 0]..
//
// A panel covers 16 tokens and has 16 * D elements.
//
//   key panel, f32 and f16    [D][16 tokens]             a vector load gives one dim of 16 tokens:
//                                                        q.k accumulates with one token per lane,
//                                                        and needs no horizontal sums
//   key panel, bf16           [D/2][16 tokens][2 dims]   the same for the dot product of bf16 pairs
//                                                        (vdpbf16ps); a run of 16 such lines is also an
//                                                        AMX tile operand
//   value panel, f32 and f16  [16 tokens][D]             rows, to be scaled by p and added
//   value panel, bf16         [8][D][2 tokens]           pairs of tokens per dim, for the same dot product
//
// Where keys hold values (KvShape::latent) a head is its key panels alone. Who multiplies makes value panels
// of them, D being the width of values (values_of_keys()).
//
// Bytes beyond a sequence's last token are undefined (a recycled block may hold anything, NaN included):
// readers must not let them into arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"

namespace oar {

inline constexpr int64_t kKvPanelTokens = 16;

// All members are bytes or byte offsets unless named otherwise.
struct KvLayout {
  int64_t head_dim;     // D
  int64_t elem_bytes;   // 4 or 2
  int64_t panels;       // P / 16
  int64_t panel_bytes;  // 16 * D * elem_bytes, a multiple of 256
  int64_t head_bytes;   // 2 * panels * panel_bytes; panels * panel_bytes where keys hold values
  int64_t value_dim;    // D where values lie beside the keys
  int64_t block_bytes;  // K * head_bytes
  bool paired;          // bf16: pairs of dims (keys) or tokens (values) are adjacent
  bool latent;          // keys hold values: there are no value panels

  [[gnu::always_inline]] explicit constexpr KvLayout(const KvShape& s)
      : head_dim(s.head_dim),
        elem_bytes(s.type == DType::kF32 ? 4 : 2),
        panels(s.page_tokens / kKvPanelTokens),
        panel_bytes(kKvPanelTokens * head_dim * elem_bytes),
        head_bytes((s.latent > 0 ? 1 : 2) * panels * panel_bytes),
        value_dim(s.value_dim()),
        block_bytes(s.kv_heads * head_bytes),
        paired(s.type == DType::kBF16),
        latent(s.latent > 0) {}

  // Offset of a panel inside its block.
  constexpr int64_t k_panel(int64_t head, int64_t panel) const {
    return head * head_bytes + panel * panel_bytes;
  }
  constexpr int64_t v_panel(int64_t head, int64_t panel) const {
    return head * head_bytes + (panels + panel) * panel_bytes;
  }
  // Index (in elements) inside a panel of token t, 0 <= t < 16, dim d.
  constexpr int64_t k_index(int64_t t, int64_t d) const {
    return paired ? (d / 2 * kKvPanelTokens + t) * 2 + d % 2 : d * kKvPanelTokens + t;
  }
  constexpr int64_t v_index(int64_t t, int64_t d) const {
    return paired ? (t / 2 * value_dim + d) * 2 + t % 2 : t * value_dim + d;
  }
  // Bytes of a value panel, of those in the block and of those that values_of_keys() makes.
  constexpr int64_t v_panel_bytes() const { return kKvPanelTokens * value_dim * elem_bytes; }
};

}  // namespace oar

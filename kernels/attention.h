// Attention over a paged KV cache, the append that fills it, and, for encoders, attention without a cache.
//
// The pool of one layer is [num_blocks][kv_block_bytes]: a block holds P consecutive tokens of one sequence,
// keys and values of all K heads. The order inside a block is the kernels' own business (kv_layout.h);
// nothing above ever looks inside, it only counts blocks. P is a multiple of 16 (of 32 for the fastest bf16
// kernels). Blocks need no initialization: what lies beyond a sequence's last token, NaN included, never
// reaches a result.
//
// Roofline: decode: bytes of keys and values of the context over memory bandwidth; prefill: 4*T*S*H*D
// operations. The sum over a query's context runs over fixed spans of positions in ascending order, whatever
// the chunking of the prompt or the number of workers. So decode equals prefill bit for bit within one ISA
// level.
#pragma once

#include "kernels/kernel.h"

namespace oar {

// The largest head with values of its own, and the widest key whose leading part they are (DeepSeek's latent
// of 512 beside a rotated part of 64): kernels keep rows of one in arrays of this size.
inline constexpr int32_t kMaxHeadDim = 512, kMaxLatentDim = 576;

struct KvShape {
  DType type;  // kF32, kF16 or kBF16
  // 0: values lie beside the keys, D wide. Else the first `latent` dims of a key are its value, a multiple of
  // 8 below D: nothing is kept for values, and D may be kMaxLatentDim. https://arxiv.org/abs/2405.04434
  uint16_t latent;
  int32_t page_tokens;  // P
  int32_t kv_heads;     // K
  int32_t head_dim;     // D, any multiple of 8 up to kMaxHeadDim

  constexpr OAR_HD KvShape(DType kept = DType::kBF16, int32_t P = 64, int32_t K = 0, int32_t D = 0,
                           int32_t leading = 0)
      : type(kept), latent(static_cast<uint16_t>(leading)), page_tokens(P), kv_heads(K), head_dim(D) {}
  constexpr OAR_HD int32_t value_dim() const { return latent > 0 ? latent : head_dim; }
};
// Bytes of one block (keys and values of all heads), a multiple of 64.
size_t kv_block_bytes(const KvShape& shape);

struct KvAppendArgs {
  uint32_t size = sizeof(KvAppendArgs);
  uint32_t version = 1;
  void* pool = nullptr;            // [num_blocks][kv_block_bytes], 64-byte aligned
  const float* k = nullptr;        // [T, K, D], row stride ldk
  const float* v = nullptr;        // [T, K, D], row stride ldv; not read where keys hold values
  const int32_t* slots = nullptr;  // [T] block * P + offset; negative: do not store
  int64_t T = 0, ldk = 0, ldv = 0;
  KvShape shape;
};

// Query t of sequence b sits at position context_len[b] - (seq_start[b+1] - seq_start[b]) + (t -
// seq_start[b]). It sees positions [max(0, pos - window + 1), pos]; keys of the chunk itself have been
// appended already. out = softmax(softcap(q . k * scale)) . v, softcap(s) = cap * tanh(s / cap) when cap > 0.
// A head's sink takes part in its softmax as one more logit, whose value is zero: out = sum of exp(s_i) v_i
// over (exp(sink) + sum of exp(s_i)). https://arxiv.org/abs/2508.10925 (gpt-oss)
// Query head h reads key/value head h / (H / K). Table entries of pages wholly outside every query's window
// are not looked at, so they may be stale. plan() needs sizes alone (T, B, H, max_blocks, window, shape), and
// its scratch never shrinks when T or B grows.
struct PagedAttentionArgs {
  uint32_t size = sizeof(PagedAttentionArgs);
  uint32_t version = 1;
  float* out = nullptr;                   // [T, H, value_dim()], row stride ldo
  const float* q = nullptr;               // [T, H, D], row stride ldq
  const void* pool = nullptr;             // as above
  const int32_t* block_tables = nullptr;  // [B, max_blocks]; entry j covers positions [j P, (j+1) P)
  const int32_t* seq_start = nullptr;     // [B + 1] first row of each sequence, ascending; 0 .. T
  const int32_t* context_len = nullptr;   // [B] tokens in the cache after this chunk
  int64_t T = 0, B = 0, H = 0, ldq = 0, ldo = 0;
  int64_t max_blocks = 0;  // columns of block_tables
  KvShape shape;
  float scale = 1.f;
  float softcap = 0.f;                 // 0: none
  int64_t window = 0;                  // 0: whole context
  const float* sink_logits = nullptr;  // [H] or null
  int32_t chunked = 0;                 // a query sees its own of the chunks of `window` positions alone
};

// The first position that a query at `position` sees.
inline OAR_HD int64_t first_seen(const PagedAttentionArgs& a, int64_t position) {
  if (a.window <= 0 || position < a.window) return 0;
  return a.chunked != 0 ? position - position % a.window : position + 1 - a.window;
}

// Attention within segments of packed rows, without a cache: a row sees every row of its segment, before and
// behind it, or with a window those whose positions are less than that away. out = softmax(q . k * scale) .
// v; query head h reads key/value head h / (H / K). Rows of a segment lie together, at ascending positions. A
// sum runs over the segment's rows in ascending order, in lanes counted from its first: what a segment gets
// does not depend on where it lies or on its company. Rows that a window hides may be read and must be
// finite.
//
// Roofline: 4*S*min(S, 2*window)*H*D operations a segment of S rows.
struct SegmentAttentionArgs {
  uint32_t size = sizeof(SegmentAttentionArgs);
  uint32_t version = 1;
  float* out = nullptr;               // [T, H, D], row stride ldo
  const float* q = nullptr;           // [T, H, D], row stride ldq
  const float* k = nullptr;           // [T, K, D], row stride ldk
  const float* v = nullptr;           // [T, K, D], row stride ldv
  const int32_t* segments = nullptr;  // [T] the segment of each row
  int64_t T = 0, H = 0, K = 0, D = 0, ldq = 0, ldk = 0, ldv = 0, ldo = 0;
  float scale = 1.f;
  const int32_t* positions = nullptr;  // [T], read with a window alone
  int64_t window = 0;                  // 0: the whole segment
};

// Attention of padded batches, without pages: out = softmax(cap(q . k * scale) + mask) . v for every entry of
// the batch and head, cap(s) = softcap * tanh(s / softcap). Query head h reads key/value head h / (H / K).
// Operands lie as their steps say, a row's numbers together; a step of 0 serves all. A sum runs over keys in
// ascending order: what a query gets depends on itself and the keys that it sees. What it does not see may be
// read and must be finite.
//
// Roofline: 2 * (D + DV) operations a query and key that it sees.
struct AttentionSteps {
  int64_t batch = 0, head = 0, row = 0;  // elements
};
struct DenseAttentionArgs {
  uint32_t size = sizeof(DenseAttentionArgs);
  uint32_t version = 1;
  float* out = nullptr;      // (B, H, S, DV)
  const float* q = nullptr;  // (B, H, S, D)
  const float* k = nullptr;  // (B, K, L, D)
  const float* v = nullptr;  // (B, K, L, DV)
  // (B, H, S, mask_columns) or null. Added, as f32; with mask_bool 1 byte each: 0 hides the key. Keys from
  // mask_columns on are hidden.
  const void* mask = nullptr;
  // (B) or null: so many keys are there; more than L are L. i32, or i64 with wide_lengths.
  const void* lengths = nullptr;
  AttentionSteps out_steps, q_steps, k_steps, v_steps, mask_steps;
  int64_t mask_column = 1;  // from one column of the mask to the next; 0: one serves all keys
  int64_t mask_columns = 0;
  int64_t B = 0, H = 0, K = 0, S = 0, L = 0, D = 0, DV = 0;
  // The position of the first query among the keys; with `last` queries are the last of their entry's length.
  int64_t offset = 0;
  int64_t left = -1, right = -1;  // keys farther than that before or behind a query are hidden; -1: none are
  float scale = 1.f;
  float softcap = 0.f;  // 0: none
  int32_t causal = 0;   // keys behind the query are hidden
  int32_t last = 0, mask_bool = 0, wide_lengths = 0;
  // A query that sees no key, or only keys whose mask is -infinity: NaN, else 0.
  int32_t blind_is_nan = 0;
};

// Keys [from, to) that query i of entry b may see; neither falls as i rises. Nothing allocates or throws.
struct KeyRange {
  int64_t from = 0, to = 0;
};
inline OAR_HD KeyRange seen_keys(const DenseAttentionArgs& a, int64_t b, int64_t i) {
  int64_t limit = a.L, length = a.L;
  if (a.lengths != nullptr) {
    length = a.wide_lengths ? static_cast<const int64_t*>(a.lengths)[b]
                            : static_cast<const int32_t*>(a.lengths)[b];
    constexpr int64_t kFar = int64_t{1} << 48;  // sums of it overflow nothing
    length = length < -kFar ? -kFar : length > kFar ? kFar : length;
    limit = length < 0 ? 0 : length < a.L ? length : a.L;
  }
  if (a.mask != nullptr && a.mask_columns < limit) limit = a.mask_columns;
  const int64_t at = i + (a.last ? length - a.S : a.offset);
  KeyRange r{0, limit};
  if (a.causal && at + 1 < r.to) r.to = at + 1;
  if (a.right >= 0 && at + a.right + 1 < r.to) r.to = at + a.right + 1;
  if (a.left >= 0 && at - a.left > 0) r.from = at - a.left;
  if (r.to < 0) r.to = 0;
  if (r.from > r.to) r.from = r.to;
  return r;
}

}  // namespace oar

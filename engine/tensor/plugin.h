/* oar_plugin.h: how a device comes to Oar. A plug-in is a shared library that exports one function,
 * oar_plugin_entry, which returns a table of 33 functions; 12 are required. There is no other door:
 * what the table says is all that Oar knows of a device.
 *
 * It is C11 (and C++) and needs nothing else. docs/plugins.md says how to write one; a complete one is
 * tests/plugin/loopback.cc.
 *
 * ABI rules
 *   - Structs only grow at their end. Each begins with its size as the side that made it was compiled; a
 * reader looks at no field beyond that. Oar takes functions beyond a table's size as NULL.
 *   - OAR_PLUGIN_MAJOR changes when something already here changes meaning; then plug-ins must be rebuilt,
 * and Oar refuses those of another major version. OAR_PLUGIN_MINOR counts what was appended.
 *   - An argument struct's `version` is raised when a field gets a new meaning. A kernel that meets a version
 * it does not know returns OAR_PLUGIN_UNSUPPORTED.
 *   - `bool`s are int32_t of 0 or 1, sizes are bytes unless a field says otherwise, strings are UTF-8 and end
 * in NUL. No function may throw, exit or call back into Oar, other than through oar_plugin_host.log.
 *
 * Threads
 *   Calls for one open device never overlap, but may come from different threads one after the other. Calls
 * for different devices, two openings of the same one included, may overlap; so may device_count,
 * device_info and device_usage.
 *
 * Order
 *   Copies and launches on a stream take effect in the order of the calls. The blocking copies of an opened
 *   device behave as if they were put on the given stream and waited for.
 *
 * Errors
 *   Any status but OAR_PLUGIN_OK from a call that works (and not: OUT_OF_MEMORY of an allocation, UNSUPPORTED
 * of find_kernel or kernel_scratch) means the device cannot be trusted any more. Oar then fails what is in
 * flight, calls only the functions that release, destroy and close, and never opens that device again in this
 * engine. */
#ifndef OAR_PLUGIN_H
#define OAR_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OAR_PLUGIN_MAJOR 2
#define OAR_PLUGIN_MINOR 10

typedef int32_t oar_plugin_status;
enum {
  OAR_PLUGIN_OK = 0,
  OAR_PLUGIN_OUT_OF_MEMORY = 1, /* of an allocation: nothing has changed, the device goes on */
  OAR_PLUGIN_UNSUPPORTED = 2,   /* of find_kernel: there is none; of kernel_scratch: none of these sizes */
  OAR_PLUGIN_INVALID = 3,       /* an argument that cannot be: a bug of the caller's */
  OAR_PLUGIN_DEVICE_ERROR = 4   /* the device failed, now or in work given to it earlier */
};

/* Made by the plug-in, opaque to Oar. */
typedef struct oar_plugin_device oar_plugin_device;   /* one opening of a device */
typedef struct oar_plugin_stream oar_plugin_stream;   /* a queue of work */
typedef struct oar_plugin_event oar_plugin_event;     /* a mark in a stream */
typedef struct oar_plugin_kernel oar_plugin_kernel;   /* a kernel, owned by the device that found it */
typedef struct oar_plugin_capture oar_plugin_capture; /* recorded work */

/* ---- kernels: families and their arguments ----------------------------------------------------------------
 *
 * Pointers in argument structs are device pointers (anywhere inside allocations of this device) unless a
 * field says "host". The structs themselves and their host arrays are valid during the call only. Tensors are
 * row-major; ld* are row strides in elements. Activations are f32, indices i32. Pointers to f32 and i32 are
 * 4-byte aligned; those to allocations are as allocate() returned them. Sizes have been checked: a kernel
 * answers for the device only. Any size may be 0; then nothing is to be done.
 *
 * Batch invariance: an output element must not depend on how many other rows or sequences there are; then
 * decoding equals prefill and a batch of N equals N alone. Oar does not check it, its users notice.
 *
 * Formats are named as in docs/formats.md ("f32", "bf16", "q4_k", ...). They describe the stored bytes of a
 * weight row by row, as they lie in a model file. */

enum {
  OAR_FAMILY_MATMUL = 0,                 /* format: of the weights             oar_matmul_args */
  OAR_FAMILY_GROUPED_MATMUL = 1,         /* format: of the weights             oar_grouped_matmul_args */
  OAR_FAMILY_MOE_ROUTE = 2,              /* format: "f32"                      oar_moe_route_args */
  OAR_FAMILY_MOE_COMBINE = 3,            /* format: "f32"                      oar_moe_combine_args */
  OAR_FAMILY_RMS_NORM = 4,               /* format: "f32"                      oar_rms_norm_args */
  OAR_FAMILY_LAYER_NORM = 5,             /* format: "f32"                      oar_layer_norm_args */
  OAR_FAMILY_ROPE = 6,                   /* format: "f32"                      oar_rope_args */
  OAR_FAMILY_KV_APPEND = 7,              /* format: of keys and values         oar_kv_append_args */
  OAR_FAMILY_PAGED_ATTENTION = 8,        /* format: of keys and values         oar_paged_attention_args */
  OAR_FAMILY_QUANT_KV_APPEND = 9,        /* format: "bf16", of open pages      oar_quant_kv_append_args */
  OAR_FAMILY_QUANT_PAGED_ATTENTION = 10, /* the same                    oar_quant_paged_attention_args */
  OAR_FAMILY_SWIGLU = 11,                /* format: "f32"                      oar_swiglu_args */
  OAR_FAMILY_UNARY = 12,                 /* format: "f32"                      oar_unary_args */
  OAR_FAMILY_BINARY = 13,                /* format: "f32"                      oar_binary_args */
  OAR_FAMILY_EMBEDDING = 14,             /* format: of the table               oar_embedding_args */
  OAR_FAMILY_GATHER_ROWS = 15,           /* format: "f32"                      oar_gather_rows_args */
  OAR_FAMILY_HADAMARD = 16,              /* format: "f32"                      oar_hadamard_args */
  /* of ordinary models */
  OAR_FAMILY_CONV = 17, /* format: "f32"                      oar_conv_args */
  /* the same with format "bf16", "f16" or "tf32", which operands are rounded to, since minor 8 */
  /* of 8-bit integers: format "i8", input "u8" (x of both signs), sum OAR_SUM_I32 */
  OAR_FAMILY_QUANTIZED_CONV = 19, /*                               oar_quantized_conv_args */
  /* the same with format "u8", since minor 8: zero points of a run    oar_integer_conv_args */
  OAR_FAMILY_DEPTHWISE = 21, /* format: "f32"                      oar_depthwise_args */
  OAR_FAMILY_POOL = 22,      /* format: "f32"                      oar_pool_args */
  OAR_FAMILY_SOFTMAX = 23,   /* format: "f32"                      oar_softmax_args */
  OAR_FAMILY_ACTIVATE = 24,  /* format: "f32"                      oar_activate_args */
  /* of language models again */
  OAR_FAMILY_GATED_MATMUL = 26, /* format: of the weights           oar_gated_matmul_args */
  /* of encoders */
  OAR_FAMILY_SEGMENT_ATTENTION = 27, /* format: "f32"              oar_segment_attention_args */
  /* of language models, since minor 5; format: of adapters, "f32" or "bf16" */
  OAR_FAMILY_LORA = 28, /*                                          oar_lora_args */
  /* of ordinary models again */
  OAR_FAMILY_DENSE_ATTENTION = 29, /* format: "f32"                 oar_dense_attention_args */
  OAR_FAMILY_RESIZE = 30,          /* format: "f32"                 oar_resize_args */
  /* of language models whose layers have a state; since minor 2 */
  OAR_FAMILY_CAUSAL_CONV = 31, /* format: "f32"                     oar_causal_conv_args */
  OAR_FAMILY_STATE_SCAN = 32,  /* format: "f32"                     oar_state_scan_args */
  /* of ordinary models, elements of any type; since minor 4 */
  OAR_FAMILY_STRIDED_COPY = 33, /* format: "f32"                    oar_strided_copy_args */
  /* drawing tokens, both or none; since minor 5 */
  OAR_FAMILY_SAMPLE = 34,      /* format: "f32"                      oar_sample_args */
  OAR_FAMILY_FEED_TOKENS = 35, /* format: "f32"                     oar_feed_tokens_args */
  /* of ordinary models again; since minor 6 */
  OAR_FAMILY_REDUCE = 41, /* format: "f32"                          oar_reduce_args */
  /* and since minor 7 */
  OAR_FAMILY_RECURRENT = 25, /* format: "f32"                       oar_recurrent_args */
  /* and since minor 8; format: of codes, "u8" (and i8), or "i32" to values alone */
  OAR_FAMILY_NARROW = 20 /*                                         oar_quantize_args */
  /* The numbers between are of families that run on the CPU for now: convolution by Winograd's transforms
   * and of bf16 to bf16, training. */
};

/* One weight of a linear layer: out[:, out_col .. out_col + n) = x . w^T + bias. */
typedef struct oar_matmul_segment {
  const void* w;     /* [n, K] in the format asked for, row by row or as packed: 256-byte aligned */
  const float* bias; /* [n] or NULL */
  int64_t n;
  int64_t out_col;
} oar_matmul_segment;

/* out[T, :] = x . concat(w)^T (+ bias) (+ residual) */
typedef struct oar_matmul_args {
  uint32_t size, version;
  float* out;                         /* [T, ldo] */
  const float* x;                     /* [T, ldx] */
  const float* residual;              /* [T, ldo] or NULL; may be out */
  const oar_matmul_segment* segments; /* host: [num_segments], of device pointers */
  int64_t num_segments;
  int64_t T, K, ldx, ldo;
  const void* internal; /* Oar's own, not to be read */
} oar_matmul_args;

/* The same of act(gate) * x instead of x, act as in oar_swiglu_args; num_segments is 1. */
typedef struct oar_gated_matmul_args {
  uint32_t size, version;
  oar_matmul_args matmul;
  const float* gate; /* [T, ld_gate] */
  int64_t ld_gate;
  const void* internal; /* Oar's own, not to be read */
  int32_t act;
} oar_gated_matmul_args;

/* out[p, :] = x[row(p), :] . w[e]^T (+ bias of e's segments) for pairs p in [expert_start[e], expert_start[e
 * + 1]); row(p) is pair_token[p], or p where pair_token is NULL. */
typedef struct oar_grouped_matmul_args {
  uint32_t size, version;
  float* out;                         /* [P, ldo] */
  const float* x;                     /* [.., ldx] */
  const int32_t* pair_token;          /* [P] or NULL */
  const int32_t* expert_start;        /* [experts + 1] */
  const oar_matmul_segment* segments; /* host: [experts * segments_per_expert] */
  int64_t segments_per_expert, experts;
  int64_t P, K, ldx, ldo;
  const void* internal; /* Oar's own, not to be read */
} oar_grouped_matmul_args;

/* softmax of logits[t, :]; the top_k largest (ties: lower index first), divided by their sum where
 * `normalize`; pairs (t, j) sorted by expert, stably by t. */
typedef struct oar_moe_route_args {
  uint32_t size, version;
  int32_t* pair_token;   /* [T * top_k] token of each sorted pair */
  int32_t* pair_slot;    /* [T, top_k] place of pair (t, j) in that order */
  float* pair_weight;    /* [T, top_k] */
  int32_t* expert_start; /* [experts + 1] */
  const float* logits;   /* [T, experts] */
  int64_t T, experts, top_k;
  int32_t normalize;
  int32_t score;              /* 0 softmax, 1 sigmoid, 2 sqrt(log(1 + exp)) */
  const float* bias;          /* [experts], added for choosing alone, or NULL */
  float scale;                /* of the weights, in the end */
  int32_t groups, top_groups; /* 0; else experts of the top_groups groups by the sum of their two best */
  const float* expert_scale;  /* [experts], on the weights as well, or NULL; given in version 2 */
  int32_t group_best;         /* 2; in version 3 groups may be chosen by their best expert alone: 1 */
} oar_moe_route_args;

/* out[t, :] = sum over j of pair_weight[t, j] * y[pair_slot[t, j], :], j ascending */
typedef struct oar_moe_combine_args {
  uint32_t size, version;
  float* out;               /* [T, E] */
  const float* y;           /* [T * top_k, E] */
  const int32_t* pair_slot; /* [T, top_k] */
  const float* pair_weight; /* [T, top_k] */
  int64_t T, top_k, E;
} oar_moe_combine_args;

/* h = x + residual (sum_out = h where given); out = h / sqrt(mean(h^2) + eps) * (w + w_offset) */
typedef struct oar_rms_norm_args {
  uint32_t size, version;
  float* out;            /* [rows, ldo] */
  float* sum_out;        /* [rows, cols] or NULL; may be residual */
  const float* x;        /* [rows, ldx] */
  const float* residual; /* [rows, cols] or NULL */
  const float* w;        /* [cols] */
  int64_t rows, cols, ldx, ldo;
  float eps, w_offset;
} oar_rms_norm_args;

/* h as above; out = (h - mean(h)) / sqrt(var(h) + eps) * w + b */
typedef struct oar_layer_norm_args {
  uint32_t size, version;
  float* out;
  float* sum_out;
  const float* x;
  const float* residual;
  const float* w; /* [cols] or NULL: 1 */
  const float* b; /* [cols] or NULL: 0 */
  int64_t rows, cols, ldx, ldo;
  float eps;
} oar_layer_norm_args;

/* Rotates pairs of dims by positions[t] * inv_freq[i], cos and sin times mscale; pairs are (i, i + rot_dim /
 * 2), or (2 i, 2 i + 1) where `interleaved`. Dims from rot_dim on pass. norm_w given: RMS norm over D first.
 */
typedef struct oar_rope_args {
  uint32_t size, version;
  float* out;               /* [T, heads, D], row stride ldo; may be x */
  const float* x;           /* [T, heads, D], row stride ldx */
  const int32_t* positions; /* [T] */
  const float* inv_freq;    /* [rot_dim / 2] */
  const float* norm_w;      /* [D] or NULL */
  int64_t T, heads, D, rot_dim, ldx, ldo;
  float norm_eps, mscale;
  int32_t interleaved;
  /* Elements from one head to the next, at least D; 0: D. Other than 0 in version 2 alone, of a kernel that
   * was asked for with OAR_LAYOUT_HEADS_APART. */
  int64_t x_step, out_step;
} oar_rope_args;

/* A paged cache of keys and values: [blocks][block bytes]. A block holds P tokens of K heads, keys and
 * values, and is (2 * P * K * D elements) large; how they lie inside is the plug-in's own affair, Oar only
 * copies whole blocks. Blocks need no initialization and may hold anything before they are written, NaN
 * included.
 *
 * Where a kernel was asked for with OAR_LAYOUT_KEYS_HOLD_VALUES, the first `latent` dims of a key are its
 * value: a block is half as large, v is not read, and a row of out has H times `latent` numbers. */
typedef struct oar_kv_shape {
  uint8_t type;        /* Oar's own; the format asked for says it */
  uint16_t latent;     /* 0, or with OAR_LAYOUT_KEYS_HOLD_VALUES the width of values */
  int32_t page_tokens; /* P, a multiple of 16 */
  int32_t kv_heads;    /* K */
  int32_t head_dim;    /* D, a multiple of 8 up to 512; where keys hold values up to 576 */
} oar_kv_shape;

typedef struct oar_kv_append_args {
  uint32_t size, version;
  void* pool;
  const float* k;       /* [T, K, D], row stride ldk */
  const float* v;       /* [T, K, D], row stride ldv */
  const int32_t* slots; /* [T] block * P + offset; negative: do not store */
  int64_t T, ldk, ldv;
  oar_kv_shape shape;
} oar_kv_append_args;

/* Query t of sequence b sits at pos = context_len[b] - (seq_start[b + 1] - seq_start[b]) + (t - seq_start[b])
 * and sees positions [max(0, pos - window + 1), pos]. out = softmax(cap(q . k * scale)) . v, with cap(s) =
 * softcap * tanh(s / softcap) where softcap > 0. Query head h reads key head h / (H / K). Entries of the
 * table beyond context and window may be stale. */
typedef struct oar_paged_attention_args {
  uint32_t size, version;
  float* out;     /* [T, H, D], row stride ldo */
  const float* q; /* [T, H, D], row stride ldq */
  const void* pool;
  const int32_t* block_tables; /* [B, max_blocks]; entry j: positions [j P, (j + 1) P) */
  const int32_t* seq_start;    /* [B + 1] ascending, from 0 to T */
  const int32_t* context_len;  /* [B] tokens in the cache, this chunk's included */
  int64_t T, B, H, ldq, ldo, max_blocks;
  oar_kv_shape shape;
  float scale, softcap;
  int64_t window; /* 0: the whole context */
  /* [H] or NULL: one more logit of each head's softmax, whose value is zero */
  const float* sink_logits;
  int32_t chunked; /* a query sees [pos - pos % window, pos] */
} oar_paged_attention_args;

/* out = softmax(q . k * scale) . v, row t over all rows of its segment, which lie together, or with a window
 * those whose positions, which ascend, are less than that away. Query head h reads key head h / (H / K). */
typedef struct oar_segment_attention_args {
  uint32_t size, version;
  float* out;              /* [T, H, D], row stride ldo */
  const float* q;          /* [T, H, D], row stride ldq */
  const float* k;          /* [T, K, D], row stride ldk */
  const float* v;          /* [T, K, D], row stride ldv */
  const int32_t* segments; /* [T] */
  int64_t T, H, K, D, ldq, ldk, ldv, ldo;
  float scale;
  const int32_t* positions; /* [T], with a window alone */
  int64_t window;           /* 0: the whole segment */
} oar_segment_attention_args;

/* Elements from one entry of the batch, head and row to the next; 0 serves all. */
typedef struct oar_attention_steps {
  int64_t batch, head, row;
} oar_attention_steps;

/* out = softmax(cap(q . k * scale) + mask) . v over the keys that a query sees, cap(s) = softcap * tanh(s /
 * softcap) where softcap > 0. Query head h reads key head h / (H / K); a row's numbers lie together. Query i
 * of entry b is at position p = offset + i, or with `last` at lengths[b] - S + i. It sees the keys before
 * lengths[b] and mask_columns, from p - left on where left >= 0, up to p with `causal`, up to p + right where
 * right >= 0. */
typedef struct oar_dense_attention_args {
  uint32_t size, version;
  float* out;          /* (B, H, S, DV) */
  const float* q;      /* (B, H, S, D) */
  const float* k;      /* (B, K, L, D) */
  const float* v;      /* (B, K, L, DV) */
  const void* mask;    /* (B, H, S, mask_columns) or NULL: floats to add; with mask_bool bytes, 0 hides */
  const void* lengths; /* (B) or NULL: int32_t, or int64_t with wide_lengths */
  oar_attention_steps out_steps, q_steps, k_steps, v_steps, mask_steps;
  int64_t mask_column; /* elements from one column of the mask to the next: 1, or 0: one serves all keys */
  int64_t mask_columns;
  int64_t B, H, K, S, L, D, DV;
  int64_t offset, left, right;
  float scale, softcap;
  int32_t causal, last, mask_bool, wide_lengths;
  int32_t blind_is_nan; /* what a query without any key gets: NaN, else 0 */
} oar_dense_attention_args;

/* A cache whose pages are quantized once full. Three pools per layer: `pool` of quantized pages, of P tokens
 * and as large as Oar's own layout of these codes; `open` of bf16 pages, one or two per sequence; `sinks` of
 * bf16 pages of 16 tokens, one per sequence. A query at position p sees the token at position t in bf16 if
 * t < 16 or t lies in p's own page, and quantized otherwise, also when both came in one chunk. */
typedef struct oar_quant_kv_shape {
  uint8_t keys, values; /* Oar's own; the query says them */
  uint16_t latent;      /* as in oar_kv_shape; a page then has codes and scales of keys alone */
  int32_t page_tokens, kv_heads, head_dim;
} oar_quant_kv_shape;

typedef struct oar_quant_kv_append_args {
  uint32_t size, version;
  void *pool, *open, *sinks;
  const float* k; /* [T, K, D], row stride ldk */
  const float* v; /* [T, K, D], row stride ldv */
  /* [T] each, block * P + offset; negative: do not store. Every row is stored in `open`; the one that is a
   * page's last quantizes that page into `pool`; of `sinks`, offsets beyond 16 are ignored. */
  const int32_t *slots, *open_slots, *sink_slots;
  int64_t T, ldk, ldv;
  oar_quant_kv_shape shape;
} oar_quant_kv_append_args;

typedef struct oar_quant_paged_attention_args {
  uint32_t size, version;
  oar_paged_attention_args common; /* pool and tables of quantized pages; shape: of open ones */
  const void *open, *sinks;
  const int32_t* open_tables; /* [B, open_max_blocks]; entries of pages that hold a query */
  const int32_t* sink_tables; /* [B, sink_max_blocks]; entry 0 */
  int64_t open_max_blocks, sink_max_blocks;
  oar_quant_kv_shape shape;
} oar_quant_paged_attention_args;

/* Low-rank adapters in slots of one size: y[t] += B[s] (A[s] x[t]) for every row t with a slot s = index[t]
 * >= 0, over the first ranks[s] rows of A and B. What others have in y stays as it is. Since minor 5. */
typedef struct oar_lora_args {
  uint32_t size, version;
  float* y;             /* [T, n], row stride ldy */
  const float* x;       /* [T, K], row stride ldx */
  const int32_t* index; /* [T]; -1: none */
  const int32_t* ranks; /* [slots], 0 to R */
  const void* a;        /* [slots, R, K] in the format asked for */
  const void* b;        /* [slots, R, n] in the same */
  int64_t T, K, n, R, ldx, ldy;
  const void* internal; /* Oar's own, not to be read */
} oar_lora_args;

/* out[t, f] = act(gate) * up; act is OAR_UNARY_SILU or OAR_UNARY_GELU_TANH. With OAR_UNARY_SILU it is
 * g / (1 + exp(-alpha g)) * (u + up_offset), where limit > 0 of g = min(gate, limit) and u = up within
 * [-limit, limit]. */
typedef struct oar_swiglu_args {
  uint32_t size, version;
  float* out;        /* [T, F], row stride ldo */
  const float* gate; /* row stride ldg */
  const float* up;   /* row stride ldu */
  int64_t T, F, ldo, ldg, ldu;
  int32_t act;
  float alpha, limit, up_offset; /* 1, 0 and 0: plain */
} oar_swiglu_args;

enum {
  OAR_UNARY_NEG = 0,
  OAR_UNARY_ABS,
  OAR_UNARY_EXP,
  OAR_UNARY_LOG,
  OAR_UNARY_SQRT,
  OAR_UNARY_RSQRT,
  OAR_UNARY_SQUARE,
  OAR_UNARY_RECIPROCAL,
  OAR_UNARY_TANH,
  OAR_UNARY_SIGMOID,
  OAR_UNARY_SILU,
  OAR_UNARY_RELU,
  OAR_UNARY_ERF,
  OAR_UNARY_GELU_ERF,
  OAR_UNARY_GELU_TANH,
  OAR_UNARY_SIN,
  OAR_UNARY_COS,
  OAR_UNARY_FLOOR
};
typedef struct oar_unary_args {
  uint32_t size, version;
  float* out; /* [n]; may be x */
  const float* x;
  int64_t n;
  int32_t op; /* OAR_UNARY_*; a kernel serves them all */
} oar_unary_args;

enum {
  OAR_BINARY_ADD = 0,
  OAR_BINARY_SUB,
  OAR_BINARY_MUL,
  OAR_BINARY_DIV,
  OAR_BINARY_MAX,
  OAR_BINARY_MIN,
  OAR_BINARY_POW
};
/* out[i, j] = a[i, j] op b[i * b_row, j * b_col] */
typedef struct oar_binary_args {
  uint32_t size, version;
  float* out; /* [rows, cols]; may be a or, where of its size, b */
  const float* a;
  const float* b; /* [rows or 1, cols or 1] */
  int64_t rows, cols;
  int32_t b_row, b_col; /* 0 or 1 */
  int32_t op;           /* OAR_BINARY_*; a kernel serves them all */
} oar_binary_args;

/* out[t, :] = table[ids[t], :] * scale, decoded */
typedef struct oar_embedding_args {
  uint32_t size, version;
  float* out;         /* [T, E] */
  const void* table;  /* [V, E] row by row in the format asked for */
  const int32_t* ids; /* [T], each in [0, V) */
  int64_t T, E, V;
  const void* internal; /* Oar's own, not to be read */
  float scale;
} oar_embedding_args;

/* out[r, :] = x[rows[r], :] */
typedef struct oar_gather_rows_args {
  uint32_t size, version;
  float* out;          /* [R, E] */
  const float* x;      /* [.., E] */
  const int32_t* rows; /* [R] */
  int64_t R, E;
} oar_gather_rows_args;

/* Every run of `block` elements times one orthonormal matrix: H (signs * x) / sqrt(block), or its inverse
 * signs * (H^T x) / sqrt(block). H is the Kronecker product of Sylvester's matrix of order `power`
 * (outermost) and the dense cores, innermost first; for the inverse the cores come transposed. */
typedef struct oar_hadamard_args {
  uint32_t size, version;
  float* out;            /* [rows, n], row stride ldo; may be x */
  const float* x;        /* row stride ldx */
  const float* signs;    /* [n] of +-1 or other factors, or NULL */
  const float* cores[4]; /* [core_order, core_order] of +-1 each */
  int64_t core_order[4];
  int32_t num_cores, inverse;
  int64_t rows, n, ldx, ldo, block, power;
} oar_hadamard_args;

/* What follows a sum, after its bias and residual: the activation of x with alpha and beta. */
enum {
  OAR_EPILOGUE_NONE = 0,
  OAR_EPILOGUE_CLAMP,        /* min(max(x, alpha), beta): relu is [0, infinity] */
  OAR_EPILOGUE_SIGMOID,      /* 1 / (1 + exp(-x)) */
  OAR_EPILOGUE_SILU,         /* x sigmoid(x) */
  OAR_EPILOGUE_HARD_SIGMOID, /* clamp(alpha x + beta, 0, 1) */
  OAR_EPILOGUE_HARD_SWISH,   /* x clamp(alpha x + beta, 0, 1) */
  OAR_EPILOGUE_LEAKY_RELU,   /* x < 0 ? alpha x : x */
  OAR_EPILOGUE_TANH,
  OAR_EPILOGUE_GELU,     /* x/2 (1 + erf(x / sqrt 2)) */
  OAR_EPILOGUE_GELU_TANH /* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
};

/* Images of N, H, W pixels, windows of KH x KW taps, OH x OW results; tap (i, j) of result (y, x) is pixel
 * (y stride_h - pad_top + i dilation_h, x stride_w - pad_left + j dilation_w), outside of the image: 0 (of
 * a maximum: left out). */
typedef struct oar_window {
  int64_t N, H, W, OH, OW;
  int64_t KH, KW, stride_h, stride_w, dilation_h, dilation_w;
  int64_t pad_top, pad_left, pad_bottom, pad_right;
} oar_window;

/* out = epilogue(conv(x, w) + bias + residual). A matrix product is the case N = H = KH = KW = OH = 1: W rows
 * of C columns, w of M rows. */
typedef struct oar_conv_args {
  uint32_t size, version;
  float* out;     /* (N, OH, OW) pixels, ldo apart, of M channels */
  const float* x; /* (N, H, W) pixels, ldx apart, of C channels; planar: (N, C, H, W) */
  /* (M, KH, KW, C / groups), 256-byte aligned. Where operands are rounded, numbers of the format, "tf32" as
   * f32 with 13 zero bits: a filter's KH KW C, then zeros up to a multiple of 64 bytes. */
  const float* w;
  const float* bias;     /* [M] or NULL */
  const float* residual; /* as out, or NULL; may be out */
  oar_window window;
  int64_t C, M, groups;
  int64_t ldx, ldo;
  int64_t out_row; /* elements from one row of results to the next; 0: OW * ldo */
  int64_t panel;   /* 1 */
  int32_t planar;
  int32_t epilogue; /* OAR_EPILOGUE_* */
  float alpha, beta;
} oar_conv_args;

/* Convolutions and products of 8-bit integers, exact in i32 and rounded once:
 *   s = bias[m] + sum over the window of (x - x_zero) w[m]           (i32, wrapping; padding stands for
 * x_zero) t = clamp(float(s) scale[m] + shift[m] + residual, low, high)    (f32, each step rounded) out =
 * epilogue(t) (OAR_OUT_F32), or round half to even (t) + y_zero (U8, I8), or s (I32) Bytes behind an epilogue
 * other than NONE and CLAMP: t is not bounded, and out = round half to even (clamp(epilogue(t) y_inverse,
 * low, high)) + y_zero With sum.other, another tensor of bytes as out, r being the bytes above: out = round
 * half to even (clamp(((r - y_zero) sum.scale + (other - sum.other_zero) sum.other_scale) / sum.sum_scale,
 * sum.low, sum.high)) + sum.zero Filters: panels of 16 channels, (M / 16 rounded up, Kp / 4, 16, 4) bytes
 * with k = (tap, channel) and Kp = KH KW C rounded up to 64, padded with zeros; depthwise (KH, KW, C), one
 * filter a channel. */
enum { OAR_OUT_F32 = 0, OAR_OUT_U8, OAR_OUT_I8, OAR_OUT_I32 };
typedef struct oar_quantized_sum {
  const uint8_t* other; /* as out, or NULL: no sum; may be out */
  uint8_t other_signed;
  float scale, other_scale, other_zero, sum_scale;
  float low, high;
  int32_t zero;
} oar_quantized_sum;
typedef struct oar_quantized_conv_args {
  uint32_t size, version;
  void* out;             /* (N, OH, OW, M) */
  const uint8_t* x;      /* (N, H, W, C), of i8 when x_signed */
  const int8_t* w;       /* 64-byte aligned */
  const int32_t* w_sums; /* [M]: of each filter's weights; depthwise: NULL */
  const int32_t* bias;   /* [M] or NULL */
  const float* scale;    /* [M] */
  const float* shift;    /* [M] or NULL */
  oar_window window;
  int64_t C, M;
  int32_t x_zero, y_zero;
  uint8_t x_signed, depthwise;
  int32_t out_type; /* OAR_OUT_* */
  float low, high;
  oar_quantized_sum sum;  /* U8 and I8 only */
  const float* x_scale;   /* NULL: of the processor's own layers */
  const int32_t* x_zeros; /* the same */
  const float* residual;  /* as out, or NULL; may be out; F32 only */
  int32_t epilogue;       /* OAR_EPILOGUE_* */
  float alpha, beta;
  float y_inverse;
} oar_quantized_conv_args;

/* Convolutions and products of 8-bit integers whose zero points come with a run:
 *   out = sum over the window of (x - x_zero) (w[m] - w_zeros[m])    (i32, wrapping; padding stands for
 * x_zero) Filters are packed as those above. A product of rows is the case H = W = OH = OW = 1, of N rows.
 * Since minor 8. */
typedef struct oar_integer_conv_args {
  uint32_t size, version;
  int32_t* out;           /* (N, M, OH, OW) */
  const uint8_t* x;       /* (N, C, H, W), of i8 when x_signed */
  const int8_t* w;        /* 64-byte aligned */
  const int32_t* w_sums;  /* [M]: of each filter's weights */
  const int32_t* w_zeros; /* [M] or NULL: 0 */
  const uint8_t* x_zero;  /* one byte as those of x, or NULL: 0 */
  oar_window window;
  int64_t C, M;
  uint8_t x_signed;
} oar_integer_conv_args;

/* Linear quantization of f32, each step rounded:
 *   to codes:  code = clamp(round half to even (value / scale) + zero, least, least + 255), of a NaN 0
 *   to values: value = float(code - zero) scale
 * with least = -128 of i8, else 0. Element i has scale i / inner % count. With own_scale both are made of the
 * values, 0 among them, and written: scale = (high - low) / 255 and, where that is above 0, zero =
 * clamp(round half to even (-low / scale), 0, 255); else all codes are 0. A NaN is neither low nor high.
 * Codes of i32 become values alone, with neither scale nor zero. Since minor 8. */
typedef struct oar_quantize_args {
  uint32_t size, version;
  float* values; /* [n] */
  void* codes;   /* [n] */
  int64_t n;
  const float* scale;  /* [count] or NULL: 1 */
  const uint8_t* zero; /* [count], bytes as the codes, or NULL: 0 */
  int64_t count, inner;
  uint8_t to_values, is_signed;
  float* own_scale;  /* NULL: scale and zero are given; else one */
  uint8_t* own_zero; /* with own_scale */
} oar_quantize_args;

/* The steps of recurrent layers, whose products with the inputs are there already, biases and all:
 *   RNN:  h = tanh(x0 + R0 h)
 *   GRU:  z = sigmoid(x0 + R0 h); r = sigmoid(x1 + R1 h); h = (1 - z) tanh(x2 + n) + z h, where n is R2 (r
 * h), or r (R2 h + r_bias) where the reset gate scales the product LSTM: c = sigmoid(x2 + R2 h) c +
 * sigmoid(x0 + R0 h) tanh(x3 + R3 h); h = sigmoid(x1 + R1 h) tanh(c) D directions of B entries with T steps
 * and states of H; G is 1, 3 or 4. Since minor 7. */
enum { OAR_CELL_RNN = 0, OAR_CELL_GRU = 1, OAR_CELL_LSTM = 2 };
typedef struct oar_recurrent_args {
  uint32_t size, version;
  uint8_t cell;                /* OAR_CELL_* */
  uint8_t reverse;             /* direction 0 goes from the last step to the first; direction 1 always does */
  uint8_t linear_before_reset; /* of a GRU: the reset gate scales the candidate's product, not the state */
  int64_t T, B, D, H;
  const float* gates; /* [D][G][H] for step t of entry b at gates + t * gates_t + b * gates_b */
  int64_t gates_t, gates_b;
  const float* r;      /* [D][H][G][H]: what each number of the state adds to all gates */
  const float* r_bias; /* [D][H] or NULL */
  /* Since version 3: [B] steps of each entry, of int32_t, or int64_t with wide_lengths; NULL: T. Lengths that
   * the device has computed nobody has looked at: an entry whose is not within [0, T] becomes NaN. */
  const void* lengths;
  uint8_t wide_lengths;
  const float *h0, *c0; /* [H] for direction d of entry b at d * state_d + b * state_b; NULL: zero */
  float *h, *c;         /* after the last step, or NULL: not wanted */
  int64_t state_d, state_b;
  float* y; /* [H] for each step at y + t * y_t + b * y_b + d * y_d; 0 in steps beyond an entry's length */
  int64_t y_t, y_b, y_d;
} oar_recurrent_args;

/* Each channel with one filter of its own. */
typedef struct oar_depthwise_args {
  uint32_t size, version;
  float* out;            /* (N, OH, OW, C) */
  const float* x;        /* (N, H, W, C) */
  const float* w;        /* (KH, KW, C) */
  const float* bias;     /* [C] or NULL */
  const float* residual; /* as out, or NULL; may be out */
  oar_window window;
  int64_t C;
  int32_t epilogue; /* OAR_EPILOGUE_* */
  float alpha, beta;
} oar_depthwise_args;

enum { OAR_POOL_MAX = 0, OAR_POOL_AVERAGE };
typedef struct oar_pool_args {
  uint32_t size, version;
  float* out;     /* (N, OH, OW, C) */
  const float* x; /* (N, H, W, C) */
  oar_window window;
  int64_t C;
  int32_t op; /* OAR_POOL_* */
  int32_t
      count_pads; /* average: over the elements of the window inside the padded operand, not the operand */
  int32_t planar; /* 0: Oar's own processor alone is asked for planes. Since minor 10 */
} oar_pool_args;

/* out[r, :] = softmax(x[r, :] * scale + mask[r, :]) */
typedef struct oar_softmax_args {
  uint32_t size, version;
  float* out;        /* [rows, n]; may be x */
  const float* x;    /* [rows, n] */
  const float* mask; /* rows of n, mask_row apart (0: one row for all), or NULL */
  int64_t rows, n, mask_row;
  float scale;
} oar_softmax_args;

/* Interpolation, rows first and then columns of what the rows gave, sums in f32 in the order of the taps.
 * Output entry k of an axis is the sum of weight[t] times entry at[t], t in [first[k], first[k + 1]); one tap
 * of weight 1 is a copy to the bit, no tap is 0. Without `first` the axis stays as it is. */
typedef struct oar_resize_axis {
  const int32_t* first; /* [out + 1], or NULL */
  const int32_t* at;
  const float* weight;
  int64_t in, out;
} oar_resize_axis;
typedef struct oar_resize_args {
  uint32_t size, version;
  float* out;     /* (outer, rows.out, cols.out, inner) */
  const float* x; /* (outer, rows.in, cols.in, inner) */
  oar_resize_axis rows, cols;
  int64_t outer, inner;
} oar_resize_args;

/* out[sum i[k] out_steps[k]] = x[sum i[k] x_steps[k]] for 0 <= i[k] < dims[k]: bytes are copied. */
typedef struct oar_strided_copy_args {
  uint32_t size, version;
  void* out;            /* element 0 of the box */
  const void* x;        /* the same, or NULL: zeros are written */
  int64_t dims[8];      /* outermost first, `rank` of them */
  int64_t x_steps[8];   /* elements between neighbours; 0 repeats, negative ones go backwards */
  int64_t out_steps[8]; /* no element is written twice */
  int32_t rank;
  int32_t element; /* bytes: 1, 2, 4 or 8; pointers are aligned to it */
} oar_strided_copy_args;

enum {
  OAR_REDUCE_SUM = 0,
  OAR_REDUCE_MEAN = 1,
  OAR_REDUCE_SUM_OF_SQUARES = 2,
  OAR_REDUCE_MAX = 3,
  OAR_REDUCE_MIN = 4
};
/* out[o, i] = op over k of x[o, k, i]. A NaN among the entries is the result. Of no entries a sum is 0, a
 * mean NaN, the largest -infinity, the smallest infinity. Since minor 6. */
typedef struct oar_reduce_args {
  uint32_t size, version;
  float* out;     /* (outer, inner) */
  const float* x; /* (outer, n, inner) */
  int64_t outer, n, inner;
  int32_t op; /* OAR_REDUCE_* */
} oar_reduce_args;

/* The state of sequences in a step. Positions of a sequence fall into chunks of P = page_tokens. Kept are the
 * border, what the layer knows behind the last full chunk (behind nothing it is zero), and a row for each
 * position of the chunk behind it. Row t of sequence b is at position context_len[b] - (seq_start[b + 1] -
 * seq_start[b]) + (t - seq_start[b]). Its row is written where row_slots[t] >= 0, and where a chunk fills the
 * border to the block that border_tables names for it. Blocks need no initialization; how they lie inside is
 * the plug-in's own affair. A result must not depend on how a prompt was cut into steps. */
typedef struct oar_state_args {
  float* borders;               /* [blocks][border_floats] */
  float* rows;                  /* [blocks][P][row_floats] */
  const int32_t* border_tables; /* [B, max_borders]; entry j: the state behind chunk j; -1: not kept */
  const int32_t* row_tables;    /* [B, max_row_blocks]; entry j: rows of chunk j, where it is open */
  const int32_t* row_slots;     /* [T] block * P + row; -1: do not store */
  const int32_t* seq_start;     /* [B + 1] ascending, from 0 to T */
  const int32_t* context_len;   /* [B] tokens of the sequence, this step's included */
  int64_t T, B, max_borders, max_row_blocks;
  int64_t border_floats, row_floats;
  int32_t page_tokens;
} oar_state_args;

/* out[t, c] = bias[c] + sum over i of w[i, c] x[t - (L - 1) + i, c]; rows in front of the sequence are 0. A
 * border has room for L - 1 rows of C, a row for C. */
typedef struct oar_causal_conv_args {
  uint32_t size, version;
  float* out;        /* [T, ldo] */
  const float* x;    /* [T, ldx] */
  const float* w;    /* [L, C] */
  const float* bias; /* [C] or NULL */
  int64_t T, C, L, ldx, ldo;
  oar_state_args state; /* L - 1 <= page_tokens */
} oar_causal_conv_args;

/* Head h has a matrix S [Dk, Dv] and at every position S = e^g S; u = beta (v - S^T k), or without `delta`
 * beta v; S = S + k u^T; out = S^T q. It reads key head h / (Hv / Hk). A border has room for Hv Dk Dv floats,
 * a row for Hk Dk + Hv (Dv + 1). Without state.borders rows of one segment lie together and each segment
 * begins with S = 0; then no other field of `state` but page_tokens is given. */
typedef struct oar_state_scan_args {
  uint32_t size, version;
  float* out;        /* [T, Hv, Dv], row stride ldo */
  const float* q;    /* [T, Hk, Dk], row stride ldq */
  const float* k;    /* [T, Hk, Dk], row stride ldk */
  const float* v;    /* [T, Hv, Dv], row stride ldv */
  const float* g;    /* [T, Hv], row stride ldg; at most 0 */
  const float* beta; /* [T, Hv], row stride ldb */
  int64_t T, ldq, ldk, ldv, ldg, ldb, ldo;
  oar_state_args state;
  const int32_t* segments; /* [T], without state.borders alone */
  struct {
    int32_t key_heads, heads, key_dim, value_dim; /* Hk, Hv (a multiple of it), Dk, Dv */
  } shape;
  int32_t delta;
} oar_state_scan_args;

/* Drawing tokens. A token's weight is a whole number, so that sums are the same in any order and a device
 * draws what the processor draws: 2^-z in units of 2^-bits, rounded to nearest, where z is the distance of
 * its logit to the largest, times `inverse`, all in f64, and bits = 63 - (bits of V - 1). How 2^-z is
 * computed to the bit says weight_of() in kernels/sample.h of the sources. */
typedef struct oar_sample_row {
  int32_t logit_row;
  int32_t token;    /* >= 0: nothing is drawn; what logprobs asks for is told, of this token too */
  int32_t logprobs; /* the row's sum and so many most likely tokens, of logits as they came; -1: none of it */
  int32_t greedy;   /* the largest logit, ties to the lower token */
  int32_t top_k;    /* keep the k largest and all that equal the k-th; 0: all */
  int32_t has_top_p;
  /* Lists in `words`, where they begin and how many entries they have. In this order: biases, pairs of a
   * token and the bits of a float to add; seen, pairs of a distinct token and how often it was put out: l > 0
   * ? l / repetition : l * repetition, and where it was put out l -= presence + frequency * count; tokens
   * that are banned; a mask, bit t % 32 of word t / 32 allows token t (-1: none). What became more than the
   * largest finite number is that number, where every logit was finite or -inf. */
  int32_t bias_at, bias_count;
  int32_t seen_at, seen_count;
  int32_t banned_at, banned_count;
  int32_t mask_at;
  float repetition, presence, frequency;
  double inverse; /* log2(e) / temperature */
  double span;    /* logits of less than f32(f64(largest) - span) are not kept */
  uint64_t top_p; /* then: keep the smallest set, largest first, ties by token, of this share of 2^64 */
  uint64_t min_p; /* then: keep weights of at least this */
  uint64_t draw;  /* the token at which the sum, in order of tokens, is more than this share of the whole */
} oar_sample_row;
enum { OAR_SAMPLE_DRAWN = 0, OAR_SAMPLE_BAD_LOGITS, OAR_SAMPLE_NOTHING_LEFT, OAR_SAMPLE_NO_LOGITS };
typedef struct oar_sample_draw {
  int32_t token;  /* 0 where nothing was drawn */
  int32_t status; /* drawn; a NaN or +inf; nothing left of a row that has logits; every logit is -inf */
  /* where logprobs >= 0: */
  float logit;   /* of the token, as it came */
  float largest; /* of the row; NaN where one is NaN or +inf */
  uint64_t sum;  /* of weights with inverse = log2(e) */
} oar_sample_draw;
typedef struct oar_sample_top {
  int32_t token;
  float logit;
} oar_sample_top;
typedef struct oar_sample_args {
  uint32_t size, version;
  oar_sample_draw* draws;     /* [num_rows] */
  oar_sample_top* tops;       /* [num_rows, max_logprobs], descending, ties by token */
  const float* logits;        /* [.., V] */
  const oar_sample_row* rows; /* [num_rows], device memory as all of these */
  const int32_t* words;
  int64_t num_rows, V, max_logprobs;
} oar_sample_args;
/* tokens[t] = tokens[t] < 0 ? draws[~tokens[t]].token : tokens[t] */
typedef struct oar_feed_tokens_args {
  uint32_t size, version;
  int32_t* tokens; /* [T] */
  const oar_sample_draw* draws;
  int64_t T;
} oar_feed_tokens_args;

/* out = epilogue(x) */
typedef struct oar_activate_args {
  uint32_t size, version;
  float* out; /* [n]; may be x */
  const float* x;
  int64_t n;
  int32_t epilogue; /* OAR_EPILOGUE_* */
  float alpha, beta;
} oar_activate_args;

/* ---- the table --------------------------------------------------------------------------------------------
 */

typedef struct oar_plugin_device_info {
  uint32_t size;         /* set by Oar; the plug-in fills no field beyond */
  char name[128];        /* for people: "NVIDIA H100 80GB HBM3" */
  uint64_t memory_bytes; /* of the whole device; 0: unknown */
} oar_plugin_device_info;

typedef struct oar_plugin_memory {
  uint32_t size;        /* set by Oar */
  uint64_t total_bytes; /* of the device */
  uint64_t free_bytes;  /* that allocate() could still give */
} oar_plugin_memory;

/* What a device does and draws at this moment. Since minor 7. */
typedef struct oar_plugin_usage {
  uint32_t size; /* set by Oar, as every number is to NaN; the plug-in fills what it knows, none beyond */
  char uuid[64]; /* the same in every process: "GPU-5a3b..."; empty: unknown */
  double memory_total_bytes, memory_used_bytes;
  double utilization; /* share of the last moments in which it computed, 1 is all */
  double power_watts, power_limit_watts;
  double energy_joules; /* since some moment in the past */
  double clock_hertz, memory_clock_hertz;
  double temperature_celsius;
} oar_plugin_usage;

/* What a launch takes, as far as sizes tell; nothing of it is measured. Since minor 3. */
typedef struct oar_plugin_cost {
  uint32_t size;            /* set by Oar; the plug-in fills no field beyond */
  double bytes;             /* of memory that it must read and write, each once */
  double matrix_operations; /* multiplications and additions by matrix units, those of padding too */
  double operations;        /* the same by all other units */
  double seconds;           /* that the plug-in computes of these for its device */
  /* Launches that the call adds to those before it, as calls of one step come one after the other: 0 where it
   * becomes part of one of these, less where these become one by it. Set to 1 by Oar. Since minor 10. */
  int64_t launches;
} oar_plugin_cost;

/* What a kernel is asked for. A plug-in answers UNSUPPORTED to any value that it does not know. */
enum {
  OAR_LAYOUT_FAMILY = 0,
  OAR_LAYOUT_CHANNELS_FIRST = 1,   /* of images */
  OAR_LAYOUT_KEYS_HOLD_VALUES = 2, /* of caches, for their four families (oar_kv_shape); since minor 5 */
  OAR_LAYOUT_HEADS_APART = 3 /* of rotated heads, which may lie among columns of wider ones; since minor 10 */
};
enum { OAR_ROWS_ANY = 0, OAR_ROWS_PROMPT = 1, OAR_ROWS_GENERATED = 2 };
enum { OAR_SUM_F32 = 0, OAR_SUM_I32 = 1 };
typedef struct oar_plugin_query {
  uint32_t size;
  int32_t family;     /* OAR_FAMILY_* */
  const char* format; /* of the operand that the family's line names */
  const char* input;  /* of activations: "f32" */
  int32_t layout;     /* OAR_LAYOUT_*: of images, caches or heads; else as the family's struct says */
  int32_t rows;       /* OAR_ROWS_*: of prompts, of generated tokens, or one kernel for both */
  int32_t sum;        /* OAR_SUM_*: what products are added in */
  /* Codes of a quantized cache: "int8", "fp8", "int4", "int4_mean" (keys alone), "int3" (values alone); NULL
   * for other families. kernels/kv_quant.h of the sources says what they mean. */
  const char *keys, *values;
} oar_plugin_query;

/* Where a plug-in's words go. Valid as long as the process lives; callable from any thread. */
typedef struct oar_plugin_host {
  uint32_t size;
  uint32_t major, minor;                    /* of the header Oar was compiled with */
  void (*log)(int level, const char* text); /* 0 debug, 1 information, 2 warning, 3 error */
} oar_plugin_host;

typedef struct oar_plugin {
  uint32_t size;         /* sizeof(oar_plugin) as the plug-in was compiled */
  uint32_t major, minor; /* OAR_PLUGIN_MAJOR, OAR_PLUGIN_MINOR as the plug-in was compiled */
  uint32_t reserved;     /* 0 */
  const char* name;      /* of the plug-in, short: "cuda"; part of kernel names and messages */

  /* -- required -- */

  /* Devices that can be opened now. No driver or no device is 0, not an error. */
  oar_plugin_status (*device_count)(int32_t* count);
  /* Fills *info for device `index`, 0 <= index < count. */
  oar_plugin_status (*device_info)(int32_t index, oar_plugin_device_info* info);
  /* Makes a device ready: contexts, libraries. One device may be opened several times. */
  oar_plugin_status (*open)(int32_t index, oar_plugin_device** device);
  /* Ends an opening, when all its memory, streams, events and captures have been given back. */
  void (*close)(oar_plugin_device* device);

  /* `bytes` > 0 of device memory, 256-byte aligned, uninitialized. May wait for the device. OUT_OF_MEMORY is
   * told to the user, with the bytes, and is no fault. Oar allocates at load, and for an
   * ordinary model's inputs of new sizes; never per step of a language model. */
  oar_plugin_status (*allocate)(oar_plugin_device* device, uint64_t bytes, void** memory);
  /* Gives it back. Work on it has been waited for. */
  void (*release)(oar_plugin_device* device, void* memory);

  /* Copies of `bytes` > 0, any alignment, ranges that do not overlap. to_device returns when the host's bytes
   * may be changed; to_host when they are there; on_device may return at once. */
  oar_plugin_status (*copy_to_device)(oar_plugin_device*, oar_plugin_stream*, void* device, const void* host,
                                      uint64_t bytes);
  oar_plugin_status (*copy_to_host)(oar_plugin_device*, oar_plugin_stream*, void* host, const void* device,
                                    uint64_t bytes);
  oar_plugin_status (*copy_on_device)(oar_plugin_device*, oar_plugin_stream*, void* to, const void* from,
                                      uint64_t bytes);
  /* Waits for all work on the stream. Errors of earlier work that could not be told then are told here. */
  oar_plugin_status (*synchronize)(oar_plugin_device*, oar_plugin_stream*);

  /* The kernel for a family and format, or UNSUPPORTED. It belongs to the device and is good until close().
   * What a device lacks runs anyway: a composite op by its definition, any other on the CPU with copies of
   * its activations. Oar warns about those once, with op, format and bytes. Two kernels on one cache (append
   * and attention) are only used together. */
  oar_plugin_status (*find_kernel)(oar_plugin_device*, const oar_plugin_query* query,
                                   const oar_plugin_kernel** kernel);
  /* Puts the kernel on the stream with its family's argument struct, and returns at once where it can.
   * `scratch`: kernel_scratch() bytes of device memory, 256-byte aligned, NULL where that is 0 or not given;
   * contents are undefined and shared by all launches of a stream, in their order. */
  oar_plugin_status (*launch)(oar_plugin_device*, oar_plugin_stream*, const oar_plugin_kernel* kernel,
                              const void* args, void* scratch, uint64_t scratch_bytes);

  /* -- optional: NULL is allowed; functions under one remark are given together or not at all -- */

  /* How kernels of products (matmul, grouped, gated) of a format read a weight of n rows of K: packed into
   * *bytes, or 0 for rows as a file has them. pack_weight writes those bytes to host memory, 64-byte aligned,
   * from rows of the format in host memory. Both look at no device, and may be called from several threads
   * at once. NULL: rows. */
  oar_plugin_status (*packed_bytes)(const char* format, int64_t n, int64_t K, uint64_t* bytes);
  oar_plugin_status (*pack_weight)(const char* format, int64_t n, int64_t K, void* to, const void* rows);

  /* What went wrong last on this device (device NULL: in device_count, device_info or open), in words, valid
   * until the next call. NULL: Oar reports the function and the status. */
  const char* (*error_message)(oar_plugin_device*);

  /* How much memory there is. NULL: the default budget is a share of device_info's memory_bytes. */
  oar_plugin_status (*memory_stats)(oar_plugin_device*, oar_plugin_memory* memory);

  /* Host memory that the device copies from at full speed (page-locked), 64-byte aligned. NULL: ordinary. */
  oar_plugin_status (*host_allocate)(oar_plugin_device*, uint64_t bytes, void** memory);
  void (*host_release)(oar_plugin_device*, void* memory);

  /* Copies that return at once; Oar leaves the host's bytes alone until a synchronize or an event says so.
   * NULL: the blocking ones are used. Each may be given alone. */
  oar_plugin_status (*copy_to_device_async)(oar_plugin_device*, oar_plugin_stream*, void* device,
                                            const void* host, uint64_t bytes);
  oar_plugin_status (*copy_to_host_async)(oar_plugin_device*, oar_plugin_stream*, void* host,
                                          const void* device, uint64_t bytes);

  /* Queues of work; Oar makes one for each engine. NULL: one queue per opening, and NULL is passed for it. */
  oar_plugin_status (*create_stream)(oar_plugin_device*, oar_plugin_stream** stream);
  void (*destroy_stream)(oar_plugin_device*, oar_plugin_stream*);

  /* Marks in a stream. record: the event stands for all work on the stream so far, and no longer for what it
   * was recorded for before; synchronize_event waits for that, at once where it was never recorded. Oar uses
   * them to know when page-locked memory may be written again. NULL: it synchronizes the stream instead. */
  oar_plugin_status (*create_event)(oar_plugin_device*, oar_plugin_event** event);
  void (*destroy_event)(oar_plugin_device*, oar_plugin_event*);
  oar_plugin_status (*record_event)(oar_plugin_device*, oar_plugin_stream*, oar_plugin_event*);
  oar_plugin_status (*synchronize_event)(oar_plugin_device*, oar_plugin_event*);

  /* Bytes of scratch that launch() needs for these arguments; a function of their sizes, called with pointers
   * that may not be valid yet, before any launch with them: of a language model at load, with its largest
   * sizes. UNSUPPORTED, since minor 10: sizes that the kernel does not take, which error_message names. Oar
   * then refuses the model, or an ordinary model's run; the device goes on. NULL: none ever, of any size. */
  oar_plugin_status (*kernel_scratch)(oar_plugin_device*, const oar_plugin_kernel*, const void* args,
                                      uint64_t* bytes);

  /* Recording. Between begin and end launches and copies on the device are put into the capture and not run;
   * argument structs and host arrays are taken over then, tensors are read and written at replay. replay()
   * puts all of it on the stream. Oar captures a step whose every op has a kernel on the device, once it has
   * seen the same sizes twice. It keeps a bounded number. A step's inputs lie in device memory, so that a
   * replay sees new ones. NULL: every step is launched kernel by kernel. */
  oar_plugin_status (*begin_capture)(oar_plugin_device*, oar_plugin_stream*);
  oar_plugin_status (*end_capture)(oar_plugin_device*, oar_plugin_stream*, oar_plugin_capture** capture);
  oar_plugin_status (*replay)(oar_plugin_device*, oar_plugin_stream*, oar_plugin_capture*);
  void (*destroy_capture)(oar_plugin_device*, oar_plugin_capture*);

  /* What a launch with these arguments takes. Runs nothing and follows no device pointer; `context` is how
   * many tokens each sequence has, of attention over a cache. UNSUPPORTED: it cannot tell of this kernel.
   * NULL: of none. Since minor 3. */
  oar_plugin_status (*kernel_cost)(oar_plugin_device*, const oar_plugin_kernel*, const void* args,
                                   int64_t context, oar_plugin_cost* cost);

  /* What device `index` does and draws, for those who watch it. Called from any thread, also while others
   * work with the device, as long as one opening of it lives. An error is no fault of the device: it is not
   * reported then. NULL: nothing of it is. Since minor 7. */
  oar_plugin_status (*device_usage)(int32_t index, oar_plugin_usage* usage);
} oar_plugin;

/* What the library exports under the name OAR_PLUGIN_ENTRY: the table, which stays valid and unchanged, or
 * NULL to refuse (having said why through host->log). May be called more than once. */
#define OAR_PLUGIN_ENTRY "oar_plugin_entry"
typedef const oar_plugin* (*oar_plugin_entry_fn)(const oar_plugin_host* host);

#if defined(__GNUC__)
#define OAR_PLUGIN_EXPORT __attribute__((visibility("default")))
#else
#define OAR_PLUGIN_EXPORT
#endif

#ifdef __cplusplus
}
#endif
#endif

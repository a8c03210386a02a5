// Ops of training graphs that the engine has no use for. They run as ordinary ops do, and stand in no
// registry: who builds such a graph names them here. All but updates and the scan are defined by ops of the
// registry, ways back by the gradient that is derived from these. So a step's graph decomposes, and is
// differentiated again. Where products are most of the work there are kernels alone and no evaluation.
//
//   linear_cross_entropy(hidden (T, E), head (V, E), targets (T) i32, weight (), bias? (V)) {scale, softcap}
//       -> loss (), hits () i32, likeliest () i32, d_hidden (T, E), d_bias (V), d_head (V, E)
//     loss: weight * sum over rows with a target >= 0 of -log softmax(logits)[target].
//     logits = scale (hidden . head^T + bias), capped as softcap * tanh(logits / softcap) where given.
//     hits: how many rows have their largest logit at the target. likeliest: the largest logit of the last
//     row with a target, and 0 where there is none. Gradients: only those that are results, d_bias only where
//     there is a bias. Rows go through in blocks, so that never more than kLogitBytes of logits are in
//     memory. Sums over blocks have the order of the rows. The head may be of any stored format; d_head is
//     f32. With hidden in bf16, gradients are products of bf16 with f32 sums.
//   rows_linear(x, w, bias?)    y = x . w^T + bias by the kernels that serve: f32, f16 and bf16 read in
//   place, of
//                               trained weights too; other formats are packed once. Frozen ones are
//                               constants.
//   rows_product(dy, w)         dy . w, the way back through a layer: w is decoded from the bytes that
//                               rows_linear reads, one matrix at a time; with dy in bf16 by products of bf16
//   rows_gradient(dy (T, N), x (T, K)) -> (N, K)   dy^T . x, a layer's gradient; both f32, or both bf16 by
//                               products of bf16, with f32 sums
//   lora_linear(x (T, K), w (N, K), bias (N) or none, a (r, K), b (N, r)) {factor} -> y, low (T, r)
//                               a layer and its adapter: low = factor x a^T, y = x w^T + bias + low b^T. With
//                               x in bf16 the adapter's products are of bf16, `low` rounded between them
//   lora_back(dy (T, N), w, a, b) {factor} -> low (T, r), dx (T, K)   low = factor dy b, dx = dy w + low a
//   table_rows(table, ids) {scale}   embedding: rows decoded from any format
//   rotate(x (T, heads, D), positions (T), inv_freq) {mscale, interleaved, reverse}   rope of packed rows
//                               (engine/ops/rope.cc); in reverse by the negative angles, which is its way
//                               back
//   rows_add(a, b) -> a + b     of one shape, each f32 or bf16
//   rows_swiglu(gate, up) -> y  swiglu of silu (engine/ops/activation.cc); operands f32 or bf16
//   rows_swiglu_back(gate, up, dy) -> dgate, dup
//   rows_rms_norm(x (T, E), w (E)) {epsilon} -> y   rms_norm of the last axis (engine/ops/norm.cc)
//   rows_rms_norm_back(x, w, dy) {epsilon} -> dx, dw (E)
//   segment_attention(q, k, v, positions, segments, sinks?) {as attention's}   attention
//   (engine/ops/attention.cc), whose
//                               segments lie together: products within each, and nothing between them.
//                               q, k and v are all f32 or all bf16. Of bf16 so are the products, where there
//                               is a kernel: weights, and back their gradients, are rounded between the two.
//   segment_attention_back(q, k, v, positions, segments, dy, sinks?) -> dq, dk, dv   dy as q
//   segment_scan(q, k, v, g, beta, segments) {delta} -> y   state_scan (engine/ops/state_scan.cc) with a way
//                               back. It is differentiated once.
//   segment_scan_back(..., dy) -> dq, dk, dv, dg, dbeta
//   route = moe_route, evaluated by its reference: few numbers a token
//   expert_rows(x, pair_token or none, start, bias or none, w...) {experts} -> (P, sum N)   grouped_linear
//   (engine/ops/moe.cc):
//                               each expert over its own rows alone, by the kernel that serves
//   expert_rows_back(dy (P, sum N), none, start, none, w...) {experts} -> (P, K)
//   expert_products(dy, x, pair_token or none, start) {expert, rows []} -> dW (rows, K)...   of one expert
//   counted_dropout(x, draw () i64) {rate, site} -> y   x / (1 - rate), or 0 for a share `rate`, to 2^-16, of
//                               x: what Philox (engine/base/random.h) says of draw, site and place
//   row_parts(x (..., C)) {rows []} -> (rows[k], C)...   the rows of x in parts: views
//   barrier(x, after) -> x      behind `after`, and no value that a pass may take for x
//   batch_statistics_norm(x (N, C, ...), scale (C), shift (C)) {epsilon} -> y, mean (C), variance (C)
//                               batch_norm in training, with the batch's own numbers (the population's
//                               variance)
//   batch_statistics_norm_back(x, scale, mean, variance, dy) {epsilon} -> dx, dscale, dshift
//   accumulate(sum, x)          sum += x. An effect: `sum` is a state
//   adamw(hyper (4), (parameter, moment 1, moment 2, gradient)...) {beta1, beta2, epsilon, decay [], rate [],
//                               keep}
//       -> norm ()              https://arxiv.org/abs/1711.05101, all tensors in one call; an effect on
//       states.
//     hyper is f64: rate, the largest norm of all gradients as one vector (0: any), 1 - beta1^n, 1 - beta2^n.
//     Gradients are states too, and zero behind it; with `keep` they stay as they are. The norm is that
//     before clipping. `decay` and `rate` by tensor: its weight decay and a factor on the rate.
//   sgd(hyper, (parameter, moment, gradient)...) {momentum, decay [], rate [], keep} -> norm ()
//     m = momentum m + g + decay p; p -= rate m. As torch.optim.SGD has it.
//
// Attribute `rounded` of a node of rows: results, a bit each, that are rounded to bf16 as they are made.
//
// The same bits for any number of threads.
#pragma once

#include <algorithm>
#include <map>
#include <string_view>

#include "engine/graph/builder.h"
#include "engine/tensor/backend.h"

namespace oar::train {

inline constexpr int64_t kLogitBytes = int64_t{32} << 20;
// Rows of a block of logits of a vocabulary of V.
inline int64_t logit_rows(int64_t T, int64_t V) { return std::clamp<int64_t>(kLogitBytes / (4 * V), 1, T); }

extern const OpDef op_counted_dropout, op_linear_cross_entropy, op_lora_back, op_lora_linear, op_rows_linear,
    op_rows_product, op_table_rows, op_accumulate, op_barrier, op_expert_products, op_expert_rows,
    op_expert_rows_back, op_rotate, op_route, op_row_parts, op_rows_add, op_rows_gradient, op_rows_rms_norm,
    op_rows_rms_norm_back, op_rows_swiglu, op_rows_swiglu_back, op_segment_attention,
    op_segment_attention_back, op_segment_scan, op_batch_statistics_norm, op_batch_statistics_norm_back,
    op_segment_scan_back, op_adamw, op_sgd;

// All of them, and how often each can be differentiated, as differentiability() says it of the registry's:
// "any order", "once" where its way back is an op that has none, "not". The head's loss gives its gradients
// itself, so nothing is to flow through it.
struct TrainingOp {
  const OpDef* op;
  const char* gradient;
};
std::span<const TrainingOp> training_ops();

// The input of counted_dropout that says what is drawn, and a node of it: `site` tells it from others.
// drop_branches(): of what is added, layer by layer, to the rows that `last` comes of, and of the first of
// these rows, a share `rate` is dropped. Before use_rows_ops(). keep_all(): nothing is dropped any more.
Val add_draw(Graph& g);
Val dropped(Builder& b, Val x, Val draw, double rate, size_t site);
Status drop_branches(Graph& g, Val last, double rate);
void keep_all(Graph& g);

// A node of one of them. The empty Val after an error, as Builder::op().
std::vector<Val> emit(Builder& b, const OpDef& op, std::span<const Val> inputs, Attrs attrs = {});

// Nodes become ops of these with ways back of their own, before a graph is differentiated.
void use_rows_ops(Graph& g);
void use_gate_ops(Graph& g);  // of these, the gates and norms
// A frozen layer, and what add_lora of train/model_graph.cc puts behind it, become lora_linear.
void use_lora_ops(Graph& g);
// Behind all other passes: nodes become those that kernels which serve compute, and what evaluation has no op
// for.
void use_own_ops(Graph& g);
// In mixed precision: whose places they take in its lists, and which operands they read in any format.
std::map<std::string_view, std::string_view> listed_as();
bool reads_stored(const Graph& g, const Node& n, size_t operand);
// Which of these they take in f32 and round to bf16 as they pack them.
bool rounds_itself(const Graph& g, const Node& n, size_t operand);
// Whether round_results() makes rows_add of it: a sum of two values of one shape of which any is, or becomes,
// bf16.
bool is_rows_add(const Graph& g, const Node& n);
// Behind use_own_ops(): casts between f32 and bf16 become a part of the ops of rows before and behind them.
// What is computed stays the same.
void round_results(Graph& g);
// What casts between f32 and bf16 read and write.
uint64_t cast_bytes(const Graph& g);
// Where `rows` are rows added to zeros, as a table's gradient is, they are added to `sum` instead; else
// false.
bool add_rows_to(Graph& g, ValueId rows, ValueId sum);
// Makes rows_gradient of matmul(transpose(dy), x).
void use_rows_gradients(Graph& g);
// Bytes of constants that rows_linear reads packed.
uint64_t packed_weights(const Graph& g, const Backend& backend);

// What adamw and sgd mean, in ordinary ops: the results {parameter, moments...} behind one step of one
// tensor, with its gradient already clipped. What the kernels are tested against.
struct UpdateRule {
  double rate = 0, decay = 0;
  double beta1 = 0, beta2 = 0, epsilon = 0;  // adamw
  int64_t step = 1;                          // adamw
  double momentum = 0;                       // sgd
};
std::vector<Val> adamw_definition(Builder& b, Val parameter, Val moment1, Val moment2, Val gradient,
                                  const UpdateRule& rule);
std::vector<Val> sgd_definition(Builder& b, Val parameter, Val moment, Val gradient, const UpdateRule& rule);
// The loss alone, with all logits in memory.
Val cross_entropy_definition(Builder& b, Val hidden, Val head, Val targets, Val weight, const Attrs& attrs,
                             Val bias = {});

}  // namespace oar::train

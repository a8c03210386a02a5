#include "kernels/cuda/cost_layers.h"

#include <algorithm>

#include "kernels/attention.h"
#include "kernels/causal_conv.h"
#include "kernels/cuda/conv.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/quantized_conv.h"
#include "kernels/cuda/rounded_conv.h"
#include "kernels/integer_conv.h"
#include "kernels/moe.h"
#include "kernels/quantize.h"
#include "kernels/recurrent.h"
#include "kernels/resize.h"
#include "kernels/sample.h"
#include "kernels/state_scan.h"

namespace oar::cuda {
namespace {

int64_t pixels_of(const WindowShape& w) { return w.N * w.OH * w.OW; }
// Pixels of x that windows see: some of a large stride are seen by none.
int64_t seen_of(const WindowShape& w) { return std::min(w.N * w.H * w.W, pixels_of(w) * w.KH * w.KW); }

// ---- convolutions ----

// A block reads what its pixels see and its filters, filters of `filter_bytes` each. All of a tile is
// multiplied, `step` products of an output at a time.
void add_tiles(const ConvArgs& a, const ConvTile& tile, double filter_bytes, int64_t step, bool tensor,
               KernelCost& c) {
  const int64_t pixels = pixels_of(a.window), filters = a.M / a.groups,
                K = a.window.KH * a.window.KW * (a.C / a.groups);
  const int64_t pixel_tiles = whole(pixels, tile.pixels), filter_tiles = whole(filters, tile.filters);
  const double out = kFloatBytes * number(pixels * a.M), more = a.residual != nullptr ? out : 0,
               bias = a.bias != nullptr ? kFloatBytes * number(a.M) : 0;
  c.bytes += kFloatBytes * number(seen_of(a.window) * a.C) + number(a.M) * filter_bytes + out + more + bias;
  c.l2_bytes += kFloatBytes * number(pixels * K * filter_tiles * a.groups) +
                number(a.M * pixel_tiles) * filter_bytes + more;
  (tensor ? c.tensor_operations : c.operations) +=
      2 * number(pixel_tiles * tile.pixels * filter_tiles * tile.filters * a.groups) *
      number(whole(K, step) * step);
}

void add_conv(const ConvArgs& a, KernelCost& c) {
  if (a.M <= 0) return;
  const int64_t filters = a.M / a.groups, K = a.window.KH * a.window.KW * (a.C / a.groups);
  add_tiles(a, conv_tile(pixels_of(a.window), filters), kFloatBytes * number(K), kConvStep, false, c);
}
void add_rounded_conv(const ConvArgs& a, int64_t value_bytes, KernelCost& c) {
  if (a.M <= 0) return;
  const int64_t K = a.window.KH * a.window.KW * a.C, step = kRoundedStepBytes / value_bytes;
  add_tiles(a, rounded_conv_tile(pixels_of(a.window), a.M), number(whole(K, step) * kRoundedStepBytes), step,
            true, c);
}

// Layers of 8-bit integers, whose results take `out` bytes each. `beside`: bytes of each filter's scales,
// sums and the like.
void add_quantized_conv(const WindowShape& w, int64_t C, int64_t M, double out, double beside,
                        KernelCost& c) {
  if (M <= 0) return;
  const int64_t pixels = pixels_of(w), K = w.KH * w.KW * C, tile = quantized_tile_filters(M);
  const int64_t pixel_tiles = whole(pixels, kQuantizedPixels), filter_tiles = whole(M, tile);
  const double filters = number(whole(M, kQuantizedPanel) * kQuantizedPanel * quantized_k(K));
  c.bytes += number(seen_of(w) * C) + filters + number(M) * beside + number(pixels * M) * out;
  c.l2_bytes += number(pixels * K * filter_tiles) + filters * number(pixel_tiles);
  c.tensor_operations +=
      2 * number(pixel_tiles * kQuantizedPixels * filter_tiles * tile) * number(quantized_k(K));
}

// Numbers that blocks of so many neighbouring results read, where each result sees a window of its channel.
double window_reads(const WindowShape& w, int64_t C, int64_t of_block) {
  if (C <= 0) return 0;
  const int64_t pixels = std::clamp<int64_t>(of_block / C, 1, std::max<int64_t>(w.OW, 1));
  const int64_t side_by_side = (pixels - 1) * w.stride_w + (w.KW - 1) * w.dilation_w + 1;
  const int64_t columns = std::min({w.W, side_by_side, pixels * w.KW});
  return number(whole(pixels_of(w) * C, of_block) * std::min(C, of_block)) * number(w.KH * columns);
}
// Results of a block of pack.h.
int64_t block_of(int64_t C) { return kPackThreads * (C % kWide == 0 ? kWide : 1); }

void add_depthwise(const DepthwiseArgs& a, KernelCost& c) {
  const WindowShape& w = a.window;
  const int64_t n = pixels_of(w) * a.C, taps = w.KH * w.KW, of_block = block_of(a.C);
  const double more = a.residual != nullptr ? number(n) : 0;
  c.bytes += kFloatBytes * (number(seen_of(w) * a.C + n + taps * a.C + (a.bias != nullptr ? a.C : 0)) + more);
  c.l2_bytes += kFloatBytes * (window_reads(w, a.C, of_block) +
                               number(whole(n, of_block) * std::min(a.C, of_block) * taps) + more);
  c.operations += 2 * number(n * taps);
}
void add_pool(const PoolArgs& a, KernelCost& c) {
  const int64_t n = pixels_of(a.window) * a.C;
  c.bytes += kFloatBytes * number(seen_of(a.window) * a.C + n);
  c.l2_bytes += kFloatBytes * window_reads(a.window, a.C, block_of(a.C));
  c.operations += number(n * a.window.KH * a.window.KW);
}
void add_quantized_depthwise(const QuantizedConvArgs& a, double out, KernelCost& c) {
  const WindowShape& w = a.window;
  const int64_t n = pixels_of(w) * a.M, taps = w.KH * w.KW;
  c.bytes += number(seen_of(w) * a.C + taps * a.C) + number(n) * out +
             kFloatBytes * number(a.M * (1 + (a.bias != nullptr) + (a.shift != nullptr)));
  c.l2_bytes += window_reads(w, a.C, kPackThreads) + number(n * taps);
  c.operations += 2 * number(n * taps);
}

void add_resize(const ResizeArgs& a, KernelCost& c) {
  const double out = number(a.outer * a.rows.out * a.cols.out * a.inner),
               in = number(a.outer * a.rows.in * a.cols.in * a.inner);
  const double taps = (a.rows.first != nullptr ? 2 : 1) * (a.cols.first != nullptr ? 2 : 1);
  c.bytes += kFloatBytes * (out + std::min(in, out * taps));
  c.l2_bytes += kFloatBytes * out * taps;
  c.operations += 2 * out * taps;
}

// ---- attention without a cache ----

constexpr int64_t kQueriesOfBlock = 4;  // a warp each; 128 dims of a value

// `pairs` of a query and head with a key that it sees; neighbours of a block share what they read.
void add_pairs(double pairs, int64_t D, int64_t DV, int64_t neighbours, KernelCost& c) {
  const double shared = number(std::clamp<int64_t>(neighbours, 1, kQueriesOfBlock));
  c.l2_bytes += kFloatBytes * pairs * number(D * whole(DV, 128) + DV) / shared;
  c.operations += 2 * pairs * number(D + DV);
}
void add_segment_attention(const SegmentAttentionArgs& a, int64_t context, KernelCost& c) {
  if (a.K <= 0) return;
  const int64_t segment = context > 0 ? std::min(context, a.T) : a.T;
  const int64_t seen = a.window > 0 ? std::min(segment, 2 * a.window - 1) : segment;
  c.bytes += kFloatBytes * number(2 * a.T * (a.H + a.K) * a.D) + kFloatBytes * number(a.T);
  add_pairs(number(a.T * a.H) * number(seen), a.D, a.D, a.H / a.K, c);
}
void add_dense_attention(const DenseAttentionArgs& args, KernelCost& c) {
  DenseAttentionArgs a = args;
  a.lengths = nullptr;  // on the device
  if (a.S <= 0 || a.K <= 0) return;
  double pairs = 0;
  for (int64_t i = 0; i < a.S; ++i) {
    const KeyRange r = seen_keys(a, 0, i);
    pairs += number(r.to - r.from);
  }
  const int64_t keys = std::max<int64_t>(seen_keys(a, 0, a.S - 1).to - seen_keys(a, 0, 0).from, 0);
  const auto sets = [&](const AttentionSteps& s, int64_t heads) {
    return number((s.batch != 0 ? a.B : 1) * (s.head != 0 ? heads : 1));
  };
  c.bytes += kFloatBytes *
             (number(a.B * a.H * a.S * (a.D + a.DV)) +
              number(keys) * (sets(a.k_steps, a.K) * number(a.D) + sets(a.v_steps, a.K) * number(a.DV)));
  if (a.mask != nullptr)
    c.bytes += sets(a.mask_steps, a.H) * number(a.mask_steps.row != 0 ? a.S : 1) *
               number(a.mask_column != 0 ? keys : 1) * (a.mask_bool != 0 ? 1 : kFloatBytes);
  add_pairs(pairs * number(a.B * a.H), a.D, a.DV, a.S, c);
}

// ---- layers with a state ----

// What a step of T rows of B sequences meets of their states. A sequence has `context` tokens once the step
// is over; 0: it begins with it.
struct StateTraffic {
  double continued = 0;  // sequences that have rows in front of the step
  double open = 0;       // of these rows, those in the chunk where it begins
  double borders_read = 0, borders_written = 0;
  double rows = 0;  // that are written: all are taken to be kept
  StateTraffic(const StateArgs& s, int64_t T, int64_t context) {
    if (s.borders == nullptr || s.B <= 0 || s.page_tokens <= 0) return;
    const int64_t step = T / s.B, end = std::max(context, step), from = end - step, P = s.page_tokens;
    continued = number(from > 0 ? s.B : 0);
    open = number(s.B * (from % P));
    borders_read = number(from >= P ? s.B : 0);
    borders_written = number(s.B * (end / P - from / P));
    rows = number(T);
  }
};

void add_causal_conv(const CausalConvArgs& a, int64_t context, KernelCost& c) {
  const StateTraffic state(a.state, a.T, context);
  const double window = number((a.L - 1) * a.C), all = number(a.T * a.C);
  c.bytes += kFloatBytes * (2 * all + number((a.L + (a.bias != nullptr)) * a.C) + state.rows * number(a.C) +
                            (state.continued + state.borders_written) * window);
  c.l2_bytes += kFloatBytes * all * number(2 * a.L + 1);  // a row's own, its weights, and it again to keep it
  c.operations += 2 * all * number(a.L);
}
void add_state_scan(const StateScanArgs& a, int64_t context, KernelCost& c) {
  const StateScanShape& s = a.shape;
  const StateTraffic state(a.state, a.T, context);
  const double keys = number(int64_t{s.key_heads} * s.key_dim),
               values = number(int64_t{s.heads} * s.value_dim), heads = number(s.heads),
               matrix = number(state_scan_border(s)), row = number(state_scan_row(s));
  const double states =
      (state.borders_read + state.borders_written) * matrix + (state.rows + state.open) * row;
  c.bytes += kFloatBytes * (number(a.T) * (2 * keys + 2 * values + 2 * heads) + states);
  // A warp has 32 columns of a head and reads its keys and queries by itself.
  const double warps = heads * number(whole(s.value_dim, kWarp));
  c.l2_bytes += kFloatBytes * (number(a.T) * (warps * (2 * number(s.key_dim) + 2) + values) + states);
  // S becomes e^g S + k u, and S q; of the delta rule S k as well. Open rows are taken again.
  c.operations += matrix * (number(a.T) * (a.delta != 0 ? 7 : 5) + 3 * state.open);
}
void add_recurrent(const RecurrentArgs& a, KernelCost& c) {
  const int64_t gates = recurrent_gates(a.cell), of_all = a.D * a.B * a.H;
  const double weights = number(a.D * gates * a.H * a.H), x = number(a.T * gates * of_all),
               states = number(of_all) *
                        ((a.h0 != nullptr) + (a.c0 != nullptr) + (a.h != nullptr) + (a.c != nullptr));
  c.bytes += kFloatBytes * (weights + x + number(a.T * of_all) + states);
  c.l2_bytes += kFloatBytes * (weights * number(a.B * a.T) + x);  // all of them in every step
  c.operations += 2 * weights * number(a.B * a.T);
}

// ---- the rest ----

void add_narrow(const QuantizeArgs& a, bool integers, KernelCost& c) {
  const bool own = !integers && !a.to_values && a.own_scale != nullptr;
  c.bytes += number(a.n) * (integers ? 8 : own ? 9 : 5);
  c.operations += number(a.n) * (integers ? 1 : own ? 4 : 2);
}
void add_softmax(const SoftmaxArgs& a, KernelCost& c) {
  const double n = number(a.rows * a.n), mask = a.mask == nullptr ? 0 : a.mask_row != 0 ? n : number(a.n);
  c.bytes += kFloatBytes * (2 * n + mask);
  c.l2_bytes += kFloatBytes * 3 * n * (a.mask != nullptr ? 2 : 1);  // for the largest, the sum, the results
  c.operations += 4 * n;
}
void add_moe_route(const MoeRouteArgs& a, KernelCost& c) {
  const double logits = number(a.T * a.experts), pairs = number(a.T * a.top_k);
  c.bytes += kFloatBytes * (logits + 5 * pairs + number(a.experts));
  c.l2_bytes += kFloatBytes * (2 * logits + 2 * pairs * number(a.experts));  // each expert reads all choices
  c.operations += logits * number(4 + a.top_k);
}
void add_moe_combine(const MoeCombineArgs& a, KernelCost& c) {
  c.bytes += kFloatBytes * number(a.T * (a.top_k + 1) * a.E + 2 * a.T * a.top_k);
  c.operations += 2 * number(a.T * a.top_k * a.E);
}
void add_sample(const SampleArgs& a, KernelCost& c) {
  constexpr int64_t kBeside = sizeof(SampleRow) + sizeof(SampleDraw);
  c.bytes += number(a.num_rows) * (kFloatBytes * number(a.V) + number(kBeside));
  c.operations += 2 * number(a.num_rows * a.V);
}

}  // namespace

bool add_layer_cost(const DeviceKernel& kernel, const void* args, int64_t context, KernelCost& cost,
                    double& rate) {
  switch (kernel.family) {
    case KernelFamily::kConv:
      if (kernel.format == "f32") {
        add_conv(as<ConvArgs>(args), cost);
      } else {
        const bool tf32 = kernel.format == "tf32";
        add_rounded_conv(as<ConvArgs>(args), tf32 ? 4 : 2, cost);
        if (tf32) rate = 0.5;
      }
      return true;
    case KernelFamily::kQuantizedConv: {
      rate = 2;
      if (kernel.format == "u8") {
        const auto& a = as<IntegerConvArgs>(args);
        add_quantized_conv(a.window, a.C, a.M, 4, 4 + (a.w_zeros != nullptr ? 4 : 0), cost);
        return true;
      }
      const auto& a = as<QuantizedConvArgs>(args);
      const bool bytes = a.out_type == QuantizedOut::kU8 || a.out_type == QuantizedOut::kI8;
      const double out = (bytes ? 1 : 4) + (a.sum.other != nullptr ? 1 : 0) + (a.residual != nullptr ? 4 : 0);
      const double beside = 4 * (2 + (a.bias != nullptr) + (a.shift != nullptr));
      if (a.depthwise) add_quantized_depthwise(a, out, cost);
      else add_quantized_conv(a.window, a.C, a.M, out, beside, cost);
      return true;
    }
    case KernelFamily::kDepthwise: add_depthwise(as<DepthwiseArgs>(args), cost); return true;
    case KernelFamily::kPool: add_pool(as<PoolArgs>(args), cost); return true;
    case KernelFamily::kResize: add_resize(as<ResizeArgs>(args), cost); return true;
    case KernelFamily::kNarrow: add_narrow(as<QuantizeArgs>(args), kernel.format == "i32", cost); return true;
    case KernelFamily::kRecurrent: add_recurrent(as<RecurrentArgs>(args), cost); return true;
    case KernelFamily::kSoftmax: add_softmax(as<SoftmaxArgs>(args), cost); return true;
    case KernelFamily::kActivate:
      cost.bytes += 2 * kFloatBytes * number(as<ActivateArgs>(args).n);
      cost.operations += 4 * number(as<ActivateArgs>(args).n);
      return true;
    case KernelFamily::kMoeRoute: add_moe_route(as<MoeRouteArgs>(args), cost); return true;
    case KernelFamily::kMoeCombine: add_moe_combine(as<MoeCombineArgs>(args), cost); return true;
    case KernelFamily::kSegmentAttention:
      add_segment_attention(as<SegmentAttentionArgs>(args), context, cost);
      return true;
    case KernelFamily::kDenseAttention: add_dense_attention(as<DenseAttentionArgs>(args), cost); return true;
    case KernelFamily::kCausalConv: add_causal_conv(as<CausalConvArgs>(args), context, cost); return true;
    case KernelFamily::kStateScan: add_state_scan(as<StateScanArgs>(args), context, cost); return true;
    case KernelFamily::kSample: add_sample(as<SampleArgs>(args), cost); return true;
    case KernelFamily::kFeedTokens: {  // all of them become what was drawn
      constexpr int64_t kEach = 2 * sizeof(int32_t) + sizeof(SampleDraw);
      cost.bytes += number(as<FeedTokensArgs>(args).T * kEach);
      return true;
    }
    default: return false;
  }
}

}  // namespace oar::cuda

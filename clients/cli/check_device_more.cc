#include <cmath>

#include "clients/cli/check_device_case.h"
#include "engine/base/format.h"
#include "kernels/causal_conv.h"
#include "kernels/integer_conv.h"
#include "kernels/kv_quant.h"
#include "kernels/moe.h"
#include "kernels/quantize.h"
#include "kernels/recurrent.h"
#include "kernels/reduce.h"
#include "kernels/resize.h"
#include "kernels/state_scan.h"
#include "kernels/strided_copy.h"

namespace oar::cli {
namespace {

constexpr int64_t kFewTokens = 7, kManyTokens = 600;

struct QuantTier {
  KvCode keys, values;
  int32_t latent = 0;
};
constexpr QuantTier kTiers[] = {
    {KvCode::kInt8, KvCode::kInt8},     {KvCode::kFp8, KvCode::kFp8},
    {KvCode::kInt8, KvCode::kInt4},     {KvCode::kInt4, KvCode::kInt4},
    {KvCode::kInt4Mean, KvCode::kInt3}, {KvCode::kInt8, KvCode::kInt8, 64},
    {KvCode::kFp8, KvCode::kFp8, 64},   {KvCode::kInt4Mean, KvCode::kInt4Mean, 64}};

// One sequence of 100 tokens, the last of which are the queries: first tokens, quantized pages and the
// open one. Both sides read the same codes, so sums alone differ. With a latent one key head's leading dims
// are its values.
void quantized(std::vector<DeviceCase>& cases, int64_t queries) {
  constexpr int64_t kTokens = 100, kHeads = 4, kPage = 32;
  for (const auto& [keys, values, latent] : kTiers) {
    const int32_t kv = latent > 0 ? 1 : 2, D = latent > 0 ? latent + 8 : 64, DV = latent > 0 ? latent : D;
    const QuantKvShape shape(keys, values, kPage, kv, D, latent);
    // Codes are within a scale of what they stand for: magnitudes stay below 2.
    const double bound = 2 * (std::expm1(2 * 4 * std::sqrt(D) * (D + 8) * kUnit) + kTokens * kUnit);
    cases.push_back({cat("append and attention ", kv_code_name(keys), ", ", kv_code_name(values),
                         latent > 0 ? ", keys hold values" : "", queries_name(queries)),
                     bound, 2.0 * static_cast<double>(queries) * kTokens * kHeads * (D + DV), [=](Side& s) {
                       constexpr int64_t kBlocks = (kTokens + kPage - 1) / kPage;
                       std::vector<int32_t> table, slots, sinks;
                       for (int64_t i = 0; i < kBlocks; ++i)
                         table.push_back(static_cast<int32_t>(kBlocks - 1 - i));
                       for (int64_t t = 0; t < kTokens; ++t) {
                         slots.push_back(
                             static_cast<int32_t>(table[static_cast<size_t>(t / kPage)] * kPage + t % kPage));
                         sinks.push_back(t < kKvSinkTokens ? static_cast<int32_t>(t) : -1);
                       }
                       QuantKvAppendArgs append;
                       append.pool = s.pages(kBlocks * quant_kv_block_bytes(shape));
                       append.open = s.pages(kBlocks * kv_block_bytes(open_kv_shape(shape)));
                       append.sinks = s.pages(kv_block_bytes(sink_kv_shape(shape)));
                       append.k = s.floats(count(kTokens * kv * D), 3);
                       if (latent == 0) append.v = s.floats(count(kTokens * kv * D), 4);
                       append.slots = append.open_slots = s.put(slots);
                       append.sink_slots = s.put(sinks);
                       append.T = kTokens;
                       append.ldk = append.ldv = kv * D;
                       append.shape = shape;
                       QuantPagedAttentionArgs a;
                       PagedAttentionArgs& c = a.common;
                       c.q = s.floats(count(queries * kHeads * D), 5);
                       c.out = s.result(count(queries * kHeads * DV));
                       c.pool = append.pool;
                       c.block_tables = a.open_tables = s.put(table);
                       c.seq_start = s.put<int32_t>({0, static_cast<int32_t>(queries)});
                       c.context_len = s.put<int32_t>({static_cast<int32_t>(kTokens)});
                       c.T = queries;
                       c.B = 1;
                       c.H = kHeads;
                       c.ldq = kHeads * D;
                       c.ldo = kHeads * DV;
                       c.max_blocks = a.open_max_blocks = kBlocks;
                       c.shape = open_kv_shape(shape);
                       c.scale = 1.f / std::sqrt(static_cast<float>(D));
                       a.open = append.open;
                       a.sinks = append.sinks;
                       a.sink_tables = s.put<int32_t>({0});
                       a.sink_max_blocks = 1;
                       a.shape = shape;
                       KernelKey key = cache_key(s, KernelFamily::kQuantKvAppend, Format::bf16(), latent);
                       key.keys = keys;
                       key.values = values;
                       if (!s.launch(key, &append)) return;
                       key.family = KernelFamily::kQuantPagedAttention;
                       s.launch(key, &a, kTokens);
                     }});
  }
}

// Few tokens, which one block sorts by experts, and many.
void mixtures(std::vector<DeviceCase>& cases, int64_t tokens) {
  constexpr int64_t kExperts = 6, kChosen = 2, kWidth = 96;
  cases.push_back({cat("moe route and combine", tokens > kFewTokens ? ", many rows" : ""), 64 * kUnit,
                   2.0 * static_cast<double>(tokens * kChosen * kWidth), [tokens](Side& s) {
                     const std::vector<int32_t> none(count(tokens * kChosen), 0), starts(kExperts + 1, 0);
                     MoeRouteArgs route;
                     route.logits = s.floats(count(tokens * kExperts), 1);
                     route.pair_token = const_cast<int32_t*>(s.put(none));
                     route.pair_slot = const_cast<int32_t*>(s.put(none));
                     route.pair_weight = const_cast<float*>(s.floats(count(tokens * kChosen), 2));
                     route.expert_start = const_cast<int32_t*>(s.put(starts));
                     route.T = tokens;
                     route.experts = kExperts;
                     route.top_k = kChosen;
                     MoeCombineArgs a;
                     a.y = s.floats(count(tokens * kChosen * kWidth), 3);
                     a.pair_slot = route.pair_slot;
                     a.pair_weight = route.pair_weight;
                     a.out = s.result(count(tokens * kWidth));
                     a.T = tokens;
                     a.top_k = kChosen;
                     a.E = kWidth;
                     if (s.launch({KernelFamily::kMoeRoute}, &route))
                       s.launch({KernelFamily::kMoeCombine}, &a);
                   }});
}

// |q . k| / sqrt(D) <= sqrt(D).
void without_cache(std::vector<DeviceCase>& cases) {
  constexpr int64_t kRows = 30, kHeads = 4, kKv = 2, kD = 16;
  const double bound = std::expm1(2 * 4 * (kD + 8) * kUnit) + 4 * kRows * kUnit;
  cases.push_back({"segment attention", bound, 4.0 * kRows * 20 * kHeads * kD, [](Side& s) {
                     std::vector<int32_t> segments;
                     for (int64_t t = 0; t < kRows; ++t) segments.push_back(t < 20 ? 3 : 5);
                     SegmentAttentionArgs a;
                     a.q = s.floats(kRows * kHeads * kD, 1);
                     a.k = s.floats(kRows * kKv * kD, 2);
                     a.v = s.floats(kRows * kKv * kD, 3);
                     a.out = s.result(kRows * kHeads * kD);
                     a.segments = s.put(segments);
                     a.T = kRows;
                     a.H = kHeads;
                     a.K = kKv;
                     a.D = kD;
                     a.ldq = a.ldo = kHeads * kD;
                     a.ldk = a.ldv = kKv * kD;
                     a.scale = 0.25f;
                     s.launch({KernelFamily::kSegmentAttention}, &a);
                   }});
  cases.push_back({"dense attention", bound, 4.0 * 2 * kRows * kRows * kHeads * kD, [](Side& s) {
                     DenseAttentionArgs a;
                     a.q = s.floats(2 * kHeads * kRows * kD, 1);
                     a.k = s.floats(2 * kKv * kRows * kD, 2);
                     a.v = s.floats(2 * kKv * kRows * kD, 3);
                     a.out = s.result(2 * kHeads * kRows * kD);
                     a.q_steps = a.out_steps = {kHeads * kRows * kD, kRows * kD, kD};
                     a.k_steps = a.v_steps = {kKv * kRows * kD, kRows * kD, kD};
                     a.B = 2;
                     a.H = kHeads;
                     a.K = kKv;
                     a.S = a.L = kRows;
                     a.D = a.DV = kD;
                     a.causal = 1;
                     a.scale = 0.25f;
                     s.launch({KernelFamily::kDenseAttention}, &a);
                   }});
}

void interpolation(std::vector<DeviceCase>& cases) {
  constexpr int64_t kIn = 5, kOut = 9, kInner = 8;
  cases.push_back({"resize", 8 * kUnit, 8.0 * kOut * kOut * kInner, [](Side& s) {
                     std::vector<int32_t> first, at;
                     std::vector<float> weight;
                     for (int64_t k = 0; k < kOut; ++k) {
                       first.push_back(static_cast<int32_t>(at.size()));
                       for (int64_t i = k / 2; i <= (k + 1) / 2; ++i) {
                         at.push_back(static_cast<int32_t>(i));
                         weight.push_back(k % 2 == 0 ? 1.f : 0.5f);
                       }
                     }
                     first.push_back(static_cast<int32_t>(at.size()));
                     ResizeArgs a;
                     a.rows.first = a.cols.first = s.put(first);
                     a.rows.at = a.cols.at = s.put(at);
                     a.rows.weight = a.cols.weight = s.put(weight);
                     a.rows.in = a.cols.in = kIn;
                     a.rows.out = a.cols.out = kOut;
                     a.inner = kInner;
                     a.x = s.floats(kIn * kIn * kInner, 1);
                     a.out = s.result(kOut * kOut * kInner);
                     s.launch({KernelFamily::kResize}, &a);
                   }});
}

void moved_boxes(std::vector<DeviceCase>& cases) {
  constexpr int64_t kRows = 37, kCols = 21;
  cases.push_back({"strided_copy", 0, 0, [](Side& s) {
                     StridedCopyArgs a;
                     a.rank = 2;
                     a.dims[0] = kCols, a.dims[1] = kRows;
                     a.x_steps[0] = 1, a.x_steps[1] = kCols;
                     a.out_steps[0] = kRows, a.out_steps[1] = 1;
                     a.x = s.floats(kRows * kCols, 1);
                     a.out = s.result(kRows * kCols);
                     s.launch({KernelFamily::kStridedCopy}, &a);
                   }});
}

void reductions(std::vector<DeviceCase>& cases) {
  constexpr int64_t kOuter = 5, kN = 100, kInner = 21;
  cases.push_back({"reduce", sum_bound(kN), 0, [](Side& s) {
                     ReduceArgs a;
                     a.outer = kOuter, a.n = kN, a.inner = kInner;
                     a.x = s.floats(kOuter * kN * kInner, 1);
                     a.out = s.result(kOuter * kInner);
                     s.launch({KernelFamily::kReduce}, &a);
                   }});
}

// Sums of integers are exact, and each is scaled once.
void integer_layers(std::vector<DeviceCase>& cases) {
  constexpr int64_t kSide = 9, kC = 24, kM = 40, kTaps = 9;
  // A layer's bytes and sizes, which QuantizedConvArgs and IntegerConvArgs have alike.
  const auto put_layer = [](Side& s, auto& a) {
    std::vector<uint8_t> x(kSide * kSide * kC);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint8_t>(i * 37 + i / 251);
    std::vector<int8_t> w(kM * kC * kTaps);
    for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<int8_t>(i * 91 + i / 127);
    std::vector<int8_t> packed(static_cast<size_t>(quantized_filter_bytes(kM, kC * kTaps)));
    std::vector<int32_t> sums(kM);
    pack_quantized_filters(packed.data(), sums.data(), w.data(), kM, kTaps, kC, kC * kTaps, 1, kTaps);
    a.x = s.put(x);
    a.w = s.put(packed);
    a.w_sums = s.put(sums);
    WindowShape& v = a.window;
    v.N = 1, v.H = v.W = v.OH = v.OW = kSide, v.KH = v.KW = 3;
    v.pad_top = v.pad_left = v.pad_bottom = v.pad_right = 1;
    a.C = kC, a.M = kM;
  };
  cases.push_back({"quantized_conv", 0, 2.0 * kSide * kSide * kM * kC * kTaps, [=](Side& s) {
                     QuantizedConvArgs a;
                     put_layer(s, a);
                     a.scale = s.floats(kM, 1);
                     a.shift = s.floats(kM, 2);
                     a.x_zero = 121;
                     a.out_type = QuantizedOut::kF32, a.low = -1e6f, a.high = 1e6f;
                     a.out = s.result(kSide * kSide * kM);
                     s.launch(int8_conv_key(), &a);
                   }});
  cases.push_back({"quantized_conv, depthwise", 0, 2.0 * kSide * kSide * kC * kTaps, [=](Side& s) {
                     QuantizedConvArgs a;
                     put_layer(s, a);
                     std::vector<int8_t> taps(kTaps * kC);
                     for (size_t i = 0; i < taps.size(); ++i) taps[i] = static_cast<int8_t>(i * 91 + i / 127);
                     a.w = s.put(taps);
                     a.M = kC, a.depthwise = true;
                     a.scale = s.floats(kC, 1);
                     a.x_zero = 121;
                     a.out_type = QuantizedOut::kF32, a.low = -1e6f, a.high = 1e6f;
                     a.out = s.result(kSide * kSide * kC);
                     s.launch(int8_conv_key(), &a);
                   }});
  cases.push_back({"integer_conv", 0, 2.0 * kSide * kSide * kM * kC * kTaps, [=](Side& s) {
                     std::vector<int32_t> zeros;
                     for (int32_t m = 0; m < kM; ++m) zeros.push_back(m * 3 - 60);
                     IntegerConvArgs a;
                     put_layer(s, a);
                     a.w_zeros = s.put(zeros);
                     a.x_zero = s.put<uint8_t>({121});
                     QuantizeArgs q;  // the sums as numbers
                     q.n = kSide * kSide * kM;
                     q.codes = a.out = static_cast<int32_t*>(s.pages(kSide * kSide * kM * sizeof(int32_t)));
                     q.values = s.result(kSide * kSide * kM);
                     q.to_values = true;
                     if (s.launch(integer_conv_key(), &a)) s.launch(integers_key(), &q);
                   }});
  cases.push_back({"quantize and back", 0, 0, [](Side& s) {
                     constexpr int64_t kN = 5000;
                     QuantizeArgs q;
                     q.n = kN;
                     q.values = const_cast<float*>(s.floats(kN, 1));
                     q.codes = s.pages(kN);
                     q.own_scale = static_cast<float*>(s.pages(sizeof(float)));
                     q.own_zero = static_cast<uint8_t*>(s.pages(1));
                     QuantizeArgs back = q;
                     back.values = s.result(kN);
                     back.scale = q.own_scale, back.zero = q.own_zero;
                     back.own_scale = nullptr, back.own_zero = nullptr;
                     back.to_values = true;
                     if (s.launch(quantize_key(), &q)) s.launch(quantize_key(), &back);
                   }});
}

// States stay below 1, and a cell's below the number of steps. A step's sums are of 48 products of numbers
// below 1, which activations keep or shrink; what a step adds the next ones keep at most eightfold.
void recurrent_layers(std::vector<DeviceCase>& cases) {
  constexpr int64_t kT = 5, kB = 2, kH = 48;
  for (const RecurrentCell cell : {RecurrentCell::kRnn, RecurrentCell::kGru, RecurrentCell::kLstm}) {
    const int64_t G = recurrent_gates(cell);
    const char* name = cell == RecurrentCell::kRnn ? "rnn" : cell == RecurrentCell::kGru ? "gru" : "lstm";
    cases.push_back(
        {name, 8 * kT * (kH + 16) * kUnit, 2.0 * kT * kB * static_cast<double>(G) * kH * kH, [=](Side& s) {
           RecurrentArgs a;
           a.cell = cell;
           a.T = kT, a.B = kB, a.D = 1, a.H = kH;
           a.gates = s.floats(static_cast<size_t>(kT * kB * G * kH), 1);
           a.gates_t = kB * G * kH, a.gates_b = G * kH;
           // Weights of 1 / 8, whose sums keep what they add up.
           std::vector<float> r(static_cast<size_t>(kH * G * kH));
           for (size_t i = 0; i < r.size(); ++i)
             r[i] = 0.125f * (static_cast<float>(i * 29 % 64) / 32.f - 1.f);
           a.r = s.put(r);
           a.y = s.result(kT * kB * kH);
           a.y_t = kB * kH, a.y_b = a.y_d = kH;
           s.launch({KernelFamily::kRecurrent}, &a);
         }});
  }
}

constexpr int64_t kStateTokens = 11, kStatePage = 4;

// One sequence from its beginning on; borders of its two full chunks and rows of the open one are kept.
void set_state(Side& s, StateArgs& a, int64_t border_floats, int64_t row_floats) {
  constexpr int64_t kChunks = (kStateTokens + kStatePage - 1) / kStatePage;
  std::vector<int32_t> blocks, slots;
  for (int64_t j = 0; j < kChunks; ++j) blocks.push_back(static_cast<int32_t>(j));
  for (int64_t t = 0; t < kStateTokens; ++t) slots.push_back(static_cast<int32_t>(t));
  a.borders = static_cast<float*>(s.pages(static_cast<uint64_t>(kChunks * border_floats) * sizeof(float)));
  a.rows =
      static_cast<float*>(s.pages(static_cast<uint64_t>(kChunks * kStatePage * row_floats) * sizeof(float)));
  a.border_tables = a.row_tables = s.put(blocks);
  a.row_slots = s.put(slots);
  a.seq_start = s.put<int32_t>({0, static_cast<int32_t>(kStateTokens)});
  a.context_len = s.put<int32_t>({static_cast<int32_t>(kStateTokens)});
  a.T = kStateTokens;
  a.B = 1;
  a.max_borders = a.max_row_blocks = kChunks;
  a.border_floats = border_floats;
  a.row_floats = row_floats;
  a.page_tokens = kStatePage;
}

void states(std::vector<DeviceCase>& cases) {
  constexpr int64_t kC = 24, kL = 4;
  cases.push_back({"causal conv", 16 * kUnit, 2.0 * kStateTokens * kL * kC, [](Side& s) {
                     CausalConvArgs a;
                     a.x = s.floats(kStateTokens * kC, 1);
                     a.w = s.floats(kL * kC, 2);
                     a.bias = s.floats(kC, 3);
                     a.out = s.result(kStateTokens * kC);
                     a.T = kStateTokens;
                     a.C = a.ldx = a.ldo = kC;
                     a.L = kL;
                     set_state(s, a.state, (kL - 1) * kC, kC);
                     s.launch({KernelFamily::kCausalConv}, &a);
                   }});
  for (const bool delta : {false, true}) {
    constexpr int64_t kHeads = 2, kKey = 8, kValue = 16;
    // A chunk's sums are of 8 terms a row, and each row's error enters those behind it.
    cases.push_back({delta ? "state scan, delta rule" : "state scan", 4096 * kUnit,
                     6.0 * kStateTokens * kHeads * kKey * kValue, [delta](Side& s) {
                       StateScanArgs a;
                       // Keys below 1 / sqrt(8), so that a delta rule does not grow; gates below 0.
                       std::vector<float> keys, gates, rates;
                       for (int64_t i = 0; i < kStateTokens * kHeads * kKey; ++i)
                         keys.push_back(static_cast<float>(i * 7 % 13 - 6) / 24);
                       for (int64_t i = 0; i < kStateTokens * kHeads; ++i) {
                         gates.push_back(-static_cast<float>(i % 5) / 8);
                         rates.push_back(static_cast<float>(i % 4 + 1) / 8);
                       }
                       a.q = s.floats(kStateTokens * kHeads * kKey, 1);
                       a.k = s.put(keys);
                       a.v = s.floats(kStateTokens * kHeads * kValue, 2);
                       a.g = s.put(gates);
                       a.beta = s.put(rates);
                       a.out = s.result(kStateTokens * kHeads * kValue);
                       a.T = kStateTokens;
                       a.ldq = a.ldk = kHeads * kKey;
                       a.ldv = a.ldo = kHeads * kValue;
                       a.ldg = a.ldb = kHeads;
                       a.shape = {kHeads, kHeads, kKey, kValue};
                       a.delta = delta;
                       set_state(s, a.state, state_scan_border(a.shape), state_scan_row(a.shape));
                       s.launch({KernelFamily::kStateScan}, &a);
                     }});
  }
}

}  // namespace

void more_device_cases(std::vector<DeviceCase>& cases) {
  for (const int64_t queries : {kFewQueries, kManyQueries}) quantized(cases, queries);
  for (const int64_t tokens : {kFewTokens, kManyTokens}) mixtures(cases, tokens);
  without_cache(cases);
  interpolation(cases);
  moved_boxes(cases);
  reductions(cases);
  integer_layers(cases);
  recurrent_layers(cases);
  states(cases);
}

}  // namespace oar::cli

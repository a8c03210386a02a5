#include "clients/cli/check_device.h"

#include <cmath>
#include <cstring>

#include "clients/cli/check_device_case.h"
#include "engine/base/format.h"
#include "engine/graph/precision.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/conv.h"
#include "kernels/embedding.h"
#include "kernels/hadamard.h"
#include "kernels/matmul.h"
#include "kernels/moe.h"
#include "kernels/norm.h"
#include "kernels/rope.h"

namespace oar::cli {
namespace {

constexpr int64_t kRows = 5, kIn = 512, kOut = 96;

void products(std::vector<DeviceCase>& cases) {
  for (const char* name : {"f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "i4_g64", "i4_g128",
                           "i4_s8_g32", "i8_channel", "e4m3_channel", "e4m3_g128"}) {
    const auto format = Format::find(name);
    if (!format || format->info().encode == nullptr) continue;
    const double bound = product_bound(kIn, *format);
    const double operations = 2.0 * kRows * kIn * kOut;
    const auto fill = [format](Side& s, MatmulArgs& a, MatmulSegment& segment) {
      segment = {s.weight(*format, kOut, kIn, 1), s.floats(kOut, 2), kOut, 0};
      a.x = s.floats(kRows * kIn, 3);
      a.residual = s.floats(kRows * kOut, 4);
      a.out = s.result(kRows * kOut);
      a.segments = &segment;
      a.num_segments = 1;
      a.T = kRows;
      a.K = a.ldx = kIn;
      a.ldo = kOut;
      a.format = *format;
    };
    cases.push_back({cat("matmul ", name), bound, operations, [=](Side& s) {
                       MatmulArgs a;
                       MatmulSegment segment{};
                       fill(s, a, segment);
                       s.launch({KernelFamily::kMatmul, *format}, &a);
                     }});
    cases.push_back({cat("gated matmul ", name), bound, operations, [=](Side& s) {
                       GatedMatmulArgs a;
                       MatmulSegment segment{};
                       fill(s, a.matmul, segment);
                       a.gate = s.floats(kRows * kIn, 5);
                       a.ld_gate = kIn;
                       a.swiglu = s.backend().find_kernel({KernelFamily::kSwiGlu});
                       s.launch({KernelFamily::kGatedMatmul, *format}, &a);
                     }});
    cases.push_back({cat("grouped matmul ", name), bound, operations, [=](Side& s) {
                       GroupedMatmulArgs a;
                       std::vector<MatmulSegment> experts;
                       for (uint64_t e = 0; e < 3; ++e)
                         experts.push_back({s.weight(*format, kOut, kIn, 1 + e), nullptr, kOut, 0});
                       a.x = s.floats(kRows * kIn, 3);
                       a.expert_start = s.put<int32_t>({0, 2, 2, static_cast<int32_t>(kRows)});
                       a.out = s.result(kRows * kOut);
                       a.segments = experts.data();
                       a.segments_per_expert = 1;
                       a.experts = 3;
                       a.P = kRows;
                       a.K = a.ldx = kIn;
                       a.ldo = kOut;
                       a.format = *format;
                       s.launch({KernelFamily::kGroupedMatmul, *format}, &a);
                     }});
    cases.push_back({cat("embedding ", name), 4 * kUnit, 0, [=](Side& s) {
                       EmbeddingArgs a;
                       a.table = s.weight(*format, 7, kIn, 1, false);
                       a.ids = s.put<int32_t>({6, 0, 3, 3});
                       a.out = s.result(4 * kIn);
                       a.T = 4;
                       a.E = kIn;
                       a.V = 7;
                       a.format = *format;
                       s.launch({KernelFamily::kEmbedding, *format}, &a);
                     }});
  }
}

void rows(std::vector<DeviceCase>& cases) {
  constexpr int64_t kCols = 1000;
  cases.push_back({"rms_norm", 64 * kUnit, 4.0 * kRows * kCols, [](Side& s) {
                     RmsNormArgs a;
                     a.x = s.floats(kRows * kCols, 1);
                     a.w = s.floats(kCols, 2);
                     a.out = s.result(kRows * kCols);
                     a.rows = kRows;
                     a.cols = a.ldx = a.ldo = kCols;
                     s.launch({KernelFamily::kRmsNorm}, &a);
                   }});
  cases.push_back({"layer_norm", 128 * kUnit, 8.0 * kRows * kCols, [](Side& s) {
                     LayerNormArgs a;
                     a.x = s.floats(kRows * kCols, 1);
                     a.w = s.floats(kCols, 2);
                     a.b = s.floats(kCols, 3);
                     a.out = s.result(kRows * kCols);
                     a.rows = kRows;
                     a.cols = a.ldx = a.ldo = kCols;
                     s.launch({KernelFamily::kLayerNorm}, &a);
                   }});
  // A sine's argument, position times frequency, is exact here: they have few bits.
  cases.push_back({"rope", 16 * kUnit, 6.0 * kRows * 4 * 64, [](Side& s) {
                     RopeArgs a;
                     a.x = s.floats(kRows * 4 * 64, 1);
                     a.positions = s.put<int32_t>({0, 1, 5, 100, 1000});
                     std::vector<float> frequencies;
                     for (int i = 0; i < 32; ++i) frequencies.push_back(std::ldexp(1.f, -(i / 3)));
                     a.inv_freq = s.put(frequencies);
                     a.out = s.result(kRows * 4 * 64);
                     a.T = kRows;
                     a.heads = 4;
                     a.D = a.rot_dim = 64;
                     a.ldx = a.ldo = 4 * 64;
                     s.launch({KernelFamily::kRope}, &a);
                   }});
  cases.push_back({"swiglu", 16 * kUnit, 5.0 * kRows * kCols, [](Side& s) {
                     SwiGluArgs a;
                     a.gate = s.floats(kRows * kCols, 1);
                     a.up = s.floats(kRows * kCols, 2);
                     a.out = s.result(kRows * kCols);
                     a.T = kRows;
                     a.F = a.ldo = a.ldg = a.ldu = kCols;
                     s.launch({KernelFamily::kSwiGlu}, &a);
                   }});
  cases.push_back({"unary", 16 * kUnit, kRows * kCols, [](Side& s) {
                     UnaryArgs a;
                     a.x = s.floats(kRows * kCols, 1);
                     a.out = s.result(kRows * kCols);
                     a.n = kRows * kCols;
                     a.op = UnaryOp::kTanh;
                     s.launch({KernelFamily::kUnary}, &a);
                   }});
  cases.push_back({"binary", 2 * kUnit, kRows * kCols, [](Side& s) {
                     BinaryArgs a;
                     a.a = s.floats(kRows * kCols, 1);
                     a.b = s.floats(kCols, 2);
                     a.out = s.result(kRows * kCols);
                     a.rows = kRows;
                     a.cols = kCols;
                     a.b_row = 0;
                     s.launch({KernelFamily::kBinary}, &a);
                   }});
  cases.push_back({"gather_rows", 0, 0, [](Side& s) {
                     GatherRowsArgs a;
                     a.x = s.floats(kRows * kCols, 1);
                     a.rows = s.put<int32_t>({4, 0, 4});
                     a.out = s.result(3 * kCols);
                     a.R = 3;
                     a.E = kCols;
                     s.launch({KernelFamily::kGatherRows}, &a);
                   }});
  cases.push_back({"hadamard", 32 * kUnit * 8, 7.0 * kRows * 256, [](Side& s) {
                     HadamardArgs a;
                     a.x = s.floats(kRows * 256, 1);
                     a.out = s.result(kRows * 256);
                     a.rows = kRows;
                     a.n = a.ldx = a.ldo = 256;
                     a.block = a.power = 128;
                     s.launch({KernelFamily::kHadamard}, &a);
                   }});
  cases.push_back({"softmax", 32 * kUnit, 4.0 * kRows * kCols, [](Side& s) {
                     SoftmaxArgs a;
                     a.x = s.floats(kRows * kCols, 1);
                     a.out = s.result(kRows * kCols);
                     a.rows = kRows;
                     a.n = kCols;
                     a.scale = 3.f;
                     s.launch({KernelFamily::kSoftmax}, &a);
                   }});
  cases.push_back({"activate", 16 * kUnit, 4.0 * kRows * kCols, [](Side& s) {
                     ActivateArgs a;
                     a.x = s.floats(kRows * kCols, 1);
                     a.out = s.result(kRows * kCols);
                     a.n = kRows * kCols;
                     a.epilogue = Epilogue::kHardSwish;
                     a.alpha = 1 / 6.f;
                     a.beta = 0.5f;
                     s.launch({KernelFamily::kActivate}, &a);
                   }});
}

// One sequence of 300 tokens over pages of 16; its last 3 are the queries. |q . k| / sqrt(D) <= sqrt(D). With
// a latent one key head's leading dims are its values.
void attention(std::vector<DeviceCase>& cases, int32_t latent) {
  constexpr int64_t kTokens = 300, kQueries = 3, kHeads = 4, kPage = 16;
  const int32_t kv = latent > 0 ? 1 : 2, D = latent > 0 ? latent + 8 : 64, DV = latent > 0 ? latent : D;
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    const double kept = type == DType::kF32 ? 0 : type == DType::kF16 ? 0x1p-11 : 0x1p-8;
    const double logit = std::sqrt(D) * ((D + 8) * kUnit + kept);
    const double bound = std::expm1(2 * logit) + kept + kTokens * kUnit;
    cases.push_back({cat("append and attention ", dtype_name(type), latent > 0 ? ", keys hold values" : ""),
                     bound, 2.0 * kQueries * kTokens * kHeads * (D + DV), [=](Side& s) {
                       const KvShape shape{type, kPage, kv, D, latent};
                       const int64_t blocks = (kTokens + kPage - 1) / kPage;
                       std::vector<int32_t> table, slots;
                       for (int64_t i = 0; i < blocks; ++i)
                         table.push_back(static_cast<int32_t>(blocks - 1 - i));
                       for (int64_t t = 0; t < kTokens; ++t)
                         slots.push_back(
                             static_cast<int32_t>(table[static_cast<size_t>(t / kPage)] * kPage + t % kPage));
                       KvAppendArgs append;
                       append.pool = s.pages(static_cast<uint64_t>(blocks) * kv_block_bytes(shape));
                       append.k = s.floats(count(kTokens * kv * D), 3);
                       if (latent == 0) append.v = s.floats(count(kTokens * kv * D), 4);
                       append.slots = s.put(slots);
                       append.T = kTokens;
                       append.ldk = append.ldv = kv * D;
                       append.shape = shape;
                       PagedAttentionArgs a;
                       a.q = s.floats(count(kQueries * kHeads * D), 5);
                       a.out = s.result(count(kQueries * kHeads * DV));
                       a.pool = append.pool;
                       a.block_tables = s.put(table);
                       a.seq_start = s.put<int32_t>({0, static_cast<int32_t>(kQueries)});
                       a.context_len = s.put<int32_t>({static_cast<int32_t>(kTokens)});
                       a.T = kQueries;
                       a.B = 1;
                       a.H = kHeads;
                       a.ldq = kHeads * D;
                       a.ldo = kHeads * DV;
                       a.max_blocks = blocks;
                       a.shape = shape;
                       a.scale = 1.f / std::sqrt(static_cast<float>(D));
                       const auto key = [&](KernelFamily family) {
                         return cache_key(s, family, Format::of(type), latent);
                       };
                       if (s.launch(key(KernelFamily::kKvAppend), &append))
                         s.launch(key(KernelFamily::kPagedAttention), &a, kTokens);
                     }});
  }
}

constexpr int64_t kC = 16, kM = 24, kSide = 9, kPixels = kSide * kSide;

// With a precision the device's kernel of it, over operands that every one of them holds exactly.
void convolution(Side& s, const WindowShape& w, Precision precision) {
  const auto eighths = [](int64_t n, int64_t step) {
    std::vector<float> v;
    for (int64_t i = 0; i < n; ++i) v.push_back(static_cast<float>(i * step % 17 - 8) / 8);
    return v;
  };
  const std::vector<float> plain = eighths(kM * kC * 9, 1);
  const bool rounds = precision != Precision::kF32 && s.backend().memory() == MemoryKind::kDevice;
  const int64_t panel = s.backend().filter_panel();
  std::vector<float> packed(static_cast<size_t>(packed_filter_floats(kM, 1, 9, kC, panel)));
  pack_filters(packed.data(), plain.data(), kM, 1, 9, kC, kC * 9, 9, 1, panel);
  ConvArgs a;
  KernelKey key{KernelFamily::kConv};
  if (rounds) {
    key = rounded_conv_key(precision);
    const auto bytes = static_cast<size_t>(key.weight.block_bytes());
    const size_t K = 9 * kC, row = (K * bytes + 63) / 64 * 64;
    std::vector<uint8_t> filters(kM * row);
    for (size_t m = 0; m < kM; ++m) {
      for (size_t k = 0; k < K; ++k) {
        uint8_t* const to = &filters[m * row + k * bytes];
        if (precision == Precision::kTf32) std::memcpy(to, &packed[m * K + k], bytes);
        else key.weight.encode_row(&packed[m * K + k], 1, to);
      }
    }
    a.w = reinterpret_cast<const float*>(s.put(filters));
  } else {
    a.w = s.put(packed);
  }
  a.x = precision == Precision::kF32 ? s.floats(kPixels * kC, 1) : s.put(eighths(kPixels * kC, 5));
  a.bias = s.floats(kM, 2);
  a.residual = s.floats(kPixels * kM, 3);
  a.out = s.result(kPixels * kM);
  a.window = w;
  a.C = a.ldx = kC;
  a.M = a.ldo = kM;
  a.panel = panel;
  a.epilogue = Epilogue::kClamp;
  a.beta = 6;
  s.launch(key, &a);
}

void images(std::vector<DeviceCase>& cases) {
  WindowShape w;
  w.N = 1;
  w.H = w.W = w.OH = w.OW = kSide;
  w.KH = w.KW = 3;
  w.pad_top = w.pad_left = w.pad_bottom = w.pad_right = 1;
  for (const Precision p : {Precision::kF32, Precision::kBf16, Precision::kF16, Precision::kTf32})
    cases.push_back({p == Precision::kF32 ? "conv" : cat("conv ", precision_name(p)), 4 * sum_bound(9 * kC),
                     2.0 * kPixels * 9 * kC * kM, [w, p](Side& s) { convolution(s, w, p); }});
  cases.push_back({"depthwise", 4 * sum_bound(9), 2.0 * kPixels * 9 * kC, [w](Side& s) {
                     DepthwiseArgs a;
                     a.w = s.floats(9 * kC, 1);
                     a.x = s.floats(kPixels * kC, 2);
                     a.bias = s.floats(kC, 3);
                     a.out = s.result(kPixels * kC);
                     a.window = w;
                     a.C = kC;
                     a.epilogue = Epilogue::kSilu;
                     s.launch({KernelFamily::kDepthwise}, &a);
                   }});
  for (const PoolOp op : {PoolOp::kMax, PoolOp::kAverage}) {
    cases.push_back({op == PoolOp::kMax ? "pool, largest" : "pool, average", 16 * kUnit,
                     1.0 * kPixels * 9 * kC, [w, op](Side& s) {
                       PoolArgs a;
                       a.x = s.floats(kPixels * kC, 1);
                       a.out = s.result(kPixels * kC);
                       a.window = w;
                       a.C = kC;
                       a.op = op;
                       s.launch({KernelFamily::kPool}, &a);
                     }});
  }
}

}  // namespace

std::vector<DeviceCheck> check_device(Backend& device, Backend& reference) {
  std::vector<DeviceCase> cases;
  products(cases);
  rows(cases);
  attention(cases, 0);
  attention(cases, 64);
  images(cases);
  more_device_cases(cases);
  serving_device_cases(cases);
  std::vector<DeviceCheck> out;
  for (const DeviceCase& c : cases) {
    DeviceCheck& check = out.emplace_back();
    check.name = c.name;
    check.bound = c.bound;
    Side truth(reference), there(device);
    c.run(there);
    check.missing = there.missing();
    check.launches = there.launches();
    if (!check.launches.empty() && check.launches.back().computed == 0) {
      check.launches.back().bytes = there.bytes();
      check.launches.back().operations = c.operations;
    }
    if (check.missing) continue;
    c.run(truth);
    const std::vector<float> got = there.read(), want = truth.read();
    for (const Side* side : {&there, &truth})
      if (check.fault.empty() && !side->status().ok()) check.fault = side->status().message();
    for (size_t i = 0; i < want.size(); ++i) {
      const double d = std::fabs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
      if (!(d <= check.error)) check.error = d;  // keeps a NaN
      if (std::isnan(d)) break;
    }
  }
  return out;
}

}  // namespace oar::cli

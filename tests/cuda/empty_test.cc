// Where a size is 0 there is nothing to do, and nothing is launched: pointers may be anything.
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/causal_conv.h"
#include "kernels/conv.h"
#include "kernels/embedding.h"
#include "kernels/hadamard.h"
#include "kernels/integer_conv.h"
#include "kernels/kv_quant.h"
#include "kernels/lora.h"
#include "kernels/moe.h"
#include "kernels/norm.h"
#include "kernels/quantize.h"
#include "kernels/recurrent.h"
#include "kernels/reduce.h"
#include "kernels/resize.h"
#include "kernels/rope.h"
#include "kernels/sample.h"
#include "kernels/state_scan.h"
#include "kernels/strided_copy.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;

namespace {

// The struct with one size after the other 0, the others 64.
template <class Args>
void check(KernelFamily family, Args args, std::initializer_list<int64_t Args::*> sizes,
           const char* format = "f32", const char* keys = "", const char* values = "") {
  for (int64_t Args::*zero : sizes) {
    INFO(family_name(family));
    for (int64_t Args::*size : sizes) args.*size = 64;
    args.*zero = 0;
    launch_on_device(family, format, &args, keys, values);
  }
}

}  // namespace

TEST_CASE("cuda: nothing to do is done by every family", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  check(KernelFamily::kUnary, UnaryArgs{}, {&UnaryArgs::n});
  UnaryArgs sine;
  sine.op = UnaryOp::kSin;
  check(KernelFamily::kUnary, sine, {&UnaryArgs::n});
  check(KernelFamily::kActivate, ActivateArgs{}, {&ActivateArgs::n});
  check(KernelFamily::kBinary, BinaryArgs{}, {&BinaryArgs::rows, &BinaryArgs::cols});
  check(KernelFamily::kSwiGlu, SwiGluArgs{}, {&SwiGluArgs::T, &SwiGluArgs::F});
  check(KernelFamily::kSoftmax, SoftmaxArgs{}, {&SoftmaxArgs::rows, &SoftmaxArgs::n});
  ConvArgs conv;
  conv.window.N = conv.window.OH = conv.window.OW = 8;
  ConvArgs no_pixels = conv;
  no_pixels.M = 8;
  no_pixels.window.OW = 0;
  for (const char* numbers : {"f32", "bf16", "f16", "tf32"}) {
    check(KernelFamily::kConv, conv, {&ConvArgs::M}, numbers);
    launch_on_device(KernelFamily::kConv, numbers, &no_pixels);
  }
  conv.window.OW = 0;
  DepthwiseArgs depthwise;
  depthwise.window = conv.window;
  depthwise.C = 8;
  launch_on_device(KernelFamily::kDepthwise, "f32", &depthwise);
  PoolArgs pool;
  pool.window = conv.window;
  pool.C = 8;
  launch_on_device(KernelFamily::kPool, "f32", &pool);
  QuantizedConvArgs quantized_layer;
  quantized_layer.window = conv.window;
  quantized_layer.M = 8;
  launch_on_device(KernelFamily::kQuantizedConv, "i8", &quantized_layer);
  quantized_layer.depthwise = true;
  launch_on_device(KernelFamily::kQuantizedConv, "i8", &quantized_layer);
  IntegerConvArgs integer_layer;
  integer_layer.window = conv.window;
  integer_layer.M = 8;
  launch_on_device(KernelFamily::kQuantizedConv, "u8", &integer_layer);
  check(KernelFamily::kQuantizedConv, IntegerConvArgs{}, {&IntegerConvArgs::M}, "u8");
  check(KernelFamily::kNarrow, QuantizeArgs{}, {&QuantizeArgs::n}, "u8");
  check(KernelFamily::kNarrow, QuantizeArgs{}, {&QuantizeArgs::n}, "i32");
  check(KernelFamily::kRecurrent, RecurrentArgs{}, {&RecurrentArgs::B, &RecurrentArgs::D, &RecurrentArgs::H});
  check(KernelFamily::kReduce, ReduceArgs{}, {&ReduceArgs::outer, &ReduceArgs::inner});
  check(KernelFamily::kResize, ResizeArgs{}, {&ResizeArgs::outer, &ResizeArgs::inner});
  StridedCopyArgs box;
  box.rank = 2;
  box.dims[0] = 3;  // of none
  launch_on_device(KernelFamily::kStridedCopy, "f32", &box);
  check(KernelFamily::kSegmentAttention, SegmentAttentionArgs{},
        {&SegmentAttentionArgs::T, &SegmentAttentionArgs::H, &SegmentAttentionArgs::D});
  check(KernelFamily::kDenseAttention, DenseAttentionArgs{},
        {&DenseAttentionArgs::B, &DenseAttentionArgs::H, &DenseAttentionArgs::S, &DenseAttentionArgs::DV});
  check(KernelFamily::kRmsNorm, RmsNormArgs{}, {&RmsNormArgs::rows, &RmsNormArgs::cols});
  check(KernelFamily::kLayerNorm, LayerNormArgs{}, {&LayerNormArgs::rows, &LayerNormArgs::cols});
  check(KernelFamily::kRope, RopeArgs{}, {&RopeArgs::T, &RopeArgs::heads, &RopeArgs::D});
  check(KernelFamily::kGatherRows, GatherRowsArgs{}, {&GatherRowsArgs::R, &GatherRowsArgs::E});
  check(KernelFamily::kEmbedding, EmbeddingArgs{}, {&EmbeddingArgs::T, &EmbeddingArgs::E}, "q4_0");
  check(KernelFamily::kHadamard, HadamardArgs{}, {&HadamardArgs::rows, &HadamardArgs::n});
  check(KernelFamily::kCausalConv, CausalConvArgs{}, {&CausalConvArgs::T, &CausalConvArgs::C});
  StateScanArgs scan;
  scan.shape = {1, 1, 8, 8};
  check(KernelFamily::kStateScan, scan, {&StateScanArgs::T});
  check(KernelFamily::kMoeCombine, MoeCombineArgs{}, {&MoeCombineArgs::T, &MoeCombineArgs::E});
  check(KernelFamily::kSample, SampleArgs{}, {&SampleArgs::num_rows});
  check(KernelFamily::kFeedTokens, FeedTokensArgs{}, {&FeedTokensArgs::T});
  check(KernelFamily::kMoeRoute, MoeRouteArgs{}, {&MoeRouteArgs::experts});
  check(KernelFamily::kLora, LoraArgs{}, {&LoraArgs::T, &LoraArgs::n, &LoraArgs::R});
  check(KernelFamily::kKvAppend, KvAppendArgs{.shape = {DType::kBF16, 16, 2, 64}}, {&KvAppendArgs::T},
        "bf16");
  const auto sizes_of_attention = {&PagedAttentionArgs::T, &PagedAttentionArgs::H, &PagedAttentionArgs::B,
                                   &PagedAttentionArgs::max_blocks};
  check(KernelFamily::kPagedAttention, PagedAttentionArgs{.shape = {DType::kBF16, 16, 2, 64}},
        sizes_of_attention, "bf16");
  const QuantKvShape shape{KvCode::kInt8, KvCode::kInt8, 16, 2, 64};
  check(KernelFamily::kQuantKvAppend, QuantKvAppendArgs{.shape = shape}, {&QuantKvAppendArgs::T}, "bf16",
        "int8", "int8");
  QuantPagedAttentionArgs quantized;
  quantized.shape = shape;
  for (int64_t PagedAttentionArgs::*zero : sizes_of_attention) {
    for (int64_t PagedAttentionArgs::*size : sizes_of_attention) quantized.common.*size = 64;
    quantized.common.*zero = 0;
    launch_on_device(KernelFamily::kQuantPagedAttention, "bf16", &quantized, "int8", "int8");
  }
  const MatmulSegment none{nullptr, nullptr, 0, 0};
  MatmulArgs matmul;
  matmul.segments = &none;
  matmul.num_segments = 1;
  GroupedMatmulArgs grouped;
  grouped.segments = &none;
  grouped.segments_per_expert = grouped.experts = 1;
  for (const char* format : {"bf16", "q4_0", "e4m3_g128", "q4_k", "iq4_nl"}) {
    check(KernelFamily::kMatmul, matmul, {&MatmulArgs::T}, format);
    MatmulArgs no_outputs = matmul;
    no_outputs.T = 64;
    launch_on_device(KernelFamily::kMatmul, format, &no_outputs);
    GatedMatmulArgs gated;
    gated.matmul = matmul;  // of no rows
    launch_on_device(KernelFamily::kGatedMatmul, format, &gated);
    gated.matmul = no_outputs;
    launch_on_device(KernelFamily::kGatedMatmul, format, &gated);
    check(KernelFamily::kGroupedMatmul, grouped, {&GroupedMatmulArgs::P}, format);
    GroupedMatmulArgs of_none = grouped;
    of_none.P = 64;
    launch_on_device(KernelFamily::kGroupedMatmul, format, &of_none);
  }
}

TEST_CASE("cuda: sizes that no kernel serves are refused, not launched", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const auto refused = [](KernelFamily family, const char* format, const void* args, const char* codes = "") {
    return !cuda::find_device_kernel(family, format, codes, codes)->launch(args, nullptr, nullptr).ok();
  };
  MatmulArgs matmul;
  const MatmulSegment segment{nullptr, nullptr, 16, 0};
  matmul.segments = &segment;
  matmul.num_segments = 1;
  matmul.T = int64_t{64} << 31;  // blocks beyond a grid
  CHECK(refused(KernelFamily::kMatmul, "bf16", &matmul));
  GroupedMatmulArgs grouped;
  grouped.segments = &segment;
  grouped.segments_per_expert = grouped.experts = 1;
  grouped.P = int64_t{64} << 31;
  CHECK(refused(KernelFamily::kGroupedMatmul, "bf16", &grouped));
  ReduceArgs reduction;
  reduction.outer = int64_t{1} << 31;  // blocks beyond a grid
  CHECK(refused(KernelFamily::kReduce, "f32", &reduction));
  PagedAttentionArgs attention;
  attention.T = attention.H = 1;
  attention.shape = {DType::kBF16, 16, 1, 520};
  CHECK(refused(KernelFamily::kPagedAttention, "bf16", &attention));
  QuantKvAppendArgs append;
  append.T = 1;
  append.shape = {KvCode::kInt8, KvCode::kInt8, 16, 1, 520};
  CHECK(refused(KernelFamily::kQuantKvAppend, "bf16", &append, "int8"));
  QuantPagedAttentionArgs quantized;
  quantized.common = attention;
  quantized.shape = append.shape;
  CHECK(refused(KernelFamily::kQuantPagedAttention, "bf16", &quantized, "int8"));
  attention.shape = {DType::kBF16, 16, 1, 584, 512};
  CHECK(!cuda::find_device_kernel(KernelFamily::kPagedAttention, "bf16", {}, {}, true)
             ->launch(&attention, nullptr, nullptr)
             .ok());
  quantized.shape = append.shape = {KvCode::kInt8, KvCode::kInt8, 16, 1, 584, 512};
  CHECK(refused(KernelFamily::kQuantKvAppend, "bf16", &append, "int8"));
  CHECK(refused(KernelFamily::kQuantPagedAttention, "bf16", &quantized, "int8"));
  LoraArgs lora;
  lora.T = lora.n = 1;
  lora.R = 5000;
  CHECK(refused(KernelFamily::kLora, "f32", &lora));
  MoeRouteArgs route;
  route.experts = 5000;
  CHECK(refused(KernelFamily::kMoeRoute, "f32", &route));
  ConvArgs conv;
  conv.window.N = (int64_t{1} << 32) + 1, conv.window.OH = conv.window.OW = 8;
  conv.M = 64;
  CHECK(refused(KernelFamily::kConv, "f32", &conv));
  for (const char* numbers : {"bf16", "f16", "tf32"}) {
    ConvArgs rounded;
    rounded.M = 64;
    rounded.window.N = (int64_t{2} << 32) + 2, rounded.window.OH = rounded.window.OW = 8;
    CHECK(refused(KernelFamily::kConv, numbers, &rounded));
    rounded.window.N = 1;
    rounded.groups = 2;
    CHECK(refused(KernelFamily::kConv, numbers, &rounded));
    rounded.groups = 1;
    rounded.planar = 1;
    CHECK(refused(KernelFamily::kConv, numbers, &rounded));
  }
  QuantizedConvArgs quantized_layer;
  quantized_layer.window = conv.window;
  quantized_layer.M = 64;
  CHECK(refused(KernelFamily::kQuantizedConv, "i8", &quantized_layer));
  quantized_layer.depthwise = true;
  CHECK(refused(KernelFamily::kQuantizedConv, "i8", &quantized_layer));
  IntegerConvArgs integer_layer;
  integer_layer.window = conv.window;
  integer_layer.M = 64;
  CHECK(refused(KernelFamily::kQuantizedConv, "u8", &integer_layer));
  QuantizeArgs codes;
  codes.n = int64_t{1} << 42;
  CHECK(refused(KernelFamily::kNarrow, "u8", &codes));
  CHECK(refused(KernelFamily::kNarrow, "i32", &codes));
  codes.n = 8;
  codes.count = 0;
  CHECK(refused(KernelFamily::kNarrow, "u8", &codes));
  codes.count = 8;
  codes.inner = 0;
  CHECK(refused(KernelFamily::kNarrow, "u8", &codes));
  RecurrentArgs cells;
  cells.D = cells.H = 1;
  cells.B = (int64_t{1} << 32) + 1;
  CHECK(refused(KernelFamily::kRecurrent, "f32", &cells));
  cells.B = 1;
  cells.H = 20 << 10;  // beyond a block's shared memory
  CHECK(refused(KernelFamily::kRecurrent, "f32", &cells));
  StateScanArgs scan;
  scan.T = 1;
  scan.shape = {1, 1, 2000, 8};
  CHECK(refused(KernelFamily::kStateScan, "f32", &scan));
  LayerNormArgs norm;
  norm.rows = -1;
  CHECK(refused(KernelFamily::kLayerNorm, "f32", &norm));
}

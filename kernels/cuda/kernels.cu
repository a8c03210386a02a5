#include "kernels/cuda/kernels.h"

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_dense.h"
#include "kernels/cuda/attention_quant.h"
#include "kernels/cuda/conv.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/hadamard.h"
#include "kernels/cuda/heads.h"
#include "kernels/cuda/lora.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/pool.h"
#include "kernels/cuda/quantize.h"
#include "kernels/cuda/quantized_conv.h"
#include "kernels/cuda/recurrent.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/resize.h"
#include "kernels/cuda/rope.h"
#include "kernels/cuda/rounded_conv.h"
#include "kernels/cuda/sampling.h"
#include "kernels/cuda/softmax.h"
#include "kernels/cuda/state.h"
#include "kernels/cuda/strided_copy.h"

namespace oar::cuda {
namespace {

template <class Args, CudaStatus (*kRun)(const Args&, Stream)>
CudaStatus run(const void* args, void*, Stream stream) {
  return kRun(*static_cast<const Args*>(args), stream);
}
template <class Args, CudaStatus (*kRun)(const Args&, void*, Stream)>
CudaStatus run_with(const void* args, void* scratch, Stream stream) {
  return kRun(*static_cast<const Args*>(args), scratch, stream);
}
template <class Args, uint64_t (*kBytes)(const Args&)>
uint64_t bytes(const void* args) {
  return kBytes(*static_cast<const Args*>(args));
}

template <KvType kType>
CudaStatus with_heads(const Heads& heads, const void* args, Stream stream) {
  return append_heads<kType>(heads, *static_cast<const KvAppendArgs*>(args), stream);
}

template <KvType kType>
constexpr DeviceKernel plain_append(const char* format, bool latent = false) {
  DeviceKernel kernel{KernelFamily::kKvAppend, format, run<KvAppendArgs, kv_append<kType>>};
  kernel.latent = latent;
  kernel.with_heads = with_heads<kType>;
  return kernel;
}

std::string too_large(const char* what, int64_t value, int64_t most) {
  if (value <= most) return {};
  return std::string(what) + " is " + std::to_string(value) + ", above " + std::to_string(most) +
         ", the most that the device's kernel takes";
}
std::string beyond(const LoraArgs& a) { return too_large("rank", a.R, kMostRank); }
std::string beyond(const MoeRouteArgs& a) {
  const std::string experts = too_large("experts", a.experts, kMostExperts);
  return experts.empty() ? too_large("groups", a.groups, kMostExpertGroups) : experts;
}
std::string beyond(const StateScanArgs& a) { return too_large("key_dim", a.shape.key_dim, kMostKeyDims); }
std::string beyond(const RecurrentArgs& a) { return too_large("H", a.H, kMostState); }
// That says so.
template <class Args>
constexpr DeviceKernel limited(DeviceKernel kernel) {
  kernel.beyond = [](const void* args) { return beyond(*static_cast<const Args*>(args)); };
  return kernel;
}

constexpr DeviceKernel kKernels[] = {
    {KernelFamily::kRmsNorm, "f32", run<RmsNormArgs, rms_norm>},
    {KernelFamily::kLayerNorm, "f32", run<LayerNormArgs, layer_norm>},
    {KernelFamily::kRope, "f32", run<RopeArgs, rope>},
    plain_append<KvType::kF32>("f32"),
    plain_append<KvType::kF16>("f16"),
    plain_append<KvType::kBF16>("bf16"),
    {KernelFamily::kPagedAttention, "f32", run_with<PagedAttentionArgs, paged_attention<KvType::kF32>>,
     bytes<PagedAttentionArgs, paged_attention_scratch<KvType::kF32>>},
    {KernelFamily::kPagedAttention, "f16", run_with<PagedAttentionArgs, paged_attention<KvType::kF16>>,
     bytes<PagedAttentionArgs, paged_attention_scratch<KvType::kF16>>},
    {KernelFamily::kPagedAttention, "bf16", run_with<PagedAttentionArgs, paged_attention<KvType::kBF16>>,
     bytes<PagedAttentionArgs, paged_attention_scratch<KvType::kBF16>>},
    {KernelFamily::kSwiGlu, "f32", run<SwiGluArgs, swiglu>},
    {KernelFamily::kUnary, "f32", run<UnaryArgs, unary>},
    {KernelFamily::kBinary, "f32", run<BinaryArgs, binary>},
    {KernelFamily::kActivate, "f32", run<ActivateArgs, activate>},
    {KernelFamily::kSoftmax, "f32", run<SoftmaxArgs, softmax>},
    {KernelFamily::kConv, "f32", run<ConvArgs, conv>},
    {KernelFamily::kConv, "bf16", run<ConvArgs, rounded_conv<Rounding::kBf16>>},
    {KernelFamily::kConv, "f16", run<ConvArgs, rounded_conv<Rounding::kF16>>},
    {KernelFamily::kConv, "tf32", run<ConvArgs, rounded_conv<Rounding::kTf32>>},
    {KernelFamily::kDepthwise, "f32", run<DepthwiseArgs, depthwise>},
    {KernelFamily::kPool, "f32", run<PoolArgs, pool>},
    {KernelFamily::kQuantizedConv, "i8", run<QuantizedConvArgs, quantized_conv>},
    {KernelFamily::kQuantizedConv, "u8", run<IntegerConvArgs, integer_conv>},
    {KernelFamily::kNarrow, "u8", run_with<QuantizeArgs, quantize>, bytes<QuantizeArgs, quantize_scratch>},
    {KernelFamily::kNarrow, "i32", run<QuantizeArgs, integers>},
    limited<RecurrentArgs>({KernelFamily::kRecurrent, "f32", run<RecurrentArgs, recurrent>}),
    {KernelFamily::kReduce, "f32", run<ReduceArgs, reduce>},
    {KernelFamily::kResize, "f32", run<ResizeArgs, resize>},
    {KernelFamily::kStridedCopy, "f32", run<StridedCopyArgs, strided_copy>},
    {KernelFamily::kSegmentAttention, "f32", run<SegmentAttentionArgs, segment_attention>},
    {KernelFamily::kDenseAttention, "f32", run<DenseAttentionArgs, dense_attention>},
    {KernelFamily::kGatherRows, "f32", run<GatherRowsArgs, gather_rows>},
    {KernelFamily::kHadamard, "f32", run_with<HadamardArgs, hadamard>, bytes<HadamardArgs, hadamard_scratch>},
    limited<MoeRouteArgs>({KernelFamily::kMoeRoute, "f32", run_with<MoeRouteArgs, moe_route>,
                           bytes<MoeRouteArgs, moe_route_scratch>}),
    {KernelFamily::kCausalConv, "f32", run<CausalConvArgs, causal_conv>},
    limited<StateScanArgs>({KernelFamily::kStateScan, "f32", run<StateScanArgs, state_scan>}),
    {KernelFamily::kMoeCombine, "f32", run<MoeCombineArgs, moe_combine>},
    {KernelFamily::kSample, "f32", run_with<SampleArgs, sample>, bytes<SampleArgs, sample_scratch>},
    {KernelFamily::kFeedTokens, "f32", run<FeedTokensArgs, feed_tokens>},
    limited<LoraArgs>({KernelFamily::kLora, "f32", run_with<LoraArgs, lora<LoraNumbers::kF32>>,
                       bytes<LoraArgs, lora_scratch>}),
    limited<LoraArgs>({KernelFamily::kLora, "bf16", run_with<LoraArgs, lora<LoraNumbers::kBF16>>,
                       bytes<LoraArgs, lora_scratch>}),
};

// The codes come from the key; what the arguments say of them is not for the device.
template <KvCode kKeys, KvCode kValues>
CudaStatus append(const void* args, void*, Stream stream) {
  return quant_kv_append(*static_cast<const QuantKvAppendArgs*>(args), kKeys, kValues, stream);
}
template <KvCode kKeys, KvCode kValues>
CudaStatus append_with_heads(const Heads& heads, const void* args, Stream stream) {
  return quant_append_heads(heads, *static_cast<const QuantKvAppendArgs*>(args), kKeys, kValues, stream);
}
template <KvCode kKeys, KvCode kValues>
CudaStatus attend(const void* args, void* scratch, Stream stream) {
  return quant_paged_attention(*static_cast<const QuantPagedAttentionArgs*>(args), kKeys, kValues, scratch,
                               stream);
}
template <KvCode kKeys, KvCode kValues>
CudaStatus attend_and_transform(const void* args, const HadamardArgs& transform, void* scratch,
                                Stream stream) {
  return quant_paged_attention(*static_cast<const QuantPagedAttentionArgs*>(args), kKeys, kValues, scratch,
                               stream, &transform);
}
template <KvCode kKeys, KvCode kValues>
constexpr DeviceKernel quant_append(const char* keys, const char* values, bool latent = false) {
  DeviceKernel kernel{
      KernelFamily::kQuantKvAppend, "bf16", append<kKeys, kValues>, nullptr, keys, values, latent};
  kernel.with_heads = append_with_heads<kKeys, kValues>;
  return kernel;
}
template <KvCode kKeys, KvCode kValues>
constexpr DeviceKernel quant_attention(const char* keys, const char* values) {
  DeviceKernel kernel{KernelFamily::kQuantPagedAttention,
                      "bf16",
                      attend<kKeys, kValues>,
                      bytes<QuantPagedAttentionArgs, quant_paged_attention_scratch>,
                      keys,
                      values};
  kernel.with_transform = attend_and_transform<kKeys, kValues>;
  return kernel;
}
// Names as kv_code_name() has them.
#define OAR_CODES(keys, values, key_name, value_name)               \
  quant_append<KvCode::keys, KvCode::values>(key_name, value_name), \
      quant_attention<KvCode::keys, KvCode::values>(key_name, value_name),
#define OAR_CODES_OF(keys, key_name)       \
  OAR_CODES(keys, kInt8, key_name, "int8") \
  OAR_CODES(keys, kFp8, key_name, "fp8")   \
  OAR_CODES(keys, kInt4, key_name, "int4") \
  OAR_CODES(keys, kInt3, key_name, "int3")
constexpr DeviceKernel kQuantized[] = {OAR_CODES_OF(kInt8, "int8") OAR_CODES_OF(kFp8, "fp8")
                                           OAR_CODES_OF(kInt4, "int4") OAR_CODES_OF(kInt4Mean, "int4_mean")};
#undef OAR_CODES_OF
#undef OAR_CODES

// Of keys that hold values both have one code.
#define OAR_PLAIN(name, type)                                            \
  plain_append<KvType::type>(name, true),                                \
      {KernelFamily::kPagedAttention,                                    \
       name,                                                             \
       run_with<PagedAttentionArgs, paged_attention<KvType::type>>,      \
       bytes<PagedAttentionArgs, paged_attention_scratch<KvType::type>>, \
       {},                                                               \
       {},                                                               \
       true},
#define OAR_CODES(code, name)                                         \
  quant_append<KvCode::code, KvCode::code>(name, name, true),         \
      {KernelFamily::kQuantPagedAttention,                            \
       "bf16",                                                        \
       attend<KvCode::code, KvCode::code>,                            \
       bytes<QuantPagedAttentionArgs, quant_paged_attention_scratch>, \
       name,                                                          \
       name,                                                          \
       true},
constexpr DeviceKernel kLatents[] = {OAR_PLAIN("f32", kF32) OAR_PLAIN("f16", kF16) OAR_PLAIN(
    "bf16", kBF16) OAR_CODES(kInt8, "int8") OAR_CODES(kFp8, "fp8") OAR_CODES(kInt4Mean, "int4_mean")};
#undef OAR_PLAIN
#undef OAR_CODES

}  // namespace

std::span<const DeviceKernel> device_kernels() { return kKernels; }
std::span<const DeviceKernel> quantized_cache_kernels() { return kQuantized; }
std::span<const DeviceKernel> latent_kernels() { return kLatents; }

const DeviceKernel* find_device_kernel(KernelFamily family, std::string_view format, std::string_view keys,
                                       std::string_view values, bool latent) {
  for (const auto kernels : {device_kernels(), quantized_cache_kernels(), latent_kernels(), product_kernels(),
                             embedding_kernels()}) {
    for (const DeviceKernel& k : kernels) {
      if (k.family == family && k.format == format && k.keys == keys && k.values == values &&
          k.latent == latent)
        return &k;
    }
  }
  return nullptr;
}

}  // namespace oar::cuda

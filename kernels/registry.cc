// The table of all compiled kernels and the search in it. Built once from the constant tables of the kernel
// files, without entering their code.
#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "kernels/kernel_list.h"
#include "kernels/matmul.h"

namespace oar {

const char* family_name(KernelFamily family) {
  switch (family) {
    case KernelFamily::kMatmul: return "matmul";
    case KernelFamily::kGroupedMatmul: return "grouped_matmul";
    case KernelFamily::kMoeRoute: return "moe_route";
    case KernelFamily::kMoeCombine: return "moe_combine";
    case KernelFamily::kRmsNorm: return "rms_norm";
    case KernelFamily::kLayerNorm: return "layer_norm";
    case KernelFamily::kRope: return "rope";
    case KernelFamily::kKvAppend: return "kv_append";
    case KernelFamily::kPagedAttention: return "paged_attention";
    case KernelFamily::kQuantKvAppend: return "quant_kv_append";
    case KernelFamily::kQuantPagedAttention: return "quant_paged_attention";
    case KernelFamily::kSwiGlu: return "swiglu";
    case KernelFamily::kUnary: return "unary";
    case KernelFamily::kBinary: return "binary";
    case KernelFamily::kEmbedding: return "embedding";
    case KernelFamily::kGatherRows: return "gather_rows";
    case KernelFamily::kHadamard: return "hadamard";
    case KernelFamily::kConv: return "conv";
    case KernelFamily::kWinograd: return "winograd";
    case KernelFamily::kQuantizedConv: return "quantized_conv";
    case KernelFamily::kNarrow: return "narrow";
    case KernelFamily::kDepthwise: return "depthwise";
    case KernelFamily::kPool: return "pool";
    case KernelFamily::kSoftmax: return "softmax";
    case KernelFamily::kActivate: return "activate";
    case KernelFamily::kRecurrent: return "recurrent";
    case KernelFamily::kGatedMatmul: return "gated_matmul";
    case KernelFamily::kSegmentAttention: return "segment_attention";
    case KernelFamily::kLora: return "lora";
    case KernelFamily::kCausalConv: return "causal_conv";
    case KernelFamily::kDenseAttention: return "dense_attention";
    case KernelFamily::kResize: return "resize";
    case KernelFamily::kStateScan: return "state_scan";
    case KernelFamily::kStridedCopy: return "strided_copy";
    case KernelFamily::kSample: return "sample";
    case KernelFamily::kFeedTokens: return "feed_tokens";
    case KernelFamily::kSeenSoftmax: return "seen_softmax";
    case KernelFamily::kSoftmaxGrad: return "softmax_grad";
    case KernelFamily::kCrossEntropy: return "cross_entropy";
    case KernelFamily::kSquares: return "squares";
    case KernelFamily::kAdamw: return "adamw";
    case KernelFamily::kReduce: return "reduce";
  }
  return "unknown";
}

namespace {

class CpuTable {
 public:
  CpuTable() {
#define OAR_REGISTER(name) add(kernels_##name);
#include "oar_kernels.inc"
#undef OAR_REGISTER
    for (const Kernel& k : kernels_) sorted_.push_back(&k);
    std::stable_sort(sorted_.begin(), sorted_.end(), [](const Kernel* a, const Kernel* b) {
      if (a->family != b->family) return a->family < b->family;
      if (a->format.has_value() != b->format.has_value()) return a->format.has_value();
      return a->isa > b->isa;
    });
  }
  std::span<const Kernel* const> sorted() const { return sorted_; }

 private:
  void add(const KernelTable& table) {
    if (table.available != nullptr && !table.available()) return;
    for (const KernelEntry& e : table.entries) {
      std::optional<Format> format;
      if (e.format != nullptr) format = Format::find(e.format);
      if (e.layout != nullptr && std::string_view(weight_layout(*format, e.isa).name) != e.layout) continue;
      std::string name = family_name(e.family);
      if (format) name.append(".").append(format->name());
      name.append(".").append(e.level != nullptr ? e.level : isa_name(e.isa));
      const Format input = e.input != nullptr ? *Format::find(e.input) : Format::f32();
      kernels_.push_back({e.family, e.isa, names_.emplace_back(std::move(name)).c_str(), format, e.plan,
                          e.run, e.weights, e.sum, input});
    }
  }

  std::deque<std::string> names_;
  std::deque<Kernel> kernels_;
  std::vector<const Kernel*> sorted_;
};

const CpuTable& cpu_table() {
  static const CpuTable table;
  return table;
}

}  // namespace

const char* kv_code_name(KvCode code) {
  switch (code) {
    case KvCode::kInt8: return "int8";
    case KvCode::kFp8: return "fp8";
    case KvCode::kInt4: return "int4";
    case KvCode::kInt4Mean: return "int4_mean";
    case KvCode::kInt3: return "int3";
  }
  return "unknown";
}

KernelKey int8_conv_key() {
  static const Format u8 = Format::of(DType::kU8), i8 = Format::of(DType::kI8);
  return {.family = KernelFamily::kQuantizedConv, .weight = i8, .input = u8, .sum = Accumulation::kI32};
}

KernelKey bf16_conv_key() {
  return {.family = KernelFamily::kQuantizedConv, .weight = Format::bf16(), .input = Format::bf16()};
}

const Kernel* KernelRegistry::find(const KernelKey& key, Isa isa) const {
  if (key.layout != ImageLayout::kFamily) return nullptr;
  for (const Kernel* k : all()) {
    if (k->family == key.family && k->isa <= isa && (!k->format || *k->format == key.weight) &&
        k->input == key.input && k->sum == key.sum)
      return k;
  }
  return nullptr;
}

std::span<const Kernel* const> KernelRegistry::all() const { return cpu_table().sorted(); }

const KernelRegistry& KernelRegistry::cpu() {
  static const KernelRegistry registry;
  return registry;
}

}  // namespace oar

#include "tests/plugin/loopback_kernels.h"

#include <cstring>
#include <memory>

#include "engine/tensor/plugin.h"
#include "kernels/attention.h"
#include "kernels/embedding.h"
#include "kernels/matmul.h"
#include "kernels/moe.h"

namespace loopback {
namespace {

struct Family {
  int32_t id;
  const char* name;
  size_t size;
  std::vector<size_t> pointers;  // offsets of device pointers in the argument struct
  uint32_t version = 1;          // the last that is known
};

#define AT(Struct, field) offsetof(Struct, field)

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {OAR_FAMILY_MATMUL,
       "matmul",
       sizeof(oar_matmul_args),
       {AT(oar_matmul_args, out), AT(oar_matmul_args, x), AT(oar_matmul_args, residual)}},
      {OAR_FAMILY_GROUPED_MATMUL,
       "grouped_matmul",
       sizeof(oar_grouped_matmul_args),
       {AT(oar_grouped_matmul_args, out), AT(oar_grouped_matmul_args, x),
        AT(oar_grouped_matmul_args, pair_token), AT(oar_grouped_matmul_args, expert_start)}},
      {OAR_FAMILY_MOE_ROUTE,
       "moe_route",
       sizeof(oar_moe_route_args),
       {AT(oar_moe_route_args, pair_token), AT(oar_moe_route_args, pair_slot),
        AT(oar_moe_route_args, pair_weight), AT(oar_moe_route_args, expert_start),
        AT(oar_moe_route_args, logits), AT(oar_moe_route_args, bias), AT(oar_moe_route_args, expert_scale)},
       3},
      {OAR_FAMILY_MOE_COMBINE,
       "moe_combine",
       sizeof(oar_moe_combine_args),
       {AT(oar_moe_combine_args, out), AT(oar_moe_combine_args, y), AT(oar_moe_combine_args, pair_slot),
        AT(oar_moe_combine_args, pair_weight)}},
      {OAR_FAMILY_RMS_NORM,
       "rms_norm",
       sizeof(oar_rms_norm_args),
       {AT(oar_rms_norm_args, out), AT(oar_rms_norm_args, sum_out), AT(oar_rms_norm_args, x),
        AT(oar_rms_norm_args, residual), AT(oar_rms_norm_args, w)}},
      {OAR_FAMILY_LAYER_NORM,
       "layer_norm",
       sizeof(oar_layer_norm_args),
       {AT(oar_layer_norm_args, out), AT(oar_layer_norm_args, sum_out), AT(oar_layer_norm_args, x),
        AT(oar_layer_norm_args, residual), AT(oar_layer_norm_args, w), AT(oar_layer_norm_args, b)}},
      {OAR_FAMILY_ROPE,
       "rope",
       sizeof(oar_rope_args),
       {AT(oar_rope_args, out), AT(oar_rope_args, x), AT(oar_rope_args, positions),
        AT(oar_rope_args, inv_freq), AT(oar_rope_args, norm_w)},
       2},
      {OAR_FAMILY_KV_APPEND,
       "kv_append",
       sizeof(oar_kv_append_args),
       {AT(oar_kv_append_args, pool), AT(oar_kv_append_args, k), AT(oar_kv_append_args, v),
        AT(oar_kv_append_args, slots)}},
      {OAR_FAMILY_PAGED_ATTENTION,
       "paged_attention",
       sizeof(oar_paged_attention_args),
       {AT(oar_paged_attention_args, out), AT(oar_paged_attention_args, q),
        AT(oar_paged_attention_args, pool), AT(oar_paged_attention_args, block_tables),
        AT(oar_paged_attention_args, seq_start), AT(oar_paged_attention_args, context_len),
        AT(oar_paged_attention_args, sink_logits)}},
      {OAR_FAMILY_QUANT_KV_APPEND,
       "quant_kv_append",
       sizeof(oar_quant_kv_append_args),
       {AT(oar_quant_kv_append_args, pool), AT(oar_quant_kv_append_args, open),
        AT(oar_quant_kv_append_args, sinks), AT(oar_quant_kv_append_args, k), AT(oar_quant_kv_append_args, v),
        AT(oar_quant_kv_append_args, slots), AT(oar_quant_kv_append_args, open_slots),
        AT(oar_quant_kv_append_args, sink_slots)}},
      {OAR_FAMILY_QUANT_PAGED_ATTENTION,
       "quant_paged_attention",
       sizeof(oar_quant_paged_attention_args),
       {AT(oar_quant_paged_attention_args, common.out), AT(oar_quant_paged_attention_args, common.q),
        AT(oar_quant_paged_attention_args, common.pool),
        AT(oar_quant_paged_attention_args, common.block_tables),
        AT(oar_quant_paged_attention_args, common.seq_start),
        AT(oar_quant_paged_attention_args, common.context_len),
        AT(oar_quant_paged_attention_args, common.sink_logits), AT(oar_quant_paged_attention_args, open),
        AT(oar_quant_paged_attention_args, sinks), AT(oar_quant_paged_attention_args, open_tables),
        AT(oar_quant_paged_attention_args, sink_tables)}},
      {OAR_FAMILY_GATED_MATMUL,
       "gated_matmul",
       sizeof(oar_gated_matmul_args),
       {AT(oar_gated_matmul_args, matmul.out), AT(oar_gated_matmul_args, matmul.x),
        AT(oar_gated_matmul_args, matmul.residual), AT(oar_gated_matmul_args, gate)}},
      {OAR_FAMILY_LORA,
       "lora",
       sizeof(oar_lora_args),
       {AT(oar_lora_args, y), AT(oar_lora_args, x), AT(oar_lora_args, index), AT(oar_lora_args, ranks),
        AT(oar_lora_args, a), AT(oar_lora_args, b)}},
      {OAR_FAMILY_SWIGLU,
       "swiglu",
       sizeof(oar_swiglu_args),
       {AT(oar_swiglu_args, out), AT(oar_swiglu_args, gate), AT(oar_swiglu_args, up)}},
      {OAR_FAMILY_UNARY, "unary", sizeof(oar_unary_args), {AT(oar_unary_args, out), AT(oar_unary_args, x)}},
      {OAR_FAMILY_BINARY,
       "binary",
       sizeof(oar_binary_args),
       {AT(oar_binary_args, out), AT(oar_binary_args, a), AT(oar_binary_args, b)}},
      {OAR_FAMILY_EMBEDDING,
       "embedding",
       sizeof(oar_embedding_args),
       {AT(oar_embedding_args, out), AT(oar_embedding_args, table), AT(oar_embedding_args, ids)}},
      {OAR_FAMILY_GATHER_ROWS,
       "gather_rows",
       sizeof(oar_gather_rows_args),
       {AT(oar_gather_rows_args, out), AT(oar_gather_rows_args, x), AT(oar_gather_rows_args, rows)}},
      {OAR_FAMILY_HADAMARD,
       "hadamard",
       sizeof(oar_hadamard_args),
       {AT(oar_hadamard_args, out), AT(oar_hadamard_args, x), AT(oar_hadamard_args, signs),
        AT(oar_hadamard_args, cores), AT(oar_hadamard_args, cores) + 8, AT(oar_hadamard_args, cores) + 16,
        AT(oar_hadamard_args, cores) + 24}},
      {OAR_FAMILY_CONV,
       "conv",
       sizeof(oar_conv_args),
       {AT(oar_conv_args, out), AT(oar_conv_args, x), AT(oar_conv_args, w), AT(oar_conv_args, bias),
        AT(oar_conv_args, residual)}},
      {OAR_FAMILY_DEPTHWISE,
       "depthwise",
       sizeof(oar_depthwise_args),
       {AT(oar_depthwise_args, out), AT(oar_depthwise_args, x), AT(oar_depthwise_args, w),
        AT(oar_depthwise_args, bias), AT(oar_depthwise_args, residual)}},
      {OAR_FAMILY_POOL, "pool", sizeof(oar_pool_args), {AT(oar_pool_args, out), AT(oar_pool_args, x)}},
      {OAR_FAMILY_SOFTMAX,
       "softmax",
       sizeof(oar_softmax_args),
       {AT(oar_softmax_args, out), AT(oar_softmax_args, x), AT(oar_softmax_args, mask)}},
      {OAR_FAMILY_ACTIVATE,
       "activate",
       sizeof(oar_activate_args),
       {AT(oar_activate_args, out), AT(oar_activate_args, x)}},
      {OAR_FAMILY_SEGMENT_ATTENTION,
       "segment_attention",
       sizeof(oar_segment_attention_args),
       {AT(oar_segment_attention_args, out), AT(oar_segment_attention_args, q),
        AT(oar_segment_attention_args, k), AT(oar_segment_attention_args, v),
        AT(oar_segment_attention_args, segments), AT(oar_segment_attention_args, positions)}},
      {OAR_FAMILY_DENSE_ATTENTION,
       "dense_attention",
       sizeof(oar_dense_attention_args),
       {AT(oar_dense_attention_args, out), AT(oar_dense_attention_args, q), AT(oar_dense_attention_args, k),
        AT(oar_dense_attention_args, v), AT(oar_dense_attention_args, mask),
        AT(oar_dense_attention_args, lengths)}},
      {OAR_FAMILY_QUANTIZED_CONV,
       "quantized_conv",
       sizeof(oar_quantized_conv_args),
       {AT(oar_quantized_conv_args, out), AT(oar_quantized_conv_args, x), AT(oar_quantized_conv_args, w),
        AT(oar_quantized_conv_args, w_sums), AT(oar_quantized_conv_args, bias),
        AT(oar_quantized_conv_args, scale), AT(oar_quantized_conv_args, shift),
        AT(oar_quantized_conv_args, sum.other), AT(oar_quantized_conv_args, x_scale),
        AT(oar_quantized_conv_args, x_zeros), AT(oar_quantized_conv_args, residual)}},
      {OAR_FAMILY_RESIZE,
       "resize",
       sizeof(oar_resize_args),
       {AT(oar_resize_args, out), AT(oar_resize_args, x), AT(oar_resize_args, rows.first),
        AT(oar_resize_args, rows.at), AT(oar_resize_args, rows.weight), AT(oar_resize_args, cols.first),
        AT(oar_resize_args, cols.at), AT(oar_resize_args, cols.weight)}},
      {OAR_FAMILY_STRIDED_COPY,
       "strided_copy",
       sizeof(oar_strided_copy_args),
       {AT(oar_strided_copy_args, out), AT(oar_strided_copy_args, x)}},
      {OAR_FAMILY_RECURRENT,
       "recurrent",
       sizeof(oar_recurrent_args),
       {AT(oar_recurrent_args, gates), AT(oar_recurrent_args, r), AT(oar_recurrent_args, r_bias),
        AT(oar_recurrent_args, lengths), AT(oar_recurrent_args, h0), AT(oar_recurrent_args, c0),
        AT(oar_recurrent_args, h), AT(oar_recurrent_args, c), AT(oar_recurrent_args, y)},
       3},
      {OAR_FAMILY_NARROW,
       "narrow",
       sizeof(oar_quantize_args),
       {AT(oar_quantize_args, values), AT(oar_quantize_args, codes), AT(oar_quantize_args, scale),
        AT(oar_quantize_args, zero), AT(oar_quantize_args, own_scale), AT(oar_quantize_args, own_zero)}},
      {OAR_FAMILY_REDUCE,
       "reduce",
       sizeof(oar_reduce_args),
       {AT(oar_reduce_args, out), AT(oar_reduce_args, x)}}};
  return all;
}

const Family* find_family(int32_t id) {
  for (const Family& f : families()) {
    if (f.id == id) return &f;
  }
  return nullptr;
}

template <class T>
T& field(std::vector<std::byte>& bytes, size_t offset) {
  return *reinterpret_cast<T*>(bytes.data() + offset);
}

struct AlignedFree {
  void operator()(void* p) const { std::free(p); }
};

}  // namespace

const char* Launch::family_name(int32_t family) {
  const Family* f = find_family(family);
  return f != nullptr ? f->name : nullptr;
}

const oar::Kernel* Launch::find(int32_t family, const std::string& format) {
  const auto stored = oar::Format::find(format);
  if (find_family(family) == nullptr || !stored) return nullptr;
  if (family == OAR_FAMILY_CONV && format != "f32") return nullptr;  // it rounds no operands
  oar::KernelKey key{static_cast<oar::KernelFamily>(family), *stored};
  // Layers whose zero points come with a run, and what is in the CPU's own family beside quantization.
  if ((family == OAR_FAMILY_QUANTIZED_CONV && format != "i8") ||
      (family == OAR_FAMILY_NARROW && format != "u8" && format != "i32"))
    return nullptr;
  if (family == OAR_FAMILY_QUANTIZED_CONV) {
    key.input = oar::Format::of(oar::DType::kU8);
    key.sum = oar::Accumulation::kI32;
  }
  return oar::KernelRegistry::cpu().find(key, oar::Isa::kReference);
}

bool Launch::is_product() const {
  return family_ == OAR_FAMILY_MATMUL || family_ == OAR_FAMILY_GATED_MATMUL ||
         family_ == OAR_FAMILY_GROUPED_MATMUL;
}
size_t Launch::product_at() const {
  return family_ == OAR_FAMILY_GATED_MATMUL ? offsetof(oar_gated_matmul_args, matmul) : 0;
}

Launch::Launch(int32_t family, const std::string& format, const void* args, bool packed)
    : family_(family), packed_(packed), format_(format) {
  const Family& f = *find_family(family);
  const auto* from = static_cast<const std::byte*>(args);
  args_.assign(from, from + f.size);
  const auto stored = *oar::Format::find(format);
  const auto copy_segments = [&](size_t at, int64_t count) {
    const auto* segments = field<const std::byte*>(args_, at);
    segments_.assign(segments, segments + static_cast<size_t>(count) * sizeof(oar_matmul_segment));
  };
  // What the table calls internal is filled by this device alone: it trusts nothing of Oar's.
  if (family == OAR_FAMILY_GROUPED_MATMUL) {
    const auto& a = *static_cast<const oar_grouped_matmul_args*>(args);
    copy_segments(offsetof(oar_grouped_matmul_args, segments), a.experts * a.segments_per_expert);
    std::memcpy(args_.data() + offsetof(oar_grouped_matmul_args, internal), &stored, sizeof stored);
  } else if (is_product()) {
    const size_t at = product_at();
    const int64_t count = field<int64_t>(args_, at + offsetof(oar_matmul_args, num_segments));
    copy_segments(at + offsetof(oar_matmul_args, segments), count);
    std::memcpy(args_.data() + at + offsetof(oar_matmul_args, internal), &stored, sizeof stored);
    if (family == OAR_FAMILY_GATED_MATMUL)
      field<const void*>(args_, offsetof(oar_gated_matmul_args, internal)) = find(OAR_FAMILY_SWIGLU, "f32");
  } else if (family == OAR_FAMILY_EMBEDDING) {
    std::memcpy(args_.data() + offsetof(oar_embedding_args, internal), &stored, sizeof stored);
  } else if (family == OAR_FAMILY_LORA) {
    std::memcpy(args_.data() + offsetof(oar_lora_args, internal), &stored, sizeof stored);
  } else if (family == OAR_FAMILY_KV_APPEND) {
    field<oar_kv_shape>(args_, offsetof(oar_kv_append_args, shape)).type =
        static_cast<uint8_t>(stored.dtype());
  } else if (family == OAR_FAMILY_PAGED_ATTENTION) {
    field<oar_kv_shape>(args_, offsetof(oar_paged_attention_args, shape)).type =
        static_cast<uint8_t>(stored.dtype());
  }
}

size_t Launch::segments_at() const {
  return family_ == OAR_FAMILY_GROUPED_MATMUL ? offsetof(oar_grouped_matmul_args, segments)
                                              : product_at() + offsetof(oar_matmul_args, segments);
}
size_t Launch::k_at() const {
  return family_ == OAR_FAMILY_GROUPED_MATMUL ? offsetof(oar_grouped_matmul_args, K)
                                              : product_at() + offsetof(oar_matmul_args, K);
}

uint64_t Launch::shared_scratch() const {
  oar::KernelPlan plan;
  std::vector<std::byte> args = args_, segments = segments_;
  if (is_product()) field<const void*>(args, segments_at()) = segments.data();
  find(family_, format_)->plan(args.data(), 1, &plan);
  return plan.shared_scratch;
}

std::string Launch::run(const Translate& translate, void* shared) const {
  const Family& f = *find_family(family_);
  std::vector<std::byte> args = args_, segments = segments_;
  std::string wrong;
  const auto move = [&](std::vector<std::byte>& bytes, size_t offset) {
    const void*& p = field<const void*>(bytes, offset);
    if (p == nullptr) return;
    p = translate(p);
    if (p == nullptr)
      wrong = std::string(f.name) + ": byte " + std::to_string(offset) +
              " of the arguments does not point to device memory";
  };
  if (field<uint32_t>(args, 0) < f.size || field<uint32_t>(args, 4) > f.version)
    return std::string(f.name) + ": arguments of an unknown version";
  for (size_t offset : f.pointers) move(args, offset);
  std::vector<std::vector<std::byte>> rows;  // of weights, as they were before they were packed
  for (size_t at = 0; at < segments.size(); at += sizeof(oar_matmul_segment)) {
    move(segments, at + offsetof(oar_matmul_segment, w));
    move(segments, at + offsetof(oar_matmul_segment, bias));
    auto& segment = field<oar_matmul_segment>(segments, at);
    const int64_t K = field<int64_t>(args, k_at());
    const uint64_t bytes = packed_ ? packed_weight_bytes(format_, segment.n, K) : 0;
    if (bytes == 0 || segment.w == nullptr) continue;
    turn_weight(format_, segment.n, K, rows.emplace_back(bytes).data(), segment.w);
    segment.w = rows.back().data();
  }
  if (is_product()) field<const void*>(args, segments_at()) = segments.data();
  if (!wrong.empty()) return wrong;

  const oar::Kernel* kernel = find(family_, format_);
  oar::KernelPlan plan;
  kernel->plan(args.data(), 1, &plan);
  std::unique_ptr<void, AlignedFree> worker;
  if (plan.worker_scratch > 0) worker.reset(std::aligned_alloc(64, (plan.worker_scratch + 63) / 64 * 64));
  for (int phase = 0; phase < plan.phases; ++phase) {
    kernel->run(args.data(), phase, 0, plan.chunks[phase], {worker.get(), shared});
  }
  return "";
}

uint64_t packed_weight_bytes(const std::string& format, int64_t n, int64_t K) {
  const auto stored = *oar::Format::find(format);
  return stored.plain() ? 0 : static_cast<uint64_t>(n * stored.stride(K));
}

void turn_weight(const std::string& format, int64_t n, int64_t K, void* to, const void* from) {
  const auto stride = static_cast<size_t>(oar::Format::find(format)->stride(K));
  for (int64_t r = 0; r < n; ++r) {
    std::memcpy(static_cast<std::byte*>(to) + static_cast<size_t>(r) * stride,
                static_cast<const std::byte*>(from) + static_cast<size_t>(n - 1 - r) * stride, stride);
  }
}

}  // namespace loopback

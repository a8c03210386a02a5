// FP8 checkpoints of quant_method "fp8" (DeepSeek-V3, Qwen3 and others): weight (N, K) e4m3 and
//   weight_scale_inv (ceil(N / B0), ceil(K / B1))   with weight_block_size [B0, B1]: x = q * scale of the
//   tile weight_scale     one number, or one per row     without
// Despite its name, weight_scale_inv is multiplied with.
// https://huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/inference/kernel.py (weight_dequant)
#include "engine/base/format.h"
#include "engine/loader/byte_reader.h"
#include "engine/loader/quantized_weight.h"

namespace oar {
namespace {

class Fp8Reader : public QuantReader {
 public:
  int64_t block_rows = 0, block_cols = 0;  // 0: not in blocks

  std::span<const std::string_view> parts() const override {
    static constexpr std::string_view kParts[] = {"weight_scale_inv", "weight_scale"};
    return kParts;
  }

  Result<Tensor> weight(const QuantModule& m, std::string* notice) const override {
    OAR_ASSIGN(const Tensor* q, m.require("weight"));
    const DType dtype = q->format().dtype();
    if ((dtype != DType::kE4M3 && dtype != DType::kE5M2) || q->shape().rank() != 2 || q->numel() == 0) {
      return data_loss(cat(m.describe("weight"), "; a weight with a scale is a matrix of e4m3 or e5m2"));
    }
    const int64_t N = q->shape()[0], K = q->shape()[1];
    const std::string_view part = m.find("weight_scale_inv") != nullptr ? "weight_scale_inv" : "weight_scale";
    OAR_ASSIGN(const Tensor* scale, m.require(part));
    if (scale->numel() != 1 && block_rows > 0) {
      const int64_t rows = (N - 1) / block_rows + 1, cols = (K - 1) / block_cols + 1;
      if (scale->shape() != Shape{rows, cols}) {
        return data_loss(cat(m.describe(part), "; a weight ", q->shape().to_string(), " in blocks of ",
                             block_rows, " x ", block_cols,
                             " (weight_block_size of quantization_config) has [", rows, ", ", cols, "]"));
      }
      OAR_ASSIGN(const auto scales, read_scales(m, part));
      return make_f8_weight(*q, scales, block_rows, block_cols, notice);
    }
    const bool per_row = scale->shape() == Shape{N} || scale->shape() == Shape{N, 1};
    if (scale->numel() != 1 && !per_row) {
      return data_loss(cat(m.describe(part), "; a weight ", q->shape().to_string(),
                           " has one scale, or one per row: [", N,
                           ", 1]; scales of blocks need weight_block_size in quantization_config"));
    }
    OAR_ASSIGN(const auto scales, read_scales(m, part));
    return make_f8_weight(*q, scales, scale->numel() == 1 ? N : 1, K, notice);
  }
};

}  // namespace

Result<std::unique_ptr<QuantReader>> open_fp8(const json::object& config) {
  auto reader = std::make_unique<Fp8Reader>();
  const json::value* block = config.if_contains("weight_block_size");
  if (block != nullptr && !block->is_null()) {
    constexpr int64_t kMax = 1 << 20;
    const json::array* sizes = block->if_array();
    const auto size = [&](size_t i) { return (*sizes)[i].is_int64() ? (*sizes)[i].get_int64() : int64_t{0}; };
    if (sizes == nullptr || sizes->size() != 2 || size(0) < 1 || size(1) < 1 || size(0) > kMax ||
        size(1) > kMax) {
      return invalid_argument(cat("config.json: quantization_config.weight_block_size is ",
                                  json::serialize(*block),
                                  "; it is two positive numbers, rows and columns, [128, 128] for most"));
    }
    reader->block_rows = size(0);
    reader->block_cols = size(1);
  }
  return std::unique_ptr<QuantReader>(std::move(reader));
}

}  // namespace oar

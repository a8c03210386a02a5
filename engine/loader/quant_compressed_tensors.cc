// compressed-tensors checkpoints (llm-compressor, vLLM). Quantized weights of N rows and K columns are
//   weight (N, K) e4m3 or e5m2, weight_scale of one number, (N, 1) or a tile each   "float-quantized": FP8
//   weight (N, K) i8,   weight_scale of one number, (N, 1) or (N, K / G)           "int-quantized": W8A8
//   weight_packed (N, ceil(K / p)) i32, p = 32 / bits codes per word, lowest first; weight_shape = [N, K];
//   weight_scale (N, 1) or (N, K / G)                                              "pack-quantized": W4A16
//                                                                                  or W8A16
// weight_zero_point, where there is one, is i8 of the scales' shape, or packed along its rows, (ceil(N / p),
// K / G). x = (q - zero) * scale; packed numbers are stored plus 2^(bits - 1). weight_g_idx (K) is GPTQ's
// g_idx. What a tensor is follows from the tensors; config_groups must agree with it.
// https://github.com/vllm-project/compressed-tensors
#include <algorithm>
#include <optional>

#include "engine/base/format.h"
#include "engine/loader/byte_reader.h"
#include "engine/loader/quantized_weight.h"

namespace oar {
namespace {

// "weights" of one of config_groups.
struct Scheme {
  bool floating = false;
  int64_t bits = 0, group_size = 0;        // 0: not in groups
  int64_t block_rows = 0, block_cols = 0;  // 0: not in blocks

  std::string describe() const {
    return cat(bits, floating ? "-bit floats" : "-bit integers",
               group_size > 0   ? cat(" in groups of ", group_size)
               : block_rows > 0 ? cat(" in blocks of ", block_rows, " x ", block_cols)
                                : "");
  }
};

class CompressedTensorsReader : public QuantReader {
 public:
  std::vector<Scheme> schemes;
  std::vector<std::string> ignored;

  std::span<const std::string_view> parts() const override {
    static constexpr std::string_view kParts[] = {"weight_packed",     "weight_scale", "weight_shape",
                                                  "weight_zero_point", "weight_g_idx", "weight_global_scale"};
    return kParts;
  }

  Result<Tensor> weight(const QuantModule& m, std::string* notice) const override {
    if (std::find(ignored.begin(), ignored.end(), m.name()) != ignored.end()) {
      return data_loss(cat(m.describe("weight_scale"), ", but quantization_config.ignore lists ",
                           show_name(m.name()), ": the config is another checkpoint's"));
    }
    if (m.find("weight_global_scale") != nullptr) {
      return unimplemented(
          cat(m.describe("weight_global_scale"),
              ": 4-bit float weights (nvfp4) of compressed-tensors are not read; use an FP8 or W4A16 "
              "checkpoint of the model"));
    }
    if (m.find("weight_packed") != nullptr) return packed_weight(m, notice);
    OAR_ASSIGN(const Tensor* q, m.require("weight"));
    const DType dtype = q->format().dtype();
    if (q->shape().rank() == 2 && q->numel() > 0) {
      if (dtype == DType::kE4M3 || dtype == DType::kE5M2) return float_weight(m, *q, notice);
      if (dtype == DType::kI8) return int8_weight(m, *q, notice);
    }
    return data_loss(cat(m.describe("weight"), "; beside a weight_scale it is a matrix of e4m3, e5m2 or i8"));
  }

 private:
  // The scheme with these properties; a mixed checkpoint has several.
  Result<const Scheme*> scheme(const QuantModule& m, std::string_view part, bool floating, int64_t bits,
                               int64_t group) const {
    std::string list;
    for (const Scheme& s : schemes) {
      if (s.floating == floating && s.bits == bits && (floating || s.group_size == group)) return &s;
      list += cat(list.empty() ? "" : ", ", s.describe());
    }
    const Scheme found{floating, bits, group, 0, 0};
    return data_loss(cat(m.describe(part), ": these are ", found.describe(),
                         ", but config_groups of quantization_config describe ", list.empty() ? "none" : list,
                         "; use the config.json the checkpoint came with"));
  }

  Result<Tensor> float_weight(const QuantModule& m, const Tensor& q, std::string* notice) const {
    OAR_ASSIGN(const Tensor* scale, m.require("weight_scale"));
    OAR_ASSIGN(const Scheme* s, scheme(m, "weight", true, 8, 0));
    const int64_t N = q.shape()[0], K = q.shape()[1];
    const bool per_row = scale->shape() == Shape{N} || scale->shape() == Shape{N, 1};
    if (scale->numel() == 1 || per_row) {
      OAR_ASSIGN(const auto scales, read_scales(m, "weight_scale"));
      return make_f8_weight(q, scales, scale->numel() == 1 ? N : 1, K, notice);
    }
    const int64_t rows = s->block_rows > 0 ? (N - 1) / s->block_rows + 1 : N;
    const int64_t cols = s->block_rows > 0 ? (K - 1) / s->block_cols + 1 : 1;
    if (s->block_rows == 0 || scale->shape() != Shape{rows, cols}) {
      return data_loss(cat(m.describe("weight_scale"), "; a weight ", q.shape().to_string(), " of ",
                           s->describe(), " (quantization_config) has [", rows, ", ", cols, "]"));
    }
    OAR_ASSIGN(const auto scales, read_scales(m, "weight_scale"));
    return make_f8_weight(q, scales, s->block_rows, s->block_cols, notice);
  }

  // Scales and group of an integer weight; zeros are set to the middle level.
  Status read_groups(const QuantModule& m, std::string_view part, IntegerWeight& w) const {
    OAR_ASSIGN(const Tensor* scale, m.require("weight_scale"));
    w.scale_format = scale->format();
    const Shape& shape = scale->shape();
    const bool single = scale->numel() == 1, matrix = shape.rank() == 2 && shape[0] == w.N && shape[1] > 0;
    const bool column = shape == Shape{w.N};
    if (!single && !column && !(matrix && w.K % shape[1] == 0)) {
      return data_loss(cat(m.describe("weight_scale"), "; a weight [", w.N, ", ", w.K,
                           "] has one scale, one per row, or (", w.N,
                           ", groups) with a number of groups that divides ", w.K));
    }
    const int64_t groups = matrix ? shape[1] : 1;
    w.group = w.K / groups;
    // One group per row may be written either way.
    const bool whole = groups == 1;
    const bool as_group = std::any_of(schemes.begin(), schemes.end(), [&](const Scheme& s) {
      return !s.floating && s.bits == w.bits && s.group_size == w.group;
    });
    OAR_RETURN_IF_ERROR(scheme(m, part, false, w.bits, whole && !as_group ? 0 : w.group).status());
    OAR_ASSIGN(w.scales, read_scales(m, "weight_scale"));
    if (single) w.scales.assign(static_cast<size_t>(w.N), float{w.scales[0]});
    w.zeros.assign(w.scales.size(), static_cast<float>(1 << (w.bits - 1)));
    return ok_status();
  }

  Result<Tensor> int8_weight(const QuantModule& m, const Tensor& q, std::string* notice) const {
    IntegerWeight w;
    w.N = q.shape()[0], w.K = q.shape()[1], w.bits = 8;
    OAR_RETURN_IF_ERROR(read_groups(m, "weight", w));
    OAR_RETURN_IF_ERROR(read_plain_zeros(m, w));
    OAR_RETURN_IF_ERROR(read_order(m, w));
    const auto* from = static_cast<const uint8_t*>(q.data());
    w.read = [from, K = w.K](int64_t n0, int64_t rows, uint8_t* out) {
      for (int64_t i = 0; i < rows * K; ++i) out[i] = from[n0 * K + i] ^ 0x80;  // int8 plus 128
    };
    return make_integer_weight(w, notice);
  }

  Result<Tensor> packed_weight(const QuantModule& m, std::string* notice) const {
    OAR_ASSIGN(const Tensor* packed, m.require_words("weight_packed"));
    OAR_ASSIGN(const Tensor* shape, m.require("weight_shape"));
    if (shape->numel() != 2 ||
        (shape->format().dtype() != DType::kI64 && shape->format().dtype() != DType::kI32)) {
      return data_loss(cat(m.describe("weight_shape"), "; it is i64 [2]"));
    }
    int64_t dims[2];
    for (size_t i = 0; i < 2; ++i) {
      dims[i] = shape->format().dtype() == DType::kI64 ? static_cast<const int64_t*>(shape->data())[i]
                                                       : static_cast<const int32_t*>(shape->data())[i];
    }
    IntegerWeight w;
    w.N = packed->shape()[0];
    w.K = dims[1];
    const int64_t words = packed->shape()[1];
    for (const int bits : {4, 8}) {
      const int64_t per_word = 32 / bits;
      if (w.K > 0 && (w.K - 1) / per_word + 1 == words) w.bits = bits;
    }
    if (dims[0] != w.N || w.bits == 0) {
      return data_loss(cat(m.describe("weight_packed"), ", but weight_shape says [", dims[0], ", ", dims[1],
                           "]; codes of 4 or 8 bits are packed along the columns"));
    }
    OAR_RETURN_IF_ERROR(read_groups(m, "weight_packed", w));
    const int64_t per_word = 32 / w.bits;
    const uint32_t mask = (uint32_t{1} << w.bits) - 1;
    if (m.find("weight_zero_point") != nullptr && m.find("weight_zero_point")->format() == Format::i32()) {
      OAR_ASSIGN(const Tensor* zeros, m.require_words("weight_zero_point"));
      const int64_t groups = w.K / w.group, rows = (w.N - 1) / per_word + 1;
      if (zeros->shape() != Shape{rows, groups}) {
        return data_loss(cat(m.describe("weight_zero_point"), "; packed zeros of ", w.N, " rows are [", rows,
                             ", ", groups, "]"));
      }
      const auto* from = static_cast<const uint32_t*>(zeros->data());
      for (int64_t n = 0; n < w.N; ++n) {
        for (int64_t g = 0; g < groups; ++g) {
          w.zeros[static_cast<size_t>(n * groups + g)] =
              static_cast<float>(from[n / per_word * groups + g] >> (n % per_word * w.bits) & mask);
        }
      }
    } else {
      OAR_RETURN_IF_ERROR(read_plain_zeros(m, w));
    }
    OAR_RETURN_IF_ERROR(read_order(m, w));
    const auto* from = static_cast<const uint32_t*>(packed->data());
    w.read = [from, words, mask, per_word, bits = w.bits, K = w.K](int64_t n0, int64_t rows, uint8_t* out) {
      for (int64_t n = 0; n < rows; ++n) {
        for (int64_t k = 0; k < K; ++k) {
          out[n * K + k] =
              static_cast<uint8_t>(from[(n0 + n) * words + k / per_word] >> (k % per_word * bits) & mask);
        }
      }
    };
    return make_integer_weight(w, notice);
  }

  static Status read_plain_zeros(const QuantModule& m, IntegerWeight& w) {
    const Tensor* zeros = m.find("weight_zero_point");
    if (zeros == nullptr) return ok_status();
    const auto count = static_cast<int64_t>(w.zeros.size());
    if (!(zeros->format() == Format::of(DType::kI8)) || (zeros->numel() != count && zeros->numel() != 1)) {
      return data_loss(
          cat(m.describe("weight_zero_point"), "; it is i8, one for each of the ", count, " scales"));
    }
    const auto values = zeros->values<int8_t>();
    for (size_t i = 0; i < w.zeros.size(); ++i)
      w.zeros[i] += static_cast<float>(values[zeros->numel() == 1 ? 0 : i]);
    return ok_status();
  }

  static Status read_order(const QuantModule& m, IntegerWeight& w) {
    const Tensor* g_idx = m.find("weight_g_idx");
    if (g_idx == nullptr) return ok_status();
    if (!(g_idx->format() == Format::i32()) || g_idx->shape() != Shape{w.K}) {
      return data_loss(cat(m.describe("weight_g_idx"), "; for ", w.K, " columns it is i32 [", w.K, "]"));
    }
    const auto order = g_idx->values<int32_t>();
    bool plain = true, unset = true;
    for (int64_t k = 0; k < w.K; ++k) {
      plain = plain && order[static_cast<size_t>(k)] == k / w.group;
      unset = unset && order[static_cast<size_t>(k)] == -1;  // an unused order is all -1
    }
    if (plain || unset) return ok_status();
    for (int64_t k = 0; k < w.K; ++k) {
      const int32_t g = order[static_cast<size_t>(k)];
      if (g < 0 || g >= w.K / w.group) {
        return data_loss(cat(m.describe("weight_g_idx"), " and puts column ", k, " into group ", g,
                             "; there are ", w.K / w.group));
      }
    }
    w.group_of.assign(order.begin(), order.end());
    return ok_status();
  }
};

Result<Scheme> read_scheme(std::string_view group, const json::object& weights) {
  Scheme s;
  OAR_ASSIGN(const std::string type, quant_string(weights, "type", "int"));
  OAR_ASSIGN(s.bits, quant_int(weights, "num_bits", 8));
  OAR_ASSIGN(const std::string strategy, quant_string(weights, "strategy", ""));
  const std::string where = cat("config.json: quantization_config.config_groups.", group, ".weights");
  if (type != "int" && type != "float") {
    return invalid_argument(cat(where, ".type is ", show_name(type), "; it is 'int' or 'float'"));
  }
  s.floating = type == "float";
  if (s.floating ? s.bits != 8 : s.bits != 4 && s.bits != 8) {
    return unimplemented(cat(where, " has ", s.bits, "-bit ", s.floating ? "floats" : "integers",
                             "; read are 8-bit floats, and integers of 4 and 8 bits"));
  }
  if (strategy == "group") {
    OAR_ASSIGN(s.group_size, quant_int(weights, "group_size", 0));
    if (s.group_size < 1)
      return invalid_argument(cat(where, ".group_size is ", s.group_size, "; it must be positive"));
  } else if (strategy == "block") {
    const json::value* block = weights.if_contains("block_structure");
    const json::array* sizes = block != nullptr ? block->if_array() : nullptr;
    s.block_rows = s.block_cols = 128;
    if (sizes != nullptr && sizes->size() == 2 && (*sizes)[0].is_int64() && (*sizes)[1].is_int64()) {
      s.block_rows = (*sizes)[0].get_int64(), s.block_cols = (*sizes)[1].get_int64();
    }
    constexpr int64_t kMax = 1 << 20;
    if (s.block_rows < 1 || s.block_cols < 1 || s.block_rows > kMax || s.block_cols > kMax) {
      return invalid_argument(cat(where, ".block_structure must be two positive numbers"));
    }
  } else if (!strategy.empty() && strategy != "tensor" && strategy != "channel") {
    return unimplemented(cat(where, ".strategy is ", show_name(strategy),
                             "; read are 'tensor', 'channel', 'group' and 'block'"));
  }
  return s;
}

}  // namespace

Result<std::unique_ptr<QuantReader>> open_compressed_tensors(const json::object& config) {
  auto reader = std::make_unique<CompressedTensorsReader>();
  const json::value* sparsity = config.if_contains("sparsity_config");
  if (sparsity != nullptr && sparsity->is_object() && !sparsity->get_object().empty()) {
    OAR_ASSIGN(const std::string format, quant_string(sparsity->get_object(), "format", "dense"));
    if (format != "dense") {
      return unimplemented(cat("config.json: quantization_config.sparsity_config.format is ",
                               show_name(format), "; only dense weights are read"));
    }
  }
  const json::value* transforms = config.if_contains("transform_config");
  if (transforms != nullptr && transforms->is_object() && !transforms->get_object().empty()) {
    return unimplemented(
        "config.json: quantization_config.transform_config asks for rotations of activations, which "
        "compressed-tensors "
        "checkpoints are not read with; use one without");
  }
  const json::value* groups = config.if_contains("config_groups");
  if (groups == nullptr || !groups->is_object()) {
    return invalid_argument("config.json: quantization_config.config_groups must be an object");
  }
  for (const auto& member : groups->get_object()) {
    const std::string name(member.key());
    const json::object* group = member.value().if_object();
    if (group == nullptr) {
      return invalid_argument(
          cat("config.json: quantization_config.config_groups.", name, " must be an object"));
    }
    const json::value* weights = group->if_contains("weights");
    if (weights == nullptr || weights->is_null()) continue;  // activations alone
    if (!weights->is_object()) {
      return invalid_argument(
          cat("config.json: quantization_config.config_groups.", name, ".weights must be an object"));
    }
    OAR_ASSIGN(Scheme s, read_scheme(name, weights->get_object()));
    reader->schemes.push_back(s);
  }
  const json::value* ignore = config.if_contains("ignore");
  if (ignore != nullptr && ignore->is_array()) {
    for (const json::value& name : ignore->get_array()) {
      if (name.is_string()) reader->ignored.emplace_back(name.get_string());
    }
  }
  return std::unique_ptr<QuantReader>(std::move(reader));
}

}  // namespace oar

// GPTQ checkpoints (AutoGPTQ, GPTQModel). For a weight of N rows and K columns in b bits, p = 32 / b per
// word:
//   qweight (K / p, N) i32   bits [b i, b i + b) of word (r, n) are the level of column r p + i, row n
//   scales  (K / G, N)       per group of G columns and row
//   qzeros  (K / G, N / p)   bits [b i, b i + b) of word (g, c) are the zero of row c p + i
//   g_idx   (K) i32          the group of each column; k / G unless quantized in activation order
// x = (level - zero) * scale. The first version of the format stores zero - 1, and 0 as the largest level
// (the sum wraps); checkpoint_format "gptq_v2" stores the zero. https://github.com/AutoGPTQ/AutoGPTQ
#include <algorithm>

#include "engine/base/format.h"
#include "engine/loader/byte_reader.h"
#include "engine/loader/quantized_weight.h"

namespace oar {
namespace {

class GptqReader : public QuantReader {
 public:
  int64_t bits = 4, group_size = 128;
  bool varies = false;  // "dynamic": modules differ from the two above
  int zero_offset = 1;

  std::span<const std::string_view> parts() const override {
    static constexpr std::string_view kParts[] = {"qweight", "qzeros", "scales", "g_idx"};
    return kParts;
  }

  Result<Tensor> weight(const QuantModule& m, std::string* notice) const override {
    OAR_ASSIGN(const Tensor* qweight, m.require_words("qweight"));
    OAR_ASSIGN(const Tensor* qzeros, m.require_words("qzeros"));
    OAR_ASSIGN(const Tensor* scales, m.require("scales"));
    IntegerWeight w;
    w.N = qweight->shape()[1];
    if (scales->shape().rank() != 2 || scales->shape()[1] != w.N || scales->shape()[0] == 0) {
      return data_loss(cat(m.describe("scales"), "; for ", w.N, " rows it is (groups, ", w.N, ")"));
    }
    const int64_t groups = scales->shape()[0];
    // The zeros' width tells the bits apart from what the config says.
    w.bits = static_cast<int>(bits);
    for (const int b : {4, 8}) {
      if (varies && qzeros->shape()[1] == w.N * b / 32) w.bits = b;
    }
    const int64_t per_word = 32 / w.bits;
    w.K = qweight->shape()[0] * per_word;
    w.group = w.K / groups;
    const int64_t expected = varies || group_size <= 0 ? w.group : group_size;
    if (w.K % groups != 0 || (group_size > 0 && w.group != expected) ||
        (group_size <= 0 && !varies && groups != 1)) {
      return data_loss(cat(m.describe("scales"), ": ", groups, " groups of ", w.K,
                           " columns contradict group_size ", group_size, " of quantization_config"));
    }
    if (w.N % per_word != 0 || qzeros->shape()[0] != groups || qzeros->shape()[1] != w.N / per_word) {
      return data_loss(cat(m.describe("qzeros"), "; ", w.bits, "-bit zeros of ", groups, " groups and ", w.N,
                           " rows are (", groups, ", ", w.N / per_word,
                           "): 'bits' of quantization_config is ", bits));
    }
    w.scale_format = scales->format();
    OAR_ASSIGN(const std::vector<float> stored, read_scales(m, "scales"));
    const uint32_t mask = (uint32_t{1} << w.bits) - 1;
    const auto* zeros = static_cast<const uint32_t*>(qzeros->data());
    w.scales.resize(stored.size());
    w.zeros.resize(stored.size());
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t n = 0; n < w.N; ++n) {
        const auto at = static_cast<size_t>(n * groups + g);
        const uint32_t word = zeros[g * (w.N / per_word) + n / per_word];
        const uint32_t zero = (word >> (n % per_word * w.bits)) + static_cast<uint32_t>(zero_offset);
        w.scales[at] = stored[static_cast<size_t>(g * w.N + n)];
        w.zeros[at] = static_cast<float>(zero & mask);
      }
    }
    OAR_RETURN_IF_ERROR(read_order(m, groups, w));
    const auto* words = static_cast<const uint32_t*>(qweight->data());
    w.read = [words, mask, per_word, bits = w.bits, N = w.N, K = w.K](int64_t n0, int64_t rows,
                                                                      uint8_t* out) {
      for (int64_t r = 0; r < K / per_word; ++r) {
        for (int64_t n = 0; n < rows; ++n) {
          const uint32_t word = words[r * N + n0 + n];
          for (int64_t i = 0; i < per_word; ++i) {
            out[n * K + r * per_word + i] = static_cast<uint8_t>(word >> (i * bits) & mask);
          }
        }
      }
    };
    return make_integer_weight(w, notice);
  }

 private:
  // Fills group_of when the columns' groups are not simply k / group.
  static Status read_order(const QuantModule& m, int64_t groups, IntegerWeight& w) {
    const Tensor* g_idx = m.find("g_idx");
    if (g_idx == nullptr) return ok_status();
    if (!(g_idx->format() == Format::i32()) || g_idx->shape() != Shape{w.K}) {
      return data_loss(cat(m.describe("g_idx"), "; for ", w.K, " columns it is i32 [", w.K, "]"));
    }
    const auto order = g_idx->values<int32_t>();
    bool plain = true;
    for (int64_t k = 0; k < w.K; ++k) {
      const int32_t g = order[static_cast<size_t>(k)];
      if (g < 0 || g >= groups) {
        return data_loss(
            cat(m.describe("g_idx"), " and puts column ", k, " into group ", g, "; there are ", groups));
      }
      plain = plain && g == k / w.group;
    }
    if (!plain) w.group_of.assign(order.begin(), order.end());
    return ok_status();
  }
};

}  // namespace

Result<std::unique_ptr<QuantReader>> open_gptq(const json::object& config) {
  auto reader = std::make_unique<GptqReader>();
  OAR_ASSIGN(reader->bits, quant_int(config, "bits", 4));
  OAR_ASSIGN(reader->group_size, quant_int(config, "group_size", 128));
  OAR_ASSIGN(const std::string format, quant_string(config, "checkpoint_format", "gptq"));
  if (reader->bits != 4 && reader->bits != 8) {
    return unimplemented(
        cat("config.json: quantization_config.bits is ", reader->bits, "; GPTQ is read with 4 and 8 bits"));
  }
  if (reader->group_size == 0 || reader->group_size < -1) {
    return invalid_argument(cat("config.json: quantization_config.group_size is ", reader->group_size,
                                "; it is positive, or -1 for one group per row"));
  }
  if (format != "gptq" && format != "gptq_v2") {
    return unimplemented(cat("config.json: quantization_config.checkpoint_format is ", show_name(format),
                             "; 'gptq' and 'gptq_v2' are read; save the checkpoint in one of them"));
  }
  reader->zero_offset = format == "gptq" ? 1 : 0;
  const json::value* dynamic = config.if_contains("dynamic");
  reader->varies = dynamic != nullptr && dynamic->is_object() && !dynamic->get_object().empty();
  return std::unique_ptr<QuantReader>(std::move(reader));
}

}  // namespace oar

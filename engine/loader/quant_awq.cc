// AWQ checkpoints in the "gemm" layout (AutoAWQ). For a weight of N rows and K columns in 4 bits:
//   qweight (K, N / 8) i32   the nibbles of word (k, c), lowest first, are rows 8 c + {0 2 4 6 1 3 5 7} of
//                            column k
//   scales  (K / G, N)       per group of G columns and row
//   qzeros  (K / G, N / 8)   packed as qweight
// x = (code - zero) * scale. https://github.com/casper-hansen/AutoAWQ
#include "engine/base/format.h"
#include "engine/loader/byte_reader.h"
#include "engine/loader/quantized_weight.h"

namespace oar {
namespace {

constexpr int64_t kPerWord = 8;
// Shift of row 8 c + i in its word: the inverse of the order above.
constexpr int kShift[kPerWord] = {0, 16, 4, 20, 8, 24, 12, 28};

class AwqReader : public QuantReader {
 public:
  int64_t group_size = 128;

  std::span<const std::string_view> parts() const override {
    static constexpr std::string_view kParts[] = {"qweight", "qzeros", "scales"};
    return kParts;
  }

  Result<Tensor> weight(const QuantModule& m, std::string* notice) const override {
    OAR_ASSIGN(const Tensor* qweight, m.require_words("qweight"));
    OAR_ASSIGN(const Tensor* qzeros, m.require_words("qzeros"));
    OAR_ASSIGN(const Tensor* scales, m.require("scales"));
    IntegerWeight w;
    w.bits = 4;
    w.K = qweight->shape()[0];
    const int64_t columns = qweight->shape()[1];
    w.N = columns * kPerWord;
    w.group = group_size == -1 ? w.K : group_size;
    if (w.K % w.group != 0) {
      return data_loss(cat(m.describe("qweight"), ": its ", w.K, " columns do not divide into groups of ",
                           w.group, " (group_size of quantization_config)"));
    }
    const int64_t groups = w.K / w.group;
    if (scales->shape() != Shape{groups, w.N}) {
      return data_loss(cat(m.describe("scales"), "; ", w.N, " rows of ", w.K, " columns in groups of ",
                           w.group, " (group_size of quantization_config) have scales [", groups, ", ", w.N,
                           "]"));
    }
    if (qzeros->shape() != Shape{groups, columns}) {
      return data_loss(cat(m.describe("qzeros"), "; it must be [", groups, ", ", columns, "]"));
    }
    w.scale_format = scales->format();
    OAR_ASSIGN(const std::vector<float> stored, read_scales(m, "scales"));
    const auto* zeros = static_cast<const uint32_t*>(qzeros->data());
    w.scales.resize(stored.size());
    w.zeros.resize(stored.size());
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t n = 0; n < w.N; ++n) {
        const auto at = static_cast<size_t>(n * groups + g);
        w.scales[at] = stored[static_cast<size_t>(g * w.N + n)];
        w.zeros[at] = static_cast<float>(zeros[g * columns + n / kPerWord] >> kShift[n % kPerWord] & 15);
      }
    }
    const auto* words = static_cast<const uint32_t*>(qweight->data());
    // Row ranges begin at multiples of 8.
    w.read = [words, columns, K = w.K](int64_t n0, int64_t rows, uint8_t* out) {
      for (int64_t k = 0; k < K; ++k) {
        for (int64_t c = 0; c < rows / kPerWord; ++c) {
          const uint32_t word = words[k * columns + n0 / kPerWord + c];
          for (int64_t i = 0; i < kPerWord; ++i) {
            out[(c * kPerWord + i) * K + k] = static_cast<uint8_t>(word >> kShift[i] & 15);
          }
        }
      }
    };
    return make_integer_weight(w, notice);
  }
};

}  // namespace

Result<std::unique_ptr<QuantReader>> open_awq(const json::object& config) {
  auto reader = std::make_unique<AwqReader>();
  // "w_bit" and "q_group_size" are the keys of the method's own tool.
  OAR_ASSIGN(int64_t bits, quant_int(config, "w_bit", 4));
  OAR_ASSIGN(bits, quant_int(config, "bits", bits));
  OAR_ASSIGN(reader->group_size, quant_int(config, "q_group_size", 128));
  OAR_ASSIGN(reader->group_size, quant_int(config, "group_size", reader->group_size));
  OAR_ASSIGN(std::string version, quant_string(config, "version", "gemm"));
  OAR_ASSIGN(const bool zero_point, quant_bool(config, "zero_point", true));
  for (char& c : version) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  if (bits != 4 || !zero_point) {
    return unimplemented(cat("config.json: quantization_config has ", bits, " bits",
                             zero_point ? "" : ", no zero point",
                             "; AWQ is read with 4 bits and zero points"));
  }
  if (version != "gemm") {
    return unimplemented(cat("config.json: quantization_config.version is ", show_name(version),
                             "; AWQ is read in version 'gemm'; save the checkpoint so"));
  }
  if (reader->group_size != -1 && reader->group_size <= 0) {
    return invalid_argument(cat("config.json: quantization_config.group_size is ", reader->group_size,
                                "; it is positive, or -1 for one group per row"));
  }
  return std::unique_ptr<QuantReader>(std::move(reader));
}

}  // namespace oar

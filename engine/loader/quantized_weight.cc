#include "engine/loader/quantized_weight.h"

#include <algorithm>
#include <cmath>

#include "engine/base/format.h"
#include "quant/formats/f8_channel.h"
#include "quant/formats/f8_g128.h"
#include "quant/formats/i4_group.h"
#include "quant/formats/i8_channel.h"
#include "quant/formats/i8_group.h"
#include "quant/formats/u4_group.h"

namespace oar {
namespace {

constexpr int64_t kRowsAtATime =
    64;  // some methods store columns together: whole cache lines of them are used

// One group's levels as a block of ours. The groups of 32 have the layout of q4_0 and q8_0.
using PutBlock = void (*)(const uint8_t* levels, float scale, float zero, void* block);

void pack_nibbles(const uint8_t* levels, int elems, uint8_t* out) {
  for (int s = 0; s < elems; s += 32) {
    for (int i = 0; i < 16; ++i) {
      out[s / 2 + i] = static_cast<uint8_t>(levels[s + i] | levels[s + i + 16] << 4);
    }
  }
}

template <int G>
void put_i4(const uint8_t* levels, float scale, float, void* block) {
  auto& b = *static_cast<formats::I4Group<G>*>(block);
  b.d = to_f16(scale);
  pack_nibbles(levels, G, b.q);
}
template <int G>
void put_u4(const uint8_t* levels, float scale, float zero, void* block) {
  auto& b = *static_cast<formats::U4Group<G>*>(block);
  b.d = to_f16(scale);
  b.z = to_f16(zero);
  pack_nibbles(levels, G, b.q);
}
template <int G>
void put_i8(const uint8_t* levels, float scale, float, void* block) {
  auto& b = *static_cast<formats::I8Group<G>*>(block);
  b.d = to_f16(scale);
  for (int i = 0; i < G; ++i) b.q[i] = static_cast<int8_t>(levels[i] - 128);
}

struct Target {
  const char* format;
  int elems;
  bool asymmetric;
  int bits;
  PutBlock put;
};
// The first that fits is taken.
constexpr Target kTargets[] = {
    {"i4_g128", 128, false, 4, &put_i4<128>}, {"i4_g64", 64, false, 4, &put_i4<64>},
    {"i4_g32", 32, false, 4, &put_i4<32>},    {"u4_g128", 128, true, 4, &put_u4<128>},
    {"u4_g64", 64, true, 4, &put_u4<64>},     {"u4_g32", 32, true, 4, &put_u4<32>},
    {"i8_g128", 128, false, 8, &put_i8<128>}, {"i8_g64", 64, false, 8, &put_i8<64>},
    {"i8_g32", 32, false, 8, &put_i8<32>},
};

bool fits_f16(float x) { return to_f32(to_f16(x)) == x; }

// Calls fn(row, levels of the row).
template <class F>
void for_each_row(const IntegerWeight& w, F&& fn) {
  std::vector<uint8_t> levels(static_cast<size_t>(std::min(w.N, kRowsAtATime) * w.K));
  for (int64_t n0 = 0; n0 < w.N; n0 += kRowsAtATime) {
    const int64_t rows = std::min(kRowsAtATime, w.N - n0);
    w.read(n0, rows, levels.data());
    for (int64_t r = 0; r < rows; ++r) fn(n0 + r, levels.data() + r * w.K);
  }
}

Format decoded_format(Format scales) { return scales == Format::f16() ? Format::f16() : Format::bf16(); }

Result<Tensor> decoded(const IntegerWeight& w, std::string_view why, std::string* notice) {
  const Format format = decoded_format(w.scale_format);
  *notice = cat("kept decoded, in ", format.name(), ": ", why);
  OAR_ASSIGN(Tensor out, Tensor::allocate({w.N, w.K}, format));
  const int64_t groups = w.K / w.group, stride = format.stride(w.K);
  std::vector<float> row(static_cast<size_t>(w.K));
  for_each_row(w, [&](int64_t n, const uint8_t* levels) {
    for (int64_t k = 0; k < w.K; ++k) {
      const int64_t g = n * groups + (w.group_of.empty() ? k / w.group : w.group_of[static_cast<size_t>(k)]);
      row[static_cast<size_t>(k)] = (static_cast<float>(levels[k]) - w.zeros[static_cast<size_t>(g)]) *
                                    w.scales[static_cast<size_t>(g)];
    }
    format.encode_row(row.data(), w.K, static_cast<std::byte*>(out.mutable_data()) + n * stride);
  });
  return out;
}

Result<Tensor> int8_channel(const IntegerWeight& w) {
  const Format format(&formats::i8_channel::kInfo);
  OAR_ASSIGN(Tensor out, Tensor::allocate({w.N, w.K}, format));
  for_each_row(w, [&](int64_t n, const uint8_t* levels) {
    auto* row = static_cast<std::byte*>(out.mutable_data()) + n * format.stride(w.K);
    memcpy(row, &w.scales[static_cast<size_t>(n)], sizeof(float));
    auto* q = reinterpret_cast<int8_t*>(row + sizeof(float));
    for (int64_t k = 0; k < w.K; ++k) q[k] = static_cast<int8_t>(levels[k] - 128);
  });
  return out;
}

}  // namespace

Result<Tensor> make_integer_weight(const IntegerWeight& w, std::string* notice) {
  if (!w.group_of.empty()) {
    return decoded(w, "its columns are grouped in activation order (g_idx), which no block format follows",
                   notice);
  }
  const float middle = w.bits == 4 ? 8.0f : 128.0f;
  const bool symmetric = std::all_of(w.zeros.begin(), w.zeros.end(), [&](float z) { return z == middle; });
  if (w.bits == 8 && symmetric && w.group == w.K) return int8_channel(w);
  if (!std::all_of(w.scales.begin(), w.scales.end(), fits_f16)) {
    return decoded(w, "some of its scales are not representable in f16", notice);
  }
  const auto* target = std::find_if(std::begin(kTargets), std::end(kTargets), [&](const Target& t) {
    return t.bits == w.bits && t.asymmetric == !symmetric && w.group % t.elems == 0;
  });
  if (target == std::end(kTargets)) {
    const std::string why = w.group % 32 != 0 ? cat("groups of ", w.group, " do not divide into blocks of 32")
                                              : std::string("8-bit codes with zero points have no format");
    return decoded(w, why, notice);
  }
  const Format format = *Format::find(target->format);
  OAR_ASSIGN(Tensor out, Tensor::allocate({w.N, w.K}, format));
  const int64_t groups = w.K / w.group;
  for_each_row(w, [&](int64_t n, const uint8_t* levels) {
    auto* row = static_cast<std::byte*>(out.mutable_data()) + n * format.stride(w.K);
    for (int64_t k = 0; k < w.K; k += target->elems) {
      const auto g = static_cast<size_t>(n * groups + k / w.group);
      target->put(levels + k, w.scales[g], w.zeros[g], row + k / target->elems * format.block_bytes());
    }
  });
  return out;
}

Result<Tensor> make_f8_weight(const Tensor& q, const std::vector<float>& scales, int64_t tile_rows,
                              int64_t tile_cols, std::string* notice) {
  const bool e4m3 = q.format().dtype() == DType::kE4M3;
  const int64_t N = q.shape()[0], K = q.shape()[1];
  const int64_t tiles = (K + tile_cols - 1) / tile_cols;
  const auto scale = [&](int64_t n, int64_t k) {
    return scales[static_cast<size_t>(n / tile_rows * tiles + k / tile_cols)];
  };
  const auto* from = static_cast<const std::byte*>(q.data());
  if (tile_cols >= K) {
    const Format format(e4m3 ? &formats::e4m3_channel::kInfo : &formats::e5m2_channel::kInfo);
    OAR_ASSIGN(Tensor out, Tensor::allocate({N, K}, format));
    auto* to = static_cast<std::byte*>(out.mutable_data());
    for (int64_t n = 0; n < N; ++n) {
      const float s = scale(n, 0);
      memcpy(to + n * format.stride(K), &s, sizeof s);
      memcpy(to + n * format.stride(K) + sizeof s, from + n * K, static_cast<size_t>(K));
    }
    return out;
  }
  constexpr int64_t kGroup = 128;
  if (tile_cols % kGroup == 0 && K % kGroup == 0) {
    const Format format(e4m3 ? &formats::e4m3_g128::kInfo : &formats::e5m2_g128::kInfo);
    OAR_ASSIGN(Tensor out, Tensor::allocate({N, K}, format));
    auto* to = static_cast<std::byte*>(out.mutable_data());
    for (int64_t n = 0; n < N; ++n) {
      for (int64_t k = 0; k < K; k += kGroup) {
        const float s = scale(n, k);
        memcpy(to, &s, sizeof s);
        memcpy(to + sizeof s, from + n * K + k, kGroup);
        to += format.block_bytes();
      }
    }
    return out;
  }
  *notice = cat("kept decoded, in bf16: rows of ", K, " under scales per ", tile_cols,
                " columns do not divide into groups of 128");
  OAR_ASSIGN(Tensor out, Tensor::allocate({N, K}, Format::bf16()));
  std::vector<float> row(static_cast<size_t>(K));
  for (int64_t n = 0; n < N; ++n) {
    q.format().decode_row(from + n * K, K, row.data());
    for (int64_t k = 0; k < K; ++k) row[static_cast<size_t>(k)] *= scale(n, k);
    Format::bf16().encode_row(row.data(), K, static_cast<std::byte*>(out.mutable_data()) + n * K * 2);
  }
  return out;
}

Result<std::vector<float>> read_scales(const QuantModule& module, std::string_view part) {
  OAR_ASSIGN(const Tensor* t, module.require(part));
  const DType dtype = t->format().dtype();
  if (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16) {
    return data_loss(cat(module.describe(part), "; scales are f32, f16 or bf16"));
  }
  OAR_ASSIGN(const Tensor f32, to_f32(*t));
  const auto values = f32.values<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i]) && values[i] != 0.0f) continue;
    return data_loss(
        cat(module.describe(part), " and holds ", values[i], " at element ", i,
            "; a scale is a finite number other than 0: the checkpoint is damaged, or its quantization "
            "failed; quantize it again"));
  }
  return std::vector<float>(values.begin(), values.end());
}

}  // namespace oar

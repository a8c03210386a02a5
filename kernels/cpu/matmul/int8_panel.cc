// Packing of int8.panel16 (int8_panel.h). At load, memory bound; not a kernel.
#include "kernels/cpu/matmul/int8_panel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "quant/formats/i8_channel.h"
#include "quant/formats/i8_group.h"
#include "quant/formats/nvfp4.h"
#include "quant/formats/q5_0.h"
#include "quant/formats/q5_1.h"
#include "quant/formats/q8_0.h"

namespace oar {
namespace {

size_t bytes(int64_t n, int64_t K) {
  return static_cast<size_t>((n + kPanelRows - 1) / kPanelRows * panel_bytes(K));
}

bool is_channel(Format f) { return f == Format(&formats::i8_channel::kInfo); }

bool accepts(Format from, int64_t /*n*/, int64_t K) {
  const Format taken[] = {Format::f32(),
                          Format::f16(),
                          Format::bf16(),
                          Format(&formats::q8_0::kInfo),
                          Format(&formats::i8_g64::kInfo),
                          Format(&formats::i8_g128::kInfo),
                          Format(&formats::i8_channel::kInfo),
                          Format(&formats::q5_0::kInfo),
                          Format(&formats::q5_1::kInfo),
                          Format(&formats::nvfp4::kInfo)};
  return std::ranges::find(taken, from) != std::end(taken) && K % from.block_elems() == 0;
}

// `count` values to signed bytes under one scale, absmax / 127, which is returned; q: kPanelBlock bytes. A
// block with a NaN or an infinity gets a NaN scale. Below 1e-30 everything is zero: the reciprocal would
// overflow.
float quantize(const float* v, int64_t count, int8_t* q) {
  uint32_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, v + i, 4);
    most = std::max(most, bits & 0x7fffffffu);
  }
  float absmax;
  std::memcpy(&absmax, &most, 4);
  std::memset(q, 0, kPanelBlock);
  if (most >= 0x7f800000u) return std::numeric_limits<float>::quiet_NaN();
  if (absmax <= 1e-30f) return 0.f;
  const float inverse = 127.f / absmax;
  for (int64_t i = 0; i < count; ++i) {
    const float rounded =
        v[i] * inverse + 12582912.f;  // 1.5 * 2^23 leaves the nearest integer in the low bits
    int32_t n;
    std::memcpy(&n, &rounded, 4);
    q[i] = static_cast<int8_t>(n - 0x4b400000);
  }
  return absmax / 127.f;
}

// k .. k + count of a row.
float block_of(const char* row, Format from, int64_t k, int64_t count, int8_t* q) {
  if (is_channel(from)) {
    std::memcpy(q, row + sizeof(formats::i8_channel::Head) + k, static_cast<size_t>(count));
    return detail::load_head<formats::i8_channel::Head>(row).scale;
  }
  float v[kPanelBlock];
  from.info().decode(row, k / from.block_elems(), count / from.block_elems(), v);
  return quantize(v, count, q);
}

void pack(void* dst, const void* src, Format from, int64_t n, int64_t K, int64_t row_begin, int64_t row_end) {
  const int64_t row_bytes = from.stride(K);
  // The last panel's missing rows are written by whoever packs its existing ones.
  const int64_t end = row_end == n ? (n + kPanelRows - 1) / kPanelRows * kPanelRows : row_end;
  for (int64_t row = row_begin; row < end; ++row) {
    const int64_t lane = row % kPanelRows;
    for (int64_t b = 0; b < panel_blocks(K); ++b) {
      char* block = static_cast<char*>(dst) + row / kPanelRows * panel_bytes(K) + panel_block_at(b);
      const int64_t k = b * kPanelBlock, count = std::min(kPanelBlock, K - k);
      int8_t q[kPanelBlock] = {};
      float scale = 0;
      if (row < n) scale = block_of(static_cast<const char*>(src) + row * row_bytes, from, k, count, q);
      std::memcpy(block + lane * 4, &scale, 4);
      char* lines = block + kPanelLine + lane * 4;
      for (int64_t l = 0; l < panel_steps(K, b) * kStepLines; ++l) {
        std::memcpy(lines + l * kPanelLine, q + 4 * l, 4);
      }
    }
  }
}

}  // namespace

const WeightLayout kInt8PanelLayout{"int8.panel16", false,    static_cast<int>(kPanelRows),
                                    &bytes,         &accepts, &pack};

}  // namespace oar

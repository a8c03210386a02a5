// Packing of int8.panel16 (int8_panel.h). At load, memory bound; not a kernel.
#include "kernels/cpu/int8_panel.h"

#include <algorithm>
#include <cstring>

#include "quant/formats/q8_0.h"

namespace oar {
namespace {

using Block = formats::q8_0::Block;

size_t bytes(int64_t n, int64_t K) {
  return static_cast<size_t>((n + kPanelRows - 1) / kPanelRows * panel_bytes(K));
}

bool is_q8_0(Format f) { return f == Format(&formats::q8_0::kInfo); }

bool accepts(Format from, int64_t /*n*/, int64_t K) {
  if (is_q8_0(from)) return K % kPanelGroup == 0;
  return from == Format::f32() || from == Format::f16() || from == Format::bf16();
}

// Group g of a source row as a q8_0 block; a last group shorter than 32 is filled with zeros.
Block group_of(const char* row, Format from, int64_t g, int64_t K) {
  Block b;
  if (is_q8_0(from)) {
    std::memcpy(&b, row + g * static_cast<int64_t>(sizeof b), sizeof b);
    return b;
  }
  float values[kPanelGroup] = {};
  const int64_t k = g * kPanelGroup, count = std::min(kPanelGroup, K - k);
  from.info().decode(row, k, count, values);  // plain: a block is an element
  formats::q8_0::encode(values, b);
  return b;
}

void pack(void* dst, const void* src, Format from, int64_t n, int64_t K, int64_t row_begin, int64_t row_end) {
  const int64_t groups = panel_groups(K), row_bytes = from.stride(K);
  // The last panel's missing rows are written by whoever packs its existing ones.
  const int64_t end = row_end == n ? (n + kPanelRows - 1) / kPanelRows * kPanelRows : row_end;
  for (int64_t row = row_begin; row < end; ++row) {
    char* panel = static_cast<char*>(dst) + row / kPanelRows * panel_bytes(K);
    const int64_t lane = row % kPanelRows;
    for (int64_t g = 0; g < groups; ++g) {
      Block b{};
      if (row < n) b = group_of(static_cast<const char*>(src) + row * row_bytes, from, g, K);
      char* scales = panel + panel_scales_at(g);
      std::memcpy(scales + lane * 2, &b.d, 2);
      if (groups % 2 == 1 && g == groups - 1) std::memset(scales + 32 + lane * 2, 0, 2);
      char* lines = panel + panel_lines_at(g) + lane * 4;
      for (int64_t l = 0; l < kPanelLines; ++l) std::memcpy(lines + l * kPanelLine, b.q + 4 * l, 4);
    }
  }
}

}  // namespace

const WeightLayout kInt8PanelLayout{"int8.panel16", false,    static_cast<int>(kPanelRows),
                                    &bytes,         &accepts, &pack};

}  // namespace oar

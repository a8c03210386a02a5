// Matmul for storage formats without a core of their own: a few rows at a time are decoded to f32 in the
// worker's scratch and multiplied by the f32 core. Every format runs everywhere and exactly; the decoder sets
// the speed.
#pragma once

#include "kernels/cpu/matmul/matmul_rowdot.h"

namespace oar {

template <class F32Core>
struct DecodeCore {
  static constexpr int kRows = 8;  // 8 rows of K = 8192 are 256 KB of f32: a share of the second-level cache

  static int64_t x_bytes(int64_t K) { return F32Core::x_bytes(K); }
  static int64_t w_bytes(const MatmulView& v) { return v.format.stride(v.K); }
  static int64_t scratch_bytes(const MatmulView& v) {
    return kRows * v.K * static_cast<int64_t>(sizeof(float));
  }
  static int64_t chunk_rows(const MatmulView& v, int64_t total_rows) {
    return default_chunk_rows(v, total_rows, w_bytes(v), kRows);
  }
  static void pack(void* run, const PackTask& p) { F32Core::pack(run, p); }

  static void panel(const PanelTask& p) {
    const int64_t bytes = p.format.stride(p.K);
    float* rows = static_cast<float*>(p.scratch);
    for (int64_t row = p.row_begin; row < p.row_end; row += kRows) {
      const int64_t n = std::min<int64_t>(kRows, p.row_end - row);
      for (int64_t i = 0; i < n; ++i) {
        p.format.decode_row(static_cast<const char*>(p.w) + (row + i) * bytes, p.K, rows + i * p.K);
      }
      const PanelTask q = piece_of(p, row, n, rows);
      F32Core::panel(q);
    }
  }
};

}  // namespace oar

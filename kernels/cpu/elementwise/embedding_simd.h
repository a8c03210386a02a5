// Row gathers for one instruction set; included by elementwise_<isa>.cc.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/embedding.h"
#include "kernels/partition.h"

namespace oar::OAR_SIMD_NAMESPACE {

OAR_INLINE int64_t embedding_per(const EmbeddingArgs& a) { return rows_per_chunk(a.T, a.E * 8); }

inline void embedding_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const EmbeddingArgs*>(args);
  *out = {1, {row_chunks(a.T, embedding_per(a))}};
}

template <class T>
OAR_INLINE void decode_row(const void* row, float scale, float* out, int64_t n) {
  const T* p = static_cast<const T*>(row);
  const Vf s = set1(scale);
  for_lanes(n, [&](int64_t i, int64_t lanes) { store_part(out + i, load_part(p + i, lanes) * s, lanes); });
}

inline void embedding_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const EmbeddingArgs*>(args);
  const FormatInfo& format = a.format.info();
  const int64_t per = embedding_per(a), last = end * per < a.T ? end * per : a.T;
  const int64_t row_bytes = a.format.stride(a.E);
  for (int64_t t = begin * per; t < last; ++t) {
    const char* row = static_cast<const char*>(a.table) + a.ids[t] * row_bytes;
    float* out = a.out + t * a.E;
    if (format.scalar == DType::kF32) {
      decode_row<float>(row, a.scale, out, a.E);
    } else if (format.scalar == DType::kBF16) {
      decode_row<bf16>(row, a.scale, out, a.E);
    } else if (format.scalar == DType::kF16) {
      decode_row<f16>(row, a.scale, out, a.E);
    } else {
      a.format.decode_row(row, a.E, out);
      if (a.scale != 1.f) decode_row<float>(out, a.scale, out, a.E);
    }
  }
}

OAR_INLINE int64_t gather_per(const GatherRowsArgs& a) { return rows_per_chunk(a.R, a.E * 8); }

inline void gather_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const GatherRowsArgs*>(args);
  *out = {1, {row_chunks(a.R, gather_per(a))}};
}

inline void gather_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const GatherRowsArgs*>(args);
  const int64_t per = gather_per(a), last = end * per < a.R ? end * per : a.R;
  for (int64_t r = begin * per; r < last; ++r) {
    memcpy(a.out + r * a.E, a.x + a.rows[r] * a.E, static_cast<size_t>(a.E) * sizeof(float));
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE

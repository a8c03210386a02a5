#include "kernels/cuda/matmul.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/cuda/counters.h"
#include "kernels/cuda/norm_rows.h"

namespace oar::cuda {
namespace {

int64_t tiles(int64_t n, int64_t each) { return (n + each - 1) / each; }

Product product_of(const MatmulArgs& a) {
  Product p{};
  p.out = a.out;
  p.x = a.x;
  p.residual = a.residual;
  p.T = a.T;
  p.K = a.K;
  p.ldx = a.ldx;
  p.ldo = a.ldo;
  return p;
}

CudaStatus run_segments(Product p, const MatmulSegment* segments, int64_t count, LaunchProduct launch,
                        Stream stream, const RmsNormArgs* norm = nullptr) {
  p.norm.rows = 0;
  if (norm != nullptr) {
    p.norm = *norm;
    p.norm_aligned = norm_rows_aligned(*norm);
    if (const int error = counters_of(stream, &p.counters); error != 0) return {error};
  }
  for (int64_t first = 0; first < count; first += Product::kWeights) {
    p.count = static_cast<int>(std::min<int64_t>(Product::kWeights, count - first));
    for (int i = 0; i < p.count; ++i) {
      const MatmulSegment& s = segments[first + i];
      p.weights[i] = {s.w, s.bias, s.n, s.out_col};
    }
    if (const int error = launch(p, stream); error != 0) return {error};
  }
  return {};
}

}  // namespace

TileGrid tile_grid(const Product& p, int outputs, int rows) {
  TileGrid grid{};
  for (int i = 0; i < p.count; ++i) {
    const int64_t x = tiles(p.weights[i].n, outputs);
    grid.x = p.start == nullptr ? grid.x + x : std::max(grid.x, x);
  }
  // Every expert may end in a tile that is not full.
  grid.y = p.start == nullptr ? tiles(p.T, rows) : p.T / rows + std::min<int64_t>(p.count, p.T);
  return grid;
}

CudaStatus run_matmul(const MatmulArgs& a, LaunchProduct launch, Stream stream, const RmsNormArgs* norm) {
  return run_segments(product_of(a), a.segments, a.num_segments, launch, stream, norm);
}

CudaStatus run_gated(const GatedMatmulArgs& a, LaunchProduct launch, Stream stream, const RmsNormArgs* norm) {
  Product p = product_of(a.matmul);
  p.gate = a.gate;
  p.ld_gate = a.ld_gate;
  p.act = a.act;
  return run_segments(p, a.matmul.segments, a.matmul.num_segments, launch, stream, norm);
}

CudaStatus run_grouped(const GroupedMatmulArgs& a, LaunchProduct launch, Stream stream) {
  Product p{};
  p.out = a.out;
  p.x = a.x;
  p.experts = static_cast<int>(a.experts);
  p.rows = a.pair_token;
  p.start = a.expert_start;
  p.T = a.P;
  p.K = a.K;
  p.ldx = a.ldx;
  p.ldo = a.ldo;
  for (int64_t segment = 0; segment < a.segments_per_expert; ++segment) {
    for (int64_t first = 0; first < a.experts; first += Product::kWeights) {
      p.first = static_cast<int>(first);
      p.count = static_cast<int>(std::min<int64_t>(Product::kWeights, a.experts - first));
      for (int i = 0; i < p.count; ++i) {
        const MatmulSegment& s = a.segments[(first + i) * a.segments_per_expert + segment];
        p.weights[i] = {s.w, s.bias, s.n, s.out_col};
      }
      if (const int error = launch(p, stream); error != 0) return {error};
    }
  }
  return {};
}

}  // namespace oar::cuda

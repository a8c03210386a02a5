#include "kernels/cuda/matmul.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/cuda/counters.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/norm_rows.h"
#include "kernels/cuda/occupancy.h"

namespace oar::cuda {
namespace {

int64_t tiles(int64_t n, int64_t each) { return (n + each - 1) / each; }
// Of outputs of all weights.
template <class Weight>
int64_t across(const Weight* weights, int64_t count, int64_t outputs) {
  int64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += tiles(weights[i].n, outputs);
  return sum;
}
// Of rows of all experts, at most: every one may end in a tile that is not full.
int64_t most_down(int64_t pairs, int64_t experts, int64_t rows) {
  return pairs / rows + std::min(experts, pairs);
}

void set_rows(const MatmulArgs& a, ProductRows* p) {
  p->out = a.out;
  p->x = a.x;
  p->residual = a.residual;
  p->T = a.T;
  p->K = a.K;
  p->ldx = a.ldx;
  p->ldo = a.ldo;
}
void set_gate(const GatedMatmulArgs& a, ProductRows* p) {
  p->gate = a.gate;
  p->ld_gate = a.ld_gate;
  p->act = a.act;
}

void fill_weights(const MatmulSegment* segments, int64_t count, ProductRows* p) {
  p->count = p->per = static_cast<int>(count);
  for (int64_t i = 0; i < count; ++i)
    p->weights[i] = {segments[i].w, segments[i].bias, segments[i].n, segments[i].out_col};
}
void fill_matrices(const MatmulSegment* segments, int64_t count, Product* p) {
  fill_weights(segments, count, p);
  for (int64_t i = 0; i < count; ++i) p->matrices[i] = segments[i].w;
}

void set_norms(std::span<const RmsNormArgs> norms, uint32_t* counters, ProductRows* p) {
  p->norm_count = 0;
  for (const RmsNormArgs& norm : norms) {
    p->norms_aligned[p->norm_count] = norm_rows_aligned(norm);
    p->norms[p->norm_count++] = norm;
  }
  p->counters = counters;
}

CudaStatus run_segments(Product p, const MatmulSegment* segments, int64_t count, LaunchProduct launch,
                        Stream stream, std::span<const RmsNormArgs> norms = {}) {
  uint32_t* counters = nullptr;
  if (!norms.empty()) {
    if (const int error = counters_of(stream, &counters); error != 0) return {error};
  }
  set_norms(norms, counters, &p);
  for (int64_t first = 0; first < count; first += Product::kWeights) {
    fill_matrices(segments + first, std::min<int64_t>(Product::kWeights, count - first), &p);
    if (const int error = launch(p, stream); error != 0) return {error};
  }
  return {};
}

}  // namespace

namespace {

// `across` tiles of outputs for the rows of each expert, of each head, or of all.
void lay(ProductRows& p, int64_t across, int64_t down, int rows) {
  const int64_t row_bytes = p.K * static_cast<int64_t>(sizeof(float)) * (p.gate != nullptr ? 2 : 1),
                tile_bytes = std::max<int64_t>(rows * row_bytes, 1), fit = rows_in_l2 / tile_bytes;
  const bool pays = fit >= down || fit * across >= 2 * kMultiprocessors;
  const int64_t band = pays ? std::min(fit, down) : 1;
  p.across = static_cast<uint32_t>(across);
  p.down = static_cast<uint32_t>(down);
  p.band = static_cast<uint32_t>(band);
  p.streams = band * tile_bytes >= rows_in_l2 / 2;
}

}  // namespace

int64_t lay_tiles(ProductRows& p, int outputs, int rows) {
  const bool experts = p.start != nullptr, heads = p.x_step != 0;
  const int64_t down = experts ? most_down(p.T, p.count, rows) : tiles(p.T, rows);
  lay(p, across(p.weights, p.per, outputs), down, rows);
  return int64_t{p.across} * p.down * (heads ? p.count : 1);
}

int64_t lay_chain(ProductChain& c, int64_t warps) {
  int64_t all = 0;
  for (ProductChain::Step& s : std::span(c.steps, static_cast<size_t>(c.count))) {
    int64_t most = 0;
    for (int k = 0; k < s.elements; ++k) most = std::max(most, c.elements[s.first_element + k].n);
    const int64_t its = s.elements > 0 ? tiles(most, kWarp) : lay_tiles(s, kTileOutputs, kTileRows),
                  blocks = s.tile_a_warp || s.elements > 0 ? tiles(its, warps) : its;
    s.tiles = static_cast<uint32_t>(its);
    s.blocks = static_cast<uint32_t>(blocks);
    all += blocks;
  }
  c.blocks = static_cast<uint32_t>(all);
  return all;
}

bool matrices_aligned(const Product& p, uintptr_t bytes) {
  const auto aligned = [&](const void* w) { return reinterpret_cast<uintptr_t>(w) % bytes == 0; };
  return std::all_of(p.matrices, p.matrices + (p.start != nullptr ? p.count * p.per : p.count), aligned);
}

CudaStatus run_matmul(const MatmulArgs& a, LaunchProduct launch, Stream stream,
                      std::span<const RmsNormArgs> norms) {
  Product p{};
  set_rows(a, &p);
  return run_segments(p, a.segments, a.num_segments, launch, stream, norms);
}

namespace {

// Behind the first's weights, which are there.
void set_heads(const ProductHeads& heads, const void** matrices, ProductRows* p) {
  p->count = static_cast<int>(heads.matrices.size());
  std::ranges::copy(heads.matrices, matrices);
  p->x_step = heads.x_step;
  p->out_step = heads.out_step;
}

}  // namespace

CudaStatus run_heads(const MatmulArgs& a, const ProductHeads& heads, LaunchProduct launch, Stream stream) {
  Product p{};
  set_rows(a, &p);
  fill_weights(a.segments, 1, &p);
  set_heads(heads, p.matrices, &p);
  return {launch(p, stream)};
}

CudaStatus run_gated(const GatedMatmulArgs& a, LaunchProduct launch, Stream stream,
                     std::span<const RmsNormArgs> norms) {
  Product p{};
  set_rows(a.matmul, &p);
  set_gate(a, &p);
  return run_segments(p, a.matmul.segments, a.matmul.num_segments, launch, stream, norms);
}

bool may_combine(const GroupedMatmulArgs& a) {
  return a.segments_per_expert == 1 && a.experts > 0 && has_few_rows(a) && a.K > 0 && a.P > 0 &&
         a.P <= kMostCombined && a.segments[0].n == a.ldo;
}
bool takes_combine(const GroupedMatmulArgs& a, const MoeCombineArgs& combine) {
  return may_combine(a) && combine.T * combine.top_k == a.P && combine.y == a.out && combine.E == a.ldo;
}

namespace {

// From an expert's bias to the next one's, if there is one.
int64_t bias_step(const GroupedMatmulArgs& a, const MatmulSegment* first) {
  const MatmulSegment* const next = first + a.segments_per_expert;
  return next < a.segments + a.experts * a.segments_per_expert && first->bias != nullptr &&
                 next->bias != nullptr
             ? next->bias - first->bias
             : 0;
}

// How many experts, of at most so many from one on, differ in nothing but where their weights lie.
int64_t alike(const GroupedMatmulArgs& a, const MatmulSegment* first, int64_t most, int64_t segments) {
  const int64_t step = bias_step(a, first);
  for (int64_t e = 1; e < most; ++e) {
    for (int64_t s = 0; s < segments; ++s) {
      const MatmulSegment &one = first[s], &other = first[e * a.segments_per_expert + s];
      if (other.n != one.n || other.out_col != one.out_col) return e;
      if (other.bias != (one.bias != nullptr ? one.bias + e * step : nullptr)) return e;
    }
  }
  return most;
}

}  // namespace

namespace {

void set_experts(const GroupedMatmulArgs& a, const ExpertSteps& steps, ProductRows* p) {
  p->out = a.out;
  p->x = a.x;
  p->experts = static_cast<int>(a.experts);
  p->rows = a.pair_token;
  p->start = a.expert_start;
  p->T = a.P;
  p->K = a.K;
  p->ldx = a.ldx;
  p->ldo = a.ldo;
  if (!steps.gate) return;
  const SwiGluArgs& g = *steps.gate;
  p->x = g.up;
  p->ldx = g.ldu;
  p->gate = g.gate;
  p->ld_gate = g.ldg;
  p->act = g.act;
  p->made = g.out;
  p->ld_made = g.ldo;
}
void set_combine(const GroupedMatmulArgs& a, const ExpertSteps& steps, uint32_t* counters, ProductRows* p) {
  p->combine = *steps.combine;
  p->combine_aligned = p->combine.E % kNormWidth == 0 && norm_aligned(a.out) && norm_aligned(p->combine.out);
  p->norm_rows = static_cast<int>(p->combine.T);
  set_norms(steps.norms, counters, p);
}
// `count` experts from one whose weights are `its` on, of each `segments` side by side.
void set_weights(const GroupedMatmulArgs& a, const MatmulSegment* its, int64_t count, int64_t segments,
                 const void** matrices, ProductRows* p) {
  fill_weights(its, segments, p);
  p->count = static_cast<int>(count);
  p->bias_step = bias_step(a, its);
  for (int64_t e = 0; e < count; ++e) {
    for (int64_t s = 0; s < segments; ++s) matrices[e * segments + s] = its[e * a.segments_per_expert + s].w;
  }
}

}  // namespace

CudaStatus run_grouped(const GroupedMatmulArgs& a, LaunchProduct launch, Stream stream,
                       const ExpertSteps& steps) {
  Product p{};
  set_experts(a, steps, &p);
  uint32_t* counters = nullptr;
  if (steps.combine) {
    if (const int error = counters_of(stream, &counters); error != 0) return {error};
  }
  // As many of an expert's weights as a launch has room for, expert behind expert.
  const int64_t most = std::min<int64_t>(a.segments_per_expert, Product::kWeights);
  for (int64_t segment = 0; segment < a.segments_per_expert; segment += most) {
    const int64_t segments = std::min(most, a.segments_per_expert - segment);
    for (int64_t first = 0, end = 0; first < a.experts; first = end) {
      const MatmulSegment* const its = a.segments + first * a.segments_per_expert + segment;
      end = first + alike(a, its, std::min(a.experts - first, Product::kMatrices / segments), segments);
      set_weights(a, its, end - first, segments, p.matrices, &p);
      p.first = static_cast<int>(first);
      if (steps.combine && end == a.experts) set_combine(a, steps, counters, &p);
      if (const int error = launch(p, stream); error != 0) return {error};
    }
  }
  return {};
}

bool fits_chain(const GatedMatmulArgs& a) {
  const MatmulArgs& m = a.matmul;
  if (!takes_norm(m) || m.K <= 0) return false;
  return std::all_of(m.segments, m.segments + m.num_segments, [](const MatmulSegment& s) { return s.n > 0; });
}
bool fits_chain(const GroupedMatmulArgs& a) {
  const int64_t segments = a.segments_per_expert;
  if (a.P <= 0 || a.K <= 0 || a.experts <= 0 || !has_few_rows(a) || segments <= 0 ||
      segments > ProductRows::kWeights || a.experts * segments > ProductChain::kMatrices)
    return false;
  return std::all_of(a.segments, a.segments + segments, [](const MatmulSegment& s) { return s.n > 0; }) &&
         alike(a, a.segments, a.experts, segments) == a.experts;
}
int64_t few_tiles(const MatmulArgs& a) {
  return across(a.segments, a.num_segments, kTileOutputs) * tiles(a.T, kTileRows);
}
int64_t few_tiles(const GroupedMatmulArgs& a) {
  return across(a.segments, a.segments_per_expert, kTileOutputs) * most_down(a.P, a.experts, kTileRows);
}

bool fits_chain(const MoeRouteArgs& a) {
  return a.T > 0 && a.T <= kFewRows && a.experts > 0 && a.experts <= kChainedExperts &&
         a.groups <= kMostExpertGroups && a.top_k > 0 && a.T * a.top_k <= kChainedPairs;
}

CudaStatus run_chain(std::span<const ChainedProduct> products, const ChainedRoute& route, LaunchChain launch,
                     Stream stream) {
  ProductChain c{};
  int matrices = 0, elements = 0;
  uint32_t* counters = nullptr;
  if (const int error = counters_of(stream, &counters); error != 0) return {error};
  for (const ChainedProduct& product : products) {
    ProductChain::Step& s = c.steps[c.count++];
    if (product.elements != nullptr) {
      s.first_element = elements;
      s.elements = product.elements->count;
      std::copy_n(product.elements->steps, s.elements, c.elements + elements);
      elements += s.elements;
      set_norms(product.norms, counters, &s);
      s.norm_rows = static_cast<int>(s.norms[0].rows);  // none without a norm
      continue;
    }
    s.kind = product.kind;
    const void** const own = c.matrices + matrices;
    s.matrix = matrices;
    if (product.experts != nullptr) {
      const GroupedMatmulArgs& a = *product.experts;
      set_experts(a, *product.expert_steps, &s);
      set_weights(a, a.segments, a.experts, a.segments_per_expert, own, &s);
      if (product.expert_steps->combine) set_combine(a, *product.expert_steps, counters, &s);
    } else {
      const MatmulArgs& m = product.args->matmul;
      set_rows(m, &s);
      set_gate(*product.args, &s);
      set_norms(product.norms, counters, &s);
      if (product.scale != nullptr) s.scaled = product.scale->out, s.scale = product.scale->b;
      fill_weights(m.segments, m.num_segments, &s);
      if (!product.heads.matrices.empty()) set_heads(product.heads, own, &s);
      else
        for (int i = 0; i < s.per; ++i) own[i] = s.weights[i].w;
    }
    matrices += s.x_step != 0 ? s.count : product.experts != nullptr ? s.count * s.per : s.per;
  }
  // Behind those of tiles of rows.
  constexpr int kRowTiles = (kFewRows + kTileRows - 1) / kTileRows;
  c.tickets = counters + kRowTiles;
  c.finished = c.tickets + 1;
  if (route.args != nullptr) {
    c.route = *route.args;
    c.chosen = static_cast<int32_t*>(route.scratch);
    c.route_done = c.finished + ProductChain::kSteps;
  }
  return {launch(c, stream)};
}

}  // namespace oar::cuda

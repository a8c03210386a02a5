// Products with weights on a CUDA device: the families matmul, gated matmul and grouped matmul
// (kernels/matmul.h, moe.h) in one kernel per storage format. Segments of one call share a launch; experts
// find their rows by counts in device memory, so nothing waits for the host.
//
// What a row gets follows from the weight's format and K alone, never from how many rows or segments there
// are:
//   matmul_formats.cu  every format, general: rows decoded to f32 and multiplied in f32. The sum over K is a
//   sum,
//                      in ascending order, of runs of 256, each a chain of fused multiply-adds.
//   matmul_bf16.cu     bf16 by tensor cores (matmul_tensor.h); x as two bf16, high + low, 16 bits of it.
//   matmul_codes.cu    4- and 8-bit codes in groups, packed at load, the same way; matmul_blocks.cu
//                      those of 4 to 6 bits that have minima or groups of 16.
//   matmul_mixed.cu    all of these, where weights of several formats follow one another.
// Tensor cores have two kernels, tiles of few rows and of many, which give a row the same bits.
//
// Rows of a plain product that a norm or two follow may have them in the same launch: the last block of a
// tile of few rows does what norm.cu would do, to the same bits. And products of few rows may follow one
// another in a launch (ProductChain). Experts' second layers may have the gate in front
// of them in their launch; of few pairs the last block of all adds up experts' rows, and norms the sums
// (ExpertSteps).
//
// Roofline: few rows: the bytes of the weights. Many rows: the operations; each tile of rows reads the
// weights again, from L2. From memory weights come once, and rows, as long as these take no more than
// kRowsInL2: blocks that run side by side are all tiles of rows of the same outputs. Of more rows a band of
// so many has all outputs before the next band. Where a band would be over at once, as of long rows of two
// operands, blocks go by rows instead. Sums lie in registers, those of 132 tiles at a time: nothing lets
// weights or rows of that size come once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/activation.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/status.h"
#include "kernels/matmul.h"
#include "kernels/moe.h"
#include "kernels/norm.h"

namespace oar::cuda {

struct ProductWeight {
  const void* w;      // [n, K]
  const float* bias;  // [n] or null
  int64_t n, out_col;
};
// Of these what a product reads.
struct ProductMatrix {
  const void* w;
  int64_t n;
};
constexpr int kMostNorms = 2;  // behind a sublayer, and in front of the next
// Rows of x times weights side by side. Passed by value, as part of a kernel's argument.
struct ProductRows {
  static constexpr int kWeights = 16;
  ProductWeight weights[kWeights];
  float* out;             // [.., ldo]
  const float* x;         // [.., ldx]
  const float* residual;  // as out, or null; may be out
  const float* gate;      // [.., ld_gate], or null: act(gate) * x instead of x
  const int32_t* rows;    // of experts: the row of x of each pair, or null: its own
  // Of experts: pairs of expert e are rows start[e] .. start[e + 1] of out. Null: every weight meets every
  // row.
  const int32_t* start;
  int64_t T, K, ldx, ldo, ld_gate;
  int64_t x_step;  // from a head's columns of x to the next one's; no heads: 0
  UnaryOp act;
  int first, per;                 // experts before this launch; weights side by side: of each, of a head, all
  int count;                      // weights, experts or heads
  int experts;                    // in all launches
  RmsNormArgs norms[kMostNorms];  // of rows of out, once they are done, one behind the other
  bool norms_aligned[kMostNorms];
  int norm_count;
  int norm_rows;       // these, of which the last block of all has norms; 0: of a tile's rows its last block
  uint32_t* counters;  // of tiles of rows: blocks that are done; null without a norm
  // Of experts: what the gate makes of x is written, too, [.., ld_made]; null: it is not.
  float* made;
  int64_t ld_made;
  // Rows of out times one number, as far apart; may be out. Null: none.
  float* scaled;
  const float* scale;
  // How blocks come to tiles (place_of): so many for outputs of all weights, so many for rows, and for rows
  // of a band. Of experts each weight has its own tiles; `down` are those of rows of all, at most.
  uint32_t across, down, band;
  bool streams;  // what is added at the end, and results, leave L2 before rows of x
  // Of experts: their rows are added up for each token when all blocks are done, and norms are of these sums.
  // No out: they are not.
  MoeCombineArgs combine;
  bool combine_aligned;
  int64_t bias_step;  // from an expert's bias to the next one's
  int64_t out_step;   // from a head's columns to the next one's
};
// What one launch computes. Experts are alike: `weights` are those of the first of a launch, and of others
// there is where theirs lie. So are heads, a matrix for each: products of all rows, whose columns lie behind
// those of the head before.
struct Product : ProductRows {
  static constexpr int kMatrices = 768;  // sm_90a takes arguments of 32,764 bytes
  const void* matrices[kMatrices];       // of experts, `per` of each; of heads; of `weights`
};

// Products that follow one another in one launch, each behind all blocks of the one before. Blocks take tiles
// in this order, whichever begins first, so they wait for blocks that run: however few of them a device has
// room for, none waits for one that cannot begin. A block's first weights are on their way while it waits.
// Between products there may be elementwise ops, a step of so many as take one element each: a thread has
// one.
struct ProductChain {
  static constexpr int kSteps = 8, kElements = 48;
  struct Step : ProductRows {
    int matrix;  // of `matrices`: where its own begin
    int kind;    // of weights, where a kernel has several (matmul_mixed.h)
    uint32_t tiles, blocks;
    bool tile_a_warp;  // of short sums of heads: else all warps of a block have one tile
    // Instead of a product: the first of `elements`, and how many. 0: it is a product.
    int first_element, elements;
  };
  // Of all steps; of those with heads or experts together this many.
  static constexpr int kMatrices = 768;
  Step steps[kSteps];
  ElementStep elements[kElements];
  const void* matrices[kMatrices + kSteps * Step::kWeights];
  int count;
  uint32_t blocks;     // of all steps
  uint32_t* tickets;   // blocks' places that are taken; of one step the grid has them
  uint32_t* finished;  // of each step: blocks that are done
  // What the last product's rows choose, when it is done; no rows: nothing.
  MoeRouteArgs route;
  int32_t* chosen;       // [T, top_k], of `route`
  uint32_t* route_done;  // blocks of the last product
};

// What a block computes: outputs from n on of weight `index` for rows from `begin` on, which end at `end`: as
// many of both as a tile has. index < 0: nothing. Of experts and heads `index` counts the matrices.
struct Tile {
  int index;
  int64_t n, begin, end;
};
constexpr int kTileOutputs = 16, kTileRows = 8;  // of a tile of few rows

// Bytes of rows of x that are to stay in L2 while weights pass, of an H100's 50 MB.
constexpr int64_t kRowsInL2 = int64_t{32} << 20;
inline int64_t rows_in_l2 = kRowsInL2;  // of tests less, so that few rows come in several bands
// Blocks for all tiles of a product, `outputs` x `rows` each; fills in how they come to them. 0: nothing to
// do.
int64_t lay_tiles(ProductRows& p, int outputs, int rows);
// The same of all steps, whose tiles are of few rows, for blocks of so many warps; which steps have a tile a
// warp is known.
int64_t lay_chain(ProductChain& chain, int64_t warps);

// Up to how many rows there are tiles of few. All kernels have them.
constexpr int kFewRows = 31;
// Whether a product of these sizes may have a norm in its launch.
constexpr bool takes_norm(const MatmulArgs& a) {
  return a.T > 0 && a.T <= kFewRows && a.num_segments > 0 && a.num_segments <= Product::kWeights;
}

// Launches a kernel over all weights: a cudaError_t. Norms are there only where the product takes them.
using LaunchProduct = int (*)(const Product& p, Stream stream);
// A cudaError_t; `blocks`, and how they come to tiles, are filled in.
using LaunchChain = int (*)(ProductChain& chain, Stream stream);
// What launches a product with others in front and behind.
struct ChainKernel {
  LaunchChain launch = nullptr;  // where it is the same for all of them; null: it has a launch of its own
  int kind = 0;                  // of its weights, where it is not (matmul_mixed.h)
  int64_t tiles = 0;             // of few rows, at most
};
CudaStatus run_matmul(const MatmulArgs& args, LaunchProduct launch, Stream stream,
                      std::span<const RmsNormArgs> norms = {});
// Heads of one product behind each other: of the first there is `args`, with a weight without bias.
struct ProductHeads {
  std::span<const void* const> matrices;  // at most kMatrices
  int64_t x_step, out_step;
};
CudaStatus run_heads(const MatmulArgs& args, const ProductHeads& heads, LaunchProduct launch, Stream stream);
CudaStatus run_gated(const GatedMatmulArgs& args, LaunchProduct launch, Stream stream,
                     std::span<const RmsNormArgs> norms = {});
// What may be part of the launch of experts' second layers.
struct ExpertSteps {
  std::optional<SwiGluArgs> gate;  // in front: x is what it makes
  std::optional<MoeCombineArgs> combine;
  std::span<const RmsNormArgs> norms;  // behind `combine`
};
constexpr int64_t kMostCombined = 8;  // pairs
// Whether there are tiles of few rows.
constexpr bool has_few_rows(const GroupedMatmulArgs& a) { return a.P < (kFewRows + 1) * a.experts; }
// Whether their rows may be added up in the launch.
bool may_combine(const GroupedMatmulArgs& args);
bool takes_combine(const GroupedMatmulArgs& args, const MoeCombineArgs& combine);
CudaStatus run_grouped(const GroupedMatmulArgs& args, LaunchProduct launch, Stream stream,
                       const ExpertSteps& steps = {});

// Of a chain, with what is behind it.
constexpr int64_t kElementNormRows = kTileRows;  // most rows of norms behind elementwise ops
struct ChainedProduct {
  int kind;                     // ProductChain::Step::kind
  const GatedMatmulArgs* args;  // of a plain one without a gate; of heads the first
  std::span<const RmsNormArgs> norms;
  const BinaryArgs* scale;  // in front of the norms: rows that it makes times one number; null: none
  ProductHeads heads;       // no matrices: it has none
  // Instead: experts' products, whose norms are among the steps; null: it has none.
  const GroupedMatmulArgs* experts;
  const ExpertSteps* expert_steps;
  // Instead of all but `norms`: what it is; null: a product.
  const ElementSteps* elements;
};
// Whether a product may be one of a chain, if its weights' kernel has one.
bool fits_chain(const GatedMatmulArgs& args);
bool fits_chain(const GroupedMatmulArgs& args);
// Tiles of few rows, of experts at most.
int64_t few_tiles(const MatmulArgs& args);
int64_t few_tiles(const GroupedMatmulArgs& args);
// What the last one's rows choose, behind it, if that is little enough.
struct ChainedRoute {
  const MoeRouteArgs* args;  // null: nothing
  void* scratch;             // as moe_route() has it
};
constexpr int64_t kChainedExperts = 512, kChainedPairs = 512;
bool fits_chain(const MoeRouteArgs& args);
CudaStatus run_chain(std::span<const ChainedProduct> products, const ChainedRoute& route, LaunchChain launch,
                     Stream stream);

// Whether all matrices of a launch are aligned to so many bytes.
bool matrices_aligned(const Product& p, uintptr_t bytes);
int launch_bf16(const Product& p, Stream stream);
// Null: rows or weights that lie so need other kernels.
LaunchChain chain_of_bf16(const GatedMatmulArgs& args);

}  // namespace oar::cuda

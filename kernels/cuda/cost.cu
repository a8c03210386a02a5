#include "kernels/cuda/cost.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/cuda/attention_codes.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/cost_layers.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/matmul_codes.h"
#include "kernels/cuda/matmul_tensor.h"
#include "kernels/cuda/occupancy.h"
#include "kernels/embedding.h"
#include "kernels/hadamard.h"
#include "kernels/kv_quant.h"
#include "kernels/lora.h"
#include "kernels/norm.h"
#include "kernels/reduce.h"
#include "kernels/rope.h"
#include "kernels/strided_copy.h"

namespace oar::cuda {
namespace {

// Keys and values, or keys that hold them.
double sides(int latent) { return latent > 0 ? 1 : 2; }

// Weights of n rows of K as the device keeps them.
double weight_bytes(Format format, int64_t n, int64_t K) {
  const uint64_t packed = packed_bytes(format.name(), n, K);
  return packed > 0 ? static_cast<double>(packed) : number(n * format.stride(K));
}

// One segment, or expert, of `rows` rows.
void add_product(Format format, int64_t n, int64_t K, int64_t rows, bool many, int inputs, KernelCost& c) {
  const bool tensor = std::string_view(format.name()) == "bf16" || packed_bytes(format.name(), n, K) > 0;
  const int64_t tile_rows = tensor && many ? kManyRows : kTileRows,
                tile_outputs = tensor && many ? kManyOutputs : kTileOutputs;
  const double weights = weight_bytes(format, n, K);
  const int64_t row_tiles = whole(rows, tile_rows), output_tiles = whole(n, tile_outputs);
  c.bytes += weights + kFloatBytes * number(rows * n);
  c.l2_bytes += weights * number(row_tiles) + kFloatBytes * number(rows * K * inputs * output_tiles);
  // x is split in two. A warp without any outputs multiplies nothing.
  if (tensor)
    c.tensor_operations += 2 * 2.0 * number(whole(n, kTileOutputs) * kTileOutputs * whole(K, kPart) * kPart) *
                           number(row_tiles * tile_rows);
  else c.operations += 2.0 * number(n * K * row_tiles * tile_rows) + number(n * K * row_tiles);
}

void add_matmul(const MatmulArgs& a, Format format, int inputs, KernelCost& c) {
  const bool many = 2 * a.T >= kManyRows;
  double outputs = 0;
  for (int64_t i = 0; i < a.num_segments; ++i) {
    add_product(format, a.segments[i].n, a.K, a.T, many, inputs, c);
    outputs += number(a.segments[i].n);
  }
  c.bytes += kFloatBytes * number(a.T * a.K * inputs);
  if (a.residual != nullptr) c.bytes += kFloatBytes * number(a.T) * outputs;
}

// Positions that rows of one sequence see, all together: `rows` of them, the last at context - 1.
double seen(const PagedAttentionArgs& a, int64_t rows, int64_t context) {
  double sum = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t pos = std::max<int64_t>(context - rows + i, 0);
    sum += number(pos + 1 - first_seen(a, pos));
  }
  return sum;
}
void add_attention(const PagedAttentionArgs& a, double bytes_of_position, int64_t context, KernelCost& c) {
  if (a.B <= 0) return;
  const int64_t rows = std::max<int64_t>(a.T / a.B, 1), both = a.shape.head_dim + a.shape.value_dim();
  const double pairs = number(a.B) * seen(a, rows, context);
  const int64_t first = first_seen(a, std::max<int64_t>(context - rows, 0));
  const double once = number(a.B) * number(context - first) * bytes_of_position;
  c.bytes += once + kFloatBytes * number(a.T * a.H * both);
  c.l2_bytes += pairs * bytes_of_position;  // each row reads them
  c.operations += 2 * pairs * number(a.H * both);
}
// The same by tensor cores: fragments of 16 pairs of a row and a head, in steps of 32 positions; many rows in
// tiles of their own for each `piece` of positions, or by spans as many as their pairs fit in one.
void add_tensor_attention(const PagedAttentionArgs& a, double bytes_of_position, int64_t context,
                          int64_t piece, KernelCost& c) {
  if (a.B <= 0) return;
  KernelCost plain;
  add_attention(a, bytes_of_position, context, plain);
  const int64_t rows = std::max<int64_t>(a.T / a.B, 1), K = a.shape.kv_heads, group = a.H / K;
  const double of_row = plain.l2_bytes / bytes_of_position / number(a.T);  // positions, on average
  const bool tiles = in_tiles(a);
  const int64_t together = std::min(rows, piece), pieces = a.B * whole(rows, together);
  const double fragments = number(tiles ? pieces * whole(together * group, kPairs)
                                        : a.B * whole(rows, rows_a_block(a)) * whole(group, kPairs));
  const double blocks = tiles ? number(pieces * whole(together * group, kTilePairs)) : fragments;
  c.bytes += plain.bytes;
  c.l2_bytes += blocks * of_row * bytes_of_position;
  const double steps = std::ceil(of_row / kStep) * number(K) * fragments;
  constexpr double kOfMma = 2.0 * 16 * 8 * 16;
  c.tensor_operations += steps * kOfMma * number(a.shape.head_dim);
}

// As kv_code_name() has them.
KvCode code_of(std::string_view name) {
  return name == "fp8"         ? KvCode::kFp8
         : name == "int4"      ? KvCode::kInt4
         : name == "int4_mean" ? KvCode::kInt4Mean
         : name == "int3"      ? KvCode::kInt3
                               : KvCode::kInt8;
}

// Of a thread, from what kernels_test.py allows: how many blocks fit follows.
int registers_of(KernelFamily family, bool tensor, bool tiles) {
  switch (family) {
    case KernelFamily::kMatmul:
    case KernelFamily::kGatedMatmul:
    case KernelFamily::kGroupedMatmul: return tensor ? 168 : 64;
    case KernelFamily::kPagedAttention:
    case KernelFamily::kQuantPagedAttention: return tiles ? 255 : tensor ? 168 : 128;
    case KernelFamily::kQuantKvAppend: return 96;
    case KernelFamily::kConv: return tensor ? 208 : 104;
    case KernelFamily::kQuantizedConv: return tensor ? 168 : 40;
    case KernelFamily::kSample: return 104;
    case KernelFamily::kSegmentAttention:
    case KernelFamily::kDenseAttention:
    case KernelFamily::kStateScan: return 80;
    case KernelFamily::kRecurrent: return 64;
    default: return 40;
  }
}

// How much longer work of so many equal blocks takes than if it could be cut at will.
double idle(const LaunchShape& s, int registers) {
  const double blocks = static_cast<double>(s.grid.x) * s.grid.y * s.grid.z;
  const auto threads = static_cast<int>(s.block.x * s.block.y * s.block.z);
  const int each = std::max(blocks_of_multiprocessor(threads, s.shared, registers), 1);
  // The blocks of the last round share a multiprocessor with fewer.
  const double full = std::floor(blocks / (each * kMultiprocessors));
  const double last = std::ceil((blocks - full * each * kMultiprocessors) / kMultiprocessors) / each;
  return (full + last) * each * kMultiprocessors / blocks;
}

// The families that cost_layers.h leaves. False: there is no such family. `tiles`: of attention.
bool add_cost(const DeviceKernel& kernel, const void* args, int64_t context, KernelCost& c, bool& tiles) {
  // By name: what Oar's own pointers mean is not for a plug-in.
  const auto known = Format::find(kernel.format);
  if (!known) return false;
  const Format format = *known;
  switch (kernel.family) {
    case KernelFamily::kMatmul: add_matmul(as<MatmulArgs>(args), format, 1, c); break;
    case KernelFamily::kGatedMatmul: add_matmul(as<GatedMatmulArgs>(args).matmul, format, 2, c); break;
    case KernelFamily::kGroupedMatmul: {
      const auto& a = as<GroupedMatmulArgs>(args);
      const bool many = 2 * a.P >= kManyRows * std::max<int64_t>(a.experts, 1);
      const int64_t used = std::min(a.experts, a.P);  // rows are taken to be spread evenly
      for (int64_t e = 0; e < used; ++e) {
        for (int64_t i = 0; i < a.segments_per_expert; ++i)
          add_product(format, a.segments[e * a.segments_per_expert + i].n, a.K, whole(a.P, used), many, 1, c);
      }
      c.bytes += kFloatBytes * number(a.P * a.K);
      break;
    }
    case KernelFamily::kRmsNorm: {
      const auto& a = as<RmsNormArgs>(args);
      const int rows = 2 + (a.residual != nullptr) + (a.sum_out != nullptr);
      c.bytes = kFloatBytes * number(a.cols * (a.rows * rows + 1));
      c.operations = 4 * number(a.rows * a.cols);
      break;
    }
    case KernelFamily::kLayerNorm: {
      const auto& a = as<LayerNormArgs>(args);
      const int rows = 2 + (a.residual != nullptr) + (a.sum_out != nullptr);
      c.bytes = kFloatBytes * number(a.cols * (a.rows * rows + (a.w != nullptr) + (a.b != nullptr)));
      c.operations = 8 * number(a.rows * a.cols);
      break;
    }
    case KernelFamily::kRope: {
      const auto& a = as<RopeArgs>(args);
      c.bytes = 2 * kFloatBytes * number(a.T * a.heads * a.D);
      c.operations = 6 * number(a.T * a.heads * a.D);
      break;
    }
    case KernelFamily::kKvAppend: {
      const auto& a = as<KvAppendArgs>(args);
      const double kept = format.block_bytes();
      c.bytes =
          sides(a.shape.latent) * (kFloatBytes + kept) * number(a.T * a.shape.kv_heads * a.shape.head_dim);
      break;
    }
    case KernelFamily::kQuantKvAppend: {
      const auto& a = as<QuantKvAppendArgs>(args);
      c.bytes = sides(a.shape.latent) * (kFloatBytes + 2) * number(a.T * a.shape.kv_heads * a.shape.head_dim);
      break;
    }
    case KernelFamily::kPagedAttention: {
      const auto& a = as<PagedAttentionArgs>(args);
      const double kept = format.block_bytes();
      const bool tensor = kernel.format == "bf16" && by_tensor_cores(KvType::kBF16, a.shape);
      const double position = sides(a.shape.latent) * kept * number(a.shape.kv_heads * a.shape.head_dim);
      tiles = tensor && in_tiles(a);
      if (tensor) add_tensor_attention(a, position, context, a.T, c);
      else add_attention(a, position, context, c);
      break;
    }
    case KernelFamily::kQuantPagedAttention: {
      const auto& a = as<QuantPagedAttentionArgs>(args);
      QuantKvShape shape = a.shape;
      shape.keys = code_of(kernel.keys);
      shape.values = code_of(kernel.values);
      const QuantKvLayout layout(shape);
      const double position = number(layout.block_bytes) / number(a.shape.page_tokens);
      const bool tensor = quant_by_tensor_cores(shape.keys, shape.values, a.common.shape);
      tiles = tensor && in_tiles(a.common);
      if (tensor) add_tensor_attention(a.common, position, context, a.shape.page_tokens, c);
      else add_attention(a.common, position, context, c);
      break;
    }
    case KernelFamily::kLora: {  // every row has an adapter of its own, of the largest rank
      const auto& a = as<LoraArgs>(args);
      const double numbers = number(a.T * a.R * (a.K + a.n));
      c.bytes =
          number(format.block_bytes()) * numbers + kFloatBytes * number(a.T * (a.K + 2 * a.n + 2 * a.R));
      c.operations = 2 * numbers;
      break;
    }
    case KernelFamily::kSwiGlu: {
      const auto& a = as<SwiGluArgs>(args);
      c.bytes = 3 * kFloatBytes * number(a.T * a.F);
      c.operations = 5 * number(a.T * a.F);
      break;
    }
    case KernelFamily::kUnary:
      c.bytes = 2 * kFloatBytes * number(as<UnaryArgs>(args).n);
      c.operations = number(as<UnaryArgs>(args).n);
      break;
    case KernelFamily::kBinary: {
      const auto& a = as<BinaryArgs>(args);
      c.bytes = kFloatBytes *
                number(2 * a.rows * a.cols + (a.b_row != 0 ? a.rows : 1) * (a.b_col != 0 ? a.cols : 1));
      c.operations = number(a.rows * a.cols);
      break;
    }
    case KernelFamily::kEmbedding: {
      const auto& a = as<EmbeddingArgs>(args);
      c.bytes = number(a.T) * (number(format.stride(a.E)) + kFloatBytes * number(a.E));
      break;
    }
    case KernelFamily::kGatherRows: {
      const auto& a = as<GatherRowsArgs>(args);
      c.bytes = 2 * kFloatBytes * number(a.R * a.E);
      break;
    }
    case KernelFamily::kReduce: {
      const auto& a = as<ReduceArgs>(args);
      c.bytes = kFloatBytes * number(a.outer * a.inner * (a.n + 1));
      c.operations = number(a.outer * a.inner * a.n);
      break;
    }
    case KernelFamily::kStridedCopy: {
      const auto& a = as<StridedCopyArgs>(args);
      c.bytes = 2.0 * a.element;
      for (int k = 0; k < a.rank; ++k) c.bytes *= number(a.dims[k]);
      break;
    }
    case KernelFamily::kHadamard: {
      const auto& a = as<HadamardArgs>(args);
      c.bytes = 2 * kFloatBytes * number(a.rows * a.n);
      c.operations = number(a.rows * a.n) * std::log2(number(std::max<int64_t>(a.block, 1)));
      break;
    }
    default: return false;
  }
  return true;
}

}  // namespace

bool cost_of(const DeviceKernel& kernel, const void* args, int64_t context, KernelCost* cost,
             HeldLaunches* before) {
  KernelCost c;
  bool tiles = false;
  double rate = 1;  // of tensor cores, times that of bf16
  if (!add_layer_cost(kernel, args, context, c, rate) && !add_cost(kernel, args, context, c, tiles))
    return false;
  const bool tensor = c.tensor_operations > 0;
  if (c.l2_bytes == 0) c.l2_bytes = c.bytes;

  std::vector<LaunchShape> launches, behind;
  foreseen_launches = &launches;
  bool foreseen = kernel.launch(args, nullptr, nullptr).ok();
  c.launches = static_cast<int64_t>(launches.size());
  if (before != nullptr) {
    const int64_t held = before->held();
    foreseen_launches = &behind;
    foreseen = before->launch(kernel, args, nullptr, nullptr).ok() && foreseen;
    c.launches = static_cast<int64_t>(behind.size()) + before->held() - held;
  }
  foreseen_launches = nullptr;
  if (!foreseen) return false;
  const AssumedDevice d;
  double most = 1;  // of the launch that does the work: the one with most blocks
  size_t blocks = 0;
  for (const LaunchShape& s : launches) {
    const size_t n = size_t{s.grid.x} * s.grid.y * s.grid.z;
    if (n > blocks) most = idle(s, registers_of(kernel.family, tensor, tiles)), blocks = n;
  }
  const double memory = std::max(c.bytes / d.memory, c.l2_bytes / d.l2);
  const double units = std::max(c.tensor_operations / (d.tensor * rate), c.operations / d.ordinary) * most;
  // Few blocks cannot ask for all of memory: a multiprocessor takes 64 bytes a cycle of 1.7 GHz from L2.
  constexpr double kOfMultiprocessor = 64 * 1.7e9;
  const double busy = std::min<double>(static_cast<double>(std::max<size_t>(blocks, 1)), kMultiprocessors);
  c.seconds =
      d.launch * number(c.launches) + std::max({memory, units, c.l2_bytes / (busy * kOfMultiprocessor)});
  *cost = c;
  return true;
}

}  // namespace oar::cuda

// stored_matrix(w, scales or none) {transposed, first, step, rows, parts} -> (rows, K)
//   A weight (N, K) that a checkpoint keeps another way; of its rows `rows` are taken, first, first + step,
//   ... w (N, K), or with `transposed` (K, N) of a plain format; the format stays. With `parts`, of w (N, K)
//   alone: b0, e0, b1, e1, ...: of each `step` rows those from b0 to e0, then of each those from b1 to e1,
//   ..., all N of them (passes/order_columns.cc). w (N, K / 32, 16) u8 with scales (N, K / 32) u8: mxfp4
//   whose scales lie apart, as gpt-oss has it. Byte i of a group holds elements 2 i (low four bits) and 2 i
//   + 1. The result is mxfp4, code for code.
// A weight expression: evaluated while a kernel's layout is made, matrix by matrix, so that no second copy of
// the weights lies in memory. https://huggingface.co/openai/gpt-oss-20b (config.json,
// model.safetensors.index.json)
#include <algorithm>
#include <cstring>

#include "engine/ops/op_util.h"
#include "kernels/thread_pool.h"
#include "quant/formats/mxfp4.h"

namespace oar {
namespace {

using Mxfp4 = formats::mxfp4::Block;
constexpr int64_t kGroup = formats::mxfp4::kElems;

// Whether each row of `step` is in one of them.
bool are_parts(const std::vector<int64_t>& parts, int64_t step, int64_t rows) {
  if (step < 1 || rows < 1 || rows % step != 0 || parts.size() % 2 != 0) return false;
  std::vector<bool> seen(static_cast<size_t>(step));
  int64_t count = 0;
  for (size_t k = 0; k < parts.size(); k += 2) {
    if (parts[k] < 0 || parts[k] >= parts[k + 1] || parts[k + 1] > step) return false;
    for (int64_t n = parts[k]; n < parts[k + 1]; ++n, ++count) {
      if (seen[static_cast<size_t>(n)]) return false;
      seen[static_cast<size_t>(n)] = true;
    }
  }
  return count == step;
}

// Which of `rows` comes r-th.
int64_t row_of_parts(const std::vector<int64_t>& parts, int64_t step, int64_t rows, int64_t r) {
  for (size_t k = 0;; k += 2) {
    const int64_t wide = parts[k + 1] - parts[k], all = rows / step * wide;
    if (r < all) return r / wide * step + parts[k] + r % wide;
    r -= all;
  }
}

Types stored_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 1, 2));
  const bool codes = given(in, 1), transposed = attrs.get_bool("transposed", false);
  OAR_RETURN_IF_ERROR(check_rank(g, in, 0, codes ? 3 : 2, "w"));
  const DimVector& w = shape_of(g, in[0]);
  Format format = type_of(g, in[0]).format;
  Dim N = w[transposed ? 1 : 0], K = w[transposed ? 0 : 1];
  if (codes) {
    OAR_RETURN_IF_ERROR(check_rank(g, in, 1, 2, "scales"));
    const DimVector& scales = shape_of(g, in[1]);
    const Format u8 = Format::of(DType::kU8);
    const bool bytes = format == u8 && type_of(g, in[1]).format == u8;
    if (!bytes || transposed || w[2].const_value() * 2 != kGroup || !(scales[0] == N) || !(scales[1] == K))
      return invalid_argument(cat("mxfp4 is u8 codes (N, K / 32, 16) and u8 scales (N, K / 32), not ",
                                  g.type_string(type_of(g, in[0])), " and ",
                                  g.type_string(type_of(g, in[1]))));
    format = Format(&formats::mxfp4::kInfo);
    K = K * Dim(kGroup);
  } else if (transposed && !format.plain()) {
    return invalid_argument(cat("a transposed weight cannot be ", format.name()));
  }
  const int64_t first = attrs.get_int("first"), step = attrs.get_int("step", 1), rows = attrs.get_int("rows");
  if (attrs.has("parts")) {
    if (codes || transposed || first != 0 || !(N == Dim(rows)) ||
        !are_parts(attrs.get_ints("parts"), step, rows))
      return invalid_argument(cat("parts of each ", step, " of ", rows, " rows, of ", N.const_value()));
    return std::vector<TensorType>{{format, {Dim(rows), K}}};
  }
  if (first < 0 || step < 1 || rows < 1 || first + (rows - 1) * step >= N.const_value())
    return invalid_argument(
        cat("rows ", first, ", ", first + step, ", ..., ", rows, " of them, of ", N.const_value()));
  return std::vector<TensorType>{{format, {Dim(rows), K}}};
}

void pack_row(const uint8_t* codes, const uint8_t* scales, int64_t groups, Mxfp4* to) {
  for (int64_t g = 0; g < groups; ++g, codes += kGroup / 2) {
    to[g] = {{scales[g]}, {}};
    const auto code = [&](int i) { return static_cast<uint8_t>(codes[i / 2] >> (4 * (i % 2)) & 15); };
    for (int i = 0; i < kGroup; ++i) formats::set_nibble(to[g].q, i, code(i));
  }
}

// Columns first, first + step, ... of w (K, N) as rows; in tiles, as both sides are read by lines.
template <class T>
void take_columns(const T* w, int64_t K, int64_t N, int64_t first, int64_t step, int64_t begin, int64_t end,
                  T* to) {
  constexpr int64_t kTile = 32;
  for (int64_t r0 = begin; r0 < end; r0 += kTile)
    for (int64_t k0 = 0; k0 < K; k0 += kTile)
      for (int64_t r = r0; r < std::min(end, r0 + kTile); ++r)
        for (int64_t k = k0; k < std::min(K, k0 + kTile); ++k) to[r * K + k] = w[k * N + first + r * step];
}

Result<Tensor> fold(std::span<const Tensor> in, const Attrs& attrs, ThreadPool& pool) {
  const Tensor& w = in[0];
  const bool codes = in.size() > 1 && w.shape().rank() == 3, transposed = attrs.get_bool("transposed", false);
  const int64_t first = attrs.get_int("first"), step = attrs.get_int("step", 1), rows = attrs.get_int("rows");
  const int64_t N = w.shape()[transposed ? 1 : 0];
  const int64_t K = codes ? w.shape()[1] * kGroup : w.shape()[transposed ? 0 : 1];
  const Format format = codes ? Format(&formats::mxfp4::kInfo) : w.format();
  OAR_ASSIGN(Tensor out, Tensor::allocate({rows, K}, format));
  const auto* from = static_cast<const uint8_t*>(w.data());
  auto* to = static_cast<uint8_t*>(out.mutable_data());
  const int64_t row_bytes = *format.row_bytes(K);
  const std::vector<int64_t> parts = attrs.get_ints("parts");
  pool.parallel_for(rows, 32, [&](int64_t begin, int64_t end) {
    if (transposed) {
      const auto take = [&]<class T>(T*) {
        take_columns(reinterpret_cast<const T*>(from), K, N, first, step, begin, end,
                     reinterpret_cast<T*>(to));
      };
      switch (format.block_bytes()) {
        case 1: return take(static_cast<uint8_t*>(nullptr));
        case 2: return take(static_cast<uint16_t*>(nullptr));
        case 4: return take(static_cast<uint32_t*>(nullptr));
        default: return take(static_cast<uint64_t*>(nullptr));
      }
    }
    for (int64_t r = begin; r < end; ++r) {
      const int64_t n = parts.empty() ? first + r * step : row_of_parts(parts, step, rows, r);
      if (codes) {
        pack_row(from + n * K / 2, static_cast<const uint8_t*>(in[1].data()) + n * K / kGroup, K / kGroup,
                 reinterpret_cast<Mxfp4*>(to + r * row_bytes));
      } else {
        memcpy(to + r * row_bytes, from + n * row_bytes, static_cast<size_t>(row_bytes));
      }
    }
  });
  w.buffer().release_pages();
  return out;
}

}  // namespace

extern const OpDef op_stored_matrix = {
    .name = "stored_matrix", .infer = stored_infer, .fold = fold, .fold_keeps_format = true};

}  // namespace oar

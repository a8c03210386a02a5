// rope(x, positions, inv_freq, head norm weight, cos, sin): rotary embedding,
// https://arxiv.org/abs/2104.09864, in the layouts kernels/rope.h describes. Angles are given in one of two
// ways:
//
//   positions (T), inv_freq (R / 2)   angle = position * inv_freq, times `mscale` once they are cos and sin;
//                                     x is (T, heads, D), packed rows
//   cos, sin                          tables, as files compute them; rows chosen by positions where given
//
// rows         "packed" (unless told): the last axis of x is a head, and tables broadcast to x. "padded": x
// is
//              (B, S, heads D) or (B, heads, S, D), a table (B, S, angles), or (most, angles) with positions
//              (B, S); one position alone is that of the first token.
// num_heads    of padded (B, S, heads D); 0: a head is as wide as its angles turn.
// rotary_dim   how much of a head is turned: R, 0 is all of it, -1 twice as much as a table is wide. Those by
//              inv_freq turn twice as much as there are frequencies.
// interleaved  pairs (2i, 2i + 1) instead of (i, i + R / 2).
// A table has R / 2 angles, one a pair, or R, one an element, or 1 for all. With a weight each head is
// normalized first, by `norm_eps`.
#include "kernels/rope.h"

#include <numeric>

#include "engine/graph/cut.h"
#include "engine/ops/op_util.h"
#include "engine/ops/tensor/util.h"

namespace oar {
namespace {

enum Operands : size_t { kX, kPositions, kInvFreq, kNorm, kCos, kSin };

bool padded(const Attrs& attrs) { return attrs.get_string("rows", "packed") == "padded"; }

Status check_rows(const Attrs& attrs) {
  const std::string rows = attrs.get_string("rows", "packed");
  if (rows == "packed" || rows == "padded") return ok_status();
  return invalid_argument(cat("unknown rows '", rows, "'; there are packed and padded"));
}

// How wide a head of D elements is turned by tables of `width` angles. Fails where they do not fit.
Result<int64_t> turned(const Attrs& attrs, int64_t D, int64_t width) {
  const int64_t wanted = attrs.get_int("rotary_dim"), R = wanted == 0 ? D : wanted == -1 ? 2 * width : wanted;
  if (R < 2 || R % 2 != 0 || R > D)
    return invalid_argument(cat("turns ", R, " elements of a head of ", D, "; give an even number of them"));
  if (width != R / 2 && width != R && width != 1)
    return invalid_argument(cat("cos and sin have ", width, " angles; ", R, " elements need ", R / 2));
  return R;
}

// The heads of a padded row of `width` elements.
Result<int64_t> heads_of(const Attrs& attrs, int64_t width, int64_t angles) {
  int64_t heads = attrs.get_int("num_heads");
  if (heads == 0 && angles > 0) heads = width / (2 * angles);
  if (heads < 1 || width % heads != 0)
    return invalid_argument(cat(heads, " heads do not divide rows of ", width, "; give num_heads"));
  return heads;
}

// ---- where types are known

Status infer_tables(const Graph& g, Ids in, const Attrs& attrs) {
  if (!given(in, kCos) || !given(in, kSin))
    return invalid_argument("cos and sin go together; one is missing");
  const DimVector &x = shape_of(g, in[kX]), &table = shape_of(g, in[kCos]);
  if (!(table == shape_of(g, in[kSin]))) return invalid_argument("cos and sin have different shapes");
  if (x.empty() || table.empty() || !x.back().is_const() || !table.back().is_const())
    return invalid_argument("x, cos and sin need a last axis of known extent");
  const int64_t width = table.back().const_value();
  int64_t D = x.back().const_value();
  if (given(in, kPositions)) OAR_RETURN_IF_ERROR(check_integer(g, in[kPositions], "positions"));
  if (padded(attrs)) {
    if (x.size() != 3 && x.size() != 4) return invalid_argument("padded x must have 3 or 4 axes");
    OAR_RETURN_IF_ERROR(check_rank(g, in, kCos, given(in, kPositions) ? 2 : 3, "cos"));
    if (x.size() == 3) {
      OAR_ASSIGN(const int64_t heads, heads_of(attrs, D, width));
      D /= heads;
    }
  } else {
    if (given(in, kPositions)) return invalid_argument("positions of packed rows choose no rows of tables");
    if (table.size() > x.size()) return invalid_argument("cos and sin have more axes than x");
    for (size_t k = 2; k <= table.size(); ++k) {
      const Dim &own = table[table.size() - k], &other = x[x.size() - k];
      if (!(own == Dim(1))) OAR_RETURN_IF_ERROR(check_same(own, other, "axes of cos and x"));
    }
  }
  return turned(attrs, D, width).status();
}

Status infer_angles(const Graph& g, Ids in) {
  OAR_RETURN_IF_ERROR(check_rank(g, in, kX, 3, "x"));
  OAR_RETURN_IF_ERROR(check_rank(g, in, kPositions, 1, "positions"));
  OAR_RETURN_IF_ERROR(check_integer(g, in[kPositions], "positions"));
  OAR_RETURN_IF_ERROR(check_rank(g, in, kInvFreq, 1, "inv_freq"));
  const DimVector& x = shape_of(g, in[kX]);
  OAR_RETURN_IF_ERROR(check_same(x[0], shape_of(g, in[kPositions])[0], "rows of x and positions"));
  if (2 * shape_of(g, in[kInvFreq])[0].const_value() > x[2].const_value())
    return invalid_argument("rotates more dims than a head has");
  return ok_status();
}

Types rope_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 3, 6));
  OAR_RETURN_IF_ERROR(check_rows(attrs));
  if (!given(in, kX)) return invalid_argument("x is missing");
  const bool tables = given(in, kCos) || given(in, kSin);
  if (tables == given(in, kInvFreq)) return invalid_argument("needs inv_freq, or cos and sin");
  OAR_RETURN_IF_ERROR(tables ? infer_tables(g, in, attrs) : infer_angles(g, in));
  const DimVector& x = shape_of(g, in[kX]);
  if (given(in, kNorm)) {
    if (padded(attrs)) return invalid_argument("heads of padded rows are normalized before");
    OAR_RETURN_IF_ERROR(check_same(shape_of(g, in[kNorm])[0], x.back(), "head norm weight and head size"));
  }
  return std::vector<TensorType>{f32_type(x)};
}

// ---- definition

Val cut(Builder& b, Val v, int64_t begin, int64_t end) {
  return b.op("slice", {v}, cut_attrs(-1, begin, end));
}
// v with its last axis as `tail`.
Val folded(Builder& b, Val v, std::vector<int64_t> tail) {
  std::vector<int64_t> dims(b.shape(v).size() - 1, 0);
  dims.insert(dims.end(), tail.begin(), tail.end());
  return b.op("reshape", {v}, {{"shape", std::move(dims)}});
}
// The first and the second of each pair among the first R elements.
std::pair<Val, Val> pairs_of(Builder& b, Val v, int64_t R, bool interleaved) {
  if (!interleaved) return {cut(b, v, 0, R / 2), cut(b, v, R / 2, R)};
  const Val pairs = folded(b, cut(b, v, 0, R), {R / 2, 2});
  const auto column = [&](int64_t k) {
    std::vector<int64_t> dims(b.shape(v).size(), 0);
    dims.back() = R / 2;
    return b.op("reshape", {cut(b, pairs, k, k + 1)}, {{"shape", std::move(dims)}});
  };
  return {column(0), column(1)};
}

// x by tables that broadcast to it.
Val turn(Builder& b, Val x, Val c, Val s, int64_t R, bool interleaved) {
  const int64_t D = b.dim(x, -1).const_value(), width = b.dim(c, -1).const_value();
  const auto [u, v] = pairs_of(b, x, R, interleaved);
  Val c1 = c, c2 = c, s1 = s, s2 = s;
  if (width == R) {
    std::tie(c1, c2) = pairs_of(b, c, R, interleaved);
    std::tie(s1, s2) = pairs_of(b, s, R, interleaved);
  }
  const Val p = b.op("sub", {b.op("mul", {u, c1}), b.op("mul", {v, s1})}),
            q = b.op("add", {b.op("mul", {v, c2}), b.op("mul", {u, s2})});
  const Attrs last{{"axis", int64_t{-1}}};
  Val y;
  if (interleaved) {
    const Val joined = b.op("concat", {folded(b, p, {R / 2, 1}), folded(b, q, {R / 2, 1})}, last);
    std::vector<int64_t> dims(b.shape(x).size(), 0);
    dims.back() = R;
    y = b.op("reshape", {joined}, {{"shape", std::move(dims)}});
  } else {
    y = b.op("concat", {p, q}, last);
  }
  return R < D ? b.op("concat", {y, cut(b, x, R, D)}, last) : y;
}

// Rows of a padded table (most, angles) as (B, S, angles).
Val rows_at(Builder& b, Val table, Val positions, int64_t B, int64_t S) {
  const Val from = b.op("cast", {positions}, {{"to", std::string("f64")}});
  Val at = positions;
  if (b.shape(positions).size() < 2 && B * S != 1) {  // of the first token
    auto steps = Tensor::allocate({S}, Format::f32());
    if (!steps.ok()) return b.fail(steps.status()), Val{};
    std::iota(steps->mutable_values<float>().begin(), steps->mutable_values<float>().end(), 0.f);
    at = b.op("cast", {b.op("add", {b.constant("", std::move(*steps)), from})}, {{"to", std::string("i32")}});
    return b.op("reshape", {b.op("gather", {table, at})}, {{"shape", std::vector<int64_t>{1, S, -1}}});
  }
  return b.op("reshape", {b.op("gather", {table, at})}, {{"shape", std::vector<int64_t>{B, S, -1}}});
}

std::vector<Val> define_padded(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const DimVector shape = b.shape(in[kX]);
  const bool heads_last = shape.size() == 3;
  const Dim &B = shape[0], &S = shape[heads_last ? 1 : 2];
  if (!B.is_const() || !S.is_const() || !shape.back().is_const())
    return b.fail(invalid_argument("padded rows have symbols for extents")), std::vector<Val>{};
  const int64_t width = b.dim(in[kCos], -1).const_value();
  Val x = in[kX];
  int64_t D = shape.back().const_value();
  if (heads_last) {
    const auto heads = heads_of(attrs, D, width);
    if (!heads.ok()) return b.fail(heads.status()), std::vector<Val>{};
    D /= *heads;
    x = folded(b, x, {*heads, D});
  }
  const auto R = turned(attrs, D, width);
  if (!R.ok()) return b.fail(R.status()), std::vector<Val>{};
  const auto table = [&](Val t) {
    if (in[kPositions]) t = rows_at(b, t, in[kPositions], B.const_value(), S.const_value());
    using Ints = std::vector<int64_t>;
    return b.op("reshape", {t}, {{"shape", heads_last ? Ints{0, 0, 1, width} : Ints{0, 1, -1, width}}});
  };
  Val y = turn(b, x, table(in[kCos]), table(in[kSin]), *R, attrs.get_bool("interleaved"));
  if (heads_last) y = b.op("reshape", {y}, {{"shape", std::vector<int64_t>{0, 0, -1}}});
  return {y};
}

std::vector<Val> rope_define(Builder& b, std::span<const Val> operands, const Attrs& attrs) {
  std::array<Val, 6> in{};
  std::copy(operands.begin(), operands.end(), in.begin());
  if (padded(attrs)) return define_padded(b, in, attrs);
  Val x = in[kX];
  if (in[kNorm]) x = b.op("rms_norm", {x, in[kNorm]}, {{"epsilon", attrs.get_float("norm_eps", 1e-6)}});
  const bool interleaved = attrs.get_bool("interleaved");
  if (in[kCos]) {
    const auto R = turned(attrs, b.dim(x, -1).const_value(), b.dim(in[kCos], -1).const_value());
    if (!R.ok()) return b.fail(R.status()), std::vector<Val>{};
    return {turn(b, x, in[kCos], in[kSin], *R, interleaved)};
  }
  // (T, 1, half), in f64: a long text's angles have no digits left in f32.
  const auto wide = [&](Val v) { return b.op("cast", {v}, {{"to", std::string("f64")}}); };
  const Val pos = b.op("reshape", {wide(in[kPositions])}, {{"shape", std::vector<int64_t>{0, 1, 1}}});
  const Val angle = b.op("mul", {pos, wide(in[kInvFreq])});
  const Val mscale = wide(b.scalar(attrs.get_float("mscale", 1)));
  const auto table = [&](const char* of) {
    return b.op("cast", {b.op("mul", {b.op(of, {angle}), mscale})}, {{"to", std::string("f32")}});
  };
  const Val c = table("cos"), s = table("sin");
  return {turn(b, x, c, s, 2 * b.dim(in[kInvFreq], 0).const_value(), interleaved)};
}

// ---- kernel: packed rows by frequencies

Lowered rope_lower(LowerContext& ctx) {
  const Known x = ctx.known(kX), freq = ctx.known(kInvFreq);
  if (!freq.given() || !ctx.is_f32_operand(kInvFreq) || !ctx.is_f32_operand(kNorm)) return not_lowered();
  RopeArgs args;
  if (ctx.in_run()) {  // whose operands nobody has checked
    const Known at = ctx.known(kPositions), w = ctx.known(kNorm);
    if (!x.f32() || x.rank() != 3 || !freq.f32() || freq.rank() != 1 || !at.given() || at.rank() != 1 ||
        !(at.format() == Format::i32()) || !at.same(0, x, 0) || padded(ctx.node.attrs) ||
        ctx.known(kCos).given() || ctx.known(kSin).given() ||
        (w.given() && (!w.f32() || w.rank() != 1 || !w.same(0, x, 2))))
      return not_lowered();
    args.rot_dim = 2 * ctx.operands[kInvFreq].shape[0];
    if (args.rot_dim > ctx.operands[kX].shape[2]) return not_lowered();
  } else {
    args.rot_dim = 2 * shape_of(ctx.graph, ctx.node.inputs[kInvFreq])[0].const_value();
  }
  args.mscale = static_cast<float>(ctx.node.attrs.get_float("mscale", 1));
  args.interleaved = ctx.node.attrs.get_bool("interleaved");
  args.norm_eps = static_cast<float>(ctx.node.attrs.get_float("norm_eps", 1e-6));
  OAR_ASSIGN(args.inv_freq, ctx.f32_operand(kInvFreq));
  OAR_ASSIGN(args.norm_w, ctx.f32_operand(kNorm));
  const auto fill = [normed = ctx.given(kNorm)](RopeArgs& a, const Operand* in, const Operand* out) {
    if (a.inv_freq == nullptr) a.inv_freq = in[kInvFreq].as<const float>();
    if (a.norm_w == nullptr && normed) a.norm_w = in[kNorm].as<const float>();
    a.positions = in[kPositions].as<const int32_t>();
    fill_heads(a, in[kX], out[0]);
  };
  if (!ctx.in_run()) return lower_kernel(ctx, rope_key(ctx.backend), args, fill);
  return lower_like(ctx, kX, KernelFamily::kRope, args, 1, 1, fill);
}

// ---- evaluation

// The rows of an operand: all axes of its values but the last, as they broadcast.
struct Rows {
  Tensor values;
  Shape axes;
  int64_t width = 1;
};
Shape axes_before_last(const Shape& s) {
  return Shape(std::span(s.begin(), static_cast<size_t>(std::max(s.rank() - 1, 0))));
}

// Rows of a padded table, for S tokens: (B or 1, S, angles).
Result<Tensor> rows_at(const EvalContext& ctx, const Tensor& table, const Tensor& positions, int64_t B,
                       int64_t S) {
  const bool first = positions.numel() == 1 && positions.shape().rank() < 2;
  if (!dtype_is_integer(tensor::dtype_of(positions)) || (!first && positions.numel() != B * S))
    return invalid_argument("one position per token is needed");
  const int64_t width = table.shape().cols(), rows = table.shape().rows(), batch = first ? 1 : B;
  OAR_ASSIGN(Tensor out, ctx.allocate({batch, S, width}, tensor::dtype_of(table)));
  for (int64_t k = 0; k < batch * S && !ctx.options().sizing; ++k) {
    const int64_t at = first ? element_as_int(positions, 0) + k : element_as_int(positions, k);
    if (at < 0 || at >= rows)
      return invalid_argument(cat("position ", at, " is out of range; the tables have ", rows));
    tensor::copy_elements(table, at * width, out, k * width, width);
  }
  return out;
}

struct Turn {
  Rows x, cos, sin;
  int64_t R = 0;
  bool interleaved = false;
};

Result<Turn> by_tables(const EvalContext& ctx, const Tensor& x) {
  const Attrs& attrs = ctx.attrs();
  Turn t;
  OAR_ASSIGN(t.cos.values, ctx.tensor(kCos));
  OAR_ASSIGN(t.sin.values, ctx.tensor(kSin));
  t.x = {x, axes_before_last(x.shape()), x.shape().cols()};
  for (Rows* table : {&t.cos, &t.sin}) {
    const Shape shape = table->values.shape();
    if (!dtype_is_float(tensor::dtype_of(table->values)) || shape.rank() < 1)
      return invalid_argument("cos and sin must be floats of an axis or more");
    table->axes = axes_before_last(shape), table->width = shape.cols();
  }
  if (padded(attrs)) {
    const Shape shape = x.shape();
    if (shape.rank() != 3 && shape.rank() != 4) return invalid_argument("padded x must have 3 or 4 axes");
    if (!(t.cos.values.shape() == t.sin.values.shape()))
      return invalid_argument("cos and sin have different shapes");
    const int64_t B = shape[0], S = shape[shape.rank() - 2];
    int64_t heads = 0;
    if (shape.rank() == 3) {
      OAR_ASSIGN(heads, heads_of(attrs, shape[2], t.cos.width));
      t.x.axes = {B, S, heads}, t.x.width = shape[2] / heads;
    }
    for (Rows* table : {&t.cos, &t.sin}) {
      int64_t batch = B;
      if (ctx.has(kPositions)) {
        OAR_ASSIGN(const Tensor at, ctx.tensor(kPositions));
        OAR_ASSIGN(table->values, rows_at(ctx, table->values, at, B, S));
        batch = table->values.shape()[0];
      } else if (table->values.numel() != B * S * table->width) {
        return invalid_argument("cos and sin do not match the operand; give a row per token, or positions");
      }
      table->axes = heads > 0 ? Shape{batch, S, 1} : Shape{batch, 1, S};
    }
  } else if (ctx.has(kPositions)) {
    return invalid_argument("positions of packed rows choose no rows of tables");
  }
  t.interleaved = attrs.get_bool("interleaved");
  OAR_ASSIGN(t.R, turned(attrs, t.x.width, t.cos.width));
  return turned(attrs, t.x.width, t.sin.width).ok() ? Result<Turn>(std::move(t))
                                                    : invalid_argument("sin does not match cos");
}

// cos and sin of every position, in double.
Result<Turn> by_angles(const EvalContext& ctx, const Tensor& x) {
  OAR_ASSIGN(const Tensor at, ctx.tensor(kPositions));
  OAR_ASSIGN(const Tensor freq, ctx.tensor(kInvFreq));
  if (x.shape().rank() != 3 || padded(ctx.attrs()) || !dtype_is_integer(tensor::dtype_of(at)) ||
      !(at.shape() == Shape{x.shape()[0]}) || !dtype_is_float(tensor::dtype_of(freq)) ||
      freq.shape().rank() != 1)
    return invalid_argument("needs x (T, heads, D), positions (T) and inv_freq (half)");
  const int64_t T = x.shape()[0], half = freq.numel();
  Turn t;
  t.x = {x, {T, x.shape()[1]}, x.shape()[2]};
  t.R = 2 * half, t.interleaved = ctx.attrs().get_bool("interleaved");
  if (t.R > t.x.width) return invalid_argument("rotates more dims than a head has");
  std::vector<double> c(static_cast<size_t>(T * half)), s(c.size());
  const double mscale = ctx.attrs().get_float("mscale", 1);
  for (size_t k = 0; k < c.size() && !ctx.options().sizing; ++k) {
    const auto i = static_cast<int64_t>(k);
    const double angle =
        static_cast<double>(element_as_int(at, i / half)) * element_as_double(freq, i % half);
    c[k] = std::cos(angle) * mscale, s[k] = std::sin(angle) * mscale;
  }
  t.cos = {tensor::from_doubles(ctx, {T, 1, half}, DType::kF64, c), {T, 1}, half};
  t.sin = {tensor::from_doubles(ctx, {T, 1, half}, DType::kF64, s), {T, 1}, half};
  return t;
}

// An RMS norm of each head, in double.
Result<Tensor> normalized(const EvalContext& ctx, const Tensor& x, int64_t D) {
  OAR_ASSIGN(const Tensor w, ctx.tensor(kNorm));
  if (!dtype_is_float(tensor::dtype_of(w)) || w.numel() != D)
    return invalid_argument("the head norm weight does not match the heads");
  std::vector<double> v = tensor::to_doubles(x);
  const std::vector<double> gain = tensor::to_doubles(w);
  const auto n = static_cast<size_t>(D);
  for (size_t row = 0; n > 0 && row < v.size(); row += n) {
    double squares = 0;
    for (size_t k = row; k < row + n; ++k) squares += v[k] * v[k];
    const double scale =
        1 / std::sqrt(squares / static_cast<double>(D) + ctx.attrs().get_float("norm_eps", 1e-6));
    for (size_t k = 0; k < n; ++k) v[row + k] *= scale * gain[k];
  }
  return tensor::from_doubles(ctx, x.shape(), DType::kF64, v);
}

// Where a pair lies in a head, and its angle in a row of a table.
struct Table {
  int64_t first = 0, step = 0, second = 0;  // of pair d: first + step d; of its second element so much behind
  Table(int64_t width, int64_t R, bool interleaved) {
    const bool whole = width == R && R > 1;
    step = width == 1 ? 0 : whole && interleaved ? 2 : 1;
    second = whole ? (interleaved ? 1 : R / 2) : 0;
  }
};
template <class T>
void rotate(const EvalContext& ctx, const tensor::Broadcast& b, const Turn& t, Tensor& out) {
  const T *px = elements<T>(t.x.values), *pc = elements<T>(t.cos.values), *ps = elements<T>(t.sin.values);
  T* py = mutable_elements<T>(out);
  const int64_t D = t.x.width, half = t.R / 2;
  const Table in_cos(t.cos.width, t.R, t.interleaved), in_sin(t.sin.width, t.R, t.interleaved);
  const auto row = [&](const T* x, const T* c, const T* s, T* y) {
    const T *c2 = c + in_cos.second, *s2 = s + in_sin.second;
    if (!t.interleaved && in_cos.step == 1 && in_sin.step == 1) {
      for (int64_t d = 0; d < half; ++d) {
        const T u = x[d], v = x[d + half];
        y[d] = u * c[d] - v * s[d];
        y[d + half] = v * c2[d] + u * s2[d];
      }
    } else {
      for (int64_t d = 0; d < half; ++d) {
        const int64_t p = t.interleaved ? 2 * d : d, q = t.interleaved ? p + 1 : d + half;
        const int64_t i = d * in_cos.step, j = d * in_sin.step;
        const T u = x[p], v = x[q];
        y[p] = u * c[i] - v * s[j];
        y[q] = v * c2[i] + u * s2[j];
      }
    }
    std::copy(x + t.R, x + D, y + t.R);
  };
  ctx.parallel(b.numel(), 2.0 * static_cast<double>(D), [&](int64_t begin, int64_t end) {
    b.runs(begin, end, [&](int64_t at, const auto& from, int64_t n, const auto& step) {
      for (int64_t k = 0; k < n; ++k) {
        row(px + (from[0] + k * step[0]) * D, pc + (from[1] + k * step[1]) * t.cos.width,
            ps + (from[2] + k * step[2]) * t.sin.width, py + (at + k) * D);
      }
    });
  });
}

struct Rotation {
  Turn turn;
  tensor::Broadcast rows;
  Shape shape;
  DType dtype;
  bool in_f32 = false;  // as files compute; else a file or the op's own angles ask for double
};
Result<Rotation> rotation_of(const EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(kX));
  Rotation r;
  r.dtype = tensor::dtype_of(x);
  if (!dtype_is_float(r.dtype) || x.shape().rank() < 1)
    return invalid_argument("x must be floats of an axis or more");
  OAR_RETURN_IF_ERROR(check_rows(ctx.attrs()));
  const bool tables = ctx.has(kCos) || ctx.has(kSin);
  if (tables == ctx.has(kInvFreq)) return invalid_argument("needs inv_freq, or cos and sin");
  OAR_ASSIGN(r.turn, tables ? by_tables(ctx, x) : by_angles(ctx, x));
  const Turn& t = r.turn;
  OAR_ASSIGN(r.rows, tensor::Broadcast::make({&t.x.axes, &t.cos.axes, &t.sin.axes}));
  // Only heads that nobody divides grow with their tables.
  std::vector<int64_t> dims = tensor::dims_of(x.shape());
  if (!(r.rows.shape() == t.x.axes)) {
    if (padded(ctx.attrs())) return invalid_argument("cos and sin do not match the operand");
    dims = tensor::dims_of(r.rows.shape());
    dims.push_back(t.x.width);
  }
  OAR_ASSIGN(r.shape, checked_shape(dims));
  r.in_f32 =
      tables && !ctx.has(kNorm) && (r.dtype != DType::kF64 || tensor::dtype_of(t.cos.values) != DType::kF64);
  return r;
}

Status rope_evaluate(EvalContext& ctx) {
  OAR_ASSIGN(Rotation r, rotation_of(ctx));
  Turn& t = r.turn;
  if (ctx.has(kNorm) && !ctx.options().sizing) {
    OAR_ASSIGN(t.x.values, normalized(ctx, t.x.values, t.x.width));
  }
  for (Rows* rows : {&t.x, &t.cos, &t.sin}) { OAR_ASSIGN(rows->values, tensor::as_f64(ctx, rows->values)); }
  OAR_ASSIGN(Tensor y, ctx.allocate(r.shape, DType::kF64));
  rotate<double>(ctx, r.rows, t, y);
  OAR_ASSIGN(y, tensor::from_f64(ctx, y, r.dtype));
  ctx.set(0, std::move(y));
  return ok_status();
}

Result<bool> rotate_f32(KernelContext& ctx) {
  OAR_ASSIGN(Rotation r, rotation_of(ctx));
  if (!r.in_f32) return false;
  Turn& t = r.turn;
  for (Rows* rows : {&t.x, &t.cos, &t.sin}) { OAR_ASSIGN(rows->values, tensor::as_f32(ctx, rows->values)); }
  OAR_ASSIGN(Tensor y, ctx.allocate(r.shape, DType::kF32));
  rotate<float>(ctx, r.rows, t, y);
  OAR_ASSIGN(y, tensor::from_f32(ctx, y, r.dtype));
  ctx.set(0, std::move(y));
  return true;
}

}  // namespace

extern const OpDef op_rope = {.name = "rope",
                              .strided_inputs = 1,
                              .apart_inputs = 1,
                              .strided_output = true,
                              .apart_output = true,
                              .infer = rope_infer,
                              .define = rope_define,
                              .evaluate = rope_evaluate,
                              .by_kernels = rotate_f32,
                              .lower = rope_lower};

}  // namespace oar

// table_rows, rotate, barrier, accumulate (ops.h).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/ops/define/definitions.h"
#include "engine/ops/op_util.h"
#include "engine/ops/tensor/kernel_call.h"
#include "engine/ops/train/ops.h"
#include "engine/ops/train/stored_matrix.h"

namespace oar::train {
namespace {

Types table_infer(const Graph& g, Ids in, const Attrs&) {
  return std::vector<TensorType>{{Format::f32(), {shape_of(g, in[1])[0], shape_of(g, in[0])[1]}}};
}
Types first_infer(const Graph& g, Ids in, const Attrs&) {
  return std::vector<TensorType>{g.value(in[0]).type};
}
Types rotate_infer(const Graph& g, Ids in, const Attrs& attrs) {
  return std::vector<TensorType>{{result_format(attrs, 0), shape_of(g, in[0])}};
}

Status table_evaluate(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor table, ctx.tensor(0));
  OAR_ASSIGN(const Tensor ids, ctx.tensor(1));
  if (table.shape().rank() != 2)
    return invalid_argument(cat("the table is no matrix: ", table.shape().to_string()));
  if (!(ids.format() == Format::i32()) || ids.shape().rank() != 1)
    return invalid_argument("ids must be i32 (T)");
  const int64_t T = ids.shape()[0], E = table.shape()[1];
  OAR_ASSIGN(Tensor y, ctx.allocate({T, E}, DType::kF32));
  if (!ctx.options().sizing) {
    const auto scale = static_cast<float>(ctx.attrs().get_float("scale", 1));
    for (int64_t t = 0; t < T; ++t) {
      const int64_t id = ids.values<int32_t>()[static_cast<size_t>(t)];
      if (id < 0 || id >= table.shape()[0])
        return invalid_argument(cat("id ", id, " is outside the vocabulary of ", table.shape()[0]));
      OAR_ASSIGN(const Tensor row, to_f32(table.slice(id, id + 1)));
      float* to = mutable_elements<float>(y) + t * E;
      std::memcpy(to, row.data(), static_cast<size_t>(E) * sizeof(float));
      if (scale != 1)
        for (int64_t c = 0; c < E; ++c) to[c] *= scale;
    }
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

Result<bool> rotate_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor positions, ctx.tensor(1));
  OAR_ASSIGN(const Tensor frequencies, ctx.tensor(2));
  const Shape& shape = x.shape();
  if (shape.rank() != 3 || !is_float(x) || !(positions.format() == Format::i32()) ||
      !(positions.shape() == Shape{shape[0]}) || !(frequencies.format() == Format::f32()) ||
      2 * frequencies.numel() > shape[2])
    return invalid_argument(
        "x is f32 or bf16 (T, heads, D), positions i32 (T), frequencies f32 of at most D / 2");
  const int64_t heads = shape[1], D = shape[2], half = frequencies.numel();
  const bool pairs = ctx.attrs().get_bool("interleaved");
  const double mscale = ctx.attrs().get_float("mscale", 1), sign = ctx.attrs().get_bool("reverse") ? -1 : 1;
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, result_type(ctx.attrs(), 0)));
  OAR_ASSIGN(Tensor turns, ctx.allocate({shape[0], 2 * half}, DType::kF32));  // cosines and sines
  const auto at = ctx.options().sizing ? std::span<const int32_t>() : positions.values<int32_t>();
  // Positions begin anew in each segment: those below T are computed once each, others row by row.
  const bool shared = std::all_of(at.begin(), at.end(), [&](int32_t p) { return p >= 0 && p < shape[0]; });
  const int64_t count = at.empty() ? 0 : shared ? *std::max_element(at.begin(), at.end()) + 1 : shape[0];
  ctx.parallel(count, static_cast<double>(40 * half), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const auto position = static_cast<double>(shared ? row : at[static_cast<size_t>(row)]);
      float* const c = mutable_elements<float>(turns) + row * 2 * half;
      for (int64_t k = 0; k < half; ++k) {
        const double angle =
            position * static_cast<double>(frequencies.values<float>()[static_cast<size_t>(k)]);
        c[k] = static_cast<float>(mscale * std::cos(angle));
        c[half + k] = static_cast<float>(sign * mscale * std::sin(angle));
      }
    }
  });
  ctx.parallel(shape[0], static_cast<double>(heads * D), [&](int64_t begin, int64_t end) {
    std::vector<float> room(static_cast<size_t>(2 * heads * D));
    for (int64_t t = begin; t < end; ++t) {
      const FloatsTo rows(ctx, y, t * heads * D, heads * D, room.data());
      const float* const all = as_floats(x, t * heads * D, heads * D, room.data() + heads * D);
      const float* const c = elements<float>(turns) + (shared ? at[static_cast<size_t>(t)] : t) * 2 * half;
      const float* const s = c + half;
      for (int64_t h = 0; h < heads; ++h) {
        const float* const from = all + h * D;
        float* const to = rows.data() + h * D;
        for (int64_t k = 0; k < half; ++k) {
          const int64_t a = pairs ? 2 * k : k, b = pairs ? 2 * k + 1 : k + half;
          to[a] = from[a] * c[k] - from[b] * s[k];
          to[b] = from[b] * c[k] + from[a] * s[k];
        }
        std::copy(from + 2 * half, from + D, to + 2 * half);
      }
      rows.done();
    }
  });
  ctx.set(0, std::move(y));
  return true;
}

std::vector<Val> table_define(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  return {b.op("embedding", in, attrs)};
}

std::vector<Val> rotate_define(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const Val frequencies = attrs.get_bool("reverse") ? b.op("neg", {in[2]}) : in[2];
  const Val y = b.op("rope", {definition::real(b, in[0]), in[1], frequencies, Val{}},
                     {{"mscale", attrs.get_float("mscale", 1)},
                      {"interleaved", int64_t{attrs.get_bool("interleaved") ? 1 : 0}}});
  return rounded_results(b, {y}, attrs);
}

std::vector<Val> rotate_vjp(const Pullback& p) {
  Attrs attrs = without_rounding(p.attrs);
  attrs.set("reverse", int64_t{!p.attrs.get_bool("reverse")});
  std::vector<Val> out = emit(p.b, op_rotate, std::vector<Val>{p.d[0], p.in[1], p.in[2]}, std::move(attrs));
  out.resize(3);
  return out;
}

const OpDef& moe_route() { return *find_op("moe_route"); }
Types route_types(const Graph& g, Ids in, const Attrs& attrs) { return moe_route().infer(g, in, attrs); }
std::vector<Val> route_vjp(const Pullback& p) { return moe_route().vjp(p); }
Status route_evaluate(EvalContext& ctx) { return moe_route().evaluate(ctx); }

Status accumulate_evaluate(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor sum, ctx.tensor(0));
  OAR_ASSIGN(const Tensor x, ctx.tensor(1));
  if (!(sum.format() == Format::f32()) || !(x.format() == Format::f32()) || !(sum.shape() == x.shape()))
    return invalid_argument(
        cat("sum ", sum.shape().to_string(), " and x ", x.shape().to_string(), " must be f32 of one shape"));
  float* const to = static_cast<float*>(sum.mutable_data());
  const float* const from = elements<float>(x);
  ctx.parallel(sum.numel(), 0.5, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) to[k] += from[k];
  });
  ctx.set(0, sum);
  return ok_status();
}

std::vector<Val> barrier_vjp(const Pullback& p) { return {p.d[0], Val{}}; }
Status barrier_evaluate(EvalContext& ctx) {
  ctx.set(0, ctx.datum(0));
  return ok_status();
}

}  // namespace

std::vector<Val> emit(Builder& b, const OpDef& op, std::span<const Val> inputs, Attrs attrs) {
  std::vector<ValueId> ids;
  for (const Val v : inputs) ids.push_back(v.id);
  if (!b.status().ok()) return {};
  auto made = b.graph().add_node(&op, std::move(ids), std::move(attrs));
  if (!made.ok()) return b.fail(made.status()), std::vector<Val>{};
  std::vector<Val> out;
  for (const ValueId v : *made) out.push_back({v});
  return out;
}

const OpDef op_table_rows = {
    .name = "table_rows", .infer = table_infer, .define = table_define, .evaluate = table_evaluate};
const OpDef op_rotate = {.name = "rotate",
                         .infer = rotate_infer,
                         .define = rotate_define,
                         .vjp = rotate_vjp,
                         .by_kernels = rotate_by_kernels};
const OpDef op_route = {.name = "route", .infer = route_types, .vjp = route_vjp, .evaluate = route_evaluate};
const OpDef op_barrier = {.name = "barrier",
                          .infer = first_infer,
                          .vjp = barrier_vjp,
                          .evaluate = barrier_evaluate,
                          .view = true,
                          .impure = true};
const OpDef op_accumulate = {
    .name = "accumulate", .effect = true, .infer = first_infer, .evaluate = accumulate_evaluate};

}  // namespace oar::train

// Layers that keep a matrix of each head (kernels/state_scan.h has the recurrence), as models write them and
// as they are served.
//   state_scan(q (T, Hk, Dk), k (T, Hk, Dk), v (T, Hv, Dv), g (T, Hv), beta (T, Hv), segments (T)) {delta: 1}
//   -> (T, Hv, Dv)
//     the gated delta rule over packed rows, whose segments begin with nothing kept; with {delta: 0} the scan
//     of Mamba-2, where q is C, k is B, g is dt A and beta is dt. That of language models the serve pass
//     replaces by
//   served_state_scan(borders, rows, border_tables, row_tables, row_slots, seq_start, context_len, q, k, v,
//   g, beta) {page_tokens, delta} -> borders', (T, Hv, Dv)
// Not defined in primitives: what a row corrects depends on every row before it, and their number is open.
#include "kernels/state_scan.h"

#include <cmath>

#include "engine/ops/op_util.h"

namespace oar {
namespace {

constexpr const char* kNames[] = {"q", "k", "v", "g", "beta"};

// Of the operands from `first` on; extents of heads are numbers.
Result<StateScanShape> check_shape(const Graph& g, Ids in, size_t first) {
  for (size_t i = 0; i < 5; ++i) OAR_RETURN_IF_ERROR(check_rank(g, in, first + i, i < 3 ? 3 : 2, kNames[i]));
  const DimVector &q = shape_of(g, in[first]), &k = shape_of(g, in[first + 1]),
                  &v = shape_of(g, in[first + 2]);
  if (!(q == k)) return invalid_argument("q and k have different shapes");
  for (size_t i = 1; i < 5; ++i)
    OAR_RETURN_IF_ERROR(check_same(q[0], shape_of(g, in[first + i])[0], "rows of q and of other operands"));
  for (size_t i = 3; i < 5; ++i)
    OAR_RETURN_IF_ERROR(check_same(v[1], shape_of(g, in[first + i])[1], "heads of v, g and beta"));
  for (const Dim& d : {q[1], q[2], v[1], v[2]})
    if (!d.is_const() || d.const_value() < 1 || d.const_value() > 1 << 16)
      return invalid_argument("heads and their sizes must be numbers from 1 to 65536");
  if (v[1].const_value() % q[1].const_value() != 0) {
    return invalid_argument(
        cat(v[1].const_value(), " heads of v are no multiple of ", q[1].const_value(), " heads of q and k"));
  }
  const auto size = [](const Dim& d) { return static_cast<int32_t>(d.const_value()); };
  return StateScanShape{size(q[1]), size(v[1]), size(q[2]), size(v[2])};
}

Types scan_infer(const Graph& g, Ids in, const Attrs&) {
  OAR_RETURN_IF_ERROR(check_operands(in, 6, 6));
  OAR_RETURN_IF_ERROR(check_shape(g, in, 0).status());
  OAR_RETURN_IF_ERROR(check_rank(g, in, 5, 1, "segments"));
  OAR_RETURN_IF_ERROR(check_integer(g, in[5], "segments"));
  OAR_RETURN_IF_ERROR(check_same(shape_of(g, in[0])[0], shape_of(g, in[5])[0], "rows of q and segments"));
  return std::vector<TensorType>{f32_type(shape_of(g, in[2]))};
}

Status scan_reference(HostInputs in, const Attrs& attrs, std::span<HostValue> out) {
  const Shape &q = in[0]->shape, &v = in[2]->shape;
  const auto T = static_cast<size_t>(q[0]), Hk = static_cast<size_t>(q[1]), Dk = static_cast<size_t>(q[2]),
             Hv = static_cast<size_t>(v[1]), Dv = static_cast<size_t>(v[2]);
  const bool delta = attrs.get_bool("delta", true);
  std::vector<double> S(Dk * Dv);
  for (size_t h = 0; h < Hv; ++h) {
    for (size_t t = 0; t < T; ++t) {
      if (t == 0 || in[5]->i[t] != in[5]->i[t - 1]) std::fill(S.begin(), S.end(), 0);
      const double *qt = &in[0]->f[(t * Hk + h / (Hv / Hk)) * Dk],
                   *kt = &in[1]->f[(t * Hk + h / (Hv / Hk)) * Dk];
      const double decay = std::exp(in[3]->f[t * Hv + h]), beta = in[4]->f[t * Hv + h];
      for (size_t j = 0; j < Dv; ++j) {
        double old = 0, read = 0;
        for (size_t d = 0; d < Dk; ++d) {
          S[d * Dv + j] *= decay;
          if (delta) old += S[d * Dv + j] * kt[d];
        }
        const double u = beta * (in[2]->f[(t * Hv + h) * Dv + j] - old);
        for (size_t d = 0; d < Dk; ++d) {
          S[d * Dv + j] += kt[d] * u;
          read += S[d * Dv + j] * qt[d];
        }
        out[0].f[(t * Hv + h) * Dv + j] = read;
      }
    }
  }
  return ok_status();
}

Status scan_evaluate(EvalContext& ctx) { return evaluate_as(ctx, scan_infer, scan_reference); }

// Operands from `first` on.
void fill(StateScanArgs& a, const Operand* in, size_t first, const Operand& out) {
  const auto rows = [&](size_t i, const float*& to, int64_t& ld) {
    to = in[first + i].as<const float>();
    ld = in[first + i].row_stride;
  };
  rows(0, a.q, a.ldq), rows(1, a.k, a.ldk), rows(2, a.v, a.ldv), rows(3, a.g, a.ldg), rows(4, a.beta, a.ldb);
  a.out = out.as<float>();
  a.ldo = out.row_stride;
  a.T = in[first].dims[0];
}

Lowered scan_lower(LowerContext& ctx) {
  if (ctx.in_run()) return not_lowered();
  StateScanArgs args;
  OAR_ASSIGN(args.shape, check_shape(ctx.graph, ctx.node.inputs, 0));
  args.delta = ctx.node.attrs.get_bool("delta", true) ? 1 : 0;
  args.state.page_tokens = 64;
  return lower_kernel(ctx, {KernelFamily::kStateScan}, args,
                      [](StateScanArgs& a, const Operand* in, const Operand* out) {
                        fill(a, in, 0, out[0]);
                        a.segments = in[5].as<const int32_t>();
                      });
}

Result<StateFloats> scan_state(const Graph& g, Ids in, const Attrs&) {
  OAR_ASSIGN(const StateScanShape shape, check_shape(g, in, 0));
  return StateFloats{state_scan_border(shape), state_scan_row(shape)};
}

Types served_scan_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_state_operands(g, in, attrs));
  OAR_RETURN_IF_ERROR(check_operands(in, kStateOperands + 5, kStateOperands + 5));
  OAR_RETURN_IF_ERROR(check_shape(g, in, kStateOperands).status());
  return std::vector<TensorType>{type_of(g, in[0]), f32_type(shape_of(g, in[kStateOperands + 2]))};
}

Lowered served_scan_lower(LowerContext& ctx) {
  StateScanArgs args;
  OAR_ASSIGN(args.shape, check_shape(ctx.graph, ctx.node.inputs, kStateOperands));
  args.delta = ctx.node.attrs.get_bool("delta", true) ? 1 : 0;
  args.state.page_tokens = static_cast<int32_t>(ctx.node.attrs.get_int("page_tokens"));
  return lower_kernel(ctx, {KernelFamily::kStateScan}, args,
                      [](StateScanArgs& a, const Operand* in, const Operand* out) {
                        fill_state(a.state, in);
                        fill(a, in, kStateOperands, out[1]);
                      });
}

}  // namespace

extern const OpDef op_state_scan = {.name = "state_scan",
                                    .strided_inputs = 0b11111,
                                    .infer = scan_infer,
                                    .evaluate = scan_evaluate,
                                    .lower = scan_lower,
                                    .state = scan_state,
                                    .served = "served_state_scan"};
extern const OpDef op_served_state_scan = {.name = "served_state_scan",
                                           .effect = true,
                                           .strided_inputs = 0b11111u << kStateOperands,
                                           .infer = served_scan_infer,
                                           .lower = served_scan_lower};

}  // namespace oar

#include "engine/ops/op_util.h"

namespace oar {

Status check_operands(Ids in, size_t least, size_t most) {
  if (in.size() < least || in.size() > most) {
    return invalid_argument(
        cat("takes ", least, least == most ? "" : cat(" to ", most), " operands, got ", in.size()));
  }
  return ok_status();
}

Status check_rank(const Graph& g, Ids in, size_t k, size_t rank, const char* what) {
  if (!given(in, k)) return invalid_argument(cat(what, " is missing"));
  const size_t have = shape_of(g, in[k]).size();
  if (have != rank) return invalid_argument(cat(what, " must have ", rank, " axes, it has ", have));
  return ok_status();
}

Status check_same(const Dim& a, const Dim& b, const char* what) {
  if (a == b) return ok_status();
  const std::string x = a.is_const() ? cat(a.const_value()) : "a symbolic size";
  const std::string y = b.is_const() ? cat(b.const_value()) : "a symbolic size";
  return invalid_argument(cat(what, " differ: ", x, " and ", y));
}

Status check_integer(const Graph& g, ValueId v, const char* what) {
  if (type_of(g, v).format == Format::i32()) return ok_status();
  return invalid_argument(cat(what, " must be i32, it is ", type_of(g, v).format.name()));
}

Status check_state_operands(const Graph& g, Ids in, const Attrs& attrs) {
  if (in.size() <= kStateOperands) return invalid_argument("operands behind those of the state are missing");
  for (size_t k = 0; k < 2; ++k)
    if (!given(in, k) || g.value(in[k]).kind != ValueKind::kState)
      return invalid_argument("the first two operands must be states: of borders and of rows");
  for (size_t k = 2; k < kStateOperands; ++k) {
    OAR_RETURN_IF_ERROR(check_rank(g, in, k, k < 4 ? 2 : 1, "tables, slots, seq_start or context_len"));
    OAR_RETURN_IF_ERROR(check_integer(g, in[k], "tables, slots, seq_start and context_len"));
  }
  if (attrs.get_int("page_tokens") < 1) return invalid_argument("page_tokens must be at least 1");
  return ok_status();
}

Result<size_t> axes_behind(size_t first, size_t second, const Attrs& attrs) {
  if (!attrs.has("axis")) return 0;
  const int64_t axis = attrs.get_int("axis"),
                behind = static_cast<int64_t>(first) - axis - static_cast<int64_t>(second);
  if (axis < 0 || behind < 0) return invalid_argument(cat("axis ", axis, " does not fit the operands"));
  return static_cast<size_t>(behind);
}

Result<DimVector> lined_up(size_t rank, DimVector shape, const Attrs& attrs) {
  OAR_ASSIGN(const size_t behind, axes_behind(rank, shape.size(), attrs));
  shape.resize(shape.size() + behind, Dim(1));
  return shape;
}

void fill_heads(RopeArgs& a, const Operand& x, const Operand& out) {
  a.out = out.as<float>();
  a.x = x.as<const float>();
  a.T = x.dims[0];
  a.heads = x.dims[1];
  a.D = x.dims[2];
  a.ldx = x.row_stride;
  a.ldo = out.row_stride;
  a.x_step = x.head_step;
  a.out_step = out.head_step;
  if (a.x_step != 0 || a.out_step != 0) a.version = 2;
}

void fill_state(StateArgs& a, const Operand* in) {
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  a.borders = in[0].as<float>();
  a.rows = in[1].as<float>();
  a.border_tables = in[2].as<const int32_t>();
  a.row_tables = in[3].as<const int32_t>();
  a.row_slots = in[4].as<const int32_t>();
  a.seq_start = in[5].as<const int32_t>();
  a.context_len = in[6].as<const int32_t>();
  a.max_borders = in[2].dims[1];
  a.max_row_blocks = in[3].dims[1];
  a.T = in[4].dims[0];
  a.B = in[6].dims[0];
  a.border_floats = in[0].dims[1] / kFloat;
  a.row_floats = in[1].dims[1] / kFloat / a.page_tokens;
}

Result<DimVector> broadcast(const DimVector& a, const DimVector& b) {
  const size_t rank = std::max(a.size(), b.size());
  DimVector out(rank, Dim(1));
  for (size_t k = 0; k < rank; ++k) {
    const Dim x = k < a.size() ? a[a.size() - 1 - k] : Dim(1);
    const Dim y = k < b.size() ? b[b.size() - 1 - k] : Dim(1);
    if (!(x == Dim(1)) && !(y == Dim(1))) OAR_RETURN_IF_ERROR(check_same(x, y, "broadcast extents"));
    out[rank - 1 - k] = x == Dim(1) ? y : x;
  }
  return out;
}

Dim product(const DimVector& shape, size_t from) {
  Dim p = 1;
  for (size_t k = from; k < shape.size(); ++k) p = p * shape[k];
  return p;
}

Types same_as_first(const Graph& g, Ids in, const Attrs&) {
  if (!given(in, 0)) return invalid_argument("operand 0 is missing");
  return std::vector<TensorType>{f32_type(shape_of(g, in[0]))};
}

double unary_nanoseconds(UnaryOp op) {
  switch (op) {
    case UnaryOp::kNeg:
    case UnaryOp::kAbs:
    case UnaryOp::kSquare:
    case UnaryOp::kRelu: return 0.1;
    case UnaryOp::kSqrt:
    case UnaryOp::kReciprocal:
    case UnaryOp::kFloor: return 0.2;
    case UnaryOp::kExp:
    case UnaryOp::kRsqrt: return 0.3;
    case UnaryOp::kLog:
    case UnaryOp::kSigmoid:
    case UnaryOp::kSilu: return 0.4;
    case UnaryOp::kTanh:
    case UnaryOp::kErf: return 0.5;
    case UnaryOp::kGeluErf:
    case UnaryOp::kGeluTanh: return 0.6;
    case UnaryOp::kSin:
    case UnaryOp::kCos: return 5;
  }
  return 1;
}

Lowered lower_unary(LowerContext& ctx, UnaryOp op) {
  if (!ctx.known(0).f32()) return not_lowered();
  UnaryArgs args;
  args.op = op;
  return lower_like(ctx, 0, KernelFamily::kUnary, args, unary_nanoseconds(op), 1,
                    [](UnaryArgs& a, const Operand* in, const Operand* out) {
                      a.out = out[0].as<float>();
                      a.x = in[0].as<const float>();
                      a.n = in[0].numel();
                    });
}

}  // namespace oar

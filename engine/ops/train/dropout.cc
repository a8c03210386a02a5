// counted_dropout (ops.h): which numbers are dropped is a function of a draw, a site and a number's place, so
// that nothing is kept for the way back, and a run that goes on drops what it would have dropped.
#include <cmath>

#include "engine/base/random.h"
#include "engine/graph/evaluate.h"
#include "engine/ops/op_util.h"
#include "engine/ops/train/ops.h"
#include "engine/ops/train/stored_matrix.h"

namespace oar::train {
namespace {

Types dropout_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 2, 2));
  const double rate = attrs.get_float("rate");
  if (!(rate >= 0 && rate < 1)) return invalid_argument(cat("rate ", rate, " is not from 0 to below 1"));
  return std::vector<TensorType>{{result_format(attrs, 0), shape_of(g, in[0])}};
}

// Which numbers are kept, eight of a block: each by 16 bits of its own.
struct Choice {
  uint64_t key;
  uint32_t site, least;  // of the 16 bits of a number that is kept
  float scale;

  template <class From, class To>
  void block(int64_t at, int64_t n, const From* from, To* to) const {
    const auto c = static_cast<uint64_t>(at);
    const auto words = philox4x32({static_cast<uint32_t>(c), static_cast<uint32_t>(c >> 32), site, 0},
                                  {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
    for (int64_t k = 0; k < n; ++k) {
      float x;
      convert(from[k], x);
      convert((words[static_cast<size_t>(k >> 1)] >> (k & 1) * 16 & 0xffff) >= least ? x * scale : 0, to[k]);
    }
  }
};

template <class From, class To>
void drop(EvalContext& ctx, const Choice& choice, const Tensor& x, Tensor& y) {
  constexpr int64_t kBlock = 8;
  const auto* const from = elements<From>(x);
  auto* const to = mutable_elements<To>(y);
  const int64_t n = x.numel();
  ctx.parallel((n + kBlock - 1) / kBlock, 24, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      choice.block(b, std::min(kBlock, n - b * kBlock), from + b * kBlock, to + b * kBlock);
  });
}

Status dropout_evaluate(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor draw, ctx.tensor(1));
  if (!is_float(x) || !(draw.format() == Format::of(DType::kI64)) || draw.numel() != 1)
    return invalid_argument("x is f32 or bf16 and the draw one i64");
  OAR_ASSIGN(Tensor y, ctx.allocate(x.shape(), result_type(ctx.attrs(), 0)));
  if (!ctx.options().sizing) {
    const double rate = ctx.attrs().get_float("rate");
    const Choice choice{
        static_cast<uint64_t>(draw.values<int64_t>()[0]), static_cast<uint32_t>(ctx.attrs().get_int("site")),
        static_cast<uint32_t>(std::lround(std::ldexp(rate, 16))), static_cast<float>(1 / (1 - rate))};
    const bool from = x.format() == Format::bf16(), to = y.format() == Format::bf16();
    (from ? to ? drop<bf16, bf16> : drop<bf16, float>
     : to ? drop<float, bf16>
          : drop<float, float>)(ctx, choice, x, y);
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

// Linear in x, by the same choice.
std::vector<Val> dropout_vjp(const Pullback& p) {
  const Val in[] = {p.d[0], p.in[1]};
  std::vector<Val> out = emit(p.b, op_counted_dropout, in, p.attrs);
  out.resize(2);
  return out;
}

}  // namespace

const OpDef op_counted_dropout = {
    .name = "counted_dropout", .infer = dropout_infer, .vjp = dropout_vjp, .evaluate = dropout_evaluate};

Val add_draw(Graph& g) { return {g.add_input("draw", {Format::of(DType::kI64), {}})}; }

Val dropped(Builder& b, Val x, Val draw, double rate, size_t site) {
  const auto kept = emit(b, op_counted_dropout, std::vector<Val>{x, draw},
                         {{"rate", rate}, {"site", static_cast<int64_t>(site)}});
  return kept.empty() ? Val{} : kept[0];
}

Status drop_branches(Graph& g, Val last, double rate) {
  const std::vector<int> makers = g.producers();
  const Val draw = add_draw(g);
  Builder b(g);
  size_t site = 0;
  const auto drop = [&](ValueId v) {
    const Val kept = dropped(b, {v}, draw, rate, site++);
    if (!kept) return;
    g.replace_uses(v, kept.id);
    g.nodes().back().inputs[0] = v;
  };
  ValueId rows = last.id;
  for (int at; (at = makers[static_cast<size_t>(rows)]) >= 0;) {
    const Node node = g.nodes()[static_cast<size_t>(at)];  // a copy: nodes are appended
    if (node.is("embedding")) break;
    if (node.is("add")) drop(node.inputs[1]);
    rows = node.inputs[0];
  }
  drop(rows);
  g.sort();
  return b.status();
}

void keep_all(Graph& g) {
  for (size_t i = 0; i < g.nodes().size(); ++i)
    if (const Node n = g.nodes()[i]; n.op == &op_counted_dropout) g.replace_uses(n.outputs[0], n.inputs[0]);
}

}  // namespace oar::train

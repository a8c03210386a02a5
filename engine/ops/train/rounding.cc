// Rounding to bf16 where numbers are made, and widening where they are read (ops.h): round_results, rows_add,
// and what ops of rows share (stored_matrix.h). A cast of its own goes through memory twice.
#include "engine/ops/define/definitions.h"
#include "engine/ops/op_util.h"
#include "engine/ops/tensor/kernel_call.h"
#include "engine/ops/train/ops.h"
#include "engine/ops/train/stored_matrix.h"
#include "kernels/narrow.h"

namespace oar::train {

std::vector<Val> rounded_results(Builder& b, std::vector<Val> results, const Attrs& attrs) {
  for (size_t k = 0; k < results.size(); ++k)
    if (result_type(attrs, k) == DType::kBF16 && results[k])
      results[k] = b.op("cast", {results[k]}, {{"to", std::string("bf16")}});
  return results;
}

Attrs without_rounding(const Attrs& attrs) {
  Attrs out;
  for (const auto& [name, value] : attrs.items())
    if (name != kRounded) out.set(name, value);
  return out;
}

namespace {
NarrowArgs rounding(const float* from, int64_t n, bf16* to) {
  NarrowArgs a;
  a.bf16 = true, a.x = from, a.out = to, a.rows = 1, a.n = n;
  return a;
}
}  // namespace

Status round_numbers(const KernelContext& ctx, const float* from, int64_t n, bf16* to) {
  if (ctx.options().sizing || n == 0) return ok_status();
  const NarrowArgs a = rounding(from, n, to);
  return tensor::run_kernel(ctx, tensor::f32_kernel(ctx.backend(), KernelFamily::kNarrow), &a,
                            0.2 * static_cast<double>(n));
}

const float* as_floats(const Tensor& t, int64_t at, int64_t n, float* room) {
  if (t.format() == Format::f32()) return elements<float>(t) + at;
  const bf16* const from = elements<bf16>(t) + at;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const auto v = load_lanes<Lanes16>(from + i);
    store_lanes(room + i, interleave_low(Lanes16{}, v));
    store_lanes(room + i + 4, interleave_high(Lanes16{}, v));
  }
  for (; i < n; ++i) room[i] = to_f32(from[i]);
  return room;
}

FloatsTo::FloatsTo(const KernelContext& ctx, Tensor& t, int64_t at, int64_t n, float* room)
    : ctx_(ctx), data_(room), n_(n) {
  if (t.format() == Format::f32()) data_ = mutable_elements<float>(t) + at;
  else rounded_ = mutable_elements<bf16>(t) + at;
}

void FloatsTo::done() const {
  if (rounded_ == nullptr || n_ == 0) return;
  const NarrowArgs a = rounding(data_, n_, rounded_);
  tensor::OneThread().run(tensor::f32_kernel(ctx_.backend(), KernelFamily::kNarrow), &a);
}

namespace {

Types add_infer(const Graph& g, Ids in, const Attrs& attrs) {
  return std::vector<TensorType>{{result_format(attrs, 0), shape_of(g, in[0])}};
}

Result<bool> add_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor a, ctx.tensor(0));
  OAR_ASSIGN(const Tensor b, ctx.tensor(1));
  if (!is_float(a) || !is_float(b) || !(a.shape() == b.shape()))
    return invalid_argument("the operands are f32 or bf16 of one shape");
  OAR_ASSIGN(Tensor y, ctx.allocate(a.shape(), result_type(ctx.attrs(), 0)));
  constexpr int64_t kChunk = 1024;
  ctx.parallel((a.numel() + kChunk - 1) / kChunk, 0.5 * kChunk, [&](int64_t begin, int64_t end) {
    alignas(64) float room[3][kChunk];
    for (int64_t c = begin; c < end; ++c) {
      const int64_t at = c * kChunk, n = std::min(kChunk, a.numel() - at);
      const FloatsTo to(ctx, y, at, n, room[0]);
      const float *const x = as_floats(a, at, n, room[1]), *const z = as_floats(b, at, n, room[2]);
      float* const sums = to.data();
      for (int64_t i = 0; i < n; ++i) sums[i] = x[i] + z[i];
      to.done();
    }
  });
  ctx.set(0, std::move(y));
  return true;
}

std::vector<Val> add_define(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  return rounded_results(b, {b.op("add", {definition::real(b, in[0]), definition::real(b, in[1])})}, attrs);
}
std::vector<Val> add_vjp(const Pullback& p) { return {p.d[0], p.d[0]}; }

// Results that an op rounds itself, and operands that it reads in bf16 as they are; a bit each.
struct Rounding {
  const OpDef* op;
  uint32_t results, operands;
};
bool has(uint32_t bits, size_t k) { return k < 32 && (bits >> k & 1) != 0; }
const Rounding kRoundings[] = {{&op_rows_linear, 1, 0},
                               {&op_rows_product, 1, 0},
                               {&op_lora_linear, 3, 0},
                               {&op_lora_back, 3, 0},
                               {&op_rows_swiglu, 1, 0},
                               {&op_rows_swiglu_back, 3, 0},
                               {&op_rows_rms_norm, 1, 1},
                               {&op_rows_rms_norm_back, 1, 0b101},
                               {&op_rotate, 1, 1},
                               {&op_segment_attention, 1, 0},
                               {&op_segment_attention_back, 7, 0},
                               {&op_counted_dropout, 1, 1},
                               {&op_rows_add, 1, 3}};

}  // namespace

bool is_rows_add(const Graph& g, const Node& n) {
  const auto real = [&](ValueId v) {
    return g.value(v).type.format == Format::f32() || g.value(v).type.format == Format::bf16();
  };
  return n.is("add") && n.inputs.size() == 2 && real(n.inputs[0]) && real(n.inputs[1]) &&
         g.value(n.inputs[0]).type.shape == g.value(n.inputs[1]).type.shape;
}

void round_results(Graph& g) {
  const std::vector<int> uses = g.use_counts();
  std::vector<int> producer = g.producers();
  const auto node = [&](ValueId v) -> Node* {
    const int k = v == kNoValue ? -1 : producer[static_cast<size_t>(v)];
    return k < 0 ? nullptr : &g.nodes()[static_cast<size_t>(k)];
  };
  const auto type = [&](ValueId v) { return g.value(v).type.format; };
  const auto is_cast = [&](const Node* n, const Format& from, const Format& to) {
    return n != nullptr && n->is("cast") && type(n->inputs[0]) == from && type(n->outputs[0]) == to;
  };
  const auto rounding_of = [](const Node& n) {
    const auto* const at = std::ranges::find(kRoundings, n.op, &Rounding::op);
    return at == std::end(kRoundings) ? Rounding{n.op, 0, 0} : *at;
  };
  std::vector<bool> dead(g.nodes().size(), false);
  for (size_t i = 0; i < g.nodes().size(); ++i) {
    Node& n = g.nodes()[i];
    if (is_rows_add(g, n) && std::ranges::any_of(n.inputs, [&](ValueId v) {
          return type(v) == Format::bf16() || is_cast(node(v), Format::bf16(), Format::f32());
        }))
      n.op = &op_rows_add;
    const Rounding r = rounding_of(n);
    for (size_t k = 0; k < n.inputs.size(); ++k)
      if (has(r.operands, k) && is_cast(node(n.inputs[k]), Format::bf16(), Format::f32()))
        n.inputs[k] = node(n.inputs[k])->inputs[0];
    if (!is_cast(&n, Format::f32(), Format::bf16()) || uses[static_cast<size_t>(n.inputs[0])] != 1) continue;
    Node* const by = node(n.inputs[0]);
    if (by == nullptr) continue;
    const auto k = static_cast<size_t>(std::ranges::find(by->outputs, n.inputs[0]) - by->outputs.begin());
    if (!has(rounding_of(*by).results, k)) continue;
    by->attrs.set(kRounded, by->attrs.get_int(kRounded) | int64_t{1} << k);
    by->outputs[k] = n.outputs[0];
    producer[static_cast<size_t>(n.outputs[0])] = static_cast<int>(by - g.nodes().data());
    dead[i] = true;
  }
  g.remove_nodes(dead);
}

uint64_t cast_bytes(const Graph& g) {
  uint64_t bytes = 0;
  for (const Node& n : g.nodes()) {
    if (!n.is("cast") || g.value(n.inputs[0]).type.format == g.value(n.outputs[0]).type.format) continue;
    uint64_t numbers = 1;
    for (const Dim& d : g.value(n.outputs[0]).type.shape)
      numbers *= d.is_const() ? static_cast<uint64_t>(d.const_value()) : 0;
    bytes += 6 * numbers;
  }
  return bytes;
}

const OpDef op_rows_add = {.name = "rows_add",
                           .infer = add_infer,
                           .define = add_define,
                           .vjp = add_vjp,
                           .by_kernels = add_by_kernels};

}  // namespace oar::train

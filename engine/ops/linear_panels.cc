// Linear layers by the convolution kernel, for models whose rows always come in numbers (weights.h says which
// and why): the weights of all segments lie in panels one behind the other, and so do their biases.
#include "engine/ops/tensor/kernel_call.h"
#include "engine/ops/weights.h"

namespace oar {

bool in_panels(const Node& linear, Format own, const Backend& backend) {
  return linear.attrs.get_bool("many_rows") && (own == Format::f32() || own == Format::f16()) &&
         backend.find_kernel({KernelFamily::kConv}) != nullptr;
}

uint64_t panel_bytes(int64_t n, int64_t K, const Backend& backend) {
  return static_cast<uint64_t>(packed_filter_floats(n, 1, 1, K, backend.filter_panel())) * sizeof(float);
}

namespace {

// All segments' rows, one behind the other, as f32.
Result<Tensor> joined_rows(const LowerContext& ctx, int64_t N, int64_t K) {
  OAR_ASSIGN(Tensor all, Tensor::allocate({N, K}, Format::f32()));
  auto* to = static_cast<float*>(all.mutable_data());
  for (size_t k = 2; k < ctx.node.inputs.size(); k += 2) {
    OAR_ASSIGN(const Tensor w, ctx.evaluate(k));
    const int64_t bytes = *w.format().row_bytes(K);
    const auto* from = static_cast<const std::byte*>(w.data());
    float* const first = to;
    ctx.backend.host_pool().parallel_for(w.shape()[0], 16, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) w.format().decode_row(from + r * bytes, K, first + r * K);
    });
    to += w.numel();
    w.buffer().release_pages();
  }
  return all;
}

Result<Tensor> joined_biases(const LowerContext& ctx, int64_t N) {
  OAR_ASSIGN(Tensor all, Tensor::allocate({N}, Format::f32()));
  auto* to = static_cast<float*>(all.mutable_data());
  for (size_t k = 2; k < ctx.node.inputs.size(); k += 2) {
    const int64_t n = ctx.weight_shape(k)[0];
    if (ctx.node.inputs[k + 1] == kNoValue) {
      std::fill_n(to, n, 0.f);
    } else {
      OAR_ASSIGN(const Tensor bias, ctx.evaluate(k + 1));
      OAR_ASSIGN(const Tensor f32, to_f32(bias));
      std::copy_n(static_cast<const float*>(f32.data()), n, to);
    }
    to += n;
  }
  return all;
}

std::string joined_key(const LowerContext& ctx, size_t first) {
  std::string key;
  for (size_t k = first; k < ctx.node.inputs.size(); k += 2)
    key += cat(ctx.node.inputs[k] == kNoValue ? "none" : weight_key(ctx.graph, ctx.node.inputs[k]), " ");
  return key;
}

}  // namespace

Lowered lower_in_panels(LowerContext& ctx) {
  const std::vector<ValueId>& inputs = ctx.node.inputs;
  int64_t N = 0;
  bool biased = false;
  for (size_t k = 2; k < inputs.size(); k += 2) {
    if (!ctx.is_weight(k) || (inputs[k + 1] != kNoValue && !ctx.is_weight(k + 1))) return not_lowered();
    N += ctx.weight_shape(k)[0];
    biased = biased || inputs[k + 1] != kNoValue;
    ctx.taken.insert(ctx.taken.end(), {k, k + 1});
  }
  tensor::PackedProduct product;
  product.K = ctx.weight_shape(2)[1], product.N = N;
  OAR_ASSIGN(product.activation, tensor::activation_of(ctx.node.attrs));
  ConvArgs args = tensor::product_args(ctx.backend, product);
  if (!ctx.probe) {
    const auto pack = [&]() -> Result<StoredWeight> {
      OAR_ASSIGN(const Tensor rows, joined_rows(ctx, N, args.C));
      OAR_ASSIGN(Tensor packed,
                 Tensor::allocate({packed_filter_floats(N, 1, 1, args.C, args.panel)}, Format::f32()));
      pack_filters(static_cast<float*>(packed.mutable_data()), static_cast<const float*>(rows.data()), N, 1,
                   1, args.C, args.C, 1, 0, args.panel);
      return ctx.weights.place(packed, true);
    };
    OAR_ASSIGN(const StoredWeight* w, ctx.weights.get(joined_key(ctx, 2) + "panels", pack));
    args.w = static_cast<const float*>(w->data());
    if (biased) {
      OAR_ASSIGN(const StoredWeight* bias,
                 ctx.weights.get(joined_key(ctx, 3) + "biases", [&]() -> Result<StoredWeight> {
                   OAR_ASSIGN(const Tensor all, joined_biases(ctx, N));
                   return ctx.weights.place(all, true);
                 }));
      args.bias = static_cast<const float*>(bias->data());
    }
  }
  OAR_ASSIGN(auto op, lower_kernel(ctx, {KernelFamily::kConv}, args,
                                   [](ConvArgs& a, const Operand* in, const Operand* out) {
                                     a.out = out[0].as<float>();
                                     a.x = in[0].as<const float>();
                                     a.residual = in[1].as<const float>();
                                     a.window.W = a.window.OW = in[0].rows();
                                     a.ldx = in[0].rank == 2 ? in[0].row_stride : a.C;
                                     a.ldo = out[0].cols();
                                   }));
  const uint64_t bytes = panel_bytes(N, args.C, ctx.backend);
  op->weight_bytes = bytes;
  if (ctx.progress && !ctx.probe && !ctx.progress("preparing weights", bytes, 0))
    return Status(StatusCode::kCancelled, "loading was cancelled");
  return op;
}

}  // namespace oar

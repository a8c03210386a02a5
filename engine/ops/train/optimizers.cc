// adamw and sgd: one call updates all tensors in place (ops.h). Bound by memory: adamw reads a parameter, its
// moments and its gradient once and writes them back.
#include <cmath>

#include "engine/base/format.h"
#include "engine/ops/tensor/kernel_call.h"
#include "engine/ops/train/ops.h"
#include "kernels/optimizer.h"

namespace oar::train {
namespace {

// Elements that one thread updates at a time, and whose squares are summed before others: no sum depends on
// the number of threads.
constexpr int64_t kChunk = 1 << 14;

Result<std::vector<TensorType>> norm_type(const Graph&, std::span<const ValueId>, const Attrs&) {
  return std::vector<TensorType>{{Format::of(DType::kF64), {}}};
}

// What one tensor's update knows.
struct Update {
  float *p = nullptr, *m = nullptr, *v = nullptr, *g = nullptr;
  int64_t n = 0;
  double decay = 0, rate = 1;
};
struct Hyper {
  double rate = 0, most = 0, correction1 = 1, correction2 = 1;
};

// Operands of a node with `states` states a tensor before its gradient.
struct Updates {
  std::vector<Update> all;
  std::vector<std::pair<size_t, int64_t>> chunks;  // tensor, first element
  Hyper hyper;
};

Result<Updates> operands(EvalContext& ctx, size_t states) {
  OAR_ASSIGN(const Tensor h, ctx.tensor(0));
  const size_t each = states + 1;
  const std::vector<double> decay = ctx.attrs().get_floats("decay"), rate = ctx.attrs().get_floats("rate");
  const size_t count = (ctx.num_inputs() - 1) / each;
  if (!(h.format() == Format::of(DType::kF64)) || h.numel() != 4 || ctx.num_inputs() != 1 + count * each ||
      decay.size() != count || rate.size() != count)
    return invalid_argument("hyper is f64 (4); each tensor has its states, gradient, decay and rate");
  Updates out;
  const auto hv = h.values<double>();
  out.hyper = {hv[0], hv[1], hv[2], hv[3]};
  for (size_t k = 0; k < count; ++k) {
    Update u;
    Tensor t[4];
    for (size_t j = 0; j < each; ++j) {
      OAR_ASSIGN(t[j], ctx.tensor(1 + k * each + j));
      if (!(t[j].format() == Format::f32()) || !(t[j].shape() == t[0].shape()))
        return invalid_argument(cat("tensor ", k, ": states and gradient must be f32 of one shape"));
    }
    const auto at = [&](size_t j) { return static_cast<float*>(t[j].mutable_data()); };
    u = {at(0), at(1), states == 3 ? at(2) : nullptr, at(states), t[0].numel(), decay[k], rate[k]};
    out.all.push_back(u);
    for (int64_t first = 0; first < u.n; first += kChunk) out.chunks.emplace_back(k, first);
  }
  return out;
}

// The norm of all gradients, and the factor that clips them. A norm that is no number changes nothing: the
// caller sees it, and stops.
double clip_factor(const KernelContext& ctx, const Updates& u, double& norm) {
  std::vector<double> sums(u.chunks.size());
  const Kernel& kernel = tensor::f32_kernel(ctx.backend(), KernelFamily::kSquares);
  ctx.parallel(static_cast<int64_t>(sums.size()), static_cast<double>(kChunk) / 8,
               [&](int64_t begin, int64_t end) {
                 tensor::OneThread thread;
                 for (int64_t c = begin; c < end; ++c) {
                   const auto [tensor, first] = u.chunks[static_cast<size_t>(c)];
                   SquaresArgs a;
                   a.x = u.all[tensor].g + first, a.n = std::min(kChunk, u.all[tensor].n - first);
                   a.sum = &sums[static_cast<size_t>(c)];
                   thread.run(kernel, &a);
                 }
               });
  double sum = 0;
  for (const double s : sums) sum += s;
  norm = std::sqrt(sum);
  return u.hyper.most > 0 && norm > u.hyper.most ? u.hyper.most / norm : 1;
}

// f(update, first, count) over all chunks.
template <class F>
Result<bool> update(KernelContext& ctx, size_t states, F&& f) {
  OAR_ASSIGN(Tensor out, ctx.allocate({}, DType::kF64));
  if (!ctx.options().sizing) {
    OAR_ASSIGN(const Updates u, operands(ctx, states));
    double norm = 0;
    const auto clip = static_cast<float>(clip_factor(ctx, u, norm));
    out.mutable_values<double>()[0] = norm;
    if (std::isfinite(norm)) {
      ctx.parallel(static_cast<int64_t>(u.chunks.size()), static_cast<double>(kChunk),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t c = begin; c < end; ++c) {
                       const auto [tensor, first] = u.chunks[static_cast<size_t>(c)];
                       const Update& t = u.all[tensor];
                       f(t, u.hyper, clip, first, std::min(kChunk, t.n - first));
                     }
                   });
    }
  }
  ctx.set(0, std::move(out));
  return true;
}

Result<bool> adamw_by_kernels(KernelContext& ctx) {
  const double beta1 = ctx.attrs().get_float("beta1"), beta2 = ctx.attrs().get_float("beta2");
  const double epsilon = ctx.attrs().get_float("epsilon");
  const bool clear = !ctx.attrs().get_bool("keep");
  const Kernel& kernel = tensor::f32_kernel(ctx.backend(), KernelFamily::kAdamw);
  ctx.uses(kernel);
  return update(ctx, 3, [&](const Update& t, const Hyper& h, float clip, int64_t first, int64_t n) {
    const double rate = h.rate * t.rate;
    AdamwArgs a;
    a.p = t.p + first, a.m = t.m + first, a.v = t.v + first, a.g = t.g + first, a.n = n;
    a.clear = clear, a.clip = clip, a.beta1 = static_cast<float>(beta1), a.beta2 = static_cast<float>(beta2);
    a.rest1 = static_cast<float>(1 - beta1), a.rest2 = static_cast<float>(1 - beta2);
    a.keep = static_cast<float>(1 - rate * t.decay), a.step = static_cast<float>(rate / h.correction1);
    a.root = static_cast<float>(1 / std::sqrt(h.correction2)), a.epsilon = static_cast<float>(epsilon);
    tensor::OneThread().run(kernel, &a);
  });
}

Result<bool> sgd_by_kernels(KernelContext& ctx) {
  const auto momentum = static_cast<float>(ctx.attrs().get_float("momentum"));
  const bool clear = !ctx.attrs().get_bool("keep");
  return update(ctx, 2, [&](const Update& t, const Hyper& h, float clip, int64_t first, int64_t n) {
    float *const p = t.p + first, *const m = t.m + first, *const g = t.g + first;
    const auto rate = static_cast<float>(h.rate * t.rate), decay = static_cast<float>(t.decay);
    for (int64_t k = 0; k < n; ++k) {
      m[k] = momentum * m[k] + (g[k] * clip + decay * p[k]);
      p[k] -= rate * m[k];
      if (clear) g[k] = 0;
    }
  });
}

// A number that has all its digits where the definition is evaluated in double.
Val exact(Builder& b, double v) {
  auto t = Tensor::zeros({}, Format::of(DType::kF64));
  if (!t.ok()) return b.fail(t.status()), Val{};
  t->mutable_values<double>()[0] = v;
  return b.op("cast", {b.constant("", std::move(*t))}, {{"to", std::string("f32")}});
}
Val times(Builder& b, Val x, double factor) { return b.op("mul", {x, exact(b, factor)}); }
// a x + c y
Val blend(Builder& b, double a, Val x, double c, Val y) {
  return b.op("add", {times(b, x, a), times(b, y, c)});
}

}  // namespace

std::vector<Val> adamw_definition(Builder& b, Val p, Val m, Val v, Val g, const UpdateRule& r) {
  m = blend(b, r.beta1, m, 1 - r.beta1, g);
  v = blend(b, r.beta2, v, 1 - r.beta2, b.op("square", {g}));
  const auto n = static_cast<double>(r.step);
  const Val mean = times(b, m, 1 / (1 - std::pow(r.beta1, n)));
  const Val power = times(b, v, 1 / (1 - std::pow(r.beta2, n)));
  const Val direction = b.op("div", {mean, b.op("add", {b.op("sqrt", {power}), exact(b, r.epsilon)})});
  return {blend(b, 1 - r.rate * r.decay, p, -r.rate, direction), m, v};
}

std::vector<Val> sgd_definition(Builder& b, Val p, Val m, Val g, const UpdateRule& r) {
  m = b.op("add", {times(b, m, r.momentum), blend(b, 1, g, r.decay, p)});
  return {blend(b, 1, p, -r.rate, m), m};
}

const OpDef op_adamw = {.name = "adamw", .effect = true, .infer = norm_type, .by_kernels = adamw_by_kernels};
const OpDef op_sgd = {.name = "sgd", .effect = true, .infer = norm_type, .by_kernels = sgd_by_kernels};

}  // namespace oar::train

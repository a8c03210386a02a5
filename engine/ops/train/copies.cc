#include "engine/ops/train/copies.h"

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "engine/graph/builder.h"
#include "engine/graph/cut.h"
#include "engine/graph/weights.h"
#include "kernels/thread_pool.h"

namespace oar::train {
namespace {

// What nodes compute from constants alone, where `name` is not yet among `copies`.
template <class F>
Result<Tensor> copied(std::map<std::string, Tensor>& copies, const std::string& name, F&& make) {
  const auto it = copies.find(name);
  if (it != copies.end()) return it->second;
  OAR_ASSIGN(Tensor made, make());
  return copies[name] = std::move(made);
}

class Copying {
 public:
  Copying(Graph& g, WeightCopies& copies) : g_(g), copies_(copies), b_(g), producer_(g.producers()) {}

  Status run() {
    const size_t count = g_.nodes().size();
    std::vector<bool> dead(count, false);
    for (size_t i = 0; i < count; ++i) {
      const Node n = g_.nodes()[i];  // a copy: nodes are appended
      if (n.is("grouped_linear") && n.inputs[2] != kNoValue) {
        OAR_RETURN_IF_ERROR(copy_experts(n, dead));
      } else if (n.is("linear")) {
        OAR_RETURN_IF_ERROR(copy_turned(n.inputs[2], dead));
      } else if (n.is("grouped_linear")) {
        dead[i] = true;
        OAR_RETURN_IF_ERROR(join_heads(n, dead));
      } else if (n.is("attention") && n.attrs.get_int("latent") > 0) {
        dead[i] = true;
        share_keys(n);
      }
    }
    OAR_RETURN_IF_ERROR(b_.status());
    if (std::find(dead.begin(), dead.end(), true) == dead.end()) return ok_status();
    dead.resize(g_.nodes().size(), false);
    g_.remove_nodes(dead);
    g_.sort();
    return ok_status();
  }

 private:
  // The weight as its expression gives it, whose node is then not needed.
  Result<Tensor> evaluated(ValueId v, std::vector<bool>& dead) {
    const int p = producer_[static_cast<size_t>(v)];
    if (p < 0) return g_.value(v).constant;
    const auto at = static_cast<size_t>(p);
    dead[at] = true;
    if (pool_ == nullptr) pool_ = std::make_unique<ThreadPool>();
    return evaluate_weight(g_, std::span<const Node>(&g_.nodes()[at], 1), v, *pool_);
  }

  Status copy_experts(const Node& n, std::vector<bool>& dead) {
    constexpr size_t kFirstWeight = 4;
    for (size_t k = kFirstWeight; k < n.inputs.size(); ++k) {
      const ValueId v = n.inputs[k];
      if (g_.value(v).kind == ValueKind::kConstant) continue;
      OAR_ASSIGN(Tensor made, copied(copies_.experts, g_.value(v).name, [&] { return evaluated(v, dead); }));
      if (const int p = producer_[static_cast<size_t>(v)]; p >= 0) dead[static_cast<size_t>(p)] = true;
      become(v, std::move(made));
    }
    return ok_status();
  }

  // A layer's matrix that is another one turned, under the name of that.
  Status copy_turned(ValueId v, std::vector<bool>& dead) {
    const int p = v == kNoValue ? -1 : producer_[static_cast<size_t>(v)];
    if (p < 0 || !g_.nodes()[static_cast<size_t>(p)].is("transpose")) return ok_status();
    const std::string name = g_.value(g_.nodes()[static_cast<size_t>(p)].inputs[0]).name;
    OAR_ASSIGN(Tensor made, copied(copies_.turned, name, [&] { return evaluated(v, dead); }));
    dead[static_cast<size_t>(p)] = true;
    become(v, std::move(made));
    g_.value(v).name = name;
    return ok_status();
  }

  void become(ValueId v, Tensor made) {
    Value& value = g_.value(v);
    value.kind = ValueKind::kConstant;
    value.type.format = made.format();
    value.constant = std::move(made);
  }

  // (T, H, C) by a matrix for each head: one product of all, whose way back is one of all too. A layer for
  // each would make as many gradients of the whole operand as there are heads.
  Status join_heads(const Node& n, std::vector<bool>& dead) {
    const std::span<const ValueId> weights = std::span(n.inputs).subspan(4);
    const Val first{weights[0]};
    const int64_t N = b_.dim(first, 0).const_value(), K = b_.dim(first, 1).const_value(),
                  begin = n.attrs.get_int("first");
    const std::string name = g_.value(first.id).name;
    for (const ValueId v : weights)
      if (const int p = producer_[static_cast<size_t>(v)]; p >= 0) dead[static_cast<size_t>(p)] = true;
    OAR_ASSIGN(const Tensor all, copied(copies_.heads, name, [&]() -> Result<Tensor> {
                 OAR_ASSIGN(Tensor out,
                            Tensor::allocate({static_cast<int64_t>(weights.size()), K, N}, Format::f32()));
                 float* to = out.mutable_values<float>().data();
                 for (const ValueId v : weights) {
                   OAR_ASSIGN(const Tensor stored, evaluated(v, dead));
                   OAR_ASSIGN(const Tensor w, to_f32(stored));
                   const auto from = w.values<float>();
                   for (int64_t c = 0; c < K; ++c)
                     for (int64_t r = 0; r < N; ++r) *to++ = from[static_cast<size_t>(r * K + c)];
                 }
                 return out;
               }));
    Val x{n.inputs[0]};
    if (begin != 0 || b_.dim(x, 2).const_value() != K)
      x = b_.op("slice", {x}, cut_attrs(2, begin, begin + K));
    const Attrs turn{{"perm", std::vector<int64_t>{1, 0, 2}}};
    const Val y = b_.op("matmul", {b_.op("transpose", {x}, turn), b_.constant(name, all)});
    const Val out = b_.op("transpose", {y}, turn);
    if (out) g_.replace_uses(n.outputs[0], out.id);
    return ok_status();
  }

  // Keys whose first dims are values: whole keys as values, of whose result these dims are taken.
  void share_keys(const Node& n) {
    std::vector<Val> in;
    for (const ValueId v : n.inputs) in.push_back({v});
    in[2] = in[1];
    Attrs attrs = n.attrs;
    attrs.set("latent", int64_t{0});
    const Val y = b_.op("attention", in, std::move(attrs));
    const Val out = b_.op("slice", {y}, cut_attrs(2, 0, n.attrs.get_int("latent")));
    if (out) g_.replace_uses(n.outputs[0], out.id);
  }

  Graph& g_;
  WeightCopies& copies_;
  Builder b_;
  std::unique_ptr<ThreadPool> pool_;  // of the first expression's evaluation on
  const std::vector<int> producer_;
};

}  // namespace

Status copy_weights(Graph& g, WeightCopies& copies) { return Copying(g, copies).run(); }

uint64_t WeightCopies::bytes(const std::map<std::string, Tensor>& copies) {
  uint64_t sum = 0;
  for (const auto& [name, tensor] : copies) sum += tensor.bytes();
  return sum;
}

}  // namespace oar::train

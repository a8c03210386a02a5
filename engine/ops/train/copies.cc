#include "engine/ops/train/copies.h"

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "engine/graph/builder.h"
#include "engine/graph/cut.h"
#include "engine/graph/weights.h"
#include "engine/ops/train/ops.h"
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

  // `made`: weights are values of the graph, and stay so.
  Status run(bool made) {
    made_ = made;
    const size_t count = g_.nodes().size();
    std::vector<bool> dead(count, false);
    for (size_t i = 0; i < count; ++i) {
      const Node n = g_.nodes()[i];  // a copy: nodes are appended
      if (n.is("grouped_linear") && n.inputs[2] != kNoValue) {
        if (!made) OAR_RETURN_IF_ERROR(copy_experts(n, dead));
      } else if (n.is("linear")) {
        if (!made) OAR_RETURN_IF_ERROR(copy_turned(n.inputs[2], dead));
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

  // The matrices (N, K) of all heads as one (heads, K, N): a constant, or computed.
  Result<Val> heads_copied(std::span<const ValueId> weights, int64_t N, int64_t K, std::vector<bool>& dead) {
    const std::string name = g_.value(weights[0]).name;
    for (const ValueId v : weights)
      if (const int p = producer_[static_cast<size_t>(v)]; p >= 0) dead[static_cast<size_t>(p)] = true;
    OAR_ASSIGN(Tensor all, copied(copies_.heads, name, [&]() -> Result<Tensor> {
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
    return b_.constant(name, std::move(all));
  }
  Result<Val> heads_made(std::span<const ValueId> weights) {
    std::vector<Val> each;
    for (const ValueId v : weights) {
      const Val w{v};
      copies_.moved +=
          static_cast<uint64_t>(b_.dim(w, 0).const_value() * b_.dim(w, 1).const_value()) * sizeof(float);
      each.push_back(b_.op("unsqueeze", {b_.op("transpose", {w}, {{"perm", std::vector<int64_t>{1, 0}}})},
                           {{"axes", std::vector<int64_t>{0}}}));
    }
    return b_.op("concat", each, {{"axis", int64_t{0}}});
  }

  // (T, H, C) by a matrix for each head: one product of all, whose way back is one of all too. A layer for
  // each would make as many gradients of the whole operand as there are heads.
  Status join_heads(const Node& n, std::vector<bool>& dead) {
    const std::span<const ValueId> weights = std::span(n.inputs).subspan(4);
    const Val first{weights[0]};
    const int64_t N = b_.dim(first, 0).const_value(), K = b_.dim(first, 1).const_value(),
                  begin = n.attrs.get_int("first");
    OAR_ASSIGN(const Val all, made_ ? heads_made(weights) : heads_copied(weights, N, K, dead));
    Val x{n.inputs[0]};
    if (begin != 0 || b_.dim(x, 2).const_value() != K)
      x = b_.op("slice", {x}, cut_attrs(2, begin, begin + K));
    const Attrs turn{{"perm", std::vector<int64_t>{1, 0, 2}}};
    const Val y = b_.op("matmul", {b_.op("transpose", {x}, turn), all});
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
  bool made_ = false;
  std::unique_ptr<ThreadPool> pool_;  // of the first expression's evaluation on
  const std::vector<int> producer_;
};

// Constants that are rows of a checkpoint's tensor become parts of that, and expressions ordinary nodes.
class Computing {
 public:
  Computing(Graph& g, const std::map<std::string, Tensor, std::less<>>& tensors, WeightCopies& copies)
      : g_(g), copies_(copies), b_(g) {
    for (const auto& [name, tensor] : tensors)
      if (tensor.data() != nullptr && tensor.bytes() > 0) owners_[begin_of(tensor)] = {name, tensor};
  }

  Status run() {
    copies_.moved = 0;
    OAR_RETURN_IF_ERROR(find_parts());
    for (auto& [begin, owner] : owners_) OAR_RETURN_IF_ERROR(take_apart(owner));
    std::vector<bool> dead(g_.nodes().size(), false);
    const size_t count = g_.nodes().size();
    for (size_t i = 0; i < count; ++i) {
      const Node n = g_.nodes()[i];  // a copy: nodes are appended
      if (!n.is("stored_matrix")) continue;
      OAR_RETURN_IF_ERROR(turn(n));
      dead[i] = true;
    }
    OAR_RETURN_IF_ERROR(b_.status());
    dead.resize(g_.nodes().size(), false);
    g_.remove_nodes(dead);
    g_.sort();
    return ok_status();
  }

 private:
  struct Part {
    int64_t first = 0, rows = 0;
    std::vector<ValueId> values;
  };
  struct Owner {
    std::string name;
    Tensor tensor;
    ValueId whole = kNoValue;
    int64_t columns = 0;
    std::map<int64_t, Part> parts{};  // by first row
  };

  static const std::byte* begin_of(const Tensor& t) { return static_cast<const std::byte*>(t.data()); }

  Owner* owner_of(const Tensor& t) {
    auto it = owners_.upper_bound(begin_of(t));
    if (it == owners_.begin() || t.bytes() == 0) return nullptr;
    Owner& owner = (--it)->second;
    return begin_of(t) + t.bytes() <= it->first + owner.tensor.bytes() ? &owner : nullptr;
  }

  Status find_parts() {
    const std::vector<int> uses = g_.use_counts();
    for (size_t v = 0; v < g_.num_values(); ++v) {
      const Value& value = g_.value(static_cast<ValueId>(v));
      if (value.kind != ValueKind::kConstant || value.constant.data() == nullptr) continue;
      const Tensor t = value.constant;
      Owner* const owner = owner_of(t);
      if (owner == nullptr) continue;
      if (t.bytes() == owner->tensor.bytes()) {
        if (t.shape() == owner->tensor.shape()) owner->whole = static_cast<ValueId>(v);
        // A stack of one: its one matrix is a part like those of others.
        if (owner->tensor.shape().rank() != 3 || owner->tensor.shape()[0] != 1 || t.shape().rank() != 2)
          continue;
      }
      if (uses[v] == 0) {  // a whole expert, of which parts were taken
        g_.value(static_cast<ValueId>(v)).name.clear();
        continue;
      }
      const Format format = owner->tensor.format();
      if (!format.plain() || !dtype_is_float(format.dtype()))
        return unimplemented(cat("'", owner->name, "' is stored as ", format.name(),
                                 ": all parameters of a quantized model cannot be trained; use --lora"));
      const int64_t columns = t.shape().cols(), row = *format.row_bytes(columns);
      if (owner->columns == 0) owner->columns = columns;
      Part part{(begin_of(t) - begin_of(owner->tensor)) / row, t.numel() / columns, {}};
      Part& kept = owner->parts.try_emplace(part.first, part).first->second;
      if (owner->columns != columns || kept.rows != part.rows)
        return unimplemented(cat("'", owner->name, "' is read by parts that overlap: it cannot be trained"));
      kept.values.push_back(static_cast<ValueId>(v));
    }
    return ok_status();
  }

  // What of the tensor nobody reads is a part too.
  Status take_apart(Owner& owner) {
    if (owner.parts.empty()) return ok_status();
    std::vector<int64_t> rows;
    std::vector<const Part*> each;
    const int64_t all = owner.tensor.numel() / owner.columns;
    int64_t next = 0;
    const auto reach = [&](int64_t first) {
      if (first > next) rows.push_back(first - next), each.push_back(nullptr);
      return first >= next;
    };
    for (const auto& [first, part] : owner.parts) {
      if (!reach(first))
        return unimplemented(cat("'", owner.name, "' is read by parts that overlap: it cannot be trained"));
      rows.push_back(part.rows), each.push_back(&part);
      next = first + part.rows;
    }
    reach(all);
    const Val whole = owner.whole != kNoValue ? Val{owner.whole} : b_.constant(owner.name, owner.tensor);
    const Val in[] = {whole};
    const std::vector<Val> made = emit(b_, op_row_parts, in, {{"rows", rows}});
    OAR_RETURN_IF_ERROR(b_.status());
    for (size_t k = 0; k < made.size(); ++k) {
      for (const ValueId v : each[k] == nullptr ? std::span<const ValueId>{} : std::span(each[k]->values)) {
        const Shape& shape = g_.value(v).constant.shape();
        std::vector<int64_t> dims(shape.begin(), shape.end());
        const Val part = dims.size() == 2 ? made[k] : b_.op("reshape", {made[k]}, {{"shape", dims}});
        OAR_RETURN_IF_ERROR(b_.status());
        g_.replace_uses(v, part.id);
        g_.value(v).name.clear();  // no tensor of the checkpoint
      }
    }
    return ok_status();
  }

  // stored_matrix by ops that have ways back.
  Status turn(const Node& n) {
    if (n.attrs.has("parts")) return internal_error("columns are put in order where a model is served alone");
    if (n.inputs.size() > 1 && n.inputs[1] != kNoValue)
      return unimplemented("experts in mxfp4 cannot be trained; use --lora");
    const bool transposed = n.attrs.get_bool("transposed", false);
    const int64_t first = n.attrs.get_int("first"), step = n.attrs.get_int("step", 1),
                  rows = n.attrs.get_int("rows"), axis = transposed ? 1 : 0;
    Val x{n.inputs[0]};
    if (first != 0 || step != 1 || rows != b_.dim(x, static_cast<int>(axis)).const_value()) {
      Attrs cut = cut_attrs(axis, first, first + (rows - 1) * step + 1);
      if (step != 1) cut.set("steps", std::vector<int64_t>{step});
      x = b_.op("slice", {x}, std::move(cut));
    }
    if (transposed) x = b_.op("transpose", {x}, {{"perm", std::vector<int64_t>{1, 0}}});
    OAR_RETURN_IF_ERROR(b_.status());
    copies_.moved += static_cast<uint64_t>(rows * b_.dim(x, 1).const_value()) * sizeof(float);
    g_.replace_uses(n.outputs[0], x.id);
    return ok_status();
  }

  Graph& g_;
  WeightCopies& copies_;
  Builder b_;
  std::map<const std::byte*, Owner> owners_;  // by where their bytes begin
};

}  // namespace

Status copy_weights(Graph& g, WeightCopies& copies) { return Copying(g, copies).run(false); }

Status compute_weights(Graph& g, const std::map<std::string, Tensor, std::less<>>& tensors,
                       WeightCopies& copies) {
  OAR_RETURN_IF_ERROR(Computing(g, tensors, copies).run());
  return Copying(g, copies).run(true);
}

uint64_t WeightCopies::bytes(const std::map<std::string, Tensor>& copies) {
  uint64_t sum = 0;
  for (const auto& [name, tensor] : copies) sum += tensor.bytes();
  return sum;
}

namespace {

// By value: whether a node reads it otherwise than as the matrix of a layer or of an expert, or as a table,
// which may have any format.
std::vector<bool> read_as_numbers(const Graph& g) {
  std::vector<bool> out(g.num_values(), false);
  for (const Node& n : g.nodes()) {
    for (size_t k = 0; k < n.inputs.size(); ++k) {
      const bool stored =
          (n.is("linear") && k == 2) || (n.is("embedding") && k == 0) || (n.op == &op_expert_rows && k >= 4);
      if (!stored && n.inputs[k] != kNoValue) out[static_cast<size_t>(n.inputs[k])] = true;
    }
  }
  return out;
}

}  // namespace

Status widen_constants(Graph& g, Val head, Val bias) {
  const std::vector<bool> numbers = read_as_numbers(g);
  for (size_t v = 0; v < g.num_values(); ++v) {
    Value& value = g.value(static_cast<ValueId>(v));
    if (value.kind != ValueKind::kConstant || value.type.format == Format::f32() ||
        value.type.format == Format::i32())
      continue;
    if (static_cast<ValueId>(v) != bias.id && (static_cast<ValueId>(v) == head.id || !numbers[v])) continue;
    OAR_ASSIGN(value.constant, to_f32(value.constant));
    value.type.format = Format::f32();
  }
  return ok_status();
}

}  // namespace oar::train

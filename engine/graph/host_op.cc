#include "engine/graph/host_op.h"

#include <algorithm>
#include <cstring>

#include "engine/base/format.h"
#include "engine/graph/evaluate.h"
#include "engine/graph/reference.h"

namespace oar {
namespace {

// What lies behind one another without a gap: where each run of `count` elements begins in memory, and as a
// dense tensor. f(elements in memory, elements in the tensor, count)
template <class F>
void for_runs(const Operand& o, const F& f) {
  const int64_t outer = o.rank > 0 ? o.dims[0] : 1, row = outer > 0 ? o.numel() / outer : 0;
  const int64_t heads = o.rank == 3 && o.head_step != 0 ? o.dims[1] : 1, width = heads > 0 ? row / heads : 0;
  if (width == 0) return;
  for (int64_t r = 0; r < outer; ++r)
    for (int64_t h = 0; h < heads; ++h) f(r * o.row_stride + h * o.head_step, r * row + h * width, width);
}
bool is_dense(const Operand& o) {
  bool dense = true;
  for_runs(o, [&](int64_t at, int64_t behind, int64_t) { dense = dense && at == behind; });
  return dense;
}

// The operand as a dense tensor: a view of its memory where that is dense, which outlives the call.
Result<Tensor> tensor_of(const Operand& o) {
  const Shape shape(std::span<const int64_t>(o.dims, static_cast<size_t>(o.rank)));
  const int64_t width = o.format.block_bytes();
  if (!o.format.plain() || is_dense(o)) {
    OAR_ASSIGN(const int64_t bytes, tensor_bytes(shape, o.format));
    return Tensor::make(shape, o.format, Buffer::wrap_const(o.data, static_cast<uint64_t>(bytes), nullptr));
  }
  OAR_ASSIGN(Tensor t, Tensor::allocate(shape, o.format));
  for_runs(o, [&](int64_t at, int64_t to, int64_t count) {
    std::memcpy(static_cast<std::byte*>(t.mutable_data()) + to * width,
                static_cast<const std::byte*>(o.data) + at * width, static_cast<size_t>(count * width));
  });
  return t;
}
void store(const Tensor& t, const Operand& o) {
  if (!o.format.plain()) {
    if (t.bytes() > 0) std::memcpy(o.data, t.data(), t.bytes());
    return;
  }
  const int64_t width = o.format.block_bytes();
  for_runs(o, [&](int64_t at, int64_t from, int64_t count) {
    std::memcpy(static_cast<std::byte*>(o.data) + at * width,
                static_cast<const std::byte*>(t.data()) + from * width, static_cast<size_t>(count * width));
  });
}

// The node by its definition, in double.
class DefinedOp final : public LoweredOp {
 public:
  explicit DefinedOp(const Node& node) : node_(node) {}
  const Kernel* kernel() const override { return nullptr; }

  Status execute(const Operand* in, const Operand* out, HostScratch&) const override {
    std::vector<HostValue> values(node_.inputs.size());
    std::vector<const HostValue*> operands;
    for (size_t k = 0; k < node_.inputs.size(); ++k) {
      if (node_.inputs[k] == kNoValue) {
        operands.push_back(nullptr);
        continue;
      }
      OAR_ASSIGN(values[k], load(in[k]));
      operands.push_back(&values[k]);
    }
    OAR_ASSIGN(const auto results, evaluate_node(*node_.op, operands, node_.attrs));
    for (size_t k = 0; k < results.size() && k < node_.outputs.size(); ++k) {  // some may be left out
      OAR_ASSIGN(const Tensor t, to_tensor(results[k]));
      store(t, out[k]);
    }
    return ok_status();
  }

 private:
  static Result<HostValue> load(const Operand& o) {
    OAR_ASSIGN(const Tensor t, tensor_of(o));
    return host_value(t);
  }

  const Node& node_;
};

// The node in f32, by kernels that the op calls or by its evaluation.
class EvaluatedOp final : public LoweredOp {
 public:
  EvaluatedOp(const Node& node, Backend& backend) : node_(node), backend_(backend) {}
  const Kernel* kernel() const override { return nullptr; }
  const char* where() const override { return kEvaluated; }

  Status execute(const Operand* in, const Operand* out, HostScratch&) const override {
    std::vector<Datum> values(node_.inputs.size());
    std::vector<const Datum*> operands(node_.inputs.size(), nullptr);
    for (size_t k = 0; k < node_.inputs.size(); ++k) {
      if (node_.inputs[k] == kNoValue) continue;
      OAR_ASSIGN(Tensor t, tensor_of(in[k]));
      // Weights in any format meet values of f32, as types say between ops.
      const bool number = t.format().plain() && !dtype_is_float(t.format().dtype());
      if (out[0].format == Format::f32() && !number && !(t.format() == Format::f32())) {
        OAR_ASSIGN(t, to_f32(t));
      }
      values[k] = std::move(t);
      operands[k] = &values[k];
    }
    EvalOptions options;
    options.backend = &backend_;
    OAR_ASSIGN(const std::vector<Datum> results, compute_op(node_, operands, options));
    for (size_t k = 0; k < results.size() && k < node_.outputs.size(); ++k) {
      const Tensor& t = results[k].tensor;
      if (!results[k].is_tensor() || !(t.format() == out[k].format) || t.numel() != out[k].numel())
        return internal_error(cat(node_.op->name, " evaluates to another type than its shape rule says"));
      store(t, out[k]);
    }
    return ok_status();
  }

 private:
  const Node& node_;
  Backend& backend_;
};

// Bytes from the operand's first element to behind its last, the gaps between strided rows included.
uint64_t span_bytes(const Operand& o) {
  int64_t end = 0;
  for_runs(o, [&](int64_t at, int64_t, int64_t count) { end = std::max(end, at + count); });
  return static_cast<uint64_t>(end * o.format.block_bytes());
}

class CopiedOp final : public LoweredOp {
 public:
  CopiedOp(Backend& device, std::unique_ptr<const LoweredOp> inner, std::vector<HostOperand> in,
           std::vector<HostOperand> out)
      : device_(device), inner_(std::move(inner)), in_(std::move(in)), out_(std::move(out)) {
    weight_bytes = inner_->weight_bytes;
  }
  const Kernel* kernel() const override { return nullptr; }
  const char* where() const override {
    return inner_->kernel() != nullptr ? inner_->kernel()->name : "host reference";
  }

  // Buffers of `scratch`: an argument struct, a kernel's scratch, then one for each operand.
  Status execute(const Operand* in, const Operand* out, HostScratch& scratch) const override {
    std::vector<Operand> host_in(in, in + in_.size()), host_out(out, out + out_.size());
    const auto move_to_host = [&](Operand& o, size_t index) -> Status {
      const uint64_t bytes = span_bytes(o);
      OAR_ASSIGN(o.data, scratch.reserve(kOperands + index, bytes));
      return ok_status();
    };
    for (size_t k = 0; k < in_.size(); ++k) {
      if (in_[k] != HostOperand::kCopied) continue;
      OAR_RETURN_IF_ERROR(move_to_host(host_in[k], k));
      OAR_RETURN_IF_ERROR(device_.download(host_in[k].data, in[k].data, span_bytes(in[k])));
    }
    for (size_t k = 0; k < out_.size(); ++k) {
      if (out_[k] != HostOperand::kCopied) continue;
      OAR_RETURN_IF_ERROR(move_to_host(host_out[k], in_.size() + k));
      // What lies between its rows is others'.
      if (!is_dense(out[k]))
        OAR_RETURN_IF_ERROR(device_.download(host_out[k].data, out[k].data, span_bytes(out[k])));
    }
    OAR_RETURN_IF_ERROR(device_.synchronize());
    OAR_RETURN_IF_ERROR(compute(host_in.data(), host_out.data(), scratch));
    for (size_t k = 0; k < out_.size(); ++k) {
      if (out_[k] != HostOperand::kCopied) continue;
      OAR_RETURN_IF_ERROR(device_.upload(out[k].data, host_out[k].data, span_bytes(out[k])));
    }
    return ok_status();
  }

 private:
  static constexpr size_t kArgs = 0, kScratch = 1, kOperands = 2;

  Status compute(const Operand* in, const Operand* out, HostScratch& scratch) const {
    const Kernel* kernel = inner_->kernel();
    if (kernel == nullptr) return inner_->execute(in, out, scratch);
    OAR_ASSIGN(void* args, scratch.reserve(kArgs, inner_->args_bytes()));
    inner_->fill(args, in, out);
    Backend& host = device_.host();
    KernelPlan plan;
    OAR_RETURN_IF_ERROR(host.plan(*kernel, args, &plan));
    OAR_ASSIGN(void* shared, scratch.reserve(kScratch, plan.shared_scratch));
    host.reserve_worker_scratch(plan.worker_scratch);
    return host.launch(*kernel, args, plan, shared);
  }

  Backend& device_;
  const std::unique_ptr<const LoweredOp> inner_;
  const std::vector<HostOperand> in_, out_;
};

}  // namespace

std::unique_ptr<LoweredOp> make_host_op(const Node& node, Backend& host) {
  if (node.op->evaluate != nullptr && node.op->define == nullptr)
    return std::make_unique<EvaluatedOp>(node, host);
  return std::make_unique<DefinedOp>(node);
}

std::unique_ptr<LoweredOp> make_copied_op(Backend& device, std::unique_ptr<const LoweredOp> inner,
                                          std::vector<HostOperand> in, std::vector<HostOperand> out) {
  return std::make_unique<CopiedOp>(device, std::move(inner), std::move(in), std::move(out));
}

}  // namespace oar

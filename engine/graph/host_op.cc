#include "engine/graph/host_op.h"

#include <algorithm>
#include <cstring>

#include "engine/graph/reference.h"

namespace oar {
namespace {

class ReferenceOp final : public LoweredOp {
 public:
  explicit ReferenceOp(const Node& node) : node_(node) {}
  const Kernel* kernel() const override { return nullptr; }
  void bind(const Operand* in, const Operand* out) override { in_ = in, out_ = out; }

  Status execute() override {
    std::vector<HostValue> values(node_.inputs.size());
    std::vector<const HostValue*> operands;
    for (size_t k = 0; k < node_.inputs.size(); ++k) {
      if (node_.inputs[k] == kNoValue) {
        operands.push_back(nullptr);
        continue;
      }
      OAR_ASSIGN(values[k], load(in_[k]));
      operands.push_back(&values[k]);
    }
    OAR_ASSIGN(const auto results, evaluate_node(*node_.op, operands, node_.attrs));
    for (size_t k = 0; k < results.size(); ++k) {
      OAR_ASSIGN(const Tensor t, to_tensor(results[k]));
      if (t.bytes() > 0) std::memcpy(out_[k].data, t.data(), t.bytes());
    }
    return ok_status();
  }

 private:
  static Result<HostValue> load(const Operand& o) {
    const Shape shape(std::span<const int64_t>(o.dims, static_cast<size_t>(o.rank)));
    const int64_t width = o.format.block_bytes();
    OAR_ASSIGN(Tensor t, Tensor::allocate(shape, o.format));
    const int64_t outer = o.rank > 0 ? o.dims[0] : 1;
    const int64_t row = outer > 0 ? shape.numel() / outer : 0;
    for (int64_t r = 0; r < outer && row > 0; ++r) {
      std::memcpy(static_cast<std::byte*>(t.mutable_data()) + r * row * width,
                  static_cast<const std::byte*>(o.data) + r * (o.rank > 0 ? o.row_stride : row) * width,
                  static_cast<size_t>(row * width));
    }
    return host_value(t);
  }

  const Node& node_;
  const Operand* in_ = nullptr;
  const Operand* out_ = nullptr;
};

// Bytes from the operand's first element to behind its last, the gaps between strided rows included.
uint64_t span_bytes(const Operand& o) {
  const int64_t n = o.numel();
  if (n == 0) return 0;
  const int64_t elements = o.rank > 0 ? (o.dims[0] - 1) * o.row_stride + n / o.dims[0] : 1;
  return static_cast<uint64_t>(elements * o.format.block_bytes());
}

// Buffers grow to the largest run and stay: nothing is allocated once the sizes have been seen.
Status reserve(Buffer& buffer, uint64_t bytes) {
  if (buffer.size() >= bytes) return ok_status();
  OAR_ASSIGN(buffer, Buffer::allocate(bytes));
  return ok_status();
}

class CopiedOp final : public LoweredOp {
 public:
  CopiedOp(Backend& device, std::unique_ptr<LoweredOp> inner, std::vector<HostOperand> in,
           std::vector<HostOperand> out)
      : device_(device), inner_(std::move(inner)) {
    for (HostOperand h : in) in_.push_back({h, {}});
    for (HostOperand h : out) out_.push_back({h, {}});
    host_in_.resize(in_.size());
    host_out_.resize(out_.size());
    owned_bytes = inner_->owned_bytes;
    weight_bytes = inner_->weight_bytes;
  }
  const Kernel* kernel() const override { return nullptr; }
  const char* where() const override {
    return inner_->kernel() != nullptr ? inner_->kernel()->name : "host reference";
  }
  void bind(const Operand* in, const Operand* out) override { from_ = in, to_ = out; }

  Status execute() override {
    for (size_t k = 0; k < in_.size(); ++k) {
      host_in_[k] = from_[k];
      if (in_[k].where != HostOperand::kCopied) continue;
      const uint64_t bytes = span_bytes(from_[k]);
      OAR_RETURN_IF_ERROR(reserve(in_[k].buffer, bytes));
      host_in_[k].data = bytes > 0 ? in_[k].buffer.mutable_data() : nullptr;
      OAR_RETURN_IF_ERROR(device_.download(host_in_[k].data, from_[k].data, bytes));
    }
    OAR_RETURN_IF_ERROR(device_.synchronize());
    for (size_t k = 0; k < out_.size(); ++k) {
      host_out_[k] = to_[k];
      if (out_[k].where != HostOperand::kCopied) continue;
      const uint64_t bytes = span_bytes(to_[k]);
      OAR_RETURN_IF_ERROR(reserve(out_[k].buffer, bytes));
      host_out_[k].data = bytes > 0 ? out_[k].buffer.mutable_data() : nullptr;
    }
    OAR_RETURN_IF_ERROR(compute());
    for (size_t k = 0; k < out_.size(); ++k) {
      if (out_[k].where != HostOperand::kCopied) continue;
      OAR_RETURN_IF_ERROR(device_.upload(to_[k].data, host_out_[k].data, span_bytes(to_[k])));
    }
    return ok_status();
  }

 private:
  struct Copied {
    HostOperand where;
    Buffer buffer;
  };

  Status compute() {
    inner_->bind(host_in_.data(), host_out_.data());
    const Kernel* kernel = inner_->kernel();
    if (kernel == nullptr) return inner_->execute();
    Backend& host = device_.host();
    KernelPlan plan;
    OAR_RETURN_IF_ERROR(host.plan(*kernel, inner_->args(), &plan));
    OAR_RETURN_IF_ERROR(reserve(scratch_, plan.shared_scratch));
    host.reserve_worker_scratch(plan.worker_scratch);
    return host.launch(*kernel, inner_->args(), plan, scratch_.mutable_data());
  }

  Backend& device_;
  std::unique_ptr<LoweredOp> inner_;
  std::vector<Copied> in_, out_;
  std::vector<Operand> host_in_, host_out_;
  Buffer scratch_;
  const Operand* from_ = nullptr;
  const Operand* to_ = nullptr;
};

}  // namespace

std::unique_ptr<LoweredOp> make_reference_op(const Node& node) { return std::make_unique<ReferenceOp>(node); }

std::unique_ptr<LoweredOp> make_copied_op(Backend& device, std::unique_ptr<LoweredOp> inner,
                                          std::vector<HostOperand> in, std::vector<HostOperand> out) {
  return std::make_unique<CopiedOp>(device, std::move(inner), std::move(in), std::move(out));
}

}  // namespace oar

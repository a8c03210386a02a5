// Ops of the embedding program: oar_op_*(), oar_register_op().
#include <memory>
#include <string>
#include <vector>

#include "engine/capi/call.h"
#include "engine/capi/dtype.h"
#include "engine/ops/custom.h"

// What a callback sees of a node.
struct oar_op_call {
  const oar::Attrs* attrs = nullptr;
  std::string failure;  // what oar_op_fail() was told
};

namespace oar::capi {
namespace {

static_assert(OAR_MAX_RANK == Shape::kMaxRank);

oar_tensor described(Format format, const Shape& shape) {
  oar_tensor t = {};
  t.dtype = to_c(format.dtype());
  t.rank = shape.rank();
  std::copy(shape.begin(), shape.end(), t.shape);
  return t;
}

oar_tensor tensor_of(const Tensor& from, void* data) {
  if (!from.defined()) return {};
  oar_tensor t = described(from.format(), from.shape());
  t.data = data;
  t.bytes = from.bytes();
  return t;
}

Status call_back(const oar_op& op, oar_op_function f, const Attrs& attrs, const std::vector<oar_tensor>& in,
                 std::vector<oar_tensor>& out) {
  oar_op_call node{&attrs, {}};
  const oar_status s = f(&node, in.data(), in.size(), out.data(), out.size(), op.user);
  if (s == OAR_OK) return ok_status();
  const bool known = s > OAR_OK && s <= OAR_UNAUTHENTICATED;
  return {known ? static_cast<StatusCode>(s) : StatusCode::kUnknown,
          cat("custom op ", op.name, ": ", node.failure.empty() ? oar_status_name(s) : node.failure.c_str())};
}

Status shape_by(const oar_op& op, const Attrs& attrs, std::span<const ValueInfo> operands,
                std::span<ValueInfo> results) {
  std::vector<oar_tensor> in, out(results.size());
  for (const ValueInfo& v : operands) in.push_back(v.given ? described(v.format, v.shape) : oar_tensor{});
  OAR_RETURN_IF_ERROR(call_back(op, op.shape, attrs, in, out));
  for (size_t k = 0; k < out.size(); ++k) {
    const auto dtype = from_c(out[k].dtype);
    if (!dtype || out[k].rank < 0 || out[k].rank > OAR_MAX_RANK) {
      return invalid_argument(cat("custom op ", op.name, ": its shape function gives output ", k, " dtype ",
                                  out[k].dtype, " and rank ", out[k].rank));
    }
    for (int32_t i = 0; i < out[k].rank; ++i) {
      if (out[k].shape[i] < 0)
        return invalid_argument(cat("custom op ", op.name, ": its shape function gives output ", k,
                                    " an extent of ", out[k].shape[i]));
    }
    results[k] = {Format::of(*dtype), Shape(std::span(out[k].shape, static_cast<size_t>(out[k].rank))), true};
  }
  return ok_status();
}

Status compute_by(const oar_op& op, const Attrs& attrs, std::span<const Tensor> operands,
                  std::span<Tensor> results) {
  std::vector<oar_tensor> in, out;
  for (const Tensor& t : operands) in.push_back(tensor_of(t, const_cast<void*>(t.data())));
  for (const Tensor& t : results) out.push_back(tensor_of(t, t.mutable_data()));
  return call_back(op, op.compute, attrs, in, out);
}

Status register_op(const oar_op* given) {
  if (given == nullptr) return null_argument("op");
  oar_op op = {};
  OAR_RETURN_IF_ERROR(read_struct(given, "op", op));
  if (op.name == nullptr) return null_argument("name");
  if (op.shape == nullptr) return null_argument("shape");
  if (op.compute == nullptr) return null_argument("compute");
  if (op.reserved != 0)
    return invalid_argument(cat("reserved is ", op.reserved, "; fill the structure with oar_op_init()"),
                            "reserved");
  CustomOp own;
  own.name = op.name;
  own.domain = op.domain != nullptr ? op.domain : "";
  // The caller's strings need not live on.
  const auto name = std::make_shared<const std::string>(own.name);
  op.name = name->c_str(), op.domain = nullptr;
  own.shape = [op, name](const Attrs& attrs, std::span<const ValueInfo> in, std::span<ValueInfo> out) {
    return shape_by(op, attrs, in, out);
  };
  own.compute = [op, name](const Attrs& attrs, std::span<const Tensor> in, std::span<Tensor> out) {
    return compute_by(op, attrs, in, out);
  };
  return register_custom_op(std::move(own));
}

// The attribute where it is a T.
template <class T>
Result<const T*> attribute(const oar_op_call* call, const char* name, const void* to) {
  if (call == nullptr) return null_argument("call");
  if (name == nullptr) return null_argument("name");
  if (to == nullptr) return null_argument("value");
  for (const auto& [key, value] : call->attrs->items()) {
    if (key != name) continue;
    if (const T* v = std::get_if<T>(&value)) return v;
    return invalid_argument(cat("attribute '", name, "' is of another type"), "name");
  }
  return Status(StatusCode::kNotFound, cat("the node has no attribute '", name, "'"), "name");
}

template <class T>
Status list_attribute(const oar_op_call* call, const char* name, const T** values, size_t* count) {
  if (count == nullptr) return null_argument("count");
  OAR_ASSIGN(const auto* list, attribute<std::vector<T>>(call, name, values));
  *values = list->data();
  *count = list->size();
  return ok_status();
}

}  // namespace
}  // namespace oar::capi

using namespace oar;        // NOLINT: the functions below are C
using namespace oar::capi;  // NOLINT

extern "C" {

oar_status oar_op_int(const oar_op_call* node, const char* name, int64_t* value) {
  return call([&]() -> Status {
    OAR_ASSIGN(const int64_t* v, attribute<int64_t>(node, name, value));
    *value = *v;
    return ok_status();
  });
}

oar_status oar_op_float(const oar_op_call* node, const char* name, double* value) {
  return call([&]() -> Status {
    OAR_ASSIGN(const double* v, attribute<double>(node, name, value));
    *value = *v;
    return ok_status();
  });
}

oar_status oar_op_string(const oar_op_call* node, const char* name, const char** value) {
  return call([&]() -> Status {
    OAR_ASSIGN(const std::string* v, attribute<std::string>(node, name, value));
    *value = v->c_str();
    return ok_status();
  });
}

oar_status oar_op_ints(const oar_op_call* node, const char* name, const int64_t** values, size_t* count) {
  return call([&] { return list_attribute(node, name, values, count); });
}

oar_status oar_op_floats(const oar_op_call* node, const char* name, const double** values, size_t* count) {
  return call([&] { return list_attribute(node, name, values, count); });
}

oar_status oar_op_fail(oar_op_call* node, const char* message) {
  if (node != nullptr && message != nullptr) node->failure = message;
  return OAR_INVALID_ARGUMENT;
}

oar_status oar_op_init(oar_op* op, size_t size) { return init_struct(oar_op{}, "op", op, size); }

oar_status oar_register_op(const oar_op* op) {
  return call([&] { return register_op(op); });
}

}  // extern "C"

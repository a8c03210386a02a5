#include "engine/ops/custom.h"

#include <list>
#include <mutex>

#include "engine/base/format.h"
#include "engine/graph/evaluate.h"

namespace oar {
namespace {

struct CustomDef : OpDef {
  std::string text;  // behind OpDef::name
  CustomOp op;
};

struct Registry {
  std::mutex mutex;
  std::list<CustomDef> ops;  // graphs hold addresses
  static Registry& instance() {
    static auto* registry = new Registry;
    return *registry;
  }
};

std::string definition_name(std::string_view domain, std::string_view name) {
  return cat("custom.", domain, ".", name);
}

// What a callback says of a result is checked as what a file says.
Status check_result(size_t k, const ValueInfo& r) {
  if (!r.given) return invalid_argument(cat("the shape function says nothing of result ", k));
  if (!r.format.plain() || r.format.dtype() == DType::kString)
    return invalid_argument(cat("result ", k, " is of ", r.format.name(), ", which no custom op can have"));
  const std::vector<int64_t> dims(r.shape.begin(), r.shape.end());
  return checked_shape(dims).status();
}

Status evaluate_custom(EvalContext& ctx) {
  const CustomOp& op = static_cast<const CustomDef*>(ctx.node().op)->op;
  std::vector<Tensor> operands(ctx.num_inputs()), results(ctx.num_outputs());
  std::vector<ValueInfo> in(operands.size()), out(results.size());
  for (size_t k = 0; k < operands.size(); ++k) {
    if (!ctx.has(k)) continue;
    OAR_ASSIGN(operands[k], ctx.tensor(k));
    in[k] = {operands[k].format(), operands[k].shape(), true};
  }
  OAR_RETURN_IF_ERROR(op.shape(ctx.attrs(), in, out));
  for (size_t k = 0; k < results.size(); ++k) {
    OAR_RETURN_IF_ERROR(check_result(k, out[k]));
    OAR_ASSIGN(results[k], ctx.allocate(out[k].shape, out[k].format.dtype()));
  }
  if (!ctx.options().sizing) OAR_RETURN_IF_ERROR(op.compute(ctx.attrs(), operands, results));
  for (size_t k = 0; k < results.size(); ++k) ctx.set(k, std::move(results[k]));
  return ok_status();
}

}  // namespace

Status register_custom_op(CustomOp op) {
  if (op.name.empty()) return Status(StatusCode::kInvalidArgument, "a custom op needs a name", "name");
  if (!op.shape || !op.compute) {
    const char* const missing = op.shape ? "compute" : "shape";
    return Status(StatusCode::kInvalidArgument,
                  cat("custom op ", op.name, " has no function `", missing, "`"), missing);
  }
  CustomDef def;
  def.text = definition_name(op.domain, op.name);
  def.evaluate = evaluate_custom;
  def.impure = true;  // nobody said that it is not: it is neither folded nor merged
  def.op = std::move(op);
  Registry& r = Registry::instance();
  const std::lock_guard lock(r.mutex);
  for (const CustomDef& known : r.ops) {
    if (known.text == def.text)
      return Status(StatusCode::kAlreadyExists,
                    cat("there is a custom op ", known.op.name, " of domain '", known.op.domain, "' already"),
                    "name");
  }
  r.ops.push_back(std::move(def));
  r.ops.back().name = r.ops.back().text.c_str();
  return ok_status();
}

const OpDef* find_custom_op(std::string_view definition) {
  Registry& r = Registry::instance();
  const std::lock_guard lock(r.mutex);
  for (const CustomDef& known : r.ops) {
    if (known.text == definition) return &known;
  }
  return nullptr;
}

const OpDef* find_custom_op(std::string_view domain, std::string_view name) {
  return find_custom_op(definition_name(domain, name));
}

}  // namespace oar

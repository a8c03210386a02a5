// Ordinary nodes that become ops of ops.h, and how these count in mixed precision.
#include "engine/ops/train/ops.h"

namespace oar::train {
namespace {

// The op of ours, with a kernel for every stored format, that does what a layer does; null: none.
const OpDef* rows_op(const Graph& g, const Node& n) {
  if (!n.is("linear") || n.inputs.size() != 4 || n.inputs[1] != kNoValue || n.attrs.has("activation") ||
      g.value(n.inputs[2]).type.shape.size() != 2)
    return nullptr;
  if (n.attrs.get_int("input_major") == 0) return &op_rows_linear;
  return n.inputs[3] == kNoValue ? &op_rows_product : nullptr;
}

}  // namespace

void use_rows_ops(Graph& g) {
  use_gate_ops(g);
  for (Node& n : g.nodes()) {
    // Keys that hold the values are left to the op's definition.
    if (n.is("attention") && n.inputs[2] != kNoValue &&
        (n.attrs.get_bool("causal", true) || !n.attrs.get_bool("chunked")))
      n.op = &op_segment_attention;
    if (n.is("moe_route")) n.op = &op_route;
    if (n.is("grouped_linear") && n.inputs[2] != kNoValue) n.op = &op_expert_rows;
    if (n.is("state_scan")) n.op = &op_segment_scan;
    if (!n.is("rope")) continue;
    n.op = &op_rotate;
    n.inputs.resize(3);
  }
}

void use_own_ops(Graph& g) {
  for (Node& n : g.nodes()) {
    if (n.is("embedding")) n.op = &op_table_rows;
    const OpDef* const rows = rows_op(g, n);
    if (rows == nullptr) continue;
    n.op = rows;
    n.inputs = {n.inputs[0], n.inputs[2], n.inputs[3]};
    if (rows == &op_rows_product) n.inputs.pop_back();
    n.attrs = {};
  }
}

bool add_rows_to(Graph& g, ValueId rows, ValueId sum) {
  const std::vector<int> producer = g.producers();
  const auto made = [&](ValueId v, const char* op) -> Node* {
    const int k = v == kNoValue ? -1 : producer[static_cast<size_t>(v)];
    return k >= 0 && g.nodes()[static_cast<size_t>(k)].is(op) ? &g.nodes()[static_cast<size_t>(k)] : nullptr;
  };
  Node* const scattered = made(rows, "scatter_nd");
  if (scattered == nullptr || scattered->attrs.get_string("reduction") != "add") return false;
  const Node* const zeros = made(scattered->inputs[0], "expand");
  if (zeros == nullptr || g.value(zeros->inputs[0]).kind != ValueKind::kConstant) return false;
  const Tensor zero = g.value(zeros->inputs[0]).constant;
  if (zero.numel() != 1 || !(zero.format() == Format::f32()) || zero.values<float>()[0] != 0) return false;
  scattered->inputs[0] = sum;
  return true;
}

std::map<std::string_view, std::string_view> listed_as() {
  return {{op_rotate.name, "rope"},
          {op_route.name, "moe_route"},
          {op_rows_gradient.name, "matmul"},
          {op_rows_rms_norm.name, "rms_norm"},
          {op_rows_rms_norm_back.name, "rms_norm"},
          {op_rows_swiglu.name, "swiglu"},
          {op_rows_swiglu_back.name, "swiglu"},
          {op_segment_attention.name, "attention"},
          {op_segment_attention_back.name, "attention"},
          {op_segment_scan.name, "state_scan"},
          {op_segment_scan_back.name, "state_scan"},
          {op_linear_cross_entropy.name, "linear"},
          {op_lora_back.name, "linear"},
          {op_lora_linear.name, "linear"},
          {op_expert_rows.name, "linear"},
          {op_expert_rows_back.name, "linear"},
          {op_expert_products.name, "linear"}};
}

bool reads_stored(const Graph& g, const Node& n, size_t operand) {
  if (n.op == &op_expert_rows || n.op == &op_expert_rows_back) return operand >= 4;
  if (n.op == &op_linear_cross_entropy) return operand < 2;
  if (n.op == &op_lora_linear) return operand != 2;
  if (n.op == &op_rotate || n.op == &op_rows_rms_norm || n.op == &op_counted_dropout) return operand == 0;
  if (is_rows_add(g, n)) return true;
  if (n.op == &op_segment_attention) return operand < 3;
  if (n.op == &op_segment_attention_back) return operand < 3 || operand == 5;
  if (n.op == &op_lora_back || n.op == &op_rows_swiglu || n.op == &op_rows_swiglu_back) return true;
  return n.op == &op_rows_gradient || ((operand == 0 || operand == 2) && rows_op(g, n) != nullptr);
}

bool rounds_itself(const Graph& g, const Node& n, size_t operand) {
  if (n.op == &op_lora_linear) return operand == 3 || operand == 4;
  if (n.op == &op_lora_back) return operand == 2 || operand == 3;
  return operand == 2 && rows_op(g, n) != nullptr;
}

std::span<const TrainingOp> training_ops() {
  static const TrainingOp all[] = {
      {&op_accumulate, "not"},
      {&op_adamw, "not"},
      {&op_barrier, "any order"},
      {&op_batch_statistics_norm, "any order"},
      {&op_batch_statistics_norm_back, "any order"},
      {&op_counted_dropout, "any order"},
      {&op_expert_products, "any order"},
      {&op_expert_rows, "any order"},
      {&op_expert_rows_back, "any order"},
      {&op_linear_cross_entropy, "not"},
      {&op_lora_back, "any order"},
      {&op_lora_linear, "any order"},
      {&op_rotate, "any order"},
      {&op_route, "any order"},
      {&op_row_parts, "any order"},
      {&op_rows_add, "any order"},
      {&op_rows_gradient, "any order"},
      {&op_rows_linear, "any order"},
      {&op_rows_product, "any order"},
      {&op_rows_rms_norm, "any order"},
      {&op_rows_rms_norm_back, "any order"},
      {&op_rows_swiglu, "any order"},
      {&op_rows_swiglu_back, "any order"},
      {&op_segment_attention, "any order"},
      {&op_segment_attention_back, "any order"},
      {&op_segment_scan, "once"},
      {&op_segment_scan_back, "not"},
      {&op_sgd, "not"},
      {&op_table_rows, "any order"},
  };
  return all;
}

}  // namespace oar::train

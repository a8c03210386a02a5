// ProgramDesc ops -> PIR's names and operand order, so that one table imports both generations. The facts are
// those of phi/ops/yaml/op_compat.yaml: a line here is one op whose operands have names in a ProgramDesc and
// places in PIR. An operand that a line does not list and that is given is an error, never dropped.
#include <algorithm>

#include "engine/import/paddle_node.h"
#include "engine/loader/byte_reader.h"

namespace oar::paddle {
namespace {

struct Signature {
  const char* legacy;
  const char* op;
  const char* inputs;   // by place; "Shape|ShapeTensor": the first of these that is given
  const char* outputs;  // results beyond these are dead (XShape) or of training
};

constexpr Signature kSignatures[] = {
    {"arg_max", "argmax", "X", "Out"},
    {"arg_min", "argmin", "X", "Out"},
    {"argsort", "argsort", "X", "Out Indices"},
    {"assign", "assign", "X", "Out"},
    {"assign_value", "assign_value", "", "Out"},
    {"batch_norm", "batch_norm", "X Mean Variance Scale Bias MomentumTensor", "Y MeanOut VarianceOut"},
    {"sync_batch_norm", "sync_batch_norm", "X Mean Variance Scale Bias MomentumTensor",
     "Y MeanOut VarianceOut"},
    {"bicubic_interp_v2", "bicubic_interp", "X OutSize SizeTensor Scale", "Out"},
    {"bilinear_interp_v2", "bilinear_interp", "X OutSize SizeTensor Scale", "Out"},
    {"bilinear_interp", "bilinear_interp", "X OutSize SizeTensor Scale", "Out"},
    {"linear_interp_v2", "linear_interp", "X OutSize SizeTensor Scale", "Out"},
    {"nearest_interp_v2", "nearest_interp", "X OutSize SizeTensor Scale", "Out"},
    {"nearest_interp", "nearest_interp", "X OutSize SizeTensor Scale", "Out"},
    {"trilinear_interp_v2", "trilinear_interp", "X OutSize SizeTensor Scale", "Out"},
    {"bmm", "bmm", "X Y", "Out"},
    {"box_coder", "box_coder", "PriorBox PriorBoxVar TargetBox", "OutputBox"},
    {"broadcast_tensors", "broadcast_tensors", "X", "Out"},
    {"cast", "cast", "X", "Out"},
    {"clip", "clip", "X Min Max", "Out"},
    {"concat", "concat", "X AxisTensor", "Out"},
    {"conditional_block", "conditional_block", "Cond Input", "Out Scope"},
    {"conv2d", "conv2d", "Input Filter Bias ResidualData", "Output"},
    {"conv2d_transpose", "conv2d_transpose", "Input Filter OutputSizeTensor|OutputSize Bias", "Output"},
    {"conv3d", "conv3d", "Input Filter Bias ResidualData", "Output"},
    {"depthwise_conv2d", "depthwise_conv2d", "Input Filter Bias ResidualData", "Output"},
    {"depthwise_conv2d_transpose", "depthwise_conv2d_transpose",
     "Input Filter OutputSizeTensor|OutputSize Bias", "Output"},
    {"deformable_conv", "deformable_conv", "Input Offset Filter Mask", "Output"},
    {"cumsum", "cumsum", "X AxisTensor|axis", "Out"},
    {"diag_v2", "diag", "X", "Out"},
    {"dropout", "dropout", "X Seed", "Out"},
    {"einsum", "einsum", "Operands", "Out"},
    {"elementwise_add", "add", "X Y", "Out"},
    {"elementwise_div", "divide", "X Y", "Out"},
    {"elementwise_floordiv", "floor_divide", "X Y", "Out"},
    {"elementwise_max", "maximum", "X Y", "Out"},
    {"elementwise_min", "minimum", "X Y", "Out"},
    {"elementwise_mod", "remainder", "X Y", "Out"},
    {"elementwise_mul", "multiply", "X Y", "Out"},
    {"elementwise_pow", "elementwise_pow", "X Y", "Out"},
    {"elementwise_sub", "subtract", "X Y", "Out"},
    {"expand_as_v2", "expand_as", "X Y|target_tensor", "Out"},
    {"expand_v2", "expand", "X Shape|expand_shapes_tensor", "Out"},
    {"fill_any_like", "full_like", "X", "Out"},
    {"fill_constant", "full", "ShapeTensor|ShapeTensorList ValueTensor", "Out"},
    {"fill_constant_batch_size_like", "full_batch_size_like", "Input", "Out"},
    {"flatten2", "flatten2", "X", "Out"},
    {"flatten", "flatten2", "X", "Out"},
    {"flatten_contiguous_range", "flatten", "X", "Out"},
    {"flip", "flip", "X", "Out"},
    {"dequantize_linear", "dequantize_linear", "X Scale ZeroPoint InAccum InState", "Y"},
    {"fake_channel_wise_dequantize_max_abs", "fake_channel_wise_dequantize_max_abs", "X Scales", "Out"},
    {"fake_channel_wise_quantize_abs_max", "fake_channel_wise_quantize_abs_max", "X", "Out OutScale"},
    {"fake_channel_wise_quantize_dequantize_abs_max", "fake_channel_wise_quantize_dequantize_abs_max", "X",
     "Out OutScale"},
    {"fake_dequantize_max_abs", "fake_dequantize_max_abs", "X Scale", "Out"},
    {"fake_quantize_abs_max", "fake_quantize_abs_max", "X", "Out OutScale"},
    {"fake_quantize_dequantize_abs_max", "fake_quantize_dequantize_abs_max", "X", "Out OutScale"},
    {"fake_quantize_dequantize_moving_average_abs_max", "fake_quantize_dequantize_moving_average_abs_max",
     "X InScale InAccum InState", "Out OutScale"},
    {"fake_quantize_moving_average_abs_max", "fake_quantize_moving_average_abs_max",
     "X InScale InAccum InState", "Out OutScale"},
    {"fake_quantize_range_abs_max", "fake_quantize_range_abs_max", "X InScale Iter", "Out OutScale"},
    {"gather", "gather", "X Index Axis", "Out"},
    {"gather_nd", "gather_nd", "X Index", "Out"},
    {"generate_proposals", "legacy_generate_proposals", "Scores BboxDeltas ImInfo Anchors Variances",
     "RpnRois RpnRoiProbs RpnRoisNum"},
    {"generate_proposals_v2", "generate_proposals", "Scores BboxDeltas ImShape Anchors Variances",
     "RpnRois RpnRoiProbs RpnRoisNum"},
    {"grid_sampler", "grid_sample", "X Grid", "Output"},
    {"group_norm", "group_norm", "X Scale Bias", "Y"},
    {"hard_sigmoid", "hardsigmoid", "X", "Out"},
    {"hard_swish", "hardswish", "X", "Out"},
    {"increment", "increment", "X", "Out"},
    {"index_put", "index_put", "x indices value", "out"},
    {"index_sample", "index_sample", "X Index", "Out"},
    {"index_select", "index_select", "X Index", "Out"},
    {"instance_norm", "instance_norm", "X Scale Bias", "Y"},
    {"layer_norm", "layer_norm", "X Scale Bias", "Y Mean Variance"},
    {"linspace", "linspace", "Start Stop Num", "Out"},
    {"lookup_table", "lookup_table", "Ids W", "Out"},
    {"lookup_table_v2", "embedding", "Ids W", "Out"},
    {"masked_fill", "masked_fill", "x|X mask|Mask value|Value", "out|Out"},
    {"repeat_interleave", "repeat_interleave", "X", "Out"},
    {"masked_select", "masked_select", "X Mask", "Y"},
    {"matmul", "matmul", "X Y", "Out"},
    {"matmul_v2", "matmul", "X Y", "Out"},
    {"mean", "mean_all", "X", "Out"},
    {"meshgrid", "meshgrid", "X", "Out"},
    {"mul", "legacy_mul", "X Y", "Out"},
    {"multiclass_nms", "multiclass_nms", "BBoxes Scores", "Out"},
    {"multiclass_nms3", "multiclass_nms3", "BBoxes Scores RoisNum", "Out Index NmsRoisNum"},
    {"one_hot_v2", "one_hot", "X depth_tensor", "Out"},
    {"p_norm", "p_norm", "X", "Out"},
    {"pad", "pad", "X", "Out"},
    {"pad3d", "pad3d", "X Paddings", "Out"},
    {"pixel_shuffle", "pixel_shuffle", "X", "Out"},
    {"pool2d", "pool2d", "X", "Out"},
    {"pool3d", "pool3d", "X", "Out"},
    {"pow", "pow", "X FactorTensor", "Out"},
    {"prelu", "prelu", "X Alpha", "Out"},
    {"prior_box", "prior_box", "Input Image", "Boxes Variances"},
    {"put_along_axis", "put_along_axis", "Input Index Value", "Result"},
    {"quantize_linear", "quantize_linear", "X Scale ZeroPoint InAccum InState", "Y"},
    {"range", "arange", "Start End Step", "Out"},
    {"reduce_all", "all", "X", "Out"},
    {"reduce_any", "any", "X", "Out"},
    {"reduce_max", "max", "X", "Out"},
    {"reduce_mean", "mean", "X", "Out"},
    {"reduce_min", "min", "X", "Out"},
    {"reduce_prod", "prod", "X", "Out"},
    {"reduce_sum", "sum", "X", "Out"},
    {"logsumexp", "logsumexp", "X", "Out"},
    {"reshape2", "reshape", "X Shape|ShapeTensor", "Out"},
    {"reshape", "reshape", "X Shape|ShapeTensor", "Out"},
    {"rnn", "rnn", "Input PreState WeightList SequenceLength", "Out DropoutState State Reserve"},
    {"roi_align", "roi_align", "X ROIs RoisNum", "Out"},
    {"roll", "roll", "X ShiftsTensor", "Out"},
    {"scale", "scale", "X ScaleTensor", "Out"},
    {"scatter", "scatter", "X Ids Updates", "Out"},
    {"scatter_nd_add", "scatter_nd_add", "X Index Updates", "Out"},
    {"select_input", "select_input", "X Mask", "Out"},
    {"set_value", "", "", "Out"},  // two ops, see below
    {"shape", "shape", "Input", "Out"},
    {"share_data", "share_data", "X", "Out"},
    {"size", "numel", "Input", "Out"},
    {"slice", "slice", "Input StartsTensor|StartsTensorList EndsTensor|EndsTensorList", "Out"},
    {"split", "split", "X SectionsTensorList AxisTensor", "Out"},
    {"squeeze2", "squeeze", "X AxisTensor", "Out"},
    {"squeeze", "squeeze", "X AxisTensor", "Out"},
    {"stack", "stack", "X", "Y"},
    {"strided_slice", "strided_slice",
     "Input StartsTensor|StartsTensorList EndsTensor|EndsTensorList StridesTensor|StridesTensorList", "Out"},
    {"sum", "add_n", "X", "Out"},
    {"take_along_axis", "take_along_axis", "Input Index", "Result"},
    {"tile", "tile", "X RepeatTimes|repeat_times_tensor", "Out"},
    {"top_k", "topk", "X K", "Out Indices"},
    {"top_k_v2", "topk", "X K", "Out Indices"},
    {"transpose2", "transpose", "X", "Out"},
    {"transpose", "transpose", "X", "Out"},
    {"tril_triu", "tril_triu", "X", "Out"},
    {"unbind", "unbind", "X", "Out"},
    {"unsqueeze2", "unsqueeze", "X AxesTensor|AxesTensorList", "Out"},
    {"unsqueeze", "unsqueeze", "X AxesTensor|AxesTensorList", "Out"},
    {"unstack", "unstack", "X", "Y"},
    {"where", "where", "Condition X Y", "Out"},
    {"where_index", "nonzero", "Condition", "Out"},
    {"while", "legacy_while", "X Condition", "Out StepScopes"},
    {"yolo_box", "yolo_box", "X ImgSize", "Boxes Scores"},
    // One operand X, one result Out, PIR's name.
    {"isfinite_v2", "isfinite", "X", "Out"},
    {"isinf_v2", "isinf", "X", "Out"},
    {"isnan_v2", "isnan", "X", "Out"},
};

// Ops whose names did not change, X [and Y] to Out.
constexpr const char* kSameName[] = {
    "abs",           "acos",         "acosh",      "asin",        "asinh",     "atan",      "atanh",
    "bitwise_and",   "bitwise_not",  "bitwise_or", "bitwise_xor", "ceil",      "celu",      "cos",
    "cosh",          "elu",          "equal",      "erf",         "exp",       "floor",     "gelu",
    "greater_equal", "greater_than", "leaky_relu", "less_equal",  "less_than", "log",       "log_softmax",
    "logical_and",   "logical_not",  "logical_or", "logical_xor", "mish",      "not_equal", "reciprocal",
    "relu",          "relu6",        "round",      "rsqrt",       "selu",      "sigmoid",   "sign",
    "silu",          "sin",          "sinh",       "softmax",     "softplus",  "softsign",  "sqrt",
    "square",        "swish",        "tan",        "tanh"};

template <class F>
void each_word(std::string_view words, char separator, F&& f) {
  while (!words.empty()) {
    const size_t end = words.find(separator);
    f(words.substr(0, end));
    if (end == std::string_view::npos) break;
    words.remove_prefix(end + 1);
  }
}

Result<Op> arranged(const Program& program, const Op& op, const char* name, std::string_view inputs,
                    std::string_view outputs) {
  Op out;
  out.type = name;
  out.attrs = op.attrs;
  out.blocks = op.blocks;
  out.location = op.location;
  std::vector<std::string_view> used;
  each_word(inputs, ' ', [&](std::string_view alternatives) {
    Slot chosen;
    each_word(alternatives, '|', [&](std::string_view slot) {
      used.push_back(slot);
      const Slot* s = op.input(slot);
      if (s && !s->values.empty() && chosen.values.empty()) chosen = *s;
    });
    out.inputs.push_back(std::move(chosen));
  });
  for (const Slot& s : op.inputs) {
    if (s.values.empty() || std::find(used.begin(), used.end(), s.name) != used.end()) continue;
    return unimplemented(cat(program.where(op), ": operand ", show_name(s.name), " is not supported"));
  }
  each_word(outputs, ' ', [&](std::string_view alternatives) {
    Slot chosen;
    each_word(alternatives, '|', [&](std::string_view slot) {
      const Slot* s = op.output(slot);
      if (s && chosen.values.empty()) chosen = *s;
    });
    out.outputs.push_back(std::move(chosen));
  });
  return out;
}

}  // namespace

Result<Op> from_legacy(const Program& program, const Op& op) {
  if (op.type == "set_value") {
    const Slot* value = op.input("ValueTensor");
    const bool tensor = value && !value->values.empty();
    return arranged(program, op, tensor ? "set_value_with_tensor" : "set_value",
                    tensor ? "Input ValueTensor StartsTensorList EndsTensorList StepsTensorList"
                           : "Input StartsTensorList EndsTensorList StepsTensorList",
                    "Out");
  }
  for (const Signature& s : kSignatures) {
    if (op.type == s.legacy) return arranged(program, op, s.op, s.inputs, s.outputs);
  }
  for (const char* name : kSameName) {
    if (op.type == name) return arranged(program, op, name, "X Y", "Out");
  }
  return unimplemented(cat(program.where(op), ": this op is not supported"));
}

}  // namespace oar::paddle

#include "engine/export/paddle_schema.h"

#include <algorithm>
#include <iterator>

namespace oar::paddle {
namespace {

#define OAR_WINDOW "padding_algorithm:s=EXPLICIT"
#define OAR_INTERP(name)                                                                                  \
  {                                                                                                       \
    name, "X OutSize SizeTensor* Scale", "Out",                                                           \
        "data_format:s=NCHW out_d:i=-1 out_h:i=-1 out_w:i=-1 scale:D= interp_method:s align_corners:b=0 " \
        "align_mode:i=0",                                                                                 \
        name "_v2", "data_format=data_layout:s scale=scale:F"                                             \
  }
#define OAR_REDUCE(name, legacy)                                            \
  {                                                                         \
    name, "X @dim:I", "Out", "keepdim:b=0", legacy,                         \
        "keepdim=keep_dim:b +reduce_all:b=0 +in_dtype:i=-1 +out_dtype:i=-1" \
  }
#define OAR_REDUCE_BOOL(name, legacy)                                                  \
  {                                                                                    \
    name, "X", "Out", "axis:L keepdim:b=0", legacy,                                    \
        "axis=dim:L keepdim=keep_dim:b +reduce_all:b=0 +in_dtype:i=-1 +out_dtype:i=-1" \
  }
#define OAR_UNARY_SCHEMA(name) \
  { name, "X", "Out", "" }
#define OAR_BINARY_SCHEMA(name, legacy) \
  { name, "X Y", "Out", "", legacy, "+axis:i=-1" }

constexpr OpSchema kSchemas[] = {
    // elementwise
    OAR_UNARY_SCHEMA("abs"),
    OAR_UNARY_SCHEMA("acos"),
    OAR_UNARY_SCHEMA("acosh"),
    OAR_UNARY_SCHEMA("asin"),
    OAR_UNARY_SCHEMA("asinh"),
    OAR_UNARY_SCHEMA("assign"),
    OAR_UNARY_SCHEMA("atan"),
    OAR_UNARY_SCHEMA("atanh"),
    OAR_UNARY_SCHEMA("bitwise_not"),
    OAR_UNARY_SCHEMA("ceil"),
    OAR_UNARY_SCHEMA("cos"),
    OAR_UNARY_SCHEMA("cosh"),
    OAR_UNARY_SCHEMA("erf"),
    OAR_UNARY_SCHEMA("exp"),
    OAR_UNARY_SCHEMA("floor"),
    OAR_UNARY_SCHEMA("log"),
    OAR_UNARY_SCHEMA("logical_not"),
    OAR_UNARY_SCHEMA("reciprocal"),
    OAR_UNARY_SCHEMA("relu"),
    OAR_UNARY_SCHEMA("rsqrt"),
    OAR_UNARY_SCHEMA("sigmoid"),
    OAR_UNARY_SCHEMA("sign"),
    OAR_UNARY_SCHEMA("silu"),
    OAR_UNARY_SCHEMA("sin"),
    OAR_UNARY_SCHEMA("sinh"),
    OAR_UNARY_SCHEMA("softsign"),
    OAR_UNARY_SCHEMA("sqrt"),
    OAR_UNARY_SCHEMA("square"),
    OAR_UNARY_SCHEMA("tan"),
    OAR_UNARY_SCHEMA("tanh"),
    {"isinf", "X", "Out", "", "isinf_v2"},
    {"isnan", "X", "Out", "", "isnan_v2"},
    {"round", "X", "Out", "decimals:i=0"},
    {"mish", "X", "Out", "lambda:f=20", nullptr, "lambda=threshold:f"},
    {"celu", "X", "Out", "alpha:f"},
    {"elu", "X", "Out", "alpha:f"},
    {"selu", "X", "Out", "scale:f alpha:f"},
    {"gelu", "X", "Out", "approximate:b"},
    {"leaky_relu", "X", "Out", "negative_slope:d", nullptr, "negative_slope=alpha:f"},
    {"hardsigmoid", "X", "Out", "slope:f offset:f", "hard_sigmoid"},
    {"hardswish", "X", "Out", "", "hard_swish", "+threshold:f=6 +scale:f=6 +offset:f=3"},
    {"softplus", "X", "Out", "beta:d threshold:d"},
    {"prelu", "X Alpha", "Out", "data_format:s=NCHW mode:s"},
    {"scale", "X ScaleTensor@scale:f", "Out", "bias:f=0 bias_after_scale:b=1"},
    {"clip", "X Min@min:f Max@max:f", "Out", ""},
    {"cast", "X", "Out", "dtype:t", nullptr, "dtype=out_dtype:t +in_dtype:t"},
    OAR_BINARY_SCHEMA("add", "elementwise_add"),
    OAR_BINARY_SCHEMA("subtract", "elementwise_sub"),
    OAR_BINARY_SCHEMA("multiply", "elementwise_mul"),
    OAR_BINARY_SCHEMA("divide", "elementwise_div"),
    OAR_BINARY_SCHEMA("maximum", "elementwise_max"),
    OAR_BINARY_SCHEMA("minimum", "elementwise_min"),
    OAR_BINARY_SCHEMA("remainder", "elementwise_mod"),
    OAR_BINARY_SCHEMA("elementwise_pow", "elementwise_pow"),
    OAR_BINARY_SCHEMA("equal", nullptr),
    OAR_BINARY_SCHEMA("not_equal", nullptr),
    OAR_BINARY_SCHEMA("greater_than", nullptr),
    OAR_BINARY_SCHEMA("greater_equal", nullptr),
    OAR_BINARY_SCHEMA("less_than", nullptr),
    OAR_BINARY_SCHEMA("less_equal", nullptr),
    {"bitwise_and", "X Y", "Out", ""},
    {"bitwise_or", "X Y", "Out", ""},
    {"bitwise_xor", "X Y", "Out", ""},
    {"logical_and", "X Y", "Out", ""},
    {"logical_or", "X Y", "Out", ""},
    {"logical_xor", "X Y", "Out", ""},
    {"where", "Condition X Y", "Out", ""},
    // constants
    {"full", "", "Out", "shape:A value:d dtype:t place:q", "fill_constant",
     "shape=shape:L value=value:f +force_cpu:b=0 +place_type:i=-1"},
    {"full_int_array", "", "Out", "value:L dtype:t=int64 place:q"},
    {"full_with_tensor", "ValueTensor ShapeTensor@shape:L", "Out", "dtype:t", "fill_constant",
     "+value:f=0 +str_value:s +force_cpu:b=0 +place_type:i=-1"},
    {"arange", "Start End Step", "Out", "dtype:t place:p", "range", "dtype=-"},
    {"one_hot", "X depth_tensor@depth:i", "Out", "", "one_hot_v2", "+dtype:i=5 +allow_out_of_range:b=0"},
    // shape and movement
    {"shape64", "Input", "Out", "", "shape"},
    {"numel", "Input", "Out", "", "size"},
    {"reshape", "X Shape@shape:I", "Out +XShape", "", "reshape2"},
    {"transpose", "X", "Out +XShape", "perm:I", "transpose2", "perm=axis:I"},
    {"squeeze", "X -@axes:I", "Out +XShape", "", "squeeze2"},
    {"unsqueeze", "X AxesTensor@axes:I", "Out +XShape", "", "unsqueeze2"},
    {"concat", "X* AxisTensor@axis:i", "Out", ""},
    {"split", "X SectionsTensorList@sections:I AxisTensor@axis:i", "Out*", "", nullptr, "+num:i=0"},
    {"split_with_num", "X AxisTensor@axis:i", "Out*", "num:i", "split", "+sections:I="},
    {"slice", "Input StartsTensor@starts:I EndsTensor@ends:I", "Out",
     "axes:L infer_flags:L decrease_axis:L="},
    {"strided_slice", "Input StartsTensor@starts:I EndsTensor@ends:I StridesTensor@strides:I", "Out",
     "axes:I", nullptr, "+infer_flags:I +decrease_axis:I="},
    {"expand", "X Shape@shape:I", "Out", "", "expand_v2"},
    {"tile", "X RepeatTimes@repeat_times:I", "Out", ""},
    {"flip", "X", "Out", "axis:I"},
    {"tril", "X", "Out", "diagonal:i", "tril_triu", "+lower:b=1"},
    {"triu", "X", "Out", "diagonal:i", "tril_triu", "+lower:b=0"},
    {"pad", "X -@pad_value:f", "Out", "paddings:I"},
    {"pad3d", "X Paddings@paddings:I", "Out", "mode:s pad_value:d=0 data_format:s=NCDHW", nullptr,
     "pad_value=value:f"},
    {"pixel_shuffle", "X", "Out", "upscale_factor:i data_format:s=NCHW"},
    // indexing
    {"gather", "X Index Axis@axis:i", "Out", ""},
    {"gather_nd", "X Index", "Out", ""},
    {"embedding", "Ids W", "Out", "padding_idx:l=-1 sparse:b=0", "lookup_table_v2", "sparse=-"},
    {"take_along_axis", "Input Index", "Result", "axis:i", nullptr, "axis=Axis:i"},
    {"put_along_axis", "Input Index Value", "Result", "axis:i reduce:s include_self:b=1", nullptr,
     "axis=Axis:i reduce=Reduce:s include_self=Include_self:b"},
    {"scatter_nd_add", "X Index Updates", "Out", ""},
    {"index_put", "x indices* value", "out", "accumulate:b=0"},
    {"nonzero", "Condition", "Out", "", "where_index"},
    {"topk", "X K@k:i", "Out Indices", "axis:i largest:b sorted:b", "top_k_v2"},
    // reductions
    {"sum", "X @dim:I", "Out", "dtype:t keepdim:b=0", "reduce_sum",
     "dtype=out_dtype:t keepdim=keep_dim:b +reduce_all:b=0 +in_dtype:i=-1"},
    OAR_REDUCE("mean", "reduce_mean"),
    OAR_REDUCE("max", "reduce_max"),
    OAR_REDUCE("min", "reduce_min"),
    {"prod", "X @dim:I", "Out", "keepdim:b=0 reduce_all:b=0", "reduce_prod",
     "keepdim=keep_dim:b +in_dtype:i=-1 +out_dtype:i=-1"},
    {"logsumexp", "X", "Out", "axis:I keepdim:b=0 reduce_all:b=0"},
    OAR_REDUCE_BOOL("all", "reduce_all"),
    OAR_REDUCE_BOOL("any", "reduce_any"),
    {"argmax", "X @axis:l", "Out", "keepdims:b flatten:b=0 dtype:t=int64", "arg_max"},
    {"argmin", "X @axis:l", "Out", "keepdims:b flatten:b=0 dtype:t=int64", "arg_min"},
    {"cumsum", "X @axis:i", "Out", "flatten:b=0 exclusive:b reverse:b"},
    // products and layers
    {"matmul", "X Y", "Out", "transpose_x:b=0 transpose_y:b=0", "matmul_v2",
     "transpose_x=trans_x:b transpose_y=trans_y:b"},
    {"einsum", "Operands*", "Out InnerCache* XShape*", "equation:s"},
    {"softmax", "X", "Out", "axis:i"},
    {"log_softmax", "X", "Out", "axis:i"},
    {"conv2d", "Input Filter", "Output",
     "strides:I paddings:I " OAR_WINDOW " dilations:I groups:i data_format:s=NCHW"},
    {"depthwise_conv2d", "Input Filter", "Output",
     "strides:I paddings:I " OAR_WINDOW " groups:i dilations:I data_format:s=NCHW"},
    {"conv3d", "Input Filter", "Output",
     "strides:I paddings:I " OAR_WINDOW " groups:i dilations:I data_format:s=NCDHW"},
    {"conv2d_transpose", "Input Filter -@output_size:I", "Output",
     "strides:I paddings:I output_padding:I= " OAR_WINDOW " groups:i dilations:I data_format:s=NCHW"},
    {"deformable_conv", "Input Offset Filter Mask", "Output",
     "strides:I paddings:I dilations:I deformable_groups:i groups:i im2col_step:i=1"},
    {"pool2d", "X -@ksize:I", "Out",
     "strides:L paddings:L ceil_mode:b=0 exclusive:b=1 data_format:s=NCHW pooling_type:s global_pooling:b=0 "
     "adaptive:b=0 " OAR_WINDOW},
    {"pool3d", "X", "Out",
     "kernel_size:L strides:L paddings:L ceil_mode:b=0 exclusive:b=1 data_format:s=NCDHW pooling_type:s "
     "global_pooling:b=0 adaptive:b=0 " OAR_WINDOW,
     nullptr, "kernel_size=ksize:I"},
    {"batch_norm_", "X Mean Variance Scale Bias",
     "Y MeanOut=1 VarianceOut=2 SavedMean SavedVariance ReserveSpace",
     "is_test:b=1 momentum:f=0.9 epsilon:f data_format:s=NCHW use_global_stats:b=1 trainable_statistics:b=0",
     "batch_norm", "data_format=data_layout:s"},
    {"layer_norm", "X Scale Bias", "Y Mean Variance", "epsilon:f begin_norm_axis:i"},
    {"instance_norm", "X Scale Bias", "Y SavedMean SavedVariance", "epsilon:f"},
    {"group_norm", "X Scale Bias", "Y Mean Variance", "epsilon:d groups:i data_format:s=NCHW", nullptr,
     "epsilon=epsilon:f data_format=data_layout:s"},
    OAR_INTERP("nearest_interp"),
    OAR_INTERP("linear_interp"),
    OAR_INTERP("bilinear_interp"),
    OAR_INTERP("trilinear_interp"),
    OAR_INTERP("bicubic_interp"),
    {"grid_sample", "X Grid", "Output", "mode:s padding_mode:s align_corners:b", "grid_sampler"},
    {"rnn", "Input PreState* WeightList* SequenceLength -", "Out DropoutState State* Reserve",
     "dropout_prob:f=0 is_bidirec:b input_size:i hidden_size:i num_layers:i=1 mode:s seed:i=0 is_test:b=1"},
    // control flow: blocks are no attributes
    {"if", "Cond", "Out", ""},
    {"while", "Condition X", "Out", ""},
};
#undef OAR_WINDOW
#undef OAR_INTERP
#undef OAR_REDUCE
#undef OAR_REDUCE_BOOL
#undef OAR_UNARY_SCHEMA
#undef OAR_BINARY_SCHEMA

}  // namespace

const OpSchema* find_schema(std::string_view name) {
  const auto* found = std::find_if(std::begin(kSchemas), std::end(kSchemas),
                                   [&](const OpSchema& s) { return s.name == name; });
  return found == std::end(kSchemas) ? nullptr : found;
}

SchemaAttr pir_attr(std::string_view word) {
  SchemaAttr a;
  const size_t colon = word.find(':');
  a.name = word.substr(0, colon);
  a.type = word[colon + 1];
  a.has_value = colon + 2 < word.size();
  if (a.has_value) a.value = word.substr(colon + 3);
  return a;
}

SchemaAttr legacy_attr(std::string_view word) {
  if (word[0] == '+') {
    SchemaAttr a = pir_attr(word.substr(1));
    a.other = a.name;
    return a;
  }
  SchemaAttr a;
  const size_t equals = word.find('=');
  a.name = word.substr(0, equals);
  a.other = word.substr(equals + 1);
  if (const size_t colon = a.other.find(':'); colon != std::string_view::npos) {
    a.type = a.other[colon + 1];
    a.other = a.other.substr(0, colon);
  }
  return a;
}

SchemaSlot schema_slot(std::string_view word) {
  SchemaSlot s;
  if (const size_t at = word.find('@'); at != std::string_view::npos) {
    const size_t colon = word.find(':');
    s.attr = word.substr(at + 1, colon - at - 1);
    s.attr_type = word[colon + 1];
    word = word.substr(0, at);
  }
  if (const size_t equals = word.find('='); equals != std::string_view::npos) {
    s.alias = word[equals + 1] - '0';
    word = word.substr(0, equals);
  }
  if (!word.empty() && word.back() == '*') {
    s.list = true;
    word.remove_suffix(1);
  }
  s.slot = word.empty() ? std::string_view("-") : word;
  return s;
}

}  // namespace oar::paddle

// Attributes of Paddle ops that change nothing at inference: how a library computes, what training or other
// devices read. Import functions read the rest, and what neither they nor this table know is refused
// (Node::all_read). The facts are those of Paddle's kernels (phi/kernels) and of op_compat.yaml's "extra".
#include <algorithm>

#include "engine/import/paddle_node.h"

namespace oar::paddle {
namespace {

// Kept out of memory by the readers: call stacks are most of some programs' bytes.
constexpr std::string_view kNoise[] = {"op_callstack", "op_device",   "op_namescope",
                                       "op_role",      "op_role_var", "with_quant_attr"};

struct Line {
  const char* ops;  // PIR's names
  // Words "name", or "name=value": only at this value, as Attr::to_string() writes it. A leading * stands for
  // any beginning.
  const char* attrs;
};

// Of every op: the library, the place and the layout hints of a kernel, marks of training, and what
// PaddleSlim notes down of ranges that its own passes have already turned into ops.
constexpr const char* kEveryOp =
    "use_mkldnn use_onednn use_cudnn use_gpudnn use_quantizer mkldnn_data_type onednn_data_type is_test "
    "place place_type force_cpu stop_gradient persistable struct_name skip_eager_deletion_vars "
    "out_threshold *0_threshold *1_threshold skip_quant quantization_type bit_length activation_bits "
    "weight_bits";

constexpr Line kLines[] = {
    {"conv2d depthwise_conv2d conv3d conv2d_transpose depthwise_conv2d_transpose",
     "workspace_size_MB exhaustive_search use_addto force_fp32_output fuse_relu_before_depthwise_conv=0 "
     "Scale_in=1 Scale_out=1 Scale_weights=[1] Scale_in_eltwise=1"},
    {"deformable_conv", "im2col_step workspace_size_MB"},
    {"batch_norm sync_batch_norm", "momentum use_global_stats trainable_statistics"},
    {"add subtract multiply divide maximum minimum remainder floor_divide elementwise_pow",
     "x_data_format y_data_format Scale_x=1 Scale_y=1 Scale_out=1"},
    {"logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor", "axis=-1"},
    {"matmul",
     "head_number=1 force_fp32_output Scale_x=1 Scale_y=1 Scale_out=1 fused_reshape_X=[] "
     "fused_transpose_X=[] "
     "fused_reshape_Y=[] fused_transpose_Y=[] fused_reshape_Out=[] fused_transpose_Out=[]"},
    {"legacy_mul", "force_fp32_output scale_x=1 scale_y=[1] scale_out=1"},
    {"sum mean max min prod all any", "in_dtype out_dtype=-1"},
    {"softmax log_softmax transpose", "data_format"},
    {"mish", "threshold=20 lambda=20"},
    {"round", "decimals=0"},
    {"p_norm", "epsilon"},  // of its gradient
    {"dropout", "seed fix_seed"},
    {"rnn", "input_size seed"},
    {"argsort", "stable"},  // ties are taken in order in any case
    {"cast", "in_dtype"},
    {"one_hot", "allow_out_of_range=0"},
    {"repeat_interleave", "output_size"},
    {"slice strided_slice", "infer_flags"},
    {"unbind unstack", "num"},
    {"set_value set_value_with_tensor", "dtype"},
    {"set_value_with_tensor", "values=[] shape=[] *_values=[]"},
    {"embedding lookup_table",
     "sparse is_sparse is_distributed remote_prefetch entry_config entry table_class table_names trainer_id "
     "slot grad_inplace epmap height_sections"},
    {"conditional_block", "is_scalar_condition"},
};

// Calls f with each word until it returns true; whether it did.
template <class F>
bool any_word(std::string_view words, F&& f) {
  while (!words.empty()) {
    const size_t end = std::min(words.find(' '), words.size());
    if (f(words.substr(0, end))) return true;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return false;
}

bool names(std::string_view word, const Attr& attr) {
  const size_t equals = word.find('=');
  const std::string_view name = word.substr(0, equals);
  const bool same = name.front() == '*' ? attr.name.ends_with(name.substr(1)) : attr.name == name;
  return same && (equals == std::string_view::npos || attr.to_string() == word.substr(equals + 1));
}

}  // namespace

bool is_noise(std::string_view attr) {
  return std::find(std::begin(kNoise), std::end(kNoise), attr) != std::end(kNoise);
}

bool no_effect(std::string_view op, const Attr& attr) {
  const auto named = [&](std::string_view word) { return names(word, attr); };
  if (is_noise(attr.name) || any_word(kEveryOp, named)) return true;
  if (op.ends_with('_')) op.remove_suffix(1);
  for (const Line& line : kLines) {
    if (any_word(line.ops, [&](std::string_view word) { return word == op; }) && any_word(line.attrs, named))
      return true;
  }
  return false;
}

}  // namespace oar::paddle

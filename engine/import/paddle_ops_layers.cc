// Layers of Paddle: convolution, pooling, normalization, resampling, recurrence (phi/ops/yaml/ops.yaml).
#include <algorithm>
#include <limits>

#include "engine/import/paddle_node.h"

namespace oar::paddle {
namespace {

bool channels_last(Node& n) {
  const std::string format = n.get_string("data_format|data_layout", "NCHW");
  return format == "NHWC" || format == "NDHWC" || format == "NLC";
}
std::vector<int64_t> to_first(int rank) {
  std::vector<int64_t> perm{0, rank - 1};
  for (int k = 1; k < rank - 1; ++k) perm.push_back(k);
  return perm;
}
std::vector<int64_t> to_last(int rank) {
  std::vector<int64_t> perm{0};
  for (int k = 2; k < rank; ++k) perm.push_back(k);
  perm.push_back(1);
  return perm;
}
// What oneDNN's fusions write into the op before: y activated. The words are Paddle's.
Val fused_activation(Node& n, Val y) {
  std::string word = n.get_string("fuse_activation");
  double alpha = n.get_float("fuse_alpha", 0), beta = n.get_float("fuse_beta", 0);
  const double bound = n.get_float("fuse_brelu_threshold", 6);
  const bool relu = n.get_bool("fuse_relu", false), with_relu = n.get_bool("fuse_with_relu", false);
  if (relu || with_relu) word = "relu";
  if (n.get_bool("fuse_brelu", false)) word = "clip", alpha = 0, beta = bound;
  if (word == "relu6") word = "clip", beta = alpha > 0 ? alpha : 6, alpha = 0;
  if (word.empty() || word == "identity") return y;
  for (const char* plain : {"relu", "abs", "mish", "sigmoid", "sqrt", "tanh", "hard_swish"}) {
    if (word == plain) return n.w().op(plain, {y});
  }
  if (word == "leaky_relu") return n.w().op(word, {y}, {{"alpha", alpha}});
  if (word == "swish") return n.w().op("silu", {y}, {{"alpha", alpha}});
  if (word == "hard_sigmoid") return n.w().op(word, {y}, {{"alpha", alpha}, {"beta", beta}});
  if (word == "clip") return n.w().op(word, {y, n.number(alpha, n.dtype(0)), n.number(beta, n.dtype(0))});
  if (word == "gelu_erf" || word == "gelu_tanh")
    return n.w().op("gelu", {y}, {{"approximate", std::string(word == "gelu_erf" ? "none" : "tanh")}});
  n.fail(unimplemented(cat("attribute 'fuse_activation' is '", word,
                           "', which is not supported; export the model without oneDNN's fusions")));
  return y;
}
// Runs f on x with channels first and puts the layout back.
template <class F>
void with_channels_first(Node& n, F&& f) {
  const bool last = channels_last(n);
  const int rank = last ? n.rank(0) : 4;
  Val y = f(last ? n.transpose(n.in(0), to_first(rank)) : n.in(0));
  n.out(0, last ? n.transpose(y, to_last(rank)) : y);
}

// Paddle's paddings, one or two per axis (before, after of each), as ours: all before, then all after.
bool window_attrs(Node& n, size_t axes, Attrs& attrs) {
  const std::string algorithm = n.get_string("padding_algorithm", "EXPLICIT");
  std::vector<int64_t> p = n.get_ints("paddings"), dilations = n.get_ints("dilations"),
                       strides = n.get_ints("strides");
  if (strides.empty()) strides.assign(axes, 1);
  if (dilations.empty()) dilations.assign(axes, 1);
  if (strides.size() != axes || dilations.size() != axes) {
    return n.fail(invalid_argument(
               cat(strides.size(), " strides and ", dilations.size(), " dilations for ", axes, " axes"))),
           false;
  }
  if (algorithm == "SAME") {
    attrs.set("auto_pad", std::string("SAME_UPPER"));
    dilations.assign(axes, 1);
  } else {
    if (algorithm == "VALID") p.assign(axes, 0);
    if (p.empty()) p.assign(axes, 0);
    std::vector<int64_t> pads(2 * axes);
    if (p.size() == 2 * (axes + 2)) p.erase(p.begin(), p.begin() + 4);  // batch and channels first, zeros
    if (p.size() != axes && p.size() != 2 * axes) {
      return n.fail(invalid_argument(cat(p.size(), " paddings for ", axes, " axes"))), false;
    }
    for (size_t k = 0; k < axes; ++k) {
      pads[k] = p.size() == axes ? p[k] : p[2 * k];
      pads[axes + k] = p.size() == axes ? p[k] : p[2 * k + 1];
    }
    attrs.set("pads", pads);
  }
  attrs.set("strides", strides);
  attrs.set("dilations", dilations);
  return true;
}

void conv(Node& n) {
  const auto axes = static_cast<size_t>(std::max(n.rank(1) - 2, 1));
  Attrs attrs{{"group", n.get_int("groups", 1)}};
  if (!window_attrs(n, axes, attrs)) return;
  // conv2d(x, filter, bias?, residual?): the last two, and the activation, as oneDNN's fusions leave them.
  const bool residual = n.get_bool("fuse_residual_connection", n.has_in(3));
  if (residual != n.has_in(3))
    return n.fail(invalid_argument("fuse_residual_connection without ResidualData, or the reverse"));
  const bool to_last_axis = channels_last(n);
  const int rank = static_cast<int>(axes) + 2;
  with_channels_first(n, [&](Val x) {
    Val y = n.w().op("conv", {x, n.in(1), n.in(2)}, attrs);
    if (residual) y = n.w().op("add", {y, to_last_axis ? n.transpose(n.in(3), to_first(rank)) : n.in(3)});
    return fused_activation(n, y);
  });
}
// conv2d_transpose(x, filter, [output_size], bias?)
void conv_transpose(Node& n) {
  const auto axes = static_cast<size_t>(std::max(n.rank(1) - 2, 1));
  const auto size = n.known_ints(2, "output_size");
  if (!size || !size->empty()) return n.fail(unimplemented("attribute 'output_size'"));
  Attrs attrs{{"group", n.get_int("groups", 1)}};
  if (!window_attrs(n, axes, attrs)) return;
  if (const auto extra = n.get_ints("output_padding"); !extra.empty()) attrs.set("output_padding", extra);
  with_channels_first(n, [&](Val x) {
    return fused_activation(n, n.w().op("conv_transpose", {x, n.in(1), n.in(3)}, attrs));
  });
}
void deformable_conv(Node& n) {
  Attrs attrs{{"group", n.get_int("groups", 1)}, {"offset_group", n.get_int("deformable_groups", 1)}};
  if (!window_attrs(n, 2, attrs)) return;
  n.out(0, n.w().op("deform_conv", {n.in(0), n.in(2), n.in(1), {}, n.in(3)}, attrs));
}

// pool(x, kernel)
void pool(Node& n) {
  const bool average = n.get_string("pooling_type", "max") == "avg";
  const auto kernel = n.known_ints(1, "ksize|kernel_size");
  if (!kernel) return n.fail(unimplemented("a kernel size that is computed"));
  const bool adaptive = n.get_bool("adaptive", false);
  const bool ones = std::all_of(kernel->begin(), kernel->end(), [](int64_t k) { return k == 1; });
  const bool whole = n.get_bool("global_pooling", false) || (adaptive && ones);
  if (whole || adaptive) n.ignore("strides|paddings|padding_algorithm|ceil_mode|exclusive");
  if (whole) {
    return with_channels_first(
        n, [&](Val x) { return n.w().op(average ? "global_average_pool" : "global_max_pool", {x}); });
  }
  const size_t axes = kernel->size();
  Attrs attrs;
  if (adaptive) {
    // Windows are equal where the output divides the input, which has to be declared for that.
    const ValueType* t = n.in_type(0);
    std::vector<int64_t> window;
    for (size_t k = 0; t && k < axes && t->dims.size() == axes + 2; ++k) {
      const int64_t extent = t->dims[k + (channels_last(n) ? 1 : 2)], out = (*kernel)[k];
      if (extent > 0 && out > 0 && extent % out == 0) window.push_back(extent / out);
    }
    n.scope().rely_on_extents();
    if (window.size() != axes)
      return n.fail(unimplemented("adaptive pooling to sizes that do not divide a declared extent"));
    attrs = {{"kernel_shape", window}, {"strides", window}};
  } else {
    if (!window_attrs(n, axes, attrs)) return;
    attrs.set("kernel_shape", *kernel);
    attrs.set("ceil_mode", n.get_int("ceil_mode", 0));
    attrs.set("cut_windows", int64_t{1});  // funcs/pooling.h divides as C does, towards zero
  }
  const bool exclusive = n.get_bool("exclusive", true);
  if (average) attrs.set("count_include_pad", int64_t{!exclusive});
  with_channels_first(n, [&](Val x) { return n.w().op(average ? "average_pool" : "max_pool", {x}, attrs); });
}

// batch_norm(x, mean, variance, scale, bias): by the statistics of training.
void batch_norm(Node& n) {
  if (!n.get_bool("is_test", true) && !n.get_bool("use_global_stats", false) &&
      n.get_bool("trainable_statistics", false)) {
    return n.fail(unimplemented("statistics of the batch; export the model for inference"));
  }
  const Attrs attrs{{"epsilon", n.get_float("epsilon", 1e-5)}, {"training_mode", int64_t{0}}};
  with_channels_first(n, [&](Val x) {
    return fused_activation(n, n.w().op("batch_norm", {x, n.in(3), n.in(4), n.in(1), n.in(2)}, attrs));
  });
  n.ignore_in(5);  // the momentum
  n.out(1, n.in(1));
  n.out(2, n.in(2));
}
void layer_norm(Node& n) {
  const Val x = n.in(0);
  const int64_t axis = n.get_int("begin_norm_axis", 1), rank = n.rank(0);
  Val scale = n.in(1), bias = n.in(2);
  const Val dims = axis == rank - 1 && scale ? Val{} : n.shape_of(x, axis);
  if (!scale) scale = n.w().op("constant_of_shape", {dims, n.number(1, n.dtype(0))});
  else if (dims) scale = n.w().op("reshape", {scale, dims});
  if (bias && dims) bias = n.w().op("reshape", {bias, dims});
  n.out(0, n.w().op("layer_norm", {x, scale, bias},
                    {{"axis", axis}, {"epsilon", n.get_float("epsilon", 1e-5)}}));
}
// group_norm(x, scale, bias), by its definition: groups of channels as one axis.
void group_norm(Node& n) {
  const int64_t groups = n.get_int("groups", 1);
  const int rank = n.rank(0);
  const DType d = n.dtype(0);
  with_channels_first(n, [&](Val x) {
    const Val shape = n.shape_of(x);
    const Val flat = n.reshape(x, {0, groups, -1});
    auto mean = [&](Val v) {
      return n.w().op("reduce_mean", {v, n.w().ints({2})}, {{"keepdims", int64_t{1}}});
    };
    const Val centered = n.w().op("sub", {flat, mean(flat)});
    const Val variance = mean(n.w().op("mul", {centered, centered}));
    const Val root =
        n.w().op("sqrt", {n.w().op("add", {variance, n.number(n.get_float("epsilon", 1e-5), d)})});
    Val y = n.w().op("reshape", {n.w().op("div", {centered, root}), shape});
    std::vector<int64_t> channel(static_cast<size_t>(rank - 1), 1);
    channel[0] = -1;
    if (n.in(1)) y = n.w().op("mul", {y, n.reshape(n.in(1), channel)});
    if (n.in(2)) y = n.w().op("add", {y, n.reshape(n.in(2), channel)});
    return y;
  });
}
void instance_norm(Node& n) {
  n.out(0,
        n.w().op("instance_norm", {n.in(0), n.in(1), n.in(2)}, {{"epsilon", n.get_float("epsilon", 1e-5)}}));
}
void dropout(Node& n) {
  Val x = n.in(0);
  if (!n.get_bool("is_test", true))
    return n.fail(unimplemented("dropout while training; export the model for inference"));
  n.ignore_in(1);  // the seed
  const auto p = n.known_scalar(2, "p|dropout_prob", 0.5);
  if (n.get_string("mode|dropout_implementation", "upscale_in_train") == "downgrade_in_infer") {
    if (!p) return n.fail(unimplemented("a probability that is computed"));
    x = n.w().op("mul", {x, n.number(1 - *p, n.dtype(0))});
  }
  n.out(0, x);
}

// ---- images

// interp(x, out_size?, size_tensor[]?, scale_tensor?): the size by tensors, by scale or by attributes.
void interp(Node& n, const char* mode, size_t axes) {
  const bool corners = n.get_bool("align_corners", false);
  const std::string method = n.get_string("interp_method");  // where given it holds, whatever the op's name
  const std::string kind = method.empty()                                                    ? mode
                           : method == "bicubic"                                             ? "cubic"
                           : method.ends_with("linear") /* linear, bilinear and trilinear */ ? "linear"
                                                                                             : method;
  if (kind != "nearest" && kind != "linear" && kind != "cubic")
    return n.fail(unimplemented(cat("attribute 'interp_method' is '", method, "'")));
  Attrs attrs{{"mode", kind}};
  const int64_t align_mode = n.get_int("align_mode", 1);
  const bool half = kind == "cubic" || (kind == "linear" && align_mode == 0);
  attrs.set("coordinate_transformation_mode", std::string(corners ? "align_corners"
                                                          : half  ? "half_pixel"
                                                                  : "asymmetric"));
  if (kind == "nearest") attrs.set("nearest_mode", std::string(corners ? "round_prefer_ceil" : "floor"));
  if (kind == "cubic") attrs.set("cubic_coeff_a", -0.75);
  std::vector<double> scale = n.get_floats("scale");
  scale.erase(std::remove_if(scale.begin(), scale.end(), [](double s) { return s <= 0; }), scale.end());
  if (scale.size() == 1) scale.assign(axes, scale[0]);
  std::vector<int64_t> fixed;
  constexpr const char* kSides[] = {"out_d", "out_h", "out_w"};
  for (size_t k = 0; k < 3; ++k) {
    const int64_t side = n.get_int(kSides[k], -1);
    if (k >= 3 - axes) fixed.push_back(side);
  }
  for (size_t k = 1; k <= 3; ++k) n.ignore_in(k);  // the first of them that is there holds
  with_channels_first(n, [&](Val x) {
    Val scales, sizes;
    auto behind = [&](Val spatial) { return n.concat({n.shape_of(x, 0, 2), spatial}); };
    if (n.has_in(2)) sizes = behind(n.ints_in(2, ""));
    else if (n.has_in(1)) sizes = behind(n.ints_in(1, ""));
    else if (n.has_in(3)) {
      Val s = n.reshape(n.cast(n.in(3), DType::kF32), {-1});
      s = n.w().op("expand", {s, n.w().ints({static_cast<int64_t>(axes)})});
      Tensor ones = must(allocate_elements({2}, DType::kF32));
      std::fill_n(mutable_elements<float>(ones), 2, 1.f);
      scales = n.concat({n.w().constant(std::move(ones)), s});
    } else if (scale.size() == axes) {
      Tensor all = must(allocate_elements({static_cast<int64_t>(axes + 2)}, DType::kF32));
      std::fill_n(mutable_elements<float>(all), 2, 1.f);
      for (size_t k = 0; k < axes; ++k) mutable_elements<float>(all)[2 + k] = static_cast<float>(scale[k]);
      scales = n.w().constant(std::move(all));
    } else {
      sizes = behind(n.w().ints(fixed));
    }
    return n.w().op("resize", {x, {}, scales, sizes}, attrs);
  });
}
void nearest_interp(Node& n) { interp(n, "nearest", 2); }
void bilinear_interp(Node& n) { interp(n, "linear", 2); }
void bicubic_interp(Node& n) { interp(n, "cubic", 2); }
void linear_interp(Node& n) { interp(n, "linear", 1); }
void trilinear_interp(Node& n) { interp(n, "linear", 3); }

void grid_sample(Node& n) {
  const std::string mode = n.get_string("mode", "bilinear");
  n.out(0, n.w().op("grid_sample", {n.in(0), n.in(1)},
                    {{"mode", mode == "bilinear" ? std::string("linear") : mode},
                     {"padding_mode", n.get_string("padding_mode", "zeros")},
                     {"align_corners", n.get_int("align_corners", 1)}}));
}
// roi_align(x, boxes, boxes_num): the image of box j is the number of running counts that j has passed.
void roi_align(Node& n) {
  const Val zero = n.w().int_scalar(0), one = n.w().int_scalar(1);
  const Val count = n.squeeze(n.shape_of(n.in(1), 0, 1), {0});
  Val image;
  if (n.has_in(2)) {
    const Val ends = n.w().op("cum_sum", {n.cast(n.in(2), DType::kI64), zero});
    const Val j = n.unsqueeze(n.w().op("range", {zero, count, one}), {1});
    image =
        n.w().op("reduce_sum", {n.cast(n.w().op("greater_equal", {j, ends}), DType::kI64), n.w().ints({1})},
                 {{"keepdims", int64_t{0}}});
  } else {
    image = n.w().op("constant_of_shape", {n.reshape(count, {1}), zero});
  }
  n.out(0, n.w().op("roi_align", {n.in(0), n.in(1), image},
                    {{"mode", std::string("avg")},
                     {"output_height", n.get_int("pooled_height", 1)},
                     {"output_width", n.get_int("pooled_width", 1)},
                     {"sampling_ratio", std::max<int64_t>(n.get_int("sampling_ratio", -1), 0)},
                     {"spatial_scale", n.get_float("spatial_scale", 1)},
                     {"coordinate_transformation_mode",
                      std::string(n.get_bool("aligned", true) ? "half_pixel" : "output_half_pixel")}}));
}
void pixel_shuffle(Node& n) {
  const Attrs attrs{{"blocksize", n.get_int("upscale_factor", 1)}, {"mode", std::string("CRD")}};
  with_channels_first(n, [&](Val x) { return n.w().op("depth_to_space", {x}, attrs); });
}

// ---- recurrence

// Gates of a weight or bias in the order we compute them: rows of each gate are one block.
Val reorder(Node& n, Val v, std::initializer_list<int> order) {
  if (order.size() == 1) return v;
  const auto parts = n.w().ops("split", {v, {}}, order.size(), {{"axis", int64_t{0}}});
  std::vector<Val> in_order;
  for (int k : order) in_order.push_back(parts[static_cast<size_t>(k)]);
  return n.concat(in_order);
}
// rnn(x, states[], weights[], lengths?): x is (time, batch, width). Weights of all layers and directions
// come before their biases.
void rnn(Node& n) {
  const std::string mode = n.get_string("mode", "RNN_TANH");
  const bool lstm = mode == "LSTM", gru = mode == "GRU";
  const int64_t layers = n.get_int("num_layers", 1), hidden = n.get_int("hidden_size", 0);
  const int64_t dirs = n.get_bool("is_bidirec", false) ? 2 : 1;
  const std::vector<Val> states = n.list(1), weights = n.list(2);
  n.ignore_in(4);  // the state of dropout
  if (n.get_float("dropout_prob", 0) != 0 && !n.get_bool("is_test", true))
    return n.fail(unimplemented("dropout while training; export the model for inference"));
  if (layers < 1 || layers > 1024 || hidden < 1)
    return n.fail(invalid_argument(cat(layers, " layers of width ", hidden)));
  if (static_cast<int64_t>(weights.size()) != 4 * layers * dirs) {
    return n.fail(
        invalid_argument(cat(weights.size(), " weights for ", layers, " layers in ", dirs, " directions")));
  }
  if (states.size() != (lstm ? 2u : 1u))
    return n.fail(invalid_argument(cat(states.size(), " states for ", mode)));
  // Ours are i o f c and z r h; Paddle's i f c o and r z c.
  const auto gates = [&](Val v) {
    return lstm ? reorder(n, v, {0, 3, 1, 2}) : gru ? reorder(n, v, {1, 0, 2}) : v;
  };
  Attrs attrs{{"hidden_size", hidden}, {"direction", std::string(dirs == 2 ? "bidirectional" : "forward")}};
  if (gru) attrs.set("linear_before_reset", int64_t{1});
  if (!lstm && !gru) {
    attrs.set("activations",
              std::vector<std::string>(static_cast<size_t>(dirs), mode == "RNN_RELU" ? "Relu" : "Tanh"));
  }
  Val x = n.in(0);
  const Val lengths = n.has_in(3) ? n.cast(n.in(3), DType::kI32) : Val{};
  std::vector<Val> last_h, last_c;
  for (int64_t layer = 0; layer < layers; ++layer) {
    std::vector<Val> w, r, b;
    for (int64_t d = 0; d < dirs; ++d) {
      const auto at = static_cast<size_t>(2 * (layer * dirs + d)),
                 bias = static_cast<size_t>(2 * layers * dirs) + at;
      w.push_back(n.unsqueeze(gates(weights[at]), {0}));
      r.push_back(n.unsqueeze(gates(weights[at + 1]), {0}));
      b.push_back(n.unsqueeze(n.concat({gates(weights[bias]), gates(weights[bias + 1])}), {0}));
    }
    std::vector<Val> in{x,           n.concat(w), n.concat(r),
                        n.concat(b), lengths,     n.slice(states[0], 0, layer * dirs, (layer + 1) * dirs)};
    if (lstm) in.push_back(n.slice(states[1], 0, layer * dirs, (layer + 1) * dirs));
    const auto y = n.w().ops(lstm ? "lstm" : gru ? "gru" : "rnn", in, lstm ? 3 : 2, attrs);
    x = n.reshape(n.transpose(y[0], {0, 2, 1, 3}), {0, 0, -1});
    last_h.push_back(y[1]);
    if (lstm) last_c.push_back(y[2]);
  }
  n.out(0, x);
  std::vector<Val> final{n.concat(last_h)};
  if (lstm) final.push_back(n.concat(last_c));
  n.out_list(2, std::move(final));
}

constexpr OpEntry kLayerOps[] = {
    {"batch_norm", batch_norm},
    {"bicubic_interp", bicubic_interp},
    {"bilinear_interp", bilinear_interp},
    {"conv2d", conv},
    {"conv2d_transpose", conv_transpose},
    {"conv3d", conv},
    {"deformable_conv", deformable_conv},
    {"depthwise_conv2d", conv},
    {"depthwise_conv2d_transpose", conv_transpose},
    {"dropout", dropout},
    {"grid_sample", grid_sample},
    {"group_norm", group_norm},
    {"instance_norm", instance_norm},
    {"layer_norm", layer_norm},
    {"linear_interp", linear_interp},
    {"nearest_interp", nearest_interp},
    {"pixel_shuffle", pixel_shuffle},
    {"pool2d", pool},
    {"pool3d", pool},
    {"rnn", rnn},
    {"roi_align", roi_align},
    {"sync_batch_norm", batch_norm},
    {"trilinear_interp", trilinear_interp},
};

}  // namespace

std::span<const OpEntry> layer_ops() { return kLayerOps; }

}  // namespace oar::paddle

// Images with their channels last: convolutions and what lies between them work on (N, H, W, C), the layout
// of the kernels, and the turns that files' (N, C, H, W) would cost happen only where a value enters or
// leaves such a region.
//
// One walk in order. A convolution of images (constant filters of four axes) always converts; every other op
// that can work on either layout converts when its operands already have. An operand beside such a one that
// is known to have four axes is turned: a gate of each channel, say. The converted value is a new one; the
// original is made from it by a transpose only where somebody unconverted reads it.
#include <algorithm>
#include <unordered_map>

#include "engine/base/format.h"
#include "engine/graph/pass.h"
#include "engine/graph/passes/match.h"
#include "engine/graph/passes/static_extents.h"

namespace oar::passes {
namespace {

constexpr int64_t kToLast[] = {0, 2, 3, 1}, kToFirst[] = {0, 3, 1, 2};
// Where axis k of (N, C, H, W) lies in (N, H, W, C).
constexpr int64_t kAxis[] = {0, 3, 1, 2};

// Elementwise on operand 0; further operands are scalars or nothing.
constexpr const char* kUnary[] = {"abs",      "cast",       "ceil",     "celu", "clip",         "elu",
                                  "erf",      "exp",        "floor",    "gelu", "hard_sigmoid", "hard_swish",
                                  "identity", "leaky_relu", "log",      "mish", "neg",          "reciprocal",
                                  "relu",     "round",      "rsqrt",    "selu", "sigmoid",      "sign",
                                  "silu",     "softplus",   "softsign", "sqrt", "square",       "tanh"};
constexpr const char* kBinary[] = {"add", "div", "max", "min", "mul", "pow", "sub"};
constexpr const char* kPools[] = {"average_pool", "global_average_pool", "global_max_pool", "max_pool"};

template <size_t N>
bool one_of(const Node& n, const char* const (&names)[N]) {
  return std::any_of(std::begin(names), std::end(names), [&](const char* s) { return named(n, s); });
}

class Conversion {
 public:
  explicit Conversion(Graph& g)
      : g_(g), extents_(g), transpose_(find_op("transpose")), count_(g.nodes().size()) {}

  Result<int> run() {
    dead_.assign(count_, false);
    for (size_t i = 0; i < count_; ++i) {
      // A copy: conversion appends nodes.
      const Node n = g_.nodes()[i];
      OAR_ASSIGN(const bool done, convert(n));
      if (done) {
        dead_[i] = true;
        ++converted_;
        continue;
      }
      for (ValueId v : n.inputs) restore(v);
    }
    for (const auto& o : g_.outputs()) restore(o.value);
    dead_.resize(g_.nodes().size(), false);
    g_.remove_nodes(dead_);
    g_.sort();
    return converted_;
  }

 private:
  bool last(ValueId v) const { return v != kNoValue && last_.count(v) > 0; }
  const Tensor* constant(ValueId v) const {
    if (v == kNoValue || g_.value(v).kind != ValueKind::kConstant) return nullptr;
    return &g_.value(v).constant;
  }
  static std::vector<int64_t> list(const int64_t (&p)[4]) { return {p, p + 4}; }

  // Makes the original of a converted value, once.
  void restore(ValueId v) {
    if (!last(v) || restored_.count(v)) return;
    restored_[v] = true;
    Node n{transpose_, {last_[v]}, {v}, Attrs{{"perm", list(kToFirst)}}, {}, {}};
    g_.nodes().push_back(std::move(n));
  }
  // Whether a value of the file is known to have four axes.
  bool is_image(ValueId v) const { return extents_.rank(v) == 4; }
  // The channels-last form of a value of four axes. Of a gate that is repeated for all pixels, the gate's.
  ValueId to_last(ValueId v) {
    if (last(v)) return last_[v];
    const Node* const made = extents_.maker(v);
    const auto repeated = made != nullptr && made->is("expand") && is_image(made->inputs[0])
                              ? extents_.ints(*made, 1, "shape")
                              : std::nullopt;
    ValueId out;
    if (repeated && repeated->size() == 4) {
      const OpDef* const expand = made->op;  // what is appended below may move its node
      Tensor target = must(allocate_elements({4}, DType::kI64));
      for (size_t k = 0; k < 4; ++k)
        mutable_elements<int64_t>(target)[k] = (*repeated)[static_cast<size_t>(kToLast[k])];
      const ValueId gate = to_last(made->inputs[0]);
      out = g_.append(expand, {gate, g_.add_constant("pixels", std::move(target))}, 1, {})[0];
    } else {
      out = g_.append(transpose_, {v}, 1, Attrs{{"perm", list(kToLast)}})[0];
    }
    last_[v] = out;
    restored_[v] = true;  // the original is there already
    return out;
  }
  // Appends n with other operands and attributes; its results are the channels-last form of n's.
  void emit(const Node& n, std::vector<ValueId> inputs, Attrs attrs) {
    const auto out = g_.append(n.op, std::move(inputs), n.outputs.size(), std::move(attrs), {}, n.name);
    for (size_t k = 0; k < out.size(); ++k) last_[n.outputs[k]] = out[k];
  }
  // The same where the results do not depend on the layout.
  void emit_same(const Node& n, std::vector<ValueId> inputs, Attrs attrs) {
    Node copy{n.op, std::move(inputs), n.outputs, std::move(attrs), {}, n.name};
    g_.nodes().push_back(std::move(copy));
  }

  Result<bool> convert(const Node& n) {
    if (n.inputs.empty() || n.inputs[0] == kNoValue || !n.subgraphs.empty()) return false;
    if (named(n, "conv")) return convolution(n);
    if (named(n, "quantized_conv")) return quantized(n);
    if (named(n, "conv_transpose")) return enlarging(n);
    if (one_of(n, kBinary)) return binary(n);
    if (named(n, "quantized_add")) return quantized_sum(n);
    if (named(n, "concat")) return concat(n);
    if (named(n, "transpose") && !last(n.inputs[0])) return turned_already(n);
    if (!last(n.inputs[0])) return false;
    if (one_of(n, kPools)) return pool(n);
    if (one_of(n, kUnary)) return unary(n);
    if (named(n, "quantize_linear") || named(n, "dequantize_linear")) return rescaled(n);
    if (named(n, "dynamic_quantize_linear")) return ranged(n);
    if (named(n, "resize")) return resize(n);
    if (named(n, "reduce_mean") || named(n, "reduce_max") || named(n, "reduce_sum")) return reduce(n);
    // Its kernel wants the last axis: of planes it stays there.
    if (named(n, "softmax")) return is_last(n, -1) ? Result<bool>(false) : along_axis(n, -1);
    if (named(n, "split")) return along_axis(n, 0);
    if (named(n, "slice")) return slice(n);
    if (named(n, "batch_norm")) return norm(n);
    if (named(n, "shape_of")) return shape(n);
    if (named(n, "transpose")) return turn(n);
    return false;
  }

  static bool f32_filters(const Tensor* w) {
    return w && w->shape().rank() == 4 && w->format() == Format::f32() && w->numel() > 0;
  }

  Result<bool> convolution(const Node& n) {
    const Tensor* w = constant(Matcher::operand(n, 1));
    if (!f32_filters(w)) return false;
    Attrs attrs = n.attrs;
    attrs.set("layout", std::string("nhwc"));
    std::vector<ValueId> inputs = n.inputs;
    // A residual of unknown rank cannot be turned.
    const ValueId residual = Matcher::operand(n, 3);
    if (residual != kNoValue && !last(residual) && !is_image(residual)) return false;
    if (residual != kNoValue) inputs[3] = to_last(residual);
    // The kernel itself gathers from planes where channels are few: an input image.
    constexpr int64_t kFewChannels = 4;
    const bool planar = !last(inputs[0]) && w->shape()[1] <= kFewChannels && n.attrs.get_int("group", 1) == 1;
    if (planar) attrs.set("planar_input", int64_t{1});
    else inputs[0] = to_last(inputs[0]);
    emit(n, std::move(inputs), std::move(attrs));
    return true;
  }
  Result<bool> quantized(const Node& n) {
    const Tensor* w = constant(Matcher::operand(n, 1));
    if (!w || w->shape().rank() != 4) return false;
    Attrs attrs = n.attrs;
    attrs.set("layout", std::string("nhwc"));
    std::vector<ValueId> inputs = n.inputs;
    // An operand of unknown rank cannot be turned.
    const ValueId other = Matcher::operand(n, 4);
    if (other != kNoValue && !last(other) && !is_image(other)) return false;
    if (other != kNoValue) inputs[4] = to_last(other);
    inputs[0] = to_last(inputs[0]);
    emit(n, std::move(inputs), std::move(attrs));
    return true;
  }
  Result<bool> quantized_sum(const Node& n) {
    if (n.inputs.size() != 2 || !last(n.inputs[0]) || !last(n.inputs[1])) return false;
    emit(n, {last_[n.inputs[0]], last_[n.inputs[1]]}, n.attrs);
    return true;
  }
  // To integers of the values' own range, which is no image.
  Result<bool> ranged(const Node& n) {
    if (n.outputs.size() != 3) return false;
    const ValueId codes = g_.append(n.op, {last_[n.inputs[0]]}, 3, n.attrs, {}, n.name)[0];
    std::vector<ValueId>& made = g_.nodes().back().outputs;
    std::copy(n.outputs.begin() + 1, n.outputs.end(), made.begin() + 1);
    last_[n.outputs[0]] = codes;
    return true;
  }
  // To or from integers with one scale for all.
  Result<bool> rescaled(const Node& n) {
    const Tensor* scale = constant(Matcher::operand(n, 1));
    if (!scale || scale->numel() != 1 || n.attrs.get_int("block_size") != 0) return false;
    std::vector<ValueId> inputs = n.inputs;
    inputs[0] = last_[inputs[0]];
    emit(n, std::move(inputs), n.attrs);
    return true;
  }
  Result<bool> enlarging(const Node& n) {
    const Tensor* w = constant(Matcher::operand(n, 1));
    if (!f32_filters(w) || n.attrs.get_int("group", 1) != 1) return false;
    const auto all = [&](const char* name, int64_t value) {
      const auto v = n.attrs.get_ints(name);
      return std::all_of(v.begin(), v.end(), [&](int64_t e) { return e == value; });
    };
    const auto strides = n.attrs.get_ints("strides");
    const std::string auto_pad = n.attrs.get_string("auto_pad", "NOTSET");
    // Only windows that do not overlap: what the evaluation has a product for.
    if (strides.size() != 2 || strides[0] != w->shape()[2] || strides[1] != w->shape()[3] ||
        !all("pads", 0) || !all("output_padding", 0) || !all("dilations", 1) ||
        !n.attrs.get_ints("output_shape").empty() ||
        !(auto_pad == "NOTSET" || auto_pad == "VALID" || auto_pad.empty())) {
      return false;
    }
    Attrs attrs = n.attrs;
    attrs.set("layout", std::string("nhwc"));
    std::vector<ValueId> inputs = n.inputs;
    inputs[0] = to_last(inputs[0]);
    emit(n, std::move(inputs), std::move(attrs));
    return true;
  }

  Result<bool> pool(const Node& n) {
    if (n.outputs.size() != 1) return false;  // indices count in the file's layout
    Attrs attrs = n.attrs;
    attrs.set("layout", std::string("nhwc"));
    emit(n, {last_[n.inputs[0]]}, std::move(attrs));
    return true;
  }

  Result<bool> unary(const Node& n) {
    const bool like = named(n, "cast") && n.inputs.size() > 1;  // as the type of an operand of any layout
    all_floats_ = all_floats_ && (!named(n, "cast") || like);
    std::vector<ValueId> inputs = n.inputs;
    inputs[0] = last_[inputs[0]];
    if (like && last(inputs[1])) inputs[1] = last_[inputs[1]];
    emit(n, std::move(inputs), n.attrs);
    return true;
  }

  // A constant as it meets channels-last images; kNoValue where it cannot.
  Result<ValueId> turned(ValueId v, const Attrs& attrs) {
    const Tensor* t = constant(v);
    if (!t || t->format().dtype() == DType::kString) return kNoValue;
    if (attrs.has("axis")) {
      // Aligned from the channels on: one value per channel.
      if (attrs.get_int("axis") != 1) return t->numel() == 1 && t->shape().rank() <= 1 ? v : kNoValue;
      for (int k = 1; k < t->shape().rank(); ++k) {
        if (t->shape()[k] != 1) return kNoValue;
      }
      if (t->shape().rank() == 0) return v;
      OAR_ASSIGN(Tensor flat, t->reshape({t->numel()}));
      return g_.add_constant(g_.value(v).name, std::move(flat));
    }
    const int rank = t->shape().rank();
    if (rank > 4) return kNoValue;
    if (rank == 0 || (rank == 1 && t->numel() == 1)) return v;
    std::vector<int64_t> dims(static_cast<size_t>(4 - rank), 1);
    dims.insert(dims.end(), t->shape().begin(), t->shape().end());
    const int64_t A = dims[0], C = dims[1], HW = dims[2] * dims[3];
    const Shape shape{dims[0], dims[2], dims[3], dims[1]};
    OAR_ASSIGN(Tensor out, allocate_elements(shape, t->format().dtype()));
    const auto width = static_cast<size_t>(t->format().block_bytes());
    for (int64_t a = 0; a < A; ++a) {
      for (int64_t c = 0; c < C; ++c) {
        for (int64_t p = 0; p < HW; ++p) {
          std::memcpy(mutable_elements<char>(out) + static_cast<size_t>((a * HW + p) * C + c) * width,
                      elements<char>(*t) + static_cast<size_t>((a * C + c) * HW + p) * width, width);
        }
      }
    }
    return g_.add_constant(g_.value(v).name, std::move(out));
  }

  Result<bool> binary(const Node& n) {
    if (n.inputs.size() != 2 || (!last(n.inputs[0]) && !last(n.inputs[1]))) return false;
    std::vector<ValueId> inputs = n.inputs;
    if (n.attrs.has("axis") && !(last(inputs[0]) && constant(inputs[1]))) return false;
    for (ValueId& v : inputs) {
      if (last(v)) {
        v = last_[v];
        continue;
      }
      if (constant(v) == nullptr && is_image(v)) {
        v = to_last(v);
        continue;
      }
      OAR_ASSIGN(v, turned(v, n.attrs));
      if (v == kNoValue) return false;
    }
    emit(n, std::move(inputs), {});
    return true;
  }

  static Result<int64_t> image_axis(int64_t axis) {
    if (axis < -4 || axis > 3) return invalid_argument(cat("axis ", axis, " of an image"));
    return kAxis[axis < 0 ? axis + 4 : axis];
  }

  static bool is_last(const Node& n, int64_t fallback) {
    const int64_t axis = n.attrs.get_int("axis", fallback);
    return axis == -1 || axis == 3;
  }

  Result<bool> concat(const Node& n) {
    // Where one has four axes, all have.
    std::vector<ValueId> inputs;
    const auto turned = std::count_if(n.inputs.begin(), n.inputs.end(), [&](ValueId v) { return last(v); });
    const auto axis = image_axis(n.attrs.get_int("axis"));
    if (2 * turned < static_cast<int64_t>(n.inputs.size()) || turned == 0 || !axis.ok()) return false;
    for (ValueId v : n.inputs) {
      if (v == kNoValue) return false;
    }
    for (ValueId v : n.inputs) inputs.push_back(to_last(v));
    Attrs attrs = n.attrs;
    attrs.set("axis", *axis);
    emit(n, std::move(inputs), std::move(attrs));
    return true;
  }

  // With these axes of the file's.
  Result<bool> along_axes(const Node& n, std::vector<int64_t> axes) {
    for (int64_t& a : axes) {
      const auto mapped = image_axis(a);
      if (!mapped.ok()) return false;
      a = *mapped;
    }
    Attrs attrs = n.attrs;
    attrs.set("axes", axes);
    std::vector<ValueId> inputs = n.inputs;
    inputs[0] = last_[inputs[0]];
    emit(n, std::move(inputs), std::move(attrs));
    return true;
  }

  Result<bool> resize(const Node& n) {
    std::vector<int64_t> axes = n.attrs.get_ints("axes");
    if (axes.empty()) axes = {0, 1, 2, 3};
    return along_axes(n, std::move(axes));
  }

  // Over height and width: a pool, which has a kernel, where values are floats.
  Result<bool> reduce(const Node& n) {
    std::vector<int64_t> axes = n.attrs.get_ints("axes");
    if (const ValueId v = Matcher::operand(n, 1); v != kNoValue) {
      const Tensor* t = constant(v);
      if (!t) return false;
      axes.clear();
      for (int64_t k = 0; k < t->numel(); ++k) axes.push_back(element_as_int(*t, k));
    }
    for (int64_t& a : axes) a = a < 0 ? a + 4 : a;
    std::sort(axes.begin(), axes.end());
    if (axes != std::vector<int64_t>{2, 3}) return false;
    Attrs attrs = n.attrs;
    attrs.set("axes", std::vector<int64_t>{1, 2});
    const bool keeps = n.attrs.get_int("keepdims", 1) != 0;
    if (all_floats_ && !named(n, "reduce_sum")) {
      Node whole{find_op(named(n, "reduce_max") ? "global_max_pool" : "global_average_pool"),
                 {last_[n.inputs[0]]},
                 n.outputs,
                 Attrs{{"layout", std::string("nhwc")}},
                 {},
                 n.name};
      if (keeps) {
        emit(whole, whole.inputs, whole.attrs);
        return true;
      }
      const ValueId pooled = g_.append(whole.op, whole.inputs, 1, whole.attrs, {}, n.name)[0];
      emit_same({find_op("squeeze"), {}, n.outputs, {}, {}, n.name}, {pooled},
                Attrs{{"axes", std::vector<int64_t>{1, 2}}});
      return true;
    }
    if (keeps) emit(n, {last_[n.inputs[0]]}, std::move(attrs));
    else emit_same(n, {last_[n.inputs[0]]}, std::move(attrs));  // (N, C) either way
    return true;
  }

  Result<bool> along_axis(const Node& n, int64_t fallback) {
    const auto axis = image_axis(n.attrs.get_int("axis", fallback));
    if (!axis.ok() || n.attrs.get_int("flatten") != 0) return false;
    Attrs attrs = n.attrs;
    attrs.set("axis", *axis);
    std::vector<ValueId> inputs = n.inputs;  // a split's sizes, too
    inputs[0] = last_[inputs[0]];
    emit(n, std::move(inputs), std::move(attrs));
    return true;
  }

  Result<bool> slice(const Node& n) {
    if (n.inputs.size() != 1) return false;  // what is computed, or a file's own order
    std::vector<int64_t> axes = n.attrs.get_ints("axes");
    const size_t count = n.attrs.get_ints("starts").size();
    if (!n.attrs.has("axes"))
      for (size_t k = 0; k < count; ++k) axes.push_back(static_cast<int64_t>(k));
    return along_axes(n, std::move(axes));
  }

  // x s + b with s = scale / sqrt(variance + epsilon), b = bias - mean s.
  Result<bool> norm(const Node& n) {
    const Tensor* parts[4];
    for (size_t k = 0; k < 4; ++k) {
      parts[k] = constant(Matcher::operand(n, k + 1));
      if (!parts[k] || !(parts[k]->format() == Format::f32()) || parts[k]->numel() != parts[0]->numel())
        return false;
    }
    if (n.attrs.get_int("training_mode") != 0 || n.outputs.size() != 1) return false;
    const int64_t C = parts[0]->numel();
    OAR_ASSIGN(Tensor scale, Tensor::allocate({C}, Format::f32()));
    OAR_ASSIGN(Tensor shift, Tensor::allocate({C}, Format::f32()));
    for (int64_t c = 0; c < C; ++c) {
      const auto value = [&](int k) { return element_as_double(*parts[k], c); };
      const double s = value(0) / std::sqrt(value(3) + n.attrs.get_float("epsilon", 1e-5));
      mutable_elements<float>(scale)[c] = static_cast<float>(s);
      mutable_elements<float>(shift)[c] = static_cast<float>(value(1) - value(2) * s);
    }
    const ValueId product =
        g_.append(find_op("mul"), {last_[n.inputs[0]], g_.add_constant("scale", std::move(scale))}, 1, {}, {},
                  n.name)[0];
    last_[n.outputs[0]] = g_.append(find_op("add"), {product, g_.add_constant("shift", std::move(shift))}, 1,
                                    {}, {}, n.name)[0];
    return true;
  }

  // The shape as the file means it.
  Result<bool> shape(const Node& n) {
    if (n.attrs.get_int("start", 0) != 0 || n.attrs.has("end")) return false;
    Tensor order = must(allocate_elements({4}, DType::kI64));
    std::copy(std::begin(kToFirst), std::end(kToFirst), mutable_elements<int64_t>(order));
    const ValueId own = g_.append(n.op, {last_[n.inputs[0]]}, 1, n.attrs, {}, n.name)[0];
    Node pick{find_op("gather"),
              {own, g_.add_constant("axes", std::move(order))},
              n.outputs,
              Attrs{{"axis", int64_t{0}}},
              {},
              n.name};
    g_.nodes().push_back(std::move(pick));
    return true;
  }

  // What a file turns to planes had channels last: norms along the last axis leave it so.
  Result<bool> turned_already(const Node& n) {
    if (n.attrs.get_ints("perm") != list(kToFirst)) return false;
    constexpr const char* kOfFloats[] = {"batch_norm", "gelu", "layer_norm", "linear", "rms_norm", "softmax"};
    const Node* const made = extents_.maker(n.inputs[0]);
    all_floats_ = all_floats_ && made != nullptr && one_of(*made, kOfFloats);
    last_[n.outputs[0]] = n.inputs[0];
    return true;
  }
  // A turn of what already lies turned: one turn, or none.
  Result<bool> turn(const Node& n) {
    std::vector<int64_t> perm = n.attrs.get_ints("perm");
    if (perm.size() != 4) return false;
    for (int64_t& p : perm) {
      const auto axis = image_axis(p);
      if (!axis.ok()) return false;
      p = *axis;
    }
    if (perm == std::vector<int64_t>{0, 1, 2, 3}) g_.replace_uses(n.outputs[0], last_[n.inputs[0]]);
    else emit_same(n, {last_[n.inputs[0]]}, Attrs{{"perm", perm}});
    return true;
  }

  Graph& g_;
  const StaticExtents extents_;  // of the file's values
  const OpDef* transpose_;
  size_t count_;
  int converted_ = 0;
  bool all_floats_ = true;  // what has the layout is of floats: nothing else came in, nor was it cast
  std::vector<bool> dead_;
  std::unordered_map<ValueId, ValueId> last_;  // original -> channels-last form
  std::unordered_map<ValueId, bool> restored_;
};

}  // namespace

Result<int> channels_last(Graph& graph) { return Conversion(graph).run(); }

}  // namespace oar::passes

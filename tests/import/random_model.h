// Random ONNX models of small tensors, for tests that hold two ways of running a model together. Values stay
// of moderate size and ops are continuous, so that another order of sums changes results by little.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/import/onnx_writer.h"

namespace oar_test {

class RandomModel {
 public:
  using Dims = std::vector<int64_t>;

  explicit RandomModel(uint32_t seed) : random_(seed) {
    const int inputs = pick(1, 2);
    for (int k = 0; k < inputs; ++k) {
      Dims dims = pick(0, 2) > 0 ? Dims{pick(1, 2), pick(0, 3) ? pick(1, 5) : 16, pick(3, 9), pick(3, 9)}
                                 : Dims{pick(1, 4), pick(1, 9)};
      const std::string name = "x" + std::to_string(k);
      input_protos_.push_back(value_proto(name, dims));
      input_dims_.push_back(dims);
      values_.push_back({name, std::move(dims)});
    }
    const int steps = pick(2, 12);
    for (int k = 0; k < steps; ++k) add_step(values_, nodes_, true);
    std::vector<Proto> outputs{name_proto(values_.back().name)};
    // Another value may be a result as well, and then must not be fused away.
    const Value& other = values_[static_cast<size_t>(pick(0, static_cast<int>(values_.size()) - 1))];
    if (other.name != values_.back().name && other.name[0] != 'x') outputs.push_back(name_proto(other.name));
    bytes_ = model_bytes(graph_proto(nodes_, constants_, input_protos_, outputs), 17);
  }

  const std::string& bytes() const { return bytes_; }
  const std::vector<Dims>& inputs() const { return input_dims_; }
  std::vector<float> floats(int64_t n, float scale = 1) {
    std::uniform_real_distribution<float> u(-scale, scale);
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = u(random_);
    return v;
  }

 private:
  struct Value {
    std::string name;
    Dims dims;
  };

  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  static int64_t numel(const Dims& d) {
    int64_t n = 1;
    for (int64_t v : d) n *= v;
    return n;
  }
  std::string fresh(const char* what) { return std::string(what) + std::to_string(++count_); }
  std::string constant(const Dims& dims, float scale = 1) {
    const std::string name = fresh("c");
    constants_.push_back(tensor_proto(name, dims, floats(numel(dims), scale)));
    return name;
  }
  std::string integers(const Dims& v) {
    const std::string name = fresh("i");
    constants_.push_back(ints_proto(name, v));
    return name;
  }
  std::string emit(std::vector<Proto>& nodes, const std::string& op, const std::vector<std::string>& in,
                   const std::vector<Proto>& attrs = {}) {
    const std::string out = fresh("v");
    nodes.push_back(node_proto(op, in, {out}, attrs));
    return out;
  }
  static Proto float_attr(const std::string& name, float v) {
    Proto p;
    p.text(1, name).varint(2 << 3 | 5);
    p.bytes.append(reinterpret_cast<const char*>(&v), sizeof v);
    return p.number(20, 1);
  }

  // One op, or a few that a pass may make one of, over a random value.
  void add_step(std::vector<Value>& values, std::vector<Proto>& nodes, bool control) {
    const size_t from = values.size() > 3 && pick(0, 2) > 0 ? values.size() - 3 : 0;
    const Value x =
        values[static_cast<size_t>(pick(static_cast<int>(from), static_cast<int>(values.size()) - 1))];
    const auto keep = [&](std::string name, Dims dims) {
      if (numel(dims) <= 4096) values.push_back({std::move(name), std::move(dims)});
    };
    const auto rank = static_cast<int>(x.dims.size());
    const int kind = pick(0, control ? 21 : 19);
    if (kind <= 2) return keep(activation(nodes, x.name), x.dims);
    if (kind == 3) return keep(binary(values, nodes, x), x.dims);
    if (kind <= 7 && rank == 4) return convolution(nodes, x, keep);
    if (kind == 8 && rank == 4) return pool(nodes, x, keep);
    if (kind == 9 && rank == 4) {
      const int64_t C = x.dims[1];
      std::vector<float> variance = floats(C);
      for (float& v : variance) v = v * 0.3f + 0.6f;
      const std::string name = fresh("c"), scale = constant({C}), shift = constant({C}), mean = constant({C});
      constants_.push_back(tensor_proto(name, {C}, variance));
      return keep(emit(nodes, "BatchNormalization", {x.name, scale, shift, mean, name}), x.dims);
    }
    if ((kind == 10 || kind == 11) && rank >= 2) {
      const int64_t K = x.dims.back(), N = pick(1, 8);
      Dims dims = x.dims;
      dims.back() = N;
      std::string y = emit(nodes, "MatMul", {x.name, constant({K, N}, 1.0f / static_cast<float>(K))});
      if (pick(0, 1)) y = emit(nodes, "Add", {y, constant({N})});
      return keep(y, dims);
    }
    if (kind == 12 && rank == 2) {
      const int64_t N = pick(1, 8);
      return keep(emit(nodes, "Gemm", {x.name, constant({N, x.dims[1]}, 0.4f), constant({N})},
                       {int_attr("transB", 1)}),
                  {x.dims[0], N});
    }
    if (kind == 13 && rank >= 1) return reshape(nodes, x, keep);
    if (kind == 14 && rank >= 2) {
      Dims perm(static_cast<size_t>(rank));
      for (int k = 0; k < rank; ++k) perm[static_cast<size_t>(k)] = k;
      std::shuffle(perm.begin(), perm.end(), random_);
      Dims dims;
      for (int64_t p : perm) dims.push_back(x.dims[static_cast<size_t>(p)]);
      return keep(emit(nodes, "Transpose", {x.name}, {ints_attr("perm", perm)}), dims);
    }
    if (kind == 15 && rank >= 1) return cut(nodes, x, keep);
    if (kind == 16 && rank >= 1) {
      const int64_t axis = pick(0, rank - 1);
      if (pick(0, 1)) return keep(emit(nodes, "Softmax", {x.name}, {int_attr("axis", axis)}), x.dims);
      Dims dims = x.dims;
      dims[static_cast<size_t>(axis)] = 1;
      return keep(emit(nodes, pick(0, 1) ? "ReduceMean" : "ReduceMax", {x.name}, {ints_attr("axes", {axis})}),
                  dims);
    }
    if (kind == 17 && rank >= 1) return layer_norm(nodes, x, keep);
    if (kind == 18 && rank >= 1) {
      const int64_t axis = pick(0, rank - 1);
      Dims dims = x.dims;
      dims[static_cast<size_t>(axis)] *= 2;
      return keep(emit(nodes, "Concat", {x.name, activation(nodes, x.name)}, {int_attr("axis", axis)}), dims);
    }
    if (kind == 20) return branches(nodes, x, keep);
    if (kind == 21) return loop(nodes, x, keep);
    keep(activation(nodes, x.name), x.dims);
  }

  std::string activation(std::vector<Proto>& nodes, const std::string& x) {
    switch (pick(0, 8)) {
      case 0: return emit(nodes, "Relu", {x});
      case 1: return emit(nodes, "Sigmoid", {x});
      case 2: return emit(nodes, "Tanh", {x});
      case 3: return emit(nodes, "HardSwish", {x});
      case 4: return emit(nodes, "LeakyRelu", {x}, {float_attr("alpha", 0.1f)});
      case 5: {
        const std::string low = constant({}, 0.5f), high = fresh("c");
        constants_.push_back(tensor_proto(high, {}, {0.75f}));
        return emit(nodes, "Clip", {x, low, high});
      }
      case 6: return emit(nodes, "Mul", {x, emit(nodes, "Sigmoid", {x})});
      case 7: {  // GELU as exporters spell it
        const auto number = [&](float v) {
          const std::string name = fresh("c");
          constants_.push_back(tensor_proto(name, {}, {v}));
          return name;
        };
        const std::string erf = emit(nodes, "Erf", {emit(nodes, "Div", {x, number(1.41421356f)})});
        const std::string gate = emit(nodes, "Add", {erf, number(1)});
        return emit(nodes, "Mul", {emit(nodes, "Mul", {x, gate}), number(0.5f)});
      }
      default: return emit(nodes, "Neg", {x});
    }
  }

  // With a value of the same extents, or a constant that broadcasts.
  std::string binary(const std::vector<Value>& values, std::vector<Proto>& nodes, const Value& x) {
    static constexpr const char* kOps[] = {"Add", "Sub", "Mul", "Max", "Min"};
    const char* op = kOps[pick(0, 4)];
    for (const Value& v : values) {
      if (v.dims == x.dims && v.name != x.name && pick(0, 1)) return emit(nodes, op, {x.name, v.name});
    }
    Dims dims = x.dims;
    for (int64_t& d : dims) d = pick(0, 1) ? d : 1;
    while (!dims.empty() && dims[0] == 1 && pick(0, 1)) dims.erase(dims.begin());
    // Constants may be computed from others.
    const std::string c = pick(0, 3) ? constant(dims) : emit(nodes, "Neg", {constant(dims)});
    return pick(0, 1) ? emit(nodes, op, {x.name, c}) : emit(nodes, op, {c, x.name});
  }

  template <class Keep>
  void convolution(std::vector<Proto>& nodes, const Value& x, const Keep& keep) {
    const int64_t C = x.dims[1], k = pick(1, 3), stride = pick(1, 2), dilation = k > 1 ? pick(1, 2) : 1,
                  pad = pick(0, 1);
    const bool depthwise = pick(0, 3) == 0;
    const int64_t groups = depthwise ? C : 1,
                  M = depthwise    ? C
                      : pick(0, 3) ? pick(1, 9)
                                   : pick(16, 20),
                  reach = (k - 1) * dilation + 1;
    if (x.dims[2] + 2 * pad < reach || x.dims[3] + 2 * pad < reach) return;
    const auto out = [&](int64_t in) { return (in + 2 * pad - reach) / stride + 1; };
    std::vector<std::string> in{
        x.name, constant({M, C / groups, k, k}, 1.5f / static_cast<float>(k * k * C / groups))};
    if (pick(0, 1)) in.push_back(constant({M}));
    std::string y = emit(nodes, "Conv", in,
                         {ints_attr("kernel_shape", {k, k}), ints_attr("strides", {stride, stride}),
                          ints_attr("dilations", {dilation, dilation}),
                          ints_attr("pads", {pad, pad, pad, pad}), int_attr("group", groups)});
    const Dims dims{x.dims[0], M, out(x.dims[2]), out(x.dims[3])};
    if (pick(0, 2) == 0 && dims == x.dims) y = emit(nodes, "Add", {y, x.name});
    if (pick(0, 1)) y = activation(nodes, y);
    keep(y, dims);
  }

  template <class Keep>
  void pool(std::vector<Proto>& nodes, const Value& x, const Keep& keep) {
    if (pick(0, 2) == 0)
      return keep(emit(nodes, "GlobalAveragePool", {x.name}), {x.dims[0], x.dims[1], 1, 1});
    const int64_t k = pick(1, 3), stride = pick(1, 2);
    if (x.dims[2] < k || x.dims[3] < k) return;
    const auto out = [&](int64_t in) { return (in - k) / stride + 1; };
    keep(emit(nodes, pick(0, 1) ? "MaxPool" : "AveragePool", {x.name},
              {ints_attr("kernel_shape", {k, k}), ints_attr("strides", {stride, stride})}),
         {x.dims[0], x.dims[1], out(x.dims[2]), out(x.dims[3])});
  }

  template <class Keep>
  void reshape(std::vector<Proto>& nodes, const Value& x, const Keep& keep) {
    const int cut = pick(0, static_cast<int>(x.dims.size()));
    int64_t left = 1, right = 1;
    for (size_t k = 0; k < x.dims.size(); ++k) (static_cast<int>(k) < cut ? left : right) *= x.dims[k];
    if (pick(0, 2) == 0) {
      return keep(emit(nodes, "Reshape", {x.name, integers({left, 1, right})}), {left, 1, right});
    }
    keep(emit(nodes, "Reshape", {x.name, integers(pick(0, 1) ? Dims{left, right} : Dims{left, -1})}),
         {left, right});
  }

  template <class Keep>
  void cut(std::vector<Proto>& nodes, const Value& x, const Keep& keep) {
    const auto axis = static_cast<size_t>(pick(0, static_cast<int>(x.dims.size()) - 1));
    const int64_t n = x.dims[axis];
    if (n < 2) return;
    const int64_t begin = pick(0, static_cast<int>(n) - 1),
                  end = pick(static_cast<int>(begin) + 1, static_cast<int>(n));
    Dims dims = x.dims;
    if (pick(0, 1)) {
      dims[axis] = end - begin;
      return keep(emit(nodes, "Slice",
                       {x.name, integers({begin}), integers({end}), integers({static_cast<int64_t>(axis)})}),
                  dims);
    }
    Dims indices;
    for (int k = pick(1, 4); k > 0; --k) indices.push_back(pick(0, static_cast<int>(n) - 1));
    dims[axis] = static_cast<int64_t>(indices.size());
    keep(emit(nodes, "Gather", {x.name, integers(indices)}, {int_attr("axis", static_cast<int64_t>(axis))}),
         dims);
  }

  // In one op, or in the ops of exporters.
  template <class Keep>
  void layer_norm(std::vector<Proto>& nodes, const Value& x, const Keep& keep) {
    const int64_t n = x.dims.back();
    const float epsilon = 0.1f;  // rows of equal values amplify little
    const std::string gain = constant({n}), bias = constant({n});
    if (pick(0, 1)) {
      return keep(emit(nodes, "LayerNormalization", {x.name, gain, bias}, {float_attr("epsilon", epsilon)}),
                  x.dims);
    }
    const std::string eps = fresh("c"), two = fresh("c");
    constants_.push_back(tensor_proto(eps, {}, {epsilon}));
    constants_.push_back(tensor_proto(two, {}, {2}));
    const std::string centered =
        emit(nodes, "Sub", {x.name, emit(nodes, "ReduceMean", {x.name}, {ints_attr("axes", {-1})})});
    const std::string square =
        pick(0, 1) ? emit(nodes, "Pow", {centered, two}) : emit(nodes, "Mul", {centered, centered});
    const std::string variance = emit(nodes, "ReduceMean", {square}, {ints_attr("axes", {-1})});
    const std::string deviation = emit(nodes, "Sqrt", {emit(nodes, "Add", {variance, eps})});
    std::string y = emit(nodes, "Mul", {emit(nodes, "Div", {centered, deviation}), gain});
    if (pick(0, 1)) y = emit(nodes, "Add", {y, bias});
    keep(y, x.dims);
  }

  // Steps over a captured value that leave its extents.
  std::string body(std::vector<Proto>& nodes, const Value& x) {
    std::string v = x.name;
    for (int k = pick(1, 3); k > 0; --k) {
      const int64_t K = x.dims.back();
      if (x.dims.size() >= 2 && pick(0, 2) == 0) {
        v = emit(nodes, "MatMul", {v, constant({K, K}, 1.0f / static_cast<float>(K))});
      } else if (x.dims.size() == 4 && pick(0, 1)) {
        const int64_t C = x.dims[1];
        v = emit(nodes, "Conv", {v, constant({C, C, 3, 3}, 0.2f / static_cast<float>(C))},
                 {ints_attr("kernel_shape", {3, 3}), ints_attr("pads", {1, 1, 1, 1})});
      } else {
        v = activation(nodes, v);
      }
    }
    return v;
  }

  template <class Keep>
  void branches(std::vector<Proto>& nodes, const Value& x, const Keep& keep) {
    if (x.dims.empty()) return;
    // Which branch is a question of the value.
    std::vector<Proto> yes, no;
    const std::string then_out = body(yes, x), else_out = body(no, x);
    const std::string all = emit(nodes, "ReduceSum", {x.name}, {int_attr("keepdims", 0)});
    const std::string condition = emit(nodes, "Greater", {all, constant({})});
    keep(emit(nodes, "If", {condition},
              {graph_attr("then_branch", graph_proto(yes, {}, {}, {name_proto(then_out)})),
               graph_attr("else_branch", graph_proto(no, {}, {}, {name_proto(else_out)}))}),
         x.dims);
  }

  template <class Keep>
  void loop(std::vector<Proto>& nodes, const Value& x, const Keep& keep) {
    if (x.dims.empty()) return;
    const std::string state = fresh("s"), go = fresh("g");
    std::vector<Proto> steps;
    const std::string out = body(steps, {state, x.dims}), next = emit(steps, "Identity", {go});
    const std::string index = fresh("n");
    const Proto graph = graph_proto(
        steps, {}, {value_proto(index, {}, 7), value_proto(go, {}, 9), value_proto(state, x.dims)},
        {name_proto(next), name_proto(out)});
    keep(emit(nodes, "Loop", {integers({pick(0, 3)}), "", x.name}, {graph_attr("body", graph)}), x.dims);
  }

  std::mt19937 random_;
  int count_ = 0;
  std::vector<Value> values_;
  std::vector<Proto> nodes_, constants_, input_protos_;
  std::vector<Dims> input_dims_;
  std::string bytes_;
};

}  // namespace oar_test

#include "tests/cuda/networks.h"

namespace oar_test {
using namespace oar;

std::string Bottlenecks::bytes(int64_t height, int64_t width, int64_t stem, const std::vector<Stage>& stages,
                               int64_t classes) {
  std::string x = relu(conv("x", 3, stem, 7, 2));
  nodes_.push_back(node_proto(
      "MaxPool", {x}, {"pooled"},
      {ints_attr("kernel_shape", {3, 3}), ints_attr("strides", {2, 2}), ints_attr("pads", {1, 1, 1, 1})}));
  x = "pooled";
  int64_t channels = stem;
  for (size_t s = 0; s < stages.size(); ++s) {
    for (int b = 0; b < stages[s].blocks; ++b) {
      x = block(x, channels, stages[s].width, s > 0 && b == 0 ? 2 : 1);
      channels = 4 * stages[s].width;
    }
  }
  nodes_.push_back(node_proto("GlobalAveragePool", {x}, {"means"}));
  nodes_.push_back(node_proto("Flatten", {"means"}, {"flat"}));
  weights_.push_back(weight("fc", {classes, channels}, channels));
  weights_.push_back(weight("fc_b", {classes}, 1));
  nodes_.push_back(node_proto("Gemm", {"flat", "fc", "fc_b"}, {"y"}, {int_attr("transB", 1)}));
  return model_bytes(graph_proto(nodes_, weights_, {value_proto("x", {-1, 3, height, width})},
                                 {value_proto("y", {-1, classes})}));
}

Proto Bottlenecks::weight(const std::string& name, const std::vector<int64_t>& dims, int64_t terms) {
  const Shape shape{std::span<const int64_t>(dims)};
  std::vector<float> v = random_values(static_cast<size_t>(shape.numel()), Values::kNormal, ++seed_);
  for (float& x : v) x /= std::sqrt(static_cast<float>(terms));
  return tensor_proto(name, dims, v);
}

std::string Bottlenecks::relu(const std::string& x) {
  const std::string y = named("relu");
  nodes_.push_back(node_proto("Relu", {x}, {y}));
  return y;
}

std::string Bottlenecks::conv(const std::string& x, int64_t C, int64_t M, int64_t k, int64_t stride) {
  const std::string y = named("conv"), w = y + "_w", b = y + "_b";
  weights_.push_back(weight(w, {M, C, k, k}, C * k * k));
  weights_.push_back(weight(b, {M}, 100));
  nodes_.push_back(node_proto("Conv", {x, w, b}, {y},
                              {ints_attr("kernel_shape", {k, k}), ints_attr("strides", {stride, stride}),
                               ints_attr("pads", {k / 2, k / 2, k / 2, k / 2})}));
  return y;
}

std::string Bottlenecks::block(const std::string& x, int64_t C, int64_t inside, int64_t stride) {
  const int64_t M = 4 * inside;
  const std::string straight = C == M ? x : conv(x, C, M, 1, stride);
  std::string y = relu(conv(x, C, inside, 1, 1));
  y = relu(conv(y, inside, inside, 3, stride));
  y = conv(y, inside, M, 1, 1);
  const std::string sum = named("sum");
  nodes_.push_back(node_proto("Add", {y, straight}, {sum}));
  return relu(sum);
}

void check_near(const TensorRunner& device, const TensorRunner& cpu, const std::vector<Datum>& in,
                double steps, double terms) {
  const auto expected = cpu.run(in);
  REQUIRE_OK(expected);
  for (int round = 0; round < 2; ++round) {
    const auto got = device.run(in);
    REQUIRE_OK(got);
    REQUIRE(got->size() == expected->size());
    for (size_t k = 0; k < got->size(); ++k) {
      const auto a = (*got)[k].tensor.values<float>(), b = (*expected)[k].tensor.values<float>();
      REQUIRE(a.size() == b.size());
      double most = 0, worst = 0;
      for (size_t i = 0; i < a.size(); ++i) {
        const double off = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
        most = std::max(most, std::fabs(static_cast<double>(b[i])));
        worst = off <= worst ? worst : off;  // NaN stays
      }
      INFO("output " << k << " of " << b.size() << ", up to " << most << ", off by " << worst);
      CHECK(most > 0);
      CHECK(worst <= steps * terms * std::ldexp(1.0, -24) * most);
    }
  }
}

double distance(const TensorRunner& device, const TensorRunner& cpu, const std::vector<Datum>& in) {
  const auto expected = cpu.run(in), got = device.run(in);
  REQUIRE_OK(expected);
  REQUIRE_OK(got);
  double off = 0, norm = 0;
  for (size_t k = 0; k < got->size(); ++k) {
    const auto a = (*got)[k].tensor.values<float>(), b = (*expected)[k].tensor.values<float>();
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
      off += d * d, norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
    }
  }
  return std::sqrt(off / norm);
}

std::vector<StepGroup> check_all_on_device(BothSides& sides, const Shape& x) {
  CHECK(sides.detours.said() == "");
  auto groups = sides.device->steps(std::vector<Shape>{x});
  REQUIRE_OK(groups);
  for (const StepGroup& g : *groups) {
    INFO(g.op);
    CHECK(g.on_device);
  }
  return std::move(groups).value();
}

}  // namespace oar_test

// Convolutions as they are trained, with their ways back to rows, filters and biases, by the kernels of each
// instruction set against the definition in double.
#include "engine/graph/passes/grad.h"
#include "tests/train/one_op.h"

using namespace oar;
using namespace oar_test;

namespace {

using Ints = std::vector<int64_t>;

// y = conv(x, w, b) and the gradients of the sum of y times `dy`.
Graph there_and_back(const Attrs& attrs, const Shape (&shapes)[4]) {
  Graph g;
  std::vector<Val> in;
  for (size_t k = 0; k < 4; ++k)
    in.push_back({g.add_input(std::string(1, "xwbd"[k]),
                              {Format::f32(), DimVector(shapes[k].begin(), shapes[k].end())})});
  Builder b(g);
  const Val y = b.op("conv", {in[0], in[1], in[2]}, attrs);
  REQUIRE_OK(b.status());
  g.add_output("y", y.id);
  const ValueId of[] = {y.id}, by[] = {in[0].id, in[1].id, in[2].id};
  passes::GradOptions o;
  o.seeds = {in[3].id};
  auto made = passes::grad(g, of, by, o);
  REQUIRE_OK(made);
  return std::move(*made);
}

}  // namespace

TEST_CASE("convolutions and their ways back are those of the definition, on every instruction set") {
  struct Case {
    Ints x, w;
    Attrs attrs;
  };
  const auto window = [](Ints strides, Ints pads, Ints dilations = {}, int64_t groups = 1) {
    Attrs a{{"strides", std::move(strides)}, {"pads", std::move(pads)}, {"group", groups}};
    if (!dilations.empty()) a.set("dilations", std::move(dilations));
    return a;
  };
  const std::vector<Case> cases{{{1, 1, 1, 1}, {1, 1, 1, 1}, {}},
                                {{2, 3, 9}, {4, 3, 3}, window({1}, {1, 1})},
                                {{1, 2, 3001}, {3, 2, 5}, window({2}, {2, 1})},
                                {{2, 3, 7, 9}, {5, 3, 3, 3}, window({1, 1}, {1, 1, 1, 1})},
                                {{2, 16, 11, 13}, {33, 16, 3, 3}, window({1, 1}, {1, 1, 1, 1})},
                                {{3, 5, 9, 7}, {17, 5, 3, 3}, window({2, 2}, {1, 1, 1, 1})},
                                {{2, 3, 6, 7}, {4, 3, 3, 2}, window({2, 3}, {1, 0, 0, 2}, {1, 2})},
                                {{1, 3, 13, 12}, {7, 3, 5, 5}, window({1, 1}, {4, 4, 4, 4}, {2, 2})},
                                {{2, 33, 5, 5}, {17, 33, 1, 1}, {}},
                                {{2, 33, 6, 5}, {15, 33, 1, 1}, window({2, 2}, {0, 0, 0, 0})},
                                {{1, 2, 33, 65}, {31, 2, 7, 7}, window({2, 2}, {3, 3, 3, 3})},
                                {{2, 4, 6, 5}, {6, 2, 3, 2}, window({1, 1}, {0, 1, 0, 0}, {}, 2)},
                                {{1, 34, 5, 9}, {32, 17, 3, 3}, window({2, 1}, {1, 1, 1, 1}, {1, 2}, 2)},
                                {{1, 19, 8, 9}, {19, 1, 3, 3}, window({1, 1}, {1, 1, 1, 1}, {}, 19)},
                                {{2, 17, 9, 6}, {17, 1, 3, 3}, window({2, 2}, {1, 1, 1, 1}, {}, 17)},
                                {{1, 5, 9, 11}, {10, 1, 5, 3}, window({1, 2}, {4, 1, 4, 1}, {2, 1}, 5)}};
  for (const Case& c : cases) {
    const Shape x(c.x), w(c.w), bias{w[0]};
    INFO(x.to_string() << " with " << w.to_string() << ", case " << &c - cases.data());
    Graph probe;
    Builder types(probe);
    const auto shape_of = [&](const Shape& s) {
      return Val{probe.add_input("", {Format::f32(), DimVector(s.begin(), s.end())})};
    };
    const Val made = types.op("conv", {shape_of(x), shape_of(w)}, c.attrs);
    REQUIRE_OK(types.status());
    Ints dims;
    for (const Dim& d : types.shape(made)) dims.push_back(d.const_value());
    const Shape y(dims);
    const Shape shapes[] = {x, w, bias, y};
    const Graph g = there_and_back(c.attrs, shapes);
    std::vector<Datum> inputs;
    Inputs given, sizes;
    for (size_t k = 0; k < 4; ++k) {
      const Tensor t =
          f32(shapes[k], random_values(static_cast<size_t>(shapes[k].numel()), static_cast<uint32_t>(k)));
      inputs.emplace_back(guarded(t));
      HostValue v = host(t);
      given[std::string(1, "xwbd"[k])] = v;
      // Each result is a sum of products: the sum of their sizes is that of the operands' sizes.
      for (double& number : v.f) number = std::abs(number);
      sizes[std::string(1, "xwbd"[k])] = v;
    }
    const auto want = evaluate_reference(g, given), largest = evaluate_reference(g, sizes);
    REQUIRE_OK(want);
    REQUIRE_OK(largest);
    const auto of_filter = static_cast<double>(w.numel() / w[0]),
               of_outputs = static_cast<double>(y.numel() / w[0]);
    const std::map<std::string, double> terms{
        {"y", of_filter + 1},
        {"grad/x", of_filter / static_cast<double>(w[1]) * static_cast<double>(w[0])},
        {"grad/w", of_outputs},
        {"grad/b", of_outputs}};
    std::vector<Datum> first;
    for (const auto& [isa, threads] : runs()) {
      if (threads == 1) first.clear();
      INFO(isa_name(isa) << ", threads " << threads);
      std::set<std::string> kernels;
      const auto got = run_guarded(g, inputs, {}, threads, isa, &kernels);
      REQUIRE_OK(got);
      CHECK(kernels.contains("conv"));
      // No kernel reads gaps of the transposed one's windows.
      const std::vector<int64_t> gaps = c.attrs.get_ints("dilations");
      CHECK(kernels.contains("conv_transpose") ==
            std::all_of(gaps.begin(), gaps.end(), [](int64_t d) { return d == 1; }));
      REQUIRE(got->size() == 4);
      if (first.empty()) first = *got;
      for (size_t k = 0; k < 4; ++k) {
        const std::string& name = g.outputs()[k].name;
        INFO(name);
        CHECK(in_bounds((*got)[k].tensor, {want->at(name).f, largest->at(name).f},
                        0x1p-24 * (terms.at(name) + 8)) < 1);
        CHECK(same_bits((*got)[k].tensor, first[k].tensor));
      }
    }
  }
}

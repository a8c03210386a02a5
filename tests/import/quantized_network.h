// A network of layers in 8-bit integers as quantizers of others write it: a convolution, one of channels, a
// sum, a pool and a product.
#pragma once

#include <string>
#include <vector>

#include "tests/import/onnx_writer.h"

namespace oar_test {

// x (-1, 8, 6, 7) -> y (-1, 5)
inline std::string quantized_network() {
  const auto q = [](const std::string& x, const std::string& out) {
    return node_proto("QuantizeLinear", {x, "s", "z"}, {out});
  };
  const auto dq = [](const std::string& x, const std::string& out) {
    return node_proto("DequantizeLinear", {x, "s", "z"}, {out});
  };
  std::vector<int8_t> w(8 * 8 * 9), own(8 * 9), m(8 * 5);
  for (std::vector<int8_t>* v : {&w, &own, &m}) {
    for (size_t k = 0; k < v->size(); ++k)
      (*v)[k] = static_cast<int8_t>(static_cast<int>(k * 37 % 255) - 127);
  }
  const auto pads = ints_attr("pads", {1, 1, 1, 1});
  return model_bytes(graph_proto(
      {q("x", "a"),
       dq("a", "b"),
       node_proto("DequantizeLinear", {"w", "sw"}, {"wd"}),
       node_proto("DequantizeLinear", {"bias", "sb"}, {"bd"}),
       node_proto("Conv", {"b", "wd", "bd"}, {"c"}, {pads}),
       q("c", "d"),
       dq("d", "e"),
       node_proto("DequantizeLinear", {"own", "sw"}, {"owd"}),
       node_proto("Conv", {"e", "owd"}, {"f"}, {int_attr("group", 8), pads}),
       q("f", "g"),
       dq("g", "h"),
       node_proto("Add", {"h", "e"}, {"i"}),
       q("i", "j"),
       dq("j", "k"),
       node_proto("GlobalAveragePool", {"k"}, {"l"}),
       node_proto("Flatten", {"l"}, {"n"}),
       q("n", "o"),
       dq("o", "r"),
       node_proto("DequantizeLinear", {"m", "sw"}, {"md"}),
       node_proto("MatMul", {"r", "md"}, {"y"})},
      {raw_proto<uint8_t>("z", 2, {}, {100}), tensor_proto("s", {}, {0.0625f}),
       tensor_proto("sw", {}, {0.01f}), tensor_proto("sb", {}, {0.000625f}),
       raw_proto("w", 3, {8, 8, 3, 3}, w), raw_proto("own", 3, {8, 1, 3, 3}, own),
       raw_proto("m", 3, {8, 5}, m), raw_proto<int32_t>("bias", 6, {8}, {100, -200, 300, 0, 5, -7, 900, 12})},
      {value_proto("x", {-1, 8, 6, 7})}, {value_proto("y", {-1, 5})}));
}

}  // namespace oar_test

// Static quantization: a graph of f32 gets QuantizeLinear and DequantizeLinear around its convolutions and
// products (QDQ, as ONNX spells it), with the ranges that calibration found. No pass of the usual list: the
// result is an ordinary model that any runtime reads, of which fuse_quantized then makes layers of integers.
//
//   x -> quantize (u8, one scale) -> dequantize -> conv <- dequantize <- i8 weights, a scale per filter
//                                                       <- dequantize <- i32 bias, in units of both scales
//
// Residual sums between quantized layers are quantized too, so that their neighbours hand over bytes. So is
// what only moves values: max pools, concatenations, transposes; everything else reads f32.
#pragma once

#include <functional>
#include <map>
#include <set>

#include "engine/graph/graph.h"

namespace oar::passes {

// Where a graph is quantized, by node index and value. Valid until the graph changes.
struct QuantizationSites {
  std::vector<size_t> layers, sums, moves;
  // Values that become 8-bit integers: operands of the above, in ascending order.
  std::set<ValueId> values;
  // Those that a quantized layer or sum makes: everyone reads them dequantized, so that the f32 value never
  // needs to exist.
  std::set<ValueId> made;
  // Values that share a scale, since an op moves the ones into the other: each names another of its group,
  // the last of which is in no entry.
  std::map<ValueId, ValueId> scale_of;
  ValueId group_of(ValueId v) const {
    for (auto it = scale_of.find(v); it != scale_of.end(); it = scale_of.find(v)) v = it->second;
    return v;
  }
};

// The layers are convolutions (one group, or depthwise) and products with constant finite f32 weights of an
// image or a matrix. `wanted` says which of the layers that can be quantized are to be, and which
// concatenations share a scale.
QuantizationSites find_quantization_sites(const Graph& graph, const std::function<bool(const Node&)>& wanted);

// The real values that bytes stand for, low <= 0 <= high.
struct ValueRange {
  float low = 0, high = 0;
};
// Rewrites the graph; `ranges` has all of sites.values.
Status insert_quantization(Graph& graph, const QuantizationSites& sites,
                           const std::map<ValueId, ValueRange>& ranges);

// Inference batch norms and constant sums into the filters and biases of the convolutions before them: the
// part of fuse_epilogues whose result every framework can read.
Result<int> fold_layer_constants(Graph& graph);

}  // namespace oar::passes

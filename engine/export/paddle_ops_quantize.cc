// Quantization spelled out: Paddle has no op that means what ONNX's do. Weights stay integers in the file.
#include <cmath>

#include "engine/base/format.h"
#include "engine/export/paddle_writer.h"

namespace oar::paddle {
namespace {

using Ints = std::vector<int64_t>;

// The shape in which one scale per entry of `axis`, or one for all, meets x.
Ints scale_shape(NodeWriter& n) {
  const Declared x = n.in_type(0), scale = n.in_type(1);
  if (n.attrs().get_int("block_size", 0) != 0) return n.fail("scales of blocks"), Ints{};
  if (count_of(scale.dims) == 1) return {};
  const auto at = positive_axes({n.attrs().get_int("axis", 1)}, x.rank());
  if (!at || scale.rank() != 1) return n.fail("scales that fit no axis"), Ints{};
  Ints shape(x.dims.size(), 1);
  shape[static_cast<size_t>((*at)[0])] = -1;
  if (scale.dims[0] >= 0) shape[static_cast<size_t>((*at)[0])] = scale.dims[0];
  return shape;
}
bool has_zero_point(NodeWriter& n) {
  const Tensor* z = n.known(2);
  if (!n.has(2) || z == nullptr) return n.has(2);
  for (int64_t k = 0; k < z->numel(); ++k)
    if (element_as_double(*z, k) != 0) return true;
  return false;
}

// (x - zero) * scale
void dequantize_linear(NodeWriter& n) {
  n.expect_attrs({"axis", "block_size", "output_dtype"});
  const Ints shape = scale_shape(n);
  const DType d = n.in_type(1).dtype;
  if (n.attrs().has("output_dtype") && parse_dtype(n.attrs().get_string("output_dtype")) != d)
    return n.fail("a result of another type than the scale");
  if (!n.status().ok()) return;
  ValueIndex y = n.cast(n.in(0), d);
  if (has_zero_point(n)) y = n.binary("subtract", y, n.cast(n.in_shaped(2, shape), d));
  n.out(0, n.binary("multiply", y, n.in_shaped(1, shape)));
}

// clip(round(x / scale) + zero), of 8 bits
void quantize_linear(NodeWriter& n) {
  n.expect_attrs({"axis", "block_size", "output_dtype", "saturate", "precision"});
  const Ints shape = scale_shape(n);
  DType to = DType::kU8;
  if (n.has(2)) to = n.in_type(2).dtype;
  else if (n.attrs().has("output_dtype"))
    to = parse_dtype(n.attrs().get_string("output_dtype")).value_or(DType::kString);
  const DType d = n.in_type(0).dtype;
  if ((to != DType::kU8 && to != DType::kI8) || d != DType::kF32 || n.in_type(1).dtype != d ||
      n.attrs().has("precision"))
    return n.fail("a quantization of other than f32 to 8-bit integers");
  if (!n.status().ok()) return;
  ValueIndex y = n.same("round", n.binary("divide", n.in(0), n.in_shaped(1, shape)));
  if (has_zero_point(n)) y = n.binary("add", y, n.cast(n.in_shaped(2, shape), d));
  const double low = to == DType::kI8 ? -128 : 0;
  y = n.op("clip", {y, n.number(low, d), n.number(low + 255, d)}, {}, n.type(y));
  n.out(0, n.cast(y, to));
}

constexpr OpWriterEntry kQuantizeWriters[] = {
    {"dequantize_linear", dequantize_linear},
    {"quantize_linear", quantize_linear},
};

}  // namespace

std::span<const OpWriterEntry> quantize_writers() { return kQuantizeWriters; }

}  // namespace oar::paddle

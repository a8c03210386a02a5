#include "engine/graph/passes/insert_quantization.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "engine/graph/pass.h"
#include "engine/graph/passes/absorb.h"

namespace oar::passes {
namespace {

// Sums of 8-bit products in i32: 255 * 127 * K < 2^31.
constexpr int64_t kMostProducts = 1 << 16;
// A bias takes at most half of the i32 that the sum of its products needs as well.
constexpr double kMostBias = 1 << 30;
// Scales beneath these would make subnormal products: what is as small counts as 0.
constexpr double kLeastScale = 1e-12, kLeastWeightScale = 1e-20;

bool finite(const Tensor& t) {
  const auto* p = static_cast<const float*>(t.data());
  return std::all_of(p, p + t.numel(), [](float v) { return std::isfinite(v); });
}

const char* why_not_quantized(const Matcher& m, const Node& n) {
  const bool conv = named(n, "conv");
  if (!conv && !named(n, "linear") && !named(n, "matmul")) return "it is no convolution or product";
  const LayerOperands at = layer_operands(n);
  if (!Matcher::whole(n) || n.inputs.size() < 2 || n.outputs.size() != 1 || n.inputs[0] == kNoValue)
    return "an operand is missing";
  const Tensor* w = m.f32_constant(n.inputs[at.weight]);
  if (!w || w->shape().rank() != (conv ? 4 : 2) || w->numel() == 0)
    return "the weights are no f32 constant of images or a matrix";
  if (m.constant(n.inputs[0])) return "both operands are constants";
  if (!conv && n.inputs.size() > 4) return "there are several weights";
  const Shape& s = w->shape();
  const int64_t groups = conv ? n.attrs.get_int("group", 1) : 1, M = s[filter_axis(n)];
  if (groups != 1 && (s[1] != 1 || s[0] != groups)) return "there are groups of several channels";
  if (w->numel() / M >= kMostProducts) return "a filter has 65536 values or more";
  if (!finite(*w)) return "a weight is not finite";
  const ValueId bias = Matcher::operand(n, at.bias);
  const Tensor* b = m.f32_constant(bias);
  if (bias != kNoValue && (!b || b->numel() != M || b->shape()[b->shape().rank() - 1] != M || !finite(*b)))
    return "the bias is no finite f32 constant with one number per filter";
  return nullptr;
}

// Nodes that read each value, and where a node's result goes through an activation that nobody else reads
// before it: what fuse_quantized and fuse_quantized_epilogues take into the call.
class Readers {
 public:
  Readers(const Graph& g, const Matcher& m) : g_(g), m_(m), readers_(g.num_values()) {
    for (size_t i = 0; i < g.nodes().size(); ++i) {
      for (const ValueId v : g.nodes()[i].inputs) {
        if (v != kNoValue) readers_[static_cast<size_t>(v)].push_back(i);
      }
    }
  }
  const std::vector<size_t>& of(ValueId v) const { return readers_[static_cast<size_t>(v)]; }
  // `bounds`: only of activations that are bounds, which is all that a sum of integers takes.
  ValueId end_of(const Node& n, bool bounds = false) const {
    const ValueId v = n.outputs[0];
    if (m_.uses(v) != 1 || of(v).size() != 1) return v;
    const Node& next = g_.nodes()[of(v)[0]];
    if (!Matcher::whole(next) || next.inputs[0] != v || next.outputs.size() != 1) return v;
    const auto e = ending_of(m_, next);
    return e && (!bounds || e->kind == "relu" || e->kind == "clip") ? next.outputs[0] : v;
  }

 private:
  const Graph& g_;
  const Matcher& m_;
  std::vector<std::vector<size_t>> readers_;
};

// Scale and zero point of u8 over a range.
struct ByteScale {
  double scale;
  int zero;
};
ByteScale byte_scale(ValueRange r) {
  const double low = std::min(0.0, static_cast<double>(r.low)),
               high = std::max(0.0, static_cast<double>(r.high));
  // As stored: what follows divides by this number.
  const auto scale = static_cast<double>(static_cast<float>(std::max((high - low) / 255, kLeastScale)));
  return {scale, static_cast<int>(std::clamp(std::nearbyint(-low / scale), 0.0, 255.0))};
}

template <class T>
Result<Tensor> make_constant(const Shape& shape, DType dtype, const std::vector<T>& values) {
  OAR_ASSIGN(Tensor t, Tensor::allocate(shape, Format::of(dtype)));
  std::copy(values.begin(), values.end(), static_cast<T*>(t.mutable_data()));
  return t;
}

// Ops whose results are some of their operand's values: 8-bit integers go through them as they are.
bool moves_values(const Node& n) {
  if (n.outputs.size() != 1 || n.inputs.empty()) return false;
  constexpr const char* kMoves[] = {"max_pool", "reshape",   "flatten", "transpose",
                                    "squeeze",  "unsqueeze", "concat"};
  return std::any_of(std::begin(kMoves), std::end(kMoves), [&](const char* name) { return named(n, name); });
}
bool is_sum(const Node& n) {
  return named(n, "add") && Matcher::whole(n) && n.outputs.size() == 1 && !n.attrs.has("axis");
}

class Inserter {
 public:
  Inserter(Graph& g, const QuantizationSites& sites, const std::map<ValueId, ValueRange>& ranges)
      : g_(g),
        m_(g),
        readers_(g, m_),
        sites_(sites),
        quantize_(find_op("quantize_linear")),
        dequantize_(find_op("dequantize_linear")) {
    OAR_CHECK(quantize_ && dequantize_, "the ops of quantization do not exist");
    for (const size_t i : sites.layers) quantized_.insert(i);
    for (const size_t i : sites.sums) quantized_.insert(i);
    for (const size_t i : sites.moves) quantized_.insert(i);
    for (const ValueId v : sites.values) {
      const auto it = ranges.find(v);
      OAR_CHECK(it != ranges.end(), "a value to be quantized has no range");
      ValueRange& group = ranges_[sites.group_of(v)];
      group.low = std::min(group.low, it->second.low), group.high = std::max(group.high, it->second.high);
    }
    for (const auto& o : g.outputs()) outputs_.insert(o.value);
  }

  Status run() {
    // Weights first: their scales need the operands as they were.
    for (const size_t i : sites_.layers) OAR_RETURN_IF_ERROR(weights(i));
    for (const ValueId v : sites_.values) OAR_RETURN_IF_ERROR(value(v));
    g_.sort();
    return ok_status();
  }

 private:
  ByteScale scale_of(ValueId v) const { return byte_scale(ranges_.at(sites_.group_of(v))); }

  // Pairs of quantize and dequantize behind v, which its readers read from now on.
  Status value(ValueId v) {
    const ByteScale s = scale_of(v);
    const std::string name = g_.value(v).name;
    OAR_ASSIGN(Tensor scale, make_constant<float>({}, DType::kF32, {static_cast<float>(s.scale)}));
    OAR_ASSIGN(Tensor zero, make_constant<uint8_t>({}, DType::kU8, {static_cast<uint8_t>(s.zero)}));
    const ValueId sid = g_.add_constant("", std::move(scale)), zid = g_.add_constant("", std::move(zero));
    const ValueId q = g_.append(quantize_, {v, sid, zid}, 1)[0],
                  d = g_.append(dequantize_, {q, sid, zid}, 1)[0];
    const bool all = sites_.made.count(v) > 0 && outputs_.count(v) == 0;
    for (const size_t r : readers_.of(v)) {
      Node& n = g_.nodes()[r];
      const bool layer = named(n, "conv") || named(n, "matmul") || named(n, "linear");
      for (size_t k = 0; k < n.inputs.size(); ++k) {
        if (n.inputs[k] == v && (all || (quantized_.count(r) > 0 && (!layer || k == 0)))) n.inputs[k] = d;
      }
    }
    return ok_status();
  }

  // i8 weights and an i32 bias for layer i.
  Status weights(size_t i) {
    const Node n = g_.nodes()[i];  // a copy: nodes are appended
    const LayerOperands operands = layer_operands(n);
    const Tensor w = *m_.f32_constant(n.inputs[operands.weight]);
    const ValueId bias_id = Matcher::operand(n, operands.bias);
    const Tensor bias = bias_id == kNoValue ? Tensor() : *m_.f32_constant(bias_id);
    const auto* from = static_cast<const float*>(w.data());
    const int axis = filter_axis(n);
    const int64_t M = w.shape()[axis], per = w.numel() / M;
    // Entry e of filter f: rows of a matrix with its filters in columns are M apart.
    const auto at = [&](int64_t f, int64_t e) { return axis == 0 ? f * per + e : e * M + f; };
    const double x_scale = scale_of(n.inputs[0]).scale;
    std::vector<int8_t> q(static_cast<size_t>(w.numel()));
    std::vector<float> scales, products;
    std::vector<int32_t> b;
    for (int64_t f = 0; f < M; ++f) {
      double most = 0;
      for (int64_t e = 0; e < per; ++e) most = std::max(most, std::abs(static_cast<double>(from[at(f, e)])));
      double scale = std::max(most / 127, kLeastWeightScale);
      const double added =
          bias.defined() ? static_cast<double>(static_cast<const float*>(bias.data())[f]) : 0;
      scale = std::max(scale, std::abs(added) / (x_scale * kMostBias));
      scales.push_back(static_cast<float>(scale));
      scale = static_cast<double>(scales.back());
      for (int64_t e = 0; e < per; ++e) {
        const double v = std::nearbyint(static_cast<double>(from[at(f, e)]) / scale);
        q[static_cast<size_t>(at(f, e))] = static_cast<int8_t>(std::clamp(v, -127.0, 127.0));
      }
      products.push_back(static_cast<float>(x_scale * scale));
      b.push_back(static_cast<int32_t>(std::nearbyint(added / (x_scale * scale))));
    }
    OAR_ASSIGN(const ValueId wd, dequantized(make_constant(w.shape(), DType::kI8, q), scales, DType::kI8,
                                             axis, g_.value(n.inputs[operands.weight]).name));
    ValueId bd = kNoValue;
    if (bias.defined()) {
      OAR_ASSIGN(bd, dequantized(make_constant({M}, DType::kI32, b), products, DType::kI32, 0,
                                 g_.value(bias_id).name));
    }
    Node& layer = g_.nodes()[i];
    layer.inputs[operands.weight] = wd;
    if (bd != kNoValue) layer.inputs[operands.bias] = bd;
    return ok_status();
  }

  Result<ValueId> dequantized(Result<Tensor> q, const std::vector<float>& scales, DType dtype, int axis,
                              const std::string& name) {
    OAR_RETURN_IF_ERROR(q.status());
    const auto M = static_cast<int64_t>(scales.size());
    OAR_ASSIGN(Tensor scale, make_constant<float>({M}, DType::kF32, scales));
    std::vector<ValueId> in = {g_.add_constant(name, std::move(*q)), g_.add_constant("", std::move(scale))};
    // Others want a zero point of weights spelled out; a bias never has one.
    if (dtype == DType::kI8) {
      OAR_ASSIGN(Tensor zero, make_constant({M}, dtype, std::vector<int8_t>(scales.size())));
      in.push_back(g_.add_constant("", std::move(zero)));
    }
    return g_.append(dequantize_, std::move(in), 1, Attrs{{"axis", int64_t{axis}}})[0];
  }

  Graph& g_;
  const Matcher m_;
  const Readers readers_;
  const QuantizationSites& sites_;
  std::map<ValueId, ValueRange> ranges_;  // by group
  const OpDef *quantize_, *dequantize_;
  std::set<size_t> quantized_;
  std::set<ValueId> outputs_;
};

}  // namespace

QuantizationSites find_quantization_sites(const Graph& graph,
                                          const std::function<bool(const Node&)>& wanted) {
  const Matcher m(graph);
  const Readers readers(graph, m);
  QuantizationSites s;
  // Values that come as bytes where they are wanted so: results of layers, and of sums and moves of such.
  std::set<ValueId> bytes;
  const auto moved = [](const Node& n) {
    return std::span(n.inputs).first(named(n, "concat") ? n.inputs.size()
                                                        : std::min<size_t>(n.inputs.size(), 1));
  };
  const auto all_bytes = [&](std::span<const ValueId> values) {
    return std::all_of(values.begin(), values.end(), [&](ValueId v) { return bytes.count(v) > 0; });
  };
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& n = graph.nodes()[i];
    if (!why_not_quantized(m, n)) {
      if (!wanted(n)) continue;
      s.layers.push_back(i);
      s.values.insert(n.inputs[0]);
      bytes.insert(readers.end_of(n));
    } else if (is_sum(n)) {
      if (all_bytes(n.inputs)) bytes.insert(readers.end_of(n, true));
    } else if (moves_values(n) && all_bytes(moved(n)) && (!named(n, "concat") || wanted(n))) {
      bytes.insert(n.outputs[0]);
    }
  }
  // From the last node to the first: a sum or move is quantized because its result is, which makes values of
  // its operands.
  for (size_t i = graph.nodes().size(); i-- > 0;) {
    const Node& n = graph.nodes()[i];
    if (is_sum(n)) {
      const ValueId end = readers.end_of(n, true);
      const auto fits = [&](ValueId v) {
        return v != kNoValue && (bytes.count(v) > 0 || s.values.count(v) > 0);
      };
      if (s.values.count(end) == 0 || !std::all_of(n.inputs.begin(), n.inputs.end(), fits)) continue;
      s.sums.push_back(i);
      s.values.insert(n.inputs.begin(), n.inputs.end());
      bytes.insert(end);
    } else if (moves_values(n) && s.values.count(n.outputs[0]) > 0 && bytes.count(n.outputs[0]) > 0) {
      s.moves.push_back(i);
      for (const ValueId v : moved(n)) {
        s.values.insert(v);
        const ValueId from = s.group_of(v), to = s.group_of(n.outputs[0]);
        if (from != to) s.scale_of[to] = from;
      }
    }
  }
  for (const ValueId v : s.values) {
    if (bytes.count(v) > 0) s.made.insert(v);
  }
  return s;
}

Status insert_quantization(Graph& graph, const QuantizationSites& sites,
                           const std::map<ValueId, ValueRange>& ranges) {
  OAR_RETURN_IF_ERROR(Inserter(graph, sites, ranges).run());
  return dce(graph).status();
}

}  // namespace oar::passes

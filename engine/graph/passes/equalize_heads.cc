// equalize_heads: a scale for each channel of the transforms that rotate_values and rotate_queries_keys put
// around attention. A rotation spreads a head's large channels over all of them, and every one pays for
// them; where queries are as much smaller as keys are larger (or the output projection's columns as values),
// the imbalance is the basis alone, and dividing it out first costs nothing: q . k = (s q) . (k / s). The
// transforms multiply by signs already where they have any; the scale takes the same place.
//
// The scales come from the weights that write the channels and those that read what is kept
// (engine/ops/equalize.cc has the formula). They need not be right: any scale leaves the model's function as
// it is, an estimate far off only spends levels badly.
//
// Where weights cannot be traced (no linear layer behind the heads), heads stay as they are.
#include <algorithm>
#include <optional>
#include <set>

#include "engine/base/format.h"
#include "engine/graph/cut.h"
#include "engine/graph/op.h"
#include "engine/graph/passes/rotate.h"
#include "engine/graph/weights.h"

namespace oar::passes {
namespace {

// How a linear layer writes the channels of heads: its matrix and what stands around it.
struct Written {
  ValueId w = kNoValue, gain = kNoValue, bias = kNoValue, head_norm = kNoValue, inv_freq = kNoValue;
  bool interleaved = false;
  int64_t begin = 0, end = 0;  // rows
  size_t linear = 0;           // node
};

// The graph as the passes before left it; what is added here is not looked at.
class Equalizer {
 public:
  explicit Equalizer(Graph& graph) : graph_(graph), producer_(graph.producers()), uses_(graph.use_counts()) {}

  // Both return whether a scale was found. `mean_tokens`: RotationOptions::key_mean_tokens of this layer.
  Result<bool> keys(size_t attention, int64_t mean_tokens);
  Result<bool> values(size_t attention);

 private:
  int maker(ValueId v) const {
    return v == kNoValue || static_cast<size_t>(v) >= producer_.size() ? -1 : producer_[v];
  }
  const Node* made_by(ValueId v) const {
    const int i = maker(v);
    return i < 0 ? nullptr : &graph_.nodes()[static_cast<size_t>(i)];
  }
  // The only node that reads v, if there is one.
  std::optional<size_t> reader(ValueId v) const;
  // A transform that has no scale yet.
  std::optional<size_t> transform_of(ValueId v, bool columns) const;
  // A weight before norms were folded into it (its gain, then, is `gain`) and rotations: neither changes the
  // sums of squares that are asked for.
  ValueId stored(ValueId weight, ValueId* gain = nullptr) const;
  std::optional<Written> written(ValueId heads) const;
  // Its weight's column_power; kNoValue where `heads` is read by more or by something else. `linear`: the
  // node.
  Result<ValueId> read_power(ValueId heads, size_t* linear);
  Result<ValueId> row_power(const Written& w, bool with_bias);
  Result<ValueId> scale(const Written& kept, ValueId kept_power, ValueId read_power, ValueId bias,
                        int64_t mean_tokens, int64_t head, const char* of);
  Result<ValueId> add(std::string_view op, std::vector<ValueId> inputs, Attrs attrs = {}) {
    OAR_ASSIGN(const auto out, graph_.add_node(find_op(op), std::move(inputs), std::move(attrs)));
    return out[0];
  }
  void attach(size_t transform, ValueId scale, int64_t head, bool divide) {
    Node& n = graph_.nodes()[transform];
    n.inputs.push_back(scale);
    n.attrs.set("head", head);
    if (divide) n.attrs.set("divide", int64_t{1});
  }
  int64_t head_size(ValueId heads) const { return graph_.value(heads).type.shape.back().const_value(); }

  Graph& graph_;
  const std::vector<int> producer_, uses_;
};

std::optional<size_t> Equalizer::reader(ValueId v) const {
  if (v == kNoValue || static_cast<size_t>(v) >= uses_.size() || uses_[v] != 1) return std::nullopt;
  for (size_t i = 0; i < graph_.nodes().size(); ++i) {
    const auto& in = graph_.nodes()[i].inputs;
    if (std::find(in.begin(), in.end(), v) != in.end()) return i;
  }
  return std::nullopt;  // an output of the graph
}

std::optional<size_t> Equalizer::transform_of(ValueId v, bool columns) const {
  const Node* n = made_by(v);
  const bool fits = n && n->is("hadamard") && n->inputs.size() == 1 && uses_[v] == 1 &&
                    (n->attrs.get_int("axis", -1) == 0) == columns;
  return fits ? std::optional(static_cast<size_t>(maker(v))) : std::nullopt;
}

ValueId Equalizer::stored(ValueId weight, ValueId* gain) const {
  while (weight != kNoValue && graph_.value(weight).kind != ValueKind::kConstant) {
    const Node* n = made_by(weight);
    if (!n) return kNoValue;
    // A matrix that is stored (in, out), where nothing has turned it for good.
    if (n->is("transpose") && graph_.value(n->inputs[0]).kind == ValueKind::kConstant) return weight;
    if (n->is("mul") && gain) *gain = n->inputs[1];
    else if (!n->is("hadamard")) return kNoValue;
    weight = n->inputs[0];
  }
  return weight;
}

std::optional<Written> Equalizer::written(ValueId heads) const {
  Written w;
  const Node* n = made_by(heads);
  if (n && n->is("rope") && n->inputs.size() == 4) {
    w.inv_freq = n->inputs[2];
    w.interleaved = n->attrs.get_bool("interleaved");
    w.head_norm = n->inputs[3];
    n = made_by(n->inputs[0]);
  }
  if (n && n->is("rms_norm") && w.head_norm == kNoValue) {
    w.head_norm = n->inputs[1];
    n = made_by(n->inputs[0]);
  }
  if (!n || !n->is("reshape")) return std::nullopt;
  const ValueId flat = n->inputs[0];
  if (graph_.value(flat).type.shape.size() != 2) return std::nullopt;
  w.end = graph_.value(flat).type.shape[1].const_value();
  ValueId y = flat;
  if (n = made_by(y); n && n->is("slice")) {
    const auto cut = cut_of(graph_, *n);
    if (!cut) return std::nullopt;
    w.begin = cut->begin;
    w.end = cut->end;
    y = n->inputs[0];
  }
  n = made_by(y);
  if (!n || !n->is("linear") || n->inputs.size() != 4 || n->inputs[1] != kNoValue) return std::nullopt;
  w.linear = static_cast<size_t>(maker(y));
  if (const Node* norm = made_by(n->inputs[0]); norm && (norm->is("rms_norm") || norm->is("layer_norm")))
    w.gain = norm->inputs[1];
  w.w = stored(n->inputs[2], &w.gain);
  w.bias = stored(n->inputs[3]);
  const auto usable = [&](ValueId v) {
    return v == kNoValue || graph_.value(v).kind == ValueKind::kConstant;
  };
  if (w.w == kNoValue || !usable(w.gain) || !usable(w.head_norm) || !usable(w.inv_freq)) return std::nullopt;
  return w;
}

Result<ValueId> Equalizer::read_power(ValueId heads, size_t* linear) {
  const auto reshape = reader(heads);
  if (!reshape || !graph_.nodes()[*reshape].is("reshape")) return kNoValue;
  const auto i = reader(graph_.nodes()[*reshape].outputs[0]);
  if (!i) return kNoValue;
  const Node& n = graph_.nodes()[*i];
  if (!n.is("linear") || n.inputs.size() != 4 || n.inputs[0] != graph_.nodes()[*reshape].outputs[0])
    return kNoValue;
  *linear = *i;
  const ValueId w = stored(n.inputs[2]);
  return w == kNoValue ? Result<ValueId>(kNoValue) : add("column_power", {w});
}

Result<ValueId> Equalizer::row_power(const Written& w, bool with_bias) {
  return add("row_power", {w.w, w.gain, with_bias ? w.bias : kNoValue, w.head_norm},
             {{"begin", w.begin}, {"end", w.end}});
}

Result<ValueId> Equalizer::scale(const Written& kept, ValueId kept_power, ValueId read_power, ValueId bias,
                                 int64_t mean_tokens, int64_t head, const char* of) {
  OAR_ASSIGN(
      const ValueId s,
      add("equalizing_scale", {kept_power, read_power, bias, kept.inv_freq},
          {{"head", head}, {"interleaved", int64_t{kept.interleaved ? 1 : 0}}, {"page", mean_tokens}}));
  // A name of its own: named after its first operand it would pass for that weight, which may make both keys
  // and values.
  const ValueId source = weight_source(graph_, graph_.nodes(), kept.w);
  graph_.value(s).name = cat(graph_.value(source).name, " (scale of ", of, ")");
  return s;
}

Result<bool> Equalizer::keys(size_t attention, int64_t mean_tokens) {
  const ValueId q = graph_.nodes()[attention].inputs[0], k = graph_.nodes()[attention].inputs[1];
  const auto q_transform = transform_of(q, false), k_transform = transform_of(k, false);
  if (!q_transform || !k_transform) return false;
  const auto query = written(graph_.nodes()[*q_transform].inputs[0]),
             key = written(graph_.nodes()[*k_transform].inputs[0]);
  if (!query || !key) return false;
  OAR_ASSIGN(const ValueId read, row_power(*query, true));
  // Apart from the rest, as a mean may take it off; behind a norm of heads a bias is no constant.
  ValueId bias = key->head_norm == kNoValue ? key->bias : kNoValue;
  OAR_ASSIGN(const ValueId kept, row_power(*key, bias == kNoValue));
  if (bias != kNoValue) { OAR_ASSIGN(bias, add("slice", {bias}, cut_attrs(0, key->begin, key->end))); }
  OAR_ASSIGN(const ValueId s, scale(*key, kept, read, bias, mean_tokens, head_size(k), "keys"));
  attach(*q_transform, s, head_size(k), false);
  attach(*k_transform, s, head_size(k), true);
  return true;
}

Result<bool> Equalizer::values(size_t attention) {
  const ValueId v = graph_.nodes()[attention].inputs[2], out = graph_.nodes()[attention].outputs[0];
  const int64_t head = head_size(v);
  size_t linear = 0;
  if (const auto before = transform_of(v, false)) {  // online
    const auto after = reader(out);
    if (!after || !graph_.nodes()[*after].is("hadamard") || graph_.nodes()[*after].inputs.size() != 1)
      return false;
    const auto value = written(graph_.nodes()[*before].inputs[0]);
    if (!value) return false;
    OAR_ASSIGN(const ValueId read, read_power(graph_.nodes()[*after].outputs[0], &linear));
    if (read == kNoValue) return false;
    OAR_ASSIGN(const ValueId kept, row_power(*value, true));
    OAR_ASSIGN(const ValueId s, scale(*value, kept, read, kNoValue, 0, head, "values"));
    attach(*before, s, head, true);
    attach(*after, s, head, false);
    return true;
  }
  // In the weights: of the layer that writes the heads by its rows, of the one that reads them by its
  // columns. Nothing is added before all of them are found.
  const auto value = written(v);
  if (!value) return false;
  const std::vector<ValueId> writer = graph_.nodes()[value->linear].inputs;
  const auto rows = transform_of(writer[2], true), bias = transform_of(writer[3], true);
  if (!rows || (writer[3] != kNoValue && !bias)) return false;
  const auto reshape = reader(out);
  const auto o = reshape ? reader(graph_.nodes()[*reshape].outputs[0]) : std::nullopt;
  if (!o || !graph_.nodes()[*o].is("linear")) return false;
  const auto columns = transform_of(graph_.nodes()[*o].inputs[2], false);
  if (!columns) return false;
  OAR_ASSIGN(const ValueId read, read_power(out, &linear));
  if (read == kNoValue) return false;
  OAR_ASSIGN(const ValueId kept, row_power(*value, true));
  OAR_ASSIGN(const ValueId s, scale(*value, kept, read, kNoValue, 0, head, "values"));
  attach(*rows, s, head, true);
  if (bias) attach(*bias, s, head, true);
  attach(*columns, s, head, false);
  return true;
}

}  // namespace

Result<int> equalize_heads(Graph& graph, const RotationOptions& options) {
  if (!options.equalize || !(options.queries_keys || options.values)) return 0;
  Equalizer equalizer(graph);
  int layers = 0;
  std::set<ValueId> kept;  // keys, each with the entry of its layer
  const size_t count = graph.nodes().size();
  for (size_t i = 0; i < count; ++i) {
    if (!graph.nodes()[i].is("attention") || graph.nodes()[i].inputs[2] == kNoValue) continue;
    const auto& means = options.key_mean_tokens;
    kept.insert(graph.nodes()[i].inputs[1]);
    const int64_t mean = means.empty() ? 0 : means[std::min(kept.size(), means.size()) - 1];
    OAR_ASSIGN(const bool keys, equalizer.keys(i, mean));
    OAR_ASSIGN(const bool values, equalizer.values(i));
    layers += keys || values ? 1 : 0;
  }
  graph.sort();
  return layers;
}

}  // namespace oar::passes

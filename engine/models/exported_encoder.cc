#include "engine/models/exported_encoder.h"

#include <cmath>
#include <map>
#include <random>

#include "engine/base/format.h"
#include "engine/graph/builder.h"
#include "engine/graph/evaluate.h"
#include "engine/graph/op.h"
#include "engine/tensor/element.h"

namespace oar {
namespace {

// Up to so long a text is tried: a mask of its square must stay small.
constexpr int64_t kLongestSample = 1024;
// Padding is hidden where this or less is added to a score.
constexpr double kHidden = -9999;

// What the file would be asked: columns whose mask is 0 are padding.
struct Sample {
  int64_t B = 0, S = 0;
  std::vector<int64_t> ids, mask, types;
  bool seen(int64_t b, int64_t s) const { return mask[static_cast<size_t>(b * S + s)] != 0; }
};

// Ids are none of the first, among which padding is: some files find it by its id.
Sample make_sample(int64_t B, int64_t S, int64_t vocab) {
  Sample out{B, S, {}, {}, {}};
  std::mt19937 random(static_cast<uint32_t>(S));
  const int64_t first = vocab > 10 ? 5 : vocab - 1;
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t s = 0; s < S; ++s) {
      out.ids.push_back(first + static_cast<int64_t>(random() % static_cast<uint64_t>(vocab - first)));
      // The first row is whole, the second ends early, the third has a hole.
      out.mask.push_back(b == 1 ? s < (S + 1) / 2 : b == 2 ? s % 3 != 1 : 1);
      out.types.push_back(0);
    }
  }
  return out;
}

Tensor integers(const std::vector<int64_t>& values, const Shape& shape) {
  Tensor t = must(allocate_elements(shape, DType::kI64));
  std::copy(values.begin(), values.end(), mutable_elements<int64_t>(t));
  return t;
}

// What a value of the file is here.
struct Traced {
  enum class Kind : uint8_t {
    kNone,
    kIndex,  // made of inputs, sizes and constants: evaluated where somebody reads it as rows
    kRows,   // (B, S, ...), here (T, ...)
    kFirst,  // (B, ...): of each text's first token
  };
  Kind kind = Kind::kNone;
  Val val;
};
using Kind = Traced::Kind;

class ExportedRows {
 public:
  ExportedRows(const Graph& from, const EncoderOperands& operands, int64_t run_tokens)
      : from_(from),
        operands_(operands),
        run_tokens_(run_tokens),
        b_(out_.built.graph),
        traced_(from.num_values()) {}
  Result<ExportedEncoder> pack();

 private:
  Status node(const Node& n);
  Result<Traced> packed(const Node& n);
  Result<Traced> gather(const Node& n);
  Result<Traced> linear(const Node& n);
  Result<Traced> sum(const Node& n);
  Result<Traced> norm(const Node& n);
  Result<Traced> reshape(const Node& n);
  Result<Traced> attention(const Node& n);
  Status check_mask(ValueId mask);
  Status find_vocabulary();
  Status finish();

  // Index value `v` where the file's inputs are `sample`; `reads` receives which inputs' values it depends
  // on.
  Result<Tensor> evaluate(ValueId v, const Sample& sample, std::vector<bool>* reads = nullptr) const;

  bool given(const Node& n, size_t k) const { return k < n.inputs.size() && n.inputs[k] != kNoValue; }
  const Traced& traced(ValueId v) const { return traced_[static_cast<size_t>(v)]; }
  bool is_input(ValueId v, int operand) const {
    return operand >= 0 && from_.inputs()[static_cast<size_t>(operand)] == v;
  }
  const Tensor* constant(const Node& n, size_t k) const {
    if (!given(n, k)) return nullptr;
    const Value& v = from_.value(n.inputs[k]);
    return v.kind == ValueKind::kConstant && v.constant.format() == Format::f32() ? &v.constant : nullptr;
  }
  int rank(Val v) const { return static_cast<int>(out_.built.graph.value(v.id).type.shape.size()); }
  int64_t extent(Val v, int axis) const {
    return out_.built.graph.value(v.id).type.shape[static_cast<size_t>(axis)].const_value();
  }
  Status refuse(const Node& n, const std::string& why) const {
    return unimplemented(cat(n.op->name, n.name.empty() ? "" : cat(" '", n.name, "'"), ": ", why));
  }
  Val input(const char* name, SymbolId rows) {
    return {out_.built.graph.add_input(name, {Format::i32(), {out_.built.graph.dim(rows)}})};
  }
  // A weight of the file, once; `turned`: the file has (K, N) where layers read (N, K).
  Val weight(ValueId v, const Shape& shape, bool turned);
  Val vector(ValueId v);
  Val activated(Val x, const Attrs& attrs);

  const Graph& from_;
  const EncoderOperands operands_;
  const int64_t run_tokens_;
  ExportedEncoder out_;
  Builder b_;
  std::vector<Traced> traced_;  // by value of `from`
  std::map<std::pair<ValueId, bool>, Val> weights_;
  std::map<ValueId, bool> masks_;  // that were found to hide padding
  Val tokens_, positions_, segments_, types_, first_rows_;
};

Val ExportedRows::weight(ValueId v, const Shape& shape, bool turned) {
  Val& made = weights_[{v, turned}];
  if (made) return made;
  const Value& value = from_.value(v);
  Tensor t = value.constant;
  if (turned) {
    const int64_t K = t.shape()[0], N = t.shape()[1];
    t = must(Tensor::allocate({N, K}, Format::f32()));
    const float* from = value.constant.values<float>().data();
    float* to = t.mutable_values<float>().data();
    for (int64_t n = 0; n < N; ++n)
      for (int64_t k = 0; k < K; ++k) to[n * K + k] = from[k * N + n];
    value.constant.buffer().release_pages();
  } else if (!(t.shape() == shape)) {
    t = must(t.reshape(shape));
  }
  // A name says which weight it is: passes may have left two of one name.
  return made = b_.constant(cat(value.name.empty() ? "weight" : value.name, ".", v), std::move(t));
}

Val ExportedRows::vector(ValueId v) {
  return v == kNoValue ? Val{} : weight(v, {from_.value(v).constant.numel()}, false);
}

Result<Tensor> ExportedRows::evaluate(ValueId wanted, const Sample& sample, std::vector<bool>* reads) const {
  std::vector<bool> needed(from_.num_values(), false);
  needed[static_cast<size_t>(wanted)] = true;
  const auto& nodes = from_.nodes();
  const auto makes_needed = [&](const Node& n) {
    return std::any_of(n.outputs.begin(), n.outputs.end(),
                       [&](ValueId v) { return v != kNoValue && needed[static_cast<size_t>(v)]; });
  };
  for (size_t i = nodes.size(); i-- > 0;) {
    if (!makes_needed(nodes[i])) continue;
    for (const ValueId v : nodes[i].inputs)
      if (v != kNoValue) needed[static_cast<size_t>(v)] = true;
  }
  auto graph = std::make_shared<Graph>();
  std::vector<ValueId> at(from_.num_values(), kNoValue);
  const std::vector<int64_t>* const values[] = {&sample.ids, &sample.mask, &sample.types};
  const int operands[] = {operands_.ids, operands_.mask, operands_.types};
  for (size_t k = 0; k < 3; ++k) {
    if (operands[k] < 0) continue;
    const ValueId v = from_.inputs()[static_cast<size_t>(operands[k])];
    at[static_cast<size_t>(v)] = graph->add_constant("", integers(*values[k], {sample.B, sample.S}));
  }
  for (size_t v = 0; v < needed.size(); ++v) {
    const Value& value = from_.value(static_cast<ValueId>(v));
    const Traced& here = traced_[v];
    if (!needed[v]) continue;
    if (value.kind == ValueKind::kConstant) {
      at[v] = graph->add_constant(value.name, value.constant);
    } else if (here.kind == Kind::kRows || here.kind == Kind::kFirst) {
      // Only sizes are asked of it, or node() had made rows of the reader too.
      std::vector<int64_t> dims{sample.B};
      if (here.kind == Kind::kRows) dims.push_back(sample.S);
      for (int axis = 1; axis < rank(here.val); ++axis) dims.push_back(extent(here.val, axis));
      OAR_ASSIGN(Tensor sizes, Tensor::zeros(Shape(dims), Format::f32()));
      at[v] = graph->add_constant("", std::move(sizes));
    }
  }
  for (const Node& n : nodes) {
    if (!makes_needed(n) || std::any_of(n.outputs.begin(), n.outputs.end(), [&](ValueId v) {
          return v != kNoValue && at[static_cast<size_t>(v)] != kNoValue;
        }))
      continue;
    std::vector<ValueId> inputs;
    for (const ValueId v : n.inputs) {
      inputs.push_back(v == kNoValue ? kNoValue : at[static_cast<size_t>(v)]);
      if (reads == nullptr || v == kNoValue || n.is("shape_of")) continue;
      for (size_t k = 0; k < 3; ++k)
        if (is_input(v, operands[k])) (*reads)[k] = true;
    }
    const auto made = graph->append(n.op, std::move(inputs), n.outputs.size(), n.attrs, n.subgraphs, n.name);
    for (size_t k = 0; k < made.size(); ++k)
      if (n.outputs[k] != kNoValue) at[static_cast<size_t>(n.outputs[k])] = made[k];
  }
  graph->add_output("value", at[static_cast<size_t>(wanted)]);
  OAR_ASSIGN(const auto evaluator, Evaluator::create(graph));
  OAR_ASSIGN(const std::vector<Datum> result, evaluator->run({}, {}));
  if (!result[0].is_tensor()) return unimplemented("an index that is no tensor");
  return result[0].tensor;
}

// Rows of a table: by ids, by types, or by what counts columns.
Result<Traced> ExportedRows::gather(const Node& n) {
  if (traced(n.inputs[0]).kind == Kind::kRows) {
    const Value& index = from_.value(n.inputs[1]);
    const bool first = n.attrs.get_int("axis") == 1 && index.kind == ValueKind::kConstant &&
                       index.constant.shape().rank() == 0 && element_as_int(index.constant, 0) == 0;
    if (!first || rank(traced(n.inputs[0]).val) != 2)
      return refuse(n, "rows other than a text's first are taken");
    if (!first_rows_) first_rows_ = input("first_rows", out_.built.B);
    return Traced{Kind::kFirst, b_.op("gather", {traced(n.inputs[0]).val, first_rows_})};
  }
  const Tensor* const table = constant(n, 0);
  if (!table || table->shape().rank() != 2 || n.attrs.get_int("axis") != 0)
    return refuse(n, "an operand of more than one text is looked up");
  const int64_t rows = table->shape()[0];
  const auto by = [&](Val ids) {
    return Traced{Kind::kRows, b_.op("embedding", {weight(n.inputs[0], table->shape(), false), ids})};
  };
  const ValueId index = n.inputs[1];
  if (is_input(index, operands_.ids)) return by(tokens_);
  const auto by_type = [&] {
    if (!types_) types_ = input("types", out_.built.T);
    out_.config.types = out_.config.types == 0 ? rows : std::min(rows, out_.config.types);
    return by(types_);
  };
  if (is_input(index, operands_.types)) return by_type();
  if (traced(index).kind != Kind::kIndex) return refuse(n, "a table is looked up by what is no index");
  // Of a short sample first, then of the longest text there is a position for.
  int64_t first = 0;
  bool counted = true;
  for (int64_t S = 7; S > 0;) {
    const Sample sample = make_sample(S == 7 ? 3 : 1, S, out_.config.vocab);
    OAR_ASSIGN(const Tensor t, evaluate(index, sample));
    const Shape& shape = t.shape();
    const bool shared = shape.rank() == 1 || (shape.rank() == 2 && shape[0] == 1);
    if (!dtype_is_integer(t.format().dtype()) || shape.rank() < 1 || shape.rank() > 2 ||
        shape[shape.rank() - 1] != S || (!shared && shape[0] != sample.B))
      return refuse(n, "a table is looked up by other than an index a token");
    const auto at = [&](int64_t b, int64_t s) { return element_as_int(t, (shared ? 0 : b * S) + s); };
    if (S == 7) first = at(0, 0), counted = at(0, 1) != first;
    for (int64_t b = 0; b < sample.B; ++b) {
      for (int64_t s = 0; s < S; ++s) {
        if (sample.seen(b, s) && at(b, s) != (counted ? first + s : 0))
          return refuse(n, "a table is looked up neither by ids or types nor by the column");
      }
    }
    S = S == 7 && counted ? std::min(kLongestSample, rows - first) : 0;
  }
  if (!counted) return by_type();  // a file without types, whose texts are all of the first
  if (first < 0 || first >= rows) return refuse(n, "positions begin outside their table");
  if (out_.config.max_context > 0) return refuse(n, "a second table of positions");
  out_.config.max_context = rows, out_.config.first_position = first;
  return by(positions_);
}

Val ExportedRows::activated(Val x, const Attrs& attrs) {
  const std::string kind = attrs.get_string("activation");
  if (kind.empty()) return x;
  if (kind == "gelu_tanh") return b_.op("gelu", {x}, {{"approximate", std::string("tanh")}});
  if (kind == "gelu" || kind == "relu" || kind == "tanh" || kind == "silu" || kind == "sigmoid")
    return b_.op(kind, {x});
  b_.fail(unimplemented(cat("a layer that ends with ", kind)));
  return {};
}

Result<Traced> ExportedRows::linear(const Node& n) {
  const Traced& x = traced(n.inputs[0]);
  const Tensor* const w = constant(n, 2);
  if (n.inputs.size() != 4 || !w || w->shape().rank() != 2 || rank(x.val) != 2)
    return refuse(n, "a layer without a matrix of f32");
  const bool turned = n.attrs.get_int("input_major") != 0;
  const int64_t N = w->shape()[turned ? 1 : 0];
  if (given(n, 3) && (!constant(n, 3) || constant(n, 3)->numel() != N))
    return refuse(n, "a bias of another size");
  const Val matrix = weight(n.inputs[2], w->shape(), turned);
  Val y = b_.op("linear", {x.val, Val{}, matrix, vector(n.inputs[3])}, {{"many_rows", int64_t{1}}});
  if (given(n, 1)) {
    if (traced(n.inputs[1]).kind != x.kind) return refuse(n, "a residual of another kind");
    y = b_.op("add", {traced(n.inputs[1]).val, y});
  }
  return Traced{x.kind, activated(y, n.attrs)};
}

Result<Traced> ExportedRows::sum(const Node& n) {
  const Traced &a = traced(n.inputs[0]), &b = traced(n.inputs[1]);
  if (a.kind != b.kind || n.attrs.has("axis")) return refuse(n, "a sum of rows and of what is none");
  return Traced{a.kind, b_.op("add", {a.val, b.val})};
}

Result<Traced> ExportedRows::norm(const Node& n) {
  const Traced& x = traced(n.inputs[0]);
  const int last = rank(x.val) - (x.kind == Kind::kRows ? 0 : 1);
  const int64_t axis = n.attrs.get_int("axis", -1), width = extent(x.val, rank(x.val) - 1);
  if ((axis != -1 && axis != last) || n.outputs.size() != 1)
    return refuse(n, "a norm over other than the last axis");
  for (size_t k = 1; k < 3; ++k)
    if (!constant(n, k) || constant(n, k)->numel() != width)
      return refuse(n, "a norm without weights of f32");
  return Traced{x.kind, b_.op("layer_norm", {x.val, vector(n.inputs[1]), vector(n.inputs[2])},
                              {{"epsilon", n.attrs.get_float("epsilon", 1e-5)}})};
}

// Heads out of a row, or into one.
Result<Traced> ExportedRows::reshape(const Node& n) {
  const Traced& x = traced(n.inputs[0]);
  if (x.kind != Kind::kRows) return refuse(n, "a result of first tokens gets another shape");
  std::vector<int64_t> features;
  for (const int64_t S : {5, 7}) {
    const Sample sample = make_sample(3, S, out_.config.vocab);
    std::vector<int64_t> dims = n.attrs.get_ints("shape");
    if (given(n, 1)) {
      OAR_ASSIGN(const Tensor t, evaluate(n.inputs[1], sample));
      for (int64_t k = 0; k < t.numel(); ++k) dims.push_back(element_as_int(t, k));
    }
    std::vector<int64_t> own{sample.B, S};
    for (int axis = 1; axis < rank(x.val); ++axis) own.push_back(extent(x.val, axis));
    int64_t total = 1, known = 1;
    for (const int64_t d : own) total *= d;
    for (size_t k = 0; k < dims.size(); ++k) {
      if (dims[k] == 0 && k < own.size() && n.attrs.get_int("allowzero") == 0) dims[k] = own[k];
      if (dims[k] != -1) known *= dims[k];
    }
    for (int64_t& d : dims)
      if (d == -1 && known > 0) d = total / known;
    const bool rows = dims.size() > 2 && dims[0] == sample.B && dims[1] == S;
    if (!rows || (S == 7 && !std::equal(dims.begin() + 2, dims.end(), features.begin(), features.end())))
      return refuse(n, "texts or their tokens get another shape");
    features.assign(dims.begin() + 2, dims.end());
  }
  std::vector<int64_t> shape{0};
  if (features.size() == 1) shape.push_back(-1);
  else shape.insert(shape.end(), features.begin(), features.end());
  return Traced{Kind::kRows, b_.op("reshape", {x.val}, {{"shape", shape}})};
}

// Added to scores, or bool: nothing for a token that is there, all for one that is padding.
Status ExportedRows::check_mask(ValueId mask) {
  if (masks_[mask]) return ok_status();
  const auto other = [] { return unimplemented("attention's mask hides other than padding"); };
  const int64_t longest = std::min(kLongestSample, out_.config.max_tokens());
  for (const int64_t S : {int64_t{7}, longest}) {
    if (S < 1) return unimplemented("a mask before there are positions");
    const Sample sample = make_sample(S == longest ? 2 : 3, S, out_.config.vocab);
    std::vector<bool> reads(3, false);
    OAR_ASSIGN(const Tensor t, evaluate(mask, sample, &reads));
    if (reads[0] || reads[2]) return unimplemented("attention's mask depends on ids or types");
    std::vector<int64_t> dims(t.shape().begin(), t.shape().end());
    if (dims.empty() || dims.size() > 4) return other();
    dims.insert(dims.begin(), 4 - dims.size(), 1);
    if (dims[0] != sample.B || dims[1] != 1 || (dims[2] != 1 && dims[2] != S) || dims[3] != S) return other();
    const bool flags = t.format().dtype() == DType::kBool;
    for (int64_t b = 0; b < sample.B; ++b) {
      for (int64_t i = 0; i < dims[2]; ++i) {
        if (dims[2] == S && !sample.seen(b, i)) continue;  // what padding sees is nobody's
        for (int64_t s = 0; s < S; ++s) {
          const double m = element_as_double(t, (b * dims[2] + i) * S + s);
          if (sample.seen(b, s) ? m != (flags ? 1 : 0) : flags ? m != 0 : !(m <= kHidden)) return other();
        }
      }
    }
  }
  masks_[mask] = true;
  return ok_status();
}

Result<Traced> ExportedRows::attention(const Node& n) {
  const Attrs& a = n.attrs;
  for (size_t k = 4; k < n.inputs.size(); ++k)
    if (given(n, k)) return refuse(n, "attention over a past");
  if (n.outputs.size() != 1 || a.get_int("is_causal") != 0 || a.get_float("softcap", 0) > 0 ||
      a.get_int("left_window_size", -1) >= 0 || a.get_int("right_window_size", -1) >= 0)
    return refuse(n, "attention that not every token of a text sees");
  if (!given(n, 3)) return refuse(n, "attention without a mask sees padding");
  if (traced(n.inputs[3]).kind != Kind::kIndex) return refuse(n, "attention's mask is made of rows");
  OAR_RETURN_IF_ERROR(check_mask(n.inputs[3]));
  const bool heads = a.get_string("layout") == "bshd";
  Val qkv[3];
  for (size_t k = 0; k < 3; ++k) {
    const Traced& x = traced(n.inputs[k]);
    if (x.kind != Kind::kRows || rank(x.val) != (heads ? 3 : 2)) return refuse(n, "heads that lie otherwise");
    qkv[k] = x.val;
    if (heads) continue;
    const int64_t count = a.get_int(k == 0 ? "q_num_heads" : "kv_num_heads"), width = extent(x.val, 1);
    if (count < 1 || width % count != 0) return refuse(n, "heads that do not divide a row");
    qkv[k] = b_.op("reshape", {x.val}, {{"shape", std::vector<int64_t>{0, count, width / count}}});
  }
  OAR_RETURN_IF_ERROR(b_.status());
  double scale = a.get_float("scale", 0);
  if (scale == 0 && a.get_int("spelled") == 0) scale = 1 / std::sqrt(static_cast<double>(extent(qkv[0], 2)));
  Val y = b_.op("attention", {qkv[0], qkv[1], qkv[2], Val{}, segments_},
                {{"scale", scale}, {"causal", int64_t{0}}});
  if (!heads) y = b_.op("reshape", {y}, {{"shape", std::vector<int64_t>{0, -1}}});
  return Traced{Kind::kRows, y};
}

Result<Traced> ExportedRows::packed(const Node& n) {
  if (n.is("gather") && n.inputs.size() == 2) return gather(n);
  for (const ValueId v : n.inputs) {
    const bool rows = v != kNoValue && (traced(v).kind == Kind::kRows || traced(v).kind == Kind::kFirst);
    if (rows && n.inputs[0] == kNoValue) return refuse(n, "the first operand is missing");
  }
  if (n.is("identity")) return traced(n.inputs[0]);
  if (n.is("linear")) return linear(n);
  if (n.is("add") && n.inputs.size() == 2) return sum(n);
  if (n.is("layer_norm") && n.inputs.size() == 3) return norm(n);
  if (n.is("reshape")) return reshape(n);
  if (n.is("head_attention") && n.inputs.size() >= 4) return attention(n);
  const Traced& x = traced(n.inputs[0]);
  if (n.inputs.size() == 1 && (n.is("gelu") || n.is("relu") || n.is("tanh") || n.is("silu"))) {
    const Attrs attrs = n.is("gelu") && n.attrs.get_string("approximate") == "tanh"
                            ? Attrs{{"approximate", std::string("tanh")}}
                            : Attrs{};
    if (n.attrs.get_float("alpha", 1) != 1) return refuse(n, "an activation with a number of its own");
    return Traced{x.kind, b_.op(n.op->name, {x.val}, attrs)};
  }
  return refuse(n, "it has no form over packed rows");
}

Status ExportedRows::node(const Node& n) {
  bool rows = false;
  for (const ValueId v : n.inputs) {
    if (v == kNoValue) continue;
    rows = rows || traced(v).kind == Kind::kRows || traced(v).kind == Kind::kFirst;
  }
  // A table of floats that indices look up begins the rows.
  const bool table = n.is("gather") && n.inputs.size() == 2 && constant(n, 0) != nullptr && given(n, 1) &&
                     from_.value(n.inputs[1]).kind != ValueKind::kConstant;
  if ((!rows || n.is("shape_of")) && !table) {
    for (const ValueId v : n.outputs)
      if (v != kNoValue) traced_[static_cast<size_t>(v)].kind = Kind::kIndex;
    return ok_status();
  }
  if (n.outputs.size() != 1 || !n.subgraphs.empty()) return refuse(n, "it has no form over packed rows");
  OAR_ASSIGN(const Traced made, packed(n));
  if (!b_.status().ok()) return refuse(n, b_.status().message());
  traced_[static_cast<size_t>(n.outputs[0])] = made;
  return ok_status();
}

// What ids must lie below: the rows of the table that they look up.
Status ExportedRows::find_vocabulary() {
  for (const Node& n : from_.nodes()) {
    if (!n.is("gather") || n.inputs.size() != 2 || !is_input(n.inputs[1], operands_.ids)) continue;
    if (const Tensor* table = constant(n, 0); table && table->shape().rank() == 2) {
      out_.config.vocab = table->shape()[0];
      return ok_status();
    }
  }
  return unimplemented("no table of f32 is looked up by the ids");
}

Status ExportedRows::finish() {
  EncoderConfig& c = out_.config;
  if (c.max_context == 0) return unimplemented("the graph has no table of positions");
  for (const auto& output : from_.outputs()) {
    const Traced& t = traced(output.value);
    if ((t.kind != Kind::kRows && t.kind != Kind::kFirst) || rank(t.val) != 2)
      return unimplemented(cat("output '", output.name, "' is of neither tokens nor first tokens"));
    out_.built.outputs.push_back({output.name, t.kind == Kind::kRows, extent(t.val, 1)});
    out_.built.graph.add_output(output.name, t.val.id);
  }
  SymbolTable& symbols = out_.built.graph.symbols();
  for (const SymbolId s : {out_.built.T, out_.built.B})
    symbols[static_cast<size_t>(s)].max = std::max(run_tokens_, c.max_tokens());
  return ok_status();
}

Result<ExportedEncoder> ExportedRows::pack() {
  if (operands_.ids < 0 || operands_.mask < 0) return unimplemented("the graph has no ids or no mask");
  OAR_RETURN_IF_ERROR(find_vocabulary());
  Graph& g = out_.built.graph;
  out_.built.T = g.add_symbol("T", run_tokens_);
  out_.built.B = g.add_symbol("B", run_tokens_);
  tokens_ = input("tokens", out_.built.T);
  positions_ = input("positions", out_.built.T);
  segments_ = input("segments", out_.built.T);
  for (const ValueId v : from_.inputs()) traced_[static_cast<size_t>(v)].kind = Kind::kIndex;
  for (const Node& n : from_.nodes()) OAR_RETURN_IF_ERROR(node(n));
  OAR_RETURN_IF_ERROR(finish());
  OAR_RETURN_IF_ERROR(b_.status());
  return std::move(out_);
}

}  // namespace

Result<ExportedEncoder> pack_exported_encoder(const Graph& from, const EncoderOperands& operands,
                                              int64_t run_tokens) {
  return ExportedRows(from, operands, run_tokens).pack();
}

}  // namespace oar

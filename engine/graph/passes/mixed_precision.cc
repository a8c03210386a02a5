#include "engine/graph/passes/mixed_precision.h"

#include <algorithm>

#include "engine/base/format.h"
#include "engine/graph/op.h"

namespace oar::passes {
namespace {

// The reference's lists for bf16, in our ops' names. Of its white list `matmul`, `matmul_v2`, `mul` and
// `fused_gemm_epilogue` are products, `flash_attn` is attention.
constexpr std::string_view kWhite[] = {"conv", "einsum", "max_pool", "matmul", "linear", "rope", "attention"};

// What follows the line is ours: composites of ops of the list, under their own names.
constexpr std::string_view kBlackO1[] = {
    "tan", "acos", "asin", "sinh", "cosh", "atanh", "exp", "log", "reciprocal", "rsqrt", "pow", "square",
    "reduce_sum", "reduce_mean", "reduce_prod", "cum_prod", "cum_sum", "reduce_l1", "reduce_l2", "group_norm",
    "layer_norm", "softmax", "softplus", "log_softmax", "softmax_cross_entropy_loss", "nll_loss", "resize",
    "embedding", "scatter_elements", "scatter_nd",
    // ours
    "rms_norm", "add_rms_norm", "batch_norm", "instance_norm", "lp_normalization", "reduce_sum_square",
    "reduce_log_sum", "reduce_log_sum_exp", "moe_route", "state_scan"};

constexpr std::string_view kBlackO2[] = {"resize", "embedding", "scatter_elements", "scatter_nd",
                                         // ours: their recurrence and choices are no products
                                         "moe_route", "state_scan"};

// Move numbers as they are, in any format.
constexpr std::string_view kMoves[] = {"reshape", "transpose", "slice", "concat"};

template <class List>
bool has(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

class Rewrite {
 public:
  Rewrite(Graph& g, size_t forward, const AmpOptions& options, const AmpOps& ops)
      : g_(g), forward_(forward), o_(options), ops_(ops), values_(g.num_values()) {
    uses_ = g.use_counts();
    for (const Graph::Output& out : g.outputs()) at(out.value).output = true;
  }

  Result<AmpReport> run() {
    std::vector<Node> old = std::move(g_.nodes());
    g_.nodes().clear();
    for (const Node& n : old)
      for (size_t k = 0; k < n.inputs.size() && ops_.vectors; ++k)
        if (n.inputs[k] != kNoValue && ops_.vectors(n, k)) at(n.inputs[k]).vector = true;
    for (size_t i = 0; i < old.size(); ++i) OAR_RETURN_IF_ERROR(node(std::move(old[i]), i < forward_));
    return std::move(report_);
  }

 private:
  struct State {
    bool output = false;      // of the graph
    bool vector = false;      // of AmpOps::vectors
    bool rounded = false;     // the value itself is no longer read: its bf16 is
    ValueId bf16 = kNoValue;  // once there is one
  };
  State& at(ValueId v) { return values_[static_cast<size_t>(v)]; }
  const State& at(ValueId v) const { return values_[static_cast<size_t>(v)]; }

  bool is_f32(ValueId v) const { return v != kNoValue && g_.value(v).type.format == Format::f32(); }
  // Whether an op in bf16 reads `v` rounded.
  bool can_be_rounded(ValueId v) const {
    if (!is_f32(v)) return false;
    const Value& value = g_.value(v);
    const bool stored = value.kind == ValueKind::kState || value.kind == ValueKind::kConstant;
    return value.type.shape.size() >= (stored ? 2u : 1u) && !(stored && at(v).vector);
  }

  bool is_narrow(const Node& n, std::string_view name, bool forward) {
    const bool reads = std::any_of(n.inputs.begin(), n.inputs.end(), [&](ValueId v) {
      return v != kNoValue && (can_be_rounded(v) || at(v).rounded);
    });
    if (n.op->effect || n.op->impure || !reads || has(o_.black, name)) return false;
    if (has(o_.white, name) || has(kWhite, name)) return true;
    const bool whole = forward && o_.level == Amp::kO2;
    if (whole ? has(kBlackO2, name) : has(kBlackO1, name)) return false;
    return whole || std::all_of(n.inputs.begin(), n.inputs.end(), [&](ValueId v) {
             return v == kNoValue || at(v).rounded || !can_be_rounded(v);
           });
  }

  Result<ValueId> cast(ValueId v, const char* to) {
    OAR_ASSIGN(const auto made, g_.add_node(find_op("cast"), {v}, {{"to", std::string(to)}}));
    values_.resize(g_.num_values());
    uint64_t numbers = 1;
    for (const Dim& d : g_.value(v).type.shape)
      numbers *= d.is_const() ? static_cast<uint64_t>(d.const_value()) : 0;
    report_.cast_bytes += 6 * numbers;
    return made[0];
  }
  // `v` in bf16: of results once, of states for each reader, of constants here.
  Result<ValueId> rounded(ValueId v) {
    if (at(v).bf16 != kNoValue) return at(v).bf16;
    if (g_.value(v).kind == ValueKind::kConstant) {
      const Tensor wide = g_.value(v).constant;
      OAR_ASSIGN(Tensor narrow, Tensor::allocate(wide.shape(), Format::bf16()));
      if (wide.numel() > 0)
        Format::bf16().encode_row(wide.values<float>().data(), wide.numel(), narrow.mutable_data());
      wide.buffer().release_pages();  // a file's, where nobody reads them any more
      const ValueId made = g_.add_constant(std::string(g_.value(v).name), std::move(narrow));
      values_.resize(g_.num_values());
      return at(v).bf16 = made;
    }
    OAR_ASSIGN(const ValueId out, cast(v, "bf16"));
    if (g_.value(v).kind == ValueKind::kResult) at(v).bf16 = out;
    return out;
  }

  Status node(Node n, bool forward) {
    const auto listed = ops_.listed_as.find(n.op->name);
    const std::string_view name = listed == ops_.listed_as.end() ? n.op->name : listed->second;
    const bool narrow = is_narrow(n, name, forward);
    const auto floats = [&](const std::vector<ValueId>& list) {
      return std::any_of(list.begin(), list.end(), [&](ValueId v) { return is_f32(v); });
    };
    if (floats(n.inputs) || floats(n.outputs)) ++report_.ops, report_.narrow += narrow ? 1 : 0;
    if (narrow && has(kMoves, name)) return move(std::move(n));
    bool kernel = false;
    std::map<ValueId, ValueId> own;  // what it reads in place of what it read
    for (size_t k = 0; k < n.inputs.size(); ++k) {
      const ValueId v = n.inputs[k];
      const bool stored = narrow && ops_.reads_stored(n, k);
      kernel = kernel || stored;
      if (v == kNoValue || !(at(v).rounded || (narrow && can_be_rounded(v)))) continue;
      if (stored && g_.value(v).kind == ValueKind::kState && ops_.rounds_itself && ops_.rounds_itself(n, k))
        continue;
      if (const auto before = own.find(v); !stored && before != own.end()) {
        n.inputs[k] = before->second;
        continue;
      }
      OAR_ASSIGN(const ValueId bf16, rounded(v));
      if (stored) {
        n.inputs[k] = bf16;
        continue;
      }
      OAR_ASSIGN(n.inputs[k], cast(bf16, "f32"));
      own[v] = n.inputs[k];
    }
    if (narrow && !kernel) ++report_.widened[n.op->name];
    const std::vector<ValueId> outputs = n.outputs;
    const bool wide = !narrow || ops_.wide_results(n);
    g_.nodes().push_back(std::move(n));
    for (const ValueId v : outputs) {
      if (wide || v == kNoValue || !can_be_rounded(v) || at(v).output || uses_[static_cast<size_t>(v)] == 0)
        continue;
      OAR_RETURN_IF_ERROR(rounded(v).status());
      at(v).rounded = true;
    }
    return ok_status();
  }

  // The bits of bf16 under another shape, or in another place.
  Status move(Node n) {
    for (ValueId& v : n.inputs)
      if (v != kNoValue && (at(v).rounded || can_be_rounded(v))) { OAR_ASSIGN(v, rounded(v)); }
    OAR_ASSIGN(const auto made, g_.add_node(n.op, n.inputs, n.attrs));
    values_.resize(g_.num_values());
    g_.nodes().back().name = n.name;
    const ValueId v = n.outputs[0];
    at(v).bf16 = made[0];
    if (!at(v).output) return at(v).rounded = true, ok_status();
    // As f32 under the value that is the graph's output.
    OAR_RETURN_IF_ERROR(cast(made[0], "f32").status());
    g_.nodes().back().outputs = {v};
    return ok_status();
  }

  Graph& g_;
  const size_t forward_;
  const AmpOptions& o_;
  const AmpOps& ops_;
  std::vector<State> values_;
  std::vector<int> uses_;
  AmpReport report_;
};

}  // namespace

const std::vector<std::string>& amp_names() {
  static const std::vector<std::string> names{"f32", "O1", "O2"};
  return names;
}
std::span<const std::string_view> amp_white() { return kWhite; }
std::span<const std::string_view> amp_black_o1() { return kBlackO1; }
std::span<const std::string_view> amp_black_o2() { return kBlackO2; }

Status check_amp(const AmpOptions& o) {
  for (const auto& [flag, list] : {std::pair("--white", &o.white), std::pair("--black", &o.black)}) {
    if (!list->empty() && o.level == Amp::kF32)
      return invalid_argument(
          cat(flag, " says which ops compute in bf16; give --precision O1 or O2 with it"));
    for (const std::string& name : *list)
      if (find_op(name) == nullptr)
        return invalid_argument(cat(flag, ": there is no op '", name, "'; docs/ops.md lists them"));
  }
  for (const std::string& name : o.white)
    if (has(o.black, name))
      return invalid_argument(cat("'", name, "' is in both --white and --black; take it out of one"));
  return ok_status();
}

Result<AmpReport> mixed_precision(Graph& g, size_t forward, const AmpOptions& options, const AmpOps& ops) {
  OAR_RETURN_IF_ERROR(check_amp(options));
  if (options.level == Amp::kF32) return AmpReport();
  return Rewrite(g, forward, options, ops).run();
}

}  // namespace oar::passes

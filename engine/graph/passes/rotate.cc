// Options, record and helpers of the rotation passes.
#include "engine/graph/passes/rotate.h"

#include <algorithm>

#include "engine/base/format.h"
#include "engine/graph/op.h"
#include "engine/graph/weights.h"
#include "quant/transforms/hadamard.h"

namespace oar {

Result<RotationOptions> parse_rotation(std::string_view text) {
  RotationOptions o;
  const std::string_view whole = text;
  if (text == "none" || text.empty()) return o;
  if (text == "kv") {
    o.values = o.values_online = o.queries_keys = true;
    return o;
  }
  o.named = text != "all";
  if (text == "all") text = "r1,r2,r3,r4";
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view word = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    if (word == "r1") o.residual = true;
    else if (word == "r2") o.values = true;
    else if (word == "r3") o.queries_keys = true;
    else if (word == "r4" || word == "r4-exact") {
      o.ffn = true;
      o.ffn_exact = word != "r4";
    } else {
      return invalid_argument(cat("rotate '", whole, "': '", word,
                                  "' is not one of none, all, kv, or a list of r1, r2, r3, r4 (or r4-exact)"),
                              "rotate");
    }
  }
  return o;
}

std::string rotation_names(const RotationOptions& o) {
  std::string s;
  const auto add = [&](bool on, const char* name) {
    if (on) s += cat(s.empty() ? "" : ",", name);
  };
  add(o.residual || o.stored_residual, "r1");
  add(o.values || o.stored_values, "r2");
  add(o.queries_keys, "r3");
  add(o.ffn || o.stored_ffn, o.ffn_exact ? "r4-exact" : "r4");
  return s.empty() ? "none" : s;
}

std::string left_out_text(const std::vector<LeftOut>& left_out) {
  std::string s;
  for (const LeftOut& one : left_out) s += cat(s.empty() ? "" : ", ", one.name, " (", one.reason, ")");
  return s;
}

std::vector<Pass> rotation_passes(const RotationOptions& options, const LeftOutList& left_out) {
  using Run = Result<int> (*)(Graph&, const RotationOptions&);
  using Why = std::string (*)(const Graph&, const RotationOptions&);
  const auto bound = [&](Run pass) { return [pass, options](Graph& graph) { return pass(graph, options); }; };
  // The same of a rotation, which says why where it is wanted and rewrites nothing.
  const auto told = [&](const char* name, bool wanted, Run pass, Why why) {
    return [name, wanted, pass, why, options, left_out](Graph& graph) -> Result<int> {
      OAR_ASSIGN(const int rewrites, pass(graph, options));
      if (rewrites == 0 && wanted && left_out) left_out->push_back({name, why(graph, options)});
      return rewrites;
    };
  };
  return {
      {"fold_norms",
       "weights of RMS norms into the linear layers behind them, where the stream is to be rotated",
       bound(passes::fold_norms)},
      {"rotate_residual", "R1: the residual stream by a Hadamard matrix with random signs, in the weights",
       told("r1", options.residual && !options.stored_residual, passes::rotate_residual,
            passes::why_not_residual)},
      {"rotate_values", "R2: value heads, undone by the output projection",
       told("r2", options.values && !options.stored_values, passes::rotate_values, passes::why_not_heads)},
      {"rotate_queries_keys", "R3: queries and keys after rope, online",
       told("r3", options.queries_keys, passes::rotate_queries_keys, passes::why_not_heads)},
      {"rotate_ffn", "R4: the input of the down projection, online",
       told(options.ffn_exact ? "r4-exact" : "r4", options.ffn && !options.stored_ffn, passes::rotate_ffn,
            passes::why_not_ffn)},
      {"equalize_heads", "a scale for each channel of R2 and R3, from the weights around attention",
       bound(passes::equalize_heads)},
  };
}

Result<RotationOptions> rotate(Graph& graph, const RotationOptions& options, const LeftOutList& left_out) {
  const LeftOutList list = left_out ? left_out : std::make_shared<std::vector<LeftOut>>();
  OAR_ASSIGN(const auto reports, run_passes(graph, rotation_passes(options, list), {}));
  return applied_rotation(options, reports, *list);
}

Result<RotationOptions> applied_rotation(const RotationOptions& options, std::span<const PassReport> reports,
                                         const std::vector<LeftOut>& left_out) {
  if (options.named && !left_out.empty())
    return Status{StatusCode::kUnimplemented,
                  cat("rotate: this model has no place for ", left_out_text(left_out),
                      "; leave out what has none, or say all for what there is"),
                  "rotate"};
  const auto did = [&](std::string_view pass) {
    return std::any_of(reports.begin(), reports.end(),
                       [&](const PassReport& r) { return r.name == pass && r.rewrites > 0; });
  };
  RotationOptions out = options;
  out.residual = did("rotate_residual");
  out.values = did("rotate_values");
  out.queries_keys = did("rotate_queries_keys");
  out.ffn = did("rotate_ffn");
  out.stored_residual = out.stored_residual || out.residual;
  out.stored_values = out.stored_values || (out.values && !options.values_online);
  out.stored_ffn = out.stored_ffn || out.ffn;
  return out;
}

json::object rotation_record(const RotationOptions& o) {
  // A seed is 64 bits, which JSON numbers of other readers may not hold.
  return {{"r1", o.stored_residual}, {"r1_seed", cat(o.seed)}, {"r2", o.stored_values},
          {"r3", o.queries_keys},    {"r4", o.stored_ffn},     {"r4_block", o.ffn_block},
          {"r4_exact", o.ffn_exact}};
}

Result<RotationOptions> read_rotation_record(const json::object& record) {
  RotationOptions o;
  const auto flag = [&](const char* key, bool* out) -> Status {
    const json::value* v = record.if_contains(key);
    if (!v) return ok_status();
    if (!v->is_bool())
      return invalid_argument(
          cat("config.json: quantization_config.rotation.", key, " is not true or false"));
    *out = v->get_bool();
    return ok_status();
  };
  OAR_RETURN_IF_ERROR(flag("r1", &o.stored_residual));
  OAR_RETURN_IF_ERROR(flag("r2", &o.stored_values));
  OAR_RETURN_IF_ERROR(flag("r3", &o.queries_keys));
  OAR_RETURN_IF_ERROR(flag("r4", &o.stored_ffn));
  OAR_RETURN_IF_ERROR(flag("r4_exact", &o.ffn_exact));
  for (const auto& member : record) {
    static constexpr std::string_view kKnown[] = {"r1", "r1_seed", "r2", "r3", "r4", "r4_block", "r4_exact"};
    // A rotation this program does not know of would be left out, and every answer wrong.
    if (std::find(std::begin(kKnown), std::end(kKnown), std::string_view(member.key())) == std::end(kKnown))
      return unimplemented(cat("config.json: quantization_config.rotation has '",
                               std::string_view(member.key()), "', which a newer version wrote"));
  }
  if (const json::value* v = record.if_contains("r1_seed")) {
    uint64_t seed = 0;
    bool good = v->is_string() && !v->get_string().empty() && v->get_string().size() <= 20;
    if (good) {
      for (char c : v->get_string()) {
        const auto digit = static_cast<uint64_t>(c - '0');
        good = good && c >= '0' && c <= '9' && seed <= (UINT64_MAX - digit) / 10;
        seed = seed * 10 + digit;
      }
    }
    if (!good)
      return invalid_argument(
          "config.json: quantization_config.rotation.r1_seed is not a 64-bit number in a string");
    o.seed = seed;
  }
  if (const json::value* v = record.if_contains("r4_block")) {
    if (!v->is_int64() || v->get_int64() < 1 || v->get_int64() > (1 << 24))
      return invalid_argument(
          "config.json: quantization_config.rotation.r4_block is not a number from 1 to 2^24");
    o.ffn_block = v->get_int64();
  }
  return o;
}

Result<RotationOptions> stored_rotation(const json::object& config) {
  const json::value* quant = config.if_contains("quantization_config");
  const json::value* record =
      quant && quant->is_object() ? quant->get_object().if_contains("rotation") : nullptr;
  if (!record || record->is_null()) return RotationOptions{};
  if (!record->is_object())
    return invalid_argument("config.json: quantization_config.rotation is not an object");
  return read_rotation_record(record->get_object());
}

RotationOptions merge_rotation(const RotationOptions& stored, const RotationOptions& wanted) {
  RotationOptions o = wanted;
  o.stored_residual = stored.stored_residual;
  o.stored_values = stored.stored_values;
  o.stored_ffn = stored.stored_ffn;
  o.queries_keys = wanted.queries_keys || stored.queries_keys;
  if (stored.stored_ffn) {  // the block is the one in the weights
    o.ffn_block = stored.ffn_block;
    o.ffn_exact = stored.ffn_exact;
  }
  return o;
}

namespace rotation {

bool is_linear(const Node& n) { return n.is("linear") || n.is("grouped_linear"); }

std::vector<size_t> weight_operands(const Node& n) {
  const bool grouped = n.is("grouped_linear");
  std::vector<size_t> out;
  for (size_t k = grouped ? 4 : 2; k < n.inputs.size(); k += grouped ? 1 : 2) out.push_back(k);
  return out;
}

size_t output_segments(const Node& n) {
  const size_t weights = weight_operands(n).size();
  const auto experts = static_cast<size_t>(std::max<int64_t>(1, n.attrs.get_int("experts", 1)));
  return weights / experts;
}

Attrs transform(int64_t block, uint64_t seed, bool columns) {
  Attrs a{{"block", block}};
  if (seed != 0) a.set("seed", static_cast<int64_t>(seed));
  if (columns) a.set("axis", int64_t{0});
  return a;
}

Result<ValueId> rewrite(Graph& graph, std::string_view op, std::vector<ValueId> operands, Attrs attrs) {
  const std::string name = graph.value(operands[0]).name;
  OAR_ASSIGN(const auto out, graph.add_node(find_op(op), std::move(operands), std::move(attrs)));
  graph.value(out[0]).name = name;
  return out[0];
}

void keep_format(const Graph& graph, Node& node, ValueId weight) {
  if (node.attrs.has("format")) return;
  const Format own = *source_format(graph, graph.nodes(), weight);
  const int64_t cols = graph.value(weight).type.shape.back().const_value();
  const Format q8_0 = *Format::find("q8_0");
  const bool blocks = !own.plain() && q8_0.row_bytes(cols).has_value();
  const Format kept = own.info().encode && own.row_bytes(cols) ? own : blocks ? q8_0 : Format::f32();
  node.attrs.set("format", std::string(kept.name()));
}

bool may_rewrite(const Graph& graph, const Node& node, const RotationOptions& options) {
  for (size_t k : weight_operands(node)) {
    const auto f = source_format(graph, graph.nodes(), node.inputs[k]);
    if (!f) return false;
    if (!options.reencode && !(f->plain() && dtype_is_float(f->dtype()) && dtype_bits(f->dtype()) >= 16))
      return false;
  }
  return true;
}

int64_t whole_block(int64_t n) { return hadamard_order(n) ? n : power_of_two_factor(n); }

int64_t ffn_block(int64_t n, const RotationOptions& options) {
  if (options.ffn_exact) return whole_block(n);
  const int64_t block = power_of_two_factor(n);
  // Blocks below 32 spread too little; an exact order costs more and spreads all.
  if (block < 32) return whole_block(n);
  int64_t largest = 1;
  while (largest * 2 <= std::max<int64_t>(options.ffn_block, 1)) largest *= 2;
  return std::min(block, largest);
}

}  // namespace rotation

}  // namespace oar

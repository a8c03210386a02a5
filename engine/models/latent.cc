// Attention over a latent (MLA, https://arxiv.org/abs/2405.04434): keys and values of all heads are matrices
// times one row c of `rank` numbers a token, beside one key of `rope` numbers that rotates and serves all
// heads. c and that key are what is cached.
//
//   q_h . k_h = q_h . (U_h c) + q'_h . k'  = (U_h^T q_h) . c + q'_h . k'        v_h = W_h c
//
// The matrices are taken to the other side, for every row alike: a query becomes one over latents, heads
// attend to latents as to one key head whose first `rank` numbers are values, and W_h follows. So decode and
// prefill are one formula. U_h and W_h are the rows of kv_b_proj; W_h is read where it lies. U_h^T is an
// expression: of a plain format its numbers are moved, of another they are widened, exactly, and take the
// format that --weights asks for, if it does.
//
// Where LatentShape::expanded says so rows of prompts go the other way, each head's keys and values being
// made; kernels/expanded_attention.h has when that pays.
#include <cmath>

#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"

namespace oar {
namespace {

// The square of YaRN's growth, by which these models multiply scores (`mscale_all_dim`), queries and keys
// being left as they are.
Result<double> yarn_scale(const ModelConfig& c) {
  ConfigReader r(c.rope.scaling);
  OAR_ASSIGN(const std::string type, r.text({"rope_type", "type"}, "default"));
  OAR_ASSIGN(const double all, r.number({"mscale_all_dim"}, 0));
  OAR_ASSIGN(const double factor, r.number({"factor"}, 1));
  if (type == "default" || all == 0 || factor <= 1) return 1;
  const double growth = 0.1 * all * std::log(factor) + 1;
  return growth * growth;
}

}  // namespace

Status read_latent(ConfigReader& r, const LatentShape& absent, ModelConfig& c) {
  LatentShape& s = c.latent;
  OAR_ASSIGN(s.rank, r.integer({"kv_lora_rank"}, 1, 1 << 16, absent.rank));
  OAR_ASSIGN(s.query_rank, r.integer({"q_lora_rank"}, 1, 1 << 16, absent.query_rank, 0));
  OAR_ASSIGN(s.nope, r.integer({"qk_nope_head_dim"}, 1, 1 << 14, absent.nope));
  OAR_ASSIGN(s.rope, r.integer({"qk_rope_head_dim"}, 2, 1 << 14, absent.rope));
  const int64_t value = absent.value > 0 ? absent.value : c.width / c.heads;
  OAR_ASSIGN(s.value, r.integer({"v_head_dim"}, 1, 1 << 14, value, value));
  OAR_ASSIGN(c.rope_interleaved, r.boolean("rope_interleave", c.rope_interleaved));
  r.without_effect("qk_head_dim");
  if (c.kv_heads != 0 && c.kv_heads != c.heads)
    return unimplemented(cat("config.json: 'num_key_value_heads' is ", c.kv_heads,
                             "; heads over a latent have one each: expected ", c.heads));
  // A part of both, as some say it, or of the rotated one.
  const double turned = c.rope.partial * static_cast<double>(s.nope + s.rope);
  if (c.rope.partial != 1 && std::llround(turned) != s.rope)
    return unimplemented(cat("config.json: 'partial_rotary_factor' is ", c.rope.partial,
                             ", but 'qk_rope_head_dim' ", s.rope, " is what rotates of ", s.nope + s.rope));
  if (s.rope % 2 != 0)
    return invalid_argument(cat("config.json: 'qk_rope_head_dim' is ", s.rope, ", expected pairs"));
  c.rope.partial = 1;
  c.rope.head_dim = s.rope;
  c.kv_heads = 1;
  c.head_dim = s.rank + s.rope;
  OAR_ASSIGN(const double growth, yarn_scale(c));
  c.attention_scale = growth / std::sqrt(static_cast<double>(s.nope + s.rope));
  return ok_status();
}

Val ModelBuilder::latent_weight(const std::string& prefix, LatentPart part, int64_t head) {
  const LatentShape& s = c.latent;
  const bool keys = part != LatentPart::kValues;
  const int64_t N = keys ? s.rank : s.value, K = keys ? s.nope : s.rank;  // as GGUF has them
  const std::string apart = prefix + (keys ? "k_b_proj.weight" : "v_b_proj.weight");
  const std::string own = cat(prefix, keys ? "k_b_proj." : "v_b_proj.", head, ".weight");
  const auto checked = [&](Val w) {
    if (w && shape(w) != DimVector{Dim(N), Dim(K)})
      fail(invalid_argument(cat("tensor '", graph().value(w.id).name, "' is ", graph().type_string(type(w)),
                                ", config.json needs ", N, " rows of ", K)));
    return w;
  };
  const auto turned = [&](Val w, int64_t rows) {
    if (!w) return w;
    return type(w).format.plain() ? op("stored_matrix", {w}, {{"rows", rows}, {"transposed", int64_t{1}}})
                                  : op("transpose", {w}, {{"perm", std::vector<int64_t>{1, 0}}});
  };
  if (has(apart)) {  // GGUF's: U turned already
    const Val w = checked(expert_slice(apart, head, own, c.heads));
    return part == LatentPart::kKeys ? turned(w, s.nope) : w;
  }
  const Val both = weight(prefix + "kv_b_proj.weight", {c.heads * (s.nope + s.value), s.rank});
  if (!both) return {};
  const Tensor all =
      graph().value(both.id).constant;  // a copy of the handle: values move when the graph grows
  const int64_t first = head * (s.nope + s.value) + (keys ? 0 : s.nope);
  const Val rows = constant(own, all.slice(first, first + (keys ? s.nope : s.value)));
  if (part != LatentPart::kQueries) return rows;
  const Val to_latents = turned(rows, s.rank);
  if (to_latents) graph().value(to_latents.id).name = own;
  return to_latents;
}

Val ModelBuilder::latent_heads(Val x, const std::string& prefix, LatentPart part) {
  std::vector<Val> operands{x, Val{}, Val{}, Val{}};
  for (int64_t h = 0; h < c.heads; ++h) operands.push_back(latent_weight(prefix, part, h));
  Attrs attrs{{"experts", c.heads}};
  if (c.latent.expanded) attrs.set("generated", int64_t{1});
  return op("grouped_linear", operands, std::move(attrs));
}

Val ModelBuilder::latent_attention(Val x, const std::string& p, int64_t layer) {
  const LatentShape& s = c.latent;
  const auto joined = [&](Val a, Val b) { return op("concat", {a, b}, {{"axis", int64_t{2}}}); };
  // Their epsilon is no key of config.json.
  const auto norm = [&](Val y, const char* name) {
    return op("rms_norm", {y, weight(p + name)}, {{"epsilon", 1e-6}});
  };
  // Products behind each other, then what rotates: a device does each of both in one launch.
  Val q = x;
  if (s.query_rank > 0) q = norm(linear(x, p + "q_a_proj", c.attention_bias), "q_a_layernorm.weight");
  const Val kv = linear(x, p + "kv_a_proj_with_mqa", c.attention_bias);  // (T, rank + rope)
  const Val latent = norm(slice(kv, 0, s.rank), "kv_a_layernorm.weight");
  q = split_heads(linear(q, p + (s.query_rank > 0 ? "q_b_proj" : "q_proj"), false), c.heads, s.nope + s.rope);
  const Val over_latents = latent_heads(q, p, LatentPart::kQueries);
  const Val turning = split_heads(slice(kv, s.rank, s.rank + s.rope), 1, s.rope);
  const Val k = joined(split_heads(latent, 1, s.rank), rope(turning, layer));
  const Val turned = rope(slice(q, s.nope, s.nope + s.rope), layer);
  const auto scaled = [&](Val y) { return c.position_beta != 0 ? op("mul", {y, position_scale()}) : y; };
  const Val absorbed = scaled(joined(over_latents, turned));
  Val out = latent_heads(attention(absorbed, k, {}, layer), p, LatentPart::kValues);
  if (s.expanded) {
    std::vector<Val> operands{scaled(joined(slice(q, 0, s.nope), turned)), out, k};
    operands.resize(10);
    for (const LatentPart part : {LatentPart::kKeys, LatentPart::kValues})
      for (int64_t h = 0; h < c.heads; ++h) operands.push_back(latent_weight(p, part, h));
    out = op("expanded_attention", operands, {{"scale", c.attention_scale}});
  }
  return linear(merge_heads(out), p + "o_proj", c.output_bias);
}

}  // namespace oar

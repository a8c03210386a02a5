#include "engine/tune/measure/activation_rounding.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/graph/lowering.h"
#include "engine/graph/op.h"
#include "engine/graph/pass.h"
#include "quant/dtype.h"

namespace oar {
namespace {

struct NamedCode {
  const char* name;
  ActivationCode code;
};
constexpr NamedCode kCodes[] = {
    {"bf16", ActivationCode::kBf16}, {"int8", ActivationCode::kInt8}, {"fp8", ActivationCode::kFp8}};

float largest_of(const float* x, int64_t n) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest;
}

Result<std::vector<TensorType>> same_type(const Graph& g, std::span<const ValueId> in, const Attrs&) {
  return std::vector<TensorType>{{Format::f32(), g.value(in[0]).type.shape}};
}

class RoundRows final : public LoweredOp {
 public:
  RoundRows(ActivationCode code, ThreadPool& pool) : code_(code), pool_(pool) {}
  const Kernel* kernel() const override { return nullptr; }
  Status execute(const Operand* in, const Operand* out, HostScratch&) const override {
    const int64_t n = in[0].cols();
    const auto* x = in[0].as<const float>();
    auto* y = out[0].as<float>();
    pool_.parallel_for(in[0].rows(), 16, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) round_activations(code_, x + t * n, n, y + t * n);
    });
    return ok_status();
  }

 private:
  ActivationCode code_;
  ThreadPool& pool_;
};

Lowered lower_rounding(LowerContext& ctx) {
  const auto code = static_cast<ActivationCode>(ctx.node.attrs.get_int("code"));
  return std::unique_ptr<LoweredOp>(std::make_unique<RoundRows>(code, ctx.backend.host_pool()));
}

constexpr OpDef kRoundActivations = {
    .name = "round_activations", .infer = same_type, .lower = lower_rounding};

}  // namespace

std::optional<ActivationCode> activation_code(std::string_view name) {
  for (const NamedCode& c : kCodes) {
    if (name == c.name) return c.code;
  }
  return std::nullopt;
}

std::vector<std::string> activation_code_names() {
  std::vector<std::string> out;
  for (const NamedCode& c : kCodes) out.emplace_back(c.name);
  return out;
}

void round_activations(ActivationCode code, const float* x, int64_t n, float* out) {
  const int64_t run = code == ActivationCode::kInt8 ? 256 : n;
  for (int64_t begin = 0; begin < n; begin += run) {
    const int64_t end = std::min(begin + run, n);
    const float largest = largest_of(x + begin, end - begin);
    const float scale = code == ActivationCode::kInt8 ? largest / 127 : largest / 448;
    for (int64_t i = begin; i < end; ++i) {
      if (code == ActivationCode::kBf16) out[i] = to_f32(to_bf16(x[i]));
      else if (!(scale > 0)) out[i] = x[i];
      else if (code == ActivationCode::kInt8) out[i] = scale * std::nearbyint(x[i] / scale);
      else out[i] = scale * to_f32(to_e4m3(x[i] / scale));
    }
  }
}

Status insert_activation_rounding(Graph& graph, ActivationCode code) {
  // What goes into a gated layer has to be a value.
  OAR_RETURN_IF_ERROR(decompose(graph, [](const Node& n) { return !n.is("gated_linear"); }).status());
  std::map<ValueId, ValueId> rounded;  // several layers may read one value
  const size_t count = graph.nodes().size();
  for (size_t i = 0; i < count; ++i) {
    if (!graph.nodes()[i].is("linear") && !graph.nodes()[i].is("grouped_linear")) continue;
    const ValueId x = graph.nodes()[i].inputs[0];
    auto it = rounded.find(x);
    if (it == rounded.end()) {
      OAR_ASSIGN(const auto made,
                 graph.add_node(&kRoundActivations, {x}, {{"code", static_cast<int64_t>(code)}}));
      it = rounded.emplace(x, made[0]).first;
    }
    graph.nodes()[i].inputs[0] = it->second;
  }
  graph.sort();
  return ok_status();
}

}  // namespace oar

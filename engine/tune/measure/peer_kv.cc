#include "engine/tune/measure/peer_kv.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "engine/base/format.h"
#include "engine/graph/lowering.h"
#include "engine/graph/op.h"

namespace oar {
namespace {

constexpr PeerKv kPeers[] = {
    {"llama-q8_0", PeerCode::kBlocksQ8, false, 8.5},      {"llama-q8_0-rot", PeerCode::kBlocksQ8, true, 8.5},
    {"llama-q4_0", PeerCode::kBlocksQ4, false, 4.5},      {"llama-q4_0-rot", PeerCode::kBlocksQ4, true, 4.5},
    {"paddle-c4", PeerCode::kStaticChannel4, false, 4.0}, {"rtn-g32", PeerCode::kGroup32, false, 4.5}};

void blocks(const char* name, const float* x, int64_t n, float* out) {
  const Format format = *Format::find(name);
  std::vector<std::byte> bytes(static_cast<size_t>(format.stride(n)));
  format.encode_row(x, n, bytes.data());
  format.decode_row(bytes.data(), n, out);
}

void static_channel(const float* x, int64_t n, const float* range, float* out) {
  for (int64_t c = 0; c < n; ++c) {
    const float low = range[c], high = range[n + c];
    if (!(high > low)) {  // a channel that never moves
      out[c] = low;
      continue;
    }
    const float scale = 15 / (high - low), zero = -8 - low * scale;
    const float q = std::clamp(std::nearbyint(x[c] * scale + zero), -8.f, 7.f);
    out[c] = (q - zero) / scale;
  }
}

void group32(const float* x, int64_t n, float* out) {
  for (int64_t begin = 0; begin < n; begin += 32) {
    float largest = 0;
    for (int64_t i = begin; i < begin + 32; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float scale = to_f32(to_f16(largest / 7)), inverse = scale > 0 ? 1 / scale : 0;
    for (int64_t i = begin; i < begin + 32; ++i) {
      out[i] = scale * std::clamp(std::nearbyint(x[i] * inverse), -7.f, 7.f);
    }
  }
}

Result<std::vector<TensorType>> like_first(const Graph& g, std::span<const ValueId> in, const Attrs&) {
  return std::vector<TensorType>{{Format::f32(), g.value(in[0]).type.shape}};
}

// Host work between kernels: rows of keys or values, one by one.
class HostRows final : public LoweredOp {
 public:
  using Row = void (*)(int64_t code, const float* x, int64_t n, float* range, float* out);
  HostRows(Row row, int64_t code, ThreadPool* pool) : row_(row), code_(code), pool_(pool) {}
  const Kernel* kernel() const override { return nullptr; }
  Status execute(const Operand* in, const Operand* out, HostScratch&) const override {
    const int64_t rows = in[0].dims[0], n = rows > 0 ? in[0].numel() / rows : 0;
    const auto* x = in[0].as<const float>();
    auto *range = in[1].as<float>(), *y = out[0].as<float>();
    auto work = [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) row_(code_, x + t * n, n, range, y + t * n);
    };
    if (pool_ != nullptr) pool_->parallel_for(rows, 16, std::move(work));
    else work(0, rows);
    return ok_status();
  }

 private:
  Row row_;
  int64_t code_;
  ThreadPool* pool_;
};

void round_trip_row(int64_t code, const float* x, int64_t n, float* range, float* out) {
  peer_round_trip(static_cast<PeerCode>(code), x, n, range, out);
}

void observe_row(int64_t, const float* x, int64_t n, float* range, float* out) {
  for (int64_t c = 0; c < n; ++c) {
    range[c] = std::min(range[c], x[c]);
    range[n + c] = std::max(range[n + c], x[c]);
    out[c] = x[c];
  }
}

Lowered lower_round_trip(LowerContext& ctx) {
  return std::unique_ptr<LoweredOp>(
      std::make_unique<HostRows>(round_trip_row, ctx.node.attrs.get_int("code"), &ctx.backend.host_pool()));
}
// One thread: rows share the extremes.
Lowered lower_observe(LowerContext&) {
  return std::unique_ptr<LoweredOp>(std::make_unique<HostRows>(observe_row, 0, nullptr));
}

constexpr OpDef kRoundTrip = {.name = "peer_kv", .infer = like_first, .lower = lower_round_trip};
constexpr OpDef kObserve = {.name = "observe_kv", .infer = like_first, .lower = lower_observe};

// The largest power of two from 64 up that divides a head; 0: none.
int64_t llama_block(int64_t head) {
  if (head % 64 != 0) return 0;
  int64_t block = 64;
  while (head % (block * 2) == 0) block *= 2;
  return block;
}

int64_t channels(const Graph& graph, ValueId id) {
  const DimVector& shape = graph.value(id).type.shape;  // (T, K, D)
  return shape[1].const_value() * shape[2].const_value();
}

// Calls `change` with each attention's keys (side 0) and values (side 1) and puts its result in their place.
template <class Change>
Status for_each_side(Graph& graph, Change&& change) {
  const size_t count = graph.nodes().size();
  std::map<std::pair<ValueId, size_t>, ValueId> changed;  // several attentions may read one
  for (size_t i = 0; i < count; ++i) {
    if (!graph.nodes()[i].is("attention")) continue;
    if (graph.nodes()[i].inputs[2] == kNoValue)
      return unimplemented("other engines' rules for keys and values are not those of a latent");
    for (const size_t side : {size_t{0}, size_t{1}}) {
      const ValueId kept = graph.nodes()[i].inputs[1 + side];
      const auto [at, fresh] = changed.try_emplace({kept, side}, kNoValue);
      if (fresh) { OAR_ASSIGN(at->second, change(kept, side)); }
      graph.nodes()[i].inputs[1 + side] = at->second;
    }
  }
  graph.sort();
  return ok_status();
}

}  // namespace

std::optional<PeerKv> peer_kv(std::string_view name) {
  for (const PeerKv& p : kPeers) {
    if (name == p.name) return p;
  }
  return std::nullopt;
}

std::vector<std::string> peer_kv_names() {
  std::vector<std::string> out;
  for (const PeerKv& p : kPeers) out.emplace_back(p.name);
  return out;
}

void peer_round_trip(PeerCode code, const float* x, int64_t n, const float* range, float* out) {
  if (code == PeerCode::kBlocksQ8) return blocks("q8_0", x, n, out);
  if (code == PeerCode::kBlocksQ4) return blocks("q4_0", x, n, out);
  if (code == PeerCode::kStaticChannel4) return static_channel(x, n, range, out);
  group32(x, n, out);
}

Status insert_peer_kv(Graph& graph, const PeerKv& rule, const std::vector<KvRange>& ranges) {
  size_t next = 0;
  return for_each_side(graph, [&](ValueId x, size_t side) -> Result<ValueId> {
    const int64_t head = graph.value(x).type.shape[2].const_value();
    if (channels(graph, x) % 32 != 0 || (rule.code != PeerCode::kStaticChannel4 && head % 32 != 0)) {
      return unimplemented(cat("kv ", rule.name, " needs heads of a multiple of 32, not ", head));
    }
    const auto apply = [&](const OpDef* op, std::vector<ValueId> in, Attrs attrs) -> Result<ValueId> {
      OAR_ASSIGN(const auto made, graph.add_node(op, std::move(in), std::move(attrs)));
      return made[0];
    };
    ValueId range = kNoValue;
    if (rule.code == PeerCode::kStaticChannel4) {
      OAR_CHECK(next < ranges.size(), "a range for each side of each layer");
      range = graph.add_constant(cat("kv_range", next), ranges[next]);
      ++next;
    }
    const int64_t block = rule.rotate ? (side == 0 ? llama_block(head) : head % 64 == 0 ? 64 : 0) : 0;
    if (block > 0) { OAR_ASSIGN(x, apply(find_op("hadamard"), {x}, {{"block", block}})); }
    std::vector<ValueId> in{x};
    in.push_back(range);
    OAR_ASSIGN(x, apply(&kRoundTrip, std::move(in), {{"code", static_cast<int64_t>(rule.code)}}));
    if (block > 0) {
      OAR_ASSIGN(x, apply(find_op("hadamard"), {x}, {{"block", block}, {"inverse", int64_t{1}}}));
    }
    return x;
  });
}

Status observe_kv(Graph& graph, std::vector<KvRange>& ranges) {
  return for_each_side(graph, [&](ValueId x, size_t) -> Result<ValueId> {
    const int64_t n = channels(graph, x);
    OAR_ASSIGN(Tensor range, Tensor::allocate({2, n}, Format::f32()));
    const auto values = range.mutable_values<float>();
    std::fill_n(values.begin(), n, std::numeric_limits<float>::infinity());
    std::fill_n(values.begin() + n, n, -std::numeric_limits<float>::infinity());
    const ValueId table = graph.add_constant(cat("kv_range", ranges.size()), range);
    ranges.push_back(std::move(range));
    OAR_ASSIGN(const auto made, graph.add_node(&kObserve, {x, table}, {}));
    return made[0];
  });
}

}  // namespace oar

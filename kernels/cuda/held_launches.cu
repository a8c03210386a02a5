#include "kernels/cuda/held_launches.h"

#include <algorithm>
#include <span>
#include <utility>

#include "kernels/cuda/heads.h"
#include "kernels/cuda/matmul_mixed.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/rope.h"

namespace oar::cuda {
namespace {

// Memory that rows of heads lie in.
struct Span {
  const float* at;
  int64_t rows, width, ld;
  bool operator==(const Span&) const = default;
  // Some of its columns.
  bool within(const Span& o) const {
    return rows == o.rows && ld == o.ld && at >= o.at && at + width <= o.at + o.width;
  }
  bool meets(const Span& o) const {
    const float *end = at + (rows - 1) * ld + width, *other = o.at + (o.rows - 1) * o.ld + o.width;
    return at < other && o.at < end;
  }
};
Span read_by(const RopeArgs& a) { return {a.x, a.T, (a.heads - 1) * a.step_of_x() + a.D, a.ldx}; }
Span written_by(const RopeArgs& a) { return {a.out, a.T, (a.heads - 1) * a.step_of_out() + a.D, a.ldo}; }
Span read_by(const HadamardArgs& a) { return {a.x, a.rows, a.n, a.ldx}; }
Span written_by(const HadamardArgs& a) { return {a.out, a.rows, a.n, a.ldo}; }

// Each piece of memory of an op: f(span, whether it is written).
template <class F>
void for_spans(const RmsNormArgs& a, const F& f) {
  f(Span{a.x, a.rows, a.cols, a.ldx}, false);
  f(Span{a.residual, a.rows, a.cols, a.cols}, false);
  f(Span{a.out, a.rows, a.cols, a.ldo}, true);
  f(Span{a.sum_out, a.rows, a.cols, a.cols}, true);
}
template <class F>
void for_spans(const SwiGluArgs& a, const F& f) {
  f(Span{a.gate, a.T, a.F, a.ldg}, false);
  f(Span{a.up, a.T, a.F, a.ldu}, false);
  f(Span{a.out, a.T, a.F, a.ldo}, true);
}
template <class F>
void for_spans(const MoeCombineArgs& a, const F& f) {
  const int64_t pairs = a.T * a.top_k;
  f(Span{a.y, pairs, a.E, a.E}, false);
  f(Span{a.pair_weight, 1, pairs, 0}, false);
  f(Span{reinterpret_cast<const float*>(a.pair_slot), 1, pairs, 0}, false);
  f(Span{a.out, a.T, a.E, a.E}, true);
}
template <class F>
void for_spans(const HadamardArgs& a, const F& f) {
  f(read_by(a), false);
  f(written_by(a), true);
}
template <class F>
void for_spans(const RopeArgs& a, const F& f) {
  f(read_by(a), false);
  f(Span{a.norm_w, 1, a.D, 0}, false);
  f(Span{a.inv_freq, 1, a.rot_dim / 2, 0}, false);
  f(Span{reinterpret_cast<const float*>(a.positions), 1, a.T, 0}, false);
  f(written_by(a), true);
}
template <class F>
void for_spans(const RowSteps& s, const F& f) {
  std::visit([&](const auto& a) { for_spans(a, f); }, s.made);
  for_spans(s.transform.value_or(HadamardArgs{}), f);
}
template <class F>
void for_spans(const GatedMatmulArgs& g, const F& f) {
  const MatmulArgs& m = g.matmul;
  int64_t width = 0;
  for (const MatmulSegment& s : std::span(m.segments, static_cast<size_t>(m.num_segments)))
    width = std::max(width, s.out_col + s.n);
  f(Span{m.x, m.T, m.K, m.ldx}, false);
  f(Span{g.gate, m.T, m.K, g.ld_gate}, false);
  f(Span{m.residual, m.T, width, m.ldo}, false);
  f(Span{m.out, m.T, width, m.ldo}, true);
}
// Whether an op may come in front of another that it was behind.
template <class A, class B>
bool independent(const A& a, const B& b) {
  bool apart = true;
  for_spans(a, [&](const Span& of_a, bool a_writes) {
    for_spans(b, [&](const Span& of_b, bool b_writes) {
      if (of_a.at != nullptr && of_b.at != nullptr && (a_writes || b_writes))
        apart = apart && !of_a.meets(of_b);
    });
  });
  return apart;
}

// Whether they are apart, or row lies upon row.
bool row_by_row(const Span& a, const Span& b) {
  return a.at == nullptr || b.at == nullptr || !a.meets(b) || (a.at == b.at && a.ld == b.ld);
}

// The same of all that two ops touch, but for what both read.
template <class A, class B>
bool row_by_row(const A& a, const B& b) {
  bool by_rows = true;
  for_spans(a, [&](const Span& of_a, bool a_writes) {
    for_spans(b, [&](const Span& of_b, bool b_writes) {
      if (a_writes || b_writes) by_rows = by_rows && row_by_row(of_a, of_b);
    });
  });
  return by_rows;
}

Span end_of(const HeadSteps& s) { return s.transforms() ? written_by(s.hadamard) : written_by(s.rope); }

// Which steps belong together, of those held: a transform goes behind the rotation that it reads.
class Matcher {
 public:
  void add(const RopeArgs& a) { chains_[count_++].rope = a; }
  void add(const HadamardArgs& a) {
    for (HeadSteps& c : chains()) {
      if (!c.transforms() && c.rope.out_step == 0 && written_by(c.rope) == read_by(a)) {
        c.hadamard = a;
        return;
      }
    }
    chains_[count_++].hadamard = a;
  }

  // False: they are no heads of this append, or would meet in memory.
  template <class Append>
  bool heads_of(const Append& a, Heads* out) {
    const int64_t D = a.shape.head_dim, width = int64_t{a.shape.kv_heads} * D;
    if (D > kMaxHeadDim) return false;
    const Span keys{a.k, a.T, width, a.ldk}, values{a.v, a.T, width, a.ldv};
    const HeadSteps *k = nullptr, *v = nullptr, *q = nullptr;
    for (const HeadSteps& c : chains()) {
      if (!whole_heads(c, a.T, D)) return false;
      const HeadSteps*& place = end_of(c) == keys ? k : end_of(c) == values ? v : q;
      if (place != nullptr) return false;
      place = &c;
    }
    if (k == nullptr || !apart(q, k, v, keys, &values)) return false;
    out->k = *k;
    if (v != nullptr) out->v = *v;
    if (q != nullptr) {
      out->q = *q;
      out->query_heads = end_of(*q).width / D;
    }
    return true;
  }
  // The same of keys that hold values: of a row there is one, of which some columns rotate, as some do of
  // each query's.
  template <class Append>
  bool parts_of(const Append& a, Heads* out) {
    if (a.shape.kv_heads != 1) return false;
    const Span keys{a.k, a.T, a.shape.head_dim, a.ldk};
    const HeadSteps *k = nullptr, *q = nullptr;
    for (const HeadSteps& c : chains()) {
      if (!c.rotates() || c.transforms() || c.rope.T != a.T) return false;
      const HeadSteps*& place = c.rope.heads == 1 && end_of(c).within(keys) ? k : q;
      if (place != nullptr) return false;
      place = &c;
    }
    if (k == nullptr || !apart(q, k, nullptr, keys, nullptr)) return false;
    out->k = *k;
    if (q != nullptr) {
      out->q = *q;
      out->query_heads = q->rope.heads;
    }
    return true;
  }

 private:
  static bool whole_heads(const HeadSteps& c, int64_t T, int64_t D) {
    const bool turned = !c.rotates() || (c.rope.T == T && c.rope.D == D && c.rope.out_step == 0);
    return turned &&
           (!c.transforms() || (c.hadamard.rows == T && c.hadamard.block == D && c.hadamard.n % D == 0));
  }

  // Nobody writes where another warp reads or writes. A chain's own steps may be in place, or in columns of
  // the keys: a warp has done one step of its head before the next. `values` null: keys hold them.
  static bool apart(const HeadSteps* q, const HeadSteps* k, const HeadSteps* v, const Span& keys,
                    const Span* values) {
    struct Use {
      Span span;
      bool written;
      int chain;
    };
    Use uses[2 + 3 * 4] = {{keys, false, 1}};
    size_t n = 1;
    if (values != nullptr) uses[n++] = {*values, false, v != nullptr ? 2 : 3};
    const HeadSteps* const chains[] = {q, k, v};
    for (int i = 0; i < 3; ++i) {
      if (chains[i] == nullptr) continue;
      const auto add = [&](const auto& step) {
        uses[n++] = {read_by(step), false, i};
        uses[n++] = {written_by(step), true, i};
      };
      if (chains[i]->rotates()) add(chains[i]->rope);
      if (chains[i]->transforms()) add(chains[i]->hadamard);
    }
    const std::span<const Use> all(uses, n);
    return std::ranges::none_of(all, [&](const Use& a) {
      return a.written && std::ranges::any_of(all, [&](const Use& b) {
               const bool own =
                   a.chain == b.chain && (a.span == b.span || (&b == uses && a.span.within(keys)));
               return &a != &b && a.span.meets(b.span) && !own;
             });
    });
  }

  std::span<HeadSteps> chains() { return {chains_, count_}; }

  HeadSteps chains_[HeldLaunches::kMost];
  size_t count_ = 0;
};

// Whether it is a product that is held; of every product its arguments.
bool product_of(const DeviceKernel& kernel, const void* args, GatedMatmulArgs* out) {
  *out = {};
  if (kernel.family != KernelFamily::kMatmul && kernel.family != KernelFamily::kGatedMatmul) return false;
  if (kernel.family == KernelFamily::kMatmul) out->matmul = *static_cast<const MatmulArgs*>(args);
  else *out = *static_cast<const GatedMatmulArgs*>(args);
  return kernel.with_norms != nullptr && takes_norm(out->matmul);
}

bool element_of(const DeviceKernel& kernel, const void* args, ElementStep* out) {
  if (kernel.family == KernelFamily::kRope) return element_step(*static_cast<const RopeArgs*>(args), out);
  if (kernel.family == KernelFamily::kUnary) return element_step(*static_cast<const UnaryArgs*>(args), out);
  if (kernel.family == KernelFamily::kBinary) return element_step(*static_cast<const BinaryArgs*>(args), out);
  if (kernel.family == KernelFamily::kSwiGlu) return element_step(*static_cast<const SwiGluArgs*>(args), out);
  return false;
}

}  // namespace

size_t HeldLaunches::HeldProduct::matrices() const {
  return experts ? static_cast<size_t>(experts->experts * experts->segments_per_expert) : heads.size();
}

// The rows of one tile are normed while other tiles are not done yet: neither may touch what is the other's.
bool HeldLaunches::HeldProduct::precedes(const RmsNormArgs& norm) const {
  const MatmulArgs& m = args.matmul;
  if (experts || norm.rows != m.T || norm.cols <= 0 || !heads.empty()) return false;
  int64_t width = 0;
  for (const MatmulSegment& s : segments) width = std::max(width, s.out_col + s.n);
  const auto rows = [&](const float* at, int64_t cols, int64_t ld) { return Span{at, m.T, cols, ld}; };
  const Span made = rows(m.out, width, m.ldo), scaled = rows(scale ? scale->out : nullptr, width, m.ldo),
             read[] = {rows(norm.x, norm.cols, norm.ldx), rows(norm.residual, norm.cols, norm.cols)},
             written[] = {rows(norm.out, norm.cols, norm.ldo), rows(norm.sum_out, norm.cols, norm.cols)},
             used[] = {made, scaled, rows(m.x, m.K, m.ldx), rows(m.residual, width, m.ldo),
                       rows(args.gate, m.K, args.ld_gate)};
  if (m.T <= kTileRows) return true;  // there is one tile
  for (const RmsNormArgs& before : its_norms()) {
    if (!row_by_row(before, norm)) return false;
  }
  return std::ranges::all_of(read,
                             [&](const Span& r) { return row_by_row(r, made) && row_by_row(r, scaled); }) &&
         std::ranges::all_of(written, [&](const Span& w) {
           return std::ranges::all_of(used, [&](const Span& u) { return row_by_row(w, u); });
         });
}

// The next head of the same product: as far behind this one as this one is behind the one before. Heads are
// multiplied side by side, so nobody may write what others read.
bool HeldLaunches::HeldProduct::joined_by(const DeviceKernel& other, const GatedMatmulArgs& head) {
  const MatmulArgs &m = args.matmul, &next = head.matmul;
  const auto lone = [](const GatedMatmulArgs& a) {
    return a.gate == nullptr && a.matmul.residual == nullptr && a.matmul.num_segments == 1 &&
           a.matmul.segments[0].bias == nullptr;
  };
  if (experts || &other != kernel || other.of_heads == nullptr || norms_count > 0 || !lone(args) ||
      !lone(head))
    return false;
  const MatmulSegment &one = m.segments[0], &its = next.segments[0];
  if (next.T != m.T || next.K != m.K || next.ldx != m.ldx || next.ldo != m.ldo || its.n != one.n ||
      its.out_col != one.out_col)
    return false;
  const auto count = static_cast<int64_t>(std::max<size_t>(heads.size(), 1));
  const int64_t step = heads.empty() ? next.x - m.x : x_step,
                to = heads.empty() ? next.out - m.out : out_step;
  if (next.x != m.x + count * step || next.out != m.out + count * to || count == Product::kMatrices)
    return false;
  const int64_t columns = one.out_col + count * to + one.n;
  if (step <= 0 || to < one.n || (m.T > 1 && columns > m.ldo)) return false;
  if (Span{m.x, m.T, count * step + m.K, m.ldx}.meets(Span{m.out, m.T, columns, m.ldo})) return false;
  if (heads.empty()) heads.push_back(one.w);
  heads.push_back(its.w);
  const ChainKernel its_chain = other.chain(head);
  if (its_chain.launch != chain.launch) chain = {};
  chain.tiles += its_chain.tiles;
  x_step = step;
  out_step = to;
  return true;
}

// Heads are transformed while others of other rows still read their queries.
bool HeldLaunches::HeldAttention::precedes(const HadamardArgs& t) const {
  const PagedAttentionArgs& a = args.common;
  const int64_t D = a.shape.value_dim();
  const bool heads = t.x == a.out && t.ldx == a.ldo && t.rows == a.T && t.n == a.H * D && t.block == D;
  if (!heads || a.T <= 0 || D != a.shape.head_dim || D > kMaxHeadDim) return false;
  const Span queries{a.q, a.T, t.n, a.ldq}, out{a.out, a.T, t.n, a.ldo};
  return row_by_row(written_by(t), queries) && row_by_row(written_by(t), out);
}

namespace {

// Whether a row's block may do both: others read nothing of what it writes.
bool precedes(const MoeCombineArgs& a, const RmsNormArgs& norm) {
  const bool same = norm.rows == a.T && norm.cols == a.E;
  if (!same || !((norm.x == a.out && norm.ldx == a.E) || norm.residual == a.out)) return false;
  const Span made{a.out, a.T, a.E, a.E},
      read[] = {{a.y, a.T * a.top_k, a.E, a.E},
                {a.pair_weight, 1, a.T * a.top_k, 0},
                {reinterpret_cast<const float*>(a.pair_slot), 1, a.T * a.top_k, 0}};
  bool apart = true;
  for_spans(norm, [&](const Span& s, bool written) {
    apart = apart && row_by_row(s, made);
    for (const Span& r : read) apart = apart && !(written && s.meets(r));
  });
  return apart;
}

// What could be part of the launch of experts' second layers: x is what the gate makes, and nobody writes
// where others read or write.
bool takes_gate(const GroupedMatmulArgs& a, const SwiGluArgs& gate) {
  const bool same = a.x == gate.out && a.ldx == gate.ldo && a.K == gate.F && a.P == gate.T;
  if (!same || a.pair_token != nullptr || a.segments_per_expert != 1 || a.experts <= 0 || a.P <= 0 ||
      a.K <= 0 || !has_few_rows(a) || !(gate.act != UnaryOp::kSilu || gate.plain()))
    return false;
  const Span out{a.out, a.P, a.segments[0].out_col + a.segments[0].n, a.ldo},
      made{gate.out, gate.T, gate.F, gate.ldo};
  bool apart = true;
  for_spans(gate, [&](const Span& s, bool written) {
    apart = apart && (written || (!s.meets(out) && !s.meets(made)));
  });
  return apart;
}

}  // namespace

// One that is held for it.
std::optional<SwiGluArgs> HeldLaunches::take_gate(const GroupedMatmulArgs& experts) {
  if (gate_ && takes_gate(experts, *gate_)) return std::exchange(gate_, std::nullopt);
  if (!rows_ || rows_->transform || products_count_ > 0) return {};
  const auto* const gate = std::get_if<SwiGluArgs>(&rows_->made);
  if (gate == nullptr || !takes_gate(experts, *gate)) return {};
  const SwiGluArgs taken = *gate;
  rows_.reset();
  return taken;
}

// Whoever comes last does all of it.
bool HeldLaunches::HeldProduct::joined_by(const MoeCombineArgs& combine) {
  if (!experts || steps.combine || !takes_combine(*experts, combine)) return false;
  steps.combine = combine;
  return true;
}
// Rows that it makes, whole, times one number. While tiles of other columns are not done it may lie upon
// nothing that they read, but for the same number's place.
bool HeldLaunches::HeldProduct::joined_by(const BinaryArgs& b) {
  const MatmulArgs& m = args.matmul;
  if (experts || scale || chain.launch == nullptr || !heads.empty() || norms_count > 0) return false;
  if (b.op != BinaryOp::kMul || b.b_row != 0 || b.b_col != 0 || b.rows * b.cols != m.T * m.ldo ||
      b.a != m.out)
    return false;
  int64_t columns = 0;
  for (const MatmulSegment& s : segments) columns += s.n;
  const Span scaled{b.out, m.T, m.ldo, m.ldo}, number{b.b, 1, 1, 0}, x{m.x, m.T, m.K, m.ldx},
      gate{args.gate, m.T, m.K, args.ld_gate}, out{m.out, m.T, m.ldo, m.ldo},
      residual{m.residual, m.T, m.ldo, m.ldo};
  const auto apart = [](const Span& s, const Span& o) { return o.at == nullptr || !s.meets(o); };
  if (columns != m.ldo || !apart(scaled, x) || !apart(scaled, gate) || !apart(number, scaled) ||
      !apart(number, out) || (residual.at != scaled.at && !apart(scaled, residual)))
    return false;
  scale = b;
  return true;
}
bool HeldLaunches::HeldProduct::adds(const RmsNormArgs& norm) {
  const bool few = norm.rows > 0 && norm.rows <= kElementNormRows && norm.cols > 0;
  const bool behind = !multiplies() ? few
                      : experts     ? steps.combine && norm.rows == steps.combine->T && norm.cols > 0
                                    : precedes(norm);
  if (!behind || norms_count == kMostNorms) return false;
  norms[norms_count++] = norm;
  return true;
}

// What follows products that are held, of which there are some, and becomes part of the last one.
bool HeldLaunches::joins_product(const DeviceKernel& kernel, const void* args) {
  HeldProduct& last = products_[products_count_ - 1];
  if (kernel.family == KernelFamily::kMoeCombine)
    return last.joined_by(*static_cast<const MoeCombineArgs*>(args));
  if (kernel.family == KernelFamily::kBinary) return last.joined_by(*static_cast<const BinaryArgs*>(args));
  return kernel.family == KernelFamily::kRmsNorm && (last.multiplies() || !holds_rows_) &&
         last.adds(*static_cast<const RmsNormArgs*>(args));
}

// Whether it is of the rows that the last product makes, of those that are held, all of their columns; or of
// what an elementwise op behind products makes of some.
bool HeldLaunches::follows_last(const MoeRouteArgs& a) const {
  const HeldProduct& last = products_[products_count_ - 1];
  if (!last.multiplies()) {
    const auto made = [&](const ElementStep& s) { return s.out == a.logits && s.n == a.T * a.experts; };
    return std::ranges::any_of(products(), &HeldProduct::multiplies) && fits_chain(a) &&
           std::any_of(last.elements.steps, last.elements.steps + last.elements.count, made);
  }
  const MatmulArgs& m = last.args.matmul;
  return last.chain.launch != nullptr && !last.experts && last.heads.empty() && fits_chain(a) &&
         a.logits == m.out && a.T == m.T && a.experts == m.ldo;
}

// Held are rows that could be rounded, if by these kernels; a transform of rows that are held, of a block's
// size and so that no block meets the rows of another.
bool HeldLaunches::joins_rows(const DeviceKernel& kernel, const void* args) {
  if (kernel.family == KernelFamily::kHadamard && rows_ && !rows_->transform && products_count_ == 0) {
    const auto& t = *static_cast<const HadamardArgs*>(args);
    const bool same =
        t.x == rows_->out() && t.ldx == rows_->ld() && t.rows == rows_->rows() && t.n == rows_->cols();
    bool by_rows = same && takes_transform(t);
    for_spans(*rows_, [&](const Span& s, bool) { by_rows = by_rows && row_by_row(written_by(t), s); });
    if (by_rows) rows_->transform = t;
    return by_rows;
  }
  if (!holds_rows_ || rows_ || products_count_ > 0) return false;
  RowSteps steps;
  if (kernel.family == KernelFamily::kRmsNorm) steps.made = *static_cast<const RmsNormArgs*>(args);
  else if (kernel.family == KernelFamily::kSwiGlu) steps.made = *static_cast<const SwiGluArgs*>(args);
  else return false;
  constexpr int64_t kWidth = 8;  // of elements that narrow_rows() takes
  if (steps.rows() <= 0 || steps.rows() > INT32_MAX || steps.cols() <= 0 || steps.cols() % kWidth != 0)
    return false;
  rows_ = steps;
  return true;
}

CudaStatus HeldLaunches::release_rows() {
  if (!rows_) return {};
  const RowSteps steps = *std::exchange(rows_, std::nullopt);
  return {make_rows(steps, stream_)};
}

std::optional<RowSteps> HeldLaunches::take_rows(const MatmulArgs& product, const void* scratch,
                                                uint64_t bytes, Stream stream) {
  if (!rows_ || stream != stream_ || bytes == 0 || product.K != rows_->cols() || product.ldx != rows_->ld())
    return {};
  const int64_t at = product.x - rows_->out(), first = at / product.ldx;
  if (at < 0 || at % product.ldx != 0 || first + product.T > rows_->rows()) return {};
  // A block's rounded rows may come before another has read its own.
  bool apart = true;
  const Span rounded{static_cast<const float*>(scratch), 1,
                     static_cast<int64_t>((bytes + sizeof(float) - 1) / sizeof(float)), 0};
  for_spans(*rows_, [&](const Span& s, bool) { apart = apart && (s.at == nullptr || !rounded.meets(s)); });
  if (products_count_ > 0) {
    GatedMatmulArgs all;
    all.matmul = product;
    const GatedMatmulArgs& held = products_[0].args;
    for_spans(held, [&](const Span& s, bool) { apart = apart && (s.at == nullptr || !rounded.meets(s)); });
    apart = apart && independent(held, all);
  }
  if (!apart) return {};
  return std::exchange(rows_, std::nullopt);
}

void HeldLaunches::hold(const DeviceKernel& kernel, const void* args, void* scratch) {
  Held& held = held_[count_++];
  held.kernel = &kernel;
  held.scratch = scratch;
  if (kernel.family == KernelFamily::kRope) held.args = *static_cast<const RopeArgs*>(args);
  else held.args = *static_cast<const HadamardArgs*>(args);
}

// Of all products.
size_t HeldLaunches::matrices() const {
  size_t sum = 0;
  for (const HeldProduct& p : std::span(products_, products_count_)) sum += p.matrices();
  return sum;
}

// What launches one more behind these, too: the kernel of all of them, or the one that has all weights. Null:
// neither. Every kernel has elementwise ops.
LaunchChain HeldLaunches::launch_of(std::span<const HeldProduct> products, const ChainKernel& more) {
  bool alike = true, mixed = mixes(more);
  for (const HeldProduct& p : products) {
    if (!p.multiplies()) continue;
    alike = alike && p.chain.launch == more.launch;
    mixed = mixed && mixes(p.chain);
  }
  return alike ? more.launch : mixed ? launch_mixed : nullptr;
}

// Behind each other they need not be apart: each begins when all blocks of the one before are done.
bool HeldLaunches::joins(const ChainKernel& chain, size_t more) const {
  if (products_count_ == 0 || products_count_ == ProductChain::kSteps) return false;
  return launch_of(std::span(products_, products_count_), chain) != nullptr &&
         matrices() + more <= ProductChain::kMatrices;
}

HeldLaunches::HeldProduct& HeldLaunches::hold(const DeviceKernel& product,
                                              std::span<const MatmulSegment> segments,
                                              const ChainKernel& chain) {
  HeldProduct& held = products_[products_count_++];
  held.elements = {};
  held.kernel = &product;
  held.segments.assign(segments.begin(), segments.end());
  held.norms_count = 0;
  held.heads.clear();
  held.x_step = held.out_step = 0;
  held.experts.reset();
  held.scale.reset();
  held.chain = chain;
  return held;
}
void HeldLaunches::hold(const DeviceKernel& product, const GatedMatmulArgs& args, const ChainKernel& chain) {
  const MatmulArgs& m = args.matmul;
  HeldProduct& held = hold(product, std::span(m.segments, static_cast<size_t>(m.num_segments)), chain);
  held.args = args;
  held.args.matmul.segments = held.segments.data();
}
void HeldLaunches::hold(const DeviceKernel& kernel, const GroupedMatmulArgs& args,
                        const std::optional<SwiGluArgs>& gate, const ChainKernel& chain) {
  const auto count = static_cast<size_t>(args.experts * args.segments_per_expert);
  HeldProduct& held = hold(kernel, std::span(args.segments, count), chain);
  held.experts = args;
  held.experts->segments = held.segments.data();
  held.steps = {gate, {}, {}};
}

// Too many heads have a launch of their own, and so have those that others may not follow or precede.
CudaStatus HeldLaunches::join_head(const DeviceKernel& product, const GatedMatmulArgs& args, bool* joined) {
  *joined = products_count_ > 0 && products_[products_count_ - 1].joined_by(product, args);
  if (!*joined || products_count_ == 1) return {};
  const size_t before = products_count_ - 1;
  const bool apart = launch_of(std::span(products_, before), products_[before].chain) == nullptr ||
                     matrices() > ProductChain::kMatrices;
  return apart ? release_products(before) : CudaStatus{};
}

// The first of them; others stay.
CudaStatus HeldLaunches::release_products(size_t count) {
  const std::span products(products_, count);
  const CudaStatus status = launch_products(products);
  for (size_t i = count; i < products_count_; ++i) std::swap(products_[i - count], products_[i]);
  products_count_ -= count;
  return status;
}

CudaStatus HeldLaunches::launch_products(std::span<HeldProduct> products, const ChainedRoute& route) {
  for (HeldProduct& p : products) p.steps.norms = p.its_norms();
  const auto multiplies = std::ranges::find_if(products, &HeldProduct::multiplies);
  if (multiplies == products.end()) {
    for (const HeldProduct& p : products) {
      if (const CudaStatus status = launch_elements(p); !status.ok()) return status;
    }
    return {};
  }
  const HeldProduct& first = *multiplies;
  if (products.size() == 1 && route.args == nullptr && !first.scale) {
    if (first.experts) return first.kernel->with_steps(&*first.experts, first.steps, stream_);
    if (!first.heads.empty())
      return first.kernel->of_heads(first.args.matmul, {first.heads, first.x_step, first.out_step}, stream_);
    const bool plain = first.kernel->family == KernelFamily::kMatmul;
    return first.kernel->with_norms(plain ? static_cast<const void*>(&first.args.matmul) : &first.args,
                                    first.its_norms(), stream_);
  }
  ChainedProduct chained[ProductChain::kSteps];
  for (size_t i = 0; i < products.size(); ++i) {
    const HeldProduct& p = products[i];
    chained[i] = {p.chain.kind,
                  &p.args,
                  p.its_norms(),
                  p.scale ? &*p.scale : nullptr,
                  {p.heads, p.x_step, p.out_step},
                  p.experts ? &*p.experts : nullptr,
                  &p.steps,
                  p.multiplies() ? nullptr : &p.elements};
  }
  return run_chain(std::span(chained, products.size()), route, launch_of(products, first.chain), stream_);
}

CudaStatus HeldLaunches::launch(const DeviceKernel& kernel, const void* args, void* scratch, Stream stream) {
  if (stream != stream_) {
    if (const CudaStatus status = release(); !status.ok()) return status;
    stream_ = stream;
  }
  ElementStep element;
  const bool is_element = element_of(kernel, args, &element);
  GatedMatmulArgs product;
  const bool multiplies =
      kernel.family == KernelFamily::kMatmul || kernel.family == KernelFamily::kGatedMatmul;
  const bool holds = product_of(kernel, args, &product);
  if (multiplies && product.matmul.T == 0) return {};  // rows of the other class: there are none
  if (kernel.with_steps != nullptr) {
    const auto& experts = *static_cast<const GroupedMatmulArgs*>(args);
    const std::optional<SwiGluArgs> gate = take_gate(experts);
    const ChainKernel chain = kernel.chain_of_experts(experts, gate);
    if (gate || chain.launch != nullptr || may_combine(experts)) {
      if (gate_ || !joins(chain, static_cast<size_t>(experts.experts * experts.segments_per_expert))) {
        if (const CudaStatus status = release(); !status.ok()) return status;
      }
      hold(kernel, experts, gate, chain);
      return {};
    }
  }
  if (kernel.family == KernelFamily::kMoeRoute && products_count_ > 0 && !rows_ && !gate_) {
    const auto* const route = static_cast<const MoeRouteArgs*>(args);
    if (follows_last(*route)) {
      const size_t count = std::exchange(products_count_, 0);
      return launch_products(std::span(products_, count), {route, scratch});
    }
  }
  if (gate_) {
    if (const CudaStatus status = release(); !status.ok()) return status;
  }
  if (rows_) {
    if (joins_rows(kernel, args)) return {};
    // Rows of generated tokens in front of those of prompts: of one norm.
    if (holds && products_count_ == 0) {
      hold(kernel, product, kernel.chain(product));
      return {};
    }
    if (const CudaStatus status = release_rows(); !status.ok()) return status;
  }
  if (products_count_ > 0 && joins_product(kernel, args)) return {};
  if (is_element && joins_elements(kernel, element)) return {};
  if (combine_) {
    const MoeCombineArgs combine = *std::exchange(combine_, std::nullopt);
    const auto* const norm =
        kernel.family == KernelFamily::kRmsNorm ? static_cast<const RmsNormArgs*>(args) : nullptr;
    if (norm != nullptr && precedes(combine, *norm)) return moe_combine_norm(combine, *norm, stream);
    if (const CudaStatus status = moe_combine(combine, stream); !status.ok()) return status;
  }
  if (bool joined = false; holds) {
    const CudaStatus status = join_head(kernel, product, &joined);
    if (joined || !status.ok()) return status;
  }
  if (kernel.family == KernelFamily::kHadamard && attention_.kernel != nullptr) {
    const auto& transform = *static_cast<const HadamardArgs*>(args);
    if (attention_.precedes(transform)) {
      const DeviceKernel* const attention = std::exchange(attention_.kernel, nullptr);
      return attention->with_transform(&attention_.args, transform, attention_.scratch, stream);
    }
  }
  if (kernel.family == KernelFamily::kRope || kernel.family == KernelFamily::kHadamard) {
    if (count_ == kMost || products_count_ > 0 || attention_.kernel != nullptr) {
      if (const CudaStatus status = release(); !status.ok()) return status;
    }
    hold(kernel, args, scratch);
    return {};
  }
  if (kernel.with_heads != nullptr && count_ > 0) {
    Matcher matcher;
    for (const Held& held : std::span(held_, static_cast<size_t>(count_)))
      std::visit([&](const auto& a) { matcher.add(a); }, held.args);
    Heads heads;
    const auto match = [&](const auto& a) {
      return a.shape.latent > 0 ? matcher.parts_of(a, &heads) : matcher.heads_of(a, &heads);
    };
    const bool together = kernel.family == KernelFamily::kKvAppend
                              ? match(*static_cast<const KvAppendArgs*>(args))
                              : match(*static_cast<const QuantKvAppendArgs*>(args));
    if (together) {
      count_ = 0;
      return kernel.with_heads(heads, args, stream);
    }
  }
  if (is_element) {
    ElementSteps all = take_copies(element);
    if (all.count > 0) {
      if (const CudaStatus status = release(); !status.ok()) return status;
      hold_elements().elements = all;
      return {};
    }
  }
  // A gate may come between the layers of experts.
  const bool between = kernel.family == KernelFamily::kSwiGlu && products_count_ > 0 && !holds_rows_ &&
                       products_[products_count_ - 1].experts &&
                       products_[products_count_ - 1].chain.launch != nullptr;
  const ChainKernel chain = holds ? kernel.chain(product) : ChainKernel{};
  if (!between && !joins(chain, 0)) {
    if (const CudaStatus status = release(); !status.ok()) return status;
  }
  if (holds) {
    hold(kernel, product, chain);
    return {};
  }
  if (joins_rows(kernel, args)) return {};
  if (kernel.family == KernelFamily::kSwiGlu) {
    gate_ = *static_cast<const SwiGluArgs*>(args);
    return {};
  }
  if (kernel.family == KernelFamily::kMoeCombine) {
    const auto& combine = *static_cast<const MoeCombineArgs*>(args);
    if (combine.T > 0 && combine.T <= INT32_MAX && combine.E > 0) {
      combine_ = combine;
      return {};
    }
  }
  if (is_element) {
    HeldProduct& held = hold_elements();
    if (kernel.family == KernelFamily::kUnary) held.first_element = *static_cast<const UnaryArgs*>(args);
    else held.first_element = *static_cast<const BinaryArgs*>(args);
    (void)held.elements.add(element);  // the first has room
    return {};
  }
  if (kernel.with_transform != nullptr) {
    attention_ = {&kernel, *static_cast<const QuantPagedAttentionArgs*>(args), scratch};
    return {};
  }
  return kernel.launch(args, scratch, stream);
}

int64_t HeldLaunches::held() const {
  int64_t of_products = 1;
  if (std::ranges::none_of(products(), &HeldProduct::multiplies)) {  // elementwise ops alone, or nothing
    of_products = 0;
    for (const HeldProduct& p : products()) of_products += 1 + static_cast<int64_t>(p.norms_count);
  }
  return (rows_ ? 1 + rows_->transform.has_value() : 0) + (count_ > 0) + of_products +
         (attention_.kernel != nullptr) + (gate_ && products_count_ == 0) + combine_.has_value();
}

CudaStatus HeldLaunches::release() {
  if (const CudaStatus status = release_rows(); !status.ok()) return status;
  if (products_count_ > 0) {
    if (const CudaStatus status = release_products(products_count_); !status.ok()) return status;
  }
  if (gate_) return swiglu(*std::exchange(gate_, std::nullopt), stream_);
  if (combine_) return moe_combine(*std::exchange(combine_, std::nullopt), stream_);
  if (const DeviceKernel* const attention = std::exchange(attention_.kernel, nullptr); attention != nullptr)
    return attention->launch(&attention_.args, attention_.scratch, stream_);
  const int count = std::exchange(count_, 0);
  for (int i = 0; i < count;) {
    // Rotations that touch nothing of each other's are one launch.
    RopeArgs together[kMost];
    size_t n = 0;
    for (const Held& held : std::span(held_ + i, static_cast<size_t>(count - i))) {
      const auto* const a = std::get_if<RopeArgs>(&held.args);
      const auto apart = [&](const RopeArgs& other) { return independent(*a, other); };
      if (a == nullptr || !std::ranges::all_of(std::span(together, n), apart)) break;
      together[n++] = *a;
    }
    const Held& first = held_[i];
    const auto one = [&](const auto& a) { return first.kernel->launch(&a, first.scratch, stream_); };
    const CudaStatus status = n > 1 ? ropes({together, n}, stream_) : std::visit(one, first.args);
    if (!status.ok()) return status;
    i += static_cast<int>(std::max<size_t>(n, 1));
  }
  return {};
}

}  // namespace oar::cuda

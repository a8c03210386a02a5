#include "kernels/cuda/held_launches.h"

#include <algorithm>
#include <span>
#include <utility>

#include "kernels/cuda/heads.h"

namespace oar::cuda {
namespace {

// Memory that rows of heads lie in.
struct Span {
  const float* at;
  int64_t rows, width, ld;
  bool operator==(const Span&) const = default;
  bool meets(const Span& o) const {
    const float *end = at + (rows - 1) * ld + width, *other = o.at + (o.rows - 1) * o.ld + o.width;
    return at < other && o.at < end;
  }
};
Span read_by(const RopeArgs& a) { return {a.x, a.T, a.heads * a.D, a.ldx}; }
Span written_by(const RopeArgs& a) { return {a.out, a.T, a.heads * a.D, a.ldo}; }
Span read_by(const HadamardArgs& a) { return {a.x, a.rows, a.n, a.ldx}; }
Span written_by(const HadamardArgs& a) { return {a.out, a.rows, a.n, a.ldo}; }

// Whether they are apart, or row lies upon row.
bool row_by_row(const Span& a, const Span& b) {
  return a.at == nullptr || b.at == nullptr || !a.meets(b) || (a.at == b.at && a.ld == b.ld);
}

Span end_of(const HeadSteps& s) { return s.transforms() ? written_by(s.hadamard) : written_by(s.rope); }

// Which steps belong together, of those held: a transform goes behind the rotation that it reads.
class Matcher {
 public:
  void add(const RopeArgs& a) { chains_[count_++].rope = a; }
  void add(const HadamardArgs& a) {
    for (HeadSteps& c : chains()) {
      if (!c.transforms() && written_by(c.rope) == read_by(a)) {
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
    if (D > kMostHeadDim) return false;
    const Span keys{a.k, a.T, width, a.ldk}, values{a.v, a.T, width, a.ldv};
    const HeadSteps *k = nullptr, *v = nullptr, *q = nullptr;
    for (const HeadSteps& c : chains()) {
      if (!whole_heads(c, a.T, D)) return false;
      const HeadSteps*& place = end_of(c) == keys ? k : end_of(c) == values ? v : q;
      if (place != nullptr) return false;
      place = &c;
    }
    if (k == nullptr || !apart(q, k, v, keys, values)) return false;
    out->k = *k;
    if (v != nullptr) out->v = *v;
    if (q != nullptr) {
      out->q = *q;
      out->query_heads = end_of(*q).width / D;
    }
    return true;
  }

 private:
  static bool whole_heads(const HeadSteps& c, int64_t T, int64_t D) {
    const bool turned = !c.rotates() || (c.rope.T == T && c.rope.D == D);
    return turned &&
           (!c.transforms() || (c.hadamard.rows == T && c.hadamard.block == D && c.hadamard.n % D == 0));
  }

  // Nobody writes where another warp reads or writes. A chain's own steps may be in place: a warp has done
  // one step of its head before the next.
  static bool apart(const HeadSteps* q, const HeadSteps* k, const HeadSteps* v, const Span& keys,
                    const Span& values) {
    struct Use {
      Span span;
      bool written;
      int chain;
    };
    Use uses[2 + 3 * 4] = {{keys, false, 1}, {values, false, v != nullptr ? 2 : 3}};
    size_t n = 2;
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
               return &a != &b && a.span.meets(b.span) && !(a.chain == b.chain && a.span == b.span);
             });
    });
  }

  std::span<HeadSteps> chains() { return {chains_, count_}; }

  HeadSteps chains_[HeldLaunches::kMost];
  size_t count_ = 0;
};

// Whether a product is held, and its arguments.
bool product_of(const DeviceKernel& kernel, const void* args, GatedMatmulArgs* out) {
  *out = {};
  if (kernel.family == KernelFamily::kMatmul) out->matmul = *static_cast<const MatmulArgs*>(args);
  else *out = *static_cast<const GatedMatmulArgs*>(args);
  return takes_norm(out->matmul);
}

}  // namespace

// The rows of one tile are normed while other tiles are not done yet: neither may touch what is the other's.
bool HeldLaunches::HeldProduct::precedes(const RmsNormArgs& norm) const {
  const MatmulArgs& m = args.matmul;
  if (norm.rows != m.T || norm.cols <= 0) return false;
  int64_t width = 0;
  for (const MatmulSegment& s : std::span(segments, static_cast<size_t>(m.num_segments)))
    width = std::max(width, s.out_col + s.n);
  const auto rows = [&](const float* at, int64_t cols, int64_t ld) { return Span{at, m.T, cols, ld}; };
  const Span made = rows(m.out, width, m.ldo),
             read[] = {rows(norm.x, norm.cols, norm.ldx), rows(norm.residual, norm.cols, norm.cols)},
             written[] = {rows(norm.out, norm.cols, norm.ldo), rows(norm.sum_out, norm.cols, norm.cols)},
             used[] = {made, rows(m.x, m.K, m.ldx), rows(m.residual, width, m.ldo),
                       rows(args.gate, m.K, args.ld_gate)};
  if (m.T <= kTileRows) return true;  // there is one tile
  return std::ranges::all_of(read, [&](const Span& r) { return row_by_row(r, made); }) &&
         std::ranges::all_of(written, [&](const Span& w) {
           return std::ranges::all_of(used, [&](const Span& u) { return row_by_row(w, u); });
         });
}

// Heads are transformed while others of other rows still read their queries.
bool HeldLaunches::HeldAttention::precedes(const HadamardArgs& t) const {
  const PagedAttentionArgs& a = args.common;
  const int64_t D = a.shape.value_dim();
  const bool heads = t.x == a.out && t.ldx == a.ldo && t.rows == a.T && t.n == a.H * D && t.block == D;
  if (!heads || a.T <= 0 || D != a.shape.head_dim || D > kMostHeadDim) return false;
  const Span queries{a.q, a.T, t.n, a.ldq}, out{a.out, a.T, t.n, a.ldo};
  return row_by_row(written_by(t), queries) && row_by_row(written_by(t), out);
}

void HeldLaunches::hold(const DeviceKernel& kernel, const void* args, void* scratch) {
  Held& held = held_[count_++];
  held.kernel = &kernel;
  held.scratch = scratch;
  if (kernel.family == KernelFamily::kRope) held.args = *static_cast<const RopeArgs*>(args);
  else held.args = *static_cast<const HadamardArgs*>(args);
}

// Behind each other they need not be apart: each begins when all blocks of the one before are done.
bool HeldLaunches::joins(const DeviceKernel& product, const GatedMatmulArgs& args) const {
  if (products_count_ == 0 || products_count_ == ProductChain::kSteps) return false;
  const HeldProduct& first = products_[0];
  const LaunchChain chain = product.chain(args);
  return chain != nullptr && chain == first.kernel->chain(first.args);
}

void HeldLaunches::hold(const DeviceKernel& product, const GatedMatmulArgs& args) {
  HeldProduct& held = products_[products_count_++];
  held.kernel = &product;
  held.args = args;
  held.norm.reset();
  MatmulArgs& m = held.args.matmul;
  std::copy_n(m.segments, m.num_segments, held.segments);
  m.segments = held.segments;
}

CudaStatus HeldLaunches::release_products() {
  const std::span products(products_, std::exchange(products_count_, 0));
  const HeldProduct& first = products[0];
  if (products.size() == 1) {
    const bool plain = first.kernel->family == KernelFamily::kMatmul;
    return first.kernel->with_norm(plain ? static_cast<const void*>(&first.args.matmul) : &first.args,
                                   first.its_norm(), stream_);
  }
  ChainedProduct chained[ProductChain::kSteps];
  for (size_t i = 0; i < products.size(); ++i) chained[i] = {&products[i].args, products[i].its_norm()};
  return run_chain(std::span(chained, products.size()), first.kernel->chain(first.args), stream_);
}

CudaStatus HeldLaunches::launch(const DeviceKernel& kernel, const void* args, void* scratch, Stream stream) {
  if (stream != stream_) {
    if (const CudaStatus status = release(); !status.ok()) return status;
    stream_ = stream;
  }
  if (kernel.family == KernelFamily::kRmsNorm && products_count_ > 0) {
    HeldProduct& last = products_[products_count_ - 1];
    const auto& norm = *static_cast<const RmsNormArgs*>(args);
    if (!last.norm && last.precedes(norm)) {
      last.norm = norm;
      return {};
    }
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
    const bool together = kernel.family == KernelFamily::kKvAppend
                              ? matcher.heads_of(*static_cast<const KvAppendArgs*>(args), &heads)
                              : matcher.heads_of(*static_cast<const QuantKvAppendArgs*>(args), &heads);
    if (together) {
      count_ = 0;
      return kernel.with_heads(heads, args, stream);
    }
  }
  GatedMatmulArgs product;
  const bool holds = kernel.with_norm != nullptr && product_of(kernel, args, &product);
  if (!holds || !joins(kernel, product)) {
    if (const CudaStatus status = release(); !status.ok()) return status;
  }
  if (holds) {
    hold(kernel, product);
    return {};
  }
  if (kernel.with_transform != nullptr) {
    attention_ = {&kernel, *static_cast<const QuantPagedAttentionArgs*>(args), scratch};
    return {};
  }
  return kernel.launch(args, scratch, stream);
}

int64_t HeldLaunches::held() const {
  return (count_ > 0) + (products_count_ > 0) + (attention_.kernel != nullptr);
}

CudaStatus HeldLaunches::release() {
  if (products_count_ > 0) return release_products();
  if (const DeviceKernel* const attention = std::exchange(attention_.kernel, nullptr); attention != nullptr)
    return attention->launch(&attention_.args, attention_.scratch, stream_);
  const int count = count_;
  count_ = 0;
  for (const Held& held : std::span(held_, static_cast<size_t>(count))) {
    const CudaStatus status =
        std::visit([&](const auto& a) { return held.kernel->launch(&a, held.scratch, stream_); }, held.args);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace oar::cuda

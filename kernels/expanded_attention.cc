#include "kernels/expanded_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/kv_codec.h"
#include "kernels/kv_layout.h"
#include "kernels/whole_call.h"

namespace oar {
namespace {

constexpr int64_t kSpan = 256;  // positions; a multiple of every panel
constexpr int64_t kRows = 128;  // of a product of queries, at most

int64_t rank_of(const ExpandedAttentionArgs& a) { return a.pages.common.shape.latent; }
int64_t width_of(const ExpandedAttentionArgs& a) { return a.pages.common.shape.head_dim; }  // rank + rope
int64_t head_dim_of(const ExpandedAttentionArgs& a) { return a.nope + width_of(a) - rank_of(a); }

MatmulArgs product_args(int64_t T, int64_t K, int64_t ldx, int64_t ldo, Format format) {
  MatmulArgs m;
  m.T = T, m.K = K, m.ldx = ldx, m.ldo = ldo, m.format = format;
  return m;
}

// What one chunk keeps. A page is seen in two forms where it is quantized: in 16 bits by rows in it, and in
// codes by those behind it.
struct Form {
  float *keys, *values;  // [kSpan][D], and turned [value][kSpan]
};
struct Memory {
  float *latents, *rows, *scores, *own, *partial, *sums, *top, *total;
  Form forms[2];
  void* inner;
};

Memory lay_out(const ExpandedAttentionArgs& a, char* base, size_t* bytes) {
  size_t at = 0;
  const auto take = [&](int64_t floats) {
    float* const p = base != nullptr ? reinterpret_cast<float*>(base + at) : nullptr;
    at += whole_lines(static_cast<size_t>(floats) * sizeof(float));
    return p;
  };
  const int64_t D = head_dim_of(a), rows = std::max<int64_t>(a.T - a.first, 0);
  Memory m{};
  m.latents = take(kSpan * width_of(a));
  m.rows = take(kSpan * a.value);
  m.scores = take(kRows * kSpan);
  m.own = a.quantized ? take(kRows * kSpan) : nullptr;
  m.partial = take(kRows * a.value);
  m.sums = take(rows * a.value);
  m.top = take(rows);
  m.total = take(rows);
  for (int k = 0; k < (a.quantized ? 2 : 1); ++k) m.forms[k] = {take(kSpan * D), take(kSpan * a.value)};
  m.inner = take(0);
  *bytes = at + a.inner_scratch;
  return m;
}

// Positions [from, to) of a context, from a multiple of 16 on: rows of f32, one a position.
class Latents {
 public:
  Latents(const ExpandedAttentionArgs& a, int64_t b)
      : a_(a), b_(b), P_(a.pages.common.shape.page_tokens), width_(width_of(a)) {}

  // As rows of the page see it: what was appended.
  void fetch_plain(int64_t from, int64_t to, float* rows) const {
    const PagedAttentionArgs& c = a_.pages.common;
    const int32_t* const table = a_.quantized ? a_.pages.open_tables + b_ * a_.pages.open_max_blocks
                                              : c.block_tables + b_ * c.max_blocks;
    widen(KvLayout(c.shape), a_.quantized ? a_.pages.open : c.pool, table, from, to, rows);
  }
  // As rows behind the page see it.
  void fetch_quantized(int64_t from, int64_t to, float* rows) const {
    if (from < kKvSinkTokens) {
      const int64_t end = std::min<int64_t>(to, kKvSinkTokens);
      widen(KvLayout(sink_kv_shape(a_.pages.shape)), a_.pages.sinks,
            a_.pages.sink_tables + b_ * a_.pages.sink_max_blocks, from, end, rows);
      rows += (end - from) * width_, from = end;
    }
    const QuantKvLayout layout(a_.pages.shape);
    const PagedAttentionArgs& c = a_.pages.common;
    const KvCode code = a_.pages.shape.keys;
    for (int64_t s = from; s < to; ++s, rows += width_) {
      const auto* const head = static_cast<const uint8_t*>(c.pool) +
                               c.block_tables[b_ * c.max_blocks + s / P_] * layout.block_bytes;
      const int64_t t = s % P_;
      f16 stored;
      std::memcpy(&stored, head + layout.key_scales + 2 * t, sizeof stored);
      const float scale = to_f32(stored);
      for (int64_t d = 0; d < width_; ++d) { rows[d] = scale * number(code, head, layout.key(t, d)); }
    }
  }

 private:
  static float number(KvCode code, const uint8_t* head, QuantKvLayout::Place at) {
    const uint8_t byte = head[at.byte];
    if (code == KvCode::kFp8) return to_f32(e4m3{byte});
    if (code == KvCode::kInt4Mean)
      return static_cast<float>(at.high ? byte >> 4 : byte & 15) + kv_mean_minimum(1.f);
    return static_cast<float>(static_cast<int8_t>(byte ^ kv_key_offset(code)));
  }
  void widen(const KvLayout& layout, const void* pool, const int32_t* table, int64_t from, int64_t to,
             float* rows) const {
    for (int64_t s = from; s < to; s += kKvPanelTokens, rows += kKvPanelTokens * width_) {
      const char* const panel = static_cast<const char*>(pool) + table[s / P_] * layout.block_bytes +
                                layout.k_panel(0, s % P_ / kKvPanelTokens);
      const int64_t n = std::min(kKvPanelTokens, to - s);
      const auto each = [&](auto number) {
        for (int64_t d = 0; d < width_; ++d)
          for (int64_t t = 0; t < n; ++t) rows[t * width_ + d] = number(layout.k_index(t, d));
      };
      if (layout.paired) each([&](int64_t i) { return to_f32(reinterpret_cast<const bf16*>(panel)[i]); });
      else if (layout.elem_bytes == 2)
        each([&](int64_t i) { return to_f32(reinterpret_cast<const f16*>(panel)[i]); });
      else each([&](int64_t i) { return reinterpret_cast<const float*>(panel)[i]; });
    }
  }

  const ExpandedAttentionArgs& a_;
  const int64_t b_, P_, width_;
};

// One head of one sequence.
class Expansion {
 public:
  Expansion(const ExpandedAttentionArgs& a, int64_t b, int64_t h, const Memory& memory)
      : a_(a),
        h_(h),
        m_(memory),
        D_(head_dim_of(a)),
        P_(a.pages.common.shape.page_tokens),
        start_(a.pages.common.seq_start[b]),
        rows_(a.pages.common.seq_start[b + 1] - start_),
        context_(a.pages.common.context_len[b]),
        position_(context_ - rows_),
        latents_(a, b) {}

  void run() {
    if (rows_ <= 0 || start_ < a_.first) return;
    std::fill_n(m_.sums, rows_ * a_.value, 0.f);
    std::fill_n(m_.total, rows_, 0.f);
    std::fill_n(m_.top, rows_, -INFINITY);
    for (int64_t s = 0; s < context_; s += kSpan) span(s, std::min(kSpan, context_ - s));
    for (int64_t r = 0; r < rows_; ++r) {
      float* const out = a_.out + (start_ + r) * a_.ldo + h_ * a_.value;
      for (int64_t d = 0; d < a_.value; ++d) out[d] = m_.sums[r * a_.value + d] / m_.total[r];
    }
  }

 private:
  // Where the page of row r begins, in a span from s on with n positions: what comes before is quantized.
  int64_t own_page(int64_t r, int64_t s, int64_t n) const {
    if (!a_.quantized) return n;
    return std::clamp<int64_t>((position_ + r) / P_ * P_ - s, 0, n);
  }

  void span(int64_t s, int64_t n) {
    const int64_t first = std::max<int64_t>(0, s - position_);  // row that sees any of it
    if (first >= rows_) return;
    if (!a_.quantized) {
      expand(m_.forms[0], s, 0, n, false);
    } else {
      expand(m_.forms[0], s, 0, own_page(rows_ - 1, s, n), true);
      expand(m_.forms[1], s, own_page(0, s, n), n, false);
    }
    for (int64_t r = first; r < rows_;) {
      const int64_t codes = own_page(r, s, n);
      int64_t end = std::min(r + kRows, rows_);
      if (codes < n) end = std::min(end, (position_ + r) / P_ * P_ + P_ - position_);
      block(r, end, s, n, codes);
      r = end;
    }
  }

  // Keys and values of positions [from, to) of the span; other values are zero.
  void expand(const Form& form, int64_t s, int64_t from, int64_t to, bool codes) {
    std::fill_n(form.values, a_.value * kSpan, 0.f);
    if (from >= to) return;
    const int64_t width = width_of(a_), rank = rank_of(a_), n = to - from;
    if (codes) latents_.fetch_quantized(s + from, s + to, m_.latents);
    else latents_.fetch_plain(s + from, s + to, m_.latents);
    float* const keys = form.keys + from * D_;
    multiply(a_.keys, n, keys, D_);
    for (int64_t t = 0; t < n; ++t)
      std::copy_n(m_.latents + t * width + rank, width - rank, keys + t * D_ + a_.nope);
    multiply(a_.values, n, m_.rows, a_.value);
    for (int64_t d = 0; d < a_.value; ++d)
      for (int64_t t = 0; t < n; ++t) form.values[d * kSpan + from + t] = m_.rows[t * a_.value + d];
  }
  void multiply(const ExpandedProduct& p, int64_t n, float* out, int64_t ldo) {
    MatmulArgs m = product_args(n, rank_of(a_), width_of(a_), ldo, p.format);
    m.x = m_.latents, m.out = out, m.segments = p.heads + h_, m.num_segments = 1;
    whole_call(*p.kernel, &m, m_.inner);
  }

  // Rows [from, to), which see the first `codes` positions of the span as others do and the rest as their
  // own.
  void block(int64_t from, int64_t to, int64_t s, int64_t n, int64_t codes) {
    const int64_t rows = to - from;
    MatmulArgs m = product_args(rows, D_, a_.ldq, kSpan, Format::f32());
    MatmulSegment parts[2];
    if (codes > 0) parts[m.num_segments++] = {m_.forms[0].keys, nullptr, codes, 0};
    if (codes < n) parts[m.num_segments++] = {m_.forms[1].keys + codes * D_, nullptr, n - codes, codes};
    m.x = a_.q + (start_ + from) * a_.ldq + h_ * D_, m.out = m_.scores, m.segments = parts;
    whole_call(*a_.product, &m, m_.inner);

    for (int64_t r = 0; r < rows; ++r) shift(m_.scores + r * kSpan, from + r, seen(from + r, s, n));
    UnaryArgs e;
    e.out = m_.scores, e.x = m_.scores, e.n = rows * kSpan, e.op = UnaryOp::kExp;
    whole_call(*a_.exponential, &e, m_.inner);
    for (int64_t r = 0; r < rows; ++r) {
      float* const p = m_.scores + r * kSpan;
      const int64_t last = seen(from + r, s, n);
      float sum = 0;
      for (int64_t t = 0; t < last; ++t) sum += p[t];
      m_.total[from + r] += sum;
      std::fill(p + last, p + kSpan, 0.f);
    }

    if (codes > 0 && codes < n) {
      for (int64_t r = 0; r < rows; ++r) {
        float *const p = m_.scores + r * kSpan, *const own = m_.own + r * kSpan;
        std::fill_n(own, codes, 0.f);
        std::copy(p + codes, p + kSpan, own + codes);
        std::fill(p + codes, p + kSpan, 0.f);
      }
      weigh(m_.scores, rows, m_.forms[0].values, nullptr);
      weigh(m_.own, rows, m_.forms[1].values, m_.partial);
    } else {
      weigh(m_.scores, rows, m_.forms[codes > 0 ? 0 : 1].values, nullptr);
    }
    for (int64_t i = 0; i < rows * a_.value; ++i) m_.sums[from * a_.value + i] += m_.partial[i];
  }
  int64_t seen(int64_t r, int64_t s, int64_t n) const { return std::min(n, position_ + r - s + 1); }

  // Scores of row r of which it sees `n`, as the exponential wants them; what was summed is scaled to match.
  void shift(float* x, int64_t r, int64_t n) {
    const float scale = a_.pages.common.scale;
    float most = m_.top[r];
    for (int64_t t = 0; t < n; ++t) most = std::max(most, x[t] * scale);
    for (int64_t t = 0; t < n; ++t) x[t] = x[t] * scale - most;
    std::fill(x + n, x + kSpan, 0.f);
    if (most == m_.top[r]) return;
    const float less = std::exp(m_.top[r] - most);
    m_.top[r] = most;
    m_.total[r] *= less;
    for (int64_t d = 0; d < a_.value; ++d) m_.sums[r * a_.value + d] *= less;
  }
  void weigh(const float* p, int64_t rows, const float* values, const float* more) {
    MatmulArgs m = product_args(rows, kSpan, kSpan, a_.value, Format::f32());
    const MatmulSegment all{values, nullptr, a_.value, 0};
    m.x = p, m.out = m_.partial, m.residual = more, m.segments = &all, m.num_segments = 1;
    whole_call(*a_.product, &m, m_.inner);
  }

  const ExpandedAttentionArgs& a_;
  const int64_t h_;
  const Memory& m_;
  const int64_t D_, P_, start_, rows_, context_, position_;
  const Latents latents_;
};

}  // namespace

size_t expanded_inner_scratch(const ExpandedAttentionArgs& a) {
  size_t most = 0;
  const auto ask = [&](const Kernel* kernel, const void* args) {
    most = std::max(most, whole_call_scratch(*kernel, args));
  };
  // A product's need does not grow with its rows alone (few are packed otherwise), so each number is asked.
  const MatmulSegment values{nullptr, nullptr, a.value, 0};
  for (int64_t n = 1; n <= kSpan; ++n) {
    for (const ExpandedProduct* p : {&a.keys, &a.values}) {
      MatmulArgs m = product_args(n, rank_of(a), width_of(a), std::max(head_dim_of(a), a.value), p->format);
      m.segments = p->heads, m.num_segments = 1;
      ask(p->kernel, &m);
    }
    if (n > kRows) continue;
    const MatmulSegment two[2] = {{nullptr, nullptr, kSpan / 2, 0}, {nullptr, nullptr, kSpan / 2, kSpan / 2}};
    const MatmulSegment one{nullptr, nullptr, kSpan, 0};
    MatmulArgs m = product_args(n, head_dim_of(a), a.H * head_dim_of(a), kSpan, Format::f32());
    m.segments = two, m.num_segments = 2;
    ask(a.product, &m);
    m.segments = &one, m.num_segments = 1;
    ask(a.product, &m);
    m = product_args(n, kSpan, kSpan, a.value, Format::f32());
    m.segments = &values, m.num_segments = 1;
    ask(a.product, &m);
    UnaryArgs e;
    e.n = n * kSpan, e.op = UnaryOp::kExp;
    ask(a.exponential, &e);
  }
  return most;
}

void expanded_attention_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const ExpandedAttentionArgs*>(args);
  *out = {1, {a.T > a.first ? a.pages.common.B * a.H : 0}};
  lay_out(a, nullptr, &out->worker_scratch);
}

void expanded_attention_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch& scratch) {
  const auto& a = *static_cast<const ExpandedAttentionArgs*>(args);
  size_t bytes = 0;
  const Memory memory = lay_out(a, static_cast<char*>(scratch.worker), &bytes);
  for (int64_t chunk = begin; chunk < end; ++chunk) Expansion(a, chunk / a.H, chunk % a.H, memory).run();
}

}  // namespace oar

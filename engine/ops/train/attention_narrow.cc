// segment_attention and its way back (ops.h) by products of bf16 with f32 sums. A head of a segment is
// computed by one worker, block of rows by block of rows, in memory that stays in its caches: its keys,
// values, queries and gradients are packed once for all blocks. Heads that share keys each have sums of their
// own, which are added in their order, so that no bit depends on who computed which.
#include <algorithm>
#include <cstring>
#include <limits>

#include "engine/ops/tensor/kernel_call.h"
#include "engine/ops/train/attention_blocks.h"
#include "engine/ops/train/stored_matrix.h"
#include "kernels/narrow.h"
#include "kernels/quantized_conv.h"
#include "kernels/softmax_grad.h"

namespace oar::train {
namespace {

// Of all workers' memory together; fewer work at once where segments are so long that each needs more.
constexpr int64_t kWorkBytes = int64_t{256} << 20;

// A packed operand (K, N) of which a part is read: from row k on, a multiple of 2, or from column n on, one
// of kColumnStep.
struct Packed {
  const int8_t* at = nullptr;
  int64_t panel = 0;  // bytes
  Packed from_row(int64_t k) const { return {at + k * kQuantizedPanel * 2, panel}; }
  Packed from_column(int64_t n) const { return {at + n / kQuantizedPanel * panel, panel}; }
};

// One head's memory, for segments of so many rows.
struct Memory {
  int64_t rows = 0, D = 0;
  bool back = false;
  std::byte* at = nullptr;
  int64_t used = 0;

  template <class T>
  T* take(int64_t count) {
    auto* const out = reinterpret_cast<T*>(at == nullptr ? nullptr : at + used);
    used += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return out;
  }
};

struct Room {
  float *scores, *d, *raw;
  bf16* rounded;
  uint32_t *turned, *keys_turned, *values_turned, *keys, *values, *queries, *dy;
  Room(Memory m, bool capped, int64_t* bytes = nullptr) {
    const int64_t most = m.rows + kColumnStep, all = kRows * most, turned_pairs = pair_count(m.D, m.rows),
                  pairs = pair_count(m.rows, m.D);
    scores = m.take<float>(all), rounded = m.take<bf16>(all), keys_turned = m.take<uint32_t>(turned_pairs);
    values = m.take<uint32_t>(pairs);
    d = raw = nullptr, turned = values_turned = keys = queries = dy = nullptr;
    if (m.back) {
      d = m.take<float>(all), turned = m.take<uint32_t>(pair_count(kRows, most));
      if (capped) raw = m.take<float>(all);
      values_turned = m.take<uint32_t>(turned_pairs);
      keys = m.take<uint32_t>(pairs), queries = m.take<uint32_t>(pairs), dy = m.take<uint32_t>(pairs);
    }
    if (bytes != nullptr) *bytes = m.used;
  }
};

// The calls of one worker.
class HeadWork {
 public:
  HeadWork(const KernelContext& ctx, const Heads& h, const Room& room)
      : h_(h),
        room_(room),
        product_(*narrow_kernel(ctx)),
        softmax_(tensor::f32_kernel(ctx.backend(), KernelFamily::kSeenSoftmax)),
        softmax_grad_(tensor::f32_kernel(ctx.backend(), KernelFamily::kSoftmaxGrad)),
        narrow_(tensor::f32_kernel(ctx.backend(), KernelFamily::kNarrow)) {}

  void forward(const SegmentBlocks& s, int64_t head, const Tensor& q, const Tensor& k, const Tensor& v,
               Tensor& y) {
    keys(s, head / h_.group(), k, v, false);
    for (const RowBlock& b : s.blocks) {
      const int64_t first = b.from - s.begin;
      weights(s, b, head, q);
      round(room_.scores, b);
      multiply({room_.rounded, b.cols, b.rows, b.cols}, packed(room_.values, s.rows, h_.D).from_row(first),
               h_.D, rows_at(y, b.begin, head));
    }
  }

  // dk and dv (T, H, D) f32, of this head alone.
  void back(const SegmentBlocks& s, int64_t head, std::span<const Tensor, 4> in, Tensor& dq, Tensor& dk,
            Tensor& dv) {
    const Tensor &q = in[0], &dy = in[3];
    keys(s, head / h_.group(), in[1], in[2], true);
    const int64_t step = h_.H * h_.D, at = (s.begin * h_.H + head) * h_.D;
    pack_rows(room_.queries, elements<bf16>(q) + at, step, s.rows, h_.D);
    pack_rows(room_.dy, elements<bf16>(dy) + at, step, s.rows, h_.D);
    for (Tensor* const t : {&dk, &dv})
      for (int64_t r = 0; r < s.rows; ++r)
        std::fill_n(mutable_elements<float>(*t) + at + r * step, h_.D, 0.f);
    for (const RowBlock& b : s.blocks) {
      const int64_t first = b.from - s.begin, own = b.begin - s.begin;
      const Packed k = packed(room_.keys, s.rows, h_.D).from_row(first),
                   queries = packed(room_.queries, s.rows, h_.D).from_row(own),
                   gradients = packed(room_.dy, s.rows, h_.D).from_row(own),
                   values = packed(room_.values_turned, h_.D, s.rows).from_column(first);
      weights(s, b, head, q);
      // dv += p^T dy
      round(room_.scores, b);
      add_turned(b, gradients, head, dv);
      // d = dy v^T, and through the softmax
      multiply(rows_of(dy, b, head), values, b.cols, {room_.d, b.cols});
      if (h_.softcap > 0) scores(s, b, head, q, room_.raw);
      auto a = rows_of_scores<SoftmaxGradArgs>(h_, b, 1);
      a.p = room_.scores, a.g = room_.d, a.x = room_.raw;
      thread_.run(softmax_grad_, &a);
      // dq = d k, dk += d^T q
      round(room_.d, b);
      multiply({room_.rounded, b.cols, b.rows, b.cols}, k, h_.D, rows_at(dq, b.begin, head));
      add_turned(b, queries, head, dk);
    }
  }

 private:
  // Rows of K numbers, `step` apart.
  struct Rows {
    const bf16* at;
    int64_t step, count, K;
  };
  struct To {
    void* out;
    int64_t step;
    bool rounded = false;
    const float* add = nullptr;
  };

  static Packed packed(const uint32_t* w, int64_t K, int64_t N) {
    return {reinterpret_cast<const int8_t*>(w),
            N > 0 ? pair_count(K, kQuantizedPanel) * static_cast<int64_t>(sizeof(uint32_t)) : 0};
  }
  Rows rows_of(const Tensor& t, const RowBlock& b, int64_t head) const {
    return {elements<bf16>(t) + (b.begin * h_.H + head) * h_.D, h_.H * h_.D, b.rows, h_.D};
  }
  To rows_at(Tensor& t, int64_t row, int64_t head) const {
    const int64_t at = (row * h_.H + head) * h_.D, step = h_.H * h_.D;
    if (t.format() == Format::bf16()) return {mutable_elements<bf16>(t) + at, step, true};
    return {mutable_elements<float>(t) + at, step};
  }

  // Of a segment's keys and values what its blocks read.
  void keys(const SegmentBlocks& s, int64_t head, const Tensor& k, const Tensor& v, bool back) {
    if (begin_ == s.begin && head_ == head) return;  // another of its heads has
    begin_ = s.begin, head_ = head;
    const int64_t at = (s.begin * h_.K + head) * h_.D, step = h_.K * h_.D;
    const bf16 *const from_k = elements<bf16>(k) + at, *const from_v = elements<bf16>(v) + at;
    pack_turned_rows(room_.keys_turned, from_k, step, s.rows, h_.D);
    if (back) pack_turned_rows(room_.values_turned, from_v, step, s.rows, h_.D);
    if (back) pack_rows(room_.keys, from_k, step, s.rows, h_.D);
    else pack_rows(room_.values, from_v, step, s.rows, h_.D);
  }

  void multiply(const Rows& x, Packed w, int64_t N, const To& to) {
    Bf16ProductArgs a;
    a.x = reinterpret_cast<const uint8_t*>(x.at);
    // Rows that lie apart are every so many pixels of a line.
    a.window.stride_w = x.step / x.K, a.window.W = (x.count - 1) * a.window.stride_w + 1;
    multiply(a, x.count, x.K, w, N, to);
  }
  void multiply(Bf16ProductArgs& a, int64_t rows, int64_t K, Packed w, int64_t N, const To& to) {
    a.w = w.at, a.panel = w.panel;
    a.out = to.out, a.ldo = to.step, a.residual = to.add;
    a.out_type = to.rounded ? QuantizedOut::kBF16 : QuantizedOut::kF32;
    a.low = -std::numeric_limits<float>::infinity(), a.high = -a.low;
    a.C = K, a.M = N;
    a.window.N = a.window.H = a.window.OH = 1, a.window.OW = rows;
    thread_.run(product_, &a);
  }

  void scores(const SegmentBlocks& s, const RowBlock& b, int64_t head, const Tensor& q, float* out) {
    multiply(rows_of(q, b, head), packed(room_.keys_turned, h_.D, s.rows).from_column(b.from - s.begin),
             b.cols, {out, b.cols});
  }
  // room.scores = the weights of a block.
  void weights(const SegmentBlocks& s, const RowBlock& b, int64_t head, const Tensor& q) {
    scores(s, b, head, q, room_.scores);
    float largest[kRows] = {};
    const auto seen = [&](int64_t r) { return b.seen(room_.scores + r * b.cols, r); };
    for (int64_t r = 0; r < b.rows && h_.sinks != nullptr; ++r)
      largest[r] = *std::max_element(seen(r).begin(), seen(r).end());
    auto a = rows_of_scores<SeenSoftmaxArgs>(h_, b, 1);
    a.x = room_.scores;
    thread_.run(softmax_, &a);
    for (int64_t r = 0; r < b.rows && h_.sinks != nullptr; ++r)
      share_with_sink(h_, head, largest[r], seen(r));
  }
  void round(const float* from, const RowBlock& b) {
    NarrowArgs a;
    a.bf16 = true, a.x = from, a.out = room_.rounded, a.rows = 1, a.n = b.rows * b.cols;
    thread_.run(narrow_, &a);
  }
  // t += the rounded matrix^T . x, at the block's columns.
  void add_turned(const RowBlock& b, Packed x, int64_t head, Tensor& t) {
    pack_rows(room_.turned, room_.rounded, b.cols, b.rows, b.cols);
    To to = rows_at(t, b.from, head);
    to.add = static_cast<const float*>(to.out);
    Bf16ProductArgs a;
    a.x = reinterpret_cast<const uint8_t*>(room_.turned), a.x_packed = true;
    a.window.W = b.cols;
    multiply(a, b.cols, b.rows, x, h_.D, to);
  }

  const Heads& h_;
  const Room& room_;
  const Kernel &product_, &softmax_, &softmax_grad_, &narrow_;
  int64_t begin_ = -1, head_ = -1;  // whose keys are packed
  tensor::OneThread thread_;
};

// fn(work, segment, head) for each head of each segment, on all workers.
template <class F>
Status each_head(const KernelContext& ctx, const Heads& h, const std::vector<SegmentBlocks>& segments,
                 bool back, F&& fn) {
  int64_t rows = 0, bytes = 0;
  double cost = 0;
  for (const SegmentBlocks& s : segments) {
    rows = std::max(rows, s.rows);
    for (const RowBlock& b : s.blocks)
      cost += static_cast<double>(b.rows * b.cols * (back ? 6 : 2)) * static_cast<double>(h.D) / 100;
  }
  const bool capped = h.softcap > 0;
  Room(Memory{rows, h.D, back}, capped, &bytes);
  const int64_t count = static_cast<int64_t>(segments.size()) * h.H;
  const int64_t workers =
      std::min<int64_t>(ctx.backend().workers(), std::max<int64_t>(kWorkBytes / bytes, 1));
  // More parts than workers where memory allows it: who is done takes another.
  const int64_t parts = std::min(count, workers);
  OAR_ASSIGN(Tensor memory,
             ctx.allocate({std::max<int64_t>(ctx.options().sizing ? workers : parts, 0), bytes}, DType::kI8));
  ctx.uses(*narrow_kernel(ctx));
  ctx.parallel(parts, cost * static_cast<double>(h.H) / static_cast<double>(std::max<int64_t>(parts, 1)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t part = begin; part < end; ++part) {
                   auto* const at = static_cast<std::byte*>(memory.mutable_data()) + part * bytes;
                   const Room room(Memory{rows, h.D, back, at}, capped);
                   HeadWork work(ctx, h, room);
                   for (int64_t t = count * part / parts; t < count * (part + 1) / parts; ++t)
                     fn(work, segments[static_cast<size_t>(t / h.H)], t % h.H);
                 }
               });
  return ok_status();
}

// to (T, K, D) = the sums of from (T, H, D) over heads that share keys.
void sum_groups(const KernelContext& ctx, const Heads& h, const Tensor& from, Tensor& to) {
  const int64_t row = h.K * h.D;
  ctx.parallel(h.T, static_cast<double>(h.H * h.D), [&](int64_t begin, int64_t end) {
    std::vector<float> room(static_cast<size_t>(row));
    for (int64_t t = begin; t < end; ++t) {
      const FloatsTo out(ctx, to, t * row, row, room.data());
      for (int64_t k = 0; k < h.K; ++k) {
        float* const sums = out.data() + k * h.D;
        for (int64_t g = 0; g < h.group(); ++g) {
          const float* const x = elements<float>(from) + (t * h.H + k * h.group() + g) * h.D;
          for (int64_t d = 0; d < h.D; ++d) sums[d] = g == 0 ? x[d] : sums[d] + x[d];
        }
      }
      out.done();
    }
  });
}

}  // namespace

Status narrow_attend(const KernelContext& ctx, const Heads& h, const std::vector<SegmentBlocks>& segments,
                     const Tensor& q, const Tensor& k, const Tensor& v, Tensor& y) {
  return each_head(ctx, h, segments, false, [&](HeadWork& work, const SegmentBlocks& s, int64_t head) {
    work.forward(s, head, q, k, v, y);
  });
}

Status narrow_attend_back(const KernelContext& ctx, const Heads& h,
                          const std::vector<SegmentBlocks>& segments, std::span<const Tensor, 4> in,
                          std::span<Tensor, 3> out) {
  OAR_ASSIGN(Tensor dk, ctx.allocate(in[0].shape(), DType::kF32));
  OAR_ASSIGN(Tensor dv, ctx.allocate(in[0].shape(), DType::kF32));
  OAR_RETURN_IF_ERROR(each_head(
      ctx, h, segments, true,
      [&](HeadWork& work, const SegmentBlocks& s, int64_t head) { work.back(s, head, in, out[0], dk, dv); }));
  sum_groups(ctx, h, dk, out[1]);
  sum_groups(ctx, h, dv, out[2]);
  return ok_status();
}

}  // namespace oar::train

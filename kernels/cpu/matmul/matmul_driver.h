// What every CPU matmul does around its inner loop: dividing the work, packing the activations, walking
// segments and experts. A Core supplies the arithmetic of one weight format on one instruction set:
//
// - chunk_rows(const MatmulView&, int64_t total_rows): weight rows of a chunk
// - x_bytes(int64_t K): bytes of one packed token, a multiple of 64
// - w_bytes(const MatmulView&): bytes of one weight row, for sizing chunks
// - scratch_bytes(const MatmulView&): private to a worker
// - pack(void* run, const PackTask&): f32 activations -> what panel() reads
// - panel(const PanelTask&): out = W[rows] . x for one run of tokens
//
// A run is a range of tokens that share their weights: all T of a plain matmul, the pairs of one expert of a
// grouped one. Phase 0 packs x, phase 1 multiplies; tiny problems do both in one phase, each worker packing
// for itself. Cores must live in an anonymous namespace: the same template is compiled with several sets of
// ISA flags.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernels/activation.h"
#include "kernels/kernel_list.h"
#include "kernels/matmul.h"
#include "kernels/moe.h"

namespace oar {

// Both kinds of matmul seen alike.
struct MatmulView {
  float* out;
  const float* x;
  const float* residual;  // or null
  const int32_t* token;   // row of x for each packed token, or null: its own index
  const int32_t* start;   // [runs + 1] first token of each run; null: one run of P tokens
  const MatmulSegment* segments;
  int64_t segments_per_run, runs, P, K, ldx, ldo;
  Format format;
  const float* gate = nullptr;  // GatedMatmulArgs'
  int64_t ld_gate = 0;
  const Kernel* swiglu = nullptr;
  UnaryOp act = UnaryOp::kSilu;

  int64_t run_begin(int64_t run) const { return start == nullptr ? 0 : start[run]; }
  int64_t run_end(int64_t run) const { return start == nullptr ? P : start[run + 1]; }
};

// Tokens [t_begin, t_end) of a run of `tokens`, columns [k_begin, k_end). t_begin is a multiple of
// kPackTokens, k_begin of 512; the last column slice also writes the padding.
struct PackTask {
  const float* x;        // row 0
  const int32_t* token;  // rows of x, indexed by the token's place in the run; null: that place itself
  int64_t ldx, K, tokens, t_begin, t_end, k_begin, k_end;
  bool block = false;  // x holds the task's rows and columns alone
  const float* at(int64_t t, int64_t k) const {
    if (block) return x + (t - t_begin) * ldx + (k - k_begin);
    return x + (token == nullptr ? t : token[t]) * ldx + k;
  }
};
inline constexpr int64_t kPackTokens = 16;

struct PanelTask {
  const void* w;  // the segment's weight
  int64_t rows;   // rows of the segment
  int64_t row_begin, row_end;
  int64_t K;
  const void* x;  // the run, packed
  int64_t tokens;
  float* out;             // [tokens, ldo], column 0 is row 0 of the segment
  const float* bias;      // [rows] or null
  const float* residual;  // as out, or null
  int64_t ldo;
  void* scratch;
  Format format;
  const float* row_scale = nullptr;  // [rows]: sums are multiplied by it before bias is added; or null
  // What this worker will read from memory next, or null: a core with time to spare may fetch it.
  const char* ahead = nullptr;
  int64_t ahead_bytes = 0;
};

// Rows [row, row + n) of `p` as a task of their own whose weights lie at `w`, where its row 0 is `row`.
static inline PanelTask piece_of(const PanelTask& p, int64_t row, int64_t n, const void* w) {
  PanelTask q = p;
  q.w = w;
  q.rows = q.row_end = n;
  q.row_begin = 0;
  q.out += row;
  if (q.bias != nullptr) q.bias += row;
  if (q.residual != nullptr) q.residual += row;
  return q;
}

// Weight rows of one chunk, a multiple of `granule`: enough bytes to amortize a chunk's fixed cost, few
// enough to balance. With many tokens the panel is read again for every token tile and has to stay in the
// second-level cache.
static inline int64_t default_chunk_rows(const MatmulView& v, int64_t total_rows, int64_t row_bytes,
                                         int64_t granule) {
  constexpr int64_t kChunkBytes = 128 << 10, kPanelBytes = 512 << 10, kManyTokens = 32;
  constexpr int64_t kMinChunks = 64;  // so that a dozen workers balance
  const int64_t budget = v.P / v.runs >= kManyTokens ? kPanelBytes : kChunkBytes;
  const int64_t by_bytes = budget / std::max<int64_t>(1, row_bytes);
  return std::max<int64_t>(1, std::min(by_bytes, total_rows / kMinChunks) / granule) * granule;
}

template <class Core>
struct MatmulDriver {
  static MatmulView view(const MatmulArgs& a) {
    return {a.out, a.x, a.residual, nullptr, nullptr, a.segments, a.num_segments,
            1,     a.T, a.K,        a.ldx,   a.ldo,   a.format};
  }
  static MatmulView view(const GatedMatmulArgs& a) {
    MatmulView v = view(a.matmul);
    v.gate = a.gate, v.ld_gate = a.ld_gate, v.swiglu = a.swiglu, v.act = a.act;
    return v;
  }
  static MatmulView view(const GroupedMatmulArgs& a) {
    return {a.out,     a.x, nullptr, a.pair_token, a.expert_start, a.segments, a.segments_per_expert,
            a.experts, a.P, a.K,     a.ldx,        a.ldo,          a.format};
  }

  // Every run has the same segment widths (experts differ in their weights alone).
  static int64_t total_rows(const MatmulView& v) {
    int64_t rows = 0;
    for (int64_t s = 0; s < v.segments_per_run; ++s) rows += v.segments[s].n;
    return rows;
  }

  static int64_t chunk_rows(const MatmulView& v) { return Core::chunk_rows(v, total_rows(v)); }

  static int64_t chunks_per_run(const MatmulView& v, int64_t rows) {
    int64_t chunks = 0;
    for (int64_t s = 0; s < v.segments_per_run; ++s) chunks += (v.segments[s].n + rows - 1) / rows;
    return chunks;
  }

  // Columns of a chunk of packing: sixteen tokens give every worker some, one token is quicker than a
  // barrier.
  static int64_t pack_columns(const MatmulView& v) { return v.P < 4 ? 2048 : 512; }
  static int64_t pack_slices(const MatmulView& v) {
    return std::max<int64_t>(1, (v.K + pack_columns(v) - 1) / pack_columns(v));
  }
  // Upper bound: each run may end in a partial block.
  static int64_t pack_blocks(const MatmulView& v) { return v.P / kPackTokens + v.runs; }

  // Packing twice costs less than a barrier when x and W are both small; a gate's exponentials do not.
  static bool one_phase(const MatmulView& v) {
    return v.gate == nullptr && v.runs == 1 && v.P * v.K <= 4096 &&
           total_rows(v) * Core::w_bytes(v) <= (1 << 20);
  }

  static int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }
  // Of a chunk of packing, behind a gate.
  static int64_t gate_bytes(const MatmulView& v) {
    if (v.gate == nullptr) return 0;
    return std::min(v.P, kPackTokens) * pack_columns(v) * static_cast<int64_t>(sizeof(float));
  }

  template <class Args>
  static void plan(const void* args, int /*workers*/, KernelPlan* out) {
    const MatmulView v = view(*static_cast<const Args*>(args));
    const int64_t chunks = v.P == 0 ? 0 : v.runs * chunks_per_run(v, chunk_rows(v));
    const int64_t packed = v.P * Core::x_bytes(v.K), scratch = aligned(Core::scratch_bytes(v));
    *out = KernelPlan{};
    if (one_phase(v)) {
      out->phases = 1;
      out->chunks[0] = chunks;
      out->worker_scratch = static_cast<size_t>(scratch + packed);
    } else {
      out->phases = 2;
      out->chunks[0] = v.P == 0 ? 0 : pack_blocks(v) * pack_slices(v);
      out->chunks[1] = chunks;
      out->worker_scratch = static_cast<size_t>(std::max(scratch, gate_bytes(v)));
      out->shared_scratch = static_cast<size_t>(packed);
    }
  }

  template <class Args>
  static void run(const void* args, int phase, int64_t begin, int64_t end, const KernelScratch& scratch) {
    const MatmulView v = view(*static_cast<const Args*>(args));
    if (one_phase(v)) {
      char* x = static_cast<char*>(scratch.worker) + aligned(Core::scratch_bytes(v));
      pack_chunks(v, x, 0, pack_blocks(v) * pack_slices(v), nullptr);
      multiply(v, x, begin, end, scratch.worker);
    } else if (phase == 0) {
      pack_chunks(v, static_cast<char*>(scratch.shared), begin, end, scratch.worker);
    } else {
      multiply(v, static_cast<const char*>(scratch.shared), begin, end, scratch.worker);
    }
  }

  // Chunk = block * slices + slice, blocks counted through the runs in order; those past the last do nothing.
  // `gated`: gate_bytes() behind a gate.
  static void pack_chunks(const MatmulView& v, char* x, int64_t begin, int64_t end, void* gated) {
    const int64_t slices = pack_slices(v), columns = pack_columns(v);
    int64_t first = 0;  // block number of the run's first block
    for (int64_t run = 0; run < v.runs && first * slices < end; ++run) {
      const int64_t t0 = v.run_begin(run), tokens = v.run_end(run) - t0;
      const int64_t blocks = (tokens + kPackTokens - 1) / kPackTokens;
      for (int64_t c = std::max(begin, first * slices); c < std::min(end, (first + blocks) * slices); ++c) {
        const int64_t t = (c / slices - first) * kPackTokens, k = c % slices * columns;
        PackTask task{v.token == nullptr ? v.x + t0 * v.ldx : v.x,
                      v.token == nullptr ? nullptr : v.token + t0,
                      v.ldx,
                      v.K,
                      tokens,
                      t,
                      std::min(tokens, t + kPackTokens),
                      k,
                      std::min(v.K, k + columns)};
        if (v.gate != nullptr) pass_gate(v, task, static_cast<float*>(gated));
        Core::pack(x + t0 * Core::x_bytes(v.K), task);
      }
      first += blocks;
    }
  }

  // The task's part of act(gate) * x, to be packed instead of x's. (One run, no list of tokens.)
  static void pass_gate(const MatmulView& v, PackTask& task, float* to) {
    SwiGluArgs a;
    a.T = task.t_end - task.t_begin, a.F = task.k_end - task.k_begin;
    a.gate = v.gate + task.t_begin * v.ld_gate + task.k_begin, a.ldg = v.ld_gate;
    a.up = task.at(task.t_begin, task.k_begin), a.ldu = v.ldx;
    a.out = to, a.ldo = a.F, a.act = v.act;
    KernelPlan plan;
    v.swiglu->plan(&a, 1, &plan);
    v.swiglu->run(&a, 0, 0, plan.chunks[0], {});
    task.x = to, task.ldx = a.F, task.block = true;
  }

  // Chunk = run * chunks_per_run + place among the row blocks of the run's segments.
  static void multiply(const MatmulView& v, const char* x, int64_t begin, int64_t end, void* scratch) {
    const int64_t rows = chunk_rows(v), per_run = chunks_per_run(v, rows);
    while (begin < end) {
      const int64_t run = begin / per_run, stop = std::min(end, (run + 1) * per_run);
      const int64_t t0 = v.run_begin(run), tokens = v.run_end(run) - t0;
      int64_t first = run * per_run;  // chunk number of the segment's first chunk
      for (int64_t s = 0; s < v.segments_per_run && tokens > 0; ++s) {
        const MatmulSegment& seg = v.segments[run * v.segments_per_run + s];
        const int64_t chunks = (seg.n + rows - 1) / rows;
        const int64_t lo = std::max(begin, first) - first, hi = std::min(stop, first + chunks) - first;
        // Chunk by chunk: a panel of this many rows is what stays in the cache.
        for (int64_t c = lo; c < hi; ++c) {
          const int64_t at = t0 * v.ldo + seg.out_col;
          Core::panel({seg.w, seg.n, c * rows, std::min(seg.n, (c + 1) * rows), v.K,
                       x + t0 * Core::x_bytes(v.K), tokens, v.out + at, seg.bias,
                       v.residual == nullptr ? nullptr : v.residual + at, v.ldo, scratch, v.format});
        }
        first += chunks;
      }
      begin = stop;
    }
  }

  // From the first row of the chunk to the end of its segment. Which experts a grouped matmul reads is not
  // known before it runs.
  template <class Args>
  static WeightSpan weights(const void* args, int64_t chunk) {
    const MatmulView v = view(*static_cast<const Args*>(args));
    const int64_t rows = chunk_rows(v), row_bytes = Core::w_bytes(v);
    for (int64_t s = 0; s < v.segments_per_run; ++s) {
      const MatmulSegment& seg = v.segments[s];
      const int64_t chunks = (seg.n + rows - 1) / rows;
      if (chunk < chunks) {
        return {static_cast<const char*>(seg.w) + chunk * rows * row_bytes,
                (seg.n - chunk * rows) * row_bytes};
      }
      chunk -= chunks;
    }
    return {};
  }

  // The plain, the gated and the grouped kernel. KernelEntry says what `layout` and `level` are.
  static constexpr std::array<KernelEntry, 3> kernels(const char* format, Isa isa,
                                                      const char* level = nullptr,
                                                      const char* layout = nullptr) {
    return {{{KernelFamily::kMatmul, isa, &plan<MatmulArgs>, &run<MatmulArgs>, format, &weights<MatmulArgs>,
              layout, level},
             {KernelFamily::kGatedMatmul, isa, &plan<GatedMatmulArgs>, &run<GatedMatmulArgs>, format,
              &weights<GatedMatmulArgs>, layout, level},
             {KernelFamily::kGroupedMatmul, isa, &plan<GroupedMatmulArgs>, &run<GroupedMatmulArgs>, format,
              nullptr, layout, level}}};
  }
  // The same for each of several formats.
  template <size_t N>
  static constexpr std::array<KernelEntry, 3 * N> kernels(const char* const (&formats)[N], Isa isa,
                                                          const char* level = nullptr,
                                                          const char* layout = nullptr) {
    std::array<KernelEntry, 3 * N> all{};
    size_t at = 0;
    for (const char* format : formats) {
      for (const KernelEntry& e : kernels(format, isa, level, layout)) all[at++] = e;
    }
    return all;
  }
};

}  // namespace oar

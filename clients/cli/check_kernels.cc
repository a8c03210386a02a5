#include "clients/cli/check_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/base/format.h"
#include "engine/base/status.h"
#include "engine/tensor/buffer.h"
#include "kernels/attention.h"
#include "kernels/matmul.h"

namespace oar::cli {
namespace {

// Uniform in [-1, 1), the same everywhere.
std::vector<float> values(size_t n, uint64_t seed) {
  std::vector<float> out(n);
  for (float& v : out) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    v = static_cast<float>(static_cast<int32_t>(seed >> 32)) * 0x1p-31f;
  }
  return out;
}

Buffer scratch(uint64_t bytes) {
  auto buffer = Buffer::zeros(std::max<uint64_t>(bytes, 64));
  OAR_CHECK(buffer.ok(), "no memory for a few kilobytes");
  return std::move(*buffer);
}

void run(ThreadPool& pool, const Kernel& kernel, const void* args) {
  KernelPlan plan;
  kernel.plan(args, pool.workers(), &plan);
  const Buffer shared = scratch(plan.shared_scratch);
  pool.reserve_scratch(plan.worker_scratch);
  pool.run(kernel, args, plan, shared.mutable_data());
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(d <= error)) error = d;  // keeps a NaN
    if (std::isnan(d)) return std::numeric_limits<double>::quiet_NaN();
  }
  return error;
}

// out[T, n] = x[T, K] . W^T in storage format `format`.
constexpr int64_t kRows = 5, kIn = 256, kOut = 96;

std::vector<float> matmul(ThreadPool& pool, Format format, Isa isa) {
  const std::vector<float> w = values(kOut * kIn, 1), x = values(kRows * kIn, 2);
  const Buffer stored = scratch(static_cast<uint64_t>(*format.row_bytes(kIn)) * kOut);
  for (int64_t r = 0; r < kOut; ++r) {
    format.encode_row(w.data() + r * kIn, kIn,
                      static_cast<std::byte*>(stored.mutable_data()) + r * format.stride(kIn));
  }
  const WeightLayout& layout = weight_layout(format, isa);
  Buffer packed = stored;
  if (!layout.in_place) {
    packed = scratch(layout.bytes(kOut, kIn));
    layout.pack(packed.mutable_data(), stored.data(), format, kOut, kIn, 0, kOut);
  }
  std::vector<float> out(kRows * kOut, std::numeric_limits<float>::quiet_NaN());
  const MatmulSegment segment{packed.data(), nullptr, kOut, 0};
  MatmulArgs a;
  a.out = out.data();
  a.x = x.data();
  a.segments = &segment;
  a.num_segments = 1;
  a.T = kRows;
  a.K = a.ldx = kIn;
  a.ldo = kOut;
  a.format = format;
  const Kernel* kernel = KernelRegistry::cpu().find({KernelFamily::kMatmul, format}, isa);
  OAR_CHECK(kernel != nullptr, "every format has a matmul");
  run(pool, *kernel, &a);
  return out;
}

// Rounding x to bf16 moves a term w x by at most 2^-9 of it; quantizing x to 8 bits with one scale per group,
// by |w| times 1/254 of the group's largest |x|, which is below 1; sums of K terms add K + 8 roundings of
// 2^-24 of their magnitude.
double matmul_bound(Format format) {
  const std::vector<float> w = values(kOut * kIn, 1), x = values(kRows * kIn, 2);
  double bound = 0;
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t n = 0; n < kOut; ++n) {
      double magnitude = 0, weights = 0;
      for (int64_t k = 0; k < kIn; ++k) {
        const double a = std::fabs(w[static_cast<size_t>(n * kIn + k)]);
        magnitude += a * std::fabs(x[static_cast<size_t>(t * kIn + k)]);
        weights += a;
      }
      const double operands = format == Format::f32() ? 0
                              : format.plain()        ? magnitude * 0x1p-9
                                                      : weights / 254;
      bound = std::max(bound, operands + (kIn + 8) * 0x1p-24 * magnitude);
    }
  }
  return bound;
}

// One sequence of 70 tokens over pages of 16; its last 9 are the queries.
constexpr int64_t kTokens = 70, kQueries = 9, kHeads = 4, kKvHeads = 2, kHeadDim = 64, kPage = 16;

std::vector<float> attention(ThreadPool& pool, DType type, Isa isa) {
  const KvShape shape{type, kPage, kKvHeads, kHeadDim};
  const int64_t blocks = (kTokens + kPage - 1) / kPage;
  const Buffer cache = scratch(static_cast<uint64_t>(blocks) * kv_block_bytes(shape));
  const std::vector<float> k = values(kTokens * kKvHeads * kHeadDim, 3), v = values(k.size(), 4);
  const std::vector<float> q = values(kQueries * kHeads * kHeadDim, 5);
  std::vector<int32_t> table, slots;
  for (int64_t b = 0; b < blocks; ++b) table.push_back(static_cast<int32_t>(blocks - 1 - b));
  for (int64_t t = 0; t < kTokens; ++t) {
    slots.push_back(static_cast<int32_t>(table[static_cast<size_t>(t / kPage)] * kPage + t % kPage));
  }
  KvAppendArgs append;
  append.pool = cache.mutable_data();
  append.k = k.data();
  append.v = v.data();
  append.slots = slots.data();
  append.T = kTokens;
  append.ldk = append.ldv = kKvHeads * kHeadDim;
  append.shape = shape;
  const Kernel* store = KernelRegistry::cpu().find({KernelFamily::kKvAppend, Format::of(type)}, isa);
  const Kernel* attend = KernelRegistry::cpu().find({KernelFamily::kPagedAttention, Format::of(type)}, isa);
  OAR_CHECK(store != nullptr && attend != nullptr, "every cache type has attention");
  run(pool, *store, &append);

  std::vector<float> out(q.size(), std::numeric_limits<float>::quiet_NaN());
  const int32_t starts[] = {0, static_cast<int32_t>(kQueries)}, context = kTokens;
  PagedAttentionArgs a;
  a.out = out.data();
  a.q = q.data();
  a.pool = cache.data();
  a.block_tables = table.data();
  a.seq_start = starts;
  a.context_len = &context;
  a.T = kQueries;
  a.B = 1;
  a.H = kHeads;
  a.ldq = a.ldo = kHeads * kHeadDim;
  a.max_blocks = blocks;
  a.shape = shape;
  a.scale = 1.f / std::sqrt(static_cast<float>(kHeadDim));
  run(pool, *attend, &a);
  return out;
}

// |q . k * scale| <= sqrt(D) = 8. With bf16 operands a logit moves by at most 2^-9 of that and each
// probability by twice as much, relatively; probabilities round to bf16 again; |v| <= 1. In f32 the sums of D
// and of the context round in 2^-24, and the exponential in 2^-22.
double attention_bound(DType type) {
  const double magnitude = std::sqrt(static_cast<double>(kHeadDim));
  const double logit = (kHeadDim + 8) * 0x1p-24 * magnitude + (type == DType::kBF16 ? 0x1p-9 * magnitude : 0);
  return std::expm1(2 * logit) + (type == DType::kBF16 ? 0x1p-9 + 0x1p-17 : 0x1p-22) + kTokens * 0x1p-24;
}

// Levels that have a kernel of their own for this family and format; the others run the one below.
std::vector<Isa> levels(KernelFamily family, Format format) {
  std::vector<Isa> out;
  for (int level = 1; level <= static_cast<int>(best_isa()); ++level) {
    const Isa isa = static_cast<Isa>(level);
    const Kernel* kernel = KernelRegistry::cpu().find({family, format}, isa);
    if (kernel != nullptr && kernel->isa == isa) out.push_back(isa);
  }
  return out;
}

}  // namespace

std::vector<KernelCheck> check_kernels(ThreadPool& pool) {
  std::vector<KernelCheck> out;
  for (const char* name : {"f32", "bf16", "q8_0"}) {
    const auto format = Format::find(name);
    OAR_CHECK(format.has_value(), "a built-in format");
    const std::vector<float> truth = matmul(pool, *format, Isa::kReference);
    for (Isa isa : levels(KernelFamily::kMatmul, *format)) {
      out.push_back({cat("matmul ", name, " ", isa_name(isa)),
                     largest_difference(matmul(pool, *format, isa), truth), matmul_bound(*format)});
    }
  }
  for (DType type : {DType::kF32, DType::kBF16}) {
    const std::vector<float> truth = attention(pool, type, Isa::kReference);
    for (Isa isa : levels(KernelFamily::kPagedAttention, Format::of(type))) {
      out.push_back({cat("attention ", dtype_name(type), " ", isa_name(isa)),
                     largest_difference(attention(pool, type, isa), truth), attention_bound(type)});
    }
  }
  return out;
}

}  // namespace oar::cli

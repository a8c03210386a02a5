// Row gathers, scalar. An embedding row is decoded by its storage format's own scalar code.
#include "kernels/embedding.h"

#include <cstring>

#include "kernels/kernel_list.h"

namespace oar {
namespace {

void embedding_plan(const void* args, int, KernelPlan* out) {
  *out = {1, {static_cast<const EmbeddingArgs*>(args)->T}};
}

void embedding_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const EmbeddingArgs*>(args);
  const int64_t stride = a.format.stride(a.E);
  const auto* table = static_cast<const std::byte*>(a.table);
  for (int64_t t = begin; t < end; ++t) {
    float* out = a.out + t * a.E;
    a.format.decode_row(table + a.ids[t] * stride, a.E, out);
    if (a.scale != 1.f) {
      for (int64_t i = 0; i < a.E; ++i) out[i] *= a.scale;
    }
  }
}

void gather_plan(const void* args, int, KernelPlan* out) {
  *out = {1, {static_cast<const GatherRowsArgs*>(args)->R}};
}

void gather_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const GatherRowsArgs*>(args);
  for (int64_t r = begin; r < end; ++r) {
    memcpy(a.out + r * a.E, a.x + a.rows[r] * a.E, static_cast<size_t>(a.E) * sizeof(float));
  }
}

constexpr KernelEntry kEntries[] = {
    {KernelFamily::kEmbedding, Isa::kReference, embedding_plan, embedding_run},
    {KernelFamily::kGatherRows, Isa::kReference, gather_plan, gather_run},
};

}  // namespace

constinit const KernelTable kernels_embedding_reference{kEntries};

}  // namespace oar

// Attention over a bf16 cache for processors with AMX.
#define OAR_SIMD_NAMESPACE amx
#include "kernels/cpu/attention/attention_amx.h"

#include "kernels/cpu/attention/attention_quant_amx.h"
#include "kernels/cpu/attention/attention_quant_entries.h"
#include "kernels/cpu/attention/attention_register.h"
#include "kernels/kernel_list.h"

namespace oar {
namespace amx {

// What tiles do not do goes through registers, decode and prefill alike: pages that are no multiple of a step
// of 32 tokens, and fp8, whose rows are few.
inline const Kernel& in_registers(KernelFamily family) {
  return *KernelRegistry::cpu().find({family, Format::bf16()}, Isa::kAvx512Vnni);
}

inline bool whole_steps(const void* args) {
  return static_cast<const PagedAttentionArgs*>(args)->shape.page_tokens % AmxEngine::kStep == 0;
}
inline void plan(const void* args, int workers, KernelPlan* out) {
  whole_steps(args) ? attention_plan<AmxEngine>(args, workers, out)
                    : in_registers(KernelFamily::kPagedAttention).plan(args, workers, out);
}
inline void run(const void* args, int phase, int64_t begin, int64_t end, const KernelScratch& scratch) {
  whole_steps(args) ? attention_run<AmxEngine>(args, phase, begin, end, scratch)
                    : in_registers(KernelFamily::kPagedAttention).run(args, phase, begin, end, scratch);
}

// Codes that are integers have tiles whatever the pages, and the bits that registers give.
using NearOfOddPages = RegisterEngine<Bf16Codec>;
using Wide = WidenedEngine<AmxEngine, Bf16Codec>;

inline bool whole_quant_steps(const void* args) {
  return static_cast<const QuantPagedAttentionArgs*>(args)->shape.page_tokens % AmxEngine::kStep == 0;
}
inline bool by_registers(const void* args) {
  const CodeKind kind = code_kind(args);
  return kind == CodeKind::kFp8 || (kind == CodeKind::kLatent && !whole_quant_steps(args));
}
inline void plan_quant(const void* args, int workers, KernelPlan* out) {
  if (by_registers(args)) return in_registers(KernelFamily::kQuantPagedAttention).plan(args, workers, out);
  if (!whole_quant_steps(args) && code_kind(args) == CodeKind::kIntegers)
    return quant_attention_plan<NearOfOddPages, AmxCodesEngine>(args, workers, out);
  quant_plan<AmxEngine, AmxCodesEngine, Wide>(args, workers, out);
}
inline void run_quant(const void* args, int phase, int64_t begin, int64_t end, const KernelScratch& scratch) {
  if (by_registers(args))
    return in_registers(KernelFamily::kQuantPagedAttention).run(args, phase, begin, end, scratch);
  if (!whole_quant_steps(args) && code_kind(args) == CodeKind::kIntegers)
    return quant_attention_run<NearOfOddPages, AmxCodesEngine>(args, phase, begin, end, scratch);
  quant_run<AmxEngine, AmxCodesEngine, Wide>(args, phase, begin, end, scratch);
}

}  // namespace amx

namespace {
constexpr KernelEntry kEntries[] = {
    {KernelFamily::kPagedAttention, Isa::kAmx, amx::plan, amx::run, "bf16"},
    {KernelFamily::kQuantPagedAttention, Isa::kAmx, amx::plan_quant, amx::run_quant},
};
}  // namespace

constinit const KernelTable kernels_attention_amx{kEntries};

}  // namespace oar

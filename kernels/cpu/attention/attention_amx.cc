// Attention over a bf16 cache for processors with AMX.
#define OAR_SIMD_NAMESPACE amx
#include "kernels/cpu/attention/attention_amx.h"

#include "kernels/cpu/attention/attention_quant_amx.h"
#include "kernels/cpu/attention/attention_quant_entries.h"
#include "kernels/cpu/attention/attention_register.h"
#include "kernels/kernel_list.h"

namespace oar {
namespace amx {

// A page size that is no multiple of a step of 32 tokens goes through registers, decode and prefill alike.
using Fallback = RegisterEngine<Bf16Codec>;

inline bool whole_steps(const void* args) {
  return static_cast<const PagedAttentionArgs*>(args)->shape.page_tokens % AmxEngine::kStep == 0;
}
inline void plan(const void* args, int workers, KernelPlan* out) {
  whole_steps(args) ? attention_plan<AmxEngine>(args, workers, out)
                    : attention_plan<Fallback>(args, workers, out);
}
inline void run(const void* args, int phase, int64_t begin, int64_t end, const KernelScratch& scratch) {
  whole_steps(args) ? attention_run<AmxEngine>(args, phase, begin, end, scratch)
                    : attention_run<Fallback>(args, phase, begin, end, scratch);
}

inline bool whole_quant_steps(const void* args) {
  return static_cast<const QuantPagedAttentionArgs*>(args)->shape.page_tokens % AmxEngine::kStep == 0;
}
inline void plan_quant(const void* args, int workers, KernelPlan* out) {
  whole_quant_steps(args) ? quant_plan<AmxEngine, AmxCodesEngine, Bf16Codec>(args, workers, out)
                          : quant_plan<Fallback, AmxCodesEngine, Bf16Codec>(args, workers, out);
}
inline void run_quant(const void* args, int phase, int64_t begin, int64_t end, const KernelScratch& scratch) {
  whole_quant_steps(args) ? quant_run<AmxEngine, AmxCodesEngine, Bf16Codec>(args, phase, begin, end, scratch)
                          : quant_run<Fallback, AmxCodesEngine, Bf16Codec>(args, phase, begin, end, scratch);
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

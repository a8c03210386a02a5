// What a kernel is, for every family and backend: a named pair of functions over a C struct of raw pointers.
//
//   plan(args, workers): how the work divides, up to kMaxPhases phases with a barrier between them, each of
//     so many independent chunks, and how much scratch it needs. Pure arithmetic on sizes.
//   run(args, phase, begin, end, scratch): does chunks [begin, end) of one phase. Each chunk runs exactly
//     once, on any worker: where an operand is updated in place, a second run would be wrong.
//
// Batch invariance: within one ISA level the value of an output element never depends on how many other rows,
// sequences, chunks or workers there are. Each kernel adds in an order fixed by shapes of ITS row alone (K,
// head size, positions). This is what makes "a batch of N equals N alone" and "decode equals prefill" hold
// bit for bit.
//
// Args structs begin with {uint32_t size, version} so that a plug-in compiled against another revision can
// tell. Kernels never allocate, log or fail: the caller has checked every size. Unaligned pointers are
// allowed unless a field says otherwise. All tensors are row-major; `ld*` are row strides in elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "quant/dtype.h"
#include "quant/format.h"

namespace oar {

inline constexpr int kMaxPhases = 4;

struct KernelPlan {
  int phases = 1;
  int64_t chunks[kMaxPhases] = {1, 0, 0, 0};
  size_t worker_scratch = 0;  // bytes private to each worker, contents undefined on entry to each run() call
  size_t shared_scratch = 0;  // bytes shared by all workers; contents survive from phase to phase
};

struct KernelScratch {
  void* worker = nullptr;  // 64-byte aligned, worker_scratch bytes
  void* shared = nullptr;  // 64-byte aligned, shared_scratch bytes
};

// Families of kernels; each has a header kernels/<family>.h with its Args struct.
enum class KernelFamily : uint8_t {
  kMatmul,               // matmul.h
  kGroupedMatmul,        // moe.h
  kMoeRoute,             // moe.h
  kMoeCombine,           // moe.h
  kRmsNorm,              // norm.h
  kLayerNorm,            // norm.h
  kRope,                 // rope.h
  kKvAppend,             // attention.h
  kPagedAttention,       // attention.h
  kQuantKvAppend,        // kv_quant.h
  kQuantPagedAttention,  // kv_quant.h
  kSwiGlu,               // activation.h
  kUnary,                // activation.h
  kBinary,               // activation.h
  kEmbedding,            // embedding.h
  kGatherRows,           // embedding.h
  kHadamard,             // hadamard.h
  kConv,                 // conv.h
  kWinograd,             // conv.h
  kQuantizedConv,        // quantized_conv.h
  kNarrow,               // narrow.h
  kDepthwise,            // conv.h
  kPool,                 // conv.h
  kSoftmax,              // conv.h
  kActivate,             // conv.h
  kRecurrent,            // recurrent.h
  kGatedMatmul,          // matmul.h
  kSegmentAttention,     // attention.h
  kLora,                 // lora.h
  kDenseAttention,       // attention.h
  kResize,               // resize.h
  kCausalConv,           // causal_conv.h
  kStateScan,            // state_scan.h
  kStridedCopy,          // strided_copy.h
  kSample,               // sample.h
  kFeedTokens,           // sample.h
  kSeenSoftmax,          // softmax_grad.h
  kSoftmaxGrad,          // softmax_grad.h
  kCrossEntropy,         // softmax_grad.h
  kSquares,              // optimizer.h
  kAdamw,                // optimizer.h
  kReduce,               // reduce.h
};

inline constexpr KernelFamily kLastFamily = KernelFamily::kReduce;
const char* family_name(KernelFamily family);  // "matmul", as the first word of a kernel's name

// How images lie: as the family's header says, or with channels in front of pixels.
enum class ImageLayout : uint8_t { kFamily, kChannelsFirst };
// Rows of prompts, or of tokens that were generated: where a backend computes them in different orders, a
// row's is chosen by this alone, never by how many rows there are. kAny: one kernel for both.
enum class RowClass : uint8_t { kAny, kPrompt, kGenerated };
enum class Accumulation : uint8_t { kF32, kI32 };
enum class KvCode : uint8_t { kInt8, kFp8, kInt4, kInt4Mean, kInt3 };
const char* kv_code_name(KvCode code);  // "int8", "int4_mean"

// What a kernel is looked for by. What is left out is as most families have it.
struct KernelKey {
  KernelFamily family = KernelFamily::kMatmul;
  Format weight = Format::f32();  // stored operand: weights, a table, keys and values; without one f32
  Format input = Format::f32();   // activations that are read
  ImageLayout layout = ImageLayout::kFamily;
  RowClass rows = RowClass::kAny;
  Accumulation sum = Accumulation::kF32;
  // Of a quantized cache (kv_quant.h): how keys and values are stored.
  std::optional<KvCode> keys = {}, values = {};

  bool operator==(const KernelKey&) const = default;
};
// Products of 8-bit integers, and of bf16, in quantized_conv.h.
KernelKey int8_conv_key();
KernelKey bf16_conv_key();

// Instruction-set levels in ascending preference. A level implies those below it on the same architecture.
enum class Isa : uint8_t {
  kReference = 0,   // kernels/reference: scalar, double accumulation: the truth
  kGeneric = 1,     // portable C++ the compiler vectorizes; any processor
  kNeon = 2,        // aarch64 baseline
  kAvx2 = 3,        // AVX2 + FMA + F16C
  kAvx512 = 4,      // F, BW, VL, DQ
  kAvx512Vnni = 5,  // + VNNI, BF16
  kAmx = 6,         // + AMX-TILE, AMX-BF16, AMX-INT8
};
const char* isa_name(Isa isa);

// The best level this processor and OS support (AMX asks the kernel for permission on first use), lowered by
// the environment variable OAR_ISA=reference|generic|neon|avx2|avx512|avx512vnni|amx. Computed once,
// thread-safe.
Isa best_isa();
// AVX-VNNI, which stands beside the levels: found with AVX2 alone as well as with AVX-512.
bool has_avx_vnni();
// Whether this processor has byte permutations of AVX-512 (VBMI) beside VNNI and BF16: all but Cooper Lake.
bool has_avx512_vbmi();
// Arm's dot products of bytes (Armv8.2) and products of byte matrices (Armv8.6), which stand beside NEON.
bool has_neon_dot();
bool has_neon_i8mm();

// Weights in memory: where a chunk begins to read them, and the bytes from there to the end of those that the
// chunks after it read in turn.
struct WeightSpan {
  const void* at = nullptr;
  int64_t bytes = 0;
};

struct Kernel {
  KernelFamily family;
  Isa isa;
  const char* name;  // "matmul.bf16.avx512vnni"; without a format, "rope.avx2"
  // KernelKey::weight; nullopt serves any.
  std::optional<Format> format;
  void (*plan)(const void* args, int workers, KernelPlan* out);
  void (*run)(const void* args, int phase, int64_t begin, int64_t end, const KernelScratch& scratch);
  // What a chunk of the last phase reads of its weights, so that somebody who waits may fetch it; null for
  // kernels without weights of their own. Looks at sizes and addresses only.
  WeightSpan (*weights)(const void* args, int64_t chunk) = nullptr;
  Accumulation sum = Accumulation::kF32;
  Format input = Format::f32();  // as KernelKey's
};

// A kernel to come that reads weights. A hint: it need not be run.
struct NextKernel {
  const Kernel* kernel = nullptr;  // null: none known; else one with weights()
  const void* args = nullptr;
  int64_t chunks = 0;  // of its last phase
};

// All kernels compiled in, best first within a family. Immutable after start, any thread.
class KernelRegistry {
 public:
  // The best kernel for a key at or below `isa`: one made for the weight's format before one that serves any,
  // then the highest level. Null when none exists; these kernels serve every class of rows alike and have
  // images as their family says.
  const Kernel* find(const KernelKey& key, Isa isa) const;
  std::span<const Kernel* const> all() const;
  static const KernelRegistry& cpu();
};

}  // namespace oar

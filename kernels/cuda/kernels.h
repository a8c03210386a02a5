// Every kernel that a CUDA device has, as a plug-in looks for it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/activation.h"
#include "kernels/cuda/status.h"
#include "kernels/hadamard.h"
#include "kernels/kernel.h"
#include "kernels/matmul.h"
#include "kernels/moe.h"
#include "kernels/norm.h"

namespace oar::cuda {

struct Heads;         // heads.h
struct ChainKernel;   // matmul.h
struct ExpertSteps;   // the same
struct ProductHeads;  // the same

// KernelKey without what a device need not know: all take f32 activations, any rows, and add in f32; layers
// of 8-bit integers take bytes and add in i32.
struct DeviceKernel {
  KernelFamily family;
  std::string_view format;  // KernelKey::weight
  // On the stream; args is the family's struct, scratch the bytes asked for below.
  CudaStatus (*launch)(const void* args, void* scratch, Stream stream);
  uint64_t (*scratch)(const void* args) = nullptr;  // null: none
  std::string_view keys = {}, values = {};          // KernelKey's, by name; empty: not of a quantized cache
  bool latent = false;                              // of a cache whose keys hold values
  // Of an append: together with what is done to heads before it. Null: one by one.
  CudaStatus (*with_heads)(const Heads& heads, const void* args, Stream stream) = nullptr;
  // Of a product that takes norms of its rows in the same launch (takes_norm() of matmul.h). Null: none.
  CudaStatus (*with_norms)(const void* args, std::span<const RmsNormArgs> norms, Stream stream) = nullptr;
  // Of these: what launches it together with others. Null: by itself.
  ChainKernel (*chain)(const GatedMatmulArgs& args) = nullptr;
  // Of a product: one for each of several heads in one launch. Null: none.
  CudaStatus (*of_heads)(const MatmulArgs& args, const ProductHeads& heads, Stream stream) = nullptr;
  // Of experts' products that take what is in front and behind in the same launch. Null: none. Beside it: as
  // `chain`, with the gate in front.
  CudaStatus (*with_steps)(const void* args, const ExpertSteps& steps, Stream stream) = nullptr;
  ChainKernel (*chain_of_experts)(const GroupedMatmulArgs& args,
                                  const std::optional<SwiGluArgs>& gate) = nullptr;
  // Of attention that takes a transform of its heads in the same launch. Null: none.
  CudaStatus (*with_transform)(const void* args, const HadamardArgs& transform, void* scratch,
                               Stream stream) = nullptr;
  // Which of the sizes is more than it takes, in words; empty: none. Null: it takes all.
  std::string (*beyond)(const void* args) = nullptr;
};

std::span<const DeviceKernel> device_kernels();           // but for those below
std::span<const DeviceKernel> quantized_cache_kernels();  // two of each pair of codes
std::span<const DeviceKernel> latent_kernels();           // two of each cache
std::span<const DeviceKernel> product_kernels();          // three of each storage format
std::span<const DeviceKernel> embedding_kernels();        // one of each

// Null: there is none.
const DeviceKernel* find_device_kernel(KernelFamily family, std::string_view format,
                                       std::string_view keys = {}, std::string_view values = {},
                                       bool latent = false);

}  // namespace oar::cuda

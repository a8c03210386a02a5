// A thread moves an element, or 16 bytes of a row that lies dense in both boxes. Neighbours write neighbours;
// what they read is as far apart as the operand has it.
#include "kernels/cuda/strided_copy.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/device.h"

namespace oar::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) strided_copy_kernel(StridedCopyArgs a, int64_t n) {
  wait_for_launches();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  int64_t rest = i, from = 0, to = 0;
  for (int k = a.rank - 1; k >= 0; --k) {
    const int64_t at = rest % a.dims[k];
    rest /= a.dims[k];
    from += at * a.x_steps[k];
    to += at * a.out_steps[k];
  }
  store(static_cast<T*>(a.out) + to, a.x != nullptr ? load(static_cast<const T*>(a.x) + from) : T{});
}

template <class T>
CudaStatus run(const StridedCopyArgs& a, Stream stream) {
  int64_t n = 1;
  for (int k = 0; k < a.rank; ++k) n *= a.dims[k];
  if (n <= 0) return {};
  const auto blocks = static_cast<unsigned>((n + kThreads - 1) / kThreads);
  return {launch(strided_copy_kernel<T>, blocks, kThreads, 0, stream, a, n)};
}

// The box in elements of 16 bytes, where rows are dense and all steps and both ends are such; else false.
bool widen(StridedCopyArgs& a) {
  const int last = a.rank - 1;
  const int64_t each = 16 / a.element;
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  if (last < 0 || a.x_steps[last] != 1 || a.out_steps[last] != 1 || a.dims[last] % each != 0) return false;
  if (!aligned(a.x) || !aligned(a.out)) return false;
  for (int k = 0; k < last; ++k) {
    if (a.x_steps[k] % each != 0 || a.out_steps[k] % each != 0) return false;
  }
  for (int k = 0; k < last; ++k) a.x_steps[k] /= each, a.out_steps[k] /= each;
  a.dims[last] /= each;
  return true;
}

}  // namespace

CudaStatus strided_copy(const StridedCopyArgs& args, Stream stream) {
  StridedCopyArgs a = merged(args);
  if (widen(a)) return run<uint4>(a, stream);
  switch (a.element) {
    case 1: return run<uint8_t>(a, stream);
    case 2: return run<uint16_t>(a, stream);
    case 4: return run<uint32_t>(a, stream);
    default: return run<uint64_t>(a, stream);
  }
}

}  // namespace oar::cuda

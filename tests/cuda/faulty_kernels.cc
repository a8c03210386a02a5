#include "tests/cuda/faulty_kernels.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/last_block.h"
#include "kernels/cuda/streamed.h"

namespace oar_test {

using namespace oar::cuda;

namespace {

int thread() { return static_cast<int>(threadIdx.x); }
constexpr int kThreads = 64;

// A register of 2 or 4 elements of a row, at element k of T.
template <class T>
uint32_t word(const T* row, int k) {
  uint32_t w;
  memcpy(&w, row + k, sizeof w);
  return w;
}

// Fragments of bytes as the PTX manual draws them for m16n8k32.
template <class T>
void byte_fragments(const T* a, const T* b, uint32_t (&ra)[4], uint32_t (&rb)[2]) {
  const int g = thread() / 4, t = thread() % 4;
  ra[0] = word(a + g * 32, 4 * t);
  ra[1] = word(a + (g + 8) * 32, 4 * t);
  ra[2] = word(a + g * 32, 4 * t + 16);
  ra[3] = word(a + (g + 8) * 32, 4 * t + 16);
  rb[0] = word(b + g * 32, 4 * t);
  rb[1] = word(b + g * 32, 4 * t + 16);
}

template <class T>
void store_product(T* c, const T (&r)[4]) {
  const int g = thread() / 4, t = thread() % 4;
  for (int i = 0; i < 4; ++i) c[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = r[i];
}

template <bool kTranspose>
void multiply(float* c, const uint16_t* a, const uint16_t* b) {
  SharedMemory shared;
  auto* sa = shared.take<uint16_t>(16 * 16);
  auto* sb = shared.take<uint16_t>(16 * 16);
  for (int i = thread(); i < 16 * 16; i += kWarp) sa[i] = a[i];
  for (int i = thread(); i < 16 * 8; i += kWarp) sb[i] = b[i];
  __syncwarp();
  // a: matrices (rows 0-7, k 0-7), (rows 8-15, k 0-7), (rows 0-7, k 8-15), (rows 8-15, k 8-15).
  const int matrix = thread() / 8, row = thread() % 8;
  uint32_t ra[4], both[4], rb[2];
  ldmatrix_x4<false>(ra, sa + (row + 8 * (matrix % 2)) * 16 + 8 * (matrix / 2));
  // b: two matrices of k 0-7 and 8-15; the other two addresses repeat them.
  const int half = matrix % 2;
  if constexpr (kTranspose) ldmatrix_x4<true>(both, sb + (row + 8 * half) * 8);
  else ldmatrix_x4<false>(both, sb + row * 16 + 8 * half);
  rb[0] = both[0];
  rb[1] = both[1];
  float rc[4] = {};
  mma_bf16(rc, ra, rb);
  store_product(c, rc);
}

}  // namespace

void reads_before_the_barrier(float* out, const float* in, bool fault) {
  auto* s = SharedMemory().take<float>(kThreads);
  s[thread()] = in[thread()];
  if (!fault) __syncthreads();
  out[thread()] = s[kThreads - 1 - thread()];
}

void writes_a_buffer_others_still_read(float* out, const float* in, bool fault) {
  auto* s = SharedMemory().take<float>(kThreads);
  s[thread()] = in[thread()];
  __syncthreads();
  float sum = s[kThreads - 1 - thread()];
  if (!fault) __syncthreads();
  s[thread()] = 2 * in[thread()];
  __syncthreads();
  sum += s[kThreads - 1 - thread()];
  out[thread()] = sum;
}

void reads_results_before_the_barrier(float* out, const float* in, bool fault) {
  out[thread()] = in[thread()];
  if (!fault) __syncthreads();
  const float other = out[kThreads - 1 - thread()];
  __syncthreads();
  out[thread()] = other;
}

void writes_results_others_still_read(float* out, const float* in, bool fault) {
  out[thread()] = in[thread()];
  __syncthreads();
  const float other = out[kThreads - 1 - thread()];
  if (!fault) __syncthreads();
  out[thread()] = other;
}

void writes_a_result_twice(float* out, const float* in, bool fault) {
  out[thread()] = in[thread()];
  if (!fault) __syncthreads();
  out[kThreads - 1 - thread()] = in[thread()];
}

void barrier_for_some(float* out, const float* in, bool fault) {
  if (fault && thread() >= 32) return;
  __syncthreads();
  out[thread()] = in[thread()];
}

void barriers_at_two_places(float* out, const float* in, bool fault) {
  if (fault && thread() % 2 == 0) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[thread()] = in[thread()];
}

void shuffle_in_half_a_warp(float* out, const float* in, bool fault) {
  float x = in[thread()];
  if (!fault || thread() % 32 < 16) x += __shfl_xor_sync(kAllLanes, x, 1);
  out[thread()] = x;
}

void shuffle_from_outside_the_mask(float* out, const float* in, bool fault) {
  float x = in[thread()];
  if (thread() % 32 < 16) x = __shfl_sync(0xffffu, x, fault ? 20 : 3);
  out[thread()] = x;
}

void reads_beyond(float* out, const float* in, bool fault) { out[thread()] = in[thread() + (fault ? 1 : 0)]; }

void reads_far_beyond(float* out, const float* in, bool fault) {
  out[thread()] = in[thread() + (fault ? 100000 : 0)];
}

void writes_beyond(float* out, const float* in, bool fault) {
  out[thread() + (fault ? 1 : 0)] = in[thread()];
}

void shared_beyond(float* out, const float* in, bool fault) {
  auto* s = SharedMemory().take<float>(256);
  const int at = thread() + (fault ? 256 - kThreads + 1 : 0);
  s[at] = in[thread()];
  out[thread()] = s[at];
}

void misaligned(float* out, const float* in, bool fault) {
  const int at = (thread() & ~3) % 32 + (fault ? 1 : 0);
  out[thread()] = load(reinterpret_cast<const float4*>(in + at)).x;
}

void copies_without_wait(float* out, const float* in, bool fault) {
  auto* s = SharedMemory().take<float>(kThreads);
  const int at = thread() / 4 * 4;
  if (thread() % 4 == 0) {
    copy_async16(s + at, in + at);
    copy_async_commit();
    if (!fault) copy_async_wait<0>();
  }
  __syncthreads();
  out[thread()] = s[thread()];
}

void waits_for_too_few(float* out, const float* in, bool fault) {
  auto* s = SharedMemory().take<float>(2 * kThreads);
  const int at = thread() / 4 * 4;
  if (thread() % 4 == 0) {
    for (int half = 0; half < 2; ++half) {
      copy_async16(s + half * kThreads + at, in + at, half == 0);
      copy_async_commit();
    }
    if (fault) copy_async_wait<1>();
    else copy_async_wait<0>();
  }
  __syncthreads();
  out[thread()] = s[thread()] + s[kThreads + thread()];
  copy_async_wait<0>();
}

void reads_unwritten_shared(float* out, const float* in, bool fault) {
  auto* s = SharedMemory().take<float>(kThreads);
  if (!fault || thread() > 0) s[thread()] = in[thread()];
  __syncthreads();
  out[thread()] = s[thread()];
}

namespace {
// As last_block.h does it.
bool is_last(uint32_t* counter, BlockFault fault) {
  auto* flag = SharedMemory().take<uint32_t>(1);
  if (fault != BlockFault::kNoBarrier) __syncthreads();
  if (thread() == 0) {
    if (fault != BlockFault::kNoFenceBefore) __threadfence();
    *flag = atomicInc(counter, 3) == 3 ? 1 : 0;
    if (fault != BlockFault::kNoFenceBehind) __threadfence();
  }
  __syncthreads();
  return fault == BlockFault::kOrder ? blockIdx.x == 3 : *flag != 0;
}
}  // namespace

void sums_by_the_last_block(float* out, float* parts, const float* in, uint32_t* counter, BlockFault fault) {
  const unsigned place = fault == BlockFault::kOverwrites ? 0 : blockIdx.x;
  parts[place * kThreads + threadIdx.x] = in[thread()] + static_cast<float>(blockIdx.x);
  if (!is_last(counter, fault)) return;
  float sum = 0.f;
  for (int b = 0; b < 4; ++b) sum += parts[b * kThreads + thread()];
  out[thread()] = sum;
}

void overwrites_by_the_last_block(float* out, float* in, uint32_t* counter, BlockFault fault) {
  out[blockIdx.x * kThreads + threadIdx.x] = in[thread()] + in[kThreads - 1 - thread()];
  if (is_last(counter, fault)) in[thread()] = 0.f;
}

void sums_behind_each_other(float* out, float* parts, const float* in, uint32_t* counters, ChainFault fault) {
  SharedMemory shared;
  uint32_t ticket = take_ticket(counters, 6, shared.take<uint32_t>(1));
  if (fault == ChainFault::kNoTickets) ticket = blockIdx.x;
  const uint32_t step = ticket / 2, which = ticket % 2;
  auto* const flag = shared.take<uint32_t>(1);
  const auto count = [&] {  // each of the second step twice
    if (fault != ChainFault::kNone && fault != ChainFault::kCountsBefore) return;  // it would be found first
    if (step < 2) is_last_block(counters + 4, step == 0 ? 2 : 4, flag);
    if (step == 1) is_last_block(counters + 4, 4, flag);
  };
  if (fault == ChainFault::kCountsBefore) count();
  if (step > 0 && fault != ChainFault::kNoWait)
    wait_for_blocks(counters + step, fault == ChainFault::kWaitsForFewer ? 1 : 2);
  if (fault != ChainFault::kCountsBefore) count();
  if (step == 0) {
    parts[which * kThreads + thread()] = in[thread()] + static_cast<float>(which);
  } else if (step == 1) {
    out[which * kThreads + thread()] = parts[thread()] + parts[kThreads + thread()];
  } else {  // what the first step did is seen as the second saw it
    float sum = out[thread()] + out[kThreads + thread()];
    if (which == 1) sum += parts[thread()];
    out[(2 + which) * kThreads + thread()] = sum;
  }
  if (step == 2) return end_chain(counters + 1, 2, 2);
  if (fault != ChainFault::kNoFence) return tell_finished(counters + 1 + step);
  __syncthreads();
  if (thread() == 0) atomicInc(counters + 1 + step, ~0u);
}

void copies_early(float* out, const float* in, EarlyFault fault) {
  if (fault == EarlyFault::kReadsBefore) out[thread()] = in[thread()];
  if (fault != EarlyFault::kSomeNeverWait || thread() != 5) wait_for_launches();
  if (thread() != 5) out[thread()] = in[thread()];
}

void strided(float* out, const float* in, int stride) { out[thread()] = in[thread() * stride]; }

void sums_part(float* out, const float* in, int times) {
  const int64_t block = blockIdx.x;
  float sum = 0;
  for (int k = 0; k < 8 * times; ++k) sum += in[block * 512 + thread() + 64 * (k % 8)];
  out[block * 64 + thread()] = sum;
}

void sums_behind_a_stream(float* out, const float* in, int count, bool streamed) {
  float sum = 0;
  for (int k = 0; k < 8; ++k) sum += in[thread() + 64 * k];
  for (int k = thread(); k < count; k += 64)
    store_streamed(out + 64 + k, load_streamed(in + 512 + k, streamed), streamed);
  for (int k = 0; k < 8; ++k) sum += in[thread() + 64 * k];
  out[thread()] = sum;
}

void banks(float* out, const float* in, int stride) {
  auto* s = SharedMemory().take<float>(32 * stride);
  s[thread() * stride] = in[thread()];
  out[thread()] = in[thread()];
}

void multiply_bf16(float* c, const uint16_t* a, const uint16_t* b) { multiply<false>(c, a, b); }
void multiply_bf16_transposed(float* c, const uint16_t* a, const uint16_t* b) { multiply<true>(c, a, b); }

void multiply_s8(int32_t* c, const int8_t* a, const int8_t* b) {
  uint32_t ra[4], rb[2];
  byte_fragments(a, b, ra, rb);
  int32_t rc[4] = {};
  mma_s8(rc, ra, rb);
  store_product(c, rc);
}

void multiply_e4m3(float* c, const uint8_t* a, const uint8_t* b) {
  uint32_t ra[4], rb[2];
  byte_fragments(a, b, ra, rb);
  float rc[4] = {};
  mma_e4m3(rc, ra, rb);
  store_product(c, rc);
}

}  // namespace oar_test

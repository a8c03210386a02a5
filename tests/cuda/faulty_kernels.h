// Small kernels for tests of the emulator: each does what a kernel may not do if `fault` is set, and the
// right thing otherwise. Compiled like kernels/cuda, with every access seen.
#pragma once

#include <cstdint>

namespace oar_test {

// All for blocks of 64 threads and 1 KiB of shared memory.
using FaultyKernel = void (*)(float* out, const float* in, bool fault);

void reads_before_the_barrier(float* out, const float* in, bool fault);
void writes_a_buffer_others_still_read(float* out, const float* in, bool fault);
void reads_results_before_the_barrier(float* out, const float* in, bool fault);
void writes_results_others_still_read(float* out, const float* in, bool fault);
void writes_a_result_twice(float* out, const float* in, bool fault);
void barrier_for_some(float* out, const float* in, bool fault);
void barriers_at_two_places(float* out, const float* in, bool fault);
void shuffle_in_half_a_warp(float* out, const float* in, bool fault);
void shuffle_from_outside_the_mask(float* out, const float* in, bool fault);
void reads_beyond(float* out, const float* in, bool fault);
void reads_far_beyond(float* out, const float* in, bool fault);
void writes_beyond(float* out, const float* in, bool fault);
void shared_beyond(float* out, const float* in, bool fault);
void misaligned(float* out, const float* in, bool fault);
void copies_without_wait(float* out, const float* in, bool fault);
void waits_for_too_few(float* out, const float* in, bool fault);
void reads_unwritten_shared(float* out, const float* in, bool fault);

// out[t] = the sum over 4 blocks of parts[block * 64 + t] = in[t] + block, by the block that comes last.
enum class BlockFault {
  kNone,
  kNoFenceBefore,  // its parts may not be there yet
  kNoFenceBehind,  // it may read what was there before
  kNoBarrier,      // other threads' parts are not behind the fence
  kOrder,          // block 3 takes itself for the last
  kOverwrites,     // each block puts its parts in the same place
};
void sums_by_the_last_block(float* out, float* parts, const float* in, uint32_t* counter, BlockFault fault);
// Each block writes over what others of the launch read, all behind the last one or at once.
void overwrites_by_the_last_block(float* out, float* in, uint32_t* counter, BlockFault fault);

// The same of 6 blocks that take tickets: the first two write parts, the next two their sums to `out`, the
// last two the sums of all these to out + 128. `counters`: five, zero again behind it; the first four blocks
// count with the last.
enum class ChainFault {
  kNone,
  kNoTickets,  // work goes by the block's number
  kNoWait,
  kWaitsForFewer,
  kNoFence,       // before a block says that it has finished
  kCountsBefore,  // it waits for those that count with the same counter
};
void sums_behind_each_other(float* out, float* parts, const float* in, uint32_t* counters, ChainFault fault);

// out[t] = in[t], for launches that begin early.
enum class EarlyFault { kNone, kReadsBefore, kSomeNeverWait };
void copies_early(float* out, const float* in, EarlyFault fault);

// out[t] = in[t * stride] for 32 threads.
void strided(float* out, const float* in, int stride);
// out[block * 64 + t] = the sum of in[block * 512 + t + 64 i], i < 8, for 64 threads; read `times` times.
void sums_part(float* out, const float* in, int times);
// For 64 threads: the same of one block, behind which it copies `count` further numbers, streamed or not, and
// adds up the first 512 again.
void sums_behind_a_stream(float* out, const float* in, int count, bool streamed);
// A word of shared memory per thread, `stride` words apart, 32 threads.
void banks(float* out, const float* in, int stride);

// One warp: c (16 x 8) = a (16 x 16) b (16 x 8), row-major bf16 in `a`, columns of b in `b` (8 x 16), through
// ldmatrix.
void multiply_bf16(float* c, const uint16_t* a, const uint16_t* b);
// The same with b as it lies, (16 x 8), through transposing ldmatrix.
void multiply_bf16_transposed(float* c, const uint16_t* a, const uint16_t* b);
// One warp: c (16 x 8) = a (16 x 32) b, columns of b in `b` (8 x 32), bytes.
void multiply_s8(int32_t* c, const int8_t* a, const int8_t* b);
void multiply_e4m3(float* c, const uint8_t* a, const uint8_t* b);

}  // namespace oar_test

// What the emulated CUDA runtime has been asked for. A plug-in has a runtime of its own beside the one that a
// test is linked with; it exports this function, so that a test can ask what the plug-in did.
//
// The environment variable OAR_CUDA_EMULATED, read when devices are counted, asks for more or for a fault;
// words have commas between:
//   devices=N      so many devices, at most 2
//   fail_launch=N  the N-th launch from then on fails, in replays too, and so does all that follows
//   kernels=FILE   each kernel that is launched is a line of this file, written behind what it has: the
//                  program or library that holds it, and where in it, hexadecimal
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace oar::cuda::emulation {

struct RuntimeCounters {
  uint64_t copies_to_device = 0, copies_to_host = 0;  // between host and device
  uint64_t launches = 0;                              // of kernels, in replays too
  uint64_t captures = 0, replays = 0;
};

// Whether CUDA refuses to this thread what allocates, releases or waits, as a stream is captured. That
// capture is void then.
bool refused_in_capture();

// Work of one thread on a stream, as a library does it. A replay of it is refused once any of this memory was
// released.
struct Touched {
  const void* at;
  size_t bytes;
};
int launch_over(void* stream, std::vector<Touched> memory, std::function<void()> work);

}  // namespace oar::cuda::emulation

// Its own threads may count on meanwhile.
extern "C" __attribute__((visibility("default"))) void oar_emulated_runtime_counters(
    oar::cuda::emulation::RuntimeCounters* out);

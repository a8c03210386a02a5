// One line a kernel: how well it uses memory, counted by the traced emulated device. Counted are sectors of
// 32 bytes per ideal, which is a warp's distinct bytes side by side. So are wavefronts of shared memory per
// ideal, and, per byte that is needed, bytes that a modelled L2 does not have.
#pragma once

#include "kernels/cuda/cost.h"
#include "tests/cuda/emulated.h"
#include "tests/cuda/on_device.h"

namespace oar_test {

namespace emulation = oar::cuda::emulation;

constexpr double kFloat = sizeof(float);

inline DeviceArray ones(int64_t n) { return DeviceArray(std::vector<float>(static_cast<size_t>(n), 1.f)); }

inline double times_ideal(uint64_t real, uint64_t ideal) {
  return ideal == 0 ? 1 : static_cast<double>(real) / static_cast<double>(ideal);
}

struct Line {
  const char* name;
  int registers;  // as kernels_test.py allows them
  double bytes;   // read and written, each once
  // Of a step of 2,048 rows of an 8B model, or of 64 sequences where only those are: as much of the L2's 40
  // MB.
  double part;
  double loads = 1.1, stores = 1.1, shared = 1.1, memory = 1.05;  // at most
  int multiprocessors = oar::cuda::kMultiprocessors;
};

// Sectors per ideal of loads and stores, wavefronts per ideal, and bytes that the L2 does not have per byte
// that is needed, of what `run` launches.
template <class Run>
void line(const Line& most, const Run& run) {
  emulation::counters() = {};
  // A request is what a warp's lanes do side by side: they keep to their usual order (NextOrder).
  emulation::options().registers = most.registers;
  emulation::options().l2_bytes = static_cast<size_t>(most.part * (40 << 20));
  emulation::options().multiprocessors = most.multiprocessors;
  run();
  emulation::options() = {};
  const emulation::Counters c = emulation::counters();
  REQUIRE(c.load_requests > 0);  // traced
  const double l = times_ideal(c.load_sectors, c.load_ideal), s = times_ideal(c.store_sectors, c.store_ideal),
               w = times_ideal(c.shared_wavefronts, c.shared_ideal),
               m = static_cast<double>(c.memory_read + c.memory_written) / most.bytes;
  INFO(most.name << ": sectors per ideal of loads " << l << ", of stores " << s << "; wavefronts per ideal "
                 << w << "; bytes of memory per byte " << m);
  CHECK(l <= most.loads);
  CHECK(s <= most.stores);
  CHECK(w <= most.shared);
  CHECK(m <= most.memory);
  CHECK(m >= 0.9);
}

// The same of a kernel by itself. What cost.h says of it is held against the line and what was counted.
inline void line_of(const Line& most, KernelFamily family, const char* format, const void* args) {
  const oar::cuda::DeviceKernel* kernel = oar::cuda::find_device_kernel(family, format);
  REQUIRE(kernel != nullptr);
  oar::cuda::KernelCost cost;
  REQUIRE(oar::cuda::cost_of(*kernel, args, 0, &cost));
  line(most, [&] { launch_on_device(family, format, args); });
  INFO(most.name << ": cost.h says " << cost.bytes << " bytes, " << cost.tensor_operations
                 << " operations of "
                 << "tensor cores, " << cost.operations << " others");
  CHECK(cost.bytes == Approx(most.bytes).epsilon(0.02));
  CHECK(cost.seconds > 0);
  const int depth = family == KernelFamily::kQuantizedConv ? 32 : std::string_view(format) == "tf32" ? 8 : 16;
  CHECK(static_cast<double>(emulation::counters().mma) * 2 * 16 * 8 * depth == cost.tensor_operations);
}

}  // namespace oar_test

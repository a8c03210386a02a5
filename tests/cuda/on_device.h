// A kernel on the device, found as the plug-in finds it, and its reference on the host.
#pragma once

#include <cmath>
#include <cstring>

#include "kernels/activation.h"
#include "kernels/cuda/kernels.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "tests/cuda/device_memory.h"
#include "tests/kernels/matmul_problem.h"

namespace oar_test {

// `args`: the family's struct with device pointers. With its scratch, as the table promises it, and in the
// emulated device's next order.
inline void launch_on_device(KernelFamily family, const char* format, const void* args, const char* keys = "",
                             const char* values = "", bool latent = false) {
  const oar::cuda::DeviceKernel* kernel = oar::cuda::find_device_kernel(family, format, keys, values, latent);
  REQUIRE(kernel != nullptr);
  DeviceCopy<char> scratch(std::vector<char>(kernel->scratch != nullptr ? kernel->scratch(args) : 0, '\x7f'));
  const NextOrder order;
  const oar::cuda::CudaStatus status = kernel->launch(args, scratch.data(), nullptr);
  INFO(status.message());
  REQUIRE(status.ok());
}

// `args`: the same with pointers of the host.
inline void run_reference(KernelFamily family, Format format, const void* args) {
  const Kernel* kernel = oar::KernelRegistry::cpu().find({family, format}, Isa::kReference);
  REQUIRE(kernel != nullptr);
  run_in_steps(*kernel, args, 1 << 20, false);
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// |got - want| <= bound(i), and both NaN or infinite alike.
template <class Bound>
void check_close(const std::vector<float>& got, const std::vector<float>& want, const Bound& bound) {
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i]) ? std::isnan(got[i]) : got[i] == want[i]) continue;
    const double difference = std::fabs(static_cast<double>(got[i]) - want[i]);
    if (difference <= bound(i)) continue;
    INFO("element " << i << ": " << got[i] << ", not " << want[i] << ", bound " << bound(i));
    FAIL("too far from the reference");
  }
}

inline std::vector<float> nothing_yet(int64_t n) { return std::vector<float>(static_cast<size_t>(n), NAN); }

// out (T, n) = x (T, K) times one weight.
inline oar::MatmulArgs product_of(DeviceArray& x, const oar::MatmulSegment& weight, int64_t T, int64_t K,
                                  DeviceArray& out) {
  oar::MatmulArgs m;
  m.out = out.data();
  m.x = x.data();
  m.segments = &weight;
  m.num_segments = 1;
  m.T = T;
  m.K = m.ldx = K;
  m.ldo = weight.n;
  return m;
}

// Of dense rows.
inline oar::SwiGluArgs swiglu_of(DeviceArray& gate, DeviceArray& up, int64_t rows, int64_t cols,
                                 DeviceArray& out) {
  oar::SwiGluArgs g;
  g.out = out.data();
  g.gate = gate.data();
  g.up = up.data();
  g.T = rows;
  g.F = g.ldo = g.ldg = g.ldu = cols;
  return g;
}

inline oar::RmsNormArgs rms_norm_of(DeviceArray& x, DeviceArray& weight, int64_t rows, int64_t cols,
                                    DeviceArray& out) {
  oar::RmsNormArgs n;
  n.out = out.data();
  n.x = x.data();
  n.w = weight.data();
  n.rows = rows;
  n.cols = n.ldx = n.ldo = cols;
  return n;
}

// All of the dims of each head of 128.
inline oar::RopeArgs rope_of(DeviceArray& x, DeviceCopy<int32_t>& positions, DeviceArray& frequencies,
                             int64_t rows, int64_t cols, DeviceArray& out) {
  oar::RopeArgs p;
  p.out = out.data();
  p.x = x.data();
  p.positions = positions.data();
  p.inv_freq = frequencies.data();
  p.T = rows;
  p.heads = cols / 128;
  p.D = p.rot_dim = 128;
  p.ldx = p.ldo = cols;
  return p;
}

constexpr double kUnit = 1.0 / (1 << 24);  // half a unit in the last place

}  // namespace oar_test

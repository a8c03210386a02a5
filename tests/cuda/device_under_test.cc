// In what the programs for the two devices differ.
#include <array>

#include "kernels/cuda/emulation/emulation.h"
#include "tests/cuda/device_libraries.h"
#include "tests/cuda/device_memory.h"

#ifdef OAR_CUDA_FAKES
#include "kernels/cuda/emulation/libraries.h"
#endif

namespace oar_test {
namespace {

constexpr bool kEmulated = std::string_view(OAR_CUDA_PLUGIN) == "cuda_emulated";

}  // namespace

const char* const kCudaPlugin = OAR_CUDA_PLUGIN;

#ifdef OAR_CUDA_FAKES
bool find_cublas_lt(oar::cuda::CublasLtApi* api, std::string*) {
  *api = oar::cuda::emulation::fake_cublas_lt();
  return true;
}
bool find_cudnn(oar::cuda::CudnnApi* api, std::string*) {
  *api = oar::cuda::emulation::fake_cudnn();
  return true;
}
#else
bool find_cublas_lt(oar::cuda::CublasLtApi* api, std::string* why) {
  return oar::cuda::load_cublas_lt(api, why);
}
bool find_cudnn(oar::cuda::CudnnApi* api, std::string* why) { return oar::cuda::load_cudnn(api, why); }
#endif

NextOrder::NextOrder() {
  if constexpr (kEmulated) {  // the other program has no such options
    using oar::cuda::emulation::Options;
    using oar::cuda::emulation::Order;
    static std::string test;
    static unsigned turn = 0;
    Options& now = oar::cuda::emulation::options();
    const Options usual;
    if (now.order != usual.order || now.seed != usual.seed || now.late_copies != usual.late_copies ||
        now.registers != usual.registers)
      return;
    if (const std::string name = Catch::getResultCapture().getCurrentTestName(); name != test) {
      test = name;
      turn = 0;
    }
    // Tests that launch in turns of six meet another order each time, too.
    constexpr unsigned kOrders = 3, kWays = 2 * kOrders;
    const unsigned way = (turn + turn / kWays) % kWays;
    now.order = std::array{Order::kAscending, Order::kDescending, Order::kShuffled}[way % kOrders];
    now.seed = ++turn;
    now.late_copies = way < kOrders;
    changed_ = true;
  }
}

NextOrder::~NextOrder() {
  if constexpr (kEmulated) {
    if (changed_) oar::cuda::emulation::options() = {};
  }
}

}  // namespace oar_test

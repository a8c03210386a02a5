// The things in which the programs for the two devices differ.
#include <array>

#include "kernels/cuda/emulation/emulation.h"
#include "tests/cuda/device_memory.h"

namespace oar_test {
namespace {

constexpr bool kEmulated = std::string_view(OAR_CUDA_PLUGIN) == "cuda_emulated";

}  // namespace

const char* const kCudaPlugin = OAR_CUDA_PLUGIN;

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

// Convolutions with all that follows them, and pools, of ordinary models by cuDNN: a graph and a plan for
// each set of sizes, made when a run asks for scratch and kept. What the library does not take, for its
// layout or because no engine computes it in f32, has our own kernel.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/libraries/cudnn.h"

namespace oar::cuda {

// Of one device, the current one of the thread that makes it. Not for two threads at once.
class LibraryImages {
 public:
  static constexpr uint64_t kMostWorkspace = uint64_t{256} << 20;
  static constexpr size_t kMostPlans = 4096;  // sizes beyond them have our own kernels

  // Null: the library has no handle here; *why says it.
  static std::unique_ptr<LibraryImages> make(const CudnnApi& api, std::string* why);

  // Bytes for run(); a function of sizes and of which operands there are. Args: ConvArgs, DepthwiseArgs,
  // PoolArgs.
  template <class Args>
  uint64_t scratch(const Args& args) {
    ImagePlan* plan = plan_of(operation_of(args));
    return plan != nullptr ? plan->workspace_bytes() : 0;
  }
  // `scratch` is a multiple of 256.
  LibraryStatus run(const ConvArgs& args, void* scratch, Stream stream);
  LibraryStatus run(const DepthwiseArgs& args, void* scratch, Stream stream);
  LibraryStatus run(const PoolArgs& args, void* scratch, Stream stream);

 private:
  explicit LibraryImages(std::unique_ptr<Cudnn> cudnn) : cudnn_(std::move(cudnn)) {}
  ImagePlan* plan_of(const ImageOperation& operation);  // null: our own kernel's

  std::unique_ptr<Cudnn> cudnn_;
  std::map<std::vector<int64_t>, std::unique_ptr<ImagePlan>> plans_;  // null: refused
};

}  // namespace oar::cuda

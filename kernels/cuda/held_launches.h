// Launches that follow one another and can be one. Oar gives a device one kernel after the other; those that
// a launch to come may join are held back until it is known. Whoever looks at the device's memory, or orders
// anything else, has release() called before.
//
// Held are rotations and Hadamard transforms: an append of what they made, over whole heads and in memory of
// its own, does all of it (heads.h). And products of few rows: norms of these rows become part of their
// launch, up to four such products behind each other are one, and so are those of heads (matmul.h); and
// attention over quantized pages: a transform of its heads does (attention_split.h); and gates, for experts'
// second layers, and these of few pairs for the sum of experts' rows and norms behind it (matmul.h), or rows
// that are combined for a norm (moe.h). Where libraries' products round rows (narrow.h), norms and gates are
// held, too, with a transform of what they made: a product of it that rounds it does all in one launch.
// Whatever else comes finds them launched, in their order.
#pragma once

#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/narrow.h"
#include "kernels/hadamard.h"
#include "kernels/kv_quant.h"
#include "kernels/moe.h"
#include "kernels/rope.h"

namespace oar::cuda {

class HeldLaunches {
 public:
  static constexpr int kMost = 5;  // queries and keys rotated and transformed, values transformed

  // Puts a launch behind those before, now or later. An error may be that of an earlier one.
  CudaStatus launch(const DeviceKernel& kernel, const void* args, void* scratch, Stream stream);
  CudaStatus release();
  // Launches that are held, if those that may be one will be.
  int64_t held() const;

  // From now on norms and gates are held for products that round their rows.
  void hold_rows() { holds_rows_ = true; }
  // Of a product that is no DeviceKernel: what is held that makes its rows, which are for it to make then.
  // What else is held comes behind it. Nothing: they are not of one launch, and release() is due. It has
  // `bytes` of scratch, none where it rounds no rows.
  std::optional<RowSteps> take_rows(const MatmulArgs& product, const void* scratch, uint64_t bytes,
                                    Stream stream);

 private:
  struct Held {
    const DeviceKernel* kernel;
    std::variant<RopeArgs, HadamardArgs> args;
    void* scratch;
  };
  // Its list of weights, which is the caller's, is kept too.
  struct HeldProduct {
    const DeviceKernel* kernel;
    GatedMatmulArgs args;  // of a plain one `matmul` alone
    MatmulSegment segments[Product::kWeights];
    RmsNormArgs norms[kMostNorms];
    size_t norms_count;
    std::vector<const void*> heads;  // where there are several: the matrix of each
    int64_t x_step, out_step;

    std::span<const RmsNormArgs> its_norms() const { return {norms, norms_count}; }
    bool precedes(const RmsNormArgs& norm) const;
    bool joined_by(const DeviceKernel& other, const GatedMatmulArgs& head);
  };
  struct HeldAttention {
    const DeviceKernel* kernel = nullptr;  // null: none
    QuantPagedAttentionArgs args;
    void* scratch;

    bool precedes(const HadamardArgs& transform) const;
  };
  // Experts' products, the list of their weights too, and what is part of their launch.
  struct HeldExperts {
    const DeviceKernel* kernel = nullptr;  // null: none
    GroupedMatmulArgs args;
    std::vector<MatmulSegment> segments;
    ExpertSteps steps;
    RmsNormArgs norms[kMostNorms];
    size_t norms_count = 0;
  };
  std::optional<SwiGluArgs> take_gate(const GroupedMatmulArgs& experts);
  bool joins_experts(const DeviceKernel& kernel, const void* args);
  CudaStatus release_experts();
  bool joins_rows(const DeviceKernel& kernel, const void* args);
  CudaStatus release_rows();
  void hold(const DeviceKernel& kernel, const void* args, void* scratch);
  void hold(const DeviceKernel& kernel, const GroupedMatmulArgs& args, const std::optional<SwiGluArgs>& gate);
  bool joins(const DeviceKernel& product, const GatedMatmulArgs& args) const;
  void hold(const DeviceKernel& product, const GatedMatmulArgs& args);
  CudaStatus join_head(const DeviceKernel& product, const GatedMatmulArgs& args, bool* joined);
  CudaStatus release_products(size_t count);
  CudaStatus launch_products(std::span<const HeldProduct> products);

  Held held_[kMost];
  int count_ = 0;
  bool holds_rows_ = false;
  std::optional<RowSteps> rows_;  // in front of all others, which are one product without a norm
  // Where there is one of the others, there is nothing else.
  HeldProduct products_[ProductChain::kSteps];
  size_t products_count_ = 0;
  HeldAttention attention_;
  std::optional<SwiGluArgs> gate_;
  HeldExperts experts_;
  std::optional<MoeCombineArgs> combine_;
  Stream stream_ = nullptr;
};

}  // namespace oar::cuda

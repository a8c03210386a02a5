// Launches that follow one another and can be one. Oar gives a device one kernel after the other; those that
// a launch to come may join are held back until it is known. Whoever looks at the device's memory, or orders
// anything else, has release() called before.
//
// Held are rotations and Hadamard transforms: an append of what they made, over whole heads and in memory of
// its own, does all of it (heads.h), and of keys that hold values over parts of heads. And products of few
// rows: one number that these are multiplied with and norms of them become part of their launch, and up to
// eight such products behind each other are one (matmul.h). One of the eight may be products of heads, or of
// experts, with the gate in front of these and, of few pairs, the sum of experts' rows and norms behind it;
// and what the last one's rows choose of experts is part of it. And attention over quantized pages: a
// transform of its heads is (attention_split.h); and rows that are combined for a norm (moe.h). Where
// libraries' products round rows (narrow.h), norms and gates are held, too, with a transform of what they
// made: a product of it that rounds it does all in one launch. And unary and binary ops, gates and copies of
// columns, of few elements: for others of the same elements (elementwise.h), and for products in front and
// behind, of whose launch they are steps. Whatever else comes finds them launched, in their order.
#pragma once

#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/narrow.h"
#include "kernels/cuda/rope.h"
#include "kernels/hadamard.h"
#include "kernels/kv_quant.h"
#include "kernels/moe.h"
#include "kernels/rope.h"

namespace oar::cuda {

class HeldLaunches {
 public:
  static constexpr int kMost = kMostRopes;  // queries and keys rotated and transformed, values transformed

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
  // Its list of weights, which is the caller's, is kept too. Or elementwise ops, which may have norms behind
  // them as well.
  struct HeldProduct {
    ElementSteps elements;                                              // none: it is a product
    std::variant<std::monostate, UnaryArgs, BinaryArgs> first_element;  // as it has a launch by itself
    const DeviceKernel* kernel;
    GatedMatmulArgs args;  // of a plain one `matmul` alone
    std::vector<MatmulSegment> segments;
    RmsNormArgs norms[kMostNorms];
    size_t norms_count;
    std::vector<const void*> heads;  // where there are several: the matrix of each
    int64_t x_step, out_step;
    std::optional<GroupedMatmulArgs> experts;  // instead of `args`; `norms` are behind `steps.combine`
    ExpertSteps steps;
    std::optional<BinaryArgs> scale;  // of its rows, in front of `norms`
    ChainKernel chain;                // what may launch it with others

    bool multiplies() const { return elements.count == 0; }
    std::span<const RmsNormArgs> its_norms() const { return {norms, norms_count}; }
    size_t matrices() const;  // of heads and of experts
    bool precedes(const RmsNormArgs& norm) const;
    bool joined_by(const DeviceKernel& other, const GatedMatmulArgs& head);
    bool joined_by(const MoeCombineArgs& combine);
    bool joined_by(const BinaryArgs& scale);
    bool adds(const RmsNormArgs& norm);
  };
  struct HeldAttention {
    const DeviceKernel* kernel = nullptr;  // null: none
    QuantPagedAttentionArgs args;
    void* scratch;

    bool precedes(const HadamardArgs& transform) const;
  };
  std::optional<SwiGluArgs> take_gate(const GroupedMatmulArgs& experts);
  bool joins_product(const DeviceKernel& kernel, const void* args);
  bool joins_rows(const DeviceKernel& kernel, const void* args);
  CudaStatus release_rows();
  ElementSteps take_copies(const ElementStep& behind);
  std::span<const HeldProduct> products() const { return {products_, products_count_}; }
  bool joins_elements(const DeviceKernel& kernel, const ElementStep& element);
  HeldProduct& hold_elements();
  CudaStatus launch_elements(const HeldProduct& held);
  void hold(const DeviceKernel& kernel, const void* args, void* scratch);
  bool follows_last(const MoeRouteArgs& route) const;
  size_t matrices() const;
  static LaunchChain launch_of(std::span<const HeldProduct> products, const ChainKernel& more);
  bool joins(const ChainKernel& chain, size_t matrices) const;
  HeldProduct& hold(const DeviceKernel& product, std::span<const MatmulSegment> segments,
                    const ChainKernel& chain);
  void hold(const DeviceKernel& product, const GatedMatmulArgs& args, const ChainKernel& chain);
  void hold(const DeviceKernel& kernel, const GroupedMatmulArgs& args, const std::optional<SwiGluArgs>& gate,
            const ChainKernel& chain);
  CudaStatus join_head(const DeviceKernel& product, const GatedMatmulArgs& args, bool* joined);
  CudaStatus release_products(size_t count);
  CudaStatus launch_products(std::span<HeldProduct> products, const ChainedRoute& route = {});

  Held held_[kMost];
  int count_ = 0;
  bool holds_rows_ = false;
  std::optional<RowSteps> rows_;  // in front of all others, which are one product without a norm
  // Where there is one of the others, there is nothing else, but for a gate behind products. Elementwise ops
  // among them may be the first, and the only ones.
  HeldProduct products_[ProductChain::kSteps];
  size_t products_count_ = 0;
  std::optional<SwiGluArgs> gate_;
  HeldAttention attention_;
  std::optional<MoeCombineArgs> combine_;
  Stream stream_ = nullptr;
};

}  // namespace oar::cuda

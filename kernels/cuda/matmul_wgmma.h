// Products of prompts by products of warp groups, for sm_90a: rows of x rounded to bf16, times weights of
// bf16 where they lie, sums in f32. Boxes of both come by bulk copies, kStages ahead of the two warp groups
// that multiply them. As with cuBLASLt (matmul_library.h), x is not split in two.
//
// What a row gets follows from its weight alone: its sum is one chain over K, 16 at a time, whatever lies
// beside it in its tile. A weight whose rows are no multiples of 16 bytes has our other kernel for all rows
// of all prompts (launch_bf16).
//
// Roofline: the operations, 2 T N K at the rate of bf16. Rows come in bands that L2 holds, 2 bytes an
// element, and within a band tiles of the same 128 outputs follow each other: weights come from memory once
// for each band, rows once (wgmma_tile.h; order_test.cc has what does not fit).
#pragma once

#include "kernels/cuda/libraries/library.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/narrow.h"

namespace oar::cuda {

// The interface of LibraryProducts, without anything of its own. Any thread.
class WarpGroupProducts {
 public:
  static uint64_t scratch(const MatmulArgs& args);
  static uint64_t scratch(const GatedMatmulArgs& args) { return scratch(args.matmul); }
  // `scratch` is a multiple of 256. With `steps` rows of x are still to be made; a weight at least is taken.
  static LibraryStatus run(const MatmulArgs& args, void* scratch, Stream stream,
                           const RowSteps* steps = nullptr);
  static LibraryStatus run(const GatedMatmulArgs& args, void* scratch, Stream stream);
};

}  // namespace oar::cuda

// Products of prompts with weights of e4m3 by products of warp groups, for sm_90a (e4m3_channel, e4m3_g128):
// rows of x rounded to e4m3 under an f32 scale for each 128 k, times codes where they are packed
// (matmul_codes.h), sums in f32. Boxes of both, and of their scales, come by bulk copies, kStages ahead.
//
// A sum over 128 k stays with the tensor cores, which add e4m3 with fewer bits than f32 has; it is scaled and
// added in f32. So what a row gets is one chain over K, 128 at a time, and follows from its weight alone.
// Weights that are not packed have our other kernel for all rows of all prompts.
//
// Roofline: the operations, 2 T N K at the rate of e4m3. Tiles as those of matmul_wgmma.h.
#pragma once

#include <string_view>

#include "kernels/cuda/libraries/library.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/narrow.h"

namespace oar::cuda {

// Of a format; the interface of WarpGroupProducts. Any thread.
class WarpGroupCodes {
 public:
  static bool has(std::string_view format);
  explicit WarpGroupCodes(std::string_view format) : format_(format) {}

  uint64_t scratch(const MatmulArgs& args) const;
  uint64_t scratch(const GatedMatmulArgs& args) const { return scratch(args.matmul); }
  // `scratch` is a multiple of 256. With `steps` rows of x are still to be made; a weight at least is taken.
  LibraryStatus run(const MatmulArgs& args, void* scratch, Stream stream,
                    const RowSteps* steps = nullptr) const;
  LibraryStatus run(const GatedMatmulArgs& args, void* scratch, Stream stream) const;

 private:
  std::string_view format_;
};

}  // namespace oar::cuda

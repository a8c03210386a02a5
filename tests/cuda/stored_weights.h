// A model with its weights in each storage format that holds weights.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "engine/runtime/quantize_weights.h"
#include "tests/kernels/matmul_problem.h"
#include "tests/models/runner_fixture.h"

namespace oar_test {

// Random blocks of a format that is only decoded, in place of every matrix, or of those whose names have
// `part` in them: weights of about 1/16, so that rows of 256 keep their size.
inline void fill_matrices(oar::Checkpoint& checkpoint, oar::Format format, std::string_view part = {}) {
  const RandomBlocks* const blocks = random_blocks(format);
  REQUIRE(blocks != nullptr);
  RandomBlocks small = *blocks;
  small.d_most /= 16;
  small.dmin_most /= 16;
  uint32_t seed = 0;
  for (auto& [name, tensor] : checkpoint.tensors) {
    if (tensor.shape().rank() != 2 || name.find(part) == std::string::npos) continue;
    tensor = oar::Tensor::allocate(tensor.shape(), format).value();
    fill_random_blocks(small, format.block_bytes(),
                       {static_cast<char*>(tensor.mutable_data()), tensor.bytes()}, ++seed);
  }
}

// f(model, `--weights` that loads it) for the model of a folder, whose K are multiples of 256, in each
// format. How many there are.
inline int for_stored_weights(const std::string& path,
                              const std::function<void(const oar::Checkpoint&, const std::string&)>& f) {
  int formats = 0;
  for (const oar::FormatInfo* info : oar::all_formats()) {
    const oar::Format format(info);
    const bool written = oar::weight_scheme(info->name).ok();
    if (format.plain() && !written) continue;  // what holds no weights: integers, doubles, unscaled bytes
    INFO(format.name());
    ++formats;
    const std::string weights = written ? info->name : "auto";
    oar::Checkpoint stored = load_with_weights(path, weights);
    if (!written) fill_matrices(stored, format);  // as a file has them
    f(stored, weights);
  }
  return formats;
}

}  // namespace oar_test

// Products of matmul_codes.h with formats whose codes or scales want more than one word: q4_1, q5_0, q5_1,
// q2_k, q3_k, q4_k, q5_k, q6_k, mxfp4. A panel of 16 rows has
//   lower     the lower bits of codes, 64 k behind 64 k: as many words of each lane as there are bits. First
//             are eight of row g, then of row g + 8, then those of the second 32 k; element 2 j + 1 is 16
//             bits above element 2 j
//   upper     the bits above them, likewise
//   scales    64 k behind 64 k, of rows g and g + 8, g = 0 .. 7, what each group has: a scale, and a minimum
//   supers    256 k behind 256 k, of each row what its scales and minima are multiplied by
//
// Groups of 16 k are sums of their own. Then lane t of a quad owns k = 4 t .. 4 t + 3 of the first 16 of 32
// and of the second: stage_x lays x so. Minima are multiplied with the sum of x over their group, in f32.
#pragma once

#include <span>

#include "kernels/cuda/matmul_codes.h"

namespace oar::cuda {

struct BlockFormat {
  std::string_view name;
  LaunchProduct launch;
  LaunchChain chain;
  int64_t (*panel_bytes)(int64_t K);
  void (*pack)(int64_t n, int64_t K, void* to, const void* rows);
};
std::span<const BlockFormat> block_formats();

}  // namespace oar::cuda

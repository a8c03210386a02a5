// Layers whose memory is one matrix S (Dk, Dv) for each head: the gated delta rule
// (https://arxiv.org/abs/2412.06464) and the scan of Mamba-2 (https://arxiv.org/abs/2405.21060). Position by
// position, and this is the definition:
//
//   S   = e^g S
//   u   = beta (v - S^T k)        the delta rule; Mamba-2, whose beta is its step: u = beta v
//   S   = S + k u^T
//   out = S^T q
//
// What is kept of a sequence is S in front of the chunk of C positions (a page) that is still open, its
// border, and the rows k, u and e^g of that chunk. With w(i, r) the product of e^g over rows i + 1 .. r of
// the chunk, and d(r) that over rows 0 .. r,
//
//   u(r)   = beta (v - d(r) S^T k(r) - sum over i <  r of w(i, r) (k(r) . k(i)) u(i))
//   out(r) =           d(r) S^T q(r) + sum over i <= r of w(i, r) (q(r) . k(i)) u(i)
//   S'     = d(C - 1) S + sum over i of w(i, C - 1) k(i) u(i)^T         the next border, once the chunk is
//   full
//
// A w or d below 2^-100 counts as zero, so that no sum meets subnormal numbers, at which processors crawl.
// Every sum runs in one order, over d and over i, whoever else is computed beside: a row's bits depend on its
// position and what lies before it, not on whether it came alone or with others.
//
// Roofline: a token that comes alone reads Hv Dk Dv floats and half a chunk of rows. Prompts: 2 Hv (2 Dk Dv +
// C (Dk + Dv)) + 2 Hv Dk Dv operations a token.
#pragma once

#include "kernels/state.h"

namespace oar {

struct StateScanShape {
  int32_t key_heads = 0;  // Hk; head h reads that of h / (Hv / Hk)
  int32_t heads = 0;      // Hv, a multiple of Hk
  int32_t key_dim = 0;    // Dk
  int32_t value_dim = 0;  // Dv
};

// What is kept (kernels/state.h), in floats. A border: S of all heads [Hv][Dk][Dv]. A row: k [Hk][Dk], u
// [Hv][Dv] and e^g [Hv].
inline int64_t state_scan_border(const StateScanShape& s) {
  return int64_t{s.heads} * s.key_dim * s.value_dim;
}
inline int64_t state_scan_row(const StateScanShape& s) {
  return int64_t{s.key_heads} * s.key_dim + int64_t{s.heads} * (s.value_dim + 1);
}

struct StateScanArgs {
  uint32_t size = sizeof(StateScanArgs);
  uint32_t version = 1;
  float* out = nullptr;         // [T, Hv, Dv], rows ldo apart
  const float* q = nullptr;     // [T, Hk, Dk], rows ldq apart
  const float* k = nullptr;     // [T, Hk, Dk], rows ldk apart
  const float* v = nullptr;     // [T, Hv, Dv], rows ldv apart
  const float* g = nullptr;     // [T, Hv], rows ldg apart; at most 0
  const float* beta = nullptr;  // [T, Hv], rows ldb apart
  int64_t T = 0, ldq = 0, ldk = 0, ldv = 0, ldg = 0, ldb = 0, ldo = 0;
  StateArgs state;  // without borders: rows of a segment lie together, and each begins with S = 0
  const int32_t* segments = nullptr;  // [T], read without borders alone
  StateScanShape shape;
  int32_t delta = 1;  // the delta rule; 0: Mamba-2
};

}  // namespace oar

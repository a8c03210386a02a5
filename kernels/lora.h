// Low-rank adapters: y[t] += B[s] (A[s] x[t]) for every row t with an adapter s = index[t]. Adapters lie in
// slots of one size; rows of one batch name different ones. https://arxiv.org/abs/2106.09685, and
// https://arxiv.org/abs/2310.18547 for many adapters in one batch.
//
// Rows without an adapter are neither read nor written. A row's sum runs over K, then over its adapter's own
// rank, in an order that no other row changes; rows of one adapter share the loads of its numbers.
//
// B lies in panels of kLoraPanel columns, the last maybe narrower: all ranks of one panel, then those of the
// next. So what a row of columns reads is one run of memory, whose pages and lines come in order.
//
// Roofline: the bytes of the adapters that are named (rank * (K + n) each) while few rows name one; then
// 2 rank (K + n) operations a row.
#pragma once

#include "kernels/kernel.h"

namespace oar {

struct LoraArgs {
  uint32_t size = sizeof(LoraArgs);
  uint32_t version = 1;
  float* y = nullptr;              // [T, n], rows ldy apart: a column range of a wider result
  const float* x = nullptr;        // [T, K], rows ldx apart
  const int32_t* index = nullptr;  // [T] slot of the row's adapter; -1: none
  const int32_t* ranks = nullptr;  // [slots], at most R; 0: the adapter leaves this layer alone
  const void* a = nullptr;         // [slots, R, K] in `format`
  const void* b = nullptr;         // [slots, R, n] in `format`: B transposed, its factor included, in panels
  int64_t T = 0, K = 0, n = 0, R = 0;
  int64_t ldx = 0, ldy = 0;
  Format format = Format::f32();  // f32 or bf16; named by KernelKey::weight
};

inline constexpr int64_t kLoraPanel = 64;
// Columns of the panel in which a column lies.
constexpr int64_t lora_panel_width(int64_t n, int64_t column) {
  const int64_t left = n - column / kLoraPanel * kLoraPanel;
  return left < kLoraPanel ? left : kLoraPanel;
}
// Where a slot has B's number of a rank and a column.
constexpr int64_t lora_b_at(int64_t R, int64_t n, int64_t rank, int64_t column) {
  const int64_t in_panel = column % kLoraPanel;
  return (column - in_panel) * R + rank * lora_panel_width(n, column) + in_panel;
}

}  // namespace oar

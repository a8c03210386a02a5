// Products by cuBLASLt (libcublasLt.so.13, declared by the toolkit's cublasLt.h):
//
//   out (rows, n) = x (rows, K) . w (n, K)^T  (x scales) (+ bias) (+ residual)
//
// all row by row, as kernels/matmul.h has them; to the library, whose matrices lie column by column, it is
// out^T = w x^T, the only order that it has for fp8. https://docs.nvidia.com/cuda/cublas, "cuBLASLt".
//
// One algorithm serves all rows of a weight: it is chosen once, without splitting K, and asked again of every
// number of rows whether it serves them. That a row's bits do not depend on that number is not promised by
// the library; matmul_library.h says what is made of that.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/libraries/library.h"
#include "kernels/cuda/status.h"

namespace oar::cuda {

// The functions that are used, by the names of the library.
struct CublasLtApi {
  decltype(&::cublasLtCreate) Create;
  decltype(&::cublasLtDestroy) Destroy;
  decltype(&::cublasLtGetStatusName) GetStatusName;
  decltype(&::cublasLtMatmulDescCreate) MatmulDescCreate;
  decltype(&::cublasLtMatmulDescSetAttribute) MatmulDescSetAttribute;
  decltype(&::cublasLtMatmulDescDestroy) MatmulDescDestroy;
  decltype(&::cublasLtMatrixLayoutCreate) MatrixLayoutCreate;
  decltype(&::cublasLtMatrixLayoutDestroy) MatrixLayoutDestroy;
  decltype(&::cublasLtMatmulPreferenceCreate) MatmulPreferenceCreate;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) MatmulPreferenceSetAttribute;
  decltype(&::cublasLtMatmulPreferenceDestroy) MatmulPreferenceDestroy;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) MatmulAlgoGetHeuristic;
  decltype(&::cublasLtMatmulAlgoCheck) MatmulAlgoCheck;
  decltype(&::cublasLtMatmul) Matmul;
};
// The library's own. False: it is not there, or too old; *why says which.
bool load_cublas_lt(CublasLtApi* api, std::string* why);

enum class LtTypes {
  kF32,   // x, w and out, products in full f32
  kBf16,  // x and w; out is f32
  kE4m3,  // x and w; out is f32; K and n multiples of 16
  kI8,    // x and w; out is i32; K and n multiples of 16
};
// Factors of e4m3: one of all, or of each row of x and of each output. Or of each 128 k of a row of x and of
// an output (kGroup) or of 128 outputs (kBlock): on sm_90 alone, where rows and outputs are multiples of
// kLtScaleRows.
enum class LtScale { kNone, kTensor, kRow, kGroup, kBlock };
inline constexpr int64_t kLtScaleDepth = 128, kLtScaleRows = 4;
constexpr bool lt_scales_depth(LtScale scale) { return scale == LtScale::kGroup || scale == LtScale::kBlock; }
// Rows of factors of 128 x 128 blocks are filled up: of 128 outputs, from one to the next.
constexpr int64_t lt_block_row(int64_t K) {
  return ((K + kLtScaleDepth - 1) / kLtScaleDepth + kLtScaleRows - 1) / kLtScaleRows * kLtScaleRows;
}

struct LtProduct {
  LtTypes types = LtTypes::kF32;
  LtScale scale = LtScale::kNone;  // of x and w alike; given with kE4m3 and with nothing else
  bool bias = false;               // not with kI8
  int64_t n = 0, K = 0;            // of the weight
  int64_t ldx = 0, ldo = 0;        // elements; rows of 16 bytes' multiples, as are those of w: K
};

// Device memory, each pointer a multiple of 16. out may be residual.
struct LtOperands {
  void* out = nullptr;
  const void *x = nullptr, *w = nullptr;
  const void* residual = nullptr;  // as out, or null
  const float* bias = nullptr;     // [n], with LtProduct::bias
  // [1] each; [rows] and [n]; [K / 128, rows] and [K / 128, n]; or [K / 128, rows] and, for each 128 outputs,
  // lt_block_row(K).
  const float *x_scale = nullptr, *w_scale = nullptr;
  void* workspace = nullptr;  // of LtPlan::workspace_bytes(), a multiple of 256
  int64_t rows = 0;
};

// A weight's product with its algorithm. Not for two threads at once.
class LtPlan {
 public:
  uint64_t workspace_bytes() const { return workspace_; }

 private:
  friend class CublasLt;
  LtProduct product_;
  cublasLtMatmulAlgo_t algo_ = {};
  uint64_t workspace_ = 0;
  int64_t checked_rows_ = 0;  // the number of rows that the algorithm was asked for last
};

// One device's handle, the current device of the thread that makes it. Not for two threads at once.
class CublasLt {
 public:
  // Null: the library has no handle here (without a device it has none); *why says its status.
  static std::unique_ptr<CublasLt> make(const CublasLtApi& api, std::string* why);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // Chooses the algorithm for about so many rows, within a workspace. An error: the library has none, or the
  // product is none that it takes; our own kernels do it then.
  LibraryStatus prepare(const LtProduct& product, int64_t rows, uint64_t workspace_bytes, LtPlan* plan);
  // Whether the algorithm serves so many rows, within the workspace that was promised.
  LibraryStatus check(LtPlan& plan, int64_t rows);
  // Puts the product on the stream, which may be captured. Nothing is allocated on the device.
  LibraryStatus run(LtPlan& plan, const LtOperands& operands, Stream stream);

 private:
  struct Description;
  CublasLt(const CublasLtApi& api, cublasLtHandle_t handle) : api_(api), handle_(handle) {}
  LibraryStatus status(cublasStatus_t code, const char* call) const;
  LibraryStatus describe(const LtProduct& p, const LtOperands& o, int64_t rows, Description* d) const;
  LibraryStatus check(LtPlan& plan, const Description& d, int64_t rows);

  CublasLtApi api_;
  cublasLtHandle_t handle_;
};

}  // namespace oar::cuda

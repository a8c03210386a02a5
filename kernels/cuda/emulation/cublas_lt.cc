#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <array>
#include <set>

#include "kernels/cuda/emulation/emulation.h"
#include "kernels/cuda/emulation/libraries.h"
#include "kernels/cuda/emulation/runtime.h"

namespace oar::cuda::emulation {
namespace {

constexpr size_t kWorkspace = 1024;
constexpr uint64_t kAlignment = 16, kWorkspaceAlignment = 256;

// What the opaque handles point to.
struct Layout {
  cudaDataType_t type;
  uint64_t rows, cols;
  int64_t ld;
};
struct Description {
  cublasComputeType_t compute;
  cudaDataType_t scale_type;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N, bias_type = -1;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int32_t a_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, b_mode = a_mode;
  const void *bias = nullptr, *a_scale = nullptr, *b_scale = nullptr;
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
};

template <class T>
const T& the(const void* handle) {
  return *static_cast<const T*>(handle);
}

uint64_t bytes_of(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_8F_E4M3:
    case CUDA_R_8I: return 1;
    case CUDA_R_16BF: return 2;
    default: return 4;
  }
}

double value(cudaDataType_t type, const void* p, uint64_t i) {
  switch (type) {
    case CUDA_R_8I: return static_cast<const int8_t*>(p)[i];
    case CUDA_R_32I: return static_cast<const int32_t*>(p)[i];
    case CUDA_R_16BF: return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
    case CUDA_R_8F_E4M3: return static_cast<float>(static_cast<const __nv_fp8_e4m3*>(p)[i]);
    default: return static_cast<const float*>(p)[i];
  }
}

bool aligned(const void* p, uint64_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; }
bool is_operand(const Touched& t) { return aligned(t.at, kAlignment) && device_holds(t.at, t.bytes); }
Touched matrix(const void* p, const Layout& l) {
  return {p, ((l.cols - 1) * static_cast<uint64_t>(l.ld) + l.rows) * bytes_of(l.type)};
}

// The product's sizes, where everything fits.
struct Sizes {
  uint64_t m, n, k;
};
cublasStatus_t sizes_of(const Description& d, const Layout& a, const Layout& b, const Layout& out, Sizes* s) {
  for (const Layout* l : {&a, &b, &out}) {
    if (l->rows == 0 || l->cols == 0 || l->ld < static_cast<int64_t>(l->rows))
      return CUBLAS_STATUS_INVALID_VALUE;
    if (static_cast<uint64_t>(l->ld) * bytes_of(l->type) % kAlignment != 0)
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const bool at = d.transpose_a == CUBLAS_OP_T, bt = d.transpose_b == CUBLAS_OP_T;
  *s = {at ? a.cols : a.rows, bt ? b.rows : b.cols, at ? a.rows : a.cols};
  if ((bt ? b.cols : b.rows) != s->k || out.rows != s->m || out.cols != s->n || a.type != b.type)
    return CUBLAS_STATUS_INVALID_VALUE;
  const bool narrow = bytes_of(a.type) == 1, integers = a.type == CUDA_R_8I;
  if (out.type != (integers ? CUDA_R_32I : CUDA_R_32F) || d.scale_type != out.type ||
      d.compute != (integers ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (narrow && (!at || bt || s->k % 16 != 0 || s->m % 16 != 0)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if ((a.type == CUDA_R_8F_E4M3) != (d.a_scale != nullptr) ||
      (d.a_scale == nullptr) != (d.b_scale == nullptr))
    return CUBLAS_STATUS_INVALID_VALUE;
  const auto deep = [](int32_t mode) {
    return mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F ||
           mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  };
  if (deep(d.a_mode) || deep(d.b_mode)) {
    if (!deep(d.a_mode) || !deep(d.b_mode) ||
        (d.a_mode == d.b_mode && d.a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F))
      return CUBLAS_STATUS_NOT_SUPPORTED;
    if (s->m % 4 != 0 || s->n % 4 != 0) return CUBLAS_STATUS_INVALID_VALUE;
  } else if (d.a_mode != d.b_mode) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const bool bias = d.epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (bias != (d.bias != nullptr) || (bias && (d.bias_type != CUDA_R_32F || integers)))
    return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}

// Where the factor of element (i, k) of an operand of `rows` rows lies, and how many there are.
uint64_t scale_at(int32_t mode, uint64_t rows, uint64_t K, uint64_t i, uint64_t k) {
  switch (mode) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F: return i;
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F: return k / 128 * rows + i;
    case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F:
      return i / 128 * (((K + 127) / 128 + 3) / 4 * 4) + k / 128;
    default: return 0;
  }
}
uint64_t scale_bytes(int32_t mode, uint64_t rows, uint64_t K) {
  return (scale_at(mode, rows, K, rows - 1, K - 1) + 1) * sizeof(float);
}

// An algorithm knows its outputs and K; which rows it was asked for is remembered here.
constexpr uint64_t kOurs = 0x4f6172;
cublasLtMatmulAlgo_t algorithm(const Sizes& s) { return {{kOurs, s.m, s.k}}; }
std::set<std::array<uint64_t, 3>> g_asked;

cublasStatus_t create(cublasLtHandle_t* handle) {
  if (refused_in_capture()) return CUBLAS_STATUS_ALLOC_FAILED;
  static uint64_t somewhere;
  *handle = reinterpret_cast<cublasLtHandle_t>(&somewhere);
  return CUBLAS_STATUS_SUCCESS;
}
// It waits for the device.
cublasStatus_t destroy(cublasLtHandle_t) {
  return refused_in_capture() ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
const char* status_name(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_EXECUTION_FAILED";
  }
}

cublasStatus_t desc_create(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale) {
  *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new Description{compute, scale});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t desc_destroy(cublasLtMatmulDesc_t desc) {
  delete reinterpret_cast<Description*>(desc);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t desc_set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                        const void* value, size_t size) {
  auto& d = *reinterpret_cast<Description*>(desc);
  const auto take = [&](auto* to) {
    if (size != sizeof *to) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return take(&d.transpose_a);
    case CUBLASLT_MATMUL_DESC_TRANSB: return take(&d.transpose_b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return take(&d.epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return take(&d.bias);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return take(&d.bias_type);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE: return take(&d.a_mode);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE: return take(&d.b_mode);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return take(&d.a_scale);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return take(&d.b_scale);
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t layout_create(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows, uint64_t cols,
                             int64_t ld) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, cols, ld});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t layout_destroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t preference_create(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t preference_destroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<Preference*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t preference_set(cublasLtMatmulPreference_t preference,
                              cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                              size_t size) {
  auto& p = *reinterpret_cast<Preference*>(preference);
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && size == sizeof p.workspace)
    std::memcpy(&p.workspace, value, size);
  else if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK && size == sizeof p.reductions)
    std::memcpy(&p.reductions, value, size);
  else return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                     cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                     const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
  Sizes s{};
  if (c != out) return CUBLAS_STATUS_NOT_SUPPORTED;
  const cublasStatus_t status =
      sizes_of(the<Description>(desc), the<Layout>(a), the<Layout>(b), the<Layout>(out), &s);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (algo->data[0] != kOurs || algo->data[1] != s.m || algo->data[2] != s.k)
    return CUBLAS_STATUS_INVALID_VALUE;
  g_asked.insert({s.m, s.n, s.k});
  result->algo = *algo;
  result->workspaceSize = kWorkspace;
  result->state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t heuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                         cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                         cublasLtMatmulPreference_t preference, int wanted,
                         cublasLtMatmulHeuristicResult_t results[], int* found) {
  *found = 0;
  Sizes s{};
  const cublasStatus_t status =
      sizes_of(the<Description>(desc), the<Layout>(a), the<Layout>(b), the<Layout>(out), &s);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const auto& p = the<Preference>(preference);
  if (wanted < 1 || p.workspace < kWorkspace || p.reductions != CUBLASLT_REDUCTION_SCHEME_NONE)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const cublasLtMatmulAlgo_t algo = algorithm(s);
  *found = 1;
  return check(handle, desc, a, b, c, out, &algo, &results[0]);
}

cublasStatus_t matmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* A,
                      cublasLtMatrixLayout_t a_layout, const void* B, cublasLtMatrixLayout_t b_layout,
                      const void* beta, const void* C, cublasLtMatrixLayout_t c_layout, void* out,
                      cublasLtMatrixLayout_t out_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
                      size_t workspace_bytes, cudaStream_t stream) {
  const Description d = the<Description>(desc);
  const Layout a = the<Layout>(a_layout), b = the<Layout>(b_layout), o = the<Layout>(out_layout);
  Sizes s{};
  if (const cublasStatus_t status = sizes_of(d, a, b, o, &s); status != CUBLAS_STATUS_SUCCESS) return status;
  const cublasLtMatmulAlgo_t expected = algorithm(s);
  if (c_layout != out_layout || std::memcmp(&expected, algo, sizeof expected) != 0 ||
      !g_asked.contains({s.m, s.n, s.k}))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (workspace_bytes < kWorkspace || !aligned(workspace, kWorkspaceAlignment))
    return CUBLAS_STATUS_INVALID_VALUE;
  std::vector<Touched> memory = {
      {workspace, workspace_bytes}, matrix(A, a), matrix(B, b), matrix(C, o), matrix(out, o)};
  if (d.bias != nullptr) memory.push_back({d.bias, s.m * sizeof(float)});
  if (d.a_scale != nullptr) {
    memory.push_back({d.a_scale, scale_bytes(d.a_mode, s.m, s.k)});
    memory.push_back({d.b_scale, scale_bytes(d.b_mode, s.n, s.k)});
  }
  if (!std::all_of(memory.begin(), memory.end(), is_operand)) return CUBLAS_STATUS_INVALID_VALUE;
  const double by = value(d.scale_type, alpha, 0), old = value(d.scale_type, beta, 0);
  const int error = launch_over(stream, std::move(memory), [=] {
    const auto factor = [&](const void* p, int32_t mode, uint64_t rows, uint64_t i, uint64_t k) {
      return p == nullptr ? 1.0 : value(CUDA_R_32F, p, scale_at(mode, rows, s.k, i, k));
    };
    for (uint64_t j = 0; j < s.n; ++j) {
      for (uint64_t i = 0; i < s.m; ++i) {
        const uint64_t a_ld = static_cast<uint64_t>(a.ld), b_ld = static_cast<uint64_t>(b.ld);
        double sum = 0;
        for (uint64_t k = 0; k < s.k; ++k) {
          sum += factor(d.a_scale, d.a_mode, s.m, i, k) * factor(d.b_scale, d.b_mode, s.n, j, k) *
                 value(a.type, A, d.transpose_a == CUBLAS_OP_T ? i * a_ld + k : k * a_ld + i) *
                 value(b.type, B, d.transpose_b == CUBLAS_OP_T ? k * b_ld + j : j * b_ld + k);
        }
        const uint64_t at = j * static_cast<uint64_t>(o.ld) + i;
        sum *= by;
        if (old != 0) sum += old * value(o.type, C, at);
        if (d.bias != nullptr) sum += value(CUDA_R_32F, d.bias, i);
        if (o.type == CUDA_R_32I) static_cast<int32_t*>(out)[at] = static_cast<int32_t>(sum);
        else static_cast<float*>(out)[at] = static_cast<float>(sum);
      }
    }
    // What it works in is nobody else's.
    std::memset(workspace, 0xff, workspace_bytes);
  });
  return error == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace

const CublasLtApi& fake_cublas_lt() {
  static const CublasLtApi api = {
      create,        destroy,        status_name,       desc_create,    desc_set,           desc_destroy,
      layout_create, layout_destroy, preference_create, preference_set, preference_destroy, heuristic,
      check,         matmul};
  return api;
}

}  // namespace oar::cuda::emulation

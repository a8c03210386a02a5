#include "kernels/cuda/libraries/cublas_lt.h"

namespace oar::cuda {
namespace {

struct Types {
  cudaDataType_t in, out, scale;
  cublasComputeType_t compute;
  int64_t bytes;  // of an element of x and w
};
Types types_of(LtTypes types) {
  switch (types) {
    case LtTypes::kF32: return {CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, 4};
    case LtTypes::kBf16: return {CUDA_R_16BF, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, 2};
    case LtTypes::kE4m3: return {CUDA_R_8F_E4M3, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, 1};
    case LtTypes::kI8: return {CUDA_R_8I, CUDA_R_32I, CUDA_R_32I, CUBLAS_COMPUTE_32I, 1};
  }
  return {};
}

// What the library does not say by itself, or only by a status without a name. Null: nothing.
const char* refusal(const LtProduct& p) {
  constexpr int64_t kRowBytes = 16;
  const int64_t bytes = types_of(p.types).bytes;
  if (p.n <= 0 || p.K <= 0 || p.ldx < p.K || p.ldo < p.n) return "sizes that are no product";
  if (p.K * bytes % kRowBytes != 0 || p.ldx * bytes % kRowBytes != 0 || p.ldo * 4 % kRowBytes != 0)
    return "rows that are no multiple of 16 bytes";
  if (bytes == 1 && p.n % 16 != 0) return "outputs that are no multiple of 16, of 8-bit operands";
  if ((p.types == LtTypes::kE4m3) != (p.scale != LtScale::kNone))
    return "scales, which e4m3 alone has and needs";
  if (p.types == LtTypes::kI8 && p.bias) return "a bias of integers";
  return nullptr;
}

// Modes of the library for w and x.
struct ScaleModes {
  int32_t w, x;
};
ScaleModes modes_of(LtScale scale) {
  switch (scale) {
    case LtScale::kRow:
      return {CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F};
    case LtScale::kGroup:
      return {CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F};
    case LtScale::kBlock:
      return {CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F};
    default: return {CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F};
  }
}

// Operands of a description that is only asked about: the library looks at no byte of them, but at how
// pointers are aligned.
LtOperands somewhere() {
  alignas(16) static constexpr float kSomewhere = 0;
  LtOperands o;
  o.bias = o.x_scale = o.w_scale = &kSomewhere;
  return o;
}

}  // namespace

bool load_cublas_lt(CublasLtApi* api, std::string* why) {
  void* library = open_library({"libcublasLt.so.13", "libcublasLt.so"}, why);
  if (library == nullptr) return false;
#define OAR_FIND(name) find_function(library, "cublasLt" #name, &api->name, why)
  return OAR_FIND(Create) && OAR_FIND(Destroy) && OAR_FIND(GetStatusName) && OAR_FIND(MatmulDescCreate) &&
         OAR_FIND(MatmulDescSetAttribute) && OAR_FIND(MatmulDescDestroy) && OAR_FIND(MatrixLayoutCreate) &&
         OAR_FIND(MatrixLayoutDestroy) && OAR_FIND(MatmulPreferenceCreate) &&
         OAR_FIND(MatmulPreferenceSetAttribute) && OAR_FIND(MatmulPreferenceDestroy) &&
         OAR_FIND(MatmulAlgoGetHeuristic) && OAR_FIND(MatmulAlgoCheck) && OAR_FIND(Matmul);
#undef OAR_FIND
}

// The library's descriptors of one call.
struct CublasLt::Description {
  explicit Description(const CublasLtApi& functions) : api(functions) {}
  ~Description() {
    if (product != nullptr) api.MatmulDescDestroy(product);
    for (cublasLtMatrixLayout_t layout : {w, x, out}) {
      if (layout != nullptr) api.MatrixLayoutDestroy(layout);
    }
  }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  template <class T>
  cublasStatus_t set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return api.MatmulDescSetAttribute(product, attribute, &value, sizeof value);
  }

  const CublasLtApi& api;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, out = nullptr;
};

std::unique_ptr<CublasLt> CublasLt::make(const CublasLtApi& api, std::string* why) {
  cublasLtHandle_t handle = nullptr;
  if (const cublasStatus_t code = api.Create(&handle); code != CUBLAS_STATUS_SUCCESS) {
    *why = std::string("cublasLtCreate: ") + api.GetStatusName(code);
    return nullptr;
  }
  return std::unique_ptr<CublasLt>(new CublasLt(api, handle));
}

CublasLt::~CublasLt() { api_.Destroy(handle_); }

LibraryStatus CublasLt::status(cublasStatus_t code, const char* call) const {
  if (code == CUBLAS_STATUS_SUCCESS) return {};
  return {static_cast<int>(code), std::string("cublasLt") + call + ": " + api_.GetStatusName(code)};
}

#define OAR_LT(call, ...) \
  if (LibraryStatus failed = status(api_.call(__VA_ARGS__), #call); !failed.ok()) return failed
#define OAR_LT_SET(attribute, value)                                                                     \
  if (LibraryStatus failed = status(d->set(attribute, value), "MatmulDescSetAttribute(" #attribute ")"); \
      !failed.ok())                                                                                      \
  return failed

LibraryStatus CublasLt::describe(const LtProduct& p, const LtOperands& o, int64_t rows,
                                 Description* d) const {
  if (lt_scales_depth(p.scale) && rows % kLtScaleRows != 0)
    return {CUBLAS_STATUS_INVALID_VALUE,
            "no product by cuBLASLt: rows that are no multiple of 4, of scales of 128"};
  const Types types = types_of(p.types);
  OAR_LT(MatmulDescCreate, &d->product, types.compute, types.scale);
  OAR_LT_SET(CUBLASLT_MATMUL_DESC_TRANSA, int32_t{CUBLAS_OP_T});
  OAR_LT_SET(CUBLASLT_MATMUL_DESC_TRANSB, int32_t{CUBLAS_OP_N});
  if (p.bias) {
    OAR_LT_SET(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{CUBLASLT_EPILOGUE_BIAS});
    OAR_LT_SET(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(o.bias));
    OAR_LT_SET(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t{CUDA_R_32F});
  }
  if (p.scale != LtScale::kNone) {
    const ScaleModes modes = modes_of(p.scale);
    OAR_LT_SET(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, modes.w);
    OAR_LT_SET(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, modes.x);
    OAR_LT_SET(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(o.w_scale));
    OAR_LT_SET(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(o.x_scale));
  }
  const auto K = static_cast<uint64_t>(p.K), n = static_cast<uint64_t>(p.n), T = static_cast<uint64_t>(rows);
  OAR_LT(MatrixLayoutCreate, &d->w, types.in, K, n, p.K);
  OAR_LT(MatrixLayoutCreate, &d->x, types.in, K, T, p.ldx);
  OAR_LT(MatrixLayoutCreate, &d->out, types.out, n, T, p.ldo);
  return {};
}

LibraryStatus CublasLt::prepare(const LtProduct& p, int64_t rows, uint64_t workspace_bytes, LtPlan* plan) {
  if (const char* what = refusal(p); what != nullptr || rows <= 0)
    return {CUBLAS_STATUS_INVALID_VALUE,
            std::string("no product by cuBLASLt: ") + (what != nullptr ? what : "rows")};
  Description d(api_);
  if (LibraryStatus failed = describe(p, somewhere(), rows, &d); !failed.ok()) return failed;

  struct Preference {
    const CublasLtApi& api;
    cublasLtMatmulPreference_t handle = nullptr;
    ~Preference() {
      if (handle != nullptr) api.MatmulPreferenceDestroy(handle);
    }
  } preference{api_};
  OAR_LT(MatmulPreferenceCreate, &preference.handle);
  OAR_LT(MatmulPreferenceSetAttribute, preference.handle, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
         &workspace_bytes, sizeof workspace_bytes);
  const uint32_t whole_sums = CUBLASLT_REDUCTION_SCHEME_NONE;
  OAR_LT(MatmulPreferenceSetAttribute, preference.handle, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         &whole_sums, sizeof whole_sums);
  cublasLtMatmulHeuristicResult_t best = {};
  int found = 0;
  OAR_LT(MatmulAlgoGetHeuristic, handle_, d.product, d.w, d.x, d.out, d.out, preference.handle, 1, &best,
         &found);
  if (found == 0) return {CUBLAS_STATUS_NOT_SUPPORTED, "cuBLASLt has no algorithm for this product"};
  if (LibraryStatus failed = status(best.state, "MatmulAlgoGetHeuristic"); !failed.ok()) return failed;
  plan->product_ = p;
  plan->algo_ = best.algo;
  plan->workspace_ = best.workspaceSize;
  plan->checked_rows_ = rows;
  return {};
}

LibraryStatus CublasLt::check(LtPlan& plan, const Description& d, int64_t rows) {
  if (rows == plan.checked_rows_) return {};
  cublasLtMatmulHeuristicResult_t result = {};
  OAR_LT(MatmulAlgoCheck, handle_, d.product, d.w, d.x, d.out, d.out, &plan.algo_, &result);
  if (result.workspaceSize > plan.workspace_)
    return {CUBLAS_STATUS_NOT_SUPPORTED, "cuBLASLt's algorithm wants more workspace for these rows"};
  plan.checked_rows_ = rows;
  return {};
}

LibraryStatus CublasLt::check(LtPlan& plan, int64_t rows) {
  Description d(api_);
  if (LibraryStatus failed = describe(plan.product_, somewhere(), rows, &d); !failed.ok()) return failed;
  return check(plan, d, rows);
}

LibraryStatus CublasLt::run(LtPlan& plan, const LtOperands& o, Stream stream) {
  if (o.rows <= 0) return {};
  const LtProduct& p = plan.product_;
  Description d(api_);
  if (LibraryStatus failed = describe(p, o, o.rows, &d); !failed.ok()) return failed;
  if (LibraryStatus failed = check(plan, d, o.rows); !failed.ok()) return failed;
  const float one = 1.f, residual = o.residual != nullptr ? 1.f : 0.f;
  const int32_t one_i32 = 1, residual_i32 = o.residual != nullptr;
  const bool integers = p.types == LtTypes::kI8;
  OAR_LT(Matmul, handle_, d.product, integers ? static_cast<const void*>(&one_i32) : &one, o.w, d.w, o.x, d.x,
         integers ? static_cast<const void*>(&residual_i32) : &residual,
         o.residual != nullptr ? o.residual : o.out, d.out, o.out, d.out, &plan.algo_, o.workspace,
         plan.workspace_, static_cast<cudaStream_t>(stream));
  return {};
}

#undef OAR_LT_SET
#undef OAR_LT

}  // namespace oar::cuda

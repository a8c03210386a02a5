// Products of prompts by cuBLASLt: rows of x rounded to bf16, times weights of bf16 where they lie, sums in
// f32, bias and residual in the same call. x is not split in two here, as matmul_tensor.h does: many rows
// wait for the matrix units, not for memory.
//
// What a row gets follows from its weight alone. Of a shape of weight one algorithm is chosen, for
// kPlannedRows rows whatever comes, when a plan asks for scratch. A weight that the library does not take,
// for its sizes or where it lies, has our own kernel for all rows of all prompts (launch_bf16).
//
// Weights of e4m3_g128 that are packed (matmul_codes.h) are products of e4m3: rows rounded to it under a
// scale for each 128 k. The library wants rows of codes and scales of its own order, so a weight is copied so
// before its product: 2 bytes a code, beside 2 T operations. It takes rows in fours: what is more of a prompt
// goes by way of scratch.
//
// The library does not promise that a row's bits are the same beside any number of others. It has one
// algorithm that splits no sum, which makes them so as far as anybody knows; a device must show it (./dev
// gpu).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "kernels/cuda/libraries/cublas_lt.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/narrow.h"

namespace oar::cuda {

// Of one device, the current one of the thread that makes it. Not for two threads at once.
class LibraryProducts {
 public:
  static constexpr int64_t kPlannedRows = 2048;
  static constexpr uint64_t kMostWorkspace = uint64_t{32} << 20;

  // Null: the library has no handle here; *why says it.
  static std::unique_ptr<LibraryProducts> make(const CublasLtApi& api, std::string* why);

  // Bytes for run(). Looks at sizes, at weights and biases, and at no other pointer.
  uint64_t scratch(const MatmulArgs& args);
  uint64_t scratch(const GatedMatmulArgs& args) { return scratch(args.matmul); }
  // `scratch` is a multiple of 256. With `steps` rows of x are still to be made; a weight at least is taken.
  LibraryStatus run(const MatmulArgs& args, void* scratch, Stream stream, const RowSteps* steps = nullptr);
  LibraryStatus run(const GatedMatmulArgs& args, void* scratch, Stream stream);

 private:
  friend class LibraryCodes;
  explicit LibraryProducts(std::unique_ptr<CublasLt> lt) : lt_(std::move(lt)) {}
  // Null: our own kernel's.
  LtPlan* plan_of(const MatmulArgs& args, const MatmulSegment& segment);
  LtPlan* plan_of_codes(const MatmulArgs& args, const MatmulSegment& segment);
  LtPlan* plan_of(const LtProduct& product, int64_t least_rows);
  template <class Own>
  LibraryStatus run(const MatmulArgs& args, const Gate& gate, void* scratch, Stream stream, const Own& own);

  std::unique_ptr<CublasLt> lt_;
  // By types, outputs, K, row of the result, bias. Empty: refused.
  std::map<std::tuple<LtTypes, int64_t, int64_t, int64_t, bool>, std::optional<LtPlan>> plans_;
};

// The same of weights of e4m3_g128.
class LibraryCodes {
 public:
  static bool has(std::string_view format) { return format == "e4m3_g128"; }
  explicit LibraryCodes(LibraryProducts& products) : products_(products) {}

  uint64_t scratch(const MatmulArgs& args);
  uint64_t scratch(const GatedMatmulArgs& args) { return scratch(args.matmul); }
  LibraryStatus run(const MatmulArgs& args, void* scratch, Stream stream, const RowSteps* steps = nullptr);
  LibraryStatus run(const GatedMatmulArgs& args, void* scratch, Stream stream);

 private:
  struct Places;
  Places places_of(const MatmulArgs& args, void* scratch);
  LibraryStatus multiply(const MatmulArgs& args, const MatmulSegment& segment, const Places& at,
                         Stream stream);
  template <class Own>
  LibraryStatus run(const MatmulArgs& args, const Gate& gate, void* scratch, Stream stream, const Own& own);

  LibraryProducts& products_;
};

}  // namespace oar::cuda

#include "engine/runtime/tensor_runner.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "engine/base/format.h"
#include "engine/tensor/element.h"

namespace oar {
namespace {

uint64_t now_ns() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

// The rows of several tensors, one behind the other.
Result<Tensor> join(std::span<const std::vector<Datum>> requests, size_t input) {
  const Tensor& first = requests[0][input].tensor;
  std::vector<int64_t> dims(first.shape().begin(), first.shape().end());
  dims[0] = 0;
  for (const auto& r : requests) dims[0] += r[input].tensor.shape()[0];
  const DType dtype = first.format().dtype();
  OAR_ASSIGN(Tensor out, allocate_elements(Shape(dims), dtype, uint64_t{1} << 36, false));
  if (dtype == DType::kString) {
    auto* to = mutable_elements<std::string>(out);
    for (const auto& r : requests)
      to = std::copy_n(elements<std::string>(r[input].tensor), r[input].tensor.numel(), to);
    return out;
  }
  auto* to = static_cast<std::byte*>(out.mutable_data());
  for (const auto& r : requests) {
    const Tensor& t = r[input].tensor;
    if (t.bytes() > 0) std::memcpy(to, t.data(), t.bytes());
    to += t.bytes();
  }
  return out;
}

}  // namespace

std::string TensorRunner::batch_key(std::span<const Datum> inputs) const {
  std::string key;
  for (const Datum& d : inputs) {
    const Shape& s = d.tensor.shape();
    key += cat(dtype_name(d.tensor.format().dtype()), "[");
    for (int k = 1; k < s.rank(); ++k) key += cat(s[k], ",");
    key += "]";
  }
  return key;
}

Result<std::vector<std::vector<Datum>>> TensorRunner::run_together(
    std::span<const std::vector<Datum>> requests, RunTimes* times) const {
  const uint64_t start = now_ns();
  std::vector<Datum> joined;
  for (size_t k = 0; k < requests[0].size(); ++k) {
    OAR_ASSIGN(Tensor all, join(requests, k));
    joined.emplace_back(std::move(all));
  }
  int64_t rows = 0;
  for (const auto& r : requests) rows += r[0].tensor.shape()[0];
  const uint64_t begun = now_ns();
  OAR_ASSIGN(const std::vector<Datum> results, run(std::move(joined)));
  const uint64_t computed = now_ns();
  for (size_t k = 0; k < results.size(); ++k) {
    const Datum& d = results[k];
    if (!d.is_tensor() || d.tensor.shape().rank() == 0 || d.tensor.shape()[0] != rows) {
      return internal_error(cat("output '", outputs()[k].name, "' is ", d.to_string(), " for ", rows,
                                " rows of input: the model has no batch axis there"));
    }
  }
  std::vector<std::vector<Datum>> answers;
  int64_t at = 0;
  for (const auto& r : requests) {
    const int64_t n = r[0].tensor.shape()[0];
    std::vector<Datum>& mine = answers.emplace_back();
    for (const Datum& d : results) mine.emplace_back(d.tensor.slice(at, at + n));
    at += n;
  }
  if (times != nullptr) *times = {begun - start, computed - begun, now_ns() - computed};
  return answers;
}

}  // namespace oar

#include "engine/loader/weight_scan.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "engine/base/format.h"

namespace oar {
namespace {

// Of plain formats those of whole numbers cannot be damaged so.
bool may_be_damaged(Format format) {
  if (!format.plain()) return true;
  const DType t = format.dtype();
  return t == DType::kF32 || t == DType::kF16 || t == DType::kBF16 || t == DType::kE4M3 || t == DType::kE5M2;
}

Status check_tensor(const std::string& name, const Tensor& tensor, ThreadPool& pool) {
  const int64_t cols = tensor.shape().cols(), rows = cols > 0 ? tensor.numel() / cols : 0;
  const Format format = tensor.format();
  const int64_t row_bytes = format.stride(cols);
  const auto* from = static_cast<const std::byte*>(tensor.data());
  std::atomic<int64_t> first{INT64_MAX};  // element
  pool.parallel_for(
      rows, std::max<int64_t>(1, 65536 / std::max<int64_t>(cols, 1)), [&](int64_t begin, int64_t end) {
        std::vector<float> row(static_cast<size_t>(cols));
        for (int64_t r = begin; r < end && r * cols < first.load(std::memory_order_relaxed); ++r) {
          format.decode_row(from + r * row_bytes, cols, row.data());
          const auto bad = std::find_if(row.begin(), row.end(), [](float x) { return !std::isfinite(x); });
          if (bad == row.end()) continue;
          const int64_t at = r * cols + (bad - row.begin());
          int64_t known = first.load();
          while (at < known && !first.compare_exchange_weak(known, at)) {}
        }
      });
  tensor.buffer().release_pages();
  if (first == INT64_MAX) return ok_status();
  const int64_t r = first / cols, c = first % cols, elems = format.block_elems();
  const std::string place = elems > 1 ? cat(", block ", c / elems, " (columns ", c / elems * elems, " to ",
                                            std::min(cols, (c / elems + 1) * elems) - 1, ")")
                                      : cat(", column ", c);
  return data_loss(
      cat("tensor ", name, " (", format.name(), "): row ", r, place,
          " is not a finite number: the file is damaged, or the quantization that made it failed; "
          "fetch it again or quantize the model again"));
}

}  // namespace

Status check_weights(const TensorMap& tensors, ThreadPool& pool, const Progress& progress) {
  uint64_t done = 0, total = 0;
  for (const auto& [name, tensor] : tensors) total += tensor.bytes();
  for (const auto& [name, tensor] : tensors) {
    if (may_be_damaged(tensor.format())) OAR_RETURN_IF_ERROR(check_tensor(name, tensor, pool));
    done += tensor.bytes();
    if (progress && !progress("reading the weights", done, total))
      return Status(StatusCode::kCancelled, "stopped");
  }
  return ok_status();
}

}  // namespace oar

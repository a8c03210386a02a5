#include "server/api/classification.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "engine/base/format.h"
#include "server/api/tensor_wire.h"

namespace oar::api {
namespace {

// As Triton words a value: six decimals of a float.
std::string worded(double v) {
  char text[400];
  const int n = std::snprintf(text, sizeof text, "%f", v);
  return {text, static_cast<size_t>(n)};
}

Result<Tensor> largest(const TensorModelConfig& config, const std::string& name, const Tensor& t,
                       int64_t count) {
  const DType dtype = t.format().dtype();
  if (dtype == DType::kString || dtype == DType::kBool)
    return invalid_argument(
        cat("output ", in_quotes(name), " has no numbers to classify; leave classification out"),
        "classification");
  const bool batched = config.max_batch > 0 && t.shape().rank() > 0;
  const int64_t rows = batched ? t.shape()[0] : 1, each = rows > 0 ? t.numel() / rows : 0;
  const int64_t kept = std::min(count, each);
  std::vector<int64_t> dims{kept};
  if (batched) dims.insert(dims.begin(), rows);
  OAR_ASSIGN(Tensor out, allocate_wire(*datatype_of(DType::kString), Shape(dims)));
  auto* texts = static_cast<std::string*>(out.mutable_data());
  dispatch_numeric(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    std::vector<int64_t> order(static_cast<size_t>(each));
    for (int64_t r = 0; r < rows; ++r) {
      const auto at = [&](int64_t i) { return Element<T>::load(elements<T>(t)[r * each + i]); };
      std::iota(order.begin(), order.end(), int64_t{0});
      // What is no number is never among the largest.
      const auto before = [&](int64_t a, int64_t b) {
        const auto x = at(a), y = at(b);
        if constexpr (std::is_floating_point_v<std::decay_t<decltype(x)>>)
          if (std::isnan(x) || std::isnan(y)) return std::isnan(x) == std::isnan(y) ? a < b : std::isnan(y);
        return x == y ? a < b : x > y;
      };
      std::partial_sort(order.begin(), order.begin() + kept, order.end(), before);
      for (int64_t k = 0; k < kept; ++k) {
        const int64_t i = order[static_cast<size_t>(k)];
        const auto v = at(i);
        std::string value;
        if constexpr (std::is_floating_point_v<std::decay_t<decltype(v)>>)
          value = worded(static_cast<double>(v));
        else
          value = cat(static_cast<std::conditional_t<std::is_signed_v<decltype(v)>, int64_t, uint64_t>>(v));
        texts[r * kept + k] = cat(value, ":", i);
      }
    }
  });
  return out;
}

}  // namespace

Status classify(const TensorModelConfig& config, const std::vector<size_t>& wanted,
                const std::vector<int64_t>& counts, std::vector<Datum>& results) {
  for (size_t k = 0; k < wanted.size() && k < counts.size(); ++k) {
    Datum& d = results[wanted[k]];
    if (counts[k] == 0 || !d.is_tensor()) continue;
    OAR_ASSIGN(d.tensor, largest(config, config.outputs[wanted[k]].name, d.tensor, counts[k]));
  }
  return ok_status();
}

}  // namespace oar::api

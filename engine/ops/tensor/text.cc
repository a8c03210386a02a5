// Ops on strings: concatenation, splitting, stop words and case (ASCII), n-gram counts.
#include <map>

#include "engine/ops/tensor/util.h"

namespace oar::tensor {
namespace {

Result<Tensor> strings(const EvalContext& ctx, size_t i) {
  OAR_ASSIGN(Tensor t, ctx.tensor(i));
  if (dtype_of(t) != DType::kString) return invalid_argument(cat("operand ", i, " must hold strings"));
  return t;
}

Status string_concat(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, strings(ctx, 0));
  OAR_ASSIGN(const Tensor y, strings(ctx, 1));
  OAR_ASSIGN(const Broadcast b, Broadcast::make({&x.shape(), &y.shape()}));
  OAR_ASSIGN(Tensor out, ctx.allocate(b.shape(), DType::kString));
  b.runs(0, b.numel(), [&](int64_t at, const auto& from, int64_t n, const auto& step) {
    for (int64_t k = 0; k < n; ++k) {
      mutable_elements<std::string>(out)[at + k] =
          elements<std::string>(x)[from[0] + k * step[0]] + elements<std::string>(y)[from[1] + k * step[1]];
    }
  });
  ctx.set(0, std::move(out));
  return ok_status();
}

// string_split(x) {delimiter, maxsplit} -> parts padded with "", counts. No delimiter: runs of white space.
Status string_split(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, strings(ctx, 0));
  const std::string delimiter = ctx.attrs().get_string("delimiter");
  const int64_t most = ctx.attrs().get_int("maxsplit", -1);
  std::vector<std::vector<std::string>> all;
  size_t widest = 0;
  for (int64_t k = 0; k < x.numel(); ++k) {
    const std::string& s = elements<std::string>(x)[k];
    std::vector<std::string> parts;
    auto may = [&] { return most < 0 || static_cast<int64_t>(parts.size()) < most; };
    if (delimiter.empty()) {
      constexpr const char* kSpace = " \t\n\r\f\v";
      size_t at = s.find_first_not_of(kSpace);
      while (at != std::string::npos) {
        const size_t end = may() ? s.find_first_of(kSpace, at) : std::string::npos;
        parts.push_back(s.substr(at, end == std::string::npos ? end : end - at));
        at = end == std::string::npos ? end : s.find_first_not_of(kSpace, end);
      }
    } else if (!s.empty()) {
      size_t at = 0;
      for (;;) {
        const size_t end = may() ? s.find(delimiter, at) : std::string::npos;
        parts.push_back(s.substr(at, end == std::string::npos ? end : end - at));
        if (end == std::string::npos) break;
        at = end + delimiter.size();
      }
    }
    widest = std::max(widest, parts.size());
    all.push_back(std::move(parts));
  }
  std::vector<int64_t> dims = dims_of(x.shape());
  dims.push_back(static_cast<int64_t>(widest));
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, DType::kString));
  OAR_ASSIGN(Tensor counts, ctx.zeros(x.shape(), DType::kI64));
  for (size_t k = 0; k < all.size(); ++k) {
    mutable_elements<int64_t>(counts)[k] = static_cast<int64_t>(all[k].size());
    std::copy(all[k].begin(), all[k].end(), mutable_elements<std::string>(y) + k * widest);
  }
  ctx.set(0, std::move(y));
  ctx.set(1, std::move(counts));
  return ok_status();
}

std::string fold_case(std::string s, bool upper) {
  for (char& c : s) {
    if (upper && c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
    if (!upper && c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return s;
}

// string_normalizer(x (C) or (1, C)) {case_change_action, is_case_sensitive, stopwords}
Status string_normalizer(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, strings(ctx, 0));
  const int rank = x.shape().rank();
  if (rank < 1 || rank > 2 || (rank == 2 && x.shape()[0] != 1))
    return invalid_argument("needs (C) or (1, C)");
  const std::string action = ctx.attrs().get_string("case_change_action", "NONE");
  const bool sensitive = ctx.attrs().get_int("is_case_sensitive") != 0;
  std::vector<std::string> stop = ctx.attrs().get_strings("stopwords"), kept;
  for (std::string& s : stop) s = sensitive ? s : fold_case(s, false);
  for (int64_t k = 0; k < x.numel(); ++k) {
    const std::string& s = elements<std::string>(x)[k];
    if (std::find(stop.begin(), stop.end(), sensitive ? s : fold_case(s, false)) != stop.end()) continue;
    kept.push_back(action == "NONE" ? s : fold_case(s, action == "UPPER"));
  }
  if (kept.empty()) kept.emplace_back();
  const auto n = static_cast<int64_t>(kept.size());
  OAR_ASSIGN(Tensor y, ctx.allocate(rank == 1 ? Shape({n}) : Shape({1, n}), DType::kString));
  std::copy(kept.begin(), kept.end(), mutable_elements<std::string>(y));
  ctx.set(0, std::move(y));
  return ok_status();
}

// tf_idf_vectorizer: counts of the n-grams of a pool in each row, weighted as `mode` says.
Status tf_idf_vectorizer(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  const Attrs& a = ctx.attrs();
  const int rank = x.shape().rank();
  if (rank < 1 || rank > 2) return invalid_argument("needs (C) or (N, C)");
  const bool text = dtype_of(x) == DType::kString;
  std::vector<std::string> pool = a.get_strings("pool_strings");
  if (!text) {
    if (!dtype_is_integer(dtype_of(x))) return bad_dtype(x);
    pool.clear();
    for (int64_t v : a.get_ints("pool_int64s")) pool.push_back(cat(v));
  }
  const auto starts = a.get_ints("ngram_counts"), indexes = a.get_ints("ngram_indexes");
  const auto weights = a.get_floats("weights");
  const int64_t least = a.get_int("min_gram_length", 1), most = a.get_int("max_gram_length", 1),
                skips = a.get_int("max_skip_count", 0);
  const std::string mode = a.get_string("mode", "TF");
  if (least < 1 || most < least || most > 64 || skips < 0 || skips > 1024 ||
      (!weights.empty() && weights.size() != indexes.size()))
    return invalid_argument("n-gram lengths or weights are out of range");
  // The pool holds all 1-grams, then all 2-grams ...; each n-gram has a column of the result.
  std::map<std::vector<std::string>, size_t> grams;
  size_t id = 0;
  for (size_t n = 1; n <= starts.size(); ++n) {
    const auto end = n < starts.size() ? starts[n] : static_cast<int64_t>(pool.size());
    if (starts[n - 1] < 0 || end > static_cast<int64_t>(pool.size()))
      return invalid_argument("ngram_counts exceed the pool");
    for (int64_t at = starts[n - 1]; at + static_cast<int64_t>(n) <= end;
         at += static_cast<int64_t>(n), ++id) {
      grams.emplace(std::vector<std::string>(pool.begin() + at, pool.begin() + at + static_cast<int64_t>(n)),
                    id);
    }
  }
  if (id > indexes.size()) return invalid_argument("ngram_indexes are too few");
  int64_t width = 0;
  for (int64_t i : indexes) {
    if (i < 0 || i > (1 << 24)) return invalid_argument("an n-gram index is out of range");
    width = std::max(width, i + 1);
  }
  const int64_t rows = rank == 2 ? x.shape()[0] : 1, C = x.shape().cols();
  OAR_ASSIGN(Tensor y, ctx.zeros(rank == 2 ? Shape({rows, width}) : Shape({width}), DType::kF32));
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<double> counts(indexes.size(), 0);
    for (int64_t n = least; n <= most; ++n) {
      for (int64_t skip = 0; skip <= (n == 1 ? 0 : skips); ++skip) {
        for (int64_t at = 0; at + (n - 1) * (skip + 1) < C; ++at) {
          std::vector<std::string> gram;
          for (int64_t k = 0; k < n; ++k) {
            const int64_t e = r * C + at + k * (skip + 1);
            gram.push_back(text ? elements<std::string>(x)[e] : cat(element_as_int(x, e)));
          }
          if (const auto it = grams.find(gram); it != grams.end()) counts[it->second] += 1;
        }
      }
    }
    for (size_t g = 0; g < counts.size(); ++g) {
      const double w = weights.empty() ? 1 : weights[g];
      const double v = mode == "TF" ? counts[g] : mode == "IDF" ? (counts[g] > 0 ? w : 0) : counts[g] * w;
      if (counts[g] > 0) mutable_elements<float>(y)[r * width + indexes[g]] = static_cast<float>(v);
    }
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

}  // namespace
}  // namespace oar::tensor

namespace oar {
OAR_TENSOR_OP(string_concat, tensor::string_concat, .sizes = SizesFrom::kValues);
OAR_TENSOR_OP(string_normalizer, tensor::string_normalizer, .sizes = SizesFrom::kValues);
OAR_TENSOR_OP(string_split, tensor::string_split, .sizes = SizesFrom::kValues);
OAR_TENSOR_OP(tf_idf_vectorizer, tensor::tf_idf_vectorizer, .sizes = SizesFrom::kValues);
}  // namespace oar

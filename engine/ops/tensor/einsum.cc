// Sums of products over named axes. By kernels, floats narrower than f64 become products of matrices: the
// axes of each pair of operands fall into those of both and of the result (a batch), of one of them and of
// what follows, and those that are summed over. Plainly it is one loop in double.
#include <map>

#include "engine/ops/tensor/equation.h"
#include "engine/ops/tensor/gemm.h"

namespace oar::tensor {
namespace {

// An operand under way: f32, an axis for each letter.
struct Term {
  Tensor x;
  std::string letters;
};
using Extents = std::map<char, int64_t>;

bool has(const std::string& letters, char c) { return letters.find(c) != std::string::npos; }

// x with the axes `letters`: other axes are summed over in double, a letter that comes twice walks the
// diagonal, an axis of one that stands for more repeats.
Result<Term> arranged(const KernelContext& ctx, const Term& t, const std::string& letters,
                      const Extents& extents) {
  std::string order = letters;  // then those to sum over
  for (char c : t.letters) {
    if (!has(order, c)) order += c;
  }
  const auto own = strides_of(t.x.shape());
  std::vector<int64_t> strides(order.size(), 0), sizes, dims;
  for (size_t i = 0; i < t.letters.size(); ++i) {
    if (t.x.shape()[static_cast<int>(i)] != 1) strides[order.find(t.letters[i])] += own[i];
  }
  // Of axes that are summed over, an extent of 1 counts once for each of the others' entries only in the
  // product.
  for (size_t k = 0; k < order.size(); ++k) sizes.push_back(extents.at(order[k]));
  for (size_t k = 0; k < letters.size(); ++k) dims.push_back(sizes[k]);
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  bool same = order.size() == letters.size() && t.x.numel() == shape.numel();
  int64_t dense = 1;
  for (size_t k = letters.size(); same && k-- > 0; dense *= sizes[k])
    same = strides[k] == dense || sizes[k] == 1;
  if (same) {
    OAR_ASSIGN(Tensor view, t.x.reshape(shape));
    return Term{std::move(view), letters};
  }
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, DType::kF32));
  const float* from = elements<float>(t.x);
  float* to = mutable_elements<float>(y);
  const size_t kept = letters.size(), last = kept > 0 ? kept - 1 : 0;
  const int64_t run = kept > 0 ? sizes[last] : 1, step = kept > 0 ? strides[last] : 0;
  int64_t summed = 1;
  for (size_t k = kept; k < order.size(); ++k) summed *= sizes[k];
  ctx.parallel(run > 0 ? shape.numel() / run : 0, static_cast<double>(run * summed),
               [&](int64_t begin, int64_t end) {
                 for (int64_t r = begin; r < end; ++r) {
                   int64_t rest = r, at = 0;
                   for (size_t k = last; k-- > 0;) at += rest % sizes[k] * strides[k], rest /= sizes[k];
                   float* out = to + r * run;
                   if (summed == 1) {
                     const float* in = from + at;
                     for (int64_t i = 0; i < run; ++i) out[i] = in[i * step];
                     continue;
                   }
                   for (int64_t i = 0; i < run; ++i) {
                     double sum = 0;
                     for (int64_t q = 0; q < summed; ++q) {
                       int64_t left = q, s = at + i * step;
                       for (size_t k = order.size(); k-- > kept;)
                         s += left % sizes[k] * strides[k], left /= sizes[k];
                       sum += static_cast<double>(from[s]);
                     }
                     out[i] = static_cast<float>(sum);
                   }
                 }
               });
  return Term{std::move(y), letters};
}

// The product of a and b, summed over the letters that `wanted` lacks.
Result<Term> contracted(const KernelContext& ctx, const Term& a, const Term& b, const std::string& wanted,
                        const Extents& extents) {
  std::string batch, rows, columns, inner;
  const auto sort = [&](const std::string& letters) {
    for (char c : letters) {
      const bool both = has(a.letters, c) && has(b.letters, c);
      std::string& to = both ? (has(wanted, c) ? batch : inner) : has(a.letters, c) ? rows : columns;
      if (!has(to, c) && (both || has(wanted, c)))
        to += c;  // of one operand alone: summed when it is arranged
    }
  };
  sort(a.letters), sort(b.letters);
  const auto size = [&](const std::string& letters) {
    int64_t n = 1;
    for (char c : letters) n *= extents.at(c);
    return n;
  };
  OAR_ASSIGN(const Term left, arranged(ctx, a, batch + rows + inner, extents));
  // The second operand as it lies, if its summed axes come last or first.
  const bool turned = b.letters == batch + inner + columns;
  OAR_ASSIGN(const Term right,
             arranged(ctx, b, turned ? batch + inner + columns : batch + columns + inner, extents));
  Products p;
  p.M = size(rows), p.N = size(columns), p.K = size(inner);
  std::vector<int64_t> dims;
  for (char c : batch + rows + columns) dims.push_back(extents.at(c));
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  OAR_ASSIGN(Tensor out, ctx.allocate(shape, DType::kF32));
  p.a = elements<float>(left.x), p.b = elements<float>(right.x), p.out = mutable_elements<float>(out);
  p.lda = p.K, p.b_row = turned ? p.N : 1, p.b_col = turned ? 1 : p.K;
  for (int64_t e = 0, count = size(batch); e < count; ++e) {
    p.at_a.push_back(e * p.M * p.K);
    p.at_b.push_back(e * p.N * p.K);
  }
  OAR_RETURN_IF_ERROR(packed_products(ctx, p));
  return Term{std::move(out), batch + rows + columns};
}

// Two operands at a time, from the left.
Result<Tensor> by_products(const KernelContext& ctx, const std::vector<Tensor>& xs,
                           const std::vector<std::string>& terms, const std::string& right,
                           const Extents& extents) {
  std::vector<Term> left;
  for (size_t k = 0; k < xs.size(); ++k) {
    OAR_ASSIGN(Tensor x, as_f32(ctx, xs[k]));
    left.push_back({std::move(x), terms[k]});
  }
  Term all = left[0];
  for (size_t k = 1; k < left.size(); ++k) {
    std::string wanted = right;
    for (size_t j = k + 1; j < left.size(); ++j) wanted += left[j].letters;
    OAR_ASSIGN(all, contracted(ctx, all, left[k], wanted, extents));
  }
  OAR_ASSIGN(all, arranged(ctx, all, right, extents));
  return from_f32(ctx, all.x, dtype_of(xs[0]));
}

struct EinsumOperands {
  std::vector<Tensor> xs;
  Equation equation;
};
Result<EinsumOperands> einsum_operands(const EvalContext& ctx) {
  EinsumOperands o;
  std::vector<Shape> shapes;
  for (size_t k = 0; k < ctx.num_inputs(); ++k) {
    OAR_ASSIGN(Tensor t, ctx.tensor(k));
    shapes.push_back(t.shape());
    o.xs.push_back(std::move(t));
    OAR_RETURN_IF_ERROR(check_same_dtype(o.xs[0], o.xs[k]));
  }
  OAR_ASSIGN(o.equation, read_equation(ctx.attrs().get_string("equation"), shapes));
  return o;
}

Result<bool> einsum_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const EinsumOperands o, einsum_operands(ctx));
  if (!has_product_kernel(dtype_of(o.xs[0]))) return false;
  OAR_ASSIGN(Tensor y, by_products(ctx, o.xs, o.equation.terms, o.equation.right, o.equation.extents));
  ctx.set(0, std::move(y));
  return true;
}

// einsum {equation}: letters are axes, "..." the broadcast ones; sums over letters absent on the right.
Status einsum(EvalContext& ctx) {
  OAR_ASSIGN(EinsumOperands operands, einsum_operands(ctx));
  const std::vector<Tensor>& xs = operands.xs;
  auto& [terms, right, order, extents] = operands.equation;
  std::vector<int64_t> dims, sizes;
  for (char c : right) dims.push_back(extents[c]);
  for (char c : order) sizes.push_back(extents[c]);
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  int64_t reduced = 1;
  for (size_t k = right.size(); k < order.size(); ++k) {
    if (__builtin_mul_overflow(reduced, sizes[k], &reduced)) return invalid_argument("the sum overflows");
  }
  // Strides of each operand along each letter; a letter twice in a term walks the diagonal.
  std::vector<std::vector<int64_t>> strides(xs.size(), std::vector<int64_t>(order.size(), 0));
  for (size_t k = 0; k < xs.size(); ++k) {
    const auto own = strides_of(xs[k].shape());
    for (size_t i = 0; i < terms[k].size(); ++i) {
      if (xs[k].shape()[static_cast<int>(i)] != 1) strides[k][order.find(terms[k][i])] += own[i];
    }
  }
  OAR_RETURN_IF_ERROR(check_number(xs[0]));
  OAR_RETURN_IF_ERROR(ctx.check_size(shape, DType::kF64));
  std::vector<std::vector<double>> values;
  for (const Tensor& t : xs) values.push_back(to_doubles(t));
  std::vector<double> out(static_cast<size_t>(shape.numel()), 0);
  const size_t kept = right.size();
  ctx.parallel(shape.numel(), 5.0 * static_cast<double>(reduced), [&](int64_t begin, int64_t end) {
    std::vector<int64_t> at(xs.size());
    for (int64_t f = begin; f < end; ++f) {
      double sum = 0;
      for (int64_t r = 0; r < reduced; ++r) {
        std::fill(at.begin(), at.end(), 0);
        int64_t rest = r;
        for (size_t k = order.size(); k-- > 0;) {
          if (k + 1 == kept) rest = f;
          const int64_t i = rest % sizes[k];
          rest /= sizes[k];
          for (size_t o = 0; o < xs.size(); ++o) at[o] += i * strides[o][k];
        }
        double p = 1;
        for (size_t o = 0; o < xs.size(); ++o) p *= values[o][static_cast<size_t>(at[o])];
        sum += p;
      }
      out[static_cast<size_t>(f)] = sum;
    }
  });
  ctx.set(0, from_doubles(ctx, shape, dtype_of(xs[0]), out));
  return ok_status();
}

}  // namespace

Result<Equation> read_equation(const std::string& text, const std::vector<Shape>& operands) {
  Equation out;
  auto& [terms, right, order, extents] = out;
  std::string equation;
  for (char c : text) {
    if (c != ' ') equation += c;
  }
  const size_t arrow = equation.find("->");
  terms.resize(1);
  for (char c : equation.substr(0, arrow)) {
    if (c == ',') terms.emplace_back();
    else terms.back() += c;
  }
  if (terms.size() != operands.size()) return invalid_argument("the equation has another number of operands");
  size_t ellipsis = 0;
  const auto letters = [](const std::string& t) {
    return t.find("...") == std::string::npos ? t.size() : t.size() - 3;
  };
  for (size_t k = 0; k < terms.size(); ++k) {
    const auto rank = static_cast<size_t>(operands[k].rank());
    const bool dots = terms[k].find("...") != std::string::npos;
    if (dots ? rank < letters(terms[k]) : rank != terms[k].size())
      return invalid_argument(cat("term '", terms[k], "' does not match its operand"));
    if (dots) ellipsis = std::max(ellipsis, rank - letters(terms[k]));
  }
  const auto spell = [](std::string t, size_t count) {
    const size_t at = t.find("...");
    if (at == std::string::npos) return t;
    std::string d;
    for (size_t k = 0; k < count; ++k) d += static_cast<char>('0' + static_cast<int>(count - 1 - k));
    return t.replace(at, 3, d);
  };
  std::map<char, int> uses;
  for (size_t k = 0; k < terms.size(); ++k) {
    const bool dots = terms[k].find("...") != std::string::npos;
    terms[k] = spell(terms[k], dots ? static_cast<size_t>(operands[k].rank()) - letters(terms[k]) : 0);
    for (char c : terms[k]) ++uses[c];
  }
  if (arrow != std::string::npos) {
    right = spell(equation.substr(arrow + 2), ellipsis);
  } else {
    right = spell("...", ellipsis);
    for (const auto& [c, n] : uses) {
      if (n == 1 && !(c >= '0' && c <= '9')) right += c;
    }
  }
  for (size_t k = 0; k < terms.size(); ++k) {
    for (size_t i = 0; i < terms[k].size(); ++i) {
      const char c = terms[k][i];
      if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')))
        return invalid_argument("the equation has a character that is no letter");
      int64_t& e = extents.emplace(c, 1).first->second;
      const int64_t own = operands[k][static_cast<int>(i)];
      if (e != 1 && own != 1 && own != e)
        return invalid_argument(cat("axis '", c, "' has extents ", e, " and ", own));
      e = e == 1 ? own : e;
    }
  }
  for (size_t k = 0; k < right.size(); ++k) {
    if (!extents.count(right[k]))
      return invalid_argument(cat("axis '", right[k], "' of the result is in no operand"));
    if (right.find(right[k], k + 1) != std::string::npos)
      return invalid_argument(cat("axis '", right[k], "' is twice in the result"));
  }
  order = right;
  for (const auto& [c, e] : extents) {
    if (right.find(c) == std::string::npos) order += c;
  }
  return out;
}

}  // namespace oar::tensor

namespace oar {
OAR_DEFINED_OP(einsum, tensor::einsum, .by_kernels = tensor::einsum_by_kernels);
}  // namespace oar

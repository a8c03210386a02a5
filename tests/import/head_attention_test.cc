// head_attention against plain sums in double over every kind of mask, layout, past and length, at odd sizes;
// and that a query's result depends on itself and the keys it sees alone.
#include <cmath>
#include <cstring>
#include <random>

#include "engine/base/format.h"
#include "engine/graph/evaluate.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"

namespace {

using namespace oar;       // NOLINT
using namespace oar_test;  // NOLINT

using Doubles = std::vector<double>;

// What is asked, by meaning. Values lie as (B, heads, rows, width) whatever the layout of the operands.
struct Attention {
  int64_t B = 1, H = 1, K = 1, S = 1, T = 1, P = 0, D = 1, DV = 1;  // T new keys, P of the past
  std::string layout;                                               // "" heads first, "bshd", "3"
  bool causal = false, ragged = false;
  int64_t left = -1, right = -1, total = 0;
  double scale = 0, cap = 0;
  std::string mask;              // "", "add", "bool", "heads", "keys", "short", "row hidden"
  std::vector<int64_t> lengths;  // none: empty
  std::string label() const {
    std::string s = cat("B", B, " H", H, " K", K, " S", S, " T", T, " P", P, " D", D, " DV", DV, " layout '",
                        layout, "' causal ", causal, " ragged ", ragged, " window ", left, ",", right,
                        " cap ", cap, " mask '", mask, "' lengths");
    for (int64_t n : lengths) s += cat(" ", n);
    return s;
  }
  int64_t keys() const { return ragged ? std::max(P, total) : P + T; }
};

struct Values {
  Doubles q, k, v, past_k, past_v, mask;
  Shape mask_shape;
};
struct Expected {
  Doubles y, k, v;
};

size_t at(int64_t n) { return static_cast<size_t>(n); }

Expected definition(const Attention& a, const Values& in) {
  const int64_t L = a.keys(), M = in.mask_shape.rank() > 0 ? in.mask_shape[3] : L;
  Expected e;
  e.y.assign(at(a.B * a.H * a.S * a.DV), 0);
  e.k.assign(at(a.B * a.K * L * a.D), 0);
  e.v.assign(at(a.B * a.K * L * a.DV), 0);
  for (int64_t b = 0; b < a.B; ++b) {
    const int64_t length = a.lengths.empty() ? L : a.lengths[at(b)];
    const bool first = a.ragged && a.total == a.T;
    const int64_t begin = a.ragged ? (first ? 0 : length - a.T) : a.P;
    const int64_t offset = a.ragged ? begin : !a.lengths.empty() && a.P == 0 ? length - a.S : a.P;
    for (int64_t g = 0; g < a.K; ++g) {
      const auto join = [&](Doubles& to, const Doubles& past, const Doubles& fresh, int64_t width) {
        for (int64_t j = 0; j < L; ++j) {
          for (int64_t d = 0; d < width; ++d) {
            double& x = to[at(((b * a.K + g) * L + j) * width + d)];
            if (j < begin) x = past[at(((b * a.K + g) * a.P + j) * width + d)];
            else if (j < begin + a.T && (!a.ragged || j < length))
              x = fresh[at(((b * a.K + g) * a.T + j - begin) * width + d)];
          }
        }
      };
      join(e.k, in.past_k, in.k, a.D);
      join(e.v, in.past_v, in.v, a.DV);
    }
    for (int64_t h = 0; h < a.H; ++h) {
      for (int64_t i = 0; i < a.S; ++i) {
        const int64_t g = h / (a.H / a.K), position = i + offset;
        Doubles p(at(L), -INFINITY);
        double top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < L; ++j) {
          if (j >= length || j >= M || (a.causal && j > position) ||
              (a.right >= 0 && j > position + a.right) || (a.left >= 0 && j < position - a.left))
            continue;
          double dot = 0;
          for (int64_t d = 0; d < a.D; ++d)
            dot += in.q[at(((b * a.H + h) * a.S + i) * a.D + d)] * e.k[at(((b * a.K + g) * L + j) * a.D + d)];
          dot *= a.scale != 0 ? a.scale : 1 / std::sqrt(static_cast<double>(a.D));
          if (a.cap > 0) dot = a.cap * std::tanh(dot / a.cap);
          if (!in.mask.empty()) {
            const Shape& m = in.mask_shape;
            const auto one = [](int64_t n, int64_t k) { return n == 1 ? 0 : k; };
            const double v =
                in.mask[at(((one(m[0], b) * m[1] + one(m[1], h)) * m[2] + one(m[2], i)) * m[3] + j)];
            dot += a.mask == "bool" ? (v != 0 ? 0 : -INFINITY) : v;
          }
          p[at(j)] = dot;
          top = std::max(top, dot);
        }
        if (top == -INFINITY) continue;  // sees nothing
        for (double& x : p) x = std::exp(x - top), sum += x;
        for (int64_t j = 0; j < L; ++j) {
          for (int64_t d = 0; d < a.DV; ++d)
            e.y[at(((b * a.H + h) * a.S + i) * a.DV + d)] +=
                p[at(j)] / sum * e.v[at(((b * a.K + g) * L + j) * a.DV + d)];
        }
      }
    }
  }
  return e;
}

// (B, heads, rows, width) as an operand of the layout, and back.
Tensor laid_out(const Doubles& v, int64_t B, int64_t H, int64_t S, int64_t D, const std::string& layout,
                DType dtype) {
  const Shape shape = layout == "3"      ? Shape{B, S, H * D}
                      : layout == "bshd" ? Shape{B, S, H, D}
                                         : Shape{B, H, S, D};
  Tensor t = must(allocate_elements(shape, dtype));
  dispatch_float(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t k = 0; k < t.numel(); ++k) {
      const int64_t b = k / (H * S * D), d = k % D;
      const int64_t h = layout.empty() ? k / (S * D) % H : k / D % H,
                    s = layout.empty() ? k / D % S : k / (H * D) % S;
      mutable_elements<T>(t)[k] =
          Element<T>::store(static_cast<typename Element<T>::Compute>(v[at(((b * H + h) * S + s) * D + d)]));
    }
  });
  return t;
}

void compare(const Tensor& got, const Doubles& want, int64_t H, int64_t S, int64_t D,
             const std::string& layout, double step) {
  REQUIRE(got.numel() == static_cast<int64_t>(want.size()));
  double worst = 0;
  for (int64_t k = 0; k < got.numel(); ++k) {
    const int64_t b = k / (H * S * D), d = k % D;
    const int64_t h = layout.empty() ? k / (S * D) % H : k / D % H,
                  s = layout.empty() ? k / D % S : k / (H * D) % S;
    worst = std::max(worst, std::abs(element_as_double(got, k) - want[at(((b * H + h) * S + s) * D + d)]));
  }
  CHECK(worst <= step);
}

Doubles rounded(Doubles v, DType dtype) {
  const auto n = static_cast<int64_t>(v.size());
  const Tensor t = laid_out(v, 1, 1, 1, n, "", dtype);
  for (int64_t k = 0; k < n; ++k) v[at(k)] = element_as_double(t, k);
  return v;
}

Values values_of(const Attention& a, DType dtype, uint32_t seed) {
  const auto some = [&](int64_t n) {
    const auto f = random_floats(at(n), seed++);
    return rounded(Doubles(f.begin(), f.end()), dtype);
  };
  Values in;
  in.q = some(a.B * a.H * a.S * a.D);
  in.k = some(a.B * a.K * a.T * a.D), in.v = some(a.B * a.K * a.T * a.DV);
  in.past_k = some(a.B * a.K * a.P * a.D), in.past_v = some(a.B * a.K * a.P * a.DV);
  if (a.mask.empty()) return in;
  const int64_t L = a.keys();
  in.mask_shape = a.mask == "heads"   ? Shape{1, a.H, a.S, L}
                  : a.mask == "keys"  ? Shape{a.B, 1, 1, L}
                  : a.mask == "short" ? Shape{1, 1, a.S, std::max<int64_t>(1, L - 2)}
                                      : Shape{a.B, a.H, a.S, L};
  in.mask = some(in.mask_shape.numel());
  for (size_t k = 0; k < in.mask.size(); ++k) {
    if (a.mask == "bool") in.mask[k] = in.mask[k] > -0.3;
    else if (k % 5 == 3) in.mask[k] = -INFINITY;
    if (a.mask == "row hidden" && static_cast<int64_t>(k) / L % a.S == 0) in.mask[k] = -INFINITY;
  }
  return in;
}

Result<std::vector<Datum>> evaluated(const Attention& a, const Values& in, DType dtype, size_t results,
                                     decltype(evaluate_op)* run = compute_op) {
  Node node;
  node.op = find_op("head_attention");
  REQUIRE(node.op != nullptr);
  node.attrs = Attrs{{"is_causal", int64_t{a.causal}},
                     {"left_window_size", a.left},
                     {"right_window_size", a.right},
                     {"softcap", a.cap},
                     {"scale", a.scale}};
  if (a.layout == "bshd") node.attrs.set("layout", std::string("bshd"));
  if (a.layout == "3") node.attrs.set("q_num_heads", a.H), node.attrs.set("kv_num_heads", a.K);
  if (a.ragged) node.attrs.set("ragged", int64_t{1});
  node.outputs.resize(results);
  std::vector<Datum> data(8);
  data[0] = laid_out(in.q, a.B, a.H, a.S, a.D, a.layout, dtype);
  data[1] = laid_out(in.k, a.B, a.K, a.T, a.D, a.layout, dtype);
  data[2] = laid_out(in.v, a.B, a.K, a.T, a.DV, a.layout, dtype);
  if (a.mask == "bool") {
    Tensor m = must(allocate_elements(in.mask_shape, DType::kBool));
    for (int64_t k = 0; k < m.numel(); ++k) mutable_elements<uint8_t>(m)[k] = in.mask[at(k)] != 0;
    data[3] = m;
  } else if (!a.mask.empty()) {
    const Shape& s = in.mask_shape;
    data[3] = laid_out(in.mask, s[0], s[1], s[2], s[3], "", dtype);
  }
  if (a.P > 0) {
    data[4] = laid_out(in.past_k, a.B, a.K, a.P, a.D, "", dtype);
    data[5] = laid_out(in.past_v, a.B, a.K, a.P, a.DV, "", dtype);
  }
  const auto integers = [](const std::vector<int64_t>& v, const Shape& shape) {
    Tensor t = must(allocate_elements(shape, DType::kI64));
    std::copy(v.begin(), v.end(), mutable_elements<int64_t>(t));
    return t;
  };
  if (!a.lengths.empty()) data[6] = integers(a.lengths, {static_cast<int64_t>(a.lengths.size())});
  if (a.ragged) data[7] = integers({a.total}, {});
  std::vector<const Datum*> operands;
  for (const Datum& d : data) operands.push_back(&d);
  return run(node, operands, EvalOptions{});
}

void check(const Attention& a, uint32_t seed) {
  INFO(a.label());
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    INFO(dtype_name(dtype));
    const Values in = values_of(a, dtype, seed);
    const Expected want = definition(a, in);
    const bool presents = a.P > 0 || a.ragged || seed % 3 == 0;
    // Values of about one, their weighted means: the rounding of the result, and of sums of a few hundred
    // terms.
    const double step = dtype == DType::kF64   ? 1e-12
                        : dtype == DType::kF32 ? 5e-6
                        : dtype == DType::kF16 ? 2e-3
                                               : 1.6e-2;
    for (const auto run : {evaluate_op, compute_op}) {
      const auto got = evaluated(a, in, dtype, presents ? 3 : 1, run);
      REQUIRE_OK(got);
      const Tensor& y = (*got)[0].tensor;
      CHECK(y.format().dtype() == dtype);
      compare(y, want.y, a.H, a.S, a.DV, a.layout, step);
      if (!presents) continue;
      compare((*got)[1].tensor, want.k, a.K, a.keys(), a.D, "", 0);
      compare((*got)[2].tensor, want.v, a.K, a.keys(), a.DV, "", 0);
    }
  }
}

bool same_bits(const Tensor& a, int64_t from_a, const Tensor& b, int64_t from_b, int64_t n) {
  return std::memcmp(elements<float>(a) + from_a, elements<float>(b) + from_b, at(n) * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("head attention: every mask, layout, past and length at odd sizes") {
  const char* masks[] = {"", "", "add", "bool", "heads", "keys", "short", "row hidden"};
  const char* layouts[] = {"", "bshd", "3"};
  std::mt19937 random(5);
  const auto one_of = [&](std::initializer_list<int64_t> list) {
    return list.begin()[random() % list.size()];
  };
  for (uint32_t round = 0; round < 160; ++round) {
    Attention a;
    a.B = one_of({1, 2, 3}), a.K = one_of({1, 2, 3}), a.H = a.K * one_of({1, 1, 2, 5});
    a.D = one_of({1, 3, 8, 16, 24, 33}), a.DV = round % 4 == 0 ? one_of({1, 5, 20, 48}) : a.D;
    a.S = one_of({1, 1, 2, 5, 17, 63, 66, 130}), a.T = one_of({1, 4, 31, 64, 129, 150});
    a.P = round % 3 == 0 ? one_of({1, 7, 127, 128, 140}) : 0;
    a.layout = layouts[random() % 3];
    a.mask = masks[random() % 8];
    a.causal = random() % 2 == 0;
    if (random() % 3 == 0) a.left = one_of({0, 1, 6, 40});
    if (!a.causal && random() % 4 == 0) a.right = one_of({0, 2, 50});
    if (random() % 3 == 0) a.cap = 1.5;
    if (random() % 3 == 0) a.scale = 0.7;
    if (round % 5 == 1) {
      for (int64_t b = 0; b < a.B; ++b) a.lengths.push_back(one_of({a.keys(), a.keys() / 2, 1, 0}));
    } else if (round % 5 == 3) {
      a.ragged = true, a.T = a.S, a.causal = true, a.right = -1;
      const bool first = random() % 4 == 0;
      if (first) a.total = a.S;
      else a.P = a.P == 0 ? 9 : a.P, a.total = a.P + a.S - one_of({0, 1, 8});
      if (!first && a.total <= a.S) a.total = a.S + 1;
      for (int64_t b = 0; b < a.B; ++b) {
        a.lengths.push_back(
            b == 0 ? a.total
                   : std::max<int64_t>(first ? 1 : a.S, a.total - static_cast<int64_t>(random() % 6)));
      }
    }
    check(a, 100 + 7 * round);
  }
}

TEST_CASE("head attention: a query's result is its own") {
  // One sequence of 150 tokens at once; then in pieces of 1, 3, 40 tokens on what the pieces before left.
  Attention whole;
  whole.H = 6, whole.K = 2, whole.S = whole.T = 150, whole.D = whole.DV = 24, whole.causal = true,
  whole.layout = "3";
  for (const double cap : {0.0, 2.0}) {
    for (const int64_t left : {int64_t{-1}, int64_t{20}}) {
      whole.cap = cap, whole.left = left;
      const Values in = values_of(whole, DType::kF32, 3);
      const auto all = evaluated(whole, in, DType::kF32, 3);
      REQUIRE_OK(all);
      for (const int64_t step : {1, 3, 40}) {
        INFO("cap " << cap << " left " << left << " step " << step);
        Attention part = whole;
        Values own;
        for (int64_t done = 0; done < 150; done += part.S) {
          part.S = part.T = std::min<int64_t>(step, 150 - done), part.P = done;
          const auto rows = [&](const Doubles& v, int64_t heads, int64_t from, int64_t to) {
            Doubles out;
            for (int64_t h = 0; h < heads; ++h)
              out.insert(out.end(), v.begin() + (h * 150 + from) * 24, v.begin() + (h * 150 + to) * 24);
            return out;
          };
          own.q = rows(in.q, 6, done, done + part.S);
          own.k = rows(in.k, 2, done, done + part.S), own.v = rows(in.v, 2, done, done + part.S);
          own.past_k = rows(in.k, 2, 0, done), own.past_v = rows(in.v, 2, 0, done);
          const auto got = evaluated(part, own, DType::kF32, 3);
          REQUIRE_OK(got);
          REQUIRE(same_bits((*all)[0].tensor, done * 6 * 24, (*got)[0].tensor, 0, part.S * 6 * 24));
        }
      }
    }
  }
}

TEST_CASE("head attention: what does not fit is refused") {
  Attention a;
  a.H = 4, a.K = 2, a.S = a.T = 3, a.D = a.DV = 8;
  Values in = values_of(a, DType::kF32, 1);
  const auto refused = [&](const Attention& asked, const Values& with, const char* word) {
    const auto got = evaluated(asked, with, DType::kF32, 1);
    REQUIRE(!got.ok());
    CHECK_THAT(got.status().message(), Contains(word));
  };
  Attention b = a;
  b.H = 3, b.K = 2;
  refused(b, values_of(b, DType::kF32, 1), "do not match");
  b = a, b.mask = "add";
  Values wide = values_of(b, DType::kF32, 1);
  wide.mask_shape = {1, 1, 3, 4}, wide.mask.assign(12, 0);
  refused(b, wide, "does not fit");
  wide.mask_shape = {1, 1, 2, 3}, wide.mask.assign(6, 0);
  refused(b, wide, "does not broadcast");
  b = a, b.lengths = {1, 2};
  refused(b, in, "one length");
  b = a, b.ragged = true, b.total = 9, b.lengths = {9};
  refused(b, in, "a past of 0");
  b.total = 2, b.lengths = {3};
  refused(b, in, "a total of 2");
}

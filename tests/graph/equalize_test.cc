// Scales of heads (engine/ops/equalize.cc) and the transforms that take them (engine/ops/hadamard.cc): sums
// of squares over stored weights against the double reference, the scale against what it is to minimize, and
// transforms with a scale against each other.
#include <algorithm>
#include <numeric>

#include "engine/base/format.h"
#include "engine/graph/weights.h"
#include "tests/graph/graph_fixture.h"

using namespace oar;
using namespace oar_test;

namespace {

HostValue host(const std::vector<double>& values) {
  HostValue v;
  v.shape = Shape({static_cast<int64_t>(values.size())});
  v.f = values;
  return v;
}

std::vector<double> scale_of(const std::vector<double>& kept, const std::vector<double>& read,
                             const Attrs& attrs, const std::vector<double>& bias = {},
                             const std::vector<double>& inv_freq = {}) {
  const HostValue values[] = {host(kept), host(read), host(bias), host(inv_freq)};
  const HostValue* operands[] = {&values[0], &values[1], bias.empty() ? nullptr : &values[2],
                                 inv_freq.empty() ? nullptr : &values[3]};
  const auto out = evaluate_node(*find_op("equalizing_scale"), operands, attrs);
  REQUIRE_OK(out);
  return (*out)[0].f;
}

// Noise times what it does, of one head: sum(kept / s^2) sum(read s^2).
double loss(const std::vector<double>& kept, const std::vector<double>& read, const std::vector<double>& s) {
  double noise = 0, effect = 0;
  for (size_t i = 0; i < s.size(); ++i) {
    noise += kept[i] / (s[i] * s[i]);
    effect += read[i] * s[i] * s[i];
  }
  return noise * effect;
}

std::vector<double> powers(std::mt19937& random, size_t n) {
  std::uniform_real_distribution<double> log(-4, 4);
  std::vector<double> out(n);
  for (double& p : out) p = std::exp(log(random));
  return out;
}

}  // namespace

TEST_CASE("powers of rows and columns: as they lie in every kind of format, against the reference") {
  ThreadPool pool({.threads = 3});
  for (const char* name : {"f32", "bf16", "q8_0", "i4_s8_g32", "w4a8_g128"}) {
    const Format format = *Format::find(name);
    GraphFixture f;
    const int64_t rows = 24, cols = 384;
    auto w = Tensor::allocate({rows, cols}, format);
    REQUIRE_OK(w);
    std::normal_distribution<float> normal;
    std::vector<float> row(static_cast<size_t>(cols));
    for (int64_t r = 0; r < rows; ++r) {
      for (float& x : row) x = normal(f.random) * static_cast<float>(r + 1);
      format.encode_row(row.data(), cols,
                        static_cast<std::byte*>(w->mutable_data()) + r * format.stride(cols));
    }
    const Val weight = f.b.constant("w", *w), gain = f.constant("gain", {cols}),
              bias = f.constant("bias", {rows}), norm = f.constant("norm", {8});
    const Attrs part{{"begin", int64_t{8}}, {"end", int64_t{24}}};
    const Val cases[] = {
        f.b.op("row_power", {weight, Val{}, Val{}, Val{}}), f.b.op("row_power", {weight, gain, bias, Val{}}),
        f.b.op("row_power", {weight, gain, Val{}, norm}, part),
        f.b.op("row_power", {weight, Val{}, bias, norm}, part), f.b.op("column_power", {weight})};
    REQUIRE_OK(f.b.status());
    for (size_t k = 0; k < std::size(cases); ++k) f.graph.add_output(cat("case ", k), cases[k].id);
    const auto want = evaluate_reference(f.graph, {});
    REQUIRE_OK(want);
    for (size_t k = 0; k < std::size(cases); ++k) {
      INFO(name << " case " << k);
      const auto got = evaluate_weight(f.graph, cases[k].id, pool);
      REQUIRE_OK(got);
      const auto values = got->values<float>();
      const std::vector<double>& expected = want->at(cat("case ", k)).f;
      REQUIRE(values.size() == expected.size());
      // Sums of positive numbers: each of at most 384 / 16 + 3 roundings to f32 in a row is relative.
      for (size_t i = 0; i < expected.size(); ++i)
        CHECK(std::abs(static_cast<double>(values[i]) - expected[i]) <= 32 * 0x1p-24 * expected[i]);
    }
  }
}

TEST_CASE("powers of long rows and columns: a sample, as good as its size") {
  ThreadPool pool({.threads = 3});
  for (const char* name : {"bf16", "q8_0", "w4a8_g128"}) {
    GraphFixture f;
    const Format format = *Format::find(name);
    const int64_t n = 2304;
    auto w = Tensor::allocate({n, n}, format);
    REQUIRE_OK(w);
    std::normal_distribution<float> normal;
    std::vector<float> row(static_cast<size_t>(n));
    for (int64_t r = 0; r < n; ++r) {
      for (float& x : row) x = normal(f.random);
      format.encode_row(row.data(), n, static_cast<std::byte*>(w->mutable_data()) + r * format.stride(n));
    }
    const Val weight = f.b.constant("w", *w);
    for (const char* op : {"row_power", "column_power"}) {
      INFO(name << " " << op);
      const bool rows = std::string_view(op) == "row_power";
      const Val power = rows ? f.b.op(op, {weight, Val{}, Val{}, Val{}}) : f.b.op(op, {weight});
      const auto got = evaluate_weight(f.graph, power.id, pool);
      REQUIRE_OK(got);
      // Normal numbers: n on average, sqrt(2 / 512) off; 5 deviations hold for all of 2304 with near
      // certainty.
      const auto values = got->values<float>();
      REQUIRE(values.size() == static_cast<size_t>(n));
      double mean = 0;
      bool near = true;
      for (const float v : values) {
        mean += static_cast<double>(v) / static_cast<double>(n * n);
        near = near && std::abs(v / static_cast<float>(n) - 1) < 5 * std::sqrt(2.f / 512);
      }
      CHECK(near);
      CHECK(std::abs(mean - 1) < 0.01);
    }
  }
}

TEST_CASE("the scale of heads: least loss, the same power kept, query heads added up") {
  std::mt19937 random(3);
  const size_t D = 16;
  const auto kept = powers(random, 2 * D), read = powers(random, 6 * D);  // three query heads to each
  const auto s = scale_of(kept, read, {{"head", int64_t{16}}});
  for (size_t h = 0; h < 2; ++h) {
    const std::vector<double> own(kept.begin() + h * D, kept.begin() + (h + 1) * D),
        scale(s.begin() + h * D, s.begin() + (h + 1) * D);
    std::vector<double> all(D, 0);
    for (size_t g = 0; g < 3; ++g) {
      for (size_t i = 0; i < D; ++i) all[i] += read[(3 * h + g) * D + i];
    }
    double root = 0, before = 0, after = 0;
    for (size_t i = 0; i < D; ++i) {
      root += std::sqrt(own[i] * all[i]);
      before += own[i];
      after += own[i] / (scale[i] * scale[i]);
    }
    // Cauchy and Schwarz's bound, but for ratios of at most e that are left: cosh(1/2)^2 of it (Kantorovich).
    const double least = loss(own, all, scale);
    CHECK(least >= root * root);
    CHECK(least <= root * root * std::pow(std::cosh(0.5), 2) * (1 + 1e-9));
    CHECK(least < loss(own, all, std::vector<double>(D, 1)));
    CHECK(std::abs(after - before) < 1e-9 * before);
  }
}

TEST_CASE("the scale of heads: what an estimate may be wrong by is left alone") {
  std::mt19937 random(4);
  std::uniform_real_distribution<double> log(-0.49, 0.49);
  std::vector<double> kept(16), read(16);
  for (size_t i = 0; i < 16; ++i) kept[i] = 7 * std::exp(read[i] = log(random)), read[i] = 3;
  for (const double s : scale_of(kept, read, {{"head", int64_t{16}}})) CHECK(static_cast<float>(s) == 1.f);
  kept[5] = 7 * std::exp(9.0);
  const auto s = scale_of(kept, read, {{"head", int64_t{16}}});
  CHECK(s[5] / s[4] > std::exp((9 - 1.5) / 4));
  CHECK(s[5] / s[4] < std::exp((9 - 0.5) / 4));
}

TEST_CASE("the scale of heads: pairs of rope share one, a mean takes a bias off as far as it stands still") {
  std::mt19937 random(5);
  const std::vector<double> kept = powers(random, 8), read = powers(random, 8), freq{1, 0.1, 0.001};
  for (const bool interleaved : {false, true}) {
    const auto s =
        scale_of(kept, read, {{"head", int64_t{8}}, {"interleaved", int64_t{interleaved}}}, {}, freq);
    for (size_t p = 0; p < 3; ++p) CHECK(s[interleaved ? 2 * p : p] == s[interleaved ? 2 * p + 1 : p + 3]);
    CHECK(s[6] != s[7]);  // beyond rope
  }
  const std::vector<double> none(8, 0), flat(8, 1), bias{9, 9, 9, 9, 9, 9, 9, 9};
  const auto ratio = [&](const Attrs& attrs) {  // of the slowest pair's scale to that without a bias
    auto slow = none;
    slow[2] = slow[5] = 9;
    const auto s = scale_of(flat, flat, attrs, slow, freq);
    return s[2] / s[0];
  };
  CHECK(std::abs(ratio({{"head", int64_t{8}}}) - std::exp((std::log(1 + 81.0) - 1) / 4)) < 1e-9);
  // A page of 64 tokens turns it by 0.064: 1 - (sin(0.032) / 0.032)^2 = 0.00034 of its power is left.
  CHECK(ratio({{"head", int64_t{8}}, {"page", int64_t{64}}}) == 1);
  // One of 1024 tokens by 1.024: 0.085, which is 1 + 6.9.
  CHECK(std::abs(ratio({{"head", int64_t{8}}, {"page", int64_t{1024}}}) -
                 std::exp((std::log(1 + 81 * (1 - std::pow(std::sin(0.512) / 0.512, 2))) - 1) / 4)) < 1e-4);
  // The fastest turns ten times, and all of it is left but what ten and a half turns leave of a mean.
  const auto s = scale_of(flat, flat, {{"head", int64_t{8}}, {"page", int64_t{64}}}, bias, freq);
  CHECK(s[0] / s[2] > std::exp((std::log(60.0) - 1) / 4));
  CHECK(s[6] == s[7]);  // beyond rope a bias stands still: nothing of it is left
  CHECK(s[2] / s[6] < 1.01);
}

TEST_CASE("the scale of heads: powers of nothing, of everything, and of no number leave finite scales") {
  const double huge = 1e300 * 1e10;
  for (const auto& [kept, read] :
       std::vector<std::pair<std::vector<double>, std::vector<double>>>{{{0, 0, 0, 0}, {1, 2, 3, 4}},
                                                                        {{1, 2, 3, 4}, {0, 0, 0, 0}},
                                                                        {{1, 0, 1e30, 1}, {0, 1e30, 1, 1}},
                                                                        {{NAN, 1, 1, 1}, {1, 1, 1, 1}},
                                                                        {{1, 1, 1, 1}, {1, huge, 1, 1}}}) {
    for (const double s : scale_of(kept, read, {{"head", int64_t{4}}})) {
      CHECK(s > 1e-5);
      CHECK(s < 1e5);
    }
  }
}

TEST_CASE("transforms with a scale: kernels against the reference, and undone by their inverse") {
  for (const bool inverse : {false, true}) {
    for (const bool divide : {false, true}) {
      GraphFixture f;
      const Val x = f.input("x", {6, 16}), raw = f.constant("scale", {2 * 16});
      const Val scale = f.b.op("exp", {raw});
      Attrs attrs{{"block", int64_t{16}}, {"head", int64_t{16}}, {"seed", int64_t{5}}};
      if (inverse) attrs.set("inverse", int64_t{1});
      if (divide) attrs.set("divide", int64_t{1});
      f.output(f.b.op("hadamard", {x, scale}, attrs));
      const auto want = f.reference();
      CHECK(distance(f.planned(), want) < 1e-6);
      // Each head's channels by the factor of the key head it shares; the transform keeps what is left.
      const auto& in = f.inputs.at("x").f;
      const auto factors = f.graph.value(raw.id).constant.values<float>();
      double before = 0, after = 0;
      for (size_t i = 0; i < in.size(); ++i) {
        const double factor =
            std::exp(static_cast<double>(factors[i % 96 / 48 * 16 + i % 16]) * (divide ? -1 : 1));
        before += std::pow(inverse ? in[i] : in[i] * factor, 2);
        after += std::pow(inverse ? want[i] / factor : want[i], 2);
      }
      CHECK(std::abs(before - after) < 1e-5 * before);
    }
  }
  GraphFixture f;
  const Val x = f.input("x", {4, 16}), scale = f.b.op("exp", {f.constant("scale", {2 * 16})});
  const Attrs forward{{"block", int64_t{16}}, {"head", int64_t{16}}, {"divide", int64_t{1}}};
  Attrs back{{"block", int64_t{16}}, {"head", int64_t{16}}, {"inverse", int64_t{1}}};
  f.output(f.b.op("hadamard", {f.b.op("hadamard", {x, scale}, forward), scale}, back));
  CHECK(distance(f.planned(), f.inputs.at("x").f) < 1e-6);
}

TEST_CASE(
    "transforms with a scale: in the weights on both sides they cancel, biases and fused parts included") {
  // Columns 8 .. 24 of one layer's output are two heads of 8, which four heads of another read.
  ThreadPool pool({.threads = 2});
  GraphFixture f;
  const Val w = f.constant("w", {32, 48}), bias = f.constant("bias", {32}), o = f.constant("o", {20, 32}),
            scale = f.b.op("exp", {f.constant("scale", {16})});
  const Attrs rows{{"block", int64_t{8}}, {"axis", int64_t{0}}, {"begin", int64_t{8}},
                   {"end", int64_t{24}},  {"head", int64_t{8}}, {"divide", int64_t{1}}};
  const Attrs columns{{"block", int64_t{8}}, {"head", int64_t{8}}};
  const Val made[] = {f.b.op("hadamard", {w, scale}, rows), f.b.op("hadamard", {bias, scale}, rows),
                      f.b.op("hadamard", {o, scale}, columns)};
  REQUIRE_OK(f.b.status());
  std::vector<std::vector<double>> numbers;
  for (const Val v : made) {
    f.graph.add_output(cat("out", numbers.size()), v.id);
    const auto t = evaluate_weight(f.graph, v.id, pool);
    REQUIRE_OK(t);
    const auto values = t->values<float>();
    numbers.emplace_back(values.begin(), values.end());
  }
  const auto want = evaluate_reference(f.graph, {});
  REQUIRE_OK(want);
  for (size_t k = 0; k < numbers.size(); ++k) CHECK(distance(numbers[k], want->at(cat("out", k)).f) < 1e-6);
  const auto at = [&](Val v) { return f.graph.value(v.id).constant.values<float>(); };
  // Rows outside the part are as they were.
  for (size_t i = 0; i < 8 * 48; ++i) CHECK(numbers[0][i] == static_cast<double>(at(w)[i]));
  for (size_t i = 24; i < 32; ++i) CHECK(numbers[1][i] == static_cast<double>(at(bias)[i]));
  // sum over channels of head h of o times what its key head h / 2 holds, before and after.
  for (size_t r = 0; r < 20; ++r) {
    for (size_t c = 0; c < 49; ++c) {
      double before = 0, after = 0, size = 0;
      for (size_t i = 0; i < 32; ++i) {
        const size_t row = 8 + i / 16 * 8 + i % 8;
        const double x =
            c < 48 ? static_cast<double>(at(w)[row * 48 + c]) : static_cast<double>(at(bias)[row]);
        const double y = c < 48 ? numbers[0][row * 48 + c] : numbers[1][row];
        before += static_cast<double>(at(o)[r * 32 + i]) * x;
        after += numbers[2][r * 32 + i] * y;
        size += std::abs(numbers[2][r * 32 + i] * y);
      }
      REQUIRE(std::abs(before - after) <= 1e-6 * (1 + size));
    }
  }
}

TEST_CASE("transforms refuse a scale that does not suit their channels") {
  GraphFixture f;
  const Val x = f.input("x", {6, 16});
  for (const int64_t n : {24, 64, 5}) {
    Builder b(f.graph);
    b.op("hadamard", {x, f.constant("scale", {n})}, {{"block", int64_t{16}}, {"head", int64_t{16}}});
    INFO(n);
    CHECK(!b.status().ok());
  }
}

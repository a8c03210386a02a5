// Products of training with plain and stored matrices, and with adapters, there and back.

#include "tests/kernels/matmul_problem.h"
#include "tests/train/one_op.h"

using namespace oar;
using namespace oar::train;
using namespace oar_test;

TEST_CASE("products with stored matrices, forwards and back, are those with the numbers they stand for") {
  const int64_t T = 5, N = 48, K = 256;
  const Tensor x = f32({T, K}, random_values(static_cast<size_t>(T * K), 1)),
               dy = f32({T, N}, random_values(static_cast<size_t>(T * N), 2)),
               plain = f32({N, K}, random_values(static_cast<size_t>(N * K), 3));
  for (const char* name :
       {"f32", "bf16", "f16", "q8_0", "q4_0", "i8_channel", "e4m3_channel", "e5m2_channel", "e4m3_g128",
        "i4_s8_g32", "w4a8_g128", "u4_g64", "q2_k", "q4_k", "q6_k", "iq4_nl", "mxfp4", "nvfp4"}) {
    const auto format = Format::find(name);
    INFO(name);
    REQUIRE(format.has_value());
    const auto bytes = encode({plain.values<float>().begin(), plain.values<float>().end()}, K, *format);
    Tensor w = Tensor::allocate({N, K}, *format).value();
    REQUIRE(w.bytes() == bytes.size());
    std::memcpy(w.mutable_data(), bytes.data(), bytes.size());
    const Tensor decoded = to_f32(w).value();
    const auto v = decoded.values<float>();
    // Kernels round what blocks' minima add apart from the rest.
    std::vector<float> minima = decode_minima(bytes, K, *format);
    minima.resize(v.size(), 0);
    for (const Isa isa : levels()) {
      const auto y = OneOp(op_rows_linear, {x, w}, 9, {}, 0, 1).run(2, isa),
                 dx = OneOp(op_rows_product, {dy, w}, 9, {}, 0, 1).run(2, isa);
      // Kernels may round x as they serve: to bf16 beside bf16, a part in 512 of each number; to 8 bits a
      // group or row beside fewer bits, a part in 254 of its largest. Those of f32 and f16 do not.
      const double rounding = *format == Format::bf16() ? 0x1p-9
                              : format->plain()         ? 256 * 0x1p-24
                                                        : 1.0 / 254;
      double worst = 0, worst_back = 0;
      for (int64_t t = 0; t < T; ++t) {
        for (int64_t n = 0; n < N; ++n) {
          double sum = 0, size = 0, largest = 0, weights = 0;
          for (int64_t k = 0; k < K; ++k) {
            const double a = x.values<float>()[static_cast<size_t>(t * K + k)],
                         b = v[static_cast<size_t>(n * K + k)];
            const double least = minima[static_cast<size_t>(n * K + k)];
            sum += a * b, size += std::abs(a * b), weights += std::abs(b - least) + std::abs(least);
            largest = std::max(largest, std::abs(a));
          }
          const double bound = rounding * (format->plain() ? size : largest * weights);
          worst =
              std::max(worst, std::abs(sum - y[0].values<float>()[static_cast<size_t>(t * N + n)]) / bound);
        }
        for (int64_t k = 0; k < K; ++k) {
          double sum = 0;
          for (int64_t n = 0; n < N; ++n)
            sum += static_cast<double>(dy.values<float>()[static_cast<size_t>(t * N + n)]) *
                   v[static_cast<size_t>(n * K + k)];
          worst_back =
              std::max(worst_back, std::abs(sum - dx[0].values<float>()[static_cast<size_t>(t * K + k)]));
        }
      }
      INFO(isa_name(isa));
      CHECK(worst < 1);
      CHECK(worst_back < 48 * 0x1p-24 * 16);
    }
    const auto rows = OneOp(op_table_rows, {w, i32({3, 47, 3})}, 9, {{"scale", 2.0}}, 0, 0).run();
    for (int64_t k = 0; k < K; ++k) {
      CHECK(rows[0].values<float>()[static_cast<size_t>(k)] == 2 * v[static_cast<size_t>(3 * K + k)]);
      CHECK(rows[0].values<float>()[static_cast<size_t>(K + k)] == 2 * v[static_cast<size_t>(47 * K + k)]);
    }
    CHECK_FALSE(OneOp(op_table_rows, {w, i32({48})}, 9, {}, 0, 0).try_run().ok());
  }
}

TEST_CASE("products of a layer's way back: of f32, and of two bf16 with f32 sums") {
  for (const auto& [T, N, K] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{{1, 1, 1},
                                                                                  {2, 17, 5},
                                                                                  {37, 33, 16},
                                                                                  {64, 32, 48},
                                                                                  {65, 100, 31},
                                                                                  {33, 70, 90},
                                                                                  {100, 300, 16},
                                                                                  {1025, 17, 33}}) {
    for (const bool narrow : {false, true}) {
      const auto numbers = [&](int64_t rows, int64_t cols, uint32_t seed) {
        const Tensor wide = f32({rows, cols}, random_values(static_cast<size_t>(rows * cols), seed));
        if (!narrow) return wide;
        Tensor t = Tensor::allocate({rows, cols}, Format::bf16()).value();
        for (size_t i = 0; i < static_cast<size_t>(rows * cols); ++i)
          static_cast<bf16*>(t.mutable_data())[i] = to_bf16(wide.values<float>()[i]);
        return t;
      };
      const Tensor dy = numbers(T, N, 1), x = numbers(T, K, 2), w = numbers(N, K, 3);
      const Tensor dy32 = to_f32(dy).value(), x32 = to_f32(x).value(), w32 = to_f32(w).value();
      const auto product = [](const Tensor& a, bool a_turned, const Tensor& b, int64_t rows, int64_t terms,
                              int64_t cols) {
        std::vector<double> out;
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < cols; ++c) {
            double sum = 0;
            for (int64_t t = 0; t < terms; ++t)
              sum += static_cast<double>(
                         a.values<float>()[static_cast<size_t>(a_turned ? t * rows + r : r * terms + t)]) *
                     b.values<float>()[static_cast<size_t>(t * cols + c)];
            out.push_back(sum);
          }
        return out;
      };
      const auto dw = product(dy32, true, x32, N, T, K), dx = product(dy32, false, w32, T, N, K);
      std::vector<Tensor> first;
      for (const auto& [isa, threads] : runs()) {
        if (threads == 1) first.clear();
        INFO(isa_name(isa) << ", threads " << threads);
        INFO(T << " x " << N << " x " << K << (narrow ? " bf16" : " f32"));
        const auto got = OneOp(op_rows_gradient, {dy, x}, 9, {}).run(threads, isa),
                   back = OneOp(op_rows_product, {dy, w}, 9, {}).run(threads, isa);
        CHECK(farthest(got[0], dw) <= 0x1p-23 * 16 * static_cast<double>(T));
        CHECK(farthest(back[0], dx) <= 0x1p-23 * 16 * static_cast<double>(N));
        if (first.empty()) first = {got[0], back[0]};
        CHECK(same_bits(got[0], first[0]));
        CHECK(same_bits(back[0], first[1]));
      }
    }
  }
}

TEST_CASE("a layer of f32 there: slice by slice, of rows in f32 and in bf16, with its bias") {
  for (const auto& [T, N, K] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {3, 2100, 9}, {17, 33, 50}, {2, 16, 40}, {1025, 17, 9}}) {
    const Tensor w = f32({N, K}, random_values(static_cast<size_t>(N * K), 1)),
                 bias = f32({N}, random_values(static_cast<size_t>(N), 2)),
                 x = f32({T, K}, random_values(static_cast<size_t>(T * K), 3));
    Tensor x16 = Tensor::allocate({T, K}, Format::bf16()).value();
    for (size_t i = 0; i < static_cast<size_t>(T * K); ++i)
      static_cast<bf16*>(x16.mutable_data())[i] = to_bf16(x.values<float>()[i]);
    for (const bool narrow : {false, true}) {
      std::vector<Tensor> first;
      for (const auto& [isa, threads] : runs()) {
        if (threads == 1) first.clear();
        INFO(isa_name(isa) << ", threads " << threads);
        INFO(T << " x " << N << " x " << K << (narrow ? " bf16" : " f32"));
        const auto y = OneOp(op_rows_linear, {narrow ? x16 : x, w, bias}, 9, {}).run(threads, isa);
        // A weight beside rows in bf16 is rounded to it.
        const auto number = [&](const Tensor& t, int64_t i) {
          const float v = t.values<float>()[static_cast<size_t>(i)];
          return static_cast<double>(narrow ? to_f32(to_bf16(v)) : v);
        };
        double worst = 0;
        for (int64_t t = 0; t < T; ++t)
          for (int64_t n = 0; n < N; ++n) {
            double sum = static_cast<double>(bias.values<float>()[static_cast<size_t>(n)]);
            for (int64_t k = 0; k < K; ++k) sum += number(x, t * K + k) * number(w, n * K + k);
            worst = std::max(
                worst,
                std::abs(sum - static_cast<double>(y[0].values<float>()[static_cast<size_t>(t * N + n)])));
          }
        CHECK(worst <= 0x1p-23 * 16 * static_cast<double>(K));
        if (first.empty()) first = y;
        CHECK(same_bits(y[0], first[0]));
      }
    }
  }
}

TEST_CASE("a layer and its adapter at once: forwards and back those of products in double") {
  for (const auto& [T, N, K, r] :
       std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t>>{{1, 1, 1, 1},
                                                                   {2, 17, 5, 3},
                                                                   {37, 33, 16, 4},
                                                                   {64, 32, 48, 16},
                                                                   {65, 100, 31, 17},
                                                                   {1025, 9, 17, 2}}) {
    for (const bool narrow : {false, true}) {
      const auto numbers = [&](int64_t rows, int64_t cols, uint32_t seed) {
        const Tensor wide = f32({rows, cols}, random_values(static_cast<size_t>(rows * cols), seed));
        if (!narrow) return wide;
        Tensor t = Tensor::allocate({rows, cols}, Format::bf16()).value();
        for (size_t i = 0; i < static_cast<size_t>(rows * cols); ++i)
          static_cast<bf16*>(t.mutable_data())[i] = to_bf16(wide.values<float>()[i]);
        return t;
      };
      const Tensor x = numbers(T, K, 1), w = numbers(N, K, 2), a = numbers(r, K, 3), b = numbers(N, r, 4),
                   dy = numbers(T, N, 5), bias = f32({N}, random_values(static_cast<size_t>(N), 6));
      using Matrix = std::vector<double>;
      const auto wide = [](const Tensor& t) {
        const Tensor v = to_f32(t).value();
        return Matrix(v.values<float>().begin(), v.values<float>().end());
      };
      // out (rows, cols) = l (rows, terms) . m, where m is (terms, cols) or turned (cols, terms)
      const auto product = [](const Matrix& l, const Matrix& m, bool turned, int64_t rows, int64_t terms,
                              int64_t cols) {
        Matrix out(static_cast<size_t>(rows * cols), 0);
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 0; j < cols; ++j)
            for (int64_t k = 0; k < terms; ++k)
              out[static_cast<size_t>(i * cols + j)] +=
                  l[static_cast<size_t>(i * terms + k)] *
                  m[static_cast<size_t>(turned ? j * terms + k : k * cols + j)];
        return out;
      };
      const double factor = 0.5;
      Matrix low = product(wide(x), wide(a), true, T, K, r),
             back = product(wide(dy), wide(b), false, T, N, r);
      for (Matrix* m : {&low, &back})
        for (double& v : *m) v *= factor;
      Matrix y = product(wide(x), wide(w), true, T, K, N), up = product(low, wide(b), true, T, r, N);
      Matrix dx = product(wide(dy), wide(w), false, T, N, K), down = product(back, wide(a), false, T, r, K);
      for (size_t i = 0; i < y.size(); ++i)
        y[i] += up[i] + static_cast<double>(bias.values<float>()[i % static_cast<size_t>(N)]);
      for (size_t i = 0; i < dx.size(); ++i) dx[i] += down[i];
      // Sums in f32; of bf16 `low` is rounded to 2^-9 of its size before the second product.
      const auto close = [&](const Tensor& got, const Matrix& want, int64_t terms, double rounded) {
        REQUIRE(static_cast<size_t>(got.numel()) == want.size());
        const double most = 0x1p-23 * 16 * static_cast<double>(terms) + (narrow ? rounded : 0);
        CHECK(farthest(got, want) <= most);
      };
      const auto largest = [](const Matrix& m) {
        double most = 0;
        for (const double v : m) most = std::max(most, std::abs(v));
        return most;
      };
      std::vector<Tensor> first;
      for (const auto& [isa, threads] : runs()) {
        if (threads == 1) first.clear();
        INFO(isa_name(isa) << ", threads " << threads);
        INFO(T << " x " << N << " x " << K << ", rank " << r << (narrow ? " bf16" : " f32"));
        const Attrs attrs{{"factor", factor}};
        auto got = OneOp(op_lora_linear, {x, w, bias, a, b}, 9, attrs).run(threads, isa);
        const auto there = OneOp(op_lora_back, {dy, w, a, b}, 9, attrs).run(threads, isa);
        const auto alone = OneOp(op_lora_back, {dy, w, a, b}, 9, attrs, 1).run(threads, isa);
        CHECK(same_bits(alone[0], there[0]));
        const double one = 0x1p-9 * static_cast<double>(r);
        close(got[0], y, K + r, one * largest(low) * largest(wide(b)));
        close(got[1], low, K, 0);
        close(there[0], back, N, 0);
        close(there[1], dx, N + r, one * largest(back) * largest(wide(a)));
        got.insert(got.end(), there.begin(), there.end());
        if (first.empty()) first = got;
        for (size_t k = 0; k < got.size(); ++k) CHECK(same_bits(got[k], first[k]));
        // A row does not depend on those beside it.
        if (T < 2) continue;
        const auto single = OneOp(op_lora_linear, {x.slice(1, 2), w, bias, a, b}, 9, attrs).run(threads, isa);
        CHECK(same_bits(single[0], got[0].slice(1, 2)));
      }
    }
  }
}

TEST_CASE("adapters are computed with their layers, but where what they read is dropped in part") {
  for (const double dropout : {0.0, 0.1}) {
    const TinyGolden golden = load_tiny_golden("llama3");
    const Checkpoint c = load_checkpoint(write_tiny_model(golden, TinyDtype::f32)).value();
    GraphOptions o;
    o.tokens = 16;
    o.lora.targets = {"all"}, o.lora.dropout = dropout;
    const ModelGraphs graphs = build_model_graphs(c, read_model_config(c.config).value(), o).value();
    const auto count = [&](const OpDef& op) {
      return static_cast<size_t>(std::count_if(graphs.step->nodes().begin(), graphs.step->nodes().end(),
                                               [&](const Node& n) { return n.op == &op; }));
    };
    CHECK(count(op_lora_linear) == (dropout > 0 ? 0 : graphs.parameters.size() / 2));
    CHECK(count(op_lora_back) == count(op_lora_linear));
  }
}

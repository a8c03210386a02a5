// Products of training with plain and stored matrices, and with adapters, there and back.

#include "tests/kernels/matmul_problem.h"
#include "tests/support/sample.h"
#include "tests/train/one_op.h"

using namespace oar;
using namespace oar::train;
using namespace oar_test;

namespace {

// All that hold weights: no plain integers, doubles or unscaled bytes.
std::vector<Format> stored_formats() {
  std::vector<Format> out;
  for (const FormatInfo* info : all_formats()) {
    const Format format(info);
    const bool number =
        format.plain() && (!dtype_is_float(format.dtype()) || dtype_bits(format.dtype()) == 8 ||
                           dtype_bits(format.dtype()) == 64);
    if (!number) out.push_back(format);
  }
  return out;
}

// Rows (T, terms) times w (terms, cols), or its transpose (cols, terms).
Sums exact(const Tensor& rows, const std::vector<float>& w, bool turned) {
  const int64_t T = rows.shape()[0], terms = rows.shape()[1], cols = static_cast<int64_t>(w.size()) / terms;
  Sums out;
  for (int64_t t = 0; t < T; ++t) {
    const float* const row = rows.values<float>().data() + t * terms;
    for (int64_t c = 0; c < cols; ++c) {
      const float* const column = w.data() + (turned ? c * terms : c);
      double sum = 0, size = 0;
      for (int64_t k = 0; k < terms; ++k) {
        const double product = static_cast<double>(row[k]) * column[turned ? k : k * cols];
        sum += product, size += std::abs(product);
      }
      out.sums.push_back(sum), out.sizes.push_back(size);
    }
  }
  return out;
}

Tensor in_bf16(const Tensor& wide) {
  Tensor t = Tensor::allocate(wide.shape(), Format::bf16()).value();
  Format::bf16().encode_row(wide.values<float>().data(), wide.numel(), t.mutable_data());
  return t;
}

}  // namespace

TEST_CASE("products with stored matrices, forwards and back, are those with the numbers they stand for") {
  const std::vector<Format> formats = stored_formats();
  REQUIRE(formats.size() >= 38);
  oar_test::Sample sample(7);
  // K: what is at least that and whole blocks. Around tiles of 6, 16 and 32 rows, and of panels of 16
  // columns.
  for (const auto& [T, N, at_least] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {1, 17, 1}, {5, 48, 256}, {31, 15, 1}, {32, 16, 33}, {33, 31, 300}, {1025, 9, 1}}) {
    for (const Format format : formats) {
      if (!sample.take()) continue;
      const int64_t block = format.block_elems(), K = (at_least + block - 1) / block * block;
      INFO(format.name() << " " << T << " x " << N << " x " << K);
      const Tensor x = f32({T, K}, random_values(static_cast<size_t>(T * K), 1)),
                   dy = f32({T, N}, random_values(static_cast<size_t>(T * N), 2)), dy16 = in_bf16(dy);
      const auto bytes = encode(random_values(static_cast<size_t>(N * K), 3), K, format);
      Tensor w = Tensor::allocate({N, K}, format).value();
      REQUIRE(w.bytes() == bytes.size());
      std::memcpy(w.mutable_data(), bytes.data(), bytes.size());
      const std::vector<float> v = decode(bytes, K, format);
      Sums there = exact(x, v, true);
      const Sums back = exact(dy, v, false), narrow = exact(to_f32(dy16).value(), v, false);
      // Kernels may round x as they serve: to bf16 beside bf16, a part in 256 of each number; to 8 bits a
      // group or row beside fewer bits, a part in 254 of its largest, and then they may round weights as
      // much. In sums of many terms half of these is left. Those of f32 and f16 do not.
      const double many = K < 256 ? 1 : 0.5;
      const double rounding = format == Format::bf16() ? many * 0x1p-8
                              : format.plain()         ? 256 * 0x1p-24
                                                       : many / 127;
      if (!format.plain()) {
        // They also round what blocks' minima add apart from the rest.
        std::vector<float> minima = decode_minima(bytes, K, format);
        minima.resize(v.size(), 0);
        for (int64_t n = 0; n < N; ++n) {
          double weights = 0;
          for (int64_t k = n * K; k < (n + 1) * K; ++k) {
            const double least = minima[static_cast<size_t>(k)];
            weights += std::abs(v[static_cast<size_t>(k)] - least) + std::abs(least);
          }
          for (int64_t t = 0; t < T; ++t) {
            const auto row = x.values<float>().subspan(static_cast<size_t>(t * K), static_cast<size_t>(K));
            double largest = 0;
            for (const float a : row) largest = std::max(largest, std::abs(static_cast<double>(a)));
            there.sizes[static_cast<size_t>(t * N + n)] = largest * weights;
          }
        }
      }
      const double sums = 0x1p-24 * std::min(static_cast<double>(N + 8), 24.0);
      std::vector<Tensor> first;
      for (const auto& [isa, threads] : runs()) {
        if (threads == 1) first.clear();
        if (threads > 1 && T < 33) continue;  // few rows are one thread's anyway
        INFO(isa_name(isa) << ", threads " << threads);
        const auto y = OneOp(op_rows_linear, {x, w}, 9, {}, 0, 1).run(threads, isa),
                   dx = OneOp(op_rows_product, {dy, w}, 9, {}, 0, 1).run(threads, isa),
                   dx16 = OneOp(op_rows_product, {dy16, w}, 9, {}, 0, 1).run(threads, isa);
        CHECK(in_bounds(y[0], there, rounding) < 1);
        CHECK(in_bounds(dx[0], back, sums) < 1);
        // Beside rows of bf16 the matrix may be rounded to it.
        CHECK(in_bounds(dx16[0], narrow, 0x1p-8 + sums) < 1);
        if (first.empty()) first = {y[0], dx[0], dx16[0]};
        CHECK(same_bits(y[0], first[0]));
        CHECK(same_bits(dx[0], first[1]));
        CHECK(same_bits(dx16[0], first[2]));
      }
    }
  }
}

TEST_CASE("rows of a table are what is stored, times its factor, in every format, for any number of ids") {
  const int64_t N = 48;
  for (const Format format : stored_formats()) {
    const int64_t block = format.block_elems(), K = block > 1 ? block : 33;
    INFO(format.name());
    const auto bytes = encode(random_values(static_cast<size_t>(N * K), 3), K, format);
    Tensor w = Tensor::allocate({N, K}, format).value();
    REQUIRE(w.bytes() == bytes.size());
    std::memcpy(w.mutable_data(), bytes.data(), bytes.size());
    const std::vector<float> v = decode(bytes, K, format);
    for (const int64_t T : {1, 3, 33, 2049}) {
      std::vector<int32_t> ids;
      for (int64_t t = 0; t < T; ++t) ids.push_back(static_cast<int32_t>((t * 7 + 47) % N));
      const auto rows = OneOp(op_table_rows, {w, i32(ids)}, 9, {{"scale", 2.0}}, 0, 0).run(T > 3 ? 3 : 1);
      REQUIRE(rows[0].shape() == Shape{T, K});
      size_t wrong = 0;
      for (int64_t t = 0; t < T; ++t)
        for (int64_t k = 0; k < K; ++k)
          wrong += rows[0].values<float>()[static_cast<size_t>(t * K + k)] !=
                   2 * v[static_cast<size_t>(ids[static_cast<size_t>(t)] * K + k)];
      CHECK(wrong == 0);
    }
    for (const int32_t outside : {48, -1})
      CHECK_FALSE(OneOp(op_table_rows, {w, i32({outside})}, 9, {}, 0, 0).try_run().ok());
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

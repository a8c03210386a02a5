// Every matmul kernel this machine can run against double-precision sums computed here, and the promises of
// kernels/kernel.h: no access past an operand, values independent of batch, segments, chunks and workers.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "kernels/activation.h"
#include "tests/kernels/matmul_problem.h"
#include "tests/support/sample.h"

using namespace oar;
using namespace oar_test;

namespace {

const char* const kFormats[] = {
    "f32",    "f16",          "bf16",         "q8_0",      "q4_0",     "q5_1",      "i8_g128", "i8_channel",
    "i4_g64", "u4_g64",       "u4_g128",      "w4a8_g128", "w4a8_g32", "i4_s8_g32", "nvfp4",   "q4_1",
    "q5_0",   "iq4_nl",       "mxfp4",        "q2_k",      "q3_k",     "q4_k",      "q5_k",    "q6_k",
    "iq4_xs", "e4m3_channel", "e5m2_channel", "e4m3_g128", "e5m2_g128"};

struct Shape {
  int64_t T, K;
  std::vector<int64_t> n;
};

struct Problem {
  Shape shape;
  Format format;
  Isa isa;
  const Kernel* kernel;
  std::vector<std::vector<float>> w;       // as the format stores them
  std::vector<std::vector<float>> minima;  // decode_minima's
  std::vector<Weight> weights;
  Guarded<float> x, bias, residual, out;
  std::vector<MatmulSegment> segments;
  int64_t ldx, ldo;
  MatmulArgs args;

  Problem(Format f, Isa level, Shape s, Values values, bool with_bias, bool with_residual, uint32_t seed = 1)
      : shape(std::move(s)), format(f), isa(level) {
    kernel = KernelRegistry::cpu().find({KernelFamily::kMatmul, format}, isa);
    REQUIRE(kernel != nullptr);
    const int64_t T = shape.T, K = shape.K;
    int64_t rows = 0;
    for (int64_t n : shape.n) {
      weights.emplace_back(random_values(static_cast<size_t>(n * K), values, seed + 10), format, isa, n, K);
      w.push_back(decode(weights.back().row_major, K, format));
      minima.push_back(decode_minima(weights.back().row_major, K, format));
      rows += n;
      ++seed;
    }
    ldx = K + 3;
    ldo = rows + 5;
    // The last row ends at the guard, without the padding up to ld.
    x = Guarded<float>(static_cast<size_t>((T - 1) * ldx + K));
    std::ranges::copy(random_values(x.size(), values, seed + 20), x.begin());
    out = Guarded<float>(static_cast<size_t>((T - 1) * ldo + rows));
    std::ranges::fill(out, -7.f);
    if (with_bias) {
      bias = Guarded<float>(static_cast<size_t>(rows));
      std::ranges::copy(random_values(bias.size(), values, seed + 30), bias.begin());
    }
    if (with_residual) {
      residual = Guarded<float>(out.size());
      std::ranges::copy(random_values(residual.size(), values, seed + 40), residual.begin());
    }
    int64_t col = 0;
    for (size_t i = 0; i < shape.n.size(); ++i) {
      segments.push_back({weights[i].for_kernel, with_bias ? bias.data() + col : nullptr, shape.n[i], col});
      col += shape.n[i];
    }
    args.out = out.data();
    args.x = x.data();
    args.residual = with_residual ? residual.data() : nullptr;
    args.segments = segments.data();
    args.num_segments = static_cast<int64_t>(segments.size());
    args.T = T;
    args.K = K;
    args.ldx = ldx;
    args.ldo = ldo;
    args.format = format;
  }

  std::string describe() const {
    std::string s =
        std::string(kernel->name) + " T=" + std::to_string(shape.T) + " K=" + std::to_string(shape.K) + " n=";
    for (int64_t n : shape.n) s += std::to_string(n) + " ";
    return s;
  }

  // What the kernel may lose of one output by rounding its operands. bf16 has 8 significant bits, so to
  // nearest is within 2^-8; 8-bit floats under a scale are rounded to it as well. The integer kernels round
  // the activations of 256 k to half a step of absmax / 127 (a little more: the quotient is rounded too) and
  // the weights as int8_panel.h and int4_panel.h say: to half a step of absmax / 127, and to a step of the
  // codebook's units, 8 / 127 of the largest scale when it is linear and the largest weight has seven or more
  // of these; K-quants are read as they are, w4a8's bytes are taken so.
  double operand_error(const float* wr, const float* xr) const {
    const std::string_view name = kernel->name, layout = weight_layout(format, isa).name;
    const int64_t K = shape.K;
    double error = 0;
    const bool f8 = name.starts_with("matmul.e4m3_") || name.starts_with("matmul.e5m2_");
    if ((f8 || name.starts_with("matmul.bf16.")) && (name.ends_with("vnni") || name.ends_with("amx"))) {
      const double both = name.find("_g128.") != name.npos ? 2.01 : 1;
      for (int64_t k = 0; k < K; ++k) error += std::abs(double{wr[k]} * xr[k]) * std::ldexp(both, -8);
    } else if (layout != "row-major" || name.find("_k.") != name.npos || name.starts_with("matmul.iq4_xs.")) {
      for (int64_t b = 0; b < K; b += 256) {
        const int64_t end = std::min(K, b + 256);
        double x_most = 0, w_most = 0;
        for (int64_t k = b; k < end; ++k) {
          x_most = std::max<double>(x_most, std::abs(xr[k]));
          w_most = std::max<double>(w_most, std::abs(wr[k]));
        }
        const double dx = x_most / 127 * 0.50001;
        const double dw = layout == "row-major" || format.name() == std::string("i8_channel") ||
                                  name.find("w4a8") != name.npos
                              ? 0
                          : layout.starts_with("int4") ? w_most * table_step() * 1.00001
                                                       : w_most / 127 * 0.50001;
        for (int64_t k = b; k < end; ++k) error += std::abs(wr[k]) * dx + dw * (std::abs(xr[k]) + dx);
      }
    }
    return error;
  }

  // A step of int4.panel16 relative to the block's largest weight: mxfp4's has 4 * 16 steps at least; of
  // random iq4_nl levels the largest is no smaller than 65 but for a chance of (9/16)^32. 1.21 of
  // int4z.panel16's, where random groups use all sixteen levels: the largest weight has seven and a half
  // scales. What int4_groups.h says for its layouts, where the mean of the levels is at most their largest.
  double table_step() const {
    const std::string_view name = format.name(), layout = weight_layout(format, isa).name;
    if (layout == "int4z.panel16") return 1.21 * 16 / 255 / 7.5;
    if (layout.starts_with("int4z.g")) return 11.75 / 255 / 7.5;
    if (layout.starts_with("int4.g")) return 4. / 127 / 7;
    if (name == "iq4_nl") return 128. / 127 / 65;
    return name == "mxfp4" ? 1. / 16 / 4 : 8. / 127 / 7;
  }

  // Compares `out` with sums in double; `before` holds what residual was when it is out itself.
  void check(const std::vector<float>& before = {}) const {
    INFO(describe());
    const int64_t K = shape.K;
    int64_t col = 0, wrong = 0;
    for (size_t s = 0; s < shape.n.size(); ++s) {
      for (int64_t n = 0; n < shape.n[s]; ++n, ++col) {
        const float* wr = w[s].data() + n * K;
        for (int64_t t = 0; t < shape.T; ++t) {
          const float* xr = x.data() + t * ldx;
          double sum = 0, magnitude = 0;
          for (int64_t k = 0; k < K; ++k) {
            sum += double{wr[k]} * xr[k];
            magnitude += std::abs(double{wr[k]} * xr[k]);
            if (!minima[s].empty()) {
              magnitude += 2 * std::abs(double{minima[s][static_cast<size_t>(n * K + k)]} * xr[k]);
            }
          }
          const size_t at = static_cast<size_t>(t * ldo + col);
          const double b = bias.size() != 0 ? bias[static_cast<size_t>(col)] : 0;
          const double r = !before.empty() ? before[at] : residual.size() != 0 ? residual[at] : 0;
          const double bound =
              float_sum_bound(K, magnitude + std::abs(b) + std::abs(r)) * 1.01 + operand_error(wr, xr) * 1.01;
          const double error = std::abs(out[at] - (sum + b + r));
          if (!(error <= bound) && ++wrong < 5) {
            UNSCOPED_INFO("t " << t << " column " << col << ": " << out[at] << " instead of " << sum + b + r
                               << ", bound " << bound);
          }
        }
      }
    }
    CHECK(wrong == 0);
    // Nothing outside [T, rows] was written.
    for (int64_t t = 0; t + 1 < shape.T; ++t) {
      for (int64_t c = col; c < ldo; ++c) CHECK(out[static_cast<size_t>(t * ldo + c)] == -7.f);
    }
  }
};

bool storable(Format format, int64_t K) {
  return K % format.block_elems() == 0 &&
         (format.info().encode != nullptr || random_blocks(format) != nullptr);
}

// Calls fn(format, isa) for each distinct kernel.
template <class F>
void for_each_kernel(F&& fn) {
  for (const char* name : kFormats) {
    const Format format = *Format::find(name);
    for (Isa isa : levels()) {
      if (KernelRegistry::cpu().find({KernelFamily::kMatmul, format}, isa)->isa == isa) fn(format, isa);
    }
  }
}

bool same_float_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

}  // namespace

TEST_CASE("matmul: sizes around every tile edge") {
  ThreadPool pool({.threads = 3});
  Sample sample(13);
  for_each_kernel([&](Format format, Isa isa) {
    for (int64_t K : {1, 7, 31, 32, 33, 64, 96, 172, 256, 2048, 2080}) {
      if (!storable(format, K)) continue;
      for (int64_t T : {1, 2, 5, 7, 16, 17, 33}) {
        for (int64_t n : {1, 3, 15, 16, 17, 33, 65}) {
          if (K * T * n > 400'000 && n != 33) continue;  // the large corner once
          if (!sample.take()) continue;
          Problem p(format, isa, {T, K, {n}}, Values::kNormal, false, false);
          run_on_pool(pool, *p.kernel, &p.args);
          p.check();
        }
      }
    }
  });
}

TEST_CASE("matmul: small integers are exact in the float kernels") {
  ThreadPool pool({.threads = 2});
  for_each_kernel([&](Format format, Isa isa) {
    if (!format.plain()) return;  // block formats round the weights or the activations
    for (int64_t K : {1, 33, 172, 512, 4096}) {
      for (int64_t T : {1, 4, 6, 13, 35}) {
        Problem p(format, isa, {T, K, {37, 16}}, Values::kIntegers, true, true);
        run_on_pool(pool, *p.kernel, &p.args);
        INFO(p.describe());
        int64_t wrong = 0, col = 0;
        for (size_t s = 0; s < p.w.size(); ++s) {
          for (int64_t n = 0; n < p.shape.n[s]; ++n, ++col) {
            for (int64_t t = 0; t < T; ++t) {
              double sum = 0;
              for (int64_t k = 0; k < K; ++k)
                sum +=
                    double{p.w[s][static_cast<size_t>(n * K + k)]} * p.x[static_cast<size_t>(t * p.ldx + k)];
              const size_t at = static_cast<size_t>(t * p.ldo + col);
              wrong +=
                  p.out[at] != static_cast<float>(sum + p.bias[static_cast<size_t>(col)] + p.residual[at]);
            }
          }
        }
        CHECK(wrong == 0);
      }
    }
  });
}

TEST_CASE("matmul: segments, bias and residual, also in place") {
  Sample sample;
  for (int workers = 1; workers <= 5; ++workers) {
    ThreadPool pool({.threads = workers});
    for_each_kernel([&](Format format, Isa isa) {
      const int64_t K = 256;
      for (int64_t T : {1, 19}) {
        if (!sample.take()) continue;
        Problem p(format, isa, {T, K, {64, 17, 1, 130}}, Values::kNormal, true, true);
        run_on_pool(pool, *p.kernel, &p.args);
        p.check();
        // Residual is the output itself: the same bits.
        const std::vector<float> separate(p.out.begin(), p.out.end());
        for (int64_t t = 0; t < T; ++t) {
          std::copy_n(p.residual.data() + t * p.ldo, p.ldo - 5, p.out.data() + t * p.ldo);
        }
        p.args.residual = p.out.data();
        run_on_pool(pool, *p.kernel, &p.args);
        INFO(p.describe() << workers << " workers");
        CHECK(std::equal(separate.begin(), separate.end(), p.out.begin(), same_float_bits));
      }
    });
  }
}

TEST_CASE("matmul: a row's value does not depend on the batch, the segments, the chunks or the workers") {
  Sample kernels(3), sample;
  for_each_kernel([&](Format format, Isa isa) {
    for (int64_t K : {256, 1280}) {
      if (!kernels.take()) continue;
      const int64_t most = 70;
      Problem all(format, isa, {most, K, {83}}, Values::kNormal, true, false);
      run_in_steps(*all.kernel, &all.args, 1, false);
      INFO(all.describe());
      const std::vector<float> truth(all.out.begin(), all.out.end());
      const auto check_rows = [&](const char* what, int64_t first, int64_t count) {
        int64_t different = 0;
        for (int64_t t = 0; t < count; ++t) {
          for (int64_t n = 0; n < 83; ++n) {
            different += !same_float_bits(all.out[static_cast<size_t>(t * all.ldo + n)],
                                          truth[static_cast<size_t>((first + t) * all.ldo + n)]);
          }
        }
        INFO(what << ", rows " << first << " + " << count);
        CHECK(different == 0);
      };
      // Any run of rows alone.
      for (int64_t count : {1, 2, 3, 4, 5, 6, 7, 8, 12, 15, 16, 17, 31, 32, 33, 48, 64, 69}) {
        for (int64_t first : {int64_t{0}, int64_t{1}, most - count}) {
          if (!sample.take()) continue;
          MatmulArgs a = all.args;
          a.x = all.args.x + first * all.ldx;
          a.T = count;
          run_in_steps(*all.kernel, &a, 1000, false);
          check_rows("batch", first, count);
        }
      }
      // Chunks in other groups and in the opposite order.
      for (int64_t step : {1, 2, 5}) {
        if (!sample.take()) continue;
        run_in_steps(*all.kernel, &all.args, step, true);
        check_rows("chunks", 0, most);
      }
      for (int workers = 1; workers <= 5; ++workers) {
        if (!sample.take()) continue;
        ThreadPool pool({.threads = workers});
        run_on_pool(pool, *all.kernel, &all.args);
        check_rows("workers", 0, most);
      }
      // The same weight as one of several segments, and after a longer one.
      Problem more(format, isa, {3, K, {83, 200}}, Values::kNormal, true, false);
      std::copy_n(all.x.data(), more.x.size(), more.x.data());
      const MatmulSegment one{all.segments[0].w, all.segments[0].bias, 83, 200};
      const MatmulSegment swapped[] = {{more.segments[1].w, more.segments[1].bias, 200, 0}, one};
      more.args.segments = swapped;
      run_in_steps(*all.kernel, &more.args, 2, false);
      int64_t different = 0;
      for (int64_t t = 0; t < 3; ++t) {
        for (int64_t n = 0; n < 83; ++n) {
          different += !same_float_bits(more.out[static_cast<size_t>(t * more.ldo + 200 + n)],
                                        truth[static_cast<size_t>(t * all.ldo + n)]);
        }
      }
      CHECK(different == 0);
    }
  });
}

TEST_CASE("matmul: a row of a long prompt has the value it has alone") {
  ThreadPool pool({.threads = 3});
  Sample sample(11);
  for_each_kernel([&](Format format, Isa isa) {
    for (int64_t K : {172, 512, 544, 2080, 4160}) {
      for (int64_t most : {129, 545}) {
        if (!storable(format, K) || (most == 545 && K > 2080)) continue;
        if (!sample.take()) continue;
        const int64_t n = 150;
        Problem all(format, isa, {most, K, {n}}, Values::kNormal, true, true);
        run_on_pool(pool, *all.kernel, &all.args);
        INFO(all.describe());
        int64_t different = 0;
        for (int64_t t : {0, 15, 16, 31, 32, 63, 127, 128, 255, 256, 511, 512, 513, 527, 528, 544}) {
          if (t >= most) continue;
          std::vector<float> row(static_cast<size_t>(all.ldo));
          MatmulArgs a = all.args;
          a.x = all.args.x + t * all.ldx;
          a.residual = all.args.residual + t * all.ldo;
          a.out = row.data();
          a.T = 1;
          run_in_steps(*all.kernel, &a, 1000, false);
          for (int64_t c = 0; c < n; ++c) {
            different +=
                !same_float_bits(row[static_cast<size_t>(c)], all.out[static_cast<size_t>(t * all.ldo + c)]);
          }
        }
        CHECK(different == 0);
      }
    }
  });
}

// Where they read the same layout, or numbers that both hold exactly.
TEST_CASE("matmul: integer kernels of all instruction sets give the same bits") {
  ThreadPool pool({.threads = 2});
  std::mt19937 gen(17);
  Sample sample;
  for (const char* name : kFormats) {
    const Format format = *Format::find(name);
    if (weight_layout(format, Isa::kGeneric).in_place) continue;
    for (int round = 0; round < 40; ++round) {
      if (!sample.take()) continue;
      const int64_t T = 1 + static_cast<int64_t>(gen() % 3 == 0 ? gen() % 50 : gen() % 9);
      const int64_t K = (1 + static_cast<int64_t>(gen() % 20)) * std::max(format.block_elems(), 32);
      const int64_t n = 1 + static_cast<int64_t>(gen() % 100);
      const bool exact = std::string_view(name).starts_with("w4a8_");
      std::map<std::string_view, std::vector<float>> first_of;  // layout
      for (Isa isa : levels()) {
        Problem p(format, isa, {T, K, {n}}, Values::kNormal, true, true, static_cast<uint32_t>(round));
        run_on_pool(pool, *p.kernel, &p.args);
        std::vector<float>& first = first_of[exact ? "" : weight_layout(format, isa).name];
        if (first.empty()) first.assign(p.out.begin(), p.out.end());
        INFO(p.describe());
        CHECK(std::equal(first.begin(), first.end(), p.out.begin(), same_float_bits));
      }
      // Those that stand beside a level too: of equals, only the first is found.
      Problem p(format, Isa::kGeneric, {T, K, {n}}, Values::kNormal, true, true,
                static_cast<uint32_t>(round));
      for (const Kernel* k : KernelRegistry::cpu().all()) {
        if (k->family != KernelFamily::kMatmul || k->format != format) continue;
        if (k->isa == Isa::kReference || k->isa > best_isa()) continue;
        const std::string_view layout = weight_layout(format, Isa::kGeneric).name;
        if (layout != weight_layout(format, k->isa).name) continue;
        const std::vector<float>& first = first_of[exact ? "" : layout];
        p.kernel = k;
        std::ranges::fill(p.out, -7.f);
        run_on_pool(pool, *k, &p.args);
        INFO(p.describe());
        CHECK(std::equal(first.begin(), first.end(), p.out.begin(), same_float_bits));
      }
    }
  }
}

TEST_CASE("matmul: every 8-bit float is itself, and those that are no number reach their row") {
  ThreadPool pool({.threads = 2});
  for_each_kernel([&](Format format, Isa isa) {
    const std::string_view name = format.name();
    if (!name.starts_with("e4m3_") && !name.starts_with("e5m2_")) return;
    const bool e4m3s = name.starts_with("e4m3_");
    const auto value = [&](int64_t code) {
      const auto bits = static_cast<uint8_t>(code);
      return e4m3s ? to_f32(e4m3{bits}) : to_f32(e5m2{bits});
    };
    // One of each token's activations is 1, so that its outputs are a column of weights.
    const int64_t K = 128, n = 256, stride = format.stride(K);
    const float scale = 0.5f;
    Guarded<char> w(static_cast<size_t>(n * stride), 4);
    for (int64_t T : {K, int64_t{5}}) {
      Guarded<float> x(static_cast<size_t>(T * K)), out(static_cast<size_t>(T * n));
      for (int64_t t = 0; t < T; ++t) x[static_cast<size_t>(t * K + t)] = 1;
      for (bool finite : {true, false}) {
        for (int64_t r = 0; r < n; ++r) {
          std::memcpy(w.data() + r * stride, &scale, 4);
          for (int64_t k = 0; k < K; ++k) {
            const int64_t code = (r + k) % 256;
            const bool skip = finite && !std::isfinite(value(code));
            w[static_cast<size_t>(r * stride + 4 + k)] = static_cast<char>(skip ? 0 : code);
          }
        }
        MatmulSegment segment{w.data(), nullptr, n, 0};
        MatmulArgs a;
        a.out = out.data(), a.x = x.data(), a.segments = &segment, a.num_segments = 1;
        a.T = T, a.K = K, a.ldx = K, a.ldo = n, a.format = format;
        const Kernel* kernel = KernelRegistry::cpu().find({KernelFamily::kMatmul, format}, isa);
        run_on_pool(pool, *kernel, &a);
        INFO(kernel->name << " T=" << T << " finite " << finite);
        int64_t wrong = 0;
        for (int64_t t = 0; t < T; ++t) {
          for (int64_t r = 0; r < n; ++r) {
            const float got = out[static_cast<size_t>(t * n + r)], element = value((r + t) % 256);
            if (finite) {
              wrong += got != (std::isfinite(element) ? element * scale : 0);
            } else {  // a row of 128 codes has some that are no number, or none
              bool all = true;
              for (int64_t k = 0; k < K; ++k) all = all && std::isfinite(value((r + k) % 256));
              wrong += std::isfinite(got) != all;
            }
          }
        }
        CHECK(wrong == 0);
      }
    }
  });
}

// Every scale s and zero z of w4a8, with all the levels whose bracket s * (q - z) is a signed byte.
TEST_CASE("matmul: w4a8 takes every signed byte exactly") {
  const Format format = *Format::find("w4a8_g32");
  const int64_t K = 256, groups = K / 32, block = format.block_bytes();
  std::vector<std::array<uint8_t, 18>> blocks;
  for (int s = 0; s < 256; ++s) {
    for (int z = 0; z < 256; ++z) {
      std::vector<uint8_t> levels;
      for (uint8_t q = 0; q < 16; ++q) {
        if (s * (q - z) >= -128 && s * (q - z) <= 127) levels.push_back(q);
      }
      if (levels.empty()) continue;
      auto& b = blocks.emplace_back();
      b[0] = static_cast<uint8_t>(s), b[1] = static_cast<uint8_t>(z);
      for (size_t i = 0; i < 16; ++i) {
        b[2 + i] = static_cast<uint8_t>(levels[i % levels.size()] |
                                        levels[levels.size() - 1 - i % levels.size()] << 4);
      }
    }
  }
  while (blocks.size() % static_cast<size_t>(groups) != 0) blocks.push_back(blocks.front());
  const int64_t n = static_cast<int64_t>(blocks.size()) / groups, stride = format.stride(K);
  std::vector<char> rows(static_cast<size_t>(n * stride));
  const float scale = 0.25f;
  for (int64_t r = 0; r < n; ++r) {
    char* row = rows.data() + r * stride;
    std::memcpy(row, &scale, 4);
    for (int64_t g = 0; g < groups; ++g) {
      std::memcpy(row + stride - (groups - g) * block, blocks[static_cast<size_t>(r * groups + g)].data(),
                  static_cast<size_t>(block));
    }
  }
  std::vector<float> w(static_cast<size_t>(n * K));
  for (int64_t r = 0; r < n; ++r) format.decode_row(rows.data() + r * stride, K, w.data() + r * K);
  // Token k asks for column k: 127 is 127 steps of 1.
  std::vector<float> x(static_cast<size_t>(K * K));
  for (int64_t k = 0; k < K; ++k) x[static_cast<size_t>(k * K + k)] = 127;
  ThreadPool pool({.threads = 3});
  for (const Kernel* kernel : KernelRegistry::cpu().all()) {
    if (kernel->family != KernelFamily::kMatmul || kernel->format != format) continue;
    if (kernel->isa == Isa::kReference || kernel->isa > best_isa()) continue;
    INFO(kernel->name);
    const WeightLayout& layout = weight_layout(format, kernel->isa);
    Guarded<char> packed(layout.bytes(n, K), 64);
    layout.pack(packed.data(), rows.data(), format, n, K, 0, n);
    const MatmulSegment segment{packed.data(), nullptr, n, 0};
    int64_t wrong = 0;
    for (const int64_t T : {K, int64_t{16}, int64_t{1}}) {
      for (int64_t t = 0; t < K; t += T) {
        std::vector<float> out(static_cast<size_t>(T * n));
        MatmulArgs a;
        a.out = out.data(), a.x = x.data() + t * K, a.segments = &segment, a.num_segments = 1;
        a.T = T, a.K = K, a.ldx = K, a.ldo = n, a.format = format;
        run_on_pool(pool, *kernel, &a);
        for (int64_t i = 0; i < T * n; ++i) {
          wrong += out[static_cast<size_t>(i)] != 127 * w[static_cast<size_t>(i % n * K + t + i / n)];
        }
      }
    }
    CHECK(wrong == 0);
  }
}

// Groups that share a block: largest weights that are not those of the largest scales, zeros far from the
// levels, scales that are negative or 0, w4a8 whose brackets are no signed bytes. And a scale that is no
// number.
TEST_CASE("matmul: asymmetric groups of one block keep the bound of its largest") {
  std::mt19937 gen(5);
  std::normal_distribution<float> normal;
  ThreadPool pool({.threads = 3});
  for (const char* name : {"u4_g32", "u4_g64", "u4_g128", "q4_1", "w4a8_g32", "w4a8_g64", "w4a8_g128"}) {
    const Format format = *Format::find(name);
    const int64_t K = 512, n = 48, groups = K / format.block_elems(), block = format.block_bytes(),
                  stride = format.stride(K);
    const std::string_view kind = name;
    const bool u4 = kind.starts_with("u4_"), w4a8 = kind.starts_with("w4a8_");
    std::vector<char> rows(static_cast<size_t>(n * stride));
    for (char& c : rows) c = static_cast<char>(gen());
    std::vector<float> bound(static_cast<size_t>(n * K / 256));  // of a row's block
    for (int64_t g = 0; g < n * groups; ++g) {
      char* at = rows.data() + g / groups * stride + stride - (groups - g % groups) * block;
      float d, least, levels = 16.f, error = 1.21f;  // m of a level
      if (w4a8) {
        const float scale = 0.5f;
        std::memcpy(rows.data() + g / groups * stride, &scale, 4);
        const float s = static_cast<uint8_t>(at[0]), z = static_cast<uint8_t>(at[1]);
        d = scale * s, least = -scale * s * z, levels = 1, error = 4.25f;
      } else {
        const float zero = gen() % 4 == 0 ? 200 * normal(gen) : 15.f * static_cast<float>(gen() % 64) / 64;
        const float step =
            std::exp(normal(gen)) * (gen() % 4 == 0 ? -1.f : 1.f) * (gen() % 8 == 0 ? 0.f : 1.f);
        const f16 head[2] = {to_f16(step), to_f16(u4 ? zero : -zero * step)};
        std::memcpy(at, head, sizeof head);
        d = to_f32(head[0]), least = u4 ? -d * to_f32(head[1]) : to_f32(head[1]);
      }
      const float most = std::max(std::abs(least), std::abs(least + 15 * d));
      float& b = bound[static_cast<size_t>(g * format.block_elems() / 256)];
      b = std::max({b, error * std::abs(d) * levels / 255, error * most / (127 - error)});
    }
    std::vector<float> w(static_cast<size_t>(n * K));
    for (int64_t r = 0; r < n; ++r) format.decode_row(rows.data() + r * stride, K, w.data() + r * K);
    const int64_t damaged = 20;
    const uint32_t nan = 0x7fc07fc0u;
    char* bad = rows.data() + damaged * stride;
    std::memcpy(w4a8 ? bad : bad + 3 * block, &nan, w4a8 ? 4 : 2);
    std::vector<float> x(static_cast<size_t>(K * K));
    for (int64_t k = 0; k < K; ++k) x[static_cast<size_t>(k * K + k)] = 127;
    for (Isa isa : levels()) {
      const Kernel* kernel = KernelRegistry::cpu().find({KernelFamily::kMatmul, format}, isa);
      INFO(kernel->name);
      const WeightLayout& layout = weight_layout(format, isa);
      Guarded<char> packed(layout.bytes(n, K), 64);
      layout.pack(packed.data(), rows.data(), format, n, K, 0, n);
      const MatmulSegment segment{packed.data(), nullptr, n, 0};
      std::vector<float> out(static_cast<size_t>(K * n));
      MatmulArgs a;
      a.out = out.data(), a.x = x.data(), a.segments = &segment, a.num_segments = 1;
      a.T = K, a.K = K, a.ldx = K, a.ldo = n, a.format = format;
      run_on_pool(pool, *kernel, &a);
      int64_t wrong = 0;
      for (int64_t i = 0; i < K * n; ++i) {
        const int64_t row = i % n, k = i / n;
        const float value = out[static_cast<size_t>(i)] / 127;
        if (row == damaged) {
          wrong += !std::isnan(value);
          continue;
        }
        const float error = std::abs(value - w[static_cast<size_t>(row * K + k)]);
        wrong += !(error <= 1.0001f * bound[static_cast<size_t>(row * (K / 256) + k / 256)]);
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("matmul: NaN and infinity reach exactly the outputs they belong to") {
  ThreadPool pool({.threads = 2});
  for_each_kernel([&](Format format, Isa isa) {
    for (int64_t T : {1, 9, 34}) {
      for (float poison : {NAN, INFINITY}) {
        Problem p(format, isa, {T, 256, {40}}, Values::kNormal, false, false);
        const int64_t bad = T / 2;
        p.x[static_cast<size_t>(bad * p.ldx + 100)] = poison;
        run_on_pool(pool, *p.kernel, &p.args);
        INFO(p.describe());
        for (int64_t t = 0; t < T; ++t) {
          int64_t finite = 0;
          for (int64_t n = 0; n < 40; ++n) finite += std::isfinite(p.out[static_cast<size_t>(t * p.ldo + n)]);
          CHECK(finite == (t == bad ? 0 : 40));
        }
      }
    }
  });
}

TEST_CASE("matmul: behind a gate as with swiglu before it, to the bit") {
  Sample sample;
  ThreadPool pool({.threads = 3});
  for_each_kernel([&](Format format, Isa isa) {
    const Kernel* gated = KernelRegistry::cpu().find({KernelFamily::kGatedMatmul, format}, isa);
    const Kernel* swiglu = KernelRegistry::cpu().find({KernelFamily::kSwiGlu, Format::f32()}, isa);
    REQUIRE(gated != nullptr);
    REQUIRE(gated->isa == isa);
    // One phase, one and several slices of packing, several blocks of tokens.
    const Shape shapes[] = {{1, 256, {40}}, {2, 2304, {33}}, {5, 2304, {33}}, {37, 768, {70}}};
    for (const Shape& s : shapes) {
      if (!sample.take()) continue;
      Problem p(format, isa, s, Values::kNormal, true, true);
      INFO(p.describe());
      const int64_t ld_gate = s.K + 5;
      Guarded<float> gate(static_cast<size_t>((s.T - 1) * ld_gate + s.K));
      std::ranges::copy(random_values(gate.size(), Values::kNormal, 77), gate.begin());
      GatedMatmulArgs a;
      a.matmul = p.args, a.gate = gate.data(), a.ld_gate = ld_gate, a.swiglu = swiglu;
      a.act = s.T == 5 ? UnaryOp::kGeluTanh : UnaryOp::kSilu;
      run_on_pool(pool, *gated, &a);
      const std::vector<float> fused(p.out.begin(), p.out.end());
      std::ranges::fill(p.out, -7.f);
      run_in_steps(*gated, &a, 1, true);
      CHECK(std::equal(fused.begin(), fused.end(), p.out.begin(), same_float_bits));

      SwiGluArgs first;
      first.T = s.T, first.F = s.K, first.act = a.act;
      first.gate = gate.data(), first.ldg = ld_gate, first.up = p.x.data(), first.ldu = p.ldx;
      first.out = p.x.data(), first.ldo = p.ldx;
      run_on_pool(pool, *swiglu, &first);
      std::ranges::fill(p.out, -7.f);
      run_on_pool(pool, *p.kernel, &p.args);
      CHECK(std::equal(fused.begin(), fused.end(), p.out.begin(), same_float_bits));
    }
  });
}

TEST_CASE("matmul: weights() says where the rows of a chunk lie") {
  for_each_kernel([&](Format format, Isa isa) {
    const std::vector<int64_t> n = {300, 17, 200};
    Problem p(format, isa, {1, 512, n}, Values::kNormal, false, false);
    INFO(p.describe());
    if (p.kernel->weights == nullptr) return;  // the reference
    KernelPlan plan;
    p.kernel->plan(&p.args, 1, &plan);
    AlignedScratch worker(plan.worker_scratch), shared(plan.shared_scratch);
    const oar::KernelScratch scratch{worker.data(), shared.data()};
    const int last = plan.phases - 1;
    for (int phase = 0; phase < last; ++phase) p.kernel->run(&p.args, phase, 0, plan.chunks[phase], scratch);
    for (int64_t c = 0; c < plan.chunks[last]; ++c) {
      std::ranges::fill(p.out, -7.f);
      p.kernel->run(&p.args, last, c, c + 1, scratch);
      const int64_t first = std::ranges::find_if(p.out, [](float v) { return v != -7.f; }) - p.out.begin();
      const size_t s = first < n[0] ? 0 : first < n[0] + n[1] ? 1 : 2;
      const int64_t row = first - p.segments[s].out_col;
      const WeightSpan span = p.kernel->weights(&p.args, c);
      const int64_t at = static_cast<const char*>(span.at) - static_cast<const char*>(p.segments[s].w);
      REQUIRE(span.bytes % (n[s] - row) == 0);
      const int64_t row_bytes = span.bytes / (n[s] - row);
      CHECK(at == row * row_bytes);
      // A packed row may be longer than the file's, and shorter by no more than scales.
      CHECK(row_bytes * 10 >= format.stride(512) * 9);
    }
    CHECK(p.kernel->weights(&p.args, plan.chunks[last]).bytes == 0);
  });
}

TEST_CASE("matmul: no rows of x, no work") {
  for_each_kernel([&](Format format, Isa isa) {
    Problem p(format, isa, {1, 256, {40}}, Values::kNormal, false, false);
    p.args.T = 0;
    KernelPlan plan;
    p.kernel->plan(&p.args, 4, &plan);
    for (int phase = 0; phase < plan.phases; ++phase) CHECK(plan.chunks[phase] == 0);
  });
}

TEST_CASE("matmul: zero x gives bias exactly") {
  ThreadPool pool({.threads = 2});
  for_each_kernel([&](Format format, Isa isa) {
    Problem p(format, isa, {20, 512, {33}}, Values::kNormal, true, false);
    std::ranges::fill(p.x, 0.f);
    run_on_pool(pool, *p.kernel, &p.args);
    INFO(p.describe());
    int64_t wrong = 0;
    for (int64_t t = 0; t < 20; ++t) {
      for (int64_t n = 0; n < 33; ++n)
        wrong += p.out[static_cast<size_t>(t * p.ldo + n)] != p.bias[static_cast<size_t>(n)];
    }
    CHECK(wrong == 0);
  });
}

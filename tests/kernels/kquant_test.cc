// What kernels/cpu/matmul/kquant_format.h promises of GGUF's super-block formats beyond what every matmul
// does: sums within a super-block are exact, and an output has the same bits on every instruction set with a
// kernel.
#include "tests/kernels/matmul_problem.h"

using namespace oar;
using namespace oar_test;

namespace {

const char* const kFormats[] = {"q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs"};

std::vector<float> product(const Kernel& kernel, Format format, const Guarded<char>& w,
                           const Guarded<float>& x, int64_t T, int64_t K, int64_t n) {
  const MatmulSegment segment{w.data(), nullptr, n, 0};
  std::vector<float> out(static_cast<size_t>(T * n));
  MatmulArgs a;
  a.out = out.data();
  a.x = x.data();
  a.segments = &segment;
  a.num_segments = 1;
  a.T = T;
  a.K = a.ldx = K;
  a.ldo = n;
  a.format = format;
  run_in_steps(kernel, &a, 3, false);
  return out;
}

// Kernels made for the format that run here, those that stand beside a level too.
std::vector<const Kernel*> kernels_of(Format format) {
  std::vector<const Kernel*> out;
  for (const Kernel* k : KernelRegistry::cpu().all()) {
    if (k->family == KernelFamily::kMatmul && k->format == format && k->isa <= best_isa()) out.push_back(k);
  }
  return out;
}

}  // namespace

TEST_CASE("kquants: no rounding but of a few floats for each super-block") {
  for (const char* name : kFormats) {
    const Format format = *Format::find(name);
    for (const Kernel* kernel : kernels_of(format)) {
      for (int64_t K : {256, 768}) {
        for (int64_t T : {1, 3, 21, 40}) {
          const int64_t n = 37;
          const Guarded<char> w =
              encode(random_values(static_cast<size_t>(n * K), Values::kNormal, 5), K, format);
          const std::vector<float> values = decode(w, K, format), minima = decode_minima(w, K, format);
          // Integers whose largest magnitude is 127 in each block of 256 are their own quantization.
          Guarded<float> x(static_cast<size_t>(T * K));
          std::mt19937 gen(static_cast<uint32_t>(K + T));
          for (float& v : x) v = static_cast<float>(static_cast<int>(gen() % 255) - 127);
          for (size_t b = 0; b < x.size(); b += 256) x[b + gen() % 256] = gen() % 2 == 0 ? 127.f : -127.f;
          const std::vector<float> out = product(*kernel, format, w, x, T, K, n);
          INFO(kernel->name << " K=" << K << " T=" << T);
          int64_t wrong = 0;
          for (int64_t t = 0; t < T; ++t) {
            for (int64_t r = 0; r < n; ++r) {
              double sum = 0, magnitude = 0;
              for (int64_t k = 0; k < K; ++k) {
                const auto at = static_cast<size_t>(r * K + k);
                const double xv = x[static_cast<size_t>(t * K + k)];
                sum += values[at] * xv;
                magnitude += std::abs(values[at] * xv) + (minima.empty() ? 0 : 2 * std::abs(minima[at] * xv));
              }
              // Six roundings a super-block, of sums no larger than the magnitude, and one in each decoded
              // weight of the reference.
              const double bound = static_cast<double>(6 * K / 256 + 1) * std::ldexp(1.0, -24) * magnitude;
              wrong += !(std::abs(out[static_cast<size_t>(t * n + r)] - sum) <= bound);
            }
          }
          CHECK(wrong == 0);
        }
      }
    }
  }
}

// The definition in kquant_format.h, for processors that have nothing else to be compared with.
TEST_CASE("kquants: the floats of the definition, in its order") {
  constexpr int64_t K = 1024, n = 23, T = 6;
  for (const char* name : kFormats) {
    const Format format = *Format::find(name);
    const RandomBlocks& r = *random_blocks(format);
    const Guarded<char> w = encode(random_values(static_cast<size_t>(n * K), Values::kNormal, 8), K, format);
    // Under scales of one, values are products of integers: scale * level without minima, minima without d.
    const auto integers = [&](float d, float dmin) {
      Guarded<char> v(w.size(), 2);
      std::ranges::copy(w, v.begin());
      const f16 scales[] = {to_f16(d), to_f16(dmin)};
      for (size_t b = 0; b < v.size(); b += static_cast<size_t>(format.block_bytes())) {
        std::memcpy(v.data() + b + r.d, &scales[0], 2);
        if (r.dmin >= 0) std::memcpy(v.data() + b + r.dmin, &scales[1], 2);
      }
      return decode(v, K, format);
    };
    const std::vector<float> scaled = integers(1, 0), minima = integers(0, 1);
    // Thrice an integer, of which each block has 127: a scale of 3.
    std::vector<int> q(static_cast<size_t>(T * K));
    std::mt19937 gen(9);
    for (int& v : q) v = static_cast<int>(gen() % 255) - 127;
    for (size_t b = 0; b < q.size(); b += 256) q[b + gen() % 256] = 127;
    Guarded<float> x(q.size());
    std::ranges::transform(q, x.begin(), [](int v) { return 3.f * static_cast<float>(v); });
    std::vector<float> expected;
    for (int64_t t = 0; t < T; ++t) {
      for (int64_t row = 0; row < n; ++row) {
        float sum = 0;
        for (int64_t b = 0; b < K / 256; ++b) {
          const char* block = w.data() + (row * (K / 256) + b) * format.block_bytes();
          f16 d, dmin{};
          std::memcpy(&d, block + r.d, 2);
          if (r.dmin >= 0) std::memcpy(&dmin, block + r.dmin, 2);
          int64_t S = 0, M = 0;
          for (int64_t k = 256 * b; k < 256 * (b + 1); ++k) {
            const auto at = static_cast<size_t>(row * K + k);
            S += static_cast<int64_t>(scaled[at]) * q[static_cast<size_t>(t * K + k)];
            M -= static_cast<int64_t>(minima[at]) * q[static_cast<size_t>(t * K + k)];
          }
          float product = to_f32(d) * static_cast<float>(S);
          if (r.dmin >= 0) product = std::fma(-to_f32(dmin), static_cast<float>(M), product);
          sum = std::fma(product, 3.f, sum);
        }
        expected.push_back(sum);
      }
    }
    for (const Kernel* kernel : kernels_of(format)) {
      INFO(kernel->name);
      const std::vector<float> out = product(*kernel, format, w, x, T, K, n);
      CHECK(std::memcmp(expected.data(), out.data(), out.size() * sizeof(float)) == 0);
      const std::vector<float> one = product(*kernel, format, w, x, 1, K, n);
      CHECK(std::memcmp(expected.data(), one.data(), one.size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("kquants: every instruction set gives the same bits") {
  for (const char* name : kFormats) {
    const Format format = *Format::find(name);
    const auto kernels = kernels_of(format);
    for (int64_t K : {256, 1024}) {
      for (int64_t T : {1, 2, 17, 70}) {
        const int64_t n = 50;
        const Guarded<char> w =
            encode(random_values(static_cast<size_t>(n * K), Values::kNormal, 6), K, format);
        Guarded<float> x(static_cast<size_t>(T * K));
        std::ranges::copy(random_values(x.size(), Values::kNormal, static_cast<uint32_t>(T)), x.begin());
        std::vector<float> first;
        for (const Kernel* kernel : kernels) {
          const std::vector<float> out = product(*kernel, format, w, x, T, K, n);
          if (first.empty()) first = out;
          INFO(kernel->name << " beside " << kernels[0]->name << ", K=" << K << " T=" << T);
          CHECK(std::memcmp(first.data(), out.data(), out.size() * sizeof(float)) == 0);
        }
      }
    }
  }
}

// Kernels that expand weights do so in pieces of some hundred KB: of rows as long as these a chunk has
// several.
TEST_CASE("kquants: a chunk of more rows than are expanded at a time") {
  constexpr int64_t kRows = 64 * 64 + 17, K = 32 * 256, T = 7;
  for (const char* name : {"q4_k", "q6_k"}) {
    const Format format = *Format::find(name);
    Guarded<char> w(static_cast<size_t>(kRows * format.stride(K)), 2);
    fill_random_blocks(*random_blocks(format), format.block_bytes(), w, 11);
    Guarded<float> x(static_cast<size_t>(T * K));
    std::ranges::copy(random_values(x.size(), Values::kNormal, 12), x.begin());
    std::vector<float> first;
    for (const Kernel* kernel : kernels_of(format)) {
      const std::vector<float> out = product(*kernel, format, w, x, T, K, kRows);
      if (first.empty()) first = out;
      INFO(kernel->name << " " << name);
      CHECK(std::memcmp(first.data(), out.data(), out.size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("kquants: the largest levels, scales and activations do not overflow") {
  for (const char* name : kFormats) {
    const Format format = *Format::find(name);
    for (const Kernel* kernel : kernels_of(format)) {
      for (char fill : {static_cast<char>(0xff), static_cast<char>(0x7f), static_cast<char>(0x80), '\0'}) {
        for (float sign : {1.f, -1.f}) {
          const int64_t K = 512, n = 18, T = 19;
          Guarded<char> w = encode(std::vector<float>(static_cast<size_t>(n * K), 1.f), K, format);
          const RandomBlocks& r = *random_blocks(format);
          const f16 one = to_f16(1.f);
          for (size_t b = 0; b < w.size(); b += static_cast<size_t>(format.block_bytes())) {
            std::memset(w.data() + b, fill, static_cast<size_t>(format.block_bytes()));
            std::memcpy(w.data() + b + r.d, &one, 2);
            if (r.dmin >= 0) std::memcpy(w.data() + b + r.dmin, &one, 2);
          }
          const std::vector<float> values = decode(w, K, format);
          Guarded<float> x(static_cast<size_t>(T * K));
          std::ranges::fill(x, sign * 127.f);
          const std::vector<float> out = product(*kernel, format, w, x, T, K, n);
          double sum = 0;
          for (int64_t k = 0; k < K; ++k)
            sum += static_cast<double>(values[static_cast<size_t>(k)]) * sign * 127;
          INFO(kernel->name << " fill " << static_cast<int>(fill) << " x " << sign * 127);
          int64_t wrong = 0;
          // A few roundings of sums below 2^31.
          for (float v : out) wrong += !(std::abs(v - sum) <= 1024);
          CHECK(wrong == 0);
        }
      }
    }
  }
}

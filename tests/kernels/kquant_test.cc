// What kernels/cpu/kquant_format.h promises of GGUF's super-block formats beyond what every matmul does: sums
// within a super-block are exact, and an output has the same bits on every instruction set with a kernel.
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

// Kernels made for the format, one for each level that has one.
std::vector<const Kernel*> kernels_of(Format format) {
  std::vector<const Kernel*> out;
  for (Isa isa : levels()) {
    const Kernel* k = KernelRegistry::cpu().find(KernelFamily::kMatmul, format, isa);
    if (k->isa == isa && k->format.has_value()) out.push_back(k);
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

// Random inputs of tests: the same numbers for the same seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace oar_test {

// Uniform in [-1, 1).
inline std::vector<float> random_floats(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> v(n);
  for (float& x : v) x = uniform(random);
  return v;
}

}  // namespace oar_test

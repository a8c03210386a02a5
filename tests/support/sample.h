// Exhaustive sweeps of cases, thinned where each case is slow. Under a sanitizer, or on an emulated
// processor, a kernel runs five to thirty times slower, and the faults looked for there are those that a part
// of the cases shows as well: a sweep takes every nth case it comes to (n prime to the number of cases in the
// inner loops, so that it is another one in each turn of the outer ones). All other builds take every case,
// but where OAR_TEST_THIN is set: that is for runs which repeat a whole one under other circumstances.
#pragma once

#include <cstdlib>

// OAR_TEST_EMULATED: cmake/aarch64-qemu.cmake
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(OAR_TEST_EMULATED)
#define OAR_TEST_SLOW 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define OAR_TEST_SLOW 1
#endif
#endif

namespace oar_test {

#ifdef OAR_TEST_SLOW
inline constexpr bool kSlow = true;
#else
inline constexpr bool kSlow = false;
#endif

class Sample {
 public:
  explicit Sample(unsigned nth = 5) : nth_(kSlow || std::getenv("OAR_TEST_THIN") != nullptr ? nth : 1) {}
  bool take() { return seen_++ % nth_ == 0; }

 private:
  unsigned nth_, seen_ = 0;
};

}  // namespace oar_test

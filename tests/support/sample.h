// Exhaustive sweeps of cases, thinned where each case is slow. A sanitizer build runs a kernel five to ten
// times slower and looks for faults that a part of the cases shows as well: there a sweep takes every nth
// case it comes to (n prime to the number of cases in the inner loops, so that it is another one in each turn
// of the outer ones). All other builds take every case.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OAR_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define OAR_TEST_SANITIZED 1
#endif
#endif

namespace oar_test {

#ifdef OAR_TEST_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

class Sample {
 public:
  explicit Sample(unsigned nth = 5) : nth_(kSanitized ? nth : 1) {}
  bool take() { return seen_++ % nth_ == 0; }

 private:
  unsigned nth_, seen_ = 0;
};

}  // namespace oar_test

// Exhaustive sweeps of cases, thinned where each case is slow. A sanitizer build runs a kernel five to ten
// times slower and looks for faults that a fifth of the cases shows as well: there a sweep takes every fifth
// case it comes to, which is another one in each turn of the outer loops. All other builds take every case.
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
  bool take() {
#ifdef OAR_TEST_SANITIZED
    return seen_++ % 5 == 0;
#else
    return true;
#endif
  }

#ifdef OAR_TEST_SANITIZED
 private:
  unsigned seen_ = 0;
#endif
};

}  // namespace oar_test

// One include for tests, whichever major version of Catch2 the distribution has.
#pragma once

#include <string>

#ifdef OAR_CATCH2_V3
#include <catch2/catch_all.hpp>
using Catch::Approx;  // version 2 puts it there itself
#else
#include <catch2/catch.hpp>
#endif

// Ends the current test, saying why it could not run. Catch2 2 has no SKIP, so the reason is printed and the
// test passes with a warning; the line "skipped:" is what ./dev test collects.
#define OAR_SKIP(reason)           \
  do {                             \
    WARN("skipped: " << (reason)); \
    return;                        \
  } while (0)

// A Result's or Status's success, with its message when it fails.
#define REQUIRE_OK(expr)                   \
  do {                                     \
    const auto& oar_ok_ = (expr);          \
    INFO(::oar_test::message_of(oar_ok_)); \
    REQUIRE(oar_ok_.ok());                 \
  } while (0)

namespace oar_test {
// Matches strings that contain `text`. (Version 3 gave Catch's own name for it to ranges.)
inline auto Contains(const std::string& text) {
#ifdef OAR_CATCH2_V3
  return Catch::Matchers::ContainsSubstring(text);
#else
  return Catch::Matchers::Contains(text);
#endif
}

template <class T>
std::string message_of(const T& r) {
  if constexpr (requires { r.message(); }) return r.message();
  else return r.status().message();
}
}  // namespace oar_test

// Loops whose counter is a constant in each turn. An array of registers that is indexed by anything else may
// be kept in memory: g++ 12 stored all 24 sums of a tile after every few dot products, a third of the
// kernel's time. Unrolling by pragma did not help: it happens after arrays have become scalars.
#pragma once

#include <type_traits>
#include <utility>

// On the lambda that is the body.
#define OAR_INLINE_BODY __attribute__((always_inline))

namespace oar {

// f(constant 0), f(constant 1), ... f(constant N - 1).
template <int N, class F>
[[gnu::always_inline]] inline void unrolled(F&& f) {
  [&]<int... kTurn>(std::integer_sequence<int, kTurn...>) OAR_INLINE_BODY {
    (f(std::integral_constant<int, kTurn>{}), ...);
  }
  (std::make_integer_sequence<int, N>{});
}

}  // namespace oar

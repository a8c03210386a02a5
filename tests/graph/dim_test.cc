#include <climits>

#include "engine/graph/dim.h"
#include "tests/support/catch.h"

using oar::Dim;

TEST_CASE("equal extents compare equal however they were written") {
  const Dim T = Dim::symbol(0), B = Dim::symbol(1);
  CHECK(T * Dim(4) + T == Dim(5) * T);
  CHECK((T + B) * (T - B) == T * T - B * B);
  CHECK(T - T == Dim(0));
  CHECK(!(T == B));
  CHECK(Dim::floordiv(T * Dim(64), Dim(64)) == T);
  CHECK(Dim::floordiv(T * Dim(64), T * Dim(4)) == Dim(16));
  CHECK(Dim::max(T, T + B) == T + B);
  CHECK(Dim::max(T, B) == Dim::max(B, T));
  const Dim one = Dim::max(T, B), three = Dim::max(Dim::max(T, B), Dim(9));
  CHECK(Dim::max(one, B) == one);
  CHECK(Dim::max(one, T + B) == T + B);
  CHECK(Dim::max(Dim(9), one) == three);
  CHECK(Dim::max(three, Dim::max(Dim(7), B)) == three);
  CHECK(Dim::floordiv(T * Dim(1024) + Dim(63), Dim(64)) == T * Dim(16));
  CHECK(Dim::floordiv(T * Dim(1024) + B - Dim(1), Dim(64)) ==
        T * Dim(16) + Dim::floordiv(B - Dim(1), Dim(64)));
}

TEST_CASE("extents evaluate, round up and saturate") {
  const Dim T = Dim::symbol(0), B = Dim::symbol(1);
  const std::vector<int64_t> at{7, 3};
  CHECK(Dim::floordiv(T * B + Dim(1), Dim(4)).evaluate(at) == 5);
  CHECK(Dim::align(T, 64).evaluate(at) == 64);
  CHECK(Dim::align(T * Dim(64), 64).evaluate(at) == 448);
  CHECK(Dim::max(T * Dim(2), B * Dim(5)).evaluate(at) == 15);
  CHECK(Dim::max(Dim::max(T * Dim(2), B * Dim(5)), T + B + Dim(6)).evaluate(at) == 16);
  CHECK(Dim::floordiv(T * Dim(8) - B - Dim(60), Dim(4)).evaluate(at) == -2);  // 56 - 63 = -7
  CHECK((T * Dim(INT64_MAX / 2) * B).evaluate(at) == INT64_MAX);
  CHECK(T.upper_bound({{"T", 100}, {"B", 2}}) == 100);
}

TEST_CASE("a program shares subexpressions and allocates nothing per run") {
  const Dim T = Dim::symbol(0), B = Dim::symbol(1);
  const std::vector<Dim> dims{T * B, T * B + Dim(1), Dim::max(T * B, Dim(9))};
  const oar::DimProgram program(dims);
  std::vector<int64_t> out(3), registers(program.num_registers());
  for (int64_t t = 0; t < 5; ++t) {
    program.evaluate(std::vector<int64_t>{t, 3}, out, registers);
    CHECK(out == std::vector<int64_t>{3 * t, 3 * t + 1, std::max<int64_t>(3 * t, 9)});
  }
}

TEST_CASE("extents print as people write them") {
  const oar::SymbolTable symbols{{"T", 8}, {"B", 2}};
  CHECK((Dim::symbol(0) * Dim(64) + Dim(1)).to_string(symbols) == "1 + 64*T");
  CHECK(Dim(0).to_string(symbols) == "0");
  const Dim T = Dim::symbol(0), B = Dim::symbol(1);
  CHECK(Dim::max(Dim::max(T, B), Dim(9)).to_string(symbols) == "max(T, B, 9)");
}

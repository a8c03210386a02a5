// The pacer against machines whose steps have a known cost.
#include "engine/runtime/core/step_pacer.h"

#include <algorithm>

#include "tests/support/catch.h"

using namespace oar;

namespace {

// Steps take base + per decode + per row of a prompt, in seconds.
struct Machine {
  double base, decode, row;
  double alone(int64_t decodes) const { return base + decode * static_cast<double>(decodes); }
  double step(int64_t decodes, int64_t rows) const {
    return alone(decodes) + row * static_cast<double>(rows);
  }
};

// What a server has seen before a prompt meets `decodes` streams: a prompt alone, the streams alone.
StepPacer acquainted(const Machine& m, int64_t decodes) {
  StepPacer pacer;
  pacer.ran(0, 512, m.step(0, 512));
  pacer.ran(decodes, 0, m.step(decodes, 0));
  return pacer;
}

// Runs steps of `decodes` beside prompts that always want `budget` rows; returns the last step with prompts.
double settle(StepPacer& pacer, const Machine& m, int64_t decodes, int64_t prompts, int steps,
              int64_t budget = 512) {
  double last = 0;
  for (int i = 0; i < steps; ++i) {
    const int64_t rows = std::min(budget, pacer.prompt_rows(decodes, prompts));
    pacer.ran(decodes, rows, m.step(decodes, rows));
    if (rows > 0) last = m.step(decodes, rows);
  }
  return last;
}

}  // namespace

TEST_CASE("prompts get as much time as decodes, at any context", "[step_pacer]") {
  StepPacer pacer;
  CHECK(pacer.prompt_rows(0, 1) == StepPacer::kNoLimit);  // nobody decodes
  CHECK(pacer.prompt_rows(3, 1) == StepPacer::kNoLimit);  // nothing is known
  Machine m{0.015, 0.0005, 0.0007};
  pacer = acquainted(m, 8);
  CHECK(settle(pacer, m, 8, 1, 20) == Approx(2 * m.alone(8)).epsilon(0.06));
  // Rows grow dearer with the context in front of them; a step stays as long as it was.
  for (; m.row < 0.004; m.row *= 1.02) settle(pacer, m, 8, 1, 2);
  CHECK(settle(pacer, m, 8, 1, 1) < 2.2 * m.alone(8));
  // And cheap again when the next prompt starts from nothing.
  m.row = 0.0007;
  CHECK(settle(pacer, m, 8, 1, 20) == Approx(2 * m.alone(8)).epsilon(0.06));
}

TEST_CASE("with several prompts all are slowed alike, up to the budget of rows", "[step_pacer]") {
  const Machine m{0.015, 0.0005, 0.0007};
  StepPacer pacer = acquainted(m, 8);
  CHECK(settle(pacer, m, 8, 4, 20) == Approx(5 * m.alone(8)).epsilon(0.06));
  CHECK(pacer.prompt_rows(8, 31) > 512);
}

TEST_CASE("a prompt always gets on, however dear its rows", "[step_pacer]") {
  const Machine m{0.010, 0.0005, 0.1};
  StepPacer pacer = acquainted(m, 2);
  CHECK(pacer.prompt_rows(2, 1) == StepPacer::kFewestRows);
}

TEST_CASE("what decodes cost alone is learned again while a prompt goes on and on", "[step_pacer]") {
  Machine m{0.015, 0.0005, 0.0007};
  StepPacer pacer = acquainted(m, 8);
  settle(pacer, m, 8, 1, 20);
  m.base = 0.045;  // their contexts have grown
  int without = 0;
  for (int i = 0; i < 1000; ++i) {
    const int64_t rows = pacer.prompt_rows(8, 1);
    without += rows == 0;
    pacer.ran(8, rows, m.step(8, rows));
  }
  CHECK(without == 1000 / (StepPacer::kStepsBetweenLooks + 1));
  CHECK(settle(pacer, m, 8, 1, 5) == Approx(2 * m.alone(8)).epsilon(0.06));
}

TEST_CASE("a number of decodes not seen before is judged by its neighbour", "[step_pacer]") {
  const Machine m{0.015, 0.0005, 0.0007};
  StepPacer pacer = acquainted(m, 4);
  pacer.ran(20, 0, m.step(20, 0));
  CHECK(pacer.prompt_rows(9, 1) == pacer.prompt_rows(4, 1));  // fewer rather than more
  CHECK(pacer.prompt_rows(1, 1) == pacer.prompt_rows(4, 1));
  CHECK(pacer.prompt_rows(20, 1) > pacer.prompt_rows(4, 1));
}

TEST_CASE("one step that lost its processor does not stop prompts", "[step_pacer]") {
  const Machine m{0.015, 0.0005, 0.0007};
  StepPacer pacer = acquainted(m, 8);
  settle(pacer, m, 8, 1, 20);
  const int64_t rows = pacer.prompt_rows(8, 1);
  pacer.ran(8, rows, 5.0);
  CHECK(pacer.prompt_rows(8, 1) > rows / 2);
  pacer.ran(8, 0, 5.0);
  CHECK(pacer.prompt_rows(8, 1) < 2 * rows);
}

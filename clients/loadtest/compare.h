// Two servers, A and B, in turns on the same requests: the ratio B / A of each number with a confidence
// interval, so that drift of the machine falls on both.
#pragma once

#include <string>
#include <vector>

#include "clients/loadtest/summary.h"

namespace oar::loadtest {

struct Ratio {
  std::string name;
  double ratio = 0;          // geometric mean over rounds of B / A
  double low = 0, high = 0;  // 95 %: Student's t over the rounds' logarithms; equal to `ratio` with one round
  int rounds = 0;
  bool significant() const { return rounds > 1 && (low > 1 || high < 1); }
};

// One Summary of each side per round. Rounds in which a side has no value of a number are left out of it.
std::vector<Ratio> compare(const std::vector<Summary>& a, const std::vector<Summary>& b);
const char* verdict(const Ratio& ratio);  // what the interval shows, in words
std::string compare_text(const std::vector<Ratio>& ratios);

// Two-sided 95 % quantile of Student's t.
double student_t95(int degrees);

}  // namespace oar::loadtest

// Checks of numbers on the command line. CLI11 has its own, whose texts spell out the largest double and name
// the type twice; these say "INT:1..1024" in --help and "7 must be in 1..4" on a mistake.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "engine/base/format.h"

namespace oar::cli {

// `label` stands in --help, `rule` in the error.
template <class T, class Holds>
CLI::Validator checked(const std::string& label, const std::string& rule, Holds holds) {
  return CLI::Validator(
      [=](const std::string& text) {
        T value{};
        if (CLI::detail::lexical_cast(text, value) && holds(value)) return std::string();
        return cat(text, " must be ", rule);
      },
      label);
}

template <class T>
CLI::Validator in_range(T low, T high) {
  const std::string range = cat(low, "..", high);
  return checked<T>(range, "in " + range, [=](T v) { return v >= low && v <= high; });
}

inline CLI::Validator zero_or_more() {
  return checked<double>(">=0", "0 or more", [](double v) { return v >= 0; });
}

inline CLI::Validator above_zero() {
  return checked<double>(">0", "above 0", [](double v) { return v > 0; });
}

}  // namespace oar::cli

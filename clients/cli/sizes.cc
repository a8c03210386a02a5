#include "clients/cli/sizes.h"

#include <charconv>
#include <cmath>

#include "engine/base/format.h"

namespace oar::cli {
namespace {

// Multiplier of a unit: K, KB, KiB ... in any case; binary unless it ends in a plain B. 0: no such unit.
double unit_of(std::string_view unit) {
  if (unit.empty() || unit == "B" || unit == "b") return 1;
  constexpr std::string_view kLetters = "KMGT";
  const char first = unit[0] >= 'a' ? static_cast<char>(unit[0] - 'a' + 'A') : unit[0];
  const size_t power = kLetters.find(first);
  if (power == std::string_view::npos) return 0;
  const std::string_view rest = unit.substr(1);
  const bool decimal = rest == "B" || rest == "b";
  if (!rest.empty() && !decimal && rest != "iB" && rest != "ib" && rest != "i") return 0;
  return std::pow(decimal ? 1000.0 : 1024.0, static_cast<double>(power + 1));
}

}  // namespace

Result<MemoryWish> parse_memory(std::string_view text) {
  const Status bad = invalid_argument(
      cat("a memory budget is a percentage (80%), a size (4GiB, 500MB) or a number of bytes, got ", text),
      "command line");
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value) || value <= 0) return bad;
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  if (unit == "%") {
    if (value > 100) return bad;
    return MemoryWish{0, value};
  }
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  const double bytes = value * unit_of(unit);
  if (bytes < 1 || bytes > 0x1p60) return bad;
  return MemoryWish{static_cast<uint64_t>(bytes), 0};
}

Result<uint64_t> parse_size(std::string_view text) {
  if (text == "0") return uint64_t{0};
  const auto parsed = parse_memory(text);
  if (parsed.ok() && parsed->bytes > 0) return parsed->bytes;
  return invalid_argument(cat("a size is like 4GiB or 500MB, or a number of bytes, got ", text),
                          "command line");
}

}  // namespace oar::cli

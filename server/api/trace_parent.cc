#include "server/api/trace_parent.h"

#include <algorithm>
#include <random>

#include "engine/base/format.h"

namespace oar::api {
namespace {

bool is_hex(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}
bool is_id(std::string_view text) { return is_hex(text) && text.find_first_not_of('0') != text.npos; }

}  // namespace

std::optional<TraceParent> parse_traceparent(std::string_view h) {
  constexpr size_t kLength = 55;  // 00-(32)-(16)-01
  if (h.size() < kLength || h[2] != '-' || h[35] != '-' || h[52] != '-') return std::nullopt;
  const std::string_view version = h.substr(0, 2), trace = h.substr(3, 32), span = h.substr(36, 16),
                         flags = h.substr(53, 2);
  if (!is_hex(version) || version == "ff" || !is_id(trace) || !is_id(span) || !is_hex(flags))
    return std::nullopt;
  if (h.size() > kLength && (version == "00" || h[kLength] != '-')) return std::nullopt;
  const int last = flags[1] <= '9' ? flags[1] - '0' : flags[1] - 'a' + 10;
  return TraceParent{std::string(trace), std::string(span), last % 2 == 1};
}

std::string format_traceparent(const TraceParent& p) {
  return cat("00-", p.trace, "-", p.span, p.sampled ? "-01" : "-00");
}

std::string random_hex(int bytes) {
  thread_local std::mt19937_64 draw{std::random_device{}()};
  std::string out;
  while (out.size() < static_cast<size_t>(2 * bytes)) {
    uint64_t bits = draw();
    for (int k = 0; k < 16 && out.size() < static_cast<size_t>(2 * bytes); ++k, bits >>= 4)
      out += "0123456789abcdef"[bits & 15];
  }
  return out;
}

}  // namespace oar::api

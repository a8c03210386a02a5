// strcat()-like message building without iostreams: cat("expected ", 3, " got ", x). g++ 12 has no <format>,
// and liboar links no fmt.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace oar {
namespace detail {
inline void append_piece(std::string& out, std::string_view s) { out += s; }
inline void append_piece(std::string& out, char c) { out += c; }
template <std::same_as<bool> B>  // a template, so that a const char* does not convert to it
void append_piece(std::string& out, B b) {
  out += b ? "true" : "false";
}
template <class T>
requires(std::is_arithmetic_v<T> && !std::is_same_v<T, bool> &&
         !std::is_same_v<T, char>) void append_piece(std::string& out, T v) {
  char buf[40];
  auto r = [&] {
    if constexpr (std::is_floating_point_v<T>)
      return std::to_chars(buf, buf + sizeof buf, v, std::chars_format::general, 9);
    else return std::to_chars(buf, buf + sizeof buf, v);
  }();
  out.append(buf, r.ptr);
}
}  // namespace detail

template <class... Ts>
std::string cat(const Ts&... pieces) {
  std::string out;
  (detail::append_piece(out, pieces), ...);
  return out;
}

// "1.5 GiB", "312 KiB": bytes for people.
std::string format_bytes(uint64_t bytes);

}  // namespace oar

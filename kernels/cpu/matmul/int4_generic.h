// The Arch of int4_core.h in plain loops, whole lines at a time.
#pragma once

#include "kernels/cpu/matmul/int4_core.h"

namespace oar {
namespace {

template <class Int8Arch>
struct GenericInt4 {
  using Int8 = Int8Arch;
  struct Bytes {
    int8_t v[64];
  };
  struct Dot {
    int32_t v[16];
  };
  using X = const int8_t*;
  static constexpr int kParts = 1, kStreams = 1, kTokens = 1;

  using Codebook = const int16_t*;
  static Codebook codebook(const int16_t* c) { return c; }
  static Bytes table(Codebook c, const char* m, int /*part*/, int j) {
    Bytes t;
    for (int i = 0; i < 64; ++i) {
      const int multiplier = static_cast<int8_t>(m[i / 16 * 4 + j]);
      t.v[i] = static_cast<int8_t>((multiplier * c[i % 16] + 64) >> 7);
    }
    return t;
  }
  template <bool kBiased>
  static Bytes table(Codebook c, const char* m, const char* o, int /*part*/, int j) {
    Bytes t;
    for (int i = 0; i < 64; ++i) {
      const int row = i / 16 * 4 + j, product = static_cast<uint8_t>(m[row]) * c[i % 16] >> 8;
      t.v[i] = static_cast<int8_t>(product + o[row]);
    }
    return t;
  }
  static Bytes biased(Bytes table) { return table; }
  static Bytes load(const char* p) {
    Bytes b;
    std::memcpy(b.v, p, sizeof b);
    return b;
  }
  static void store(char* p, const Bytes& b) { std::memcpy(p, b.v, sizeof b); }
  static Bytes low(Bytes b) {
    for (int8_t& v : b.v) v = static_cast<int8_t>(v & 15);
    return b;
  }
  static Bytes high(Bytes b) {
    for (int8_t& v : b.v) v = static_cast<int8_t>(static_cast<uint8_t>(v) >> 4);
    return b;
  }
  static Bytes lookup(const Bytes& table, Bytes levels) {
    for (int i = 0; i < 64; ++i) levels.v[i] = table.v[i / 16 * 16 + levels.v[i]];
    return levels;
  }
  static X load_x(const int8_t* x) { return x; }
  static Dot zero() { return {}; }
  static Dot dot(Dot d, const Bytes& w, X x) {
    for (int i = 0; i < 64; ++i) d.v[i / 4] += w.v[i] * x[i % 16];
    return d;
  }
  static void transpose(Bytes v[4]) {
    Bytes out[4];
    for (int j = 0; j < 4; ++j) {
      for (int lane = 0; lane < 4; ++lane) {
        for (int l = 0; l < 4; ++l) std::memcpy(out[l].v + lane * 16 + j * 4, v[j].v + lane * 16 + l * 4, 4);
      }
    }
    std::memcpy(v, out, sizeof out);
  }
  static typename Int8::Dot total(const Dot d[4], int32_t /*start*/) {
    typename Int8::Dot sum;
    for (int lane = 0; lane < 4; ++lane) {
      for (int j = 0; j < 4; ++j) {
        const int32_t* v = d[j].v + lane * 4;
        sum.v[lane * 4 + j] = v[0] + v[1] + v[2] + v[3];
      }
    }
    return sum;
  }
};

}  // namespace
}  // namespace oar

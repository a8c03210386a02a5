// The Arch of int4_core.h with AVX-512 VNNI. Only for files compiled with it.
#pragma once

#include "kernels/cpu/matmul/int4_avx512.h"
#include "kernels/cpu/matmul/int8_vnni.h"

namespace oar {
namespace {

// About twelve instructions for the 128 weights of a line, one more with offsets, six cycles: 25 GB/s of a
// core at 2.5 GHz, more than a core's share of memory.
struct VnniInt4 : Avx512Int4<VnniInt8> {
  static constexpr int64_t kRegisterTokens = 16;
  static Bytes biased(Bytes table) { return _mm512_xor_si512(table, _mm512_set1_epi8(-128)); }
  static Dot dot(Dot d, Bytes w, X x) { return _mm512_dpbusd_epi32(d, w, x); }
};

// As VnniInt8Streams.
struct VnniInt4Streams : VnniInt4 {
  static constexpr int kStreams = 4;
};

}  // namespace
}  // namespace oar

// Integer matmuls with AVX-VNNI, the dot product of 256 bits that processors without AVX-512 have (Alder Lake
// and its successors, Sierra Forest). Dots are exact, so the values are those of the kernels without it, and
// the level is theirs too; they stand before matmul_avx2.cc in the list, and the first of equals is found.
#include "kernels/cpu/matmul/int4_avx2.h"
#include "kernels/cpu/matmul/int8_avx2.h"

namespace oar {
namespace {

// As VnniInt8: vpdpbusd wants its weight operand unsigned, w + 128, and dots start at -128 times the block's
// sum of activations.
struct AvxVnniInt8 : Avx2Int8 {
  using WReg = __m256i;
  // 2 x 4 dots, two weights, an activation: of 16 registers as many chains as the latency of a dot asks for.
  static constexpr int kTileVectors = 2;
  static constexpr bool kBiased = true;
  static WReg load_w(const char* line) {
    return _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(line)),
                            _mm256_set1_epi8(-128));
  }
  static Dot start(int32_t v) { return _mm256_set1_epi32(v); }
  static Dot dot(Dot d, WReg w, XReg x) { return _mm256_dpbusd_avx_epi32(d, w, x); }
};

struct AvxVnniInt4 : Avx2Int4<AvxVnniInt8> {
  static Bytes biased(Bytes table) { return _mm256_xor_si256(table, _mm256_set1_epi8(-128)); }
  static Dot dot(Dot d, Bytes w, X x) { return AvxVnniInt8::dot(d, w, x); }
  static Dot total(const Dot d[4], int32_t start) {
    return _mm256_add_epi32(Avx2Int4<AvxVnniInt8>::total(d, start), _mm256_set1_epi32(start));
  }
};

constexpr auto kEntries = join(int8_kernels<Int8Core<AvxVnniInt8>>(Isa::kAvx2, "avxvnni"),
                               int4_kernels<AvxVnniInt4, Int8Core<AvxVnniInt8>>(Isa::kAvx2, "avxvnni"));

}  // namespace

constinit const KernelTable kernels_matmul_avxvnni{kEntries, &has_avx_vnni};

}  // namespace oar

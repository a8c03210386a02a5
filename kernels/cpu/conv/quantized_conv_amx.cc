// Narrow convolution on AMX tiles: two blocks of 16 pixels by two panels of 16 channels, 64 bytes of values
// at a time, four products for four loads.
#define OAR_SIMD_NAMESPACE quantized_amx
#include "kernels/cpu/amx.h"
#include "kernels/cpu/conv/quantized_conv_driver.h"

namespace oar {
namespace {

// W: bytes of a value.
template <int64_t W>
struct AmxQuantizedCore {
  static constexpr int64_t kTile = 16, kRows = 32, kPanels = 2, kWidth = W, kStep = kQuantizedStep;
  static constexpr bool kTaps = false, kStarts = false, kSignedX = true;
  static void begin() { configure(kTile, kTile); }
  static void end() { _tile_release(); }

  // Tiles 0..3 receive the sums [block][panel], 4..5 hold x, 6..7 filters.
  static void configure(int64_t first, int64_t second) {
    const int64_t n[] = {first, std::max<int64_t>(second, 1)};
    TileConfig c;
    for (int i = 0; i < 4; ++i) c.set(i, n[i / 2], 64);
    for (int i = 0; i < 2; ++i) c.set(4 + i, n[i], 64);
    for (int i = 6; i < 8; ++i) c.set(i, 16, 64);
    load_config(c);
  }

// Tiles are named by literals: a macro, not a function.
#define OAR_MULTIPLY(sum, x, w)                          \
  do {                                                   \
    if constexpr (W == 2) _tile_dpbf16ps(sum, x, w);     \
    else if constexpr (kSigned) _tile_dpbssd(sum, x, w); \
    else _tile_dpbusd(sum, x, w);                        \
  } while (false)

  template <int B, int P, bool kSigned>
  static void product(const QuantizedTile& t) {
    _tile_zero(0);
    if constexpr (P == 2) _tile_zero(1);
    if constexpr (B == 2) _tile_zero(2);
    if constexpr (B == 2 && P == 2) _tile_zero(3);
    const auto ld = static_cast<size_t>(t.ldx);
    for (int64_t k = 0; k < t.Kp; k += kQuantizedStep) {
      __asm__ volatile("" ::: "memory");  // the tile loads do not tell the compiler that they read memory
      _tile_loadd(4, t.x + k, ld);
      _tile_loadd(6, t.w + k * kQuantizedPanel, 64);
      OAR_MULTIPLY(0, 4, 6);
      if constexpr (P == 2) {
        _tile_loadd(7, t.w + t.panel + k * kQuantizedPanel, 64);
        OAR_MULTIPLY(1, 4, 7);
      }
      if constexpr (B == 2) {
        _tile_loadd(5, t.x + kTile * t.ldx + k, ld);
        OAR_MULTIPLY(2, 5, 6);
        if constexpr (P == 2) OAR_MULTIPLY(3, 5, 7);
      }
    }
    const auto line = static_cast<size_t>(t.ldacc) * sizeof(int32_t);
    _tile_stored(0, t.acc, line);
    if constexpr (P == 2) _tile_stored(1, t.acc + kQuantizedPanel, line);
    if constexpr (B == 2) _tile_stored(2, t.acc + kTile * t.ldacc, line);
    if constexpr (B == 2 && P == 2) _tile_stored(3, t.acc + kTile * t.ldacc + kQuantizedPanel, line);
    __asm__ volatile("" ::: "memory");
  }
#undef OAR_MULTIPLY

  template <bool kSigned>
  static void dispatch(const QuantizedTile& t) {
    if (t.rows > kTile) t.panels == 2 ? product<2, 2, kSigned>(t) : product<2, 1, kSigned>(t);
    else t.panels == 2 ? product<1, 2, kSigned>(t) : product<1, 1, kSigned>(t);
  }
  static void tile(QuantizedTile& t) {
    // Setting up the registers costs as much as a tile of 64 values: it waits until the rows change.
    if (t.rows != t.configured) configure(std::min(kTile, t.rows), t.rows - std::min(kTile, t.rows));
    t.configured = t.rows;
    t.x_signed ? dispatch<true>(t) : dispatch<false>(t);
  }
};

constexpr KernelEntry kEntries[] = {quantized_conv<AmxQuantizedCore<1>>(Isa::kAmx),
                                    quantized_conv<AmxQuantizedCore<2>>(Isa::kAmx)};

}  // namespace

constinit const KernelTable kernels_quantized_conv_amx{kEntries};

}  // namespace oar

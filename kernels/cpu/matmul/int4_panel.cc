// Packing of int4.panel16 and int4z.panel16 (int4_panel.h). At load, memory bound; not a kernel.
#include "kernels/cpu/matmul/int4_panel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cpu/matmul/int4_stored.h"

namespace oar {
namespace {

// Sixteen levels, `unit` of which are one of the codebook's, and the multiplier of a block's largest scale.
struct Codebook {
  int16_t c[16];
  float unit;
  float largest = 127;
};
constexpr Codebook kLinear{{-128, -112, -96, -80, -64, -48, -32, -16, 0, 16, 32, 48, 64, 80, 96, 112},
                           1.f / 16};
constexpr Codebook kIq4{{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}, 1.f};
constexpr Codebook kE2m1{
    {0, 16, 32, 48, 64, 96, 128, 192, 0, -16, -32, -48, -64, -96, -128, -192}, 1.f / 32, 64};

// With offsets: `step` for a level. `error` of a byte is what rounding can make of it.
struct OffsetCodebook {
  int16_t c[16];
  int step;
  float error;
};
constexpr OffsetCodebook multiples(int step, float error) {
  OffsetCodebook out{{}, step, error};
  for (int q = 0; q < 16; ++q) out.c[q] = static_cast<int16_t>(step * q);
  return out;
}
constexpr OffsetCodebook kSixteenths = multiples(16, 1.21f);  // a level is m / 16
constexpr OffsetCodebook kWhole = multiples(256, 4.25f);      // and m

// What stands at the head of a block, of one row. Levels of the file become (level ^ flip) - least.
struct Fit {
  float scale = 0;
  uint8_t m[kInt4BlockGroups] = {}, o[kInt4BlockGroups] = {};
  uint8_t flip[kInt4BlockGroups] = {}, least[kInt4BlockGroups] = {};
};

// Rounded as int4_panel.h says, so that no level of any group leaves a byte.
template <const OffsetCodebook* kCodes>
Fit rounded(const OffsetGroup* groups, int64_t n) {
  float most = 0, step = 0;
  bool finite = true;
  for (int64_t g = 0; g < n; ++g) {
    const auto [d, a, levels] = groups[g];
    finite = finite && std::isfinite(d) && std::isfinite(a);
    most = std::max({most, std::fabs(a), std::fabs(a + 15 * d)});
    step = std::max(step, std::fabs(d));
  }
  Fit out;
  // A scale that is no number must reach the outputs, though no multiplier can say so.
  if (!finite) out.scale = std::numeric_limits<float>::quiet_NaN();
  if (!finite || most <= 1e-30f) return out;
  constexpr float kPerLevel = 256.f / kCodes->step;  // m
  out.scale = std::max(most / (127 - kCodes->error), step * kPerLevel / 255);
  const float inverse = 1 / out.scale;
  for (int64_t g = 0; g < n; ++g) {
    const float d = groups[g].d * inverse, mean = groups[g].a * inverse + 7.5f * d;
    const auto m = static_cast<int>(std::lrint(std::fabs(d) * kPerLevel));
    int products = 0;
    for (const int c : kCodes->c) products += m * c >> 8;
    out.m[g] = static_cast<uint8_t>(m);
    out.o[g] = static_cast<uint8_t>(std::lrint(mean - static_cast<float>(products) / 16));
    out.flip[g] = d < 0 ? 15 : 0;
  }
  return out;
}

// Whole steps and offsets, as they are; false when they make anything but a signed byte of a level that
// occurs.
bool whole(const OffsetGroup* groups, int64_t n, Fit& out) {
  out.scale = 1;
  for (int64_t g = 0; g < n; ++g) {
    const int s = static_cast<int>(groups[g].d), a = static_cast<int>(groups[g].a);
    int least = 15, most = 0;
    for (int64_t i = 0; i < kLevelBytes; ++i) {
      const int low = groups[g].levels[i] & 15, high = groups[g].levels[i] >> 4;
      least = std::min({least, low, high});
      most = std::max({most, low, high});
    }
    if (s * least + a < -128 || s * most + a > 127) return false;
    out.m[g] = static_cast<uint8_t>(s);
    out.o[g] = static_cast<uint8_t>(s * least + a);
    out.least[g] = static_cast<uint8_t>(least);
  }
  return true;
}

Fit fit_u4(const char* /*row*/, const OffsetGroup* groups, int64_t n) {
  return rounded<&kSixteenths>(groups, n);
}

Fit fit_w4a8(const char* row, const OffsetGroup* groups, int64_t n) {
  Fit out;
  if (!whole(groups, n, out)) out = rounded<&kWhole>(groups, n);
  const float scale = detail::load_head<float>(row);
  out.scale = std::isfinite(scale) ? out.scale * scale : std::numeric_limits<float>::quiet_NaN();
  return out;
}

template <bool kOffsets>
size_t bytes(int64_t n, int64_t K) {
  return static_cast<size_t>((n + kPanelRows - 1) / kPanelRows * Int4Panel<kOffsets>::bytes(K));
}

// One stored row, or zeros for a row that does not exist, into its lane of a panel.
template <auto kGroupOf, const Codebook* kCodes>
void pack_scaled(char* panel, int64_t lane, const char* row, int64_t K) {
  using Panel = Int4Panel<false>;
  const int64_t line = lane % 4 * kPanelLine + lane / 4 * kLevelBytes;
  for (int64_t b = 0; b < panel_blocks(K); ++b) {
    char* block = panel + Panel::block_at(b);
    float d[kInt4BlockGroups] = {}, most = 0;
    bool finite = true;
    for (int64_t g = 0; g < int4_block_groups(K, b); ++g) {
      char* levels = block + Panel::kHeadBytes + g * kInt4GroupBytes + line;
      if (row == nullptr) {
        std::memset(levels, 0, kLevelBytes);
        continue;
      }
      const Group from = kGroupOf(row, b * kInt4BlockGroups + g);
      std::memcpy(levels, from.levels, kLevelBytes);
      d[g] = from.d;
      finite = finite && std::isfinite(d[g]);
      most = std::max(most, std::fabs(d[g]));
    }
    // A scale that is no number must reach the outputs, though no multiplier can say so.
    const float scale =
        finite ? most * (128.f / kCodes->largest) * kCodes->unit : std::numeric_limits<float>::quiet_NaN();
    std::memcpy(block + lane * 4, &scale, 4);
    const float per_step = finite && most > 1e-36f ? kCodes->largest / most : 0.f;
    for (int64_t g = 0; g < kInt4BlockGroups; ++g) {
      block[kPanelLine + g * kPanelRows + lane] =
          static_cast<char>(std::lrint(per_step == 0 ? 0 : d[g] * per_step));
    }
  }
}

template <auto kGroupOf, auto kFit>
void pack_with_offsets(char* panel, int64_t lane, const char* row, int64_t K) {
  using Panel = Int4Panel<true>;
  const int64_t line = lane % 4 * kPanelLine + lane / 4 * kLevelBytes;
  for (int64_t b = 0; b < panel_blocks(K); ++b) {
    char* block = panel + Panel::block_at(b);
    const int64_t n = int4_block_groups(K, b);
    OffsetGroup groups[kInt4BlockGroups];
    Fit fit;
    if (row != nullptr) {
      for (int64_t g = 0; g < n; ++g) groups[g] = kGroupOf(row, b * kInt4BlockGroups + g);
      fit = kFit(row, groups, n);
    }
    for (int64_t g = 0; g < n; ++g) {
      char* levels = block + Panel::kHeadBytes + g * kInt4GroupBytes + line;
      if (row == nullptr) {
        std::memset(levels, 0, kLevelBytes);
        continue;
      }
      const int flip = fit.flip[g] * 0x11, least = fit.least[g] * 0x11;
      for (int64_t i = 0; i < kLevelBytes; ++i) {
        levels[i] = static_cast<char>((groups[g].levels[i] ^ flip) - least);
      }
    }
    std::memcpy(block + lane * 4, &fit.scale, 4);
    char* m = block + kPanelLine + lane;
    for (int64_t g = 0; g < kInt4BlockGroups; ++g, m += kPanelRows) {
      m[0] = static_cast<char>(fit.m[g]);
      m[kInt4GroupsBytes] = static_cast<char>(fit.o[g]);
    }
  }
}

template <const FormatInfo* kTo, bool kOffsets, auto kPackRow>
void pack(void* dst, const void* src, Format from, int64_t n, int64_t K, int64_t row_begin, int64_t row_end) {
  const int64_t row_bytes = from.stride(K);
  // The last panel's missing rows are written by whoever packs its existing ones.
  const int64_t end = row_end == n ? (n + kPanelRows - 1) / kPanelRows * kPanelRows : row_end;
  const Format to(kTo);
  std::vector<float> numbers(from == to ? 0 : static_cast<size_t>(K));
  std::vector<char> stored(from == to ? 0 : static_cast<size_t>(to.stride(K)));
  for (int64_t row = row_begin; row < end; ++row) {
    const char* source = row < n ? static_cast<const char*>(src) + row * row_bytes : nullptr;
    if (source != nullptr && !(from == to)) {
      from.decode_row(source, K, numbers.data());
      to.encode_row(numbers.data(), K, stored.data());
      source = stored.data();
    }
    kPackRow(static_cast<char*>(dst) + row / kPanelRows * Int4Panel<kOffsets>::bytes(K), row % kPanelRows,
             source, K);
  }
}

template <const FormatInfo* kTo, auto kGroupOf, const Codebook* kCodes = &kLinear>
constexpr WeightLayout layout() {
  return {kInt4PanelLayoutName, false,         static_cast<int>(kPanelRows),
          &bytes<false>,        &accepts<kTo>, &pack<kTo, false, &pack_scaled<kGroupOf, kCodes>>};
}
template <const FormatInfo* kTo, auto kGroupOf, auto kFit>
constexpr WeightLayout offset_layout() {
  return {kInt4OffsetLayoutName, false,         static_cast<int>(kPanelRows),
          &bytes<true>,          &accepts<kTo>, &pack<kTo, true, &pack_with_offsets<kGroupOf, kFit>>};
}

struct Entry {
  const FormatInfo* format;
  WeightLayout layout;
  const int16_t* codes = kLinear.c;
};
constexpr Entry kLayouts[] = {
    {&formats::i4_s8_g32::kInfo, layout<&formats::i4_s8_g32::kInfo, &group_of_s8>()},
    {&formats::q4_0::kInfo, layout<&formats::q4_0::kInfo, &group_of<32>>()},
    {&formats::i4_g64::kInfo, layout<&formats::i4_g64::kInfo, &group_of<64>>()},
    {&formats::i4_g128::kInfo, layout<&formats::i4_g128::kInfo, &group_of<128>>()},
    {&formats::iq4_nl::kInfo,
     layout<&formats::iq4_nl::kInfo, &group_of_32<formats::iq4_nl::Block, &formats::iq4_nl::Block::d>,
            &kIq4>(),
     kIq4.c},
    {&formats::mxfp4::kInfo,
     layout<&formats::mxfp4::kInfo, &group_of_32<formats::mxfp4::Block, &formats::mxfp4::Block::e>, &kE2m1>(),
     kE2m1.c},
    {&formats::w4a8_g32::kInfo, offset_layout<&formats::w4a8_g32::kInfo, &group_of_w4a8<32>, &fit_w4a8>(),
     kWhole.c},
    {&formats::w4a8_g64::kInfo, offset_layout<&formats::w4a8_g64::kInfo, &group_of_w4a8<64>, &fit_w4a8>(),
     kWhole.c},
    {&formats::w4a8_g128::kInfo, offset_layout<&formats::w4a8_g128::kInfo, &group_of_w4a8<128>, &fit_w4a8>(),
     kWhole.c},
    {&formats::u4_g32::kInfo, offset_layout<&formats::u4_g32::kInfo, &group_of_u4<32>, &fit_u4>(),
     kSixteenths.c},
    {&formats::u4_g64::kInfo, offset_layout<&formats::u4_g64::kInfo, &group_of_u4<64>, &fit_u4>(),
     kSixteenths.c},
    {&formats::u4_g128::kInfo, offset_layout<&formats::u4_g128::kInfo, &group_of_u4<128>, &fit_u4>(),
     kSixteenths.c},
    {&formats::q4_1::kInfo, offset_layout<&formats::q4_1::kInfo, &group_of_q4_1, &fit_u4>(), kSixteenths.c},
};

}  // namespace

const int16_t* int4_codebook(Format format) {
  for (const Entry& e : kLayouts) {
    if (format == Format(e.format)) return e.codes;
  }
  return kLinear.c;
}

const WeightLayout* int4_panel_layout(Format format) {
  for (const Entry& e : kLayouts) {
    if (format == Format(e.format)) return &e.layout;
  }
  return nullptr;
}

}  // namespace oar

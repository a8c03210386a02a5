// Packing of int4.panel16 (int4_panel.h). At load, memory bound; not a kernel.
#include "kernels/cpu/int4_panel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "quant/formats/i4_group.h"
#include "quant/formats/i4_s8_g32.h"
#include "quant/formats/iq4.h"
#include "quant/formats/mxfp4.h"
#include "quant/formats/q4_0.h"

namespace oar {
namespace {

constexpr int64_t kLevelBytes = kInt4Group / 2;

// Scale and levels of group g of a stored row.
struct Group {
  float d;
  const uint8_t* levels;
};

template <int G>
Group group_of(const char* row, int64_t g) {
  using Block = formats::I4Group<G>;
  const char* block = row + g * kInt4Group / G * static_cast<int64_t>(sizeof(Block));
  oar::f16 d;
  std::memcpy(&d, block, 2);
  return {to_f32(d), reinterpret_cast<const uint8_t*>(block) + 2 + g % (G / kInt4Group) * kLevelBytes};
}

Group group_of_s8(const char* row, int64_t g) {
  using namespace formats::i4_s8_g32;
  const char* block = row + sizeof(Head) + g * static_cast<int64_t>(sizeof(Block));
  return {detail::load_head<Head>(row).scale * static_cast<float>(static_cast<uint8_t>(*block)),
          reinterpret_cast<const uint8_t*>(block) + 1};
}

template <class Block, auto kScale>
Group group_of_32(const char* row, int64_t g) {
  const char* block = row + g * static_cast<int64_t>(sizeof(Block));
  std::remove_cvref_t<decltype(Block{}.*kScale)> d;
  std::memcpy(&d, block, sizeof d);
  return {to_f32(d), reinterpret_cast<const uint8_t*>(block) + sizeof d};
}

// Sixteen levels, `unit` of which are one of the codebook's.
struct Codebook {
  int16_t c[16];
  float unit;
};
constexpr Codebook kLinear{{-128, -112, -96, -80, -64, -48, -32, -16, 0, 16, 32, 48, 64, 80, 96, 112},
                           1.f / 16};
constexpr Codebook kIq4{{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}, 1.f};
constexpr Codebook kE2m1{{0, 10, 20, 30, 40, 60, 80, 120, 0, -10, -20, -30, -40, -60, -80, -120}, 1.f / 20};

size_t bytes(int64_t n, int64_t K) {
  return static_cast<size_t>((n + kPanelRows - 1) / kPanelRows * int4_panel_bytes(K));
}

template <const FormatInfo* kTo>
bool accepts(Format from, int64_t /*n*/, int64_t K) {
  if (K % kTo->block_elems != 0) return false;
  return from == Format(kTo) || (kTo->encode != nullptr &&
                                 (from == Format::f32() || from == Format::f16() || from == Format::bf16()));
}

// One stored row, or zeros for a row that does not exist, into its lane of a panel.
template <class GroupOf>
void pack_row(char* panel, int64_t lane, const char* row, int64_t K, GroupOf group, float unit) {
  const int64_t line = lane % 4 * kPanelLine + lane / 4 * kLevelBytes;
  for (int64_t b = 0; b < panel_blocks(K); ++b) {
    char* block = panel + int4_block_at(b);
    float d[kInt4BlockGroups] = {}, most = 0;
    bool finite = true;
    for (int64_t g = 0; g < int4_block_groups(K, b); ++g) {
      char* levels = block + kInt4HeadBytes + g * kInt4GroupBytes + line;
      if (row == nullptr) {
        std::memset(levels, 0, kLevelBytes);
        continue;
      }
      const Group from = group(row, b * kInt4BlockGroups + g);
      std::memcpy(levels, from.levels, kLevelBytes);
      d[g] = from.d;
      finite = finite && std::isfinite(d[g]);
      most = std::max(most, std::fabs(d[g]));
    }
    // A scale that is no number must reach the outputs, though no multiplier can say so.
    const float scale = finite ? most * (128.f / 127.f) * unit : std::numeric_limits<float>::quiet_NaN();
    std::memcpy(block + lane * 4, &scale, 4);
    const float per_step = finite && most > 1e-36f ? 127.f / most : 0.f;
    for (int64_t g = 0; g < kInt4BlockGroups; ++g) {
      block[kPanelLine + g * kPanelRows + lane] =
          static_cast<char>(std::lrint(per_step == 0 ? 0 : d[g] * per_step));
    }
  }
}

template <const FormatInfo* kTo, auto kGroupOf, const Codebook* kCodes>
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
    pack_row(static_cast<char*>(dst) + row / kPanelRows * int4_panel_bytes(K), row % kPanelRows, source, K,
             kGroupOf, kCodes->unit);
  }
}

template <const FormatInfo* kTo, auto kGroupOf, const Codebook* kCodes = &kLinear>
constexpr WeightLayout layout() {
  return {"int4.panel16", false,         static_cast<int>(kPanelRows),
          &bytes,         &accepts<kTo>, &pack<kTo, kGroupOf, kCodes>};
}

// q4_0's block is that of the family, its levels too.
static_assert(sizeof(formats::q4_0::Block) == sizeof(formats::I4Group<32>));

struct Entry {
  const FormatInfo* format;
  WeightLayout layout;
  const Codebook* codes = &kLinear;
};
constexpr Entry kLayouts[] = {
    {&formats::i4_s8_g32::kInfo, layout<&formats::i4_s8_g32::kInfo, &group_of_s8>()},
    {&formats::q4_0::kInfo, layout<&formats::q4_0::kInfo, &group_of<32>>()},
    {&formats::i4_g64::kInfo, layout<&formats::i4_g64::kInfo, &group_of<64>>()},
    {&formats::i4_g128::kInfo, layout<&formats::i4_g128::kInfo, &group_of<128>>()},
    {&formats::iq4_nl::kInfo,
     layout<&formats::iq4_nl::kInfo, &group_of_32<formats::iq4_nl::Block, &formats::iq4_nl::Block::d>,
            &kIq4>(),
     &kIq4},
    {&formats::mxfp4::kInfo,
     layout<&formats::mxfp4::kInfo, &group_of_32<formats::mxfp4::Block, &formats::mxfp4::Block::e>, &kE2m1>(),
     &kE2m1},
};

}  // namespace

const int16_t* int4_codebook(Format format) {
  for (const Entry& e : kLayouts) {
    if (format == Format(e.format)) return e.codes->c;
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

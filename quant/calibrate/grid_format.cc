#include "quant/calibrate/grid_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "quant/formats/i4_group.h"
#include "quant/formats/i4_s8_g32.h"
#include "quant/formats/i8_channel.h"
#include "quant/formats/q4_0.h"
#include "quant/formats/q4_1.h"
#include "quant/formats/q6_k.h"
#include "quant/formats/q8_0.h"
#include "quant/formats/u4_group.h"
#include "quant/formats/w4a8.h"

namespace oar::calibrate {
namespace {

using Levels = std::span<const int8_t>;
using Scales = std::span<const float>;

// Codes -8..7 as the nibbles of a 32-element block: element i low, i + 16 high.
void pack_nibbles(const int8_t* levels, int offset, uint8_t* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<uint8_t>((levels[i] + offset) | (levels[i + 16] + offset) << 4);
  }
}

void pack_q8_0(Levels levels, Scales scale, Scales, std::byte* out) {
  for (size_t g = 0; g < scale.size(); ++g, out += sizeof(formats::q8_0::Block)) {
    formats::q8_0::Block b;
    b.d = to_f16(scale[g]);
    std::copy_n(levels.data() + g * 32, 32, b.q);
    std::memcpy(out, &b, sizeof b);
  }
}

void pack_q4_0(Levels levels, Scales scale, Scales, std::byte* out) {
  for (size_t g = 0; g < scale.size(); ++g, out += sizeof(formats::q4_0::Block)) {
    formats::q4_0::Block b;
    b.d = to_f16(scale[g]);
    pack_nibbles(levels.data() + g * 32, 8, b.q);
    std::memcpy(out, &b, sizeof b);
  }
}

void pack_q4_1(Levels levels, Scales scale, Scales zero, std::byte* out) {
  for (size_t g = 0; g < scale.size(); ++g, out += sizeof(formats::q4_1::Block)) {
    formats::q4_1::Block b;
    b.d = to_f16(scale[g]);
    b.m = to_f16(-zero[g] * scale[g]);
    pack_nibbles(levels.data() + g * 32, 0, b.q);
    std::memcpy(out, &b, sizeof b);
  }
}

void pack_q6_k(Levels levels, Scales scale, Scales, std::byte* out) {
  constexpr size_t kGroups = 16;
  for (size_t first = 0; first < scale.size(); first += kGroups, out += sizeof(formats::q6_k::Block)) {
    formats::q6_k::Block b = {};
    float largest = 0;
    for (size_t g = 0; g < kGroups; ++g) largest = std::max(largest, std::abs(scale[first + g]));
    b.d = to_f16(largest / 127);
    const float unit = to_f32(b.d);
    for (size_t g = 0; g < kGroups; ++g) {
      const float multiple = unit > 0 ? std::nearbyint(scale[first + g] / unit) : 0;
      b.scales[g] = static_cast<int8_t>(std::clamp(multiple, -127.f, 127.f));
    }
    for (int e = 0; e < 256; ++e) {
      const int level = levels[first * 16 + static_cast<size_t>(e)] + 32;
      const int half = e / 128, run = e % 128 / 32, i = e % 32;
      b.low[half * 64 + (run % 2) * 32 + i] |= static_cast<uint8_t>((level & 15) << (run < 2 ? 0 : 4));
      b.high[half * 32 + i] |= static_cast<uint8_t>(level >> 4 << (2 * run));
    }
    std::memcpy(out, &b, sizeof b);
  }
}

// Codes 0..15 in the order of quant/formats/group.h.
template <class Block>
void pack_levels(const int8_t* levels, size_t count, int offset, Block& b) {
  for (size_t i = 0; i < count; ++i) { formats::set_nibble(b.q, static_cast<int>(i), levels[i] + offset); }
}

template <int G>
void pack_i4(Levels levels, Scales scale, Scales, std::byte* out) {
  for (size_t g = 0; g < scale.size(); ++g, out += sizeof(formats::I4Group<G>)) {
    formats::I4Group<G> b = {};
    b.d = to_f16(scale[g]);
    pack_levels(levels.data() + g * G, G, 8, b);
    std::memcpy(out, &b, sizeof b);
  }
}

template <int G>
void pack_u4(Levels levels, Scales scale, Scales zero, std::byte* out) {
  for (size_t g = 0; g < scale.size(); ++g, out += sizeof(formats::U4Group<G>)) {
    formats::U4Group<G> b = {};
    b.d = to_f16(scale[g]);
    b.z = to_f16(zero[g]);
    pack_levels(levels.data() + g * G, G, 0, b);
    std::memcpy(out, &b, sizeof b);
  }
}

void pack_i8_channel(Levels levels, Scales scale, Scales, std::byte* out) {
  const formats::i8_channel::Head head{scale[0]};
  std::memcpy(out, &head, sizeof head);
  std::memcpy(out + sizeof head, levels.data(), levels.size());
}

void pack_i4_s8(Levels levels, Scales scale, Scales, std::byte* out) {
  using namespace formats::i4_s8_g32;
  const float largest = *std::max_element(scale.begin(), scale.end());
  const Head head{largest / 255};
  std::memcpy(out, &head, sizeof head);
  out += sizeof head;
  for (size_t g = 0; g < scale.size(); ++g, out += sizeof(Block)) {
    Block b = {};
    if (head.scale > 0) b.s = static_cast<uint8_t>(std::nearbyint(scale[g] / head.scale));
    pack_levels(levels.data() + g * kElems, kElems, 8, b);
    std::memcpy(out, &b, sizeof b);
  }
}

// The row's unit is not in the scales: their greatest common step is, as every one is 1 .. 16 times it.
float progressive_unit(Scales scale) {
  const float least = *std::min_element(scale.begin(), scale.end());
  if (!(least > 0)) return 0;
  for (int divisor = 1; divisor <= 16; ++divisor) {
    const float unit = least / static_cast<float>(divisor);
    const bool all = std::all_of(scale.begin(), scale.end(), [&](float s) {
      const float multiple = s / unit;
      return multiple < 16.5f && std::abs(multiple - std::nearbyint(multiple)) < 1e-3f;
    });
    if (all) return unit;
  }
  return least;  // not reached: fit_row() made them so
}

template <int G>
void pack_w4a8(Levels levels, Scales scale, Scales zero, std::byte* out) {
  using Block = formats::W4A8Group<G>;
  const typename Block::Head head{progressive_unit(scale)};
  std::memcpy(out, &head, sizeof head);
  out += sizeof head;
  for (size_t g = 0; g < scale.size(); ++g, out += sizeof(Block)) {
    Block b = {};
    b.s = head.scale > 0 ? static_cast<uint8_t>(std::nearbyint(scale[g] / head.scale)) : uint8_t{1};
    b.z = static_cast<uint8_t>(zero[g]);
    pack_levels(levels.data() + g * G, G, 0, b);
    std::memcpy(out, &b, sizeof b);
  }
}

constexpr GridSpec i8(int64_t group, ScaleRule rule) {
  return {.low = -127, .high = 127, .group = group, .scales = rule};
}
constexpr GridSpec i4(int64_t group) {
  return {.signed_scale = true, .group = group, .scales = ScaleRule::kF16};
}
constexpr GridSpec u4(int64_t group) {
  return {.low = 0, .high = 15, .has_zero = true, .group = group, .scales = ScaleRule::kF16Zero};
}
constexpr GridSpec progressive(int64_t group) {
  return {.low = 0,
          .high = 15,
          .has_zero = true,
          .zero_in_range = true,
          .group = group,
          .scales = ScaleRule::kProgressive};
}

constexpr GridFormat kGridFormats[] = {
    {"q8_0", i8(32, ScaleRule::kF16), pack_q8_0},
    {"i8_channel", i8(0, ScaleRule::kF32), pack_i8_channel},
    {"q4_0", i4(32), pack_q4_0},
    {"i4_g64", i4(64), pack_i4<64>},
    {"i4_g128", i4(128), pack_i4<128>},
    {"q4_1", {.low = 0, .high = 15, .has_zero = true, .group = 32, .scales = ScaleRule::kF16}, pack_q4_1},
    {"u4_g32", u4(32), pack_u4<32>},
    {"u4_g64", u4(64), pack_u4<64>},
    {"u4_g128", u4(128), pack_u4<128>},
    {"i4_s8_g32", {.group = 32, .scales = ScaleRule::kRowTimesU8}, pack_i4_s8},
    {"w4a8_g32", progressive(32), pack_w4a8<32>},
    {"w4a8_g64", progressive(64), pack_w4a8<64>},
    {"w4a8_g128", progressive(128), pack_w4a8<128>},
    {"q6_k",
     {.low = -32, .high = 31, .signed_scale = true, .group = 16, .scales = ScaleRule::kBlockTimesI8},
     pack_q6_k},
};

}  // namespace

const GridFormat* find_grid_format(Format format) {
  for (const GridFormat& g : kGridFormats) {
    if (std::strcmp(g.format, format.name()) == 0) return &g;
  }
  return nullptr;
}

}  // namespace oar::calibrate

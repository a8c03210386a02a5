#include "quant/calibrate/grid_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "quant/formats/q4_0.h"
#include "quant/formats/q4_1.h"
#include "quant/formats/q6_k.h"
#include "quant/formats/q8_0.h"

namespace oar::calibrate {
namespace {

using Levels = std::span<const int8_t>;
using Scales = std::span<const float>;

// Levels -8..7 as the nibbles of a 32-element block: element i low, i + 16 high.
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

constexpr GridFormat kGridFormats[] = {
    {"q8_0", {.low = -127, .high = 127, .group = 32, .scales = ScaleRule::kF16}, pack_q8_0},
    {"q4_0", {.signed_scale = true, .group = 32, .scales = ScaleRule::kF16}, pack_q4_0},
    {"q4_1", {.low = 0, .high = 15, .has_zero = true, .group = 32, .scales = ScaleRule::kF16}, pack_q4_1},
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

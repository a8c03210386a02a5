// Groups of 32 weights of 4 bits as the formats store them, for the packing of int4_panel.cc and
// int4_groups.cc.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "quant/formats/i4_group.h"
#include "quant/formats/i4_s8_g32.h"
#include "quant/formats/iq4.h"
#include "quant/formats/mxfp4.h"
#include "quant/formats/q4_0.h"
#include "quant/formats/q4_1.h"
#include "quant/formats/u4_group.h"
#include "quant/formats/w4a8.h"

namespace oar {
namespace {

inline constexpr int64_t kStoredGroup = 32;
inline constexpr int64_t kLevelBytes = kStoredGroup / 2;

// Scale and levels of group g of a stored row.
struct Group {
  float d;
  const uint8_t* levels;
};

template <int G>
Group group_of(const char* row, int64_t g) {
  using Block = formats::I4Group<G>;
  const char* block = row + g * kStoredGroup / G * static_cast<int64_t>(sizeof(Block));
  oar::f16 d;
  std::memcpy(&d, block, 2);
  return {to_f32(d), reinterpret_cast<const uint8_t*>(block) + 2 + g % (G / kStoredGroup) * kLevelBytes};
}

inline Group group_of_s8(const char* row, int64_t g) {
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

// A group with an offset: level q is d * q + a.
struct OffsetGroup {
  float d, a;
  const uint8_t* levels;
};

template <int G>
OffsetGroup group_of_u4(const char* row, int64_t g) {
  using Block = formats::U4Group<G>;
  const char* block = row + g * kStoredGroup / G * static_cast<int64_t>(sizeof(Block));
  oar::f16 head[2];
  std::memcpy(head, block, sizeof head);
  const float d = to_f32(head[0]);
  return {d, -d * to_f32(head[1]),
          reinterpret_cast<const uint8_t*>(block) + sizeof head + g % (G / kStoredGroup) * kLevelBytes};
}

inline OffsetGroup group_of_q4_1(const char* row, int64_t g) {
  const char* block = row + g * static_cast<int64_t>(sizeof(formats::q4_1::Block));
  oar::f16 head[2];
  std::memcpy(head, block, sizeof head);
  return {to_f32(head[0]), to_f32(head[1]), reinterpret_cast<const uint8_t*>(block) + sizeof head};
}

// In units of the row's scale.
template <int G>
OffsetGroup group_of_w4a8(const char* row, int64_t g) {
  using Block = formats::W4A8Group<G>;
  const uint8_t* block = reinterpret_cast<const uint8_t*>(row + sizeof(typename Block::Head)) +
                         g * kStoredGroup / G * sizeof(Block);
  const int s = block[0], z = block[1];
  return {static_cast<float>(s), static_cast<float>(-s * z),
          block + 2 + g % (G / kStoredGroup) * kLevelBytes};
}

// q4_0's block is that of the family, its levels too.
static_assert(sizeof(formats::q4_0::Block) == sizeof(formats::I4Group<32>));

// Rows of the format itself, or of numbers to be encoded.
template <const FormatInfo* kTo>
bool accepts(Format from, int64_t /*n*/, int64_t K) {
  if (K % kTo->block_elems != 0) return false;
  return from == Format(kTo) || (kTo->encode != nullptr &&
                                 (from == Format::f32() || from == Format::f16() || from == Format::bf16()));
}

}  // namespace
}  // namespace oar

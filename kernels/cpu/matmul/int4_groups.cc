// Packing of the layouts of int4_groups.h. At load, memory bound; not a kernel.
#include "kernels/cpu/matmul/int4_groups.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cpu/matmul/int4_stored.h"

namespace oar {
namespace {

// A scale that is no number must reach the outputs, though no multiplier can say so.
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Sixteen bytes of a row's levels to its lane of a step.
void store_levels(char* step, int64_t lane, const uint8_t* levels) {
  char* to = step + lane * 4;
  for (int64_t j = 0; j < 4; ++j) std::memcpy(to + j * kGroupsRows * 4, levels + 4 * j, 4);
}

// One block of a stored row, `groups` of its own, into its lane of a panel's.
template <int G>
struct Scaled {
  using Panel = Int4GroupsPanel<G, false>;
  static void pack(char* block, int64_t lane, const char* row, int64_t b, int64_t groups) {
    float d[Panel::kGroups], most = 0;
    bool finite = true;
    for (int64_t g = 0; g < groups; ++g) {
      d[g] = stored(row, b, g, 0).d;
      finite = finite && std::isfinite(d[g]);
      most = std::max(most, std::fabs(d[g]));
    }
    const float scale = finite ? most / 127 : kNaN;
    const float per_step = finite && most > 1e-36f ? 127 / most : 0.f;
    std::memcpy(block + lane * 4, &scale, 4);
    for (int64_t g = 0; g < groups; ++g) {
      block[Panel::kMultipliers + g * kGroupsRows + lane] =
          static_cast<char>(per_step == 0 ? 0 : std::lrint(d[g] * per_step));
      for (int64_t s = 0; s < G / kGroupsStep; ++s) {
        store_levels(block + Panel::kLevels + (g * (G / kGroupsStep) + s) * Panel::kStepBytes, lane,
                     stored(row, b, g, s).levels);
      }
    }
  }

 private:
  // Step s of group g of block b.
  static Group stored(const char* row, int64_t b, int64_t g, int64_t s) {
    return group_of<G>(row, (b * Panel::kGroups + g) * (G / kGroupsStep) + s);
  }
};

// A group with an offset, whose levels of 32 k each are wherever `steps` says.
struct Steps {
  float d, a;
  const uint8_t* steps[4];
  int64_t count;
};

// Integers of a block's groups, of one row.
struct Fit {
  float scale = 0;
  uint8_t m[kGroupsOfBlock] = {};
  int8_t o[kGroupsOfBlock] = {};
  // Levels of the file become (level ^ flip) - least.
  uint8_t flip[kGroupsOfBlock] = {}, least[kGroupsOfBlock] = {};
};

// Rounded as int4_groups.h says. `bytes`: no level of any group leaves a signed byte.
Fit rounded(const Steps* groups, int64_t n, int shift, bool bytes) {
  Fit out;
  float d[kGroupsOfBlock], a[kGroupsOfBlock], most_d = 0, most = 0;
  for (int64_t g = 0; g < n; ++g) {
    const bool down = groups[g].d < 0;
    d[g] = std::fabs(groups[g].d);
    a[g] = down ? groups[g].a + 15 * groups[g].d : groups[g].a;
    out.flip[g] = down ? 15 : 0;
    if (!std::isfinite(d[g]) || !std::isfinite(a[g])) {
      out.scale = kNaN;
      return out;
    }
    most_d = std::max(most_d, d[g]);
    most = std::max({most, std::fabs(a[g]), bytes ? std::fabs(a[g] + 15 * d[g]) : 0});
  }
  if (std::max(most_d, most) <= 1e-30f) return out;
  const auto unit = static_cast<float>(1 << shift);
  const float room = bytes ? 4.25f : 4.f;  // for what rounding adds
  out.scale = std::max(most_d / 255, most / (127 * unit - room));
  const float inverse = 1 / out.scale;
  for (int64_t g = 0; g < n; ++g) {
    const auto m = static_cast<float>(std::lrint(d[g] * inverse));
    out.m[g] = static_cast<uint8_t>(m);
    out.o[g] = static_cast<int8_t>(std::lrint((a[g] * inverse + 7.5f * (d[g] * inverse - m)) / unit));
  }
  return out;
}

// Whole steps and offsets, as they are; false when they make anything but a signed byte of a level that
// occurs.
bool whole(const Steps* groups, int64_t n, Fit& out) {
  out.scale = 1;
  for (int64_t g = 0; g < n; ++g) {
    const int s = static_cast<int>(groups[g].d), a = static_cast<int>(groups[g].a);
    int least = 15, most = 0;
    for (int64_t step = 0; step < groups[g].count; ++step) {
      for (int64_t i = 0; i < kLevelBytes; ++i) {
        const int both = groups[g].steps[step][i], low = both & 15, high = both >> 4;
        least = std::min({least, low, high});
        most = std::max({most, low, high});
      }
    }
    if (s * least + a < -128 || s * most + a > 127) return false;
    out.m[g] = static_cast<uint8_t>(s);
    out.o[g] = static_cast<int8_t>(s * least + a);
    out.least[g] = static_cast<uint8_t>(least);
  }
  return true;
}

constexpr int kU4Shift = 4, kW4a8Shift = 0;

Fit fit_u4(const char* /*row*/, const Steps* groups, int64_t n) {
  return rounded(groups, n, kU4Shift, false);
}

Fit fit_w4a8(const char* row, const Steps* groups, int64_t n) {
  Fit out;
  if (!whole(groups, n, out)) out = rounded(groups, n, kW4a8Shift, true);
  const float scale = detail::load_head<float>(row);
  out.scale = std::isfinite(scale) ? out.scale * scale : kNaN;
  return out;
}

template <int G, auto kGroupOf, auto kFit>
struct WithOffsets {
  using Panel = Int4GroupsPanel<G, true>;
  static void pack(char* block, int64_t lane, const char* row, int64_t b, int64_t n) {
    constexpr int64_t kOfGroup = G / kGroupsStep;
    Steps groups[Panel::kGroups];
    for (int64_t g = 0; g < n; ++g) {
      for (int64_t s = 0; s < kOfGroup; ++s) {
        const OffsetGroup from = kGroupOf(row, (b * Panel::kGroups + g) * kOfGroup + s);
        groups[g].d = from.d;
        groups[g].a = from.a;
        groups[g].steps[s] = from.levels;
      }
      groups[g].count = kOfGroup;
    }
    const Fit fit = kFit(row, groups, n);
    std::memcpy(block + lane * 4, &fit.scale, 4);
    for (int64_t g = 0; g < n; ++g) {
      block[Panel::kMultipliers + g * kGroupsRows + lane] = static_cast<char>(fit.m[g]);
      block[Panel::kOffsets + (g / 2 * kGroupsRows + lane) * 2 + g % 2] = static_cast<char>(fit.o[g]);
      const int flip = fit.flip[g] * 0x11, least = fit.least[g] * 0x11;
      for (int64_t s = 0; s < kOfGroup; ++s) {
        uint8_t levels[kLevelBytes];
        for (int64_t i = 0; i < kLevelBytes; ++i) {
          levels[i] = static_cast<uint8_t>((groups[g].steps[s][i] ^ flip) - least);
        }
        store_levels(block + Panel::kLevels + (g * kOfGroup + s) * Panel::kStepBytes, lane, levels);
      }
    }
  }
};

template <class Panel>
size_t bytes(int64_t n, int64_t K) {
  return static_cast<size_t>((n + kGroupsRows - 1) / kGroupsRows * Panel::bytes(K));
}

// Panel by panel, and block by block, so that the lines being written stay in the first-level cache. Rows
// that do not exist are zero; they are written by whoever packs the last panel's existing ones.
template <const FormatInfo* kTo, class Rows>
void pack(void* dst, const void* src, Format from, int64_t n, int64_t K, int64_t row_begin, int64_t row_end) {
  using Panel = typename Rows::Panel;
  const Format to(kTo);
  const int64_t row_bytes = from.stride(K), stored_bytes = to.stride(K);
  const bool encode = !(from == to);
  std::vector<float> numbers(encode ? static_cast<size_t>(K) : 0);
  std::vector<char> stored(encode ? static_cast<size_t>(kGroupsRows * stored_bytes) : 0);
  for (int64_t row = row_begin; row < row_end; row += kGroupsRows) {
    const int64_t rows = std::min(kGroupsRows, n - row);
    const char* source = static_cast<const char*>(src) + row * row_bytes;
    if (encode) {
      for (int64_t r = 0; r < rows; ++r) {
        from.decode_row(source + r * row_bytes, K, numbers.data());
        to.encode_row(numbers.data(), K, stored.data() + r * stored_bytes);
      }
      source = stored.data();
    }
    char* panel = static_cast<char*>(dst) + row / kGroupsRows * Panel::bytes(K);
    for (int64_t b = 0; b < Panel::blocks(K); ++b) {
      char* block = panel + b * Panel::kBlock;
      const int64_t groups = Panel::groups(K, b);
      if (rows < kGroupsRows || groups < Panel::kGroups) {
        std::memset(block, 0, static_cast<size_t>(std::min(Panel::kBlock, panel + Panel::bytes(K) - block)));
      }
      for (int64_t r = 0; r < rows; ++r) { Rows::pack(block, r, source + r * stored_bytes, b, groups); }
    }
  }
}

struct Entry {
  const FormatInfo* format;
  int shift;  // of offsets
  WeightLayout layout;
};

template <const FormatInfo* kTo, class Rows>
constexpr Entry entry(const char* name, int shift = 0) {
  return {kTo, shift,
          WeightLayout{name, false, static_cast<int>(kGroupsRows), &bytes<typename Rows::Panel>,
                       &accepts<kTo>, &pack<kTo, Rows>}};
}
template <int G, const FormatInfo* kTo>
constexpr Entry scaled(const char* name) {
  return entry<kTo, Scaled<G>>(name);
}
template <int G, const FormatInfo* kTo>
constexpr Entry u4(const char* name) {
  return entry<kTo, WithOffsets<G, &group_of_u4<G>, &fit_u4>>(name, kU4Shift);
}
template <int G, const FormatInfo* kTo>
constexpr Entry w4a8(const char* name) {
  return entry<kTo, WithOffsets<G, &group_of_w4a8<G>, &fit_w4a8>>(name, kW4a8Shift);
}

constexpr const char *k64 = "int4.g64.panel32", *k128 = "int4.g128.panel32";
constexpr const char *kZ64 = "int4z.g64.panel32", *kZ128 = "int4z.g128.panel32";
constexpr Entry kEntries[] = {
    scaled<64, &formats::i4_g64::kInfo>(k64),  scaled<128, &formats::i4_g128::kInfo>(k128),
    u4<64, &formats::u4_g64::kInfo>(kZ64),     u4<128, &formats::u4_g128::kInfo>(kZ128),
    w4a8<64, &formats::w4a8_g64::kInfo>(kZ64), w4a8<128, &formats::w4a8_g128::kInfo>(kZ128),
};

const Entry* find(Format format) {
  const auto* const at =
      std::ranges::find_if(kEntries, [&](const Entry& e) { return format == Format(e.format); });
  return at == std::end(kEntries) ? nullptr : at;
}

}  // namespace

int int4_groups_shift(Format format) { return find(format)->shift; }

const WeightLayout* int4_groups_layout(Format format) {
  const Entry* e = find(format);
  return e == nullptr ? nullptr : &e->layout;
}

}  // namespace oar

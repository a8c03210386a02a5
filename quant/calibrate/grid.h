// Integer grids of a weight matrix, row by row: a group of consecutive columns shares a scale (and a zero),
// and each weight becomes a code. First a grid is fitted, then codes are chosen: by rounding here, with
// error feedback in gptq.h. Apart from storage: a format says which scales it can hold (ScaleRule) and packs
// the codes (grid_format.h).
//
//   x ~= scale * (code - zero),   code an integer in [low, high]
//
// Convention: W (rows = outputs, cols = inputs), y = W x. A row is independent of all others, so callers
// spread rows over threads; every function is deterministic and allocates only small scratch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace oar::calibrate {

// What the scales of a row may be once stored.
enum class ScaleRule : uint8_t {
  kF32,           // anything
  kF16,           // rounded to f16; with a zero, the minimum as well
  kF16Zero,       // scale and zero each rounded to f16
  kRowTimesU8,    // a f32 of the row times 1 .. 255, or 0 for a group of zeros; no zero
  kBlockTimesI8,  // a f16 of 256 columns times -127 .. 127; no zero
  kProgressive,   // a f32 of the row, absmax / 119, times 1 .. 16; the zero is an integer of [low, high], and
                  // scale * (level - zero) stays within int8 of the row's (QServe's two levels)
};

struct GridSpec {
  int low = -8, high = 7;
  bool has_zero = false;  // a real zero per group; otherwise zero is 0
  // A negative scale is allowed: the longer side of [low, high] serves either sign.
  bool signed_scale = false;
  // With a zero: 0 is always among the values that the codes reach.
  bool zero_in_range = false;
  int64_t group = 32;  // columns; the last group of a row may be shorter. 0: the whole row
  ScaleRule scales = ScaleRule::kF32;

  int64_t groups(int64_t cols) const { return group == 0 ? 1 : (cols + group - 1) / group; }
  int64_t columns(int64_t cols) const { return group == 0 ? cols : group; }
};

enum class FitMethod : uint8_t {
  kAbsMax,  // the extremes fit: nothing is clipped
  kMse,     // the extremes shrunk by the factor that loses least, of 1.00, 0.99 .. 0.20 (QuaRot's w_clip)
  kHqq,     // half-quadratic: https://mobiusml.github.io/hqq_blog/
};

struct FitOptions {
  FitMethod method = FitMethod::kMse;
  double norm = 2;        // kMse: the loss is sum importance * |error|^norm
  int shrink_steps = 80;  // kMse: how many factors below 1.00, 0.01 apart
  int hqq_iterations = 20;
};

// The grid of one row: `scale` and `zero` have spec.groups(cols) entries, representable under spec.scales. A
// group of zeros has scale 0 where the rule allows, and always reads back as zeros. `importance` (may be
// empty) weighs each column's squared error, for example the mean square of its input; kHqq ignores it.
void fit_row(std::span<const float> row, std::span<const float> importance, const GridSpec& spec,
             const FitOptions& options, std::span<float> scale, std::span<float> zero);

// Nearest codes on a given grid, ties to even.
void round_row(std::span<const float> row, const GridSpec& spec, std::span<const float> scale,
               std::span<const float> zero, std::span<int8_t> levels);

// The weights that codes stand for. Codes of an unsigned grid up to 255 are stored as the same bits.
void read_row(std::span<const int8_t> levels, const GridSpec& spec, std::span<const float> scale,
              std::span<const float> zero, std::span<float> row);

// One code and its value: the step of error feedback.
inline int level_of(const GridSpec& spec, float x, float inverse_scale, float zero) {
  // Adding and subtracting 1.5 * 2^23 rounds to nearest even for |v| < 2^22.
  float v = x * inverse_scale + zero;
  const auto low = static_cast<float>(spec.low), high = static_cast<float>(spec.high);
  v = v < low ? low : v > high ? high : v;
  constexpr float kMagic = 12582912.f;
  return static_cast<int>((v + kMagic) - kMagic);
}
inline float reciprocal(float scale) { return scale != 0 ? 1 / scale : 0; }

}  // namespace oar::calibrate

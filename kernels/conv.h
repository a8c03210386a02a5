// Convolution, products with packed matrices, and pooling over pixels whose channels lie together
// (N, H, W, C): the kernels of ordinary models. f32.
//
// Everything here reads whole channel vectors, so that one inner loop serves 1x1 and KxK windows, any stride,
// dilation and padding: a row of the product is an output pixel. It gathers `KH * KW` input pixels of C
// channels each through a table of pointers (padding points at zeros). A matrix product is the case H = KH =
// KW = 1: x (W rows, C columns).
//
// Roofline: 2 N OH OW M KH KW C / groups over the machine's FMA peak for conv; bytes of x and out over
// memory bandwidth for depthwise convolution and pooling.
//
// Filters are packed into panels of output channels, panel_width(isa) of them on the processor: (groups,
// panels, KH, KW, C / groups, width), the last panel of a group padded with zeros. Small groups share panels
// (groups_share_panels()), as if all filters were one group's. Panels of one are filters one after the other,
// (M, KH, KW, C / groups): what devices read.
#pragma once

#include "kernels/kernel.h"

namespace oar {

// What follows the sum, in this order: + bias, + residual, activation.
enum class Epilogue : int32_t {
  kNone,
  kClamp,        // min(max(x, alpha), beta): relu is [0, inf], relu6 [0, 6]
  kSigmoid,      // 1 / (1 + exp(-x))
  kSilu,         // x sigmoid(x)
  kHardSigmoid,  // clamp(alpha x + beta, 0, 1)
  kHardSwish,    // x clamp(alpha x + beta, 0, 1)
  kLeakyRelu,    // x < 0 ? alpha x : x
  kTanh,
  kGelu,      // x/2 (1 + erf(x / sqrt 2))
  kGeluTanh,  // x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  // Of ActivateArgs on the processor alone:
  kElu,       // x < 0 ? alpha (exp(x) - 1) : beta x
  kSoftplus,  // log(1 + exp(x))
  kSoftsign,  // x / (1 + |x|)
  kMish,      // x tanh(log(1 + exp(x)))
};

// The activation of x in double: what the reference kernels compute and the host evaluator uses.
double epilogue_value(Epilogue kind, double x, double alpha, double beta);

// The window of convolution and pooling alike.
struct WindowShape {
  int64_t N = 0, H = 0, W = 0, OH = 0, OW = 0;
  int64_t KH = 1, KW = 1, stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
  int64_t pad_top = 0, pad_left = 0, pad_bottom = 0, pad_right = 0;
};

// Of kConv, and of kWinograd: windows of 3x3 with stride 1, dilation 1 and one group over pixels whose
// channels lie together, filters packed by pack_winograd(). kWinograd has a quarter of kConv's
// multiplications and rounds more: its transforms scale values by up to 4.5 x 4.5 on the way in and 8.2 x 8.2
// on the way out. These mostly cancel, and errors are several times those of the plain sum. It has no
// reference kernel of its own: kConv's is.
struct ConvArgs {
  uint32_t size = sizeof(ConvArgs);
  uint32_t version = 1;
  float* out = nullptr;             // (N, OH, OW) pixels, ldo apart, of M channels
  const float* x = nullptr;         // (N, H, W) pixels, ldx apart, of C channels; (N, C, H, W) when planar
  const float* w = nullptr;         // packed by pack_filters(), 64-byte aligned
  const float* bias = nullptr;      // [M] or null
  const float* residual = nullptr;  // as out, or null; may be `out` itself
  WindowShape window;
  int64_t C = 0, M = 0, groups = 1;
  int64_t ldx = 0, ldo = 0;
  int64_t out_row = 0;  // elements from one output row to the next; 0: OW * ldo
  int64_t panel = 0;    // the width the filters were packed with, see Backend::filter_panel()
  int32_t planar = 0;
  Epilogue epilogue = Epilogue::kNone;
  float alpha = 0.f, beta = 0.f;
};

// Each channel with one filter of its own.
struct DepthwiseArgs {
  uint32_t size = sizeof(DepthwiseArgs);
  uint32_t version = 1;
  float* out = nullptr;             // (N, OH, OW, C)
  const float* x = nullptr;         // (N, H, W, C)
  const float* w = nullptr;         // (KH, KW, C)
  const float* bias = nullptr;      // [C] or null
  const float* residual = nullptr;  // as out, or null; may be `out` itself
  WindowShape window;
  int64_t C = 0;
  Epilogue epilogue = Epilogue::kNone;
  float alpha = 0.f, beta = 0.f;
};

enum class PoolOp : int32_t { kMax, kAverage };
struct PoolArgs {
  uint32_t size = sizeof(PoolArgs);
  uint32_t version = 1;
  float* out = nullptr;      // (N, OH, OW, C)
  const float* x = nullptr;  // (N, H, W, C)
  WindowShape window;
  int64_t C = 0;
  PoolOp op = PoolOp::kMax;
  // kAverage: divide by the elements of the window that lie in the padded operand, not in the operand.
  int32_t count_pads = 0;
  // x (N, C, H, W), out (N, C, OH, OW); on the processor alone. A worker's scratch holds a few rows of an
  // image with their pads, so these must not be much wider than the image.
  int32_t planar = 0;
};

// out[r, j] = exp(t[r, j] - max t[r]) / sum over j, t = x * scale + mask. A row whose scores are all
// -infinity is NaN, as the definition says.
struct SoftmaxArgs {
  uint32_t size = sizeof(SoftmaxArgs);
  uint32_t version = 1;
  float* out = nullptr;         // [rows, n]; may equal x
  const float* x = nullptr;     // [rows, n]
  const float* mask = nullptr;  // rows of n, mask_row apart (0: one row for all), or null
  int64_t rows = 0, n = 0, mask_row = 0;
  float scale = 1.f;
};

// out = epilogue(x): an activation by itself.
struct ActivateArgs {
  uint32_t size = sizeof(ActivateArgs);
  uint32_t version = 1;
  float* out = nullptr;  // [n]; may equal x
  const float* x = nullptr;
  int64_t n = 0;
  Epilogue epilogue = Epilogue::kNone;
  float alpha = 0.f, beta = 0.f;
};

// Channels of one filter panel.
int64_t panel_width(Isa isa);

// Whether small groups share panels: a panel then has whole groups, and reads no more inputs than it is wide.
bool groups_share_panels(int64_t M, int64_t groups, int64_t c_per_group, int64_t width);
// Floats of packed filters: groups * ceil(M / groups / width) * taps * (C / groups) * width; where
// groups share panels, as of one group.
int64_t packed_filter_floats(int64_t M, int64_t groups, int64_t taps, int64_t c_per_group, int64_t width);
// From w[m * stride_m + c * stride_c + tap * stride_tap]; a file's (M, C / groups, KH, KW) has strides C /
// groups * taps, taps and 1. A matrix (C, M) has 1, M and 0; its transpose (M, C) has C, 1 and 0.
void pack_filters(float* dst, const float* w, int64_t M, int64_t groups, int64_t taps, int64_t c_per_group,
                  int64_t stride_m, int64_t stride_c, int64_t stride_tap, int64_t width);

// The points of kWinograd's polynomials are 0, a, -a, b, -b and infinity. These two keep the transforms'
// factors small: errors are a third of those of the textbook's 1 and 2, and every factor of pixels is exact
// in f32.
inline constexpr double kWinogradA = 0.625, kWinogradB = 1.5;
// Filters (M, C, 3, 3) as the 36 matrices of kWinograd, (36, panels, C, width), transformed in double.
int64_t winograd_filter_floats(int64_t M, int64_t C, int64_t width);
void pack_winograd(float* dst, const float* w, int64_t M, int64_t C, int64_t width);

}  // namespace oar

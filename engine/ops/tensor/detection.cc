// Choosing boxes as Paddle's detection models do: multiclass_nms, generate_proposals. Boxes are corners
// x1 y1 x2 y2 in f32, and so is the arithmetic, which decides who stays.
#include <numeric>

#include "engine/ops/tensor/util.h"

namespace oar::tensor {
namespace {

// Places by falling score, NaN last; equal ones in their order, or against it.
std::vector<size_t> best_first(const std::vector<float>& scores, bool last_wins = false) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (scores[a] > scores[b]) return true;
    if (scores[a] < scores[b]) return false;
    if (std::isnan(scores[a]) != std::isnan(scores[b])) return std::isnan(scores[b]);
    return last_wins ? a > b : a < b;
  });
  return order;
}
void keep_first(std::vector<size_t>& order, int64_t most) {
  if (most < static_cast<int64_t>(order.size())) order.resize(static_cast<size_t>(most));
}

// How far two boxes may overlap, and what counts as their size.
struct Overlap {
  float threshold = 0;  // of the area of both
  float eta = 1;        // below 1: each box that stays lowers a threshold above a half by this factor
  float unit = 0;       // 1 where corners are pixels, whose far ones belong to the box
};

float area(const float* box, float unit) {
  if (box[2] < box[0] || box[3] < box[1]) return 0;
  return (box[2] - box[0] + unit) * (box[3] - box[1] + unit);
}
float overlap(const float* a, const float* b, float unit) {
  if (b[0] > a[2] || b[2] < a[0] || b[1] > a[3] || b[3] < a[1]) return 0;
  const float both = (std::min(a[2], b[2]) - std::max(a[0], b[0]) + unit) *
                     (std::min(a[3], b[3]) - std::max(a[1], b[1]) + unit);
  return both / (area(a, unit) + area(b, unit) - both);
}
// Drops from `order`, best first, what overlaps a better box too far, and what follows the first `most` that
// stay. Two boxes without an area divide 0 by 0: the second goes.
void suppress(std::vector<size_t>& order, const std::vector<float>& boxes, Overlap limit, size_t most) {
  size_t kept = 0;
  for (size_t k : order) {
    if (kept == most) break;
    bool stays = true;
    for (size_t j = 0; j < kept && stays; ++j)
      stays = overlap(boxes.data() + k * 4, boxes.data() + order[j] * 4, limit.unit) <= limit.threshold;
    if (!stays) continue;
    order[kept++] = k;
    if (limit.eta < 1 && limit.threshold > 0.5f) limit.threshold *= limit.eta;
  }
  order.resize(kept);
}

// Operands that decide are f32.
Status take_f32(const EvalContext& ctx, std::span<Tensor> operands) {
  for (size_t i = 0; i < operands.size(); ++i) {
    OAR_ASSIGN(operands[i], ctx.tensor(i));
    if (dtype_of(operands[i]) == DType::kF32) continue;
    return unimplemented(cat("operand ", i, " is ", operands[i].format().name(),
                             "; only f32 is supported, so export the model in f32"));
  }
  return ok_status();
}
float number(const EvalContext& ctx, const char* name) {
  return static_cast<float>(ctx.attrs().get_float(name));
}
// What `values` leave out is 0.
template <class T>
Status give(EvalContext& ctx, size_t i, const std::vector<T>& values, const Shape& shape, DType dtype) {
  OAR_ASSIGN(Tensor t, ctx.zeros(shape, dtype));
  std::copy(values.begin(), values.end(), mutable_elements<T>(t));
  ctx.set(i, std::move(t));
  return ok_status();
}

// multiclass_nms(boxes (N, B, 4), scores (N, C, B)) or, with a box for each class, multiclass_nms(boxes
// (B, C, 4), scores (B, C), count of boxes per image (N)) -> rows (M, 6) of label, score, box; their places
// (M, 1) in the boxes, of either form as a list; rows per image (N).
// {score_threshold, nms_top_k, keep_top_k: -1 for all, nms_threshold, nms_eta, normalized, background_label:
// left out, -1 for none, mark_empty: a single -1 where there are no rows}
Status multiclass_nms(EvalContext& ctx) {
  Tensor operands[2];
  OAR_RETURN_IF_ERROR(take_f32(ctx, operands));
  const Shape &b = operands[0].shape(), &s = operands[1].shape();
  const bool by_class = s.rank() == 2;
  if (b.rank() != 3 || b[2] != 4 || s.rank() < 2 || s.rank() > 3 || b[0] != s[0] || b[1] != s[s.rank() - 1])
    return invalid_argument(cat("boxes ", b.to_string(), " and scores ", s.to_string(),
                                "; (N, B, 4) and (N, C, B), or (B, C, 4) and (B, C), are meant"));
  // Boxes per image; without values there may be more images than memory.
  const bool empty = b.numel() == 0 || s.numel() == 0;
  std::vector<int64_t> counts(static_cast<size_t>(empty ? 0 : b[0]), b[1]);
  int64_t images = b[0];
  if (by_class) {
    OAR_ASSIGN(counts, ctx.ints(2));
    int64_t left = b[0];
    for (int64_t n : counts) {
      if (n < 0 || n > left) return invalid_argument(cat("an image has ", n, " of ", b[0], " boxes"));
      left -= n;
    }
    images = static_cast<int64_t>(counts.size());
  }
  const int64_t classes = s[1], background = ctx.attrs().get_int("background_label"),
                top = ctx.attrs().get_int("nms_top_k"), keep = ctx.attrs().get_int("keep_top_k");
  const float least = number(ctx, "score_threshold");
  const Overlap limit{number(ctx, "nms_threshold"), number(ctx, "nms_eta"),
                      ctx.attrs().get_int("normalized") != 0 ? 0.f : 1.f};
  const auto *boxes = elements<float>(operands[0]), *scores = elements<float>(operands[1]);
  std::vector<float> rows;
  std::vector<int32_t> places, per_image;
  int64_t first = 0;  // box of the image
  for (int64_t count : counts) {
    // Of this image: its rows before keep_top_k, by class.
    std::vector<float> labels, row_scores;
    std::vector<int64_t> row_places;
    for (int64_t c = 0; c < classes; ++c) {
      if (c == background) continue;
      std::vector<float> good;
      std::vector<int64_t> at;  // the places of these boxes
      for (int64_t k = first; k < first + count; ++k) {
        const int64_t place = by_class ? k * classes + c : k;
        const float score = scores[by_class ? place : first * (classes - 1) + c * count + k];
        if (score > least) good.push_back(score), at.push_back(place);
      }
      std::vector<size_t> order = best_first(good);
      if (top > -1) keep_first(order, top);
      std::vector<float> corners;
      for (int64_t p : at) corners.insert(corners.end(), boxes + p * 4, boxes + p * 4 + 4);
      suppress(order, corners, limit, SIZE_MAX);
      if (by_class) std::sort(order.begin(), order.end());
      for (size_t k : order)
        labels.push_back(static_cast<float>(c)), row_scores.push_back(good[k]), row_places.push_back(at[k]);
    }
    std::vector<size_t> order = best_first(row_scores);
    if (keep > -1) keep_first(order, keep);
    std::sort(order.begin(), order.end());  // by class again
    for (size_t k : order) {
      rows.push_back(labels[k]), rows.push_back(row_scores[k]);
      rows.insert(rows.end(), boxes + row_places[k] * 4, boxes + row_places[k] * 4 + 4);
      places.push_back(static_cast<int32_t>(row_places[k]));
    }
    per_image.push_back(static_cast<int32_t>(order.size()));
    first += count;
  }
  const auto M = static_cast<int64_t>(places.size());
  if (M == 0 && ctx.attrs().get_int("mark_empty") != 0)
    OAR_RETURN_IF_ERROR(give<float>(ctx, 0, {-1.f}, {1, 1}, DType::kF32));
  else OAR_RETURN_IF_ERROR(give(ctx, 0, rows, {M, 6}, DType::kF32));
  OAR_RETURN_IF_ERROR(give(ctx, 1, places, {M, 1}, DType::kI32));
  return give(ctx, 2, per_image, {images}, DType::kI32);
}

// generate_proposals(scores (N, A, H, W), deltas (N, 4 A, H, W), images (N, 2 or more) of height, width and
// scale, anchors (H, W, A, 4), variances alike) -> boxes (M, 4), scores (M, 1), boxes per image (N). An image
// that has none gets one of zeros. {pre_nms_top_n, post_nms_top_n: 0 for all, nms_thresh: 0 for no
// suppression, min_size, eta, pixel_offset, scaled: min_size is meant before the image was scaled}
// https://arxiv.org/abs/1506.01497
Status generate_proposals(EvalContext& ctx) {
  Tensor operands[5];
  OAR_RETURN_IF_ERROR(take_f32(ctx, operands));
  const Shape &s = operands[0].shape(), &d = operands[1].shape(), &sizes = operands[2].shape();
  const bool scaled = ctx.attrs().get_int("scaled") != 0, pixels = ctx.attrs().get_int("pixel_offset") != 0;
  if (s.rank() != 4 || s.numel() == 0 || !(d == Shape{s[0], 4 * s[1], s[2], s[3]}) || sizes.rank() != 2 ||
      sizes[0] != s[0] || sizes[1] < (scaled ? 3 : 2) || operands[3].numel() != 4 * extent(s, 1, 4) ||
      operands[4].numel() != operands[3].numel()) {
    return invalid_argument(
        "scores must be (N, A, H, W) and not empty, deltas (N, 4 A, H, W), image sizes (N, 2) or with a "
        "scale (N, 3), "
        "anchors and variances (H, W, A, 4)");
  }
  const int64_t A = s[1], cells = s[2] * s[3], before = ctx.attrs().get_int("pre_nms_top_n"),
                after = ctx.attrs().get_int("post_nms_top_n");
  const float unit = pixels ? 1.f : 0.f, least = std::max(number(ctx, "min_size"), 1.f);
  const auto longest = static_cast<float>(std::log(1000.0 / 16.0));
  const Overlap limit{number(ctx, "nms_thresh"), number(ctx, "eta"), unit};
  std::vector<float> boxes, scores;
  std::vector<int32_t> per_image;
  for (int64_t n = 0; n < s[0]; ++n) {
    const float *image = elements<float>(operands[2]) + n * sizes[1],
                *deltas = elements<float>(operands[1]) + n * 4 * A * cells;
    const float edge[2] = {image[1], image[0]}, scale = scaled ? image[2] : 1;  // x first
    // By cells, then anchors, as the anchors lie.
    std::vector<float> all;
    for (int64_t k = 0; k < A * cells; ++k)
      all.push_back(elements<float>(operands[0])[(n * A + k % A) * cells + k / A]);
    std::vector<size_t> order = best_first(all);
    if (before > 0) keep_first(order, before);
    std::vector<float> corners, chances;
    for (size_t place : order) {
      const auto at = static_cast<int64_t>(place);
      const float *anchor = elements<float>(operands[3]) + at * 4,
                  *variance = elements<float>(operands[4]) + at * 4;
      float box[4];
      bool large = true;
      for (int e = 0; e < 2; ++e) {
        const auto delta = [&](int k) { return variance[k] * deltas[(at % A * 4 + k) * cells + at / A]; };
        const float side = anchor[e + 2] - anchor[e] + unit;
        const float center = delta(e) * side + (anchor[e] + side * 0.5f);
        const float half = std::exp(std::min(delta(e + 2), longest)) * side / 2;
        const auto inside = [&](float v) { return std::max(std::min(v, edge[e] - unit), 0.f); };
        box[e] = inside(center - half), box[e + 2] = inside(center + half - unit);
        const float extent = box[e + 2] - box[e];
        large = large && (scaled ? extent / scale + 1 : extent + unit) >= least &&
                (!pixels || box[e] + (extent + unit) / 2 <= edge[e]);
      }
      if (!large) continue;
      corners.insert(corners.end(), box, box + 4);
      chances.push_back(all[place]);
    }
    if (chances.empty()) corners.assign(4, 0), chances.assign(1, 0);
    order = best_first(chances, limit.threshold > 0);
    if (limit.threshold > 0)
      suppress(order, corners, limit, after > 0 ? static_cast<size_t>(after) : SIZE_MAX);
    for (size_t k : order) {
      boxes.insert(boxes.end(), corners.data() + k * 4, corners.data() + k * 4 + 4);
      scores.push_back(chances[k]);
    }
    per_image.push_back(static_cast<int32_t>(order.size()));
  }
  const auto M = static_cast<int64_t>(scores.size());
  OAR_RETURN_IF_ERROR(give(ctx, 0, boxes, {M, 4}, DType::kF32));
  OAR_RETURN_IF_ERROR(give(ctx, 1, scores, {M, 1}, DType::kF32));
  return give(ctx, 2, per_image, {s[0]}, DType::kI32);
}

}  // namespace
}  // namespace oar::tensor

namespace oar {
OAR_TENSOR_OP(generate_proposals, tensor::generate_proposals, .sizes = SizesFrom::kValues);
OAR_TENSOR_OP(multiclass_nms, tensor::multiclass_nms, .sizes = SizesFrom::kValues);
}  // namespace oar

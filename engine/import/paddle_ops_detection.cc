// Detection ops of Paddle: where boxes may lie (prior_box, box_coder, yolo_box) is arithmetic in ops we have;
// which of them are chosen (multiclass_nms, generate_proposals) depends on values and has ops of its own.
// Formulas: phi/kernels/cpu/*_kernel.cc of these names. Boxes are corners x1 y1 x2 y2, images (height,
// width).
#include <algorithm>
#include <cmath>

#include "engine/import/paddle_node.h"

namespace oar::paddle {
namespace {

Val op(Node& n, const char* name, Val a, Val b) { return n.w().op(name, {a, b}); }
Val list_of(Node& n, DType dtype, const std::vector<double>& values, const std::vector<int64_t>& shape) {
  return n.w().constant(filled(shape, dtype, values));
}
void outs(Node& n, const std::vector<Val>& results) {
  for (size_t k = 0; k < results.size(); ++k) n.out(k, results[k]);
}

// ---- which boxes are chosen

void choose(Node& n, bool mark_empty) {
  const Attrs attrs{{"score_threshold", n.get_float("score_threshold", 0)},
                    {"nms_top_k", n.get_int("nms_top_k", -1)},
                    {"keep_top_k", n.get_int("keep_top_k", -1)},
                    {"nms_threshold", n.get_float("nms_threshold", 0.3)},
                    {"nms_eta", n.get_float("nms_eta", 1)},
                    {"normalized", n.get_int("normalized", 1)},
                    {"background_label", n.get_int("background_label", 0)},
                    {"mark_empty", int64_t{mark_empty}}};
  if (const ValueType* t = n.in_type(0); t && !t->dims.empty() && t->dims.back() > 4) {
    return n.fail(unimplemented(
        cat("boxes of ", t->dims.back(), " coordinates; only corners x1 y1 x2 y2 are supported")));
  }
  // With scores (N, C, B) every image has B boxes, whatever the third operand says.
  const bool by_class = n.rank(1) == 2;
  const Val counts = n.in(2);
  if (by_class && !counts)
    return n.fail(unimplemented("scores of two axes without operand 'RoisNum', the boxes of each image"));
  outs(n, n.w().ops("multiclass_nms", {n.in(0), n.in(1), by_class ? counts : Val{}}, 3, attrs));
}
void multiclass_nms(Node& n) { choose(n, true); }  // older programs tell that nothing was found by -1
void multiclass_nms3(Node& n) { choose(n, false); }

void propose(Node& n, bool pixel_offset, bool scaled) {
  const Attrs attrs{{"pre_nms_top_n", n.get_int("pre_nms_top_n|pre_nms_topN", 0)},
                    {"post_nms_top_n", n.get_int("post_nms_top_n|post_nms_topN", 0)},
                    {"nms_thresh", n.get_float("nms_thresh", 0.5)},
                    {"min_size", n.get_float("min_size", 0.1)},
                    {"eta", n.get_float("eta", 1)},
                    {"pixel_offset", int64_t{pixel_offset}},
                    {"scaled", int64_t{scaled}}};
  outs(n, n.w().ops("generate_proposals", {n.in(0), n.in(1), n.in(2), n.in(3), n.in(4)}, 3, attrs));
}
void generate_proposals(Node& n) { propose(n, n.get_bool("pixel_offset", true), false); }
void legacy_generate_proposals(Node& n) { propose(n, true, true); }

// ---- where they may lie

// The extents of operand i, an image: width and height as i64 (2).
Val extents(Node& n, size_t i) { return n.concat({n.shape_of(n.in(i), 3, 4), n.shape_of(n.in(i), 2, 3)}); }
// Column and row of each of its cells, in their order: (2, H * W) of `dtype`.
Val cells(Node& n, size_t i, DType dtype) {
  const Val width = n.shape_of(n.in(i), 3, 4);
  const Val count = n.squeeze(op(n, "mul", width, n.shape_of(n.in(i), 2, 3)), {0});
  const Val cell = n.w().op("range", {n.w().int_scalar(0), count, n.w().int_scalar(1)});
  return n.cast(n.reshape(n.concat({op(n, "mod", cell, width), op(n, "div", cell, width)}), {2, -1}), dtype);
}

// yolo_box(x (N, anchors * (5 + classes), H, W), image sizes (N, 2) i32) -> boxes (N, anchors * H * W, 4),
// scores (N, anchors * H * W, classes). Each anchor's channels are x y w h, confidence, classes; with
// iou_aware the channels of all anchors' overlaps lie before.
void yolo_box(Node& n) {
  const DType d = n.dtype(0);
  const std::vector<int64_t> sides = n.get_ints("anchors");
  const auto anchors = static_cast<int64_t>(sides.size() / 2);
  const int64_t classes = n.get_int("class_num", 1);
  const double scale = n.get_float("scale_x_y", 1), aware = n.get_float("iou_aware_factor", 0.5),
               stride = n.get_float("downsample_ratio", 32);
  const bool clip = n.get_bool("clip_bbox", true), iou_aware = n.get_bool("iou_aware", false);
  if (sides.empty() || sides.size() % 2 != 0 || classes < 1 || classes > INT32_MAX || stride < 1) {
    return n.fail(invalid_argument(cat("attributes 'anchors' of ", sides.size(), " numbers, 'class_num' ",
                                       classes, " and 'downsample_ratio' ", stride)));
  }
  const auto sigmoid = [&](Val v) { return n.w().op("sigmoid", {v}); };
  // From here on values are (N, anchors, channels, H * W), pairs of x and y.
  const auto channels = [&](Val v, int64_t each) { return n.reshape(v, {0, anchors, each, -1}); };
  const Val x = channels(iou_aware ? n.slice(n.in(0), 1, anchors, INT64_MAX) : n.in(0), 5 + classes);
  Val confidence = sigmoid(n.slice(x, 2, 4, 5));
  if (iou_aware) {
    const Val iou = sigmoid(channels(n.slice(n.in(0), 1, 0, anchors), 1));
    confidence =
        op(n, "mul", op(n, "pow", confidence, n.number(1 - aware, d)), op(n, "pow", iou, n.number(aware, d)));
  }
  const Val counts = op(n, "greater_equal", confidence, n.number(n.get_float("conf_thresh", 0.01), d));
  const Val zero = n.number(0, d), grid = n.reshape(n.cast(extents(n, 0), d), {2, 1});
  // What does not count is 0, whatever it would be.
  const auto rows = [&](Val v, int64_t width) {
    const Val kept = n.w().op("where", {counts, v, zero});
    return n.reshape(n.transpose(kept, {0, 1, 3, 2}), {0, -1, width});
  };
  // The image's width and height, one pair per image.
  const Val image = n.reshape(n.cast(n.slice(n.in(1), 1, 1, INT64_MIN, -1), d), {-1, 1, 2, 1});
  const Val offset = op(n, "mul", sigmoid(n.slice(x, 2, 0, 2)), n.number(scale, d));
  const Val place = op(n, "add", op(n, "add", cells(n, 0, d), offset), n.number(-0.5 * (scale - 1), d));
  const Val center = op(n, "div", op(n, "mul", place, image), grid);
  const Val anchor = list_of(n, d, {sides.begin(), sides.end()}, {anchors, 2, 1});
  const Val side = op(n, "mul", n.w().op("exp", {n.slice(x, 2, 2, 4)}), anchor);
  const Val size = op(n, "div", op(n, "mul", side, image), op(n, "mul", grid, n.number(stride, d)));
  const Val half = op(n, "div", size, n.number(2, d));
  Val low = op(n, "sub", center, half), high = op(n, "add", center, half);
  if (clip) {
    low = op(n, "max", low, zero);
    high = op(n, "min", high, op(n, "sub", image, n.number(1, d)));
  }
  n.out(0, rows(n.concat({low, high}, 2), 4));
  n.out(1, rows(op(n, "mul", confidence, sigmoid(n.slice(x, 2, 5, INT64_MAX))), classes));
}

// Width and height of half of each prior of a cell. Ratios are 1, then each that is new, and its inverse.
std::vector<double> halves_of_priors(Node& n) {
  const std::vector<double> least = n.get_floats("min_sizes"), most = n.get_floats("max_sizes");
  const bool flip = n.get_bool("flip", true), max_second = n.get_bool("min_max_aspect_ratios_order", false);
  if (least.empty() || (!most.empty() && most.size() != least.size())) {
    n.fail(invalid_argument(
        cat("attributes 'min_sizes' of ", least.size(), " numbers and 'max_sizes' of ", most.size())));
    return {};
  }
  std::vector<double> ratios{1}, halves;
  for (double r : n.get_floats("aspect_ratios")) {
    if (!(r > 0)) n.fail(invalid_argument(cat("attribute 'aspect_ratios' has ", r)));
    if (std::any_of(ratios.begin(), ratios.end(), [&](double o) { return std::abs(r - o) < 1e-6; })) continue;
    ratios.push_back(r);
    if (flip) ratios.push_back(1 / r);
  }
  for (size_t k = 0; k < least.size(); ++k) {
    for (size_t r = 0; r <= ratios.size(); ++r) {
      // The one between both sizes comes second or last.
      if (!most.empty() && r == (max_second ? 1 : ratios.size()))
        halves.insert(halves.end(), 2, std::sqrt(least[k] * most[k]) / 2);
      if (r == ratios.size()) break;
      halves.push_back(least[k] * std::sqrt(ratios[r]) / 2);
      halves.push_back(least[k] / std::sqrt(ratios[r]) / 2);
    }
  }
  return halves;
}
// prior_box(x (N, C, H, W), image (N, C, height, width)) -> boxes (H, W, priors, 4) as parts of the image,
// variances alike. Only the operands' extents are read.
void prior_box(Node& n) {
  const DType d = n.dtype(0);
  const std::vector<double> halves = halves_of_priors(n), variances = n.get_floats("variances");
  const double step_w = n.get_float("step_w", 0), step_h = n.get_float("step_h", 0);
  if (variances.size() != 4)
    return n.fail(invalid_argument(cat("attribute 'variances' of ", variances.size(), " numbers")));
  const auto priors = static_cast<int64_t>(halves.size() / 2);
  const Val image = n.cast(extents(n, 1), d);
  const Val step = step_w == 0 || step_h == 0 ? op(n, "div", image, n.cast(extents(n, 0), d))
                                              : list_of(n, d, {step_w, step_h}, {2});
  // Pairs of x and y: (H * W, 1, 2) of the cells, (priors, 2) of what is the same in each.
  const Val cell = n.unsqueeze(n.transpose(cells(n, 0, d), {1, 0}), {1});
  const Val center = op(n, "mul", op(n, "add", cell, n.number(n.get_float("offset", 0.5), d)), step);
  const Val half = list_of(n, d, halves, {priors, 2});
  Val boxes = n.concat({op(n, "sub", center, half), op(n, "add", center, half)}, 2);
  boxes = op(n, "div", boxes, n.concat({image, image}));
  if (n.get_bool("clip", true)) boxes = n.w().op("clip", {boxes, n.number(0, d), n.number(1, d)});
  const Val shape = n.concat({n.shape_of(n.in(0), 2, 4), n.w().ints({priors, 4})});
  n.out(0, op(n, "reshape", boxes, shape));
  n.out(1, op(n, "expand", list_of(n, d, variances, {4}), shape));
}

// box_coder(priors (M, 4), their variances?, boxes): differences of boxes (N, 4) to each prior (N, M, 4), or
// boxes from differences (N, M, 4), whose priors lie along axis 1, or along axis 0 where `axis` is 1.
void box_coder(Node& n) {
  const DType d = n.dtype(0);
  const std::string type = n.get_string("code_type", "encode_center_size");
  const bool decode = type == "decode_center_size";
  if (!decode && type != "encode_center_size")
    return n.fail(unimplemented(cat("attribute 'code_type' is '", type, "'")));
  const std::vector<double> given = n.get_floats("variance");
  if (!given.empty() && (given.size() != 4 || n.has_in(1)))
    return n.fail(invalid_argument(cat("attribute 'variance' of ", given.size(),
                                       " numbers; four are meant, and none beside operand 'PriorBoxVar'")));
  const int64_t axis = n.get_int("axis", 0);
  if (axis != 0 && axis != 1) return n.fail(invalid_argument(cat("attribute 'axis' is ", axis)));
  const Val unit = n.get_bool("box_normalized", true) ? Val{} : n.number(1, d);
  const Val two = n.number(2, d);
  const auto first = [&](Val v) { return n.slice(v, -1, 0, 2); };
  const auto second = [&](Val v) { return n.slice(v, -1, 2, 4); };
  const auto size_of = [&](Val box) {
    const Val size = op(n, "sub", second(box), first(box));
    return unit ? op(n, "add", size, unit) : size;
  };
  const auto along = [&](Val v) { return n.unsqueeze(v, {decode ? axis : 0}); };
  const Val prior = along(n.in(0));
  const Val size = size_of(prior), center = op(n, "add", first(prior), op(n, "div", size, two));
  Val variance;
  if (n.has_in(1)) variance = along(n.in(1));
  else if (!given.empty()) variance = list_of(n, d, given, {4});
  if (!decode) {
    const Val box = n.unsqueeze(n.in(2), {1});
    const Val middle = op(n, "div", op(n, "add", second(box), first(box)), two);
    const Val times = n.w().op("abs", {op(n, "div", size_of(box), size)});
    const Val code =
        n.concat({op(n, "div", op(n, "sub", middle, center), size), n.w().op("log", {times})}, -1);
    return n.out(0, variance ? op(n, "div", code, variance) : code);
  }
  const Val code = variance ? op(n, "mul", variance, n.in(2)) : n.in(2);
  const Val middle = op(n, "add", op(n, "mul", first(code), size), center);
  const Val half = op(n, "div", op(n, "mul", n.w().op("exp", {second(code)}), size), two);
  const Val end = op(n, "add", middle, half);
  n.out(0, n.concat({op(n, "sub", middle, half), unit ? op(n, "sub", end, unit) : end}, -1));
}

constexpr OpEntry kDetectionOps[] = {
    {"box_coder", box_coder},
    {"generate_proposals", generate_proposals},
    {"legacy_generate_proposals", legacy_generate_proposals},
    {"multiclass_nms", multiclass_nms},
    {"multiclass_nms3", multiclass_nms3},
    {"prior_box", prior_box},
    {"yolo_box", yolo_box},
};

}  // namespace

std::span<const OpEntry> detection_ops() { return kDetectionOps; }

}  // namespace oar::paddle

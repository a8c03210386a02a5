// From a text detector's probability map to boxes (differentiable binarization,
// https://arxiv.org/abs/1911.08947, section 3.4): pixels above a threshold, their connected regions, the
// smallest rectangle around each and its mean probability. The rectangle is grown by what training had shrunk
// it.
#pragma once

#include <span>
#include <vector>

#include "engine/base/status.h"
#include "engine/vision/image.h"

namespace oar::vision {

struct TextBoxOptions {
  float threshold = 0.3f;      // of a pixel
  float box_threshold = 0.6f;  // of the mean inside a rectangle
  float unclip = 1.5f;         // grown by area * unclip / perimeter on each side
  int max_boxes = 1000;        // regions beyond these are dropped, in the order of their first pixel
  int min_side = 3;            // pixels of the map
};

struct TextBox {
  Quad corners;
  float score = 0;  // mean probability, 0 to 1
};

// `map`: height x width probabilities; NaN counts as 0. Corners are scaled from the map to an image of
// image_width x image_height and clipped to it. In reading order: rows from the top, left to right within
// one.
Result<std::vector<TextBox>> text_boxes(std::span<const float> map, int width, int height, int image_width,
                                        int image_height, const TextBoxOptions& options = {});

// The rectangle of smallest area around the points (rotating calipers over their convex hull), corners in
// reading order. Fewer than three points, or all on a line, give a rectangle without area.
Quad smallest_rectangle(std::vector<Point> points);

}  // namespace oar::vision

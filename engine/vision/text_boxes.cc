#include "engine/vision/text_boxes.h"

#include <algorithm>
#include <cmath>

#include "engine/base/format.h"

namespace oar::vision {
namespace {

float cross(Point o, Point a, Point b) { return (a.x - o.x) * (b.y - o.y) - (a.y - o.y) * (b.x - o.x); }

// Andrew's monotone chain, counterclockwise without the repeated first point.
std::vector<Point> convex_hull(std::vector<Point> p) {
  std::sort(p.begin(), p.end(), [](Point a, Point b) { return a.x < b.x || (a.x == b.x && a.y < b.y); });
  p.erase(std::unique(p.begin(), p.end(), [](Point a, Point b) { return a.x == b.x && a.y == b.y; }),
          p.end());
  if (p.size() < 3) return p;
  std::vector<Point> hull(2 * p.size());
  size_t n = 0;
  for (size_t k = 0; k < p.size(); ++k) {
    while (n >= 2 && cross(hull[n - 2], hull[n - 1], p[k]) <= 0) --n;
    hull[n++] = p[k];
  }
  const size_t lower = n + 1;
  for (size_t k = p.size() - 1; k-- > 0;) {
    while (n >= lower && cross(hull[n - 2], hull[n - 1], p[k]) <= 0) --n;
    hull[n++] = p[k];
  }
  hull.resize(n - 1);
  return hull;
}

// A rectangle by its middle, half sides and the direction of its first side.
struct Rectangle {
  Point middle, along;  // `along` has length 1
  float half_length = 0, half_width = 0;

  Quad corners() const {
    const Point u{along.x * half_length, along.y * half_length},
        v{-along.y * half_width, along.x * half_width};
    return {{{middle.x - u.x - v.x, middle.y - u.y - v.y},
             {middle.x + u.x - v.x, middle.y + u.y - v.y},
             {middle.x + u.x + v.x, middle.y + u.y + v.y},
             {middle.x - u.x + v.x, middle.y - u.y + v.y}}};
  }
};

Rectangle smallest(const std::vector<Point>& hull) {
  Rectangle best;
  if (hull.empty()) return best;
  if (hull.size() == 1) {
    best.middle = hull[0];
    best.along = {1, 0};
    return best;
  }
  float best_area = INFINITY;
  for (size_t k = 0; k < hull.size(); ++k) {
    const Point a = hull[k], b = hull[(k + 1) % hull.size()];
    const float length = std::hypot(b.x - a.x, b.y - a.y);
    if (length == 0) continue;
    const Point u{(b.x - a.x) / length, (b.y - a.y) / length};
    float lo_u = INFINITY, hi_u = -INFINITY, lo_v = INFINITY, hi_v = -INFINITY;
    for (Point p : hull) {
      const float s = p.x * u.x + p.y * u.y, t = -p.x * u.y + p.y * u.x;
      lo_u = std::min(lo_u, s), hi_u = std::max(hi_u, s);
      lo_v = std::min(lo_v, t), hi_v = std::max(hi_v, t);
    }
    const float area = (hi_u - lo_u) * (hi_v - lo_v);
    if (area >= best_area) continue;
    best_area = area;
    const float s = (lo_u + hi_u) / 2, t = (lo_v + hi_v) / 2;
    best = {{s * u.x - t * u.y, s * u.y + t * u.x}, u, (hi_u - lo_u) / 2, (hi_v - lo_v) / 2};
  }
  return best;
}

// Top left, top right, bottom right, bottom left: the two leftmost corners are the left side.
Quad in_reading_order(Quad q) {
  std::sort(q.begin(), q.end(), [](Point a, Point b) { return a.x < b.x; });
  if (q[0].y > q[1].y) std::swap(q[0], q[1]);
  if (q[2].y > q[3].y) std::swap(q[2], q[3]);
  return {q[0], q[2], q[3], q[1]};
}

// Mean of the map over pixels inside the rectangle.
float mean_inside(std::span<const float> map, int width, int height, const Quad& q) {
  float lo_x = INFINITY, hi_x = -INFINITY, lo_y = INFINITY, hi_y = -INFINITY;
  for (Point p : q) {
    lo_x = std::min(lo_x, p.x), hi_x = std::max(hi_x, p.x);
    lo_y = std::min(lo_y, p.y), hi_y = std::max(hi_y, p.y);
  }
  const int x0 = std::clamp(static_cast<int>(std::floor(lo_x)), 0, width - 1),
            x1 = std::clamp(static_cast<int>(std::ceil(hi_x)), 0, width - 1);
  const int y0 = std::clamp(static_cast<int>(std::floor(lo_y)), 0, height - 1),
            y1 = std::clamp(static_cast<int>(std::ceil(hi_y)), 0, height - 1);
  double sum = 0;
  int64_t count = 0;
  for (int y = y0; y <= y1; ++y) {
    for (int x = x0; x <= x1; ++x) {
      const Point p{static_cast<float>(x), static_cast<float>(y)};
      bool inside = true;
      for (size_t k = 0; k < 4 && inside; ++k) inside = cross(q[k], q[(k + 1) % 4], p) >= -0.5f;
      if (!inside) continue;
      const float v = map[static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x)];
      sum += std::isnan(v) ? 0 : v;
      ++count;
    }
  }
  return count ? static_cast<float>(sum / static_cast<double>(count)) : 0;
}

// Pixels of each region that begin or end a row's run: enough for a convex hull. `seen` marks what is taken.
std::vector<Point> region_from(std::vector<uint8_t>& seen, int width, int height, size_t first) {
  std::vector<size_t> stack{first};
  std::vector<Point> edge;
  seen[first] = 0;
  const auto w = static_cast<size_t>(width);
  while (!stack.empty()) {
    const size_t at = stack.back();
    stack.pop_back();
    const int x = static_cast<int>(at % w), y = static_cast<int>(at / w);
    edge.push_back({static_cast<float>(x), static_cast<float>(y)});
    for (int dy = -1; dy <= 1; ++dy) {
      for (int dx = -1; dx <= 1; ++dx) {
        const int xx = x + dx, yy = y + dy;
        if (xx < 0 || yy < 0 || xx >= width || yy >= height) continue;
        const size_t next = static_cast<size_t>(yy) * w + static_cast<size_t>(xx);
        if (seen[next]) seen[next] = 0, stack.push_back(next);
      }
    }
  }
  return edge;
}

}  // namespace

Quad smallest_rectangle(std::vector<Point> points) {
  return in_reading_order(smallest(convex_hull(std::move(points))).corners());
}

Result<std::vector<TextBox>> text_boxes(std::span<const float> map, int width, int height, int image_width,
                                        int image_height, const TextBoxOptions& options) {
  if (width < 1 || height < 1 || map.size() != static_cast<size_t>(width) * static_cast<size_t>(height)) {
    return invalid_argument(
        cat("a probability map of ", map.size(), " values is not ", width, " x ", height));
  }
  std::vector<uint8_t> mask(map.size());
  for (size_t k = 0; k < map.size(); ++k) mask[k] = map[k] > options.threshold;
  std::vector<TextBox> boxes;
  int regions = 0;
  for (size_t k = 0; k < mask.size() && regions < options.max_boxes; ++k) {
    if (!mask[k]) continue;
    ++regions;
    Rectangle r = smallest(convex_hull(region_from(mask, width, height, k)));
    if (2 * std::min(r.half_length, r.half_width) < static_cast<float>(options.min_side)) continue;
    TextBox box;
    box.score = mean_inside(map, width, height, r.corners());
    if (box.score < options.box_threshold) continue;
    const float grow = r.half_length * r.half_width * options.unclip / (r.half_length + r.half_width);
    r.half_length += grow;
    r.half_width += grow;
    if (2 * std::min(r.half_length, r.half_width) < static_cast<float>(options.min_side + 2)) continue;
    box.corners = in_reading_order(r.corners());
    for (Point& p : box.corners) {
      p.x = std::clamp(std::round(p.x * static_cast<float>(image_width) / static_cast<float>(width)), 0.f,
                       static_cast<float>(image_width));
      p.y = std::clamp(std::round(p.y * static_cast<float>(image_height) / static_cast<float>(height)), 0.f,
                       static_cast<float>(image_height));
    }
    boxes.push_back(box);
  }
  std::stable_sort(boxes.begin(), boxes.end(), [](const TextBox& a, const TextBox& b) {
    return a.corners[0].y < b.corners[0].y ||
           (a.corners[0].y == b.corners[0].y && a.corners[0].x < b.corners[0].x);
  });
  // Boxes of one line begin within 10 pixels of each other: from left to right.
  for (size_t k = 1; k < boxes.size(); ++k) {
    for (size_t j = k; j > 0; --j) {
      const Point a = boxes[j - 1].corners[0], b = boxes[j].corners[0];
      if (std::abs(a.y - b.y) >= 10 || b.x >= a.x) break;
      std::swap(boxes[j - 1], boxes[j]);
    }
  }
  return boxes;
}

}  // namespace oar::vision

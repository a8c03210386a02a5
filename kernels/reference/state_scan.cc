// The recurrence itself, position by position in double: from the border through the open rows, then through
// the new ones.
#include "kernels/state_scan.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/kernel_list.h"

namespace oar {
namespace {

void plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const StateScanArgs*>(args);
  *out = {1, {a.shape.heads}};
}

class Scan {
 public:
  Scan(const StateScanArgs& args, int64_t head)
      : a(args), s(args.shape), h(head), kh(head / (s.heads / s.key_heads)), S(size_of(s), 0) {}

  // What is kept of a position.
  void take(const float* k, const float* u, double decay) {
    for (int64_t d = 0; d < s.key_dim; ++d) {
      for (int64_t j = 0; j < s.value_dim; ++j) {
        double& x = at(d, j);
        x = decay * x + static_cast<double>(k[d]) * static_cast<double>(u[j]);
      }
    }
  }
  // A new row t: what it adds goes to u [Dv], what it scales by is returned.
  float step(int64_t t, float* u) {
    const float* k = a.k + t * a.ldk + kh * s.key_dim;
    const float* q = a.q + t * a.ldq + kh * s.key_dim;
    const float* v = a.v + t * a.ldv + h * s.value_dim;
    const auto decay = static_cast<float>(std::exp(static_cast<double>(a.g[t * a.ldg + h])));
    const auto beta = static_cast<double>(a.beta[t * a.ldb + h]);
    for (int64_t j = 0; j < s.value_dim; ++j) {
      double old = 0;
      if (a.delta != 0) {
        for (int64_t d = 0; d < s.key_dim; ++d) old += at(d, j) * static_cast<double>(k[d]);
      }
      u[j] = static_cast<float>(beta * (static_cast<double>(v[j]) - static_cast<double>(decay) * old));
    }
    take(k, u, static_cast<double>(decay));
    for (int64_t j = 0; j < s.value_dim; ++j) {
      double sum = 0;
      for (int64_t d = 0; d < s.key_dim; ++d) sum += at(d, j) * static_cast<double>(q[d]);
      a.out[t * a.ldo + h * s.value_dim + j] = static_cast<float>(sum);
    }
    return decay;
  }
  void begin(const float* border) { std::copy_n(border, S.size(), S.begin()); }
  // The state is rounded where a chunk ends.
  void end_chunk(float* border) {
    for (size_t i = 0; i < S.size(); ++i) border[i] = static_cast<float>(S[i]);
    begin(border);
  }
  size_t size() const { return S.size(); }

 private:
  static size_t size_of(const StateScanShape& s) {
    return static_cast<size_t>(s.key_dim) * static_cast<size_t>(s.value_dim);
  }
  double& at(int64_t d, int64_t j) { return S[static_cast<size_t>(d * s.value_dim + j)]; }

  const StateScanArgs& a;
  const StateScanShape& s;
  const int64_t h, kh;
  std::vector<double> S;
};

// Head h of sequence b.
void sequence(const StateScanArgs& a, int64_t b, int64_t h) {
  const StateScanShape& s = a.shape;
  const int64_t kh = h / (s.heads / s.key_heads);
  const int64_t keys = kh * s.key_dim, updates = int64_t{s.key_heads} * s.key_dim + h * s.value_dim,
                decays = state_scan_row(s) - s.heads + h;
  std::vector<float> u(static_cast<size_t>(s.value_dim)), carry(static_cast<size_t>(s.key_dim * s.value_dim));
  const int64_t at = h * static_cast<int64_t>(carry.size());
  for_each_state_chunk(a.state, b, at, carry.data(), [&](const StateChunk& c) {
    Scan scan(a, h);
    if (c.border != nullptr) scan.begin(c.border);
    for (int64_t i = 0; i < c.open; ++i) {
      const float* row = c.kept + i * a.state.row_floats;
      scan.take(row + keys, row + updates, static_cast<double>(row[decays]));
    }
    for (int64_t t = c.first; t < c.first + c.rows; ++t) {
      const float decay = scan.step(t, u.data());
      float* row = state_row(a.state, t);
      if (row == nullptr) continue;
      if (h % (s.heads / s.key_heads) == 0) std::copy_n(a.k + t * a.ldk + keys, s.key_dim, row + keys);
      std::copy_n(u.data(), u.size(), row + updates);
      row[decays] = decay;
    }
    if (c.out != nullptr) scan.end_chunk(c.out);
  });
}

void segments(const StateScanArgs& a, int64_t h) {
  std::vector<float> u(static_cast<size_t>(a.shape.value_dim));
  for (int64_t t = 0, end = 0; t < a.T; t = end) {
    for (end = t + 1; end < a.T && a.segments[end] == a.segments[t];) ++end;
    Scan scan(a, h);
    std::vector<float> border(scan.size());
    for (int64_t p = 0; p < end - t; ++p) {
      scan.step(t + p, u.data());
      if ((p + 1) % a.state.page_tokens == 0) scan.end_chunk(border.data());
    }
  }
}

void run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const StateScanArgs*>(args);
  for (int64_t h = begin; h < end; ++h) {
    if (a.state.borders == nullptr) segments(a, h);
    else
      for (int64_t b = 0; b < a.state.B; ++b) sequence(a, b, h);
  }
}

constexpr KernelEntry kEntries[] = {{KernelFamily::kStateScan, Isa::kReference, plan, run}};

}  // namespace

constinit const KernelTable kernels_state_scan_reference{kEntries};

}  // namespace oar

#include "kernels/recurrent.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/kernel_list.h"

namespace oar {
namespace {

using Doubles = std::vector<double>;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

void plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const RecurrentArgs*>(args);
  *out = {1, {std::max<int64_t>(1, a.D * a.B)}};
}

// Direction d of entry b.
void sequence(const RecurrentArgs& a, int64_t d, int64_t b) {
  const int64_t H = a.H, G = recurrent_gates(a.cell), told = recurrent_length(a, b);
  const bool fits = told >= 0 && told <= a.T;
  const int64_t length = fits ? told : 0;
  const float rest = fits ? 0.f : NAN;
  const auto n = static_cast<size_t>(H);
  const float* r = a.r + d * H * G * H;
  Doubles h(n, 0), c(n, 0), next(n);
  const int64_t state = d * a.state_d + b * a.state_b;
  for (size_t k = 0; k < n; ++k) {
    if (a.h0) h[k] = static_cast<double>(a.h0[state + static_cast<int64_t>(k)]);
    if (a.c0) c[k] = static_cast<double>(a.c0[state + static_cast<int64_t>(k)]);
  }
  for (int64_t s = 0; s < length; ++s) {
    const int64_t t = a.reverse || d == 1 ? length - 1 - s : s;
    const float* x = a.gates + t * a.gates_t + b * a.gates_b + d * G * H;
    const auto input = [&](int64_t g, size_t k) {
      return static_cast<double>(x[g * H + static_cast<int64_t>(k)]);
    };
    const auto recur = [&](const Doubles& from, int64_t g, size_t k) {
      double sum = 0;
      for (size_t j = 0; j < n; ++j)
        sum +=
            static_cast<double>(r[(static_cast<int64_t>(j) * G + g) * H + static_cast<int64_t>(k)]) * from[j];
      return sum;
    };
    const auto gate = [&](int64_t g, size_t k) { return input(g, k) + recur(h, g, k); };
    if (a.cell == RecurrentCell::kRnn) {
      for (size_t k = 0; k < n; ++k) next[k] = std::tanh(gate(0, k));
    } else if (a.cell == RecurrentCell::kGru) {
      Doubles reset(n), scaled(n);
      for (size_t k = 0; k < n; ++k) reset[k] = sigmoid(gate(1, k)), scaled[k] = reset[k] * h[k];
      for (size_t k = 0; k < n; ++k) {
        const double bias = a.r_bias ? static_cast<double>(a.r_bias[d * H + static_cast<int64_t>(k)]) : 0;
        const double product =
            a.linear_before_reset ? reset[k] * (recur(h, 2, k) + bias) : recur(scaled, 2, k);
        const double z = sigmoid(gate(0, k));
        next[k] = (1 - z) * std::tanh(input(2, k) + product) + z * h[k];
      }
    } else {
      for (size_t k = 0; k < n; ++k) {
        c[k] = sigmoid(gate(2, k)) * c[k] + sigmoid(gate(0, k)) * std::tanh(gate(3, k));
        next[k] = sigmoid(gate(1, k)) * std::tanh(c[k]);
      }
    }
    h = next;
    for (size_t k = 0; k < n; ++k)
      a.y[t * a.y_t + b * a.y_b + d * a.y_d + static_cast<int64_t>(k)] = static_cast<float>(h[k]);
  }
  for (int64_t t = length; t < a.T; ++t) std::fill_n(a.y + t * a.y_t + b * a.y_b + d * a.y_d, n, rest);
  for (size_t k = 0; k < n; ++k) {
    if (a.h) a.h[state + static_cast<int64_t>(k)] = fits ? static_cast<float>(h[k]) : NAN;
    if (a.c) a.c[state + static_cast<int64_t>(k)] = fits ? static_cast<float>(c[k]) : NAN;
  }
}

void run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const RecurrentArgs*>(args);
  for (int64_t i = begin; i < end && i < a.D * a.B; ++i) sequence(a, i / a.B, i % a.B);
}

constexpr KernelEntry kEntries[] = {
    {KernelFamily::kRecurrent, Isa::kReference, plan, run},
};

}  // namespace

constinit const KernelTable kernels_recurrent_reference{kEntries};

}  // namespace oar

// Recurrent layers on the device against the double reference; an entry beside others gives the same bits.
#include "kernels/recurrent.h"

#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;

namespace {

std::vector<float> scaled(int64_t n, float by, uint32_t seed) {
  std::vector<float> v = random_values(static_cast<size_t>(n), Values::kNormal, seed);
  for (float& x : v) x *= by;
  return v;
}

struct Cells {
  Cells(RecurrentCell cell, int64_t T, int64_t B, int64_t D, int64_t H)
      : row(D * recurrent_gates(cell) * H),
        gates(scaled(T * B * row, 1.5f, 1)),
        r(scaled(row * H, 1.f / std::sqrt(static_cast<float>(H)), 2)),
        r_bias(scaled(D * H, 0.5f, 3)),
        h0(scaled(D * B * H, 0.5f, 4)),
        c0(scaled(D * B * H, 0.5f, 5)) {
    a.cell = cell;
    a.T = T, a.B = B, a.D = D, a.H = H;
    a.gates_t = B * row, a.gates_b = row;
    a.state_d = B * H, a.state_b = H;
    a.y_t = D * B * H, a.y_d = B * H, a.y_b = H;
  }

  // y, h and c one behind the other; what is not wanted stays as it was.
  template <class Launch>
  std::vector<float> run(bool on_device, const Launch& launch) {
    RecurrentArgs args = a;
    const int64_t steps = a.T * a.D * a.B * a.H, states = a.D * a.B * a.H;
    const std::vector<float> nothing(static_cast<size_t>(steps + 2 * states), -7.f);
    std::vector<float> out = nothing;
    DeviceArray d_gates(gates), dr(r), d_bias(r_bias), dh(h0), dc(c0), d_out(nothing);
    DeviceCopy<int64_t> d_lengths(lengths);
    DeviceCopy<int32_t> d_narrow(std::vector<int32_t>(lengths.begin(), lengths.end()));
    std::vector<int32_t> narrow(lengths.begin(), lengths.end());
    args.gates = on_device ? d_gates.data() : gates.data();
    args.r = on_device ? dr.data() : r.data();
    if (biased) args.r_bias = on_device ? d_bias.data() : r_bias.data();
    if (begins) args.h0 = on_device ? dh.data() : h0.data();
    if (begins && a.cell == RecurrentCell::kLstm) args.c0 = on_device ? dc.data() : c0.data();
    if (!lengths.empty()) {
      args.wide_lengths = wide;
      if (wide) args.lengths = on_device ? d_lengths.data() : lengths.data();
      else args.lengths = on_device ? d_narrow.data() : narrow.data();
    }
    float* const all = on_device ? d_out.data() : out.data();
    args.y = all;
    if (ends) args.h = all + steps;
    if (ends && a.cell == RecurrentCell::kLstm) args.c = all + steps + states;
    launch(args);
    return on_device ? d_out.host() : out;
  }
  std::vector<float> device() {
    return run(true,
               [](const RecurrentArgs& args) { launch_on_device(KernelFamily::kRecurrent, "f32", &args); });
  }
  std::vector<float> reference() {
    return run(false, [](const RecurrentArgs& args) {
      run_reference(KernelFamily::kRecurrent, Format::f32(), &args);
    });
  }

  int64_t row;
  RecurrentArgs a;
  std::vector<float> gates, r, r_bias, h0, c0;
  std::vector<int64_t> lengths;
  bool biased = false, begins = true, ends = true, wide = false;
};

// States stay about 1, weights here keep differences from growing; a step adds roundings of sums of H terms
// and of the activations' few units.
void check_near(const std::vector<float>& got, const std::vector<float>& want, int64_t T, int64_t H) {
  const double step = kUnit * (32 + 2 * std::sqrt(static_cast<double>(H)));
  check_close(got, want, [&](size_t i) {
    return step * std::min(static_cast<double>(T), 8.0) * (1 + std::fabs(static_cast<double>(want[i])));
  });
}

constexpr RecurrentCell kCells[] = {RecurrentCell::kRnn, RecurrentCell::kGru, RecurrentCell::kLstm};

}  // namespace

TEST_CASE("cuda: recurrent layers of every cell and width against the reference", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const RecurrentCell cell : kCells) {
    for (const auto& [T, B, D, H] : {std::array<int64_t, 4>{1, 1, 1, 1},
                                     {7, 3, 2, 33},
                                     {5, 2, 1, 96},
                                     {9, 1, 2, 31},
                                     {2, 1, 1, 600},
                                     {0, 2, 1, 8}}) {
      for (const bool before : {false, true}) {
        if (before && cell != RecurrentCell::kGru) continue;
        INFO("gates " << recurrent_gates(cell) << " T " << T << " B " << B << " D " << D << " H " << H
                      << " before " << before);
        Cells p(cell, T, B, D, H);
        p.a.linear_before_reset = before;
        p.biased = before && B != 2;
        check_near(p.device(), p.reference(), T, H);
        p.begins = p.ends = false;
        p.a.reverse = true;
        check_near(p.device(), p.reference(), T, H);
      }
    }
  }
}

TEST_CASE("cuda: recurrent layers: entries of no length that can be are no numbers", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const RecurrentCell cell : kCells) {
    for (const bool wide : {false, true}) {
      INFO("gates " << recurrent_gates(cell) << " wide " << wide);
      Cells p(cell, 3, 5, 2, 34);
      p.lengths = {2, -1, 3, 4, 0};
      p.wide = wide;
      const std::vector<float> got = p.device();
      check_near(got, p.reference(), 3, 34);
      // Of two directions, three steps, and one state, or two.
      const auto states = static_cast<size_t>(cell == RecurrentCell::kLstm ? 2 : 1);
      CHECK(static_cast<size_t>(std::ranges::count_if(got, [](float v) { return std::isnan(v); })) ==
            2 * 34 * 2 * (3 + states));
    }
  }
}

TEST_CASE("cuda: recurrent layers: entries of their own lengths, batch first, alone as beside others",
          "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  constexpr int64_t kT = 6, kB = 4, kD = 2, kH = 40;
  for (const RecurrentCell cell : kCells) {
    for (const bool wide : {false, true}) {
      INFO("gates " << recurrent_gates(cell) << " wide " << wide);
      Cells p(cell, kT, kB, kD, kH);
      p.lengths = {6, 0, 3, 1};
      p.wide = wide;
      p.a.gates_t = p.row, p.a.gates_b = kT * p.row;
      p.a.y_t = kD * kH, p.a.y_d = kH, p.a.y_b = kT * kD * kH;
      p.a.state_d = kH, p.a.state_b = kD * kH;
      const std::vector<float> all = p.device();
      check_near(all, p.reference(), kT, kH);
      // The third by itself.
      Cells one = p;
      one.a.B = 1;
      one.lengths = {3};
      one.gates.erase(one.gates.begin(), one.gates.begin() + 2 * p.a.gates_b);
      one.h0.erase(one.h0.begin(), one.h0.begin() + 2 * p.a.state_b);
      one.c0.erase(one.c0.begin(), one.c0.begin() + 2 * p.a.state_b);
      const std::vector<float> alone = one.device();
      CHECK(std::equal(alone.begin(), alone.begin() + p.a.y_b, all.begin() + 2 * p.a.y_b));
    }
  }
}

// Kernels over rows on the device against the reference: LayerNorm, rotations, gathers, embeddings of every
// format.
#include "kernels/embedding.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;

TEST_CASE("cuda: layer_norm against the reference", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  constexpr int64_t kRows = 3;
  for (int64_t cols : {1, 3, 4, 5, 255, 1000, 1024, 1025, 4096}) {
    for (int flags = 0; flags < 8; ++flags) {
      const bool add = flags % 2 != 0, affine = flags / 2 % 2 != 0;
      const size_t shift = flags / 4;
      INFO("cols " << cols << " residual " << add << " affine " << affine << " shift " << shift);
      const auto values = [](int64_t n, uint32_t seed) {
        return random_values(static_cast<size_t>(n), Values::kNormal, seed);
      };
      const int64_t ldx = cols + 4;
      std::vector<float> x = values(kRows * ldx, 1), w = values(cols, 2), b = values(cols, 3),
                         residual = values(kRows * cols, 4), want = nothing_yet(kRows * cols), sum = want;
      LayerNormArgs a;
      a.rows = kRows;
      a.cols = a.ldo = cols;
      a.ldx = ldx;
      a.out = want.data();
      a.sum_out = sum.data();
      a.x = x.data();
      a.residual = add ? residual.data() : nullptr;
      a.w = affine ? w.data() : nullptr;
      a.b = affine ? b.data() : nullptr;
      run_reference(KernelFamily::kLayerNorm, Format::f32(), &a);

      DeviceArray dx(x, shift), dw(w, shift), db(b, shift), out(nothing_yet(kRows * cols), shift);
      DeviceArray stream(add ? residual : nothing_yet(kRows * cols), shift);
      a.out = out.data();
      const bool wants_sum = cols % 5 != 0;  // nobody has to
      a.sum_out = wants_sum ? stream.data() : nullptr;
      a.x = dx.data();
      a.residual = add ? stream.data() : nullptr;
      a.w = affine ? dw.data() : nullptr;
      a.b = affine ? db.data() : nullptr;
      launch_on_device(KernelFamily::kLayerNorm, "f32", &a);
      if (wants_sum) CHECK(stream.host() == sum);
      // Mean and variance are sums of 4 ceil(cols / 1024) + 13 additions; the mean is of magnitudes up to 5,
      // and its error is divided by the deviation, as is that of the centred element. cols of 1 divide by
      // sqrt(eps).
      const double depth = 4 * std::ceil(static_cast<double>(cols) / 1024) + 13;
      for (int64_t r = 0; r < kRows; ++r) {
        double mean = 0, variance = 0, most = 0;
        for (int64_t i = 0; i < cols; ++i)
          mean += sum[static_cast<size_t>(r * cols + i)] / static_cast<double>(cols);
        for (int64_t i = 0; i < cols; ++i) {
          const double h = sum[static_cast<size_t>(r * cols + i)];
          variance += (h - mean) * (h - mean) / static_cast<double>(cols);
          most = std::max(most, std::fabs(h));
        }
        const double error = (depth + 3) * kUnit * most / std::sqrt(variance + a.eps);
        const std::vector<float> got_rows = out.host();
        for (int64_t i = 0; i < cols; ++i) {
          const auto at = static_cast<size_t>(r * cols + i);
          const double weight = affine ? std::fabs(w[static_cast<size_t>(i)]) : 1;
          const double shifted = affine ? std::fabs(b[static_cast<size_t>(i)]) : 0;
          const double bound =
              error * weight * (2 + depth) + (depth + 12) * kUnit * (std::fabs(want[at]) + 2 * shifted);
          REQUIRE(std::fabs(got_rows[at] - want[at]) <= bound);
        }
      }
    }
  }
}

TEST_CASE("cuda: rotations against the reference, at every position and in place", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (auto [D, rot] :
       {std::pair<int64_t, int64_t>{8, 8}, {16, 6}, {64, 64}, {80, 40}, {128, 128}, {256, 64}, {16, 0}}) {
    for (int flags = 0; flags < 4; ++flags) {
      const bool interleaved = flags % 2 != 0, norm = flags / 2 != 0;
      INFO("D " << D << " rot " << rot << " interleaved " << interleaved << " norm " << norm);
      const int64_t heads = 3, ld = heads * D + 5;
      const std::vector<int32_t> positions = {0, 1, 77, 4095, 131071, 2147483647};
      const auto T = static_cast<int64_t>(positions.size());
      std::vector<float> x = random_values(static_cast<size_t>(T * ld), Values::kNormal, 1),
                         w = random_values(static_cast<size_t>(D), Values::kNormal, 2), freq, want = x;
      for (int64_t i = 0; i < rot / 2; ++i)
        freq.push_back(
            static_cast<float>(std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(rot))));
      RopeArgs a;
      a.T = T;
      a.heads = heads;
      a.D = D;
      a.rot_dim = rot;
      a.ldx = a.ldo = ld;
      a.mscale = 1.25f;
      a.interleaved = interleaved ? 1 : 0;
      a.x = x.data();
      a.out = want.data();
      a.positions = positions.data();
      a.inv_freq = freq.data();
      a.norm_w = norm ? w.data() : nullptr;
      run_reference(KernelFamily::kRope, Format::f32(), &a);
      DeviceArray in_place(x), dw(w), df(freq);
      DeviceCopy<int32_t> dp(positions);
      a.x = a.out = in_place.data();
      a.positions = dp.data();
      a.inv_freq = df.data();
      a.norm_w = norm ? dw.data() : nullptr;
      launch_on_device(KernelFamily::kRope, "f32", &a);
      // Both products of a rotation: sine and cosine to 2^-23, their scale and the sum, half a unit each; the
      // norm's sum of D / 32 + 5 additions, root, quotient and two products. Normal values lie within 6,
      // weights too.
      const double scale = norm ? 6 * 6 : 6;
      const double bound =
          2 * 1.25 * scale * (2 + 3 + (norm ? static_cast<double>(D) / 64 + 8 : 0)) * 2 * kUnit;
      check_close(in_place.host(), want, [&](size_t) { return bound; });
      // The same heads where they are farther apart.
      const int64_t apart = D + 3, wide = heads * apart;
      const std::vector<float> dense = in_place.host();
      std::vector<float> spread(static_cast<size_t>(T * wide), 7.f), behind = spread;
      const auto spread_out = [&](const std::vector<float>& from, std::vector<float>& to) {
        for (int64_t t = 0; t < T; ++t)
          for (int64_t h = 0; h < heads; ++h)
            std::copy_n(from.begin() + t * ld + h * D, D, to.begin() + t * wide + h * apart);
      };
      spread_out(x, spread);
      spread_out(dense, behind);
      DeviceArray rows(spread);
      a.version = 2;
      a.x = a.out = rows.data();
      a.ldx = a.ldo = wide;
      a.x_step = a.out_step = apart;
      launch_on_device(KernelFamily::kRope, "f32", &a);
      CHECK(rows.host() == behind);
    }
  }
}

TEST_CASE("cuda: gathers are copies", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (int64_t E : {1, 5, 64, 1024, 1028}) {
    for (size_t shift : {0, 1}) {
      INFO("E " << E << " shift " << shift);
      const std::vector<int32_t> rows = {3, 0, 3, 2};
      const std::vector<float> x = random_values(static_cast<size_t>(4 * E), Values::kNormal, 1);
      DeviceArray dx(x, shift), out(nothing_yet(4 * E), shift);
      DeviceCopy<int32_t> drows(rows);
      GatherRowsArgs a;
      a.out = out.data();
      a.x = dx.data();
      a.rows = drows.data();
      a.R = 4;
      a.E = E;
      launch_on_device(KernelFamily::kGatherRows, "f32", &a);
      const std::vector<float> got = out.host();
      for (size_t r = 0; r < rows.size(); ++r) {
        const auto e = static_cast<size_t>(E);
        CHECK(std::equal(got.begin() + r * e, got.begin() + (r + 1) * e,
                         x.begin() + static_cast<size_t>(rows[r]) * e));
      }
    }
  }
}

TEST_CASE("cuda: embeddings of every format are its decoder's numbers", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const FormatInfo* info : all_formats()) {
    const Format format(info);
    if (info->encode == nullptr && random_blocks(format) == nullptr) continue;
    for (int64_t E : {int64_t{info->block_elems}, int64_t{1280}}) {
      INFO(format.name() << " E " << E);
      const int64_t V = 5;
      const Guarded<char> table =
          encode(random_values(static_cast<size_t>(V * E), Values::kNormal, 1), E, format);
      const std::vector<float> decoded = decode(table, E, format);
      const std::vector<int32_t> ids = {4, 0, 4};
      DeviceCopy<char> dtable(std::vector<char>(table.begin(), table.end()));
      DeviceCopy<int32_t> dids(ids);
      DeviceArray out(nothing_yet(3 * E));
      EmbeddingArgs a;
      a.out = out.data();
      a.table = dtable.data();
      a.ids = dids.data();
      a.T = 3;
      a.E = E;
      a.V = V;
      a.scale = 1.5f;
      launch_on_device(KernelFamily::kEmbedding, format.name(), &a);
      std::vector<float> want;
      for (int32_t id : ids)
        for (int64_t i = 0; i < E; ++i) want.push_back(decoded[static_cast<size_t>(id * E + i)] * 1.5f);
      // The decoder is the same; compilers may fuse a product and a difference of it, one rounding of
      // magnitudes.
      check_close(out.host(), want, [&](size_t i) { return 8 * kUnit * (std::fabs(want[i]) + 8); });
    }
  }
}

// Other engines' KV rules, as the instrument restates them: each against its rule done another way, and ours
// against all of them on the default model. That q4_0 and q8_0 are ggml's own, byte for byte, is
// tests/quant/format_test.cc's affair (goldens of the gguf package).
#include "engine/tune/measure/peer_kv.h"

#include <cmath>
#include <fstream>
#include <random>
#include <sstream>

#include "engine/runtime/model_tokenizer.h"
#include "engine/tune/measure/compare.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"

using namespace oar;

namespace {

std::vector<float> gaussian(size_t n) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

}  // namespace

TEST_CASE("ggml's blocks: signed extreme onto the lowest level, absmax over 127") {
  const std::vector<float> x = gaussian(64);
  std::vector<float> q4(64), q8(64);
  peer_round_trip(PeerCode::kBlocksQ4, x.data(), 64, nullptr, q4.data());
  peer_round_trip(PeerCode::kBlocksQ8, x.data(), 64, nullptr, q8.data());
  for (size_t b = 0; b < 64; b += 32) {
    float extreme = 0;
    for (size_t i = b; i < b + 32; ++i) {
      if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
    }
    const float d4 = to_f32(to_f16(extreme / -8)), d8 = to_f32(to_f16(std::fabs(extreme) / 127));
    for (size_t i = b; i < b + 32; ++i) {
      // Levels are chosen with the exact scale and read with the stored one: half a step, 8 or 127 steps
      // times the f16's 2^-11, and one clipped level at the end opposite to the extreme.
      const float step = std::fabs(d4);
      CHECK(std::fabs(q4[i] - x[i]) <= step * (x[i] / d4 > 7 ? 1.01f : 0.51f));
      CHECK(std::fabs(q8[i] - x[i]) <= d8 * 0.57f);
      CHECK(std::fabs(q4[i] / d4 - std::nearbyint(q4[i] / d4)) < 1e-4f);
    }
  }
}

TEST_CASE("the static rule: scale and zero of a channel, ties to even, clamped outside what was seen") {
  // Channel 0 seen in [-1, 2]: scale 5, zero -3. Channel 1 never moved. Channel 2 in [0, 15]: scale 1, zero
  // -8.
  const std::vector<float> range{-1, 7, 0, 2, 7, 15};
  const auto trip = [&](float a, float b, float c) {
    const std::vector<float> x{a, b, c};
    std::vector<float> out(3);
    peer_round_trip(PeerCode::kStaticChannel4, x.data(), 3, range.data(), out.data());
    return out;
  };
  CHECK(trip(-1, 7, 0) == std::vector<float>{-1, 7, 0});
  CHECK(trip(2, 7, 15) == std::vector<float>{2, 7, 15});
  CHECK(trip(0.09f, 8, 2.5f) == std::vector<float>{0, 7, 2});     // 2.5 - 8 = -5.5 -> -6
  CHECK(trip(0.11f, 8, 3.5f) == std::vector<float>{0.2f, 7, 4});  // 3.5 - 8 = -4.5 -> -4
  CHECK(trip(-9, 7, 99) == std::vector<float>{-1, 7, 15});
}

TEST_CASE("rounding in groups of 32: 20.3 dB on Gaussian numbers") {
  const std::vector<float> x = gaussian(1 << 15);
  std::vector<float> y(x.size());
  peer_round_trip(PeerCode::kGroup32, x.data(), static_cast<int64_t>(x.size()), nullptr, y.data());
  double signal = 0, noise = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    signal += static_cast<double>(x[i] * x[i]);
    noise += static_cast<double>((x[i] - y[i]) * (x[i] - y[i]));
  }
  CHECK(10 * std::log10(signal / noise) == Approx(20.3).margin(0.15));
}

TEST_CASE("our tiers lose less than other engines' at equal or fewer bits") {
  const std::string demo = std::string(OAR_SOURCE_DIR) + "/configs/demo";
  const Checkpoint checkpoint = std::move(load_checkpoint(demo)).value();
  const auto tokenizer = std::move(make_tokenizer(checkpoint.tokenizer, 2048)).value();
  std::ifstream file(demo + "/heldout.txt");
  std::stringstream text;
  text << file.rdbuf();
  std::vector<CompareCase> cases;
  for (const char* kv : {"int8", "int4", "k4v3"}) cases.push_back({"demo", &checkpoint, "auto", kv});
  for (const std::string& name : peer_kv_names()) cases.push_back({"demo", &checkpoint, "auto", name});
  CompareOptions options;
  options.contexts = {256};
  const auto report = compare_models(checkpoint, *tokenizer,
                                     text.str().substr(0, oar_test::kSlow ? 1500 : 3000), cases, options);
  REQUIRE(report.ok());
  const auto row = [&](const std::string& kv) {
    for (const CompareRow& r : report->rows) {
      if (r.kv == kv) return r;
    }
    FAIL("no row " << kv);
    return CompareRow{};
  };
  CHECK(row("int8").bits.kv_bits() == 8.25);
  CHECK(row("int4").bits.kv_bits() == 4.5);
  CHECK(row("k4v3").bits.kv_bits() == 4.0);
  CHECK(row("int8").rotate == "r2,r3");
  CHECK(row("int8").mean_kld < 1e-3);
  for (const std::string& name : peer_kv_names()) {
    const CompareRow peer = row(name);
    INFO(name << " " << peer.mean_kld);
    CHECK(peer.bits.kv_bits() == peer_kv(name)->bits);
    CHECK(peer.mean_kld > 0);
    const CompareRow ours = row(peer.bits.kv_bits() > 8 ? "int8" : peer.bits.kv_bits() > 4 ? "int4" : "k4v3");
    CHECK(ours.bits.kv_bits() <= peer.bits.kv_bits());
    CHECK(ours.mean_kld < peer.mean_kld);
  }
}

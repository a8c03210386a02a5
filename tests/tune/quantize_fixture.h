// What the tests of quantizing share: the default model's held-out text, a folder of their own, and how far
// the logits of two checkpoints differ.
#pragma once

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <span>

#include "engine/tune/measure/compare.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_weights.h"

namespace oar_test {

inline const std::string kDemo = source_path("configs/demo");

inline std::string heldout() { return read_file(kDemo + "/heldout.txt"); }

// Empty, and removed at the end.
struct QuantizeFolder {
  std::string path =
      (std::filesystem::temp_directory_path() / ("oar-quantize-test-" + std::to_string(getpid()))).string();
  QuantizeFolder() {
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(path);
  }
  ~QuantizeFolder() { std::filesystem::remove_all(path); }
  std::string operator/(const std::string& name) const { return path + "/" + name; }
};

inline oar::Checkpoint load(const std::string& path) {
  auto c = oar::load_checkpoint(path);
  REQUIRE_OK(c);
  return std::move(*c);
}

// Logits of a tiny golden's first tokens, and the ratio of what other logits differ from them.
inline std::vector<float> tiny_logits(const TinyGolden& golden, const oar::Checkpoint& c,
                                      const std::string& rotate) {
  oar::LanguageModelOptions options;
  options.threads = 2;
  options.kv = "f32";
  options.rotate = rotate;
  const auto model = oar::EvalModel::open(c, options, oar::make_backend(options).value(), 16);
  REQUIRE_OK(model);
  const auto out = (*model)->append(std::span(golden.tokens).first(8));
  REQUIRE_OK(out);
  return std::vector<float>(out->begin(), out->end());
}

inline double snr_db(const std::vector<float>& want, const std::vector<float>& got) {
  double signal = 0, noise = 1e-30;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    signal += static_cast<double>(want[i]) * static_cast<double>(want[i]);
    noise += d * d;
  }
  return 10 * std::log10(signal / noise);
}

}  // namespace oar_test

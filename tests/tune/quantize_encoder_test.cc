// `oar quantize` of an encoder: the folder that it writes is a model like any other, with its texts' files.
#include <filesystem>
#include <fstream>

#include "engine/runtime/encoder_model.h"
#include "engine/runtime/text_encoder.h"
#include "engine/tune/quantize/quantize.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_encoder.h"
#include "tests/tune/quantize_fixture.h"

using namespace oar;
namespace fs = std::filesystem;

namespace {

std::vector<float> embed(const LoadedEncoder& e) {
  const auto tokens = e.encoder->accept({2, 9, 40, 77, 12, 3}, 0);
  REQUIRE_OK(tokens);
  auto in = e.encoder->inputs(*tokens);
  REQUIRE_OK(in);
  const auto out = e.runner->run(std::move(*in));
  REQUIRE_OK(out);
  const auto vector = e.encoder->vector(*out, tokens->ids.size());
  REQUIRE_OK(vector);
  return *vector;
}

}  // namespace

TEST_CASE("an encoder that was quantized to a folder is the one that is quantized at load") {
  const oar_test::QuantizeFolder folder;
  const std::string source = oar_test::write_tiny_encoder("bert");
  std::ofstream(source + "/sentence_bert_config.json") << R"({"max_seq_length": 20})";
  const auto exact = load_text_encoder(source, {});
  REQUIRE_OK(exact);
  // Names of storage formats, which kernels do not pack from floats by themselves.
  for (const char* weights : {"q8_0", "int4"}) {
    INFO(weights);
    const std::string out = folder / weights;
    QuantizeOptions o;
    o.weights = weights;
    REQUIRE_OK(quantize_model(oar_test::load(source), nullptr, out, o));
    PredictorOptions at_load;
    at_load.weights = weights;
    at_load.cache_bytes = 0;
    const auto written = load_text_encoder(out, {}), now = load_text_encoder(source, at_load);
    REQUIRE_OK(written);
    REQUIRE_OK(now);
    const auto& model = dynamic_cast<const EncoderModel&>(*written->runner);
    CHECK(model.weights() != dynamic_cast<const EncoderModel&>(*exact->runner).weights());
    CHECK(written->encoder->info().max_tokens == 20);
    CHECK(embed(*written) == embed(*now));
    CHECK(embed(*written) != embed(*exact));
    CHECK(fs::file_size(out + "/model.safetensors") < fs::file_size(source + "/model.safetensors"));
  }
  fs::remove(source + "/sentence_bert_config.json");
}

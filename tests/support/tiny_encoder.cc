#include "tests/support/tiny_encoder.h"

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "engine/base/format.h"
#include "tests/support/test_data.h"

namespace oar_test {

namespace json = oar::json;
using oar::cat;

json::object encoder_golden(const std::string& name) {
  return json::parse(read_file(source_path("tests/golden/encoders/" + name + ".json"))).as_object();
}

std::string write_tiny_encoder(const std::string& name, TinyDtype dtype) {
  return write_tiny_encoder(encoder_golden(name), name, dtype);
}

std::string write_tiny_encoder(const json::object& g, const std::string& name, TinyDtype dtype) {
  TinyGolden tiny;
  tiny.name = cat("encoder-", name);
  tiny.config = json::serialize(g.at("config"));
  tiny.weight_seed = std::stoull(std::string(g.at("weight_seed").as_string()), nullptr, 16);
  for (const json::value& t : g.at("tensors").as_array()) {
    TinyTensor tensor;
    tensor.name = std::string(t.at("name").as_string());
    for (const json::value& d : t.at("shape").as_array()) tensor.shape.push_back(d.as_int64());
    tensor.checksum = std::stoull(std::string(t.at("checksum").as_string()), nullptr, 16);
    if (fnv1a64(tiny_weights(tensor.name, tensor.shape, tiny.weight_seed)) != tensor.checksum)
      throw std::runtime_error(cat("the weights of ", name, "'s ", tensor.name, " are not the generator's"));
    tiny.tensors.push_back(std::move(tensor));
  }
  const std::string folder = write_tiny_model(tiny, dtype);
  write_tiny_vocabulary(folder);
  return folder;
}

void write_tiny_vocabulary(const std::string& folder) {
  std::ofstream vocab(std::filesystem::path(folder) / "vocab.txt", std::ios::binary);
  vocab << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (int k = 5; k < 96; ++k) vocab << "w" << k << "\n";
}

}  // namespace oar_test

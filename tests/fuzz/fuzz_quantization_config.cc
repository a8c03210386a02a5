// Any bytes as a quantized Hugging Face checkpoint: a safetensors file whose metadata has the config.json.
// An error, or weights whose every byte can be read and every row decoded.
#include "engine/loader/quantization_config.h"
#include "tests/fuzz/target.h"
#include "tests/loader/builders.h"

OAR_FUZZ_TARGET(quantization_config) {
  auto file = oar::parse_safetensors(oar::Buffer::wrap_const(data, size, nullptr), "fuzz");
  if (!file.ok()) return 0;
  const auto config = oar::parse_json(file->metadata["config"], "config.json");
  if (!config.ok() || !config->is_object()) return 0;
  std::vector<std::string> notices;
  if (!oar::apply_quantization_config(config->get_object(), file->tensors, &notices).ok()) return 0;
  for (const auto& [name, tensor] : file->tensors) {
    oar_test::touch(tensor);
    if (tensor.shape().rank() != 2 || tensor.numel() == 0) continue;
    std::vector<float> row(static_cast<size_t>(tensor.shape().cols()));
    const auto stride = static_cast<size_t>(tensor.format().stride(tensor.shape().cols()));
    for (int64_t r = 0; r < tensor.shape().rows(); ++r) {
      tensor.format().decode_row(
          static_cast<const std::byte*>(tensor.data()) + static_cast<size_t>(r) * stride,
          tensor.shape().cols(), row.data());
    }
  }
  return 0;
}

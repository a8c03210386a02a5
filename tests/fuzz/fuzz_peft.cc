// Any bytes as an adapter: the configuration up to the first zero byte, the rest as its safetensors file. An
// error, or pairs whose shapes agree and whose every number is finite.
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "engine/loader/peft.h"
#include "tests/fuzz/target.h"

OAR_FUZZ_TARGET(peft) {
  const void* zero = std::memchr(data, 0, size);
  const size_t split = zero == nullptr ? size : static_cast<size_t>(static_cast<const uint8_t*>(zero) - data);
  const auto config = oar::parse_json({reinterpret_cast<const char*>(data), split}, "fuzz");
  if (!config.ok() || !config->is_object()) return 0;
  const size_t rest = split < size ? split + 1 : size;
  const auto file =
      oar::parse_safetensors(oar::Buffer::wrap_const(data + rest, size - rest, nullptr), "fuzz");
  if (!file.ok()) return 0;
  const auto adapter = oar::parse_peft_adapter(config->get_object(), file->tensors);
  if (!adapter.ok()) return 0;
  for (const auto& [name, m] : adapter->modules) {
    if (m.a.shape()[0] != m.b.shape()[1] || m.a.shape()[0] > adapter->rank || !std::isfinite(m.factor))
      std::abort();
    for (const oar::Tensor& t : {m.a, m.b}) {
      for (const float v : t.values<float>()) {
        if (!std::isfinite(v)) std::abort();
      }
    }
  }
  return 0;
}

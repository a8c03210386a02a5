// Any bytes as a safetensors file: an error, or tensors whose every byte can be read.
#include "engine/loader/safetensors.h"
#include "tests/fuzz/target.h"
#include "tests/loader/builders.h"

OAR_FUZZ_TARGET(safetensors) {
  const auto file = oar::parse_safetensors(oar::Buffer::wrap_const(data, size, nullptr), "fuzz");
  if (!file.ok()) return 0;
  for (const auto& [name, tensor] : file->tensors) oar_test::touch(tensor);
  return 0;
}

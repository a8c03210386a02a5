// Any bytes as a GGUF file: an error, or tensors whose every byte can be read, and metadata that gives a
// config and a vocabulary or says why not.
#include "engine/loader/gguf.h"

#include "engine/loader/gguf_model.h"
#include "tests/fuzz/target.h"
#include "tests/loader/builders.h"

OAR_FUZZ_TARGET(gguf) {
  const auto file = oar::parse_gguf(oar::Buffer::wrap_const(data, size, nullptr), "fuzz");
  if (!file.ok()) return 0;
  for (const auto& [name, tensor] : file->tensors) {
    oar_test::touch(tensor);
    oar::hugging_face_name("llama", name);
    oar::hugging_face_name("gpt2", name);
  }
  const auto config = oar::gguf_config(*file);
  const auto vocab = oar::gguf_vocab(*file);
  return 0;
}

#include "clients/cli/embedded_demo.h"

#include <array>

// The assembler copies a file into the read-only section; each begins a page, so that whole pages of weights
// can be read ahead and given back, as a mapped file's are. OAR_DEMO_FOLDER is configs/demo of the source.
#define OAR_EMBED(symbol, name)                                   \
  asm(".pushsection .rodata.oar_demo, \"a\"\n"                    \
      ".balign 4096\n"                                            \
      ".hidden " #symbol "\n.globl " #symbol                      \
      "\n"                                                        \
      ".hidden " #symbol "_end\n.globl " #symbol "_end\n" #symbol \
      ":\n"                                                       \
      ".incbin \"" OAR_DEMO_FOLDER "/" name "\"\n" #symbol        \
      "_end:\n"                                                   \
      ".popsection\n");                                           \
  extern "C" const std::byte symbol[], symbol##_end[]

OAR_EMBED(oar_demo_config, "config.json");
OAR_EMBED(oar_demo_generation_config, "generation_config.json");
OAR_EMBED(oar_demo_model, "model.safetensors");
OAR_EMBED(oar_demo_tokenizer, "tokenizer.json");
OAR_EMBED(oar_demo_tokenizer_config, "tokenizer_config.json");

namespace oar::cli {

std::span<const EmbeddedFile> embedded_demo() {
  const auto file = [](const char* path, const std::byte* begin, const std::byte* end) {
    return EmbeddedFile{path, begin, static_cast<size_t>(end - begin)};
  };
  static const std::array files = {
      file("embedded:demo/config.json", oar_demo_config, oar_demo_config_end),
      file("embedded:demo/generation_config.json", oar_demo_generation_config,
           oar_demo_generation_config_end),
      file("embedded:demo/model.safetensors", oar_demo_model, oar_demo_model_end),
      file("embedded:demo/tokenizer.json", oar_demo_tokenizer, oar_demo_tokenizer_end),
      file("embedded:demo/tokenizer_config.json", oar_demo_tokenizer_config, oar_demo_tokenizer_config_end),
  };
  return files;
}

}  // namespace oar::cli

// What callers choose about loading; shared by the readers of every file kind.
#pragma once

#include <string>

#include "engine/tensor/mapped_file.h"

namespace oar {

struct LoadOptions {
  bool mmap =
      true;  // false: read weights into memory (files that may be rewritten in place, slow network mounts)
  std::string tokenizer;  // a tokenizer.json, .model, .bin or .gguf file, or a folder with them, instead of
                          // the checkpoint's own; empty: its own
};

}  // namespace oar

// What callers choose about loading; shared by the readers of every file kind.
#pragma once

#include <string>

#include "engine/tensor/mapped_file.h"

namespace oar {

struct LoadOptions {
  // False: read weights into memory. For files that may be rewritten in place, and for slow network mounts.
  bool mmap = true;
  // A tokenizer.json, .model, .bin or .gguf file, or a folder with one of them. Empty: the checkpoint's own.
  std::string tokenizer;
};

}  // namespace oar

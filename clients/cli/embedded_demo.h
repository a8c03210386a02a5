// The default model, `demo`, as files inside the program: configs/demo, put there by the assembler.
#pragma once

#include <span>

#include "engine/tensor/embedded_files.h"

namespace oar::cli {

std::span<const EmbeddedFile> embedded_demo();

}  // namespace oar::cli

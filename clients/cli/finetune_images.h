// The options of `oar finetune` that are for a network over images, and which of the others such a network
// has no use for.
#pragma once

#include <CLI/CLI.hpp>

#include "train/images.h"

namespace oar::cli {

void add_image_options(CLI::App& command, train::ImageOptions& options);
// INVALID_ARGUMENT names a flag that was given and is for the other kind of model.
Status check_image_flags(const CLI::App& command, bool image);

}  // namespace oar::cli

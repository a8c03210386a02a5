// The options of `oar finetune` that are for a network over images, and which of the others such a network
// has no use for.
#pragma once

#include <CLI/CLI.hpp>
#include <vector>

#include "train/images.h"

namespace oar::cli {

// --batch, --hold-out and --size, which change what a run takes.
std::vector<CLI::Option*> add_image_sizes(CLI::App& command, train::ImageOptions& options);
// The others.
void add_image_options(CLI::App& command, train::ImageOptions& options);
// INVALID_ARGUMENT names a flag that was given and is for the other kind of model.
Status check_image_flags(const CLI::App& command, bool image);

}  // namespace oar::cli

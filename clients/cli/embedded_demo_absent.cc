// A bundle has the default model once, in share/oar/demo, where program and library find it alike.
#include "clients/cli/embedded_demo.h"

namespace oar::cli {

std::span<const EmbeddedFile> embedded_demo() { return {}; }

}  // namespace oar::cli

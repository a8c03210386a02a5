// How kernel files enter the registry: each defines `void append_<name>(KernelList&)`, which pushes its
// Kernel values, and is named in kernels/CMakeLists.txt; the generated list calls them once. Internal to
// kernels/.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace oar {

using KernelList = std::vector<Kernel>;

// Appends the plain, the gated and the grouped matmul of one format and level, named "matmul.FORMAT.LEVEL",
// "gated_matmul..." and "grouped_matmul..."; `level` is the ISA's name if null. Not a part of the template
// that calls it, of which there are hundreds.
void append_matmul_kernels(KernelList& list, const Kernel (&kernels)[3], const char* level);

#define OAR_REGISTER(name) void append_##name(KernelList& list);
#include "oar_kernels.inc"
#undef OAR_REGISTER

}  // namespace oar

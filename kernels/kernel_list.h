// How kernel files enter the registry: each defines `void append_<name>(KernelList&)`, which pushes its
// Kernel values, and is named in kernels/CMakeLists.txt; the generated list calls them once. Internal to
// kernels/.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace oar {

using KernelList = std::vector<Kernel>;

// `text` with static storage, for Kernel::name.
const char* kernel_name(std::string text);

#define OAR_REGISTER(name) void append_##name(KernelList& list);
#include "oar_kernels.inc"
#undef OAR_REGISTER

}  // namespace oar

// How many files and sockets this process may have open.
#pragma once

#include <cstddef>

namespace oar {

// Raises the soft limit to the hard one, for a program that has thousands of connections. Returns the limit.
size_t raise_descriptor_limit();

}  // namespace oar

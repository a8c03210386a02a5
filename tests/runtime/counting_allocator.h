// Counts this thread's heap allocations, for tests that promise none. counting_allocator.cc replaces operator
// new.
#pragma once

#include <cstdint>

namespace oar_test {
int64_t allocations();  // by this thread so far
}

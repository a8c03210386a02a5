// OAR_FUZZ_TARGET(name) { ... `data`, `size` ... return 0; }: what a fuzzer calls with bytes. For libFuzzer
// (OAR_FUZZ) it has the name that libFuzzer asks for; where seeds are replayed all targets lie in one program
// (replay_main.cc), each under its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#ifdef OAR_FUZZ
#define OAR_FUZZ_TARGET(name) extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
#else
#define OAR_FUZZ_TARGET(name) int fuzz_##name(const uint8_t* data, size_t size)
#endif

namespace oar_test {

// What a target holds of any input.
inline void must(bool holds) {
  if (!holds) std::abort();
}

}  // namespace oar_test

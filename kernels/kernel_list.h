// How kernel files enter the registry: each defines `constinit const KernelTable kernels_<name>` and is named
// in kernels/CMakeLists.txt; the generated list declares them. Internal to kernels/.
//
// Tables are constant data. A file compiled for an instruction set may use it anywhere. So no code of the
// file may run before the CPU is known to have that set: not to build a list, not before main(), not as the
// copy of an inline function that the linker chose for the program. check_isa_objects.cmake proves it of
// every object.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "kernels/kernel.h"

namespace oar {

// A kernel as its file states it; the registry makes a Kernel of it.
struct KernelEntry {
  KernelFamily family = KernelFamily::kMatmul;
  Isa isa = Isa::kReference;
  void (*plan)(const void* args, int workers, KernelPlan* out) = nullptr;
  void (*run)(const void* args, int phase, int64_t begin, int64_t end,
              const KernelScratch& scratch) = nullptr;
  const char* format = nullptr;                                      // as Format::find() knows it; null: any
  WeightSpan (*weights)(const void* args, int64_t chunk) = nullptr;  // as Kernel's
  const char* layout = nullptr;  // left out where weight_layout() names another for this level; null: never
  const char* level = nullptr;   // the last word of the name, if not isa_name(isa)
  const char* input = nullptr;   // as format; null: f32
  Accumulation sum = Accumulation::kF32;
};

struct KernelTable {
  std::span<const KernelEntry> entries;
  bool (*available)() = nullptr;  // asked once; null: on every processor of the entries' levels
};

template <size_t... N>
constexpr auto join(const std::array<KernelEntry, N>&... parts) {
  std::array<KernelEntry, (N + ...)> all{};
  size_t at = 0;
  const auto add = [&](const auto& part) {
    for (const KernelEntry& e : part) all[at++] = e;
  };
  (add(parts), ...);
  return all;
}

#define OAR_REGISTER(name) extern const KernelTable kernels_##name;
#include "oar_kernels.inc"
#undef OAR_REGISTER

}  // namespace oar

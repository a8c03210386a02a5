// The keys by which attention over a paged cache, and what appends to one, look for their kernels.
#pragma once

#include "engine/tensor/backend.h"
#include "engine/tensor/plugin.h"
#include "kernels/kernel.h"

namespace oar {

// A device is asked for keys that hold values by a layout of their own; the processor's kernels serve both.
inline KernelKey of_cache(const Backend& backend, bool latent, KernelKey key) {
  if (latent && backend.memory() != MemoryKind::kHost)
    key.layout = static_cast<ImageLayout>(OAR_LAYOUT_KEYS_HOLD_VALUES);
  return key;
}

// Of a quantized cache.
inline KernelKey quant_kv_key(KernelFamily family, KvCode keys, KvCode values) {
  return {.family = family, .weight = Format::bf16(), .keys = keys, .values = values};
}

}  // namespace oar

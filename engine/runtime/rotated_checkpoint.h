// A model in a rotated basis (engine/graph/passes/rotate.h) as a checkpoint: what is quantized after a
// rotation is made of this, so that weights are rounded once.
#pragma once

#include "engine/graph/passes/rotate.h"
#include "engine/loader/checkpoint.h"
#include "engine/models/model.h"
#include "kernels/thread_pool.h"

namespace oar {

// Rotated tensors are f32 in memory of their own, all others as they were; the record in config.json tells
// loading and calibration what is in the weights and what is still needed online. A tied head becomes a
// tensor.
Result<Checkpoint> rotated_checkpoint(const Checkpoint& checkpoint, const ModelConfig& config,
                                      const RotationOptions& wanted, ThreadPool& pool);

// Whether weights of `checkpoint` would change under `wanted`: it asks for more than online transforms, the
// matrices are plain floats, and they carry no rotation yet.
bool rotates_weights(const Checkpoint& checkpoint, const RotationOptions& wanted);

}  // namespace oar

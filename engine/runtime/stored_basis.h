// The basis of weights that were rewritten before they were stored (`oar quantize --rotate`, or a method that
// scales channels), for adapters of them. Such a checkpoint keeps beside its weights the vectors that they
// were multiplied by, and the graph as it was then says of each weight what its adapter goes through.
//
//   adapter_basis.NAME           a weight of a norm that was folded, or a scale of heads, by its name in the
//                                graph
//   adapter_basis.NAME.channels  what awq and smoothquant took off the norm NAME and gave to the columns of
//                                the matrices behind it (f32); ones where they left them alone
#pragma once

#include <map>
#include <string>

#include "engine/graph/passes/adapters.h"
#include "engine/graph/passes/rotate.h"
#include "engine/loader/checkpoint.h"
#include "engine/models/model.h"

namespace oar {

inline constexpr std::string_view kBasisPrefix = "adapter_basis.";
inline constexpr std::string_view kBasisChannels = ".channels";

// Whether weights were rewritten before they were stored. `stored`: the checkpoint's record of rotations.
bool rewritten(const Checkpoint& checkpoint, const RotationOptions& stored);

// By weight. UNIMPLEMENTED where the vectors are not there: an older version wrote the checkpoint.
Result<std::map<std::string, AdapterBasis>> stored_bases(const Checkpoint& checkpoint,
                                                         const ModelConfig& config,
                                                         const RotationOptions& stored, ThreadPool& pool);

}  // namespace oar

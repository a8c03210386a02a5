// The one list of ops, from engine/ops/CMakeLists.txt.
#include <algorithm>
#include <cstring>

#include "engine/graph/op.h"
#include "engine/ops/custom.h"

namespace oar {

#define OAR_REGISTER(name) extern const OpDef op_##name;
#include "oar_ops.inc"
#undef OAR_REGISTER

std::span<const OpDef* const> all_ops() {
  static const OpDef* const kOps[] = {
#define OAR_REGISTER(name) &op_##name,
#include "oar_ops.inc"
#undef OAR_REGISTER
  };
  return kOps;
}

const OpDef* find_op(std::string_view name) {
  for (const OpDef* op : all_ops()) {
    if (name == op->name) return op;
  }
  return find_custom_op(name);
}

}  // namespace oar

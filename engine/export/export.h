// Export: a graph of ordinary ops becomes a model file of another framework, the way back of engine/import.
// What is written is the graph as an importer made it, before any pass: ops that passes put in have no name
// elsewhere.
//
// The ONNX op table is the importer's own (import/onnx_ops.inc), read from right to left; what an op means
// beyond a change of names is a function in onnx_ops.cc. An op, attribute or type that the format cannot
// express is an error that names node and op; nothing is left out silently.
#pragma once

#include <string>

#include "engine/base/status.h"
#include "engine/import/import.h"

namespace oar {

struct OnnxExportOptions {
  // Constants of more bytes than this in all go into `path`.data (a protobuf message cannot hold 2 GiB).
  uint64_t inline_bytes = uint64_t{3} << 29;
};

// Opset 21, or newer where an op needs it; the names of inputs and outputs are kept. UNIMPLEMENTED naming
// node and op; UNAVAILABLE when the file cannot be written. An existing file is replaced when everything has
// been written.
Status export_onnx(const ImportedModel& model, const std::string& path,
                   const OnnxExportOptions& options = {});

}  // namespace oar

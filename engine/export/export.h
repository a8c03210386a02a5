// Export: a graph of ordinary ops becomes a model file of another framework, the way back of engine/import.
// What is written is the graph as an importer made it, before any pass: ops that passes put in have no name
// elsewhere.
//
// The ONNX op table is the importer's own (import/onnx_ops.inc), read from right to left; what an op means
// beyond a change of names is a function in onnx_ops.cc. Paddle's programs are written in PIR's spelling
// (paddle_ops_*.cc, one function per op of ours), from which either of its file formats is made; the table of
// spellings is paddle_schema.cc. An op, attribute or type that the format cannot express is an error that
// names node and op; nothing is left out silently.
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

enum class PaddleFormat : uint8_t {
  kProgramDesc,  // .pdmodel
  kPir,          // .json, version 4
};

// The program to `path`, the parameters beside it as NAME.pdiparams; names of inputs and outputs are kept.
// UNIMPLEMENTED naming node and op; UNAVAILABLE when a file cannot be written. Existing files are replaced
// when everything has been written.
Status export_paddle(const ImportedModel& model, const std::string& path, PaddleFormat format);

}  // namespace oar

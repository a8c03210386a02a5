// Import functions that live beside the table, by theme.
#pragma once

#include "engine/import/onnx_node.h"

namespace oar::onnx {

void import_if(OnnxNode& n);
void import_loop(OnnxNode& n);
void import_scan(OnnxNode& n);
void import_sequence_map(OnnxNode& n);

}  // namespace oar::onnx

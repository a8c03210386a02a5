// Import functions that live beside the table, by theme.
#pragma once

#include "engine/import/onnx_node.h"

namespace oar::onnx {

void import_if(OnnxNode& n);
void import_loop(OnnxNode& n);
void import_scan(OnnxNode& n);
void import_sequence_map(OnnxNode& n);
// Of com.microsoft (onnx_ops_transformer.cc).
void contrib_attention(OnnxNode& n);
void embed_layer_norm(OnnxNode& n);
void gather_block_quantized(OnnxNode& n);
void group_query_attention(OnnxNode& n);
void matmul_nbits(OnnxNode& n);
void multi_head_attention(OnnxNode& n);
// A number of the operand's element type.
Val number_like(OnnxNode& n, double v, Val like);
// alpha a' b' + beta c, with the node's attributes transA and transB.
Val gemm_of(OnnxNode& n, Val a, Val b, Val c, double alpha, double beta);
// rope of padded rows by tables, whose rows `positions` choose where given.
Val padded_rope(OnnxNode& n, Val x, Val cos, Val sin, Val positions, Attrs attrs);
// An attribute that may be given at one value only; else an error that names it.
bool only(OnnxNode& n, const char* name, int64_t value);

}  // namespace oar::onnx

// An encoder's graph from a file of another framework (ONNX, Paddle), written again over packed rows: the
// graph that build_encoder() writes of a checkpoint. Exports compute on (batch, sequence) and hide padding by
// a mask. Here an op on such values becomes the same op on the rows of all texts one behind the other, and
// attention stays within its segment.
//
// Whether the file means that is not told by names. Positions must count columns and the mask must hide
// padding and nothing else: those parts of the graph are evaluated on samples. What has no form over rows (a
// mean over the sequence, a window of attention) is refused, and the file runs as it is. Build time only.
#pragma once

#include "engine/models/encoder.h"

namespace oar {

// Which of a graph's inputs are an encoder's; -1: not there.
struct EncoderOperands {
  int ids = -1, mask = -1, types = -1;
};

// `config` has what the graph says: vocab, max_context, first_position, types and width.
struct ExportedEncoder {
  BuiltEncoder built;
  EncoderConfig config;
};

// `from`: after the passes of ordinary models but those about images. Ids, mask and types are i64 (batch,
// sequence). T is bounded by `run_tokens`, or by the longest text where that is more. UNIMPLEMENTED names
// what has no form over rows.
Result<ExportedEncoder> pack_exported_encoder(const Graph& from, const EncoderOperands& operands,
                                              int64_t run_tokens);

}  // namespace oar

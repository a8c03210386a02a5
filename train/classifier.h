// The head of a classifier that is finetuned: the checkpoint's own, or a new one.
#pragma once

#include "engine/loader/checkpoint.h"
#include "engine/models/encoder.h"

namespace oar::train {

// The classes of the checkpoint's head of this kind, by config.json's id2label; none where it has no such
// head. INVALID_ARGUMENT where head and names disagree, UNIMPLEMENTED where the head is for something else
// than one class of several (a score, several labels at once).
Result<std::vector<std::string>> classes_of(const Checkpoint& checkpoint, const EncoderConfig& config,
                                            EncoderHead head);

// Puts a new head into the checkpoint: matrices drawn around 0 with config.json's initializer_range, biases
// of 0, layers before the last as they are where they are there. Other heads go, tensors of a bare encoder
// get their prefix, and config.json says so (architectures, id2label, label2id, num_labels, problem_type).
Status give_head(Checkpoint& checkpoint, const EncoderConfig& config, EncoderHead head,
                 const std::vector<std::string>& classes, uint64_t seed);

}  // namespace oar::train

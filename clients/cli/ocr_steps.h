// The built-in steps of a served text reader: what happens before, between and behind the networks of `oar
// ocr` (text_reader.h), each as a model of a repository. A step's config.pbtxt names it as `backend`:
//
//   ocr_decode            encoded BYTES [1] -> image UINT8 [height, width, 3]     JPEG and PNG
//   ocr_detector_input    image -> x [1, 3, h, w]
//   ocr_boxes             map, image -> boxes FP32 [n, 4, 2], box_scores FP32 [n]
//   ocr_crops             image, boxes -> lines, a list of UINT8 [h, w, 3]
//   ocr_classifier_input  line -> x [1, 3, h, w]
//   ocr_turn              line, probabilities -> upright
//   ocr_recognizer_input  line -> x [1, 3, h, w]
//   ocr_text              probabilities [1, steps, classes] -> text BYTES [1], score FP32 [1]
//   ocr_lines             boxes, box_scores, text and score, lists -> boxes, box_scores, texts, scores
//
// A list's items run through the steps from ocr_classifier_input to ocr_text one by one
// (server/api/ensemble.h).
#pragma once

#include <string>

#include "clients/cli/text_reader.h"
#include "server/repository/repository.h"

namespace oar::cli {

// For RepositoryOptions::built_in.
std::map<std::string, RepositoryOptions::MakeStep> ocr_steps();

// Of the options the models, the dictionary, side_limit, min_confidence and boxes count. A repository with
// the two ensembles `ocr` (of pixels) and `ocr_file` (of a JPEG's or PNG's bytes), their steps, and copies of
// the models that `options` names. `folder` must be new or empty.
Status write_ocr_repository(const std::string& folder, const TextReaderOptions& options);

}  // namespace oar::cli

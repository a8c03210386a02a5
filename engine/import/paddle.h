// Paddle models -> Graph: inference.pdmodel or inference.json with its .pdiparams, PaddlePaddle 1.8 to 3.x.
// paddle_program.h reads the files; here each Paddle op becomes ops of ours, by one table for both
// generations (paddle_ops*.cc): ProgramDesc ops are first renamed to PIR's (paddle_legacy.cc), operands by
// position.
#pragma once

#include "engine/import/import.h"
#include "engine/import/paddle_program.h"

namespace oar {

// True for what import_paddle() opens: a .pdmodel, a PIR json, __model__, or a folder that holds one.
bool is_paddle_path(const std::string& path);

// NOT_FOUND, DATA_LOSS or UNIMPLEMENTED with the file, the op and its place in it.
Result<ImportedModel> import_paddle(const std::string& path, const ImportOptions& options = {});
// The same of a program and parameters in memory: one tensor per program.parameters, of its type.
Result<ImportedModel> import_paddle_model(const paddle::Model& model);

}  // namespace oar

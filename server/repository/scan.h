// What lies at a path: an ordinary model (ONNX, Paddle), an encoder, a language model, or a repository of
// such. Looks at names, and at the model_type of a config.json; reads no model.
//
//   repository/
//     resnet50/                    an ordinary model: config.pbtxt may say how it is served
//       config.pbtxt
//       1/model.onnx               versions are folders with a number; model.onnx, the only *.onnx, a Paddle
//       pair 2/inference.json + .pdiparams, or 2/model.pdmodel + model.pdiparams
//     tinyllama/config.json, ...   a language model or an encoder as its tools left it (also in 1/), or a
//     .gguf
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/api/model_catalog.h"

namespace oar {

struct FoundModel {
  api::ModelKind kind = api::ModelKind::kNone;
  std::string name;
  std::string path;    // where it was found: a file, or the folder of all that is below
  std::string config;  // path of config.pbtxt, empty without one
  // Ordinary models: numbers, ascending, and the model's file or (Paddle) folder. Others: one entry, their
  // path.
  std::vector<std::pair<int64_t, std::string>> versions;
};

// One model: a file, its folder, or its folder of versions. kNone when there is none. `file`: the model's
// file name in each version's folder where it has another than the usual.
FoundModel find_model_at(const std::string& path, const std::string& file = {});
// The graph (ONNX file, or the folder itself for Paddle) in an encoder's folder; empty when there is none.
std::string find_graph_in(const std::string& folder);
// The models in the folders of `path`, by name; empty when it is no repository.
std::vector<FoundModel> find_models_in(const std::string& path);
// The largest number that is a folder's name there; 1 without any.
int64_t newest_version_in(const std::string& folder);
// A model's name as clients may say it: one folder name of printable characters that cannot leave the
// repository.
bool is_model_name(const std::string& name);

}  // namespace oar

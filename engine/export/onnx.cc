// The file around the graph: inputs and outputs with their types, versions, and constants that are too large
// for it.
#include <filesystem>

#include "engine/export/export.h"
#include "engine/export/onnx_writer.h"
#include "engine/import/onnx.h"
#include "engine/loader/file_writer.h"

namespace oar {
namespace {

using onnx::FileWriter;
using onnx::GraphWriter;

// The IR version that came with an opset. https://github.com/onnx/onnx/blob/main/docs/Versioning.md
int64_t ir_version(int64_t opset) {
  if (opset <= 22) return 10;
  if (opset == 23) return 11;
  return opset <= 25 ? 12 : 13;
}

Result<std::vector<ProtoWriter>> value_infos(const std::vector<IoSpec>& specs) {
  std::vector<ProtoWriter> out;
  for (const IoSpec& io : specs) {
    OAR_ASSIGN(ProtoWriter info, onnx::value_info(io));
    out.push_back(std::move(info));
  }
  return out;
}

uint64_t constant_bytes(const Graph& g) {
  uint64_t sum = 0;
  for (size_t id = 0; id < g.num_values(); ++id)
    if (g.value(static_cast<ValueId>(id)).kind == ValueKind::kConstant)
      sum += g.value(static_cast<ValueId>(id)).constant.bytes();
  return sum;
}

}  // namespace

Status export_onnx(const ImportedModel& model, const std::string& path, const OnnxExportOptions& options) {
  const Graph& g = *model.graph;
  FileWriter file;
  file.data_name = std::filesystem::path(path).filename().string() + ".data";
  if (constant_bytes(g) > options.inline_bytes) file.inline_bytes = 0;
  GraphWriter main(file, g, true);
  std::vector<std::string> outputs;
  for (size_t k = 0; k < model.inputs.size(); ++k) {
    file.taken.insert(model.inputs[k].name);
    main.set_name(g.inputs()[k], model.inputs[k].name);
  }
  for (const IoSpec& io : model.outputs) {
    if (!file.taken.insert(io.name).second)
      return unimplemented(
          cat("'", io.name, "' is the name of two inputs or outputs, which ONNX cannot express"));
    outputs.push_back(io.name);
  }
  main.name_outputs(outputs);
  OAR_RETURN_IF_ERROR(main.write_nodes());
  OAR_ASSIGN(const std::vector<ProtoWriter> in, value_infos(model.inputs));
  OAR_ASSIGN(const std::vector<ProtoWriter> out, value_infos(model.outputs));
  ProtoWriter proto;
  proto.number(1, ir_version(file.opset)).text(2, "oar").message(7, main.finish("oar", in, out));
  proto.message(8, ProtoWriter().text(1, "").number(2, file.opset));
  for (const auto& [key, value] : model.metadata)
    proto.message(14, ProtoWriter().text(1, key).text(2, value));
  if (proto.bytes().size() > INT32_MAX)
    return unimplemented(
        cat("the file would have ", proto.bytes().size(),
            " bytes, and no protobuf message may have 2 GiB; lower the limit of constants in it"));
  if (!file.data.empty()) OAR_RETURN_IF_ERROR(write_file_atomically(path + ".data", file.data));
  return write_file_atomically(path, proto.bytes());
}

}  // namespace oar

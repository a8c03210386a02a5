// The files around a Paddle program: its inputs and outputs, the program's own bytes in either generation,
// and the parameters beside it.
#include <filesystem>

#include "engine/base/format.h"
#include "engine/export/export.h"
#include "engine/export/paddle_writer.h"
#include "engine/export/proto_writer.h"
#include "engine/loader/file_writer.h"

namespace oar {
namespace {

using paddle::BlockWriter;
using paddle::Declared;
using paddle::ProgramWriter;
using paddle::ValueIndex;

template <class T>
void append_raw(std::string& out, T v) {
  out.append(reinterpret_cast<const char*>(&v), sizeof v);
}

// What stands before a tensor's elements in a parameter file (import/paddle_params.cc).
std::string record_head(const Tensor& t) {
  ProtoWriter desc;
  desc.number(1, paddle::var_type_of(paddle::word_of(t.format().dtype())));
  for (const int64_t d : t.shape()) desc.number(2, d);
  std::string head;
  append_raw(head, uint32_t{0});
  append_raw(head, uint64_t{0});  // LoD levels
  append_raw(head, uint32_t{0});
  append_raw(head, static_cast<int32_t>(desc.bytes().size()));
  return head + desc.bytes();
}

Status write_parameters(const std::string& path, const std::vector<Tensor>& parameters) {
  std::vector<std::string> heads;
  for (const Tensor& t : parameters) heads.push_back(record_head(t));
  std::vector<std::string_view> pieces;
  for (size_t k = 0; k < parameters.size(); ++k) {
    pieces.push_back(heads[k]);
    pieces.emplace_back(static_cast<const char*>(parameters[k].data()), parameters[k].bytes());
  }
  return write_file_atomically(path, pieces);
}

Result<Declared> declared(const IoSpec& io) {
  if (io.kind != IoSpec::Kind::kTensor || !io.typed || !io.ranked)
    return unimplemented(cat("input '", io.name, "' is ",
                             io.kind != IoSpec::Kind::kTensor ? "no tensor" : "of no declared type and rank",
                             ", which Paddle cannot express; write ONNX instead"));
  Declared d{io.dtype, {}};
  for (const IoDim& dim : io.dims) d.dims.push_back(dim.declared());
  return d;
}

// Outputs are results of their own there: what is an input, a constant or another output too is copied.
Status name_outputs(const ImportedModel& model, ProgramWriter& file, BlockWriter& main) {
  const Graph& g = *model.graph;
  std::set<ValueIndex> used;
  for (const paddle::Port& port : file.program.inputs) used.insert(port.value);
  for (size_t k = 0; k < model.outputs.size(); ++k) {
    const std::string& name = model.outputs[k].name;
    OAR_ASSIGN(ValueIndex v, main.value_of(g.outputs()[k].value));
    if (file.program.values[static_cast<size_t>(v)].parameter || !used.insert(v).second) {
      OAR_ASSIGN(const ValueIndex copy, file.add_value("output", Declared(file.type(v))));
      paddle::Op assign;
      assign.type = "assign";
      assign.inputs.push_back({"", {v}});
      assign.outputs.push_back({"", {copy}});
      main.add_op(std::move(assign));
      used.insert(copy);
      v = copy;
    }
    file.program.values[static_cast<size_t>(v)].name = name;
    file.program.outputs.push_back({name, v});
  }
  return ok_status();
}

}  // namespace

Status export_paddle(const ImportedModel& model, const std::string& path, PaddleFormat format) {
  const Graph& g = *model.graph;
  ProgramWriter file;
  BlockWriter main(file, g, 0);
  for (const auto* specs : {&model.inputs, &model.outputs}) {
    for (const IoSpec& io : *specs) {
      if (!file.taken.insert(io.name).second)
        return unimplemented(
            cat("'", io.name, "' is the name of two inputs or outputs, which Paddle cannot express"));
    }
  }
  for (size_t k = 0; k < model.inputs.size(); ++k) {
    OAR_ASSIGN(const Declared type, declared(model.inputs[k]));
    auto v = file.add_value("input", type);
    if (!v.ok())
      return Status(v.status().code(), cat("input '", model.inputs[k].name, "': ", v.status().message()));
    file.program.values[static_cast<size_t>(*v)].name = model.inputs[k].name;
    file.program.inputs.push_back({model.inputs[k].name, *v});
    main.bind(g.inputs()[k], *v);
  }
  OAR_RETURN_IF_ERROR(main.write_nodes());
  OAR_RETURN_IF_ERROR(name_outputs(model, file, main));
  // Paddle opens no PIR program without parameters.
  if (file.parameters.empty())
    OAR_RETURN_IF_ERROR(file.add_parameter(must(allocate_elements({1}, DType::kF32)), "unused").status());
  file.sort_parameters();
  OAR_ASSIGN(const std::string bytes,
             format == PaddleFormat::kPir ? paddle::pir_text(file) : paddle::program_desc_bytes(file));
  // The parameters take their name once the program is on the disk too.
  const std::string beside = std::filesystem::path(path).replace_extension(".pdiparams").string();
  return replace_file(path, [&](const std::string& temporary) -> Status {
    const std::string_view program = bytes;
    OAR_RETURN_IF_ERROR(write_file(temporary, std::span(&program, 1), path));
    return write_parameters(beside, file.parameters);
  });
}

}  // namespace oar

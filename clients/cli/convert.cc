// oar convert: a model file of one framework becomes one of another. What is written is the graph as it was
// read, before any optimization, so that the other runtime makes its own.
#include <cstdio>
#include <filesystem>

#include "clients/cli/command.h"
#include "engine/base/format.h"
#include "engine/export/export.h"

namespace oar::cli {
namespace {

struct ConvertOptions {
  std::string model, output;
  bool external = false;
};

Status convert(const ConvertOptions& o) {
  if (!std::filesystem::path(o.output).extension().string().ends_with(".onnx"))
    return invalid_argument(
        cat("output: '", o.output, "' names no format that can be written; end it in .onnx"), "output");
  std::error_code ignored;
  if (std::filesystem::equivalent(o.model, o.output, ignored))
    return invalid_argument("output: is the model itself; its constants are read while the file is written",
                            "output");
  OAR_ASSIGN(const ImportedModel model, import_model(o.model));
  OnnxExportOptions options;
  if (o.external) options.inline_bytes = 0;
  OAR_RETURN_IF_ERROR(export_onnx(model, o.output, options));
  std::printf("%s: %zu ops, from %s%s%s\n", o.output.c_str(), model.graph->nodes().size(),
              model.format.c_str(), model.producer.empty() ? "" : " of ", model.producer.c_str());
  return ok_status();
}

}  // namespace

void add_convert(CLI::App& app, Action& action) {
  auto o = std::make_shared<ConvertOptions>();
  CLI::App* c = app.add_subcommand("convert", "Write an ONNX or Paddle model as ONNX");
  c->add_option("MODEL", o->model, "an .onnx, .pdmodel or .json file, or a folder with a Paddle model")
      ->required();
  c->add_option("-o,--output", o->output, "the file to write, NAME.onnx")->required()->type_name("FILE");
  c->add_flag("--external-data", o->external,
              "constants into NAME.onnx.data; done without asking where they would not fit into the file");
  c->footer(
      "What ONNX cannot express is an error that names node and op.\n"
      "Examples:\n"
      "  oar convert ./ppocr_det -o det.onnx\n"
      "  oar convert inference.pdmodel -o model.onnx --external-data");
  c->callback([o, &action] {
    action = [o] {
      const Status s = convert(*o);
      return s.ok() ? kSuccess : fail(s);
    };
  });
}

}  // namespace oar::cli

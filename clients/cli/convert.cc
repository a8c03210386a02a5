// oar convert: a model file of one framework becomes one of another. What is written is the graph as it was
// read, before any optimization, so that the other runtime makes its own; with --precision int8 and samples
// it is quantized first.
#include <cstdio>
#include <filesystem>

#include "clients/cli/calibration_files.h"
#include "clients/cli/command.h"
#include "clients/cli/ranges.h"
#include "engine/base/format.h"
#include "engine/export/export.h"

namespace oar::cli {
namespace {

struct ConvertOptions {
  std::string model, params, output, precision = "f32";
  CalibrationOptions calibration;
  int threads = 0;
  bool external = false;
};

Status write_model(const ImportedModel& model, const ConvertOptions& o) {
  const std::string suffix = std::filesystem::path(o.output).extension().string();
  if (suffix == ".onnx") {
    OnnxExportOptions options;
    if (o.external) options.inline_bytes = 0;
    return export_onnx(model, o.output, options);
  }
  return export_paddle(model, o.output, suffix == ".json" ? PaddleFormat::kPir : PaddleFormat::kProgramDesc);
}

Status convert(const ConvertOptions& o) {
  const std::filesystem::path output(o.output);
  const std::string suffix = output.extension().string();
  if (suffix != ".onnx" && suffix != ".pdmodel" && suffix != ".json")
    return invalid_argument(cat("output: '", o.output,
                                "' names no format that can be written; end it in .onnx, .pdmodel or .json"),
                            "output");
  if (o.external && suffix != ".onnx")
    return invalid_argument(
        "external-data: is of ONNX; a Paddle model's parameters are always in NAME.pdiparams",
        "external-data");
  OAR_ASSIGN(const auto samples, calibration_samples(o.calibration));
  if (o.precision != "f32" && o.precision != "int8")
    return invalid_argument(
        cat("precision: a model is written in f32 or int8; ", o.precision, " is of a run"), "precision");
  if ((o.precision == "int8") != (samples != nullptr)) {
    return invalid_argument(samples ? "calibrate: is of --precision int8"
                                    : "precision: int8 needs --calibrate DIR with sample inputs",
                            "precision");
  }
  OAR_ASSIGN(ImportedModel model, import_model(o.model, {.parameters = o.params}));
  const std::filesystem::path beside = std::filesystem::path(o.output).replace_extension(".pdiparams");
  for (const std::string& read : model.files) {
    std::error_code ignored;
    if (std::filesystem::equivalent(read, output, ignored) ||
        (suffix != ".onnx" && std::filesystem::equivalent(read, beside, ignored)))
      return invalid_argument(
          cat("output: ", read, " is the model itself; its constants are read while the file is written"),
          "output");
  }
  CalibrationReport report;
  if (samples) {
    const auto backend =
        make_cpu_backend(std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = o.threads}), best_isa());
    OAR_ASSIGN(report, quantize_statically(model, *samples, *backend));
  }
  OAR_RETURN_IF_ERROR(write_model(model, o));
  if (samples) {
    std::printf("%d of %d layers in 8-bit integers, ranges of %d values from %zu samples (%s)\n",
                report.quantized, report.layers, report.values, report.samples, o.calibration.method.c_str());
  }
  std::printf("%s: %zu ops, from %s%s%s\n", o.output.c_str(), model.graph->nodes().size(),
              model.format.c_str(), model.producer.empty() ? "" : " of ", model.producer.c_str());
  return ok_status();
}

}  // namespace

void add_convert(CLI::App& app, Action& action) {
  auto o = std::make_shared<ConvertOptions>();
  CLI::App* c = app.add_subcommand("convert", "Write an ONNX or Paddle model in another of these formats");
  c->add_option("MODEL", o->model, "an .onnx, .pdmodel or .json file, or a folder with a Paddle model")
      ->required();
  c->add_option("-o,--output", o->output,
                "the file to write; its ending says in what: NAME.onnx, NAME.pdmodel (Paddle 2) or NAME.json "
                "(Paddle 3), the last two with NAME.pdiparams beside it")
      ->required()
      ->type_name("FILE");
  c->add_option("--params", o->params,
                "Paddle: the file with the parameters; default: found beside the model")
      ->type_name("FILE");
  c->add_flag(
      "--external-data", o->external,
      "ONNX: constants into NAME.onnx.data; done without asking where they would not fit into the file");
  add_precision_option(*c, o->precision);
  add_calibration_options(*c, o->calibration);
  c->add_option("--threads", o->threads, "threads that calibrate; 0: all this process may use")
      ->check(in_range(0, 1024));
  c->footer(
      "What a format cannot express is an error that names node and op.\n"
      "Examples:\n"
      "  oar convert ./ppocr_det -o det.onnx\n"
      "  oar convert __model__ --params weights -o model.onnx\n"
      "  oar convert model.onnx -o inference.json\n"
      "  oar convert inference.json -o old/inference.pdmodel\n"
      "  oar convert inference.pdmodel -o model.onnx --external-data\n"
      "  oar convert resnet50.onnx -o resnet50_int8.onnx --precision int8 --calibrate samples");
  c->callback([o, &action] {
    action = [o] {
      const Status s = convert(*o);
      return s.ok() ? kSuccess : fail(s);
    };
  });
}

}  // namespace oar::cli

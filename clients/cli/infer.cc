// oar infer: runs a tensor model (ONNX, Paddle) on inputs from files and writes its outputs.
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "clients/cli/calibration_files.h"
#include "clients/cli/command.h"
#include "clients/cli/model_options.h"
#include "clients/cli/ranges.h"
#include "clients/cli/tensor_files.h"
#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/runtime/chrome_trace.h"
#include "engine/runtime/predictor.h"

namespace oar::cli {
namespace {

struct InferOptions {
  std::string model, params, output, device;
  std::vector<std::string> inputs, disabled;
  int threads = 0;
  std::string trace, cache_dir, precision = "f32";
  uint64_t cache_bytes = kDefaultCacheBytes;
  CalibrationOptions calibration;
  bool json = false, graph = false, profile = false, reference = false;
};

using Clock = std::chrono::steady_clock;
double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

Status save(const Datum& d, const std::string& base, std::vector<std::string>& written) {
  if (d.kind == Datum::Kind::kSequence) {
    for (size_t k = 0; k < d.items->size(); ++k)
      OAR_RETURN_IF_ERROR(save((*d.items)[k], cat(base, ".", k), written));
    return ok_status();
  }
  if (!d.is_tensor()) return ok_status();
  if (const auto npy = npy_bytes(d.tensor)) {
    written.push_back(base + ".npy");
    return write_file(written.back(), *npy);
  }
  OAR_ASSIGN(const std::string pb, write_onnx_tensor(d.tensor, ""));
  written.push_back(base + ".pb");
  return write_file(written.back(), pb);
}

Status infer(const InferOptions& o) {
  PredictorOptions options;
  options.threads = o.threads;
  options.reference = o.reference;
  options.device = o.device;
  OAR_ASSIGN(options.precision, parse_precision(o.precision));
  OAR_ASSIGN(options.calibration, calibration_samples(o.calibration));
  options.cache_dir = o.cache_dir;
  options.cache_bytes = o.cache_bytes;
  options.import.parameters = o.params;
  options.log.callback = [](LogLevel level, std::string_view message) {
    if (level >= LogLevel::kWarning) std::fprintf(stderr, "oar: %s\n", std::string(message).c_str());
  };
  options.disabled_passes = {o.disabled.begin(), o.disabled.end()};
  const auto start = Clock::now();
  OAR_ASSIGN(const auto predictor, Predictor::open(o.model, options));
  const double load_ms = ms_since(start);
  if (o.graph) std::fputs(predictor->graph().to_string().c_str(), stdout);
  std::map<std::string, Datum> in;
  for (const std::string& arg : o.inputs) {
    const size_t eq = arg.find('=');
    const IoSpec* spec = nullptr;
    for (const IoSpec& s : predictor->inputs()) {
      if (eq != std::string::npos && s.name == arg.substr(0, eq)) spec = &s;
    }
    if (!spec) {
      std::string names;
      for (const IoSpec& s : predictor->inputs()) names += cat("\n  ", s.to_string());
      return invalid_argument(
          cat("--input ", arg, ": expected NAME=FILE with one of the model's inputs:", names));
    }
    if (in.count(spec->name))
      return invalid_argument(cat("--input ", spec->name, " is there twice; keep one"));
    OAR_ASSIGN(in[spec->name], read_value(arg.substr(eq + 1), *spec));
  }
  std::vector<Datum> values;
  for (const IoSpec& s : predictor->inputs()) {
    if (!in.count(s.name))
      return invalid_argument(cat("input ", s.to_string(), " is missing: --input ", s.name, "=FILE"));
    values.push_back(in[s.name]);
  }
  std::vector<Shape> shapes;
  for (const Datum& d : values) {
    if (d.is_tensor()) shapes.push_back(d.tensor.shape());
  }
  const auto plan = predictor->plan(shapes);
  if (!o.json && plan.ok()) {
    std::printf("activations take %s: an arena of %s and results of %s\n",
                format_bytes((*plan)->peak_bytes()).c_str(), format_bytes((*plan)->arena_bytes).c_str(),
                format_bytes((*plan)->result_bytes).c_str());
  } else if (!o.json && plan.status().code() == StatusCode::kFailedPrecondition) {
    std::printf("activations: known after the run (%s)\n", std::string(plan.status().message()).c_str());
  }
  std::vector<NodeTime> times;
  const auto run_start = Clock::now();
  auto outputs = o.profile || !o.trace.empty() ? predictor->profile(values, &times) : predictor->run(values);
  OAR_RETURN_IF_ERROR(outputs.status());
  const double run_ms = ms_since(run_start);
  if (!o.trace.empty()) OAR_RETURN_IF_ERROR(write_file(o.trace, chrome_trace(times, o.model)));
  if (o.profile) {
    std::map<std::pair<std::string, std::string>, std::pair<double, int>> by_op;
    for (const NodeTime& t : times) {
      auto& [ms, calls] = by_op[{t.op, t.where}];
      ms += static_cast<double>(t.end_ns - t.start_ns) * 1e-6, ++calls;
    }
    for (const auto& [op, t] : by_op)
      std::printf("%-24s %-24s %4d calls %10.3f ms\n", op.first.c_str(), op.second.c_str(), t.second,
                  t.first);
  }
  std::error_code error;
  if (!o.output.empty() && !std::filesystem::create_directories(o.output, error) && error) {
    return unavailable(cat("cannot make the folder ", o.output, ": ", error.message()));
  }
  boost::json::array list;
  for (size_t k = 0; k < outputs->size(); ++k) {
    const std::string& name = predictor->outputs()[k].name;
    const Datum& d = (*outputs)[k];
    std::vector<std::string> files;
    if (!o.output.empty()) OAR_RETURN_IF_ERROR(save(d, o.output + "/" + value_file_name(name), files));
    if (o.json) {
      boost::json::object item{{"name", name}, {"type", d.to_string()}};
      boost::json::array paths;
      for (const std::string& f : files) paths.emplace_back(f);
      item["files"] = std::move(paths);
      list.emplace_back(std::move(item));
    } else {
      std::printf("%s: %s%s%s\n", name.c_str(), d.to_string().c_str(), files.empty() ? "" : " -> ",
                  files.empty() ? "" : files[0].c_str());
    }
  }
  if (o.json) {
    boost::json::object out{
        {"model", o.model}, {"load_ms", load_ms}, {"run_ms", run_ms}, {"outputs", std::move(list)}};
    if (plan.ok()) {
      out["activation_bytes"] = (*plan)->peak_bytes();
      out["arena_bytes"] = (*plan)->arena_bytes;
    }
    std::printf("%s\n", boost::json::serialize(out).c_str());
  } else {
    std::printf("loaded in %.1f ms, ran in %.2f ms\n", load_ms, run_ms);
  }
  return ok_status();
}

}  // namespace

void add_infer(CLI::App& app, Action& action) {
  auto o = std::make_shared<InferOptions>();
  CLI::App* c = app.add_subcommand("infer", "Run an ONNX or Paddle model on inputs from files");
  c->add_option("model", o->model, "the model file")->required()->type_name("MODEL");
  c->add_option("--params", o->params,
                "Paddle: the file with the parameters; default: found beside the model")
      ->type_name("FILE");
  c->add_option("--input", o->inputs, "an input: its name and a .npy, .pb or .bin file")
      ->type_name("NAME=FILE");
  c->add_option("--output", o->output, "folder for the outputs, one file each")->type_name("DIR");
  c->add_option("--threads", o->threads, "threads; 0: all this process may use")->check(in_range(0, 1024));
  c->add_option("--disable-pass", o->disabled, "leave out this graph pass")->type_name("NAME");
  add_device_option(*c, o->device);
  c->add_flag("--reference", o->reference, "scalar double-precision kernels: slow, the truth");
  add_precision_option(*c, o->precision);
  add_calibration_options(*c, o->calibration);
  c->add_flag("--graph", o->graph, "print the graph after all passes");
  c->add_flag("--profile", o->profile, "time per kind of op");
  c->add_option("--cache-dir", o->cache_dir,
                "where the prepared model is kept, which the next load maps; nowhere if not given")
      ->type_name("DIR");
  add_cache_size(*c, o->cache_bytes);
  c->add_option("--trace", o->trace, "a file for chrome://tracing and ui.perfetto.dev: when each op ran")
      ->type_name("FILE");
  c->add_flag("--json", o->json, "print one JSON object");
  c->footer(
      "Examples:\n"
      "  oar infer squeezenet.onnx --input data_0=kitten.npy --output out\n"
      "  oar infer resnet50.onnx --precision int8 --calibrate samples --input input=cat.npy\n"
      "  oar infer resnet50.onnx --profile --input input=cat.npy");
  c->callback([o, &action] {
    action = [o] {
      const Status s = infer(*o);
      return s.ok() ? kSuccess : fail(s);
    };
  });
}

}  // namespace oar::cli

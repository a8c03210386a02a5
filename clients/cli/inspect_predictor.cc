#include "clients/cli/inspect_predictor.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>

#include "engine/base/format.h"
#include "engine/import/paddle.h"
#include "engine/runtime/predictor.h"

namespace oar::cli {
namespace {

// "2x3x224x224"
Result<std::vector<int64_t>> parse_extents(const std::string& arg, const std::string& text) {
  std::vector<int64_t> dims;
  const char *at = text.data(), *end = at + text.size();
  while (at < end) {
    int64_t d = 0;
    const auto r = std::from_chars(at, end, d);
    if (r.ec != std::errc() || d < 0 || (r.ptr != end && *r.ptr != 'x') || dims.size() == Shape::kMaxRank) {
      return invalid_argument(cat("--input ", arg, ": expected NAME=2x3x224x224"));
    }
    dims.push_back(d);
    at = r.ptr == end ? end : r.ptr + 1;
  }
  return dims;
}

Result<std::vector<Shape>> shapes_of(const Predictor& p, const std::vector<std::string>& inputs) {
  std::map<std::string, std::vector<int64_t>> given;
  for (const std::string& arg : inputs) {
    const size_t eq = arg.find('=');
    const std::string name = arg.substr(0, eq);
    const auto known = [&](const IoSpec& s) { return s.name == name; };
    if (eq == std::string::npos || !std::any_of(p.inputs().begin(), p.inputs().end(), known)) {
      std::string names;
      for (const IoSpec& s : p.inputs()) names += cat("\n  ", s.to_string());
      return invalid_argument(
          cat("--input ", arg, ": expected NAME=2x3x224x224 with one of the model's inputs:", names));
    }
    OAR_ASSIGN(given[name], parse_extents(arg, arg.substr(eq + 1)));
  }
  std::vector<Shape> shapes;
  for (const IoSpec& s : p.inputs()) {
    std::vector<int64_t> dims;
    for (const IoDim& d : s.dims) dims.push_back(d.value);
    const auto it = given.find(s.name);
    if (it != given.end()) dims = it->second;
    if ((it == given.end() && !s.ranked) ||
        std::any_of(dims.begin(), dims.end(), [](int64_t d) { return d < 0; })) {
      return invalid_argument(
          cat("the model leaves extents of ", s.to_string(), " open: --input ", s.name, "=2x3x224x224"));
    }
    OAR_ASSIGN(const Shape shape, checked_shape(dims));
    shapes.push_back(shape);
  }
  return shapes;
}

void print_plan(const BlockPlan& plan) {
  std::printf("arena     %s for %zu values (at least %s are alive at once)\nresults   %s\n",
              format_bytes(plan.arena_bytes).c_str(), plan.blocks.size(),
              format_bytes(plan.live_bytes).c_str(), format_bytes(plan.result_bytes).c_str());
  for (size_t k = 0; k < plan.blocks.size(); ++k) {
    const BlockLife& b = plan.blocks[k];
    if (b.end == BlockLife::kHeld) {
      std::printf("  block %-5zu %12llu bytes  result\n", k, static_cast<unsigned long long>(b.bytes));
    } else {
      std::printf("  block %-5zu %12llu bytes  at %-12llu from %u to %u\n", k,
                  static_cast<unsigned long long>(b.bytes), static_cast<unsigned long long>(plan.offsets[k]),
                  b.begin, b.end);
    }
  }
}

void print_passes(std::span<const PassReport> passes) {
  std::printf("passes    (rewrites, nodes before and after)\n");
  for (const PassReport& p : passes) {
    if (p.disabled) std::printf("  %-16s off\n", p.name.c_str());
    else std::printf("  %-16s %5d  %5zu %5zu\n", p.name.c_str(), p.rewrites, p.nodes_before, p.nodes_after);
  }
  std::printf("not fused (what each pass left apart, and the first condition that failed)\n");
  for (const PassReport& p : passes) {
    for (const Refusal& r : p.refusals) {
      std::printf("  %-16s %s%s%s: %s\n", p.name.c_str(), r.first.c_str(),
                  r.first.empty() || r.second.empty() ? "" : " -> ", r.second.c_str(), r.reason.c_str());
    }
  }
}

// The steps of a run, most bytes first; without extents of open axes only a hint.
Status print_steps(const Predictor& p, const std::vector<std::string>& inputs) {
  auto shapes = shapes_of(p, inputs);
  if (!shapes.ok()) {
    if (!inputs.empty()) return shapes.status();
    std::printf("steps     %s\n", shapes.status().message().c_str());
    return ok_status();
  }
  const auto groups = p.steps(*shapes);
  if (!groups.ok()) {
    if (groups.status().code() != StatusCode::kFailedPrecondition) return groups.status();
    std::printf("steps     not known before a run: %s\n", groups.status().message().c_str());
    return ok_status();
  }
  std::printf("steps     (op, how many, bytes of operands and results, where, kernel)\n");
  for (const StepGroup& g : *groups) {
    std::printf("  %-20s %5d  %10s  %-9s %s\n", g.op.c_str(), g.steps, format_bytes(g.bytes).c_str(),
                g.on_device ? "device" : "processor",
                g.where.empty() ? "no kernel: a plain loop" : g.where.c_str());
  }
  return ok_status();
}

}  // namespace

bool is_predictor_path(const std::string& path) { return path.ends_with(".onnx") || is_paddle_path(path); }

Status inspect_predictor(const std::string& path, const PredictorInspection& what) {
  PredictorOptions options;
  options.disabled_passes = what.disabled_passes;
  options.explain = what.explain;
  options.device = what.device;
  options.threads = what.threads;
  options.reference = what.reference;
  options.import.mmap = what.mmap;
  options.log = what.log;
  options.import.parameters = what.params;
  OAR_ASSIGN(options.precision, parse_precision(what.precision));
  bool dumped = what.dump_pass.empty();
  if (!dumped) {
    options.pass_observer = [&](const Pass& pass, const Graph& graph, bool after) {
      if (what.dump_pass != pass.name) return;
      dumped = true;
      std::printf("%s %s\n%s\n", after ? "after" : "before", pass.name, graph.to_string().c_str());
    };
  }
  OAR_ASSIGN(const auto predictor, Predictor::open(path, options));
  if (!dumped) {
    std::string names;
    for (const PassReport& pass : predictor->passes()) names += cat(names.empty() ? "" : ", ", pass.name);
    return invalid_argument(cat("--dump-pass ", what.dump_pass, ": the passes are ", names));
  }
  std::fputs(predictor->summary().c_str(), stdout);
  if (what.explain) {
    print_passes(predictor->passes());
    OAR_RETURN_IF_ERROR(print_steps(*predictor, what.inputs));
  }
  if (what.graph) std::fputs(predictor->graph().to_string().c_str(), stdout);
  if (!what.plan) return ok_status();
  OAR_ASSIGN(const std::vector<Shape> shapes, shapes_of(*predictor, what.inputs));
  OAR_ASSIGN(const auto plan, predictor->plan(shapes));
  print_plan(*plan);
  return ok_status();
}

}  // namespace oar::cli

// If, Loop, Scan and SequenceMap: their subgraphs see only what the node hands them, so the values that a
// body reads from around it become operands behind the formal ones.
#include "engine/import/onnx_ops.h"

namespace oar::onnx {

void import_if(OnnxNode& n) {
  auto yes = n.get_graph("then_branch"), no = n.get_graph("else_branch");
  if (!yes.ok()) return n.fail(yes.status());
  if (!no.ok()) return n.fail(no.status());
  for (const Subgraph* s : {&*yes, &*no}) {
    if (s->graph->outputs().size() != n.num_outputs()) {
      return n.fail(invalid_argument(
          cat("a branch has ", s->graph->outputs().size(), " outputs, the node ", n.num_outputs())));
    }
  }
  std::vector<Val> in{n.in(0)};
  in.insert(in.end(), yes->captured.begin(), yes->captured.end());
  in.insert(in.end(), no->captured.begin(), no->captured.end());
  n.outs(n.w().ops("if", std::move(in), n.num_outputs(),
                   {{"then_inputs", static_cast<int64_t>(yes->captured.size())}}, {yes->graph, no->graph}));
}

void import_loop(OnnxNode& n) {
  auto body = n.get_graph("body");
  if (!body.ok()) return n.fail(body.status());
  const int64_t states = static_cast<int64_t>(n.num_inputs()) - 2;
  const auto formal = static_cast<int64_t>(body->graph->inputs().size() - body->captured.size());
  const auto outputs = static_cast<int64_t>(body->graph->outputs().size());
  if (states < 0 || formal != states + 2 || outputs < states + 1 ||
      static_cast<int64_t>(n.num_outputs()) != outputs - 1) {
    return n.fail(
        invalid_argument(cat("a Loop of ", states, " carried values has a body of ", formal, " inputs and ",
                             outputs, " outputs, and ", n.num_outputs(), " outputs of its own")));
  }
  const std::vector<Val> in = n.ins();
  n.outs(write_loop(n.w(), in[0], in[1], {in.begin() + 2, in.end()}, body->captured, body->graph,
                    n.num_outputs()));
}

void import_scan(OnnxNode& n) {
  auto body = n.get_graph("body");
  if (!body.ok()) return n.fail(body.status());
  const int64_t scans = n.get_int("num_scan_inputs", 0);
  const int64_t batched =
      n.opset() < 9 ? 1 : 0;  // opset 8: an optional sequence_lens first, and a batch axis
  const int64_t states = static_cast<int64_t>(n.num_inputs()) - batched - scans;
  const auto formal = static_cast<int64_t>(body->graph->inputs().size() - body->captured.size());
  const auto outputs = static_cast<int64_t>(body->graph->outputs().size());
  if (scans < 1 || states < 0 || formal != states + scans || outputs < states ||
      static_cast<int64_t>(n.num_outputs()) != outputs) {
    return n.fail(
        invalid_argument(cat("a Scan of ", states, " carried and ", scans, " scanned values has a body of ",
                             formal, " inputs and ", outputs, " outputs")));
  }
  Attrs attrs{{"states", states}, {"scans", scans}, {"batched", batched}};
  for (const char* name :
       {"scan_input_directions", "scan_output_directions", "scan_input_axes", "scan_output_axes"}) {
    const auto v = n.get_ints(name);
    if (!v.empty()) attrs.set(name, v);
  }
  if (batched) {
    attrs.set("scan_input_directions", n.get_ints("directions"));
    if (n.in(0)) return n.fail(unimplemented("sequence_lens of opset 8"));
  }
  std::vector<Val> in(n.ins().begin() + batched, n.ins().end());
  in.insert(in.end(), body->captured.begin(), body->captured.end());
  n.outs(n.w().ops("scan", std::move(in), n.num_outputs(), attrs, {body->graph}));
}

void import_sequence_map(OnnxNode& n) {
  auto body = n.get_graph("body");
  if (!body.ok()) return n.fail(body.status());
  const size_t formal = body->graph->inputs().size() - body->captured.size();
  if (formal != n.num_inputs() || body->graph->outputs().size() != n.num_outputs()) {
    return n.fail(invalid_argument(
        cat("a SequenceMap of ", n.num_inputs(), " operands has a body of ", formal, " inputs")));
  }
  std::vector<Val> in = n.ins();
  in.insert(in.end(), body->captured.begin(), body->captured.end());
  n.outs(n.w().ops("sequence_map", std::move(in), n.num_outputs(), {{"items", static_cast<int64_t>(formal)}},
                   {body->graph}));
}

}  // namespace oar::onnx

#include "server/grpc/shared_tensors.h"

#include <algorithm>

#include "engine/base/format.h"
#include "server/api/tensor_wire.h"
#include "server/grpc/infer_codec.h"

namespace oar::grpc_api {
namespace {

using inference::InferParameter;
using inference::ModelInferRequest;
using inference::ModelInferResponse;
using Parameters = google::protobuf::Map<std::string, InferParameter>;

constexpr const char* kNames[] = {"shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"};

bool names_one(const Parameters& parameters) {
  return std::any_of(std::begin(kNames), std::end(kNames),
                     [&](const char* name) { return parameters.contains(name); });
}

// Reads and erases them.
Result<api::RegionSpan> take_span(Parameters& parameters, const std::string& path) {
  const json::object all = parameters_json(parameters);
  json::object own;
  for (const char* name : kNames) {
    if (const json::value* v = all.if_contains(name)) own[name] = *v;
    parameters.erase(name);
  }
  api::RegionSpan out;
  api::Fields f(own, path);
  api::read_span(f, out);
  if (!f.ok()) return f.status();
  return out;
}

}  // namespace

bool SharedTensors::in(const ModelInferRequest& request) {
  return std::any_of(request.inputs().begin(), request.inputs().end(),
                     [](const auto& t) { return names_one(t.parameters()); }) ||
         std::any_of(request.outputs().begin(), request.outputs().end(),
                     [](const auto& t) { return names_one(t.parameters()); });
}

Result<std::shared_ptr<const SharedTensors>> SharedTensors::take(ModelInferRequest& request,
                                                                 const api::MemoryAccess& memory) {
  if (!in(request)) return std::shared_ptr<const SharedTensors>();
  auto out = std::make_shared<SharedTensors>();
  out->memory_ = memory;
  // Raw contents are of the inputs that lie in the message, in their order.
  std::vector<std::string> raw;
  int next = 0;
  bool any = false;
  for (int i = 0; i < request.inputs_size(); ++i) {
    auto& input = *request.mutable_inputs(i);
    OAR_ASSIGN(const api::RegionSpan span,
               take_span(*input.mutable_parameters(), cat("inputs[", i, "].parameters.")));
    if (span.region.empty()) {
      raw.push_back(next < request.raw_input_contents_size()
                        ? std::move(*request.mutable_raw_input_contents(next))
                        : std::string());
      ++next;
      continue;
    }
    if (input.has_contents())
      return invalid_argument(cat("input ", api::in_quotes(input.name()),
                                  " has contents beside shared_memory_region; use one of the two"),
                              "contents");
    OAR_ASSIGN(std::string bytes, memory.read(span));
    raw.push_back(std::move(bytes));
    any = true;
  }
  if (any) {
    if (next != request.raw_input_contents_size())
      return invalid_argument(
          cat("raw_input_contents has ", request.raw_input_contents_size(), " entries, and ", next,
              " inputs are not in shared memory; give one for each of these"),
          "raw_input_contents");
    request.clear_raw_input_contents();
    for (std::string& bytes : raw) request.add_raw_input_contents(std::move(bytes));
  } else {
    // They were moved out.
    for (int i = 0; i < request.raw_input_contents_size() && i < static_cast<int>(raw.size()); ++i)
      *request.mutable_raw_input_contents(i) = std::move(raw[static_cast<size_t>(i)]);
  }
  for (int i = 0; i < request.outputs_size(); ++i) {
    auto& output = *request.mutable_outputs(i);
    OAR_ASSIGN(api::RegionSpan span,
               take_span(*output.mutable_parameters(), cat("outputs[", i, "].parameters.")));
    if (!span.region.empty()) out->outputs_.emplace_back(output.name(), std::move(span));
  }
  return std::shared_ptr<const SharedTensors>(std::move(out));
}

Status SharedTensors::place(ModelInferResponse& response) const {
  if (outputs_.empty()) return ok_status();
  std::vector<std::string> left;
  for (int i = 0; i < response.outputs_size() && i < response.raw_output_contents_size(); ++i) {
    auto& output = *response.mutable_outputs(i);
    std::string& raw = *response.mutable_raw_output_contents(i);
    const auto it = std::find_if(outputs_.begin(), outputs_.end(),
                                 [&](const auto& wanted) { return wanted.first == output.name(); });
    if (it == outputs_.end()) {
      left.push_back(std::move(raw));
      continue;
    }
    OAR_RETURN_IF_ERROR(memory_.write(it->second, raw));
    auto& parameters = *output.mutable_parameters();
    parameters[kNames[0]].set_string_param(it->second.region);
    parameters[kNames[1]].set_int64_param(static_cast<int64_t>(raw.size()));
    if (it->second.offset > 0) parameters[kNames[2]].set_int64_param(static_cast<int64_t>(it->second.offset));
  }
  response.clear_raw_output_contents();
  for (std::string& bytes : left) response.add_raw_output_contents(std::move(bytes));
  return ok_status();
}

}  // namespace oar::grpc_api

#include "server/grpc/infer_codec.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "engine/base/format.h"
#include "engine/text/utf8.h"
#include "server/api/fields.h"
#include "server/api/tensor_wire.h"

namespace oar::grpc_api {
namespace {

using inference::InferTensorContents;
using inference::ModelInferRequest;
using Input = ModelInferRequest::InferInputTensor;

constexpr int kMaxInputs = 256;
constexpr int kMaxDims = 8;
constexpr int64_t kMaxElements = int64_t{1} << 32;  // no message is that large

struct Datatype {
  std::string_view name;
  int bytes;  // 0: BYTES, each element carries its length
  // Elements in the field that this type's contents belong to; -1: it may only travel raw.
  int (*count)(const InferTensorContents&);
};

int none(const InferTensorContents&) { return -1; }

constexpr Datatype kDatatypes[] = {
    {"BOOL", 1, [](const InferTensorContents& c) { return c.bool_contents_size(); }},
    {"UINT8", 1, [](const InferTensorContents& c) { return c.uint_contents_size(); }},
    {"UINT16", 2, [](const InferTensorContents& c) { return c.uint_contents_size(); }},
    {"UINT32", 4, [](const InferTensorContents& c) { return c.uint_contents_size(); }},
    {"UINT64", 8, [](const InferTensorContents& c) { return c.uint64_contents_size(); }},
    {"INT8", 1, [](const InferTensorContents& c) { return c.int_contents_size(); }},
    {"INT16", 2, [](const InferTensorContents& c) { return c.int_contents_size(); }},
    {"INT32", 4, [](const InferTensorContents& c) { return c.int_contents_size(); }},
    {"INT64", 8, [](const InferTensorContents& c) { return c.int64_contents_size(); }},
    {"FP16", 2, none},
    {"BF16", 2, none},
    {"FP32", 4, [](const InferTensorContents& c) { return c.fp32_contents_size(); }},
    {"FP64", 8, [](const InferTensorContents& c) { return c.fp64_contents_size(); }},
    {"BYTES", 0, [](const InferTensorContents& c) { return c.bytes_contents_size(); }},
};

int total_count(const InferTensorContents& c) {
  return c.bool_contents_size() + c.int_contents_size() + c.int64_contents_size() + c.uint_contents_size() +
         c.uint64_contents_size() + c.fp32_contents_size() + c.fp64_contents_size() + c.bytes_contents_size();
}

std::string label(const Input& input) { return cat("input ", api::in_quotes(input.name())); }

Result<int64_t> element_count(const Input& input) {
  if (input.shape_size() > kMaxDims) {
    return invalid_argument(cat(label(input), " has ", input.shape_size(), " dimensions; at most ", kMaxDims),
                            "shape");
  }
  int64_t count = 1;
  bool empty = false;
  for (const int64_t dim : input.shape()) {
    if (dim < 0) {
      return invalid_argument(cat(label(input), " has the negative dimension ", dim, "; give actual sizes"),
                              "shape");
    }
    if (dim == 0) {
      empty = true;
    } else if (count > kMaxElements / dim) {
      return invalid_argument(
          cat("byte size overflow for ", label(input),
              ": its shape causes total element count to exceed maximum size of ", kMaxElements),
          "shape");
    } else {
      count *= dim;
    }
  }
  return empty ? 0 : count;
}

uint32_t little_endian32(const char* p) {
  unsigned char b[4];
  std::memcpy(b, p, 4);
  return b[0] | uint32_t{b[1]} << 8 | uint32_t{b[2]} << 16 | uint32_t{b[3]} << 24;
}

// Walks length-prefixed elements; the visitor sees each.
template <class Visit>
Status walk_bytes(const Input& input, std::string_view raw, int64_t count, Visit&& visit) {
  size_t at = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (raw.size() - at < 4) {
      return invalid_argument(
          cat(label(input), ": raw element ", i, " of ", count, " lacks its 4-byte length"),
          "raw_input_contents");
    }
    const uint32_t length = little_endian32(raw.data() + at);
    at += 4;
    if (raw.size() - at < length) {
      return invalid_argument(cat(label(input), ": raw element ", i, " says ", length, " bytes but only ",
                                  raw.size() - at, " follow"),
                              "raw_input_contents");
    }
    visit(raw.substr(at, length));
    at += length;
  }
  if (at != raw.size()) {
    return invalid_argument(cat(label(input), ": ", raw.size() - at, " raw bytes are left over after ", count,
                                " elements; size and shape disagree"),
                            "raw_input_contents");
  }
  return ok_status();
}

Status check_input(const Input& input, const std::string* raw) {
  const auto type = std::find_if(std::begin(kDatatypes), std::end(kDatatypes),
                                 [&](const Datatype& d) { return d.name == input.datatype(); });
  if (type == std::end(kDatatypes)) {
    return invalid_argument(cat(label(input), " has the unknown datatype ", api::in_quotes(input.datatype()),
                                "; use BOOL, BYTES, INT8 to FP64 or BF16"),
                            "datatype");
  }
  OAR_ASSIGN(const int64_t count, element_count(input));
  if (raw) {
    if (type->bytes == 0) return walk_bytes(input, *raw, count, [](std::string_view) {});
    if (static_cast<uint64_t>(count) * static_cast<uint64_t>(type->bytes) != raw->size()) {
      return invalid_argument(
          cat(label(input), " has ", raw->size(), " raw bytes but its shape needs ", count * type->bytes),
          "raw_input_contents");
    }
    return ok_status();
  }
  const int have = type->count(input.contents());
  if (have < 0) {
    return invalid_argument(cat(label(input), ": ", input.datatype(), " travels in raw_input_contents only"),
                            "contents");
  }
  if (total_count(input.contents()) != have) {
    return invalid_argument(
        cat(label(input), " has contents in a field of another datatype than ", input.datatype()),
        "contents");
  }
  if (have != count) {
    return invalid_argument(
        cat(label(input), " has ", have, " elements in contents but its shape needs ", count), "contents");
  }
  return ok_status();
}

std::string_view first_bytes(const Input& input, const std::string* raw) {
  if (!raw) return input.contents().bytes_contents(0);
  return std::string_view(*raw).substr(4);  // walked by check_input(): one element, its length fits
}

bool first_bool(const Input& input, const std::string* raw) {
  return raw ? (*raw)[0] != 0 : input.contents().bool_contents(0);
}

json::value to_json(const inference::InferParameter& p) {
  switch (p.parameter_choice_case()) {
    case inference::InferParameter::kBoolParam: return p.bool_param();
    case inference::InferParameter::kInt64Param: return p.int64_param();
    case inference::InferParameter::kStringParam: return json::string(p.string_param());
    case inference::InferParameter::kDoubleParam: return p.double_param();
    case inference::InferParameter::kUint64Param:
      if (p.uint64_param() <= INT64_MAX) return static_cast<int64_t>(p.uint64_param());
      return p.uint64_param();
    default: return nullptr;
  }
}

}  // namespace

json::object parameters_json(
    const google::protobuf::Map<std::string, inference::InferParameter>& parameters) {
  json::object out;
  for (const auto& [name, value] : parameters) out[name] = to_json(value);
  return out;
}

Status check_tensors(const ModelInferRequest& request) {
  if (request.inputs_size() > kMaxInputs) {
    return invalid_argument(cat("inputs has ", request.inputs_size(), " tensors; at most ", kMaxInputs),
                            "inputs");
  }
  const bool raw = request.raw_input_contents_size() > 0;
  if (raw && request.raw_input_contents_size() != request.inputs_size()) {
    return invalid_argument(cat("raw_input_contents has ", request.raw_input_contents_size(), " entries for ",
                                request.inputs_size(), " inputs; give one per input or none"),
                            "raw_input_contents");
  }
  std::set<std::string_view> names;
  for (int i = 0; i < request.inputs_size(); ++i) {
    const Input& input = request.inputs(i);
    if (!names.insert(input.name()).second)
      return invalid_argument(cat(label(input), " is given twice"), "inputs");
    if (raw && total_count(input.contents()) > 0) {
      return invalid_argument(
          cat(label(input), " has contents beside raw_input_contents; use one of the two"), "contents");
    }
    const json::object parameters = parameters_json(input.parameters());
    api::Fields f(parameters, cat("inputs[", i, "].parameters."));
    f.refuse_rest();
    OAR_RETURN_IF_ERROR(f.status());
    OAR_RETURN_IF_ERROR(check_input(input, raw ? &request.raw_input_contents(i) : nullptr));
  }
  return ok_status();
}

Result<api::OipTextRequest> read_text_request(const ModelInferRequest& request) {
  OAR_RETURN_IF_ERROR(check_tensors(request));
  api::OipTextRequest out;
  out.id = request.id();
  for (const auto& entry : parameters_json(request.parameters())) {
    OAR_RETURN_IF_ERROR(api::merge_parameter(entry.key(), entry.value(), out));
  }
  bool has_text = false;
  const bool raw_used = request.raw_input_contents_size() > 0;
  for (int i = 0; i < request.inputs_size(); ++i) {
    const Input& input = request.inputs(i);
    const std::string* raw = raw_used ? &request.raw_input_contents(i) : nullptr;
    const bool is_text = input.name() == "text_input", is_parameters = input.name() == "sampling_parameters";
    const bool is_stream = input.name() == "stream", is_exclude = input.name() == "exclude_input_in_output";
    if (!is_text && !is_parameters && !is_stream && !is_exclude) {
      return invalid_argument(cat(label(input),
                                  " is unknown; this model takes text_input, stream, sampling_parameters "
                                  "and exclude_input_in_output"),
                              "inputs");
    }
    const char* wanted = is_text || is_parameters ? "BYTES" : "BOOL";
    if (input.datatype() != wanted) {
      return invalid_argument(cat(label(input), " must have datatype ", wanted, ", got ", input.datatype()),
                              "datatype");
    }
    OAR_ASSIGN(const int64_t count, element_count(input));
    if (count != 1) {
      return invalid_argument(
          cat(label(input), " must have shape [1], got ", count, " elements; send one request per prompt"),
          "shape");
    }
    if (is_text) {
      out.text = std::string(first_bytes(input, raw));
      if (!is_valid_utf8(out.text)) {
        return invalid_argument(cat(label(input), " is not valid UTF-8; BYTES of text must be"),
                                "text_input");
      }
      has_text = true;
    } else if (is_parameters) {
      OAR_RETURN_IF_ERROR(api::merge_sampling_parameters(first_bytes(input, raw), out.fields));
    } else if (is_stream) {
      out.stream = first_bool(input, raw);
    } else {
      out.exclude_input = first_bool(input, raw);
    }
  }
  if (!has_text)
    return invalid_argument("the input text_input is missing; send BYTES of shape [1]", "inputs");
  for (int i = 0; i < request.outputs_size(); ++i) {
    if (request.outputs(i).name() != "text_output") {
      return invalid_argument(cat("output ", api::in_quotes(request.outputs(i).name()),
                                  " is unknown; this model gives text_output"),
                              "outputs");
    }
    if (i > 0) return invalid_argument("output \"text_output\" is asked for twice", "outputs");
  }
  return out;
}

void add_text_output(inference::ModelInferResponse& response, std::string_view text) {
  auto* output = response.add_outputs();
  output->set_name("text_output");
  output->set_datatype("BYTES");
  output->add_shape(1);
  std::string raw;
  raw.reserve(4 + text.size());
  const auto length = static_cast<uint32_t>(text.size());
  for (int shift = 0; shift < 32; shift += 8) raw += static_cast<char>(length >> shift & 0xFF);
  raw += text;
  response.add_raw_output_contents(std::move(raw));
}

}  // namespace oar::grpc_api

#include "server/api/text_infer.h"

#include "engine/base/format.h"
#include "engine/text/utf8.h"
#include "server/api/tensor_wire.h"

namespace oar::api {
namespace {

Result<std::vector<size_t>> read_wanted(const TensorModelConfig& config, const JsonInferRequest& request) {
  std::vector<std::string> names;
  for (const JsonInferRequest::Output& o : request.outputs) {
    names.push_back(o.name);
    if (o.classification > 0)
      return invalid_argument(
          cat("output ", in_quotes(o.name), " has no numbers to classify; leave classification out"),
          "classification");
  }
  return select_outputs(config, names);
}

}  // namespace

Result<OipTextRequest> read_text_infer(const TensorModelConfig& config, JsonInferRequest& request) {
  OipTextRequest out;
  out.id = request.id;
  for (const auto& p : request.parameters) {
    if (p.key() == "binary_data_output" || p.value().is_null()) continue;  // about the answer's tensors
    OAR_RETURN_IF_ERROR(merge_parameter({p.key().data(), p.key().size()}, p.value(), out));
  }
  OAR_RETURN_IF_ERROR(read_wanted(config, request).status());
  OAR_ASSIGN(const InferJob job, make_job(config, std::move(request.inputs)));
  const auto text_in = [&](size_t k) -> const std::string& {
    return elements<std::string>(job.inputs[k].tensor)[0];
  };
  const auto flag_in = [&](size_t k) { return elements<uint8_t>(job.inputs[k].tensor)[0] != 0; };
  for (size_t k = 0; k < config.inputs.size(); ++k) {
    if (!job.inputs[k].is_tensor()) continue;
    const std::string& name = config.inputs[k].name;
    if (name == "text_input") out.text = text_in(k);
    else if (name == "sampling_parameters")
      OAR_RETURN_IF_ERROR(merge_sampling_parameters(text_in(k), out.fields));
    else if (name == "stream") out.stream = flag_in(k);
    else out.exclude_input = flag_in(k);
  }
  if (!is_valid_utf8(out.text))
    return invalid_argument("input \"text_input\" is not valid UTF-8; BYTES of text must be", "text_input");
  if (out.stream)
    return invalid_argument("stream is true, but infer has one answer; POST to generate_stream", "stream");
  OAR_RETURN_IF_ERROR(check_oip_request(out));
  return out;
}

Result<JsonInferAnswer> write_text_infer(const TensorModelConfig& config, const JsonInferRequest& request,
                                         std::string text) {
  OAR_ASSIGN(const std::vector<size_t> wanted, read_wanted(config, request));
  OAR_ASSIGN(Tensor t, allocate_wire(*datatype_of(DType::kString), Shape({1})));
  static_cast<std::string*>(t.mutable_data())[0] = std::move(text);
  return write_infer_body(config, request, {Datum(std::move(t))}, wanted);
}

}  // namespace oar::api

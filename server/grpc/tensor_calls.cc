#include "server/grpc/tensor_calls.h"

#include <atomic>
#include <limits>

#include "engine/base/format.h"
#include "server/api/classification.h"
#include "server/api/fields.h"
#include "server/api/tensor_json.h"
#include "server/api/tensor_wire.h"
#include "server/grpc/infer_codec.h"
#include "server/grpc/shared_tensors.h"

namespace oar::grpc_api {
namespace {

using inference::InferTensorContents;
using inference::ModelInferRequest;
using inference::ModelInferResponse;
using Input = ModelInferRequest::InferInputTensor;

constexpr size_t kMaxOutputs = 1024;

// Narrow integers travel in 32-bit fields; a value that does not fit is an error, never a wrap.
template <class T, class Field>
Status fill_integers(const std::string& name, const Field& from, Tensor& to) {
  using Wide = std::remove_cv_t<std::remove_reference_t<decltype(*from.begin())>>;
  T* out = static_cast<T*>(to.mutable_data());
  for (int i = 0; i < from.size(); ++i) {
    const Wide v = from.Get(i);
    if constexpr (sizeof(T) < sizeof(Wide)) {
      if (v < static_cast<Wide>(std::numeric_limits<T>::min()) ||
          v > static_cast<Wide>(std::numeric_limits<T>::max())) {
        return invalid_argument(cat("input ", api::in_quotes(name), ": element ", i, " of contents is ", v,
                                    ", out of the datatype's range"),
                                "contents");
      }
    }
    out[i] = static_cast<T>(v);
  }
  return ok_status();
}

// Counts and the right field have been checked by check_tensors().
Status fill_contents(const Input& input, Tensor& t) {
  const InferTensorContents& c = input.contents();
  const std::string& name = input.name();
  switch (t.format().dtype()) {
    case DType::kBool:
      for (int i = 0; i < c.bool_contents_size(); ++i)
        static_cast<uint8_t*>(t.mutable_data())[i] = c.bool_contents(i) ? 1 : 0;
      return ok_status();
    case DType::kI8: return fill_integers<int8_t>(name, c.int_contents(), t);
    case DType::kI16: return fill_integers<int16_t>(name, c.int_contents(), t);
    case DType::kI32: return fill_integers<int32_t>(name, c.int_contents(), t);
    case DType::kI64: return fill_integers<int64_t>(name, c.int64_contents(), t);
    case DType::kU8: return fill_integers<uint8_t>(name, c.uint_contents(), t);
    case DType::kU16: return fill_integers<uint16_t>(name, c.uint_contents(), t);
    case DType::kU32: return fill_integers<uint32_t>(name, c.uint_contents(), t);
    case DType::kU64: return fill_integers<uint64_t>(name, c.uint64_contents(), t);
    case DType::kF32:
      std::copy(c.fp32_contents().begin(), c.fp32_contents().end(), static_cast<float*>(t.mutable_data()));
      return ok_status();
    case DType::kF64:
      std::copy(c.fp64_contents().begin(), c.fp64_contents().end(), static_cast<double*>(t.mutable_data()));
      return ok_status();
    case DType::kString:
      for (int i = 0; i < c.bytes_contents_size(); ++i)
        static_cast<std::string*>(t.mutable_data())[i] = c.bytes_contents(i);
      return ok_status();
    default:
      return invalid_argument(cat("input ", api::in_quotes(name), " travels in raw_input_contents only"),
                              "contents");
  }
}

class TensorInferCall final : public grpc::ServerUnaryReactor,
                              public std::enable_shared_from_this<TensorInferCall> {
 public:
  TensorInferCall(const Services& services, grpc::CallbackServerContext* context, api::TensorModelPtr model,
                  const ModelInferRequest* request, ModelInferResponse* response)
      : services_(services),
        context_(context),
        model_(std::move(model)),
        request_(request),
        response_(response),
        timer_(services, "ModelInfer") {}

  void begin() {
    self_ = shared_from_this();
    if (const Status s = submit(); !s.ok()) finish(s);
  }

 private:
  // The job's tensors view the request, which gRPC keeps until Finish: nothing but `done` finishes a
  // submitted call.
  Status submit() {
    const api::RequestContext about = context_of(services_, *context_);
    OAR_ASSIGN(api::AdmissionPtr admission, services_.frontend->admit(about));
    if (SharedTensors::in(*request_)) {
      own_ = std::make_unique<ModelInferRequest>(*request_);
      OAR_ASSIGN(shared_, SharedTensors::take(*own_, access_of(services_, about)));
      request_ = own_.get();
    }
    OAR_ASSIGN(TensorRequest r, read_tensor_request(*model_, *request_, about, nullptr));
    r.job.done = [self = shared_from_this(), admission = std::move(admission), outputs = std::move(r.outputs),
                  classes = std::move(r.classes)](Result<std::vector<Datum>> results) {
      Status s = results.status();
      if (s.ok())
        s = write_tensor_response(*self->model_, self->request_->id(), std::move(*results), outputs, classes,
                                  *self->response_);
      if (s.ok() && self->shared_) s = self->shared_->place(*self->response_);
      self->finish(s);
    };
    OAR_ASSIGN(const uint64_t ticket, model_->runner->submit(std::move(r.job)));
    ticket_ = ticket;
    if (cancelled_) model_->runner->cancel(ticket);
    return ok_status();
  }
  void finish(const Status& status) {
    const grpc::Status s = to_grpc(status);
    timer_.done(s.error_code());
    Finish(s);
  }
  void OnCancel() override {
    cancelled_ = true;
    if (const uint64_t ticket = ticket_; ticket != 0) model_->runner->cancel(ticket);
  }
  void OnDone() override { const std::shared_ptr<TensorInferCall> self = std::move(self_); }

  const Services& services_;
  grpc::CallbackServerContext* context_;
  const api::TensorModelPtr model_;
  const ModelInferRequest* request_;
  ModelInferResponse* response_;
  std::unique_ptr<ModelInferRequest> own_;  // with what lay in shared memory
  std::shared_ptr<const SharedTensors> shared_;
  CallTimer timer_;
  std::shared_ptr<TensorInferCall> self_;
  std::atomic<uint64_t> ticket_{0};
  std::atomic<bool> cancelled_{false};  // perhaps before there was a ticket
};

}  // namespace

Result<TensorRequest> read_tensor_request(const api::TensorModel& model, const ModelInferRequest& request,
                                          const api::RequestContext& context,
                                          std::shared_ptr<const void> owner) {
  OAR_RETURN_IF_ERROR(check_tensors(request));
  const bool raw = request.raw_input_contents_size() > 0;
  std::vector<api::NamedTensor> tensors;
  for (int i = 0; i < request.inputs_size(); ++i) {
    const Input& input = request.inputs(i);
    OAR_ASSIGN(const api::Datatype* type, api::parse_datatype(input.name(), input.datatype()));
    OAR_ASSIGN(const Shape shape, api::check_shape(input.name(), {input.shape().data(),
                                                                  static_cast<size_t>(input.shape_size())}));
    if (raw) {
      OAR_ASSIGN(Tensor t,
                 api::tensor_from_raw(input.name(), *type, shape, request.raw_input_contents(i), owner));
      tensors.push_back({input.name(), std::move(t)});
    } else {
      OAR_ASSIGN(Tensor t, api::allocate_wire(*type, shape));
      OAR_RETURN_IF_ERROR(fill_contents(input, t));
      tensors.push_back({input.name(), std::move(t)});
    }
  }
  TensorRequest out;
  if (static_cast<size_t>(request.outputs_size()) > kMaxOutputs)
    return invalid_argument(cat("outputs has ", request.outputs_size(), " entries; at most ", kMaxOutputs),
                            "outputs");
  std::vector<std::string> wanted;
  for (const auto& output : request.outputs()) {
    const json::object parameters = parameters_json(output.parameters());
    api::Fields f(parameters, cat("outputs[", wanted.size(), "].parameters."));
    int64_t classes = 0;
    f.integer("classification", classes, 0, api::kMaxClasses);
    f.refuse_rest();
    OAR_RETURN_IF_ERROR(f.status());
    wanted.push_back(output.name());
    out.classes.push_back(classes);
  }
  OAR_ASSIGN(out.outputs, api::select_outputs(model.config, wanted));
  OAR_ASSIGN(const uint64_t timeout, api::read_timeout(parameters_json(request.parameters())));
  OAR_ASSIGN(out.job, api::make_job(model.config, std::move(tensors)));
  out.job.deadline = api::queue_deadline(model.config, context.deadline, timeout);
  out.job.end_by = context.deadline;
  out.job.id = request.id().empty() ? context.id : request.id();
  out.job.trace = context.trace;
  return out;
}

Status write_tensor_response(const api::TensorModel& model, const std::string& id, std::vector<Datum> results,
                             const std::vector<size_t>& wanted, const std::vector<int64_t>& classes,
                             ModelInferResponse& response) {
  OAR_RETURN_IF_ERROR(api::classify(model.config, wanted, classes, results));
  response.set_model_name(model.config.name);
  response.set_model_version(model.config.version);
  response.set_id(id);
  for (const size_t index : wanted) {
    const Datum& d = results[index];
    const api::Datatype* type = d.is_tensor() ? api::datatype_of(d.tensor.format().dtype()) : nullptr;
    if (!type) {
      return unimplemented(cat("output ", api::in_quotes(model.config.outputs[index].name), " is ",
                               d.to_string(), ", which the protocol cannot carry"));
    }
    auto* output = response.add_outputs();
    output->set_name(model.config.outputs[index].name);
    output->set_datatype(std::string(type->name));
    for (const int64_t dim : d.tensor.shape()) output->add_shape(dim);
    std::string* raw = response.add_raw_output_contents();
    raw->reserve(api::raw_size(d.tensor));
    api::append_raw(d.tensor, *raw);
  }
  return ok_status();
}

grpc::ServerUnaryReactor* begin_tensor_infer(const Services& services, grpc::CallbackServerContext* context,
                                             api::TensorModelPtr model, const ModelInferRequest* request,
                                             ModelInferResponse* response) {
  auto call = std::make_shared<TensorInferCall>(services, context, std::move(model), request, response);
  call->begin();
  return call.get();
}

}  // namespace oar::grpc_api

#include "server/grpc/model_messages.h"

#include "engine/base/format.h"
#include "server/api/tensor_wire.h"

namespace oar::grpc_api {

using namespace inference;  // NOLINT: this file is about that package's messages

namespace {

void add_tensor(google::protobuf::RepeatedPtrField<ModelMetadataResponse::TensorMetadata>* list,
                const api::TensorSpec& spec) {
  auto* t = list->Add();
  t->set_name(spec.name);
  const api::Datatype* type = api::datatype_of(spec.dtype);
  t->set_datatype(type ? std::string(type->name) : std::string());
  for (const int64_t dim : spec.dims) t->add_shape(dim);
}

DataType data_type(DType dtype) {
  switch (dtype) {
    case DType::kBool: return TYPE_BOOL;
    case DType::kU8: return TYPE_UINT8;
    case DType::kU16: return TYPE_UINT16;
    case DType::kU32: return TYPE_UINT32;
    case DType::kU64: return TYPE_UINT64;
    case DType::kI8: return TYPE_INT8;
    case DType::kI16: return TYPE_INT16;
    case DType::kI32: return TYPE_INT32;
    case DType::kI64: return TYPE_INT64;
    case DType::kF16: return TYPE_FP16;
    case DType::kBF16: return TYPE_BF16;
    case DType::kF32: return TYPE_FP32;
    case DType::kF64: return TYPE_FP64;
    case DType::kString: return TYPE_STRING;
    default: return TYPE_INVALID;
  }
}

void set(StatisticDuration* d, uint64_t count, uint64_t ns) {
  d->set_count(count);
  d->set_ns(ns);
}

}  // namespace

void describe(const api::ModelMetadata& model, ModelMetadataResponse& out) {
  out.set_name(model.config.name);
  for (const std::string& v : model.versions) out.add_versions(v);
  out.set_platform(model.config.platform);
  for (const api::TensorSpec& spec : model.config.inputs) add_tensor(out.mutable_inputs(), spec);
  for (const api::TensorSpec& spec : model.config.outputs) add_tensor(out.mutable_outputs(), spec);
  for (const auto& [name, value] : model.properties) (*out.mutable_properties())[name] = value;
}

void configure(const api::TensorModelConfig& c, ModelConfig& out) {
  out.set_name(c.name);
  out.set_platform(c.platform);
  out.set_backend(c.steps.empty() ? "oar" : "");
  out.set_max_batch_size(static_cast<int32_t>(c.max_batch));
  // A configuration's dims leave the batch axis out.
  const size_t skip = c.max_batch > 0 ? 1 : 0;
  for (const api::TensorSpec& spec : c.inputs) {
    auto* i = out.add_input();
    i->set_name(spec.name);
    i->set_data_type(data_type(spec.dtype));
    for (size_t k = skip; k < spec.dims.size(); ++k) i->add_dims(spec.dims[k]);
    i->set_optional(spec.optional);
  }
  for (const api::TensorSpec& spec : c.outputs) {
    auto* o = out.add_output();
    o->set_name(spec.name);
    o->set_data_type(data_type(spec.dtype));
    for (size_t k = skip; k < spec.dims.size(); ++k) o->add_dims(spec.dims[k]);
  }
  for (const api::EnsembleStep& s : c.steps) {
    auto* step = out.mutable_ensemble_scheduling()->add_step();
    step->set_model_name(s.model);
    step->set_model_version(s.version);
    for (const auto& [own, tensor] : s.inputs) (*step->mutable_input_map())[own] = tensor;
    for (const auto& [own, tensor] : s.outputs) (*step->mutable_output_map())[own] = tensor;
  }
  if (!c.steps.empty()) return;
  auto* group = out.add_instance_group();
  group->set_name(c.name + "_0");
  group->set_count(c.instances);
  group->set_kind(ModelInstanceGroup::KIND_CPU);
  if (c.decoupled) out.mutable_model_transaction_policy()->set_decoupled(true);
  if (!c.merge || c.max_batch == 0) return;
  auto* batching = out.mutable_dynamic_batching();
  for (const int64_t rows : c.preferred_batches)
    batching->add_preferred_batch_size(static_cast<int32_t>(rows));
  batching->set_max_queue_delay_microseconds(static_cast<uint64_t>(c.max_queue_delay_us));
  auto* policy = batching->mutable_default_queue_policy();
  policy->set_default_timeout_microseconds(static_cast<uint64_t>(c.default_timeout_us));
  policy->set_allow_timeout_override(c.allow_timeout_override);
  policy->set_max_queue_size(static_cast<uint32_t>(c.max_queue));
}

void add_statistics(const api::ModelStatistics& m, ModelStatistics& out) {
  const InferStats& s = m.stats;
  out.set_name(m.name);
  out.set_version(m.version);
  out.set_last_inference(s.last_ms);
  out.set_inference_count(s.inferences);
  out.set_execution_count(s.executions);
  auto* stats = out.mutable_inference_stats();
  set(stats->mutable_success(), s.success, s.success_ns);
  set(stats->mutable_fail(), s.failure, s.failure_ns);
  set(stats->mutable_queue(), s.success, s.times.queue);
  set(stats->mutable_compute_input(), s.success, s.times.input);
  set(stats->mutable_compute_infer(), s.success, s.times.compute);
  set(stats->mutable_compute_output(), s.success, s.times.output);
  for (const InferStats::Batch& b : s.batches) {
    auto* batch = out.add_batch_stats();
    batch->set_batch_size(static_cast<uint64_t>(b.rows));
    set(batch->mutable_compute_input(), b.count, b.input_ns);
    set(batch->mutable_compute_infer(), b.count, b.compute_ns);
    set(batch->mutable_compute_output(), b.count, b.output_ns);
  }
}

}  // namespace oar::grpc_api

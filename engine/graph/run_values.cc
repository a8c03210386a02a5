#include "engine/graph/run_values.h"

#include "engine/base/format.h"

namespace oar {

const Datum* RunValues::find(ValueId v) {
  if (v == kNoValue) return nullptr;
  if (where_[v] == 0 && graph_.value(v).kind == ValueKind::kConstant)
    set_on_host(v, Datum(graph_.value(v).constant));
  if ((where_[v] & kHost) != 0) return &host_[v];
  return (where_[v] & kDevice) != 0 ? &device_[v] : nullptr;
}

Result<const Datum*> RunValues::on_host(ValueId v) {
  const Datum* d = find(v);
  if (d == nullptr || (where_[v] & kHost) != 0) return d;
  const Tensor& there = d->tensor;
  OAR_ASSIGN(Buffer buffer, options_.memory != nullptr ? options_.memory->allocate(there.bytes())
                                                       : Buffer::allocate(there.bytes()));
  if (!options_.sizing) {
    OAR_RETURN_IF_ERROR(
        device_weights_->backend().download(buffer.mutable_data(), there.data(), there.bytes()));
    coming_ = true;
    downloaded_ += there.bytes();
  }
  OAR_ASSIGN(Tensor here, Tensor::make(there.shape(), there.format(), std::move(buffer)));
  set_on_host(v, std::move(here));
  return &host_[v];
}

Result<const Datum*> RunValues::on_device(ValueId v) {
  const Datum* d = find(v);
  if (d == nullptr || (where_[v] & kDevice) != 0) return d != nullptr ? &device_[v] : nullptr;
  const Tensor& here = d->tensor;
  Buffer buffer;
  if (graph_.value(v).kind == ValueKind::kConstant) {
    OAR_ASSIGN(const StoredWeight* stored, device_weights_->get(cat(weight_key(graph_, v), " value"), [&] {
      return device_weights_->place(here, false);
    }));
    buffer = stored->buffer;
  } else {
    OAR_ASSIGN(buffer, device_memory_->allocate(here.bytes()));
    if (!options_.sizing) {
      OAR_RETURN_IF_ERROR(
          device_weights_->backend().upload(buffer.mutable_data(), here.data(), here.bytes()));
      uploaded_ += here.bytes();
    }
  }
  OAR_ASSIGN(Tensor there, Tensor::make(here.shape(), here.format(), std::move(buffer)));
  set_on_device(v, std::move(there));
  return &device_[v];
}

Status RunValues::arrive() {
  if (!coming_) return ok_status();
  coming_ = false;
  return device_weights_->backend().synchronize();
}

void RunValues::drop(ValueId v) {
  host_[v] = {};
  if (!device_.empty()) device_[v] = {};
}

}  // namespace oar

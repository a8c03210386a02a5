// Any bytes as an ONNX file: an error, or a model that is prepared and, where every input has a known small
// shape, run. Limits on memory and trips keep a hostile model from taking the machine with it.
#include <memory>

#include "engine/import/onnx.h"
#include "engine/runtime/predictor.h"
#include "tests/fuzz/target.h"

OAR_FUZZ_TARGET(onnx) {
  auto model = oar::import_onnx_bytes(oar::Buffer::wrap_const(data, size, nullptr), "fuzz", "");
  if (!model.ok()) return 0;
  oar::PredictorOptions options;
  options.threads = 1;
  options.tensor_limit = 1 << 20;
  options.loop_limit = 20;
  const auto predictor = oar::Predictor::create(std::move(*model), options);
  if (!predictor.ok()) return 0;
  std::vector<oar::Datum> inputs;
  for (const oar::IoSpec& spec : (*predictor)->inputs()) {
    std::vector<int64_t> dims;
    for (const oar::IoDim& d : spec.dims) dims.push_back(d.value < 0 ? 2 : d.value);
    const auto shape = oar::checked_shape(dims);
    if (spec.kind != oar::IoSpec::Kind::kTensor || !spec.typed || !shape.ok()) return 0;
    auto t = oar::allocate_elements(*shape, spec.dtype, 1 << 16);
    if (!t.ok()) return 0;
    inputs.emplace_back(std::move(*t));
  }
  (void)(*predictor)->run(std::move(inputs));
  return 0;
}

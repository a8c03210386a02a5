// oar merge: an adapter added to its model's weights (train/result.h), and what of it int4 would leave.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "clients/cli/command.h"
#include "engine/base/format.h"
#include "engine/loader/peft.h"
#include "engine/runtime/model_path.h"
#include "engine/runtime/quantize_weights.h"
#include "train/result.h"

namespace oar::cli {
namespace {

struct MergeCommand {
  std::string model, lora, out;
};

constexpr const char* kTo = "int4";
constexpr int64_t kMostRows = 256;  // of a layer that are looked at: rows are quantized apart

// At most kMostRows rows, evenly spread, as f32: of a matrix (inputs, outputs) columns.
Result<Tensor> some_rows(const Tensor& w, bool fan_in_fan_out) {
  OAR_ASSIGN(const Tensor all, to_f32(w));
  const int64_t N = w.shape()[fan_in_fan_out ? 1 : 0], K = w.shape()[fan_in_fan_out ? 0 : 1];
  const int64_t rows = std::min(N, kMostRows);
  OAR_ASSIGN(Tensor out, Tensor::allocate({rows, K}, Format::f32()));
  float* to = out.mutable_values<float>().data();
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t n = r * N / rows;
    for (int64_t k = 0; k < K; ++k)
      *to++ = all.values<float>()[static_cast<size_t>(fan_in_fan_out ? k * N + n : n * K + k)];
  }
  return out;
}

// Root mean square, by that of the adapter's change, of what merging before quantization loses of that
// change: Q(w + change) against Q(w) + change, which an adapter beside quantized weights computes. Nothing
// where the adapter changes nothing, or no layer of it can be quantized.
Result<std::optional<double>> loss_in_int4(const Checkpoint& base, const Checkpoint& merged,
                                           const PeftAdapter& adapter) {
  OAR_ASSIGN(const WeightScheme scheme, weight_scheme(kTo));
  calibrate::FitOptions fit;
  fit.method = scheme.method;
  ThreadPool pool{ThreadPoolOptions()};
  double lost = 0, changed = 0;
  for (const auto& [module, m] : adapter.modules) {
    const std::string name = module + ".weight";
    OAR_ASSIGN(const Tensor before, some_rows(base.tensors.at(name), adapter.fan_in_fan_out));
    OAR_ASSIGN(const Tensor after, some_rows(merged.tensors.at(name), adapter.fan_in_fan_out));
    const auto format = target_format(scheme, {name, name}, before);
    if (!format) continue;
    OAR_ASSIGN(const QuantizedWeight narrow_before, quantize_weight(before, *format, fit, {}, pool));
    OAR_ASSIGN(const QuantizedWeight narrow_after, quantize_weight(after, *format, fit, {}, pool));
    OAR_ASSIGN(const Tensor read_before, to_f32(narrow_before.tensor));
    OAR_ASSIGN(const Tensor read_after, to_f32(narrow_after.tensor));
    for (size_t k = 0; k < static_cast<size_t>(before.numel()); ++k) {
      const double change = double{after.values<float>()[k]} - before.values<float>()[k];
      const double left = double{read_after.values<float>()[k]} - read_before.values<float>()[k];
      lost += (left - change) * (left - change);
      changed += change * change;
    }
  }
  if (changed == 0) return std::optional<double>();
  return std::optional<double>(std::sqrt(lost / changed));
}

Status merge(const MergeCommand& o) {
  OAR_ASSIGN(const std::string path, resolve_model_path(o.model));
  OAR_ASSIGN(const Checkpoint checkpoint, load_checkpoint(path));
  OAR_RETURN_IF_ERROR(train::write_merged(o.out, checkpoint, o.lora));
  std::printf("%s\n", o.out.c_str());
  OAR_ASSIGN(const Checkpoint merged, load_checkpoint(o.out));
  OAR_ASSIGN(PeftAdapter adapter, load_peft_adapter(o.lora));
  OAR_RETURN_IF_ERROR(call_as_base(adapter, checkpoint.tensors).status());
  OAR_ASSIGN(const auto lost, loss_in_int4(checkpoint, merged, adapter));
  if (lost)
    std::fprintf(
        stderr,
        "as %s the merged layers would be off by %.3g times the adapter's change from %s with the adapter "
        "beside it (--weights %s --lora)\n",
        kTo, *lost, kTo, kTo);
  return ok_status();
}

}  // namespace

void add_merge(CLI::App& app, Action& action) {
  auto o = std::make_shared<MergeCommand>();
  CLI::App* c = app.add_subcommand("merge", "Add an adapter to its model's weights");
  c->add_option("model", o->model, "the model, in 16 or 32 bits")->required()->type_name("MODEL");
  c->add_option("--lora", o->lora, "the adapter's folder")->required()->type_name("DIR");
  add_out(*c, o->out)->type_name("DIR");
  c->footer(
      "Example:\n"
      "  oar merge demo --lora my-adapter -o merged\n"
      "Sums are rounded to the types that the model's files have. To a smaller format: `oar quantize "
      "merged`.\n"
      "What int4 would lose of the adapter then is said: an adapter beside quantized weights loses none.");
  c->callback([o, &action] {
    action = [o] {
      const Status s = merge(*o);
      return s.ok() ? kSuccess : fail(s);
    };
  });
}

}  // namespace oar::cli

#include "engine/tune/quantize/quantize.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "engine/base/format.h"
#include "engine/graph/passes/rotate.h"
#include "engine/loader/byte_reader.h"
#include "engine/loader/file_writer.h"
#include "engine/loader/oar_quantized.h"
#include "engine/loader/safetensors_writer.h"
#include "engine/models/encoder.h"
#include "engine/runtime/quantize_weights.h"
#include "engine/runtime/rotated_model.h"
#include "engine/runtime/stored_basis.h"
#include "engine/tensor/mapped_file.h"
#include "engine/tune/measure/eval.h"
#include "engine/tune/quantize/calibrated_quantizer.h"
#include "engine/tune/quantize/stage_runner.h"

namespace oar {
namespace {

namespace fs = std::filesystem;

struct Job {
  WeightTarget target;
  Format format;
  Tensor source;  // before any rotation
};

// The tensor in a plain format, rows in parallel; itself where it is.
Result<Tensor> converted(const Tensor& t, Format format, ThreadPool& pool) {
  if (t.format() == format || t.numel() == 0) return t;
  const int64_t cols = t.shape().cols(), from_bytes = t.format().stride(cols), to_bytes = format.stride(cols);
  OAR_ASSIGN(Tensor out, Tensor::allocate(t.shape(), format));
  const auto* from = static_cast<const std::byte*>(t.data());
  auto* to = static_cast<std::byte*>(out.mutable_data());
  pool.parallel_for(t.numel() / cols, std::max<int64_t>(1, 16384 / cols), [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(cols));
    for (int64_t r = begin; r < end; ++r) {
      t.format().decode_row(from + r * from_bytes, cols, row.data());
      format.encode_row(row.data(), cols, to + r * to_bytes);
    }
  });
  return out;
}

// What adapters need of a norm that gave scales away.
std::string channels_of(const std::string& norm) { return cat(kBasisPrefix, norm, kBasisChannels); }

// One quantization on its way to the disk.
class Work {
 public:
  // `rotated` (null: neither rotated nor transposed) has the numbers of `checkpoint`, which is its layout
  // then.
  Work(const Checkpoint& checkpoint, const RotatedModel* rotated, const ModelConfig& config,
       const QuantizeOptions& options, std::shared_ptr<Backend> backend,
       const std::function<void(const LayerError&)>& on_layer, const Progress& progress)
      : source_(checkpoint),
        rotated_(rotated),
        config_(config),
        o_(options),
        backend_(std::move(backend)),
        on_layer_(on_layer),
        progress_(progress) {}

  Status begin(const std::string& out);
  Status without_data();
  Status with_data(const Tokenizer& tokenizer);
  Status finish(const std::string& out);
  void abandon() const {
    std::error_code ec;
    fs::remove_all(partial_, ec);
  }
  QuantizeReport report;

 private:
  ThreadPool& pool() { return backend_->host_pool(); }
  bool channel_method() const { return o_.method == "awq" || o_.method == "smoothquant"; }
  // A tensor with its numbers: as it lies in the file, or rotated now.
  Result<Tensor> load(const std::string& name) {
    return rotated_ != nullptr ? rotated_->tensor(name, pool()) : given(name);
  }
  const Tensor& given(const std::string& name) const {
    const auto draft = source_.drafts.find(name);
    return draft != source_.drafts.end() ? draft->second : source_.tensors.at(name);
  }
  Status lay_out();
  Status write_unchanged();
  Status note_done();
  Status done(const Job& job, const Tensor& tensor, LayerError error);
  Status cancelled_if_asked();
  const Job* job_of(const std::string& name) const;
  Result<std::vector<std::vector<int32_t>>> calibration_windows(const Tokenizer& tokenizer) const;
  Status calibrate_stage(std::unique_ptr<StageRunner> runner,
                         const std::vector<std::vector<int32_t>>& windows,
                         const std::vector<std::vector<float>>& hidden);
  Status calibrate_input(const LinearInput& input, InputStatistics& statistics, const InputStatistics& held);
  Status restore_done();
  Status copy_beside();

  const Checkpoint& source_;
  const RotatedModel* const rotated_;
  const ModelConfig& config_;
  const QuantizeOptions& o_;
  const std::shared_ptr<Backend> backend_;
  const std::function<void(const LayerError&)>& on_layer_;
  const Progress& progress_;

  WeightScheme scheme_;
  std::vector<Job> jobs_;
  std::set<std::string> done_, channels_;
  std::vector<SafetensorsEntry> entries_;
  json::object described_;
  std::string partial_, key_;
  std::optional<SafetensorsWriter> writer_;
  TensorMap current_;  // tensors that replace the source's in the stage at work
  uint64_t bytes_done_ = 0, bytes_total_ = 0;
};

const Job* Work::job_of(const std::string& name) const {
  // Graphs call the head of a tied model by its own name, as targets do.
  for (const Job& job : jobs_) {
    if (job.target.name == name) return &job;
  }
  return nullptr;
}

Status Work::lay_out() {
  OAR_ASSIGN(scheme_, weight_scheme(o_.weights));
  if (scheme_.body.empty()) {
    return invalid_argument(cat("--weights ", o_.weights, " leaves nothing to quantize"), "weights");
  }
  OAR_ASSIGN(const std::vector<WeightTarget> targets, weight_targets(source_));
  std::set<std::string> replaced;
  for (const WeightTarget& target : targets) {
    const Tensor& tensor = source_.tensors.at(target.source);
    const auto format = target_format(scheme_, target, tensor);
    if (!format && target.role != WeightRole::kRouter && stays_plain(scheme_, tensor.shape().cols())) {
      report.uneven.push_back(
          {target.name, tensor.shape().rows(), tensor.shape().cols(), tensor.format().name()});
    }
    if (!format || format->plain()) continue;
    jobs_.push_back({target, *format, tensor});
    const int64_t rows = tensor.shape().rows(), row_bytes = *format->row_bytes(tensor.shape().cols());
    entries_.push_back({target.name, "U8", {rows, row_bytes}, static_cast<uint64_t>(rows * row_bytes)});
    described_[target.name] = {{"format", format->name()}, {"shape", {rows, tensor.shape().cols()}}};
    if (target.name == target.source) replaced.insert(target.name);
    bytes_total_ += tensor.bytes();
  }
  if (jobs_.empty()) {
    return invalid_argument(
        report.uneven.empty()
            ? "the model has no matrix in 16 or 32 bits to quantize; start from the model as it was trained"
            : cat("nothing would be quantized: ", uneven_text(report.uneven)));
  }
  if (channel_method()) {
    OAR_ASSIGN(const BuiltModel model, build_model(source_, config_, {}));
    for (const Node& n : model.graph.nodes()) {
      if (!n.is("rms_norm")) continue;
      const std::string& norm = model.graph.value(n.inputs[1]).name;
      const auto it = source_.tensors.find(norm);
      if (it == source_.tensors.end() || !channels_.insert(channels_of(norm)).second) continue;
      const int64_t count = it->second.numel();
      entries_.push_back({channels_of(norm), "F32", {count}, static_cast<uint64_t>(count) * sizeof(float)});
    }
  }
  const auto unchanged = [&](const std::string& name, const Tensor& tensor) -> Status {
    const std::string dtype =
        tensor.format().plain() ? safetensors_dtype(tensor.format().dtype()) : std::string();
    if (dtype.empty()) {
      return unimplemented(cat("tensor ", name, " is stored as ", tensor.format().name(),
                               "; quantize the model as it was trained, in 16 or 32 bits"));
    }
    std::vector<int64_t> shape(tensor.shape().begin(), tensor.shape().end());
    // Channel scales go into norms, which take them in f32 without loss.
    const bool widened = channel_method() && shape.size() == 1;
    entries_.push_back({name, widened ? "F32" : dtype, std::move(shape),
                        widened ? static_cast<uint64_t>(tensor.numel()) * 4 : tensor.bytes()});
    return ok_status();
  };
  for (const auto& [name, tensor] : source_.tensors)
    if (!replaced.contains(name)) OAR_RETURN_IF_ERROR(unchanged(name, tensor));
  // Draft heads read what a rotated model, or one with scaled channels, no longer writes.
  if (rotated_ != nullptr || channel_method()) {
    report.drafts = source_.drafts.size();
    return ok_status();
  }
  for (const auto& [name, tensor] : source_.drafts) OAR_RETURN_IF_ERROR(unchanged(name, tensor));
  return ok_status();
}

Status Work::begin(const std::string& out) {
  OAR_RETURN_IF_ERROR(lay_out());
  partial_ = out + ".partial";
  key_ = cat(o_.weights, " ", o_.method, " ", o_.rotate, " ", kRotationVersion, " ", o_.calibration_tokens,
             " ", o_.calibration_context, " ", o_.damping, " ", int{o_.activation_order}, " ",
             o_.smoothquant_alpha, " ", o_.calibration.size(), " ", std::hash<std::string>{}(o_.calibration),
             " ", fs::absolute(source_.source_path).string(), " ", source_.bytes);
  std::error_code ec;
  const std::string weights = partial_ + "/model.safetensors", journal = partial_ + "/progress.json";
  const std::map<std::string, std::string> metadata{{"format", "pt"}};
  if (fs::exists(journal, ec)) {
    OAR_ASSIGN(const std::string text, read_small_file(journal, uint64_t{64} << 20));
    OAR_ASSIGN(const json::value noted, parse_json(text, journal));
    const json::object* o = noted.if_object();
    const json::value* key = o != nullptr ? o->if_contains("key") : nullptr;
    const json::value* list = o != nullptr ? o->if_contains("done") : nullptr;
    if (key == nullptr || !key->is_string() || list == nullptr || !list->is_array() ||
        std::string_view(key->get_string()) != key_) {
      return Status(StatusCode::kAlreadyExists,
                    cat(partial_,
                        " is of an interrupted run with other settings; remove it, or repeat that "
                        "command to go on with it"));
    }
    OAR_ASSIGN(writer_, SafetensorsWriter::open(weights, entries_, metadata, true));
    for (const json::value& name : list->get_array()) {
      if (name.is_string()) done_.insert(std::string(name.get_string()));
    }
    report.resumed = done_.size();
    return restore_done();
  }
  fs::remove_all(partial_, ec);  // begun, but nothing noted
  if (!fs::create_directory(partial_, ec) || ec) {
    return unavailable(cat("cannot create ", partial_, ": ", ec ? ec.message() : "it exists"));
  }
  OAR_ASSIGN(writer_, SafetensorsWriter::open(weights, entries_, metadata, false));
  OAR_RETURN_IF_ERROR(write_unchanged());
  return note_done();
}

// What an earlier run did, mapped from its file: later layers are calibrated behind it.
Status Work::restore_done() {
  OAR_ASSIGN(Safetensors file, open_safetensors(partial_ + "/model.safetensors"));
  json::object finished;
  for (const std::string& name : done_) {
    if (const json::value* entry = described_.if_contains(name)) finished[name] = *entry;
  }
  OAR_RETURN_IF_ERROR(apply_formats(finished, file.tensors, partial_));
  for (const Job& job : jobs_) {
    if (!done_.contains(job.target.name)) continue;
    bytes_done_ += job.source.bytes();
    current_.insert_or_assign(job.target.name, file.tensors.at(job.target.name));
  }
  if (channel_method()) {  // norms with scales folded in
    for (const auto& [name, tensor] : file.tensors) {
      if (done_.contains(name) && tensor.shape().rank() == 1) current_.insert_or_assign(name, tensor);
    }
  }
  return ok_status();
}

Status Work::write_unchanged() {
  for (const SafetensorsEntry& entry : entries_) {
    if (described_.contains(entry.name)) continue;
    if (channels_.contains(entry.name)) {
      const std::vector<float> ones(static_cast<size_t>(entry.shape[0]), 1.f);
      OAR_RETURN_IF_ERROR(writer_->write(entry.name, ones.data(), entry.bytes));
      continue;
    }
    OAR_ASSIGN(Tensor tensor, load(entry.name));
    const DType stored = entry.dtype == "F32" ? DType::kF32 : given(entry.name).format().dtype();
    OAR_ASSIGN(tensor, converted(tensor, Format::of(stored), pool()));
    OAR_RETURN_IF_ERROR(writer_->write(entry.name, tensor.data(), tensor.bytes()));
  }
  return ok_status();
}

Status Work::note_done() {
  OAR_RETURN_IF_ERROR(writer_->sync());
  json::array list;
  for (const std::string& name : done_) list.push_back(json::value(name));
  return write_file_atomically(partial_ + "/progress.json",
                               json::serialize(json::object{{"key", key_}, {"done", std::move(list)}}));
}

Status Work::cancelled_if_asked() {
  if (!progress_ || progress_("quantizing", bytes_done_, bytes_total_)) return ok_status();
  return Status(StatusCode::kCancelled,
                cat("stopped; the same command goes on from ", partial_, ", or remove that folder"));
}

Status Work::done(const Job& job, const Tensor& tensor, LayerError error) {
  OAR_RETURN_IF_ERROR(writer_->write(job.target.name, tensor.data(), tensor.bytes()));
  error.name = job.target.name;
  if (on_layer_) on_layer_(error);
  report.layers.push_back(std::move(error));
  done_.insert(job.target.name);
  bytes_done_ += job.source.bytes();
  return cancelled_if_asked();
}

Status Work::without_data() {
  calibrate::FitOptions fit;
  fit.method = o_.method == "hqq" ? calibrate::FitMethod::kHqq : calibrate::FitMethod::kMse;
  uint64_t unsynced = 0;
  for (const Job& job : jobs_) {
    if (done_.contains(job.target.name)) continue;
    OAR_ASSIGN(const Tensor source, load(job.target.source));
    auto made = quantize_weight(source, job.format, fit, {}, pool());
    if (!made.ok()) {
      return Status(made.status().code(), cat("tensor ", job.target.source, ": ", made.status().message()));
    }
    const double relative = made->energy > 0 ? std::sqrt(made->error / made->energy) : 0;
    const Status status = done(job, made->tensor, {"", job.format.name(), relative, -1});
    unsynced += made->tensor.bytes();
    if (status.code() == StatusCode::kCancelled || unsynced > uint64_t{256} << 20) {
      OAR_RETURN_IF_ERROR(note_done());
      unsynced = 0;
    }
    OAR_RETURN_IF_ERROR(status);
  }
  return note_done();
}

Result<std::vector<std::vector<int32_t>>> Work::calibration_windows(const Tokenizer& tokenizer) const {
  PerplexityOptions cut;
  cut.context = std::min(o_.calibration_context, config_.max_context);
  OAR_ASSIGN(EvalWindows all, eval_windows(tokenizer, o_.calibration, cut));
  int64_t total = 0;
  for (const auto& w : all.windows) total += static_cast<int64_t>(w.size());
  // A long text is not read from its beginning alone: every k-th window.
  const auto keep =
      static_cast<size_t>(std::max<int64_t>(1, total / std::max<int64_t>(o_.calibration_tokens, 1)));
  std::vector<std::vector<int32_t>> out;
  int64_t kept = 0;
  for (size_t k = 0; k < all.windows.size(); k += keep) {
    kept += static_cast<int64_t>(all.windows[k].size());
    out.push_back(std::move(all.windows[k]));
  }
  if (kept < kCalibrationTokens) {
    return invalid_argument(
        cat("method ", o_.method, " needs at least ", kCalibrationTokens,
            " tokens to calibrate on and would get ", kept, " of the text's ", total, "; give a longer text",
            total < kCalibrationTokens ? "" : ", or raise --calibration-tokens"),
        "calibration");
  }
  return out;
}

Status Work::calibrate_input(const LinearInput& input, InputStatistics& statistics,
                             const InputStatistics& held) {
  std::vector<const Job*> jobs;
  for (const std::string& name : input.weights) {
    if (const Job* job = job_of(name); job != nullptr && !done_.contains(job->target.name))
      jobs.push_back(job);
  }
  std::vector<float> scale;
  if (channel_method() && !input.norm.empty() && jobs.size() == input.weights.size()) {
    std::vector<std::pair<Tensor, Format>> weights;
    for (const Job* job : jobs) {
      OAR_ASSIGN(Tensor source, load(job->target.source));
      weights.emplace_back(std::move(source), job->format);
    }
    OAR_ASSIGN(scale, channel_scales(o_, statistics, weights, pool()));
    std::vector<float> inverse(scale.size());
    std::transform(scale.begin(), scale.end(), inverse.begin(), [](float s) { return 1 / s; });
    OAR_ASSIGN(const Tensor unscaled, load(input.norm));
    OAR_ASSIGN(Tensor norm, scale_columns(unscaled, inverse));
    OAR_RETURN_IF_ERROR(writer_->write(input.norm, norm.data(), norm.bytes()));
    OAR_RETURN_IF_ERROR(writer_->write(channels_of(input.norm), scale.data(), scale.size() * sizeof(float)));
    current_.insert_or_assign(input.norm, std::move(norm));
    done_.insert(input.norm);  // noted with its stage, never without the matrices behind it
    statistics.divide(scale);
  }
  CalibratedQuantizer quantizer(o_, statistics, held, pool());
  for (const Job* job : jobs) {
    OAR_ASSIGN(Tensor w, load(job->target.source));
    if (!scale.empty()) { OAR_ASSIGN(w, scale_columns(w, scale)); }
    auto made = quantizer.quantize(w, job->format);
    if (!made.ok()) {
      return Status(made.status().code(), cat("tensor ", job->target.source, ": ", made.status().message()));
    }
    current_.insert_or_assign(job->target.name, made->tensor);
    OAR_RETURN_IF_ERROR(done(*job, made->tensor, made->error));
  }
  return ok_status();
}

Status Work::calibrate_stage(std::unique_ptr<StageRunner> runner,
                             const std::vector<std::vector<int32_t>>& windows,
                             const std::vector<std::vector<float>>& hidden) {
  const std::vector<LinearInput> inputs = runner->inputs();
  // Error feedback is judged by rows that it has not seen: the last tenth of each window.
  const int64_t tenth = o_.method == "gptq" ? 10 : INT64_MAX;
  std::vector<InputStatistics> statistics, held;
  std::vector<bool> wanted;
  for (const LinearInput& input : inputs) {
    wanted.push_back(std::any_of(input.weights.begin(), input.weights.end(), [&](const std::string& name) {
      const Job* job = job_of(name);
      return job != nullptr && !done_.contains(job->target.name);
    }));
    statistics.emplace_back(wanted.back() ? input.cols : 0);
    held.emplace_back(wanted.back() && tenth == 10 ? input.cols : 0);
  }
  if (std::none_of(wanted.begin(), wanted.end(), [](bool w) { return w; })) return ok_status();
  std::vector<float> stream;
  int64_t seen = 0;
  for (size_t w = 0; w < windows.size(); ++w) {
    stream = hidden[w];
    const auto count = static_cast<int64_t>(windows[w].size());
    const int64_t fitted = count - ((seen + count) / tenth - seen / tenth);
    seen += count;
    Status added;
    OAR_RETURN_IF_ERROR(runner->run(windows[w], stream, [&](size_t k, std::span<const float> rows) {
      if (!wanted[k] || !added.ok()) return;
      const auto split = static_cast<size_t>(fitted * inputs[k].cols);
      added = statistics[k].add(rows.first(split), *backend_);
      if (added.ok() && fitted < count) added = held[k].add(rows.subspan(split), *backend_);
    }));
    OAR_RETURN_IF_ERROR(added);
    OAR_RETURN_IF_ERROR(cancelled_if_asked());
  }
  runner.reset();  // a rotated layer in f32, which the factors need the room of
  for (size_t k = 0; k < statistics.size(); ++k) {
    if (!wanted[k]) continue;
    statistics[k].finish();
    held[k].finish();
    OAR_RETURN_IF_ERROR(calibrate_input(inputs[k], statistics[k], held[k]));
    statistics[k] = held[k] = InputStatistics(0);
  }
  return ok_status();
}

Status Work::with_data(const Tokenizer& tokenizer) {
  OAR_ASSIGN(const auto windows, calibration_windows(tokenizer));
  int64_t longest = 0;
  for (const auto& w : windows) longest = std::max(longest, static_cast<int64_t>(w.size()));
  OAR_ASSIGN(const size_t stages, count_stages(source_, config_));
  std::vector<std::vector<float>> hidden;
  for (const auto& w : windows) hidden.emplace_back(w.size() * static_cast<size_t>(config_.width));
  for (size_t stage = 0; stage < stages; ++stage) {
    const auto runner_now = [&]() -> Result<std::unique_ptr<StageRunner>> {
      Checkpoint now = source_;
      for (const auto& [name, tensor] : current_) now.tensors.insert_or_assign(name, tensor);
      return StageRunner::make(
          now, config_, stage, backend_, longest, [&](const std::string& name, Tensor t) {
            const bool rotate = rotated_ != nullptr && rotated_->changes(name) && !current_.contains(name);
            return rotate ? load(name) : Result<Tensor>(std::move(t));
          });
    };
    OAR_ASSIGN(auto runner, runner_now());
    const Status calibrated = calibrate_stage(std::move(runner), windows, hidden);
    // A cancelled stage keeps the matrices it finished; channel scales are all or nothing.
    if (!calibrated.ok()) return calibrated;
    OAR_RETURN_IF_ERROR(note_done());
    if (stage + 1 == stages) break;
    OAR_ASSIGN(runner, runner_now());
    for (size_t w = 0; w < windows.size(); ++w) {
      OAR_RETURN_IF_ERROR(runner->run(windows[w], hidden[w], {}));
      OAR_RETURN_IF_ERROR(cancelled_if_asked());
    }
    if (report.resumed == 0) current_.clear();
  }
  return without_data();  // what no stage's linear read: experts
}

// The terms of a model go with what is made of it, and what says how an encoder's states become vectors.
Status Work::copy_beside() {
  if (!is_folder(source_.source_path)) return ok_status();
  const auto copy = [&](const std::string& name) -> Status {
    OAR_ASSIGN(const auto file, MappedFile::open(cat(source_.source_path, "/", name)));
    const std::string_view bytes(reinterpret_cast<const char*>(file->data()), file->size());
    return write_file_atomically(cat(partial_, "/", name), bytes);
  };
  for (const std::string& name : files_in(source_.source_path)) {
    if (name.starts_with("LICENSE") || name.starts_with("NOTICE") || name.starts_with("USE_POLICY") ||
        name == "modules.json" || name == "sentence_bert_config.json")
      OAR_RETURN_IF_ERROR(copy(name));
  }
  std::error_code ec;
  for (fs::directory_iterator it(source_.source_path, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string module = it->path().filename().string();
    if (!module.ends_with("_Pooling") || !fs::is_regular_file(it->path() / "config.json", ec)) continue;
    fs::create_directory(fs::path(partial_) / module, ec);
    OAR_RETURN_IF_ERROR(copy(module + "/config.json"));
  }
  return ok_status();
}

Status Work::finish(const std::string& out) {
  json::object config = source_.config;
  for (const Job& job : jobs_) {
    if (job.target.name != job.target.source) config["tie_word_embeddings"] = false;
  }
  config["quantization_config"] = {{"quant_method", "oar"},
                                   {"version", kOarQuantVersion},
                                   {"weights", o_.weights},
                                   {"method", o_.method},
                                   {"tensors", described_}};
  if (const json::value* q = source_.config.if_contains("quantization_config")) {
    if (const json::value* rotation = q->as_object().if_contains("rotation")) {
      config["quantization_config"].as_object()["rotation"] = *rotation;
    }
  }
  OAR_RETURN_IF_ERROR(write_tokenizer_folder(source_.tokenizer, partial_));
  OAR_RETURN_IF_ERROR(copy_beside());
  std::error_code ec;
  OAR_RETURN_IF_ERROR(write_file_atomically(partial_ + "/config.json", json::serialize(config)));
  OAR_RETURN_IF_ERROR(writer_->sync());
  report.bytes = writer_->file_bytes();
  fs::remove(partial_ + "/progress.json", ec);
  OAR_RETURN_IF_ERROR(sync_folder(partial_));
  fs::rename(partial_, out, ec);
  if (ec) return unavailable(cat("cannot rename ", partial_, " to ", out, ": ", ec.message()));
  return sync_folder(fs::absolute(out).parent_path().string());
}

}  // namespace

std::vector<std::string> quantize_methods() { return {"rtn", "hqq", "gptq", "awq", "smoothquant"}; }

Result<QuantizeReport> quantize_model(const Checkpoint& source, const Tokenizer* tokenizer,
                                      const std::string& out, const QuantizeOptions& options,
                                      const std::function<void(const LayerError&)>& on_layer,
                                      const Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  const auto methods = quantize_methods();
  if (std::find(methods.begin(), methods.end(), options.method) == methods.end()) {
    std::string all;
    for (const auto& m : methods) all += (all.empty() ? "" : ", ") + m;
    return invalid_argument(cat("method '", options.method, "' is not one of ", all), "method");
  }
  const bool data = options.method != "rtn" && options.method != "hqq";
  if (data && (options.calibration.empty() || tokenizer == nullptr)) {
    return invalid_argument(
        cat("method ", options.method, " needs a text to calibrate on: --calibration FILE"), "calibration");
  }
  if (!data && !options.calibration.empty()) {
    return invalid_argument(cat("method ", options.method,
                                " takes no text to calibrate on; leave --calibration out, or choose --method "
                                "gptq, awq or smoothquant"),
                            "calibration");
  }
  std::error_code ec;
  if (out.empty() || fs::exists(out, ec)) {
    return Status(StatusCode::kAlreadyExists,
                  cat("the output folder ", out, " exists; give a new one, or remove it"));
  }
  OAR_ASSIGN(const Checkpoint checkpoint, unstack_experts(source));
  const bool encoder = is_encoder_config(checkpoint.config);
  if (encoder && data) {
    return invalid_argument(
        cat("method ", options.method, " calibrates language models; an encoder takes rtn or hqq"), "method");
  }
  ModelConfig config;
  if (encoder) {
    OAR_ASSIGN(config, read_encoder_config(checkpoint.config));
  } else {
    OAR_ASSIGN(config, read_model_config(checkpoint.config));
  }
  LanguageModelOptions machine;
  machine.threads = options.threads;
  OAR_ASSIGN(const std::shared_ptr<Backend> backend, make_backend(machine));
  std::optional<RotatedModel> rotated;
  OAR_ASSIGN(const RotationOptions wanted, parse_rotation(options.rotate));
  if (encoder && wanted.any())
    return invalid_argument("rotate: rotations are of language models; leave --rotate out", "rotate");
  bool transposed = false;
  if (!encoder) { OAR_ASSIGN(transposed, stores_transposed(checkpoint, config)); }
  if (wanted.any() || transposed) {
    OAR_ASSIGN(rotated, RotatedModel::make(checkpoint, config, wanted));
    OAR_ASSIGN(config, read_model_config(rotated->layout().config));
  }
  Work work(rotated ? rotated->layout() : checkpoint, rotated ? &*rotated : nullptr, config, options, backend,
            on_layer, progress);
  const auto run = [&]() -> Status {
    OAR_RETURN_IF_ERROR(work.begin(out));
    OAR_RETURN_IF_ERROR(data ? work.with_data(*tokenizer) : work.without_data());
    return work.finish(out);
  };
  if (const Status status = run(); !status.ok()) {
    // A stop keeps what is done; so does a folder that belongs to another run.
    if (status.code() != StatusCode::kCancelled && status.code() != StatusCode::kAlreadyExists)
      work.abandon();
    return status;
  }
  if (rotated) work.report.left_out = left_out_text(rotated->left_out());
  work.report.source_bytes = checkpoint.bytes;
  work.report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return work.report;
}

}  // namespace oar

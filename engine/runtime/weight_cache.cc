// quantize_at_load(): weights quantized once are written to a cache file and mapped at the next start.
//
// The file's name is a hash of what the result depends on: scheme, this code's version of the method, and the
// source tensors by name, shape, format and content. Content is sampled (up to 64 KiB of each tensor, evenly
// spread): reading all of a large model would cost the second that the cache is there to save. Files that
// differ where the sample does not look are told apart by their size and time of change. What the cache holds
// is not sampled: it is mapped only as it was sealed (sealed_file.h).
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "engine/base/format.h"
#include "engine/loader/oar_quantized.h"
#include "engine/loader/sealed_file.h"
#include "engine/models/encoder.h"
#include "engine/runtime/cache_folder.h"
#include "engine/runtime/content_hash.h"
#include "engine/runtime/quantize_weights.h"
#include "engine/runtime/rotated_model.h"

namespace oar {
namespace {

namespace fs = std::filesystem;

// Raise it when the same input would give other bytes.
constexpr int kCacheVersion = 3;

void add_source_files(ContentHash& hash, const std::string& path) {
  std::error_code ec;
  std::vector<fs::path> files;
  if (fs::is_directory(path, ec)) {
    for (fs::directory_iterator it(path, ec), end; !ec && it != end; it.increment(ec)) {
      const auto extension = it->path().extension();
      if (extension == ".safetensors" || extension == ".gguf") files.push_back(it->path());
    }
    std::sort(files.begin(), files.end());
  } else {
    files.emplace_back(path);
  }
  for (const fs::path& file : files) {
    struct stat info = {};
    if (stat(file.c_str(), &info) != 0) continue;
    hash.add(file.filename().string());
    hash.add(static_cast<int64_t>(info.st_size));
    hash.add(static_cast<int64_t>(info.st_mtim.tv_sec));
    hash.add(static_cast<int64_t>(info.st_mtim.tv_nsec));
  }
}

// A matrix that is not as in the file: a target of the scheme, or any other that a rotation or transposition
// changes.
struct Job {
  WeightTarget target;
  Format format;
  const Tensor* source = nullptr;  // before any rotation
};

// What is made, of what, how.
struct Work {
  std::vector<Job> jobs;
  WeightScheme scheme;
  const RotatedModel* rotated = nullptr;  // or none
  bool rotates = false, transposes = false;
};

// The numbers of a job: as they lie in the file, or rotated now.
Result<Tensor> source_of(const Work& work, const Job& job, ThreadPool& pool) {
  if (work.rotated == nullptr || !work.rotated->changes(job.target.source)) return *job.source;
  return work.rotated->tensor(job.target.source, pool);
}

// The quantized tensors go into the checkpoint in place of their sources.
void put(Checkpoint& checkpoint, const std::string& name, Tensor tensor) {
  checkpoint.tensors.insert_or_assign(name, std::move(tensor));
}

void finish(Checkpoint& checkpoint, const Work& work) {
  for (const Job& job : work.jobs) {
    if (job.target.name != job.target.source) checkpoint.config["tie_word_embeddings"] = false;
  }
  checkpoint.bytes = 0;
  for (const auto& [name, tensor] : checkpoint.tensors) checkpoint.bytes += tensor.bytes();
}

Status map_cached(const std::string& path, const std::vector<Job>& jobs, int threads,
                  Checkpoint& checkpoint) {
  OAR_ASSIGN(Safetensors file, open_sealed(path, threads));
  const auto described = file.metadata.find("oar");
  if (described == file.metadata.end()) return data_loss(cat(path, " is no cache of ours"));
  OAR_ASSIGN(const json::value formats, parse_json(described->second, path));
  if (!formats.is_object()) return data_loss(cat(path, " is no cache of ours"));
  OAR_RETURN_IF_ERROR(apply_formats(formats.get_object(), file.tensors, path));
  for (const Job& job : jobs) {
    const auto it = file.tensors.find(job.target.name);
    if (it == file.tensors.end() || !(it->second.format() == job.format) ||
        !(it->second.shape() == job.source->shape())) {
      return data_loss(cat(path, " lacks ", job.target.name));
    }
  }
  for (const Job& job : jobs) put(checkpoint, job.target.name, file.tensors.at(job.target.name));
  return ok_status();
}

// Calls `take` with each quantized tensor, in order.
template <class Take>
Status quantize_all(const Work& work, ThreadPool& pool, const Progress& progress, Take&& take) {
  uint64_t total = 0, done = 0;
  for (const Job& job : work.jobs) total += job.source->bytes();
  for (const Job& job : work.jobs) {
    OAR_ASSIGN(const Tensor source, source_of(work, job, pool));
    auto made = quantize_weight(source, job.format, {.method = work.scheme.method}, {}, pool);
    if (!made.ok()) {
      return Status(made.status().code(), cat("tensor ", job.target.source, ": ", made.status().message()));
    }
    OAR_RETURN_IF_ERROR(take(job, std::move(made->tensor)));
    job.source->buffer().release_pages();  // the mapping stays for what is read in place
    done += job.source->bytes();
    if (progress && !progress(cat("quantizing to ", work.scheme.name), done, total)) {
      return Status(StatusCode::kCancelled, "stopped");
    }
  }
  return ok_status();
}

Status write_cache(const std::string& path, const Work& work, uint64_t limit, ThreadPool& pool,
                   const Progress& progress) {
  uint64_t bytes = 0;
  json::object described;
  std::vector<SafetensorsEntry> entries;
  for (const Job& job : work.jobs) {
    const int64_t rows = job.source->shape().rows(), cols = job.source->shape().cols();
    const int64_t row_bytes = *job.format.row_bytes(cols);
    described[job.target.name] = {{"format", job.format.name()}, {"shape", {rows, cols}}};
    entries.push_back({job.target.name, "U8", {rows, row_bytes}, static_cast<uint64_t>(rows * row_bytes)});
    bytes += entries.back().bytes;
  }
  OAR_RETURN_IF_ERROR(make_room(fs::path(path).parent_path().string(), bytes, limit));
  return write_sealed(path, std::move(entries), {{"oar", json::serialize(described)}}, pool.workers(),
                      [&](SafetensorsWriter& writer) {
                        return quantize_all(work, pool, progress, [&](const Job& job, Tensor tensor) {
                          return writer.write(job.target.name, tensor.data(), tensor.bytes());
                        });
                      });
}

// The scheme's targets, then what else a rotation changes, as it is stored.
void add_jobs(std::span<const WeightTarget> targets, const TensorMap& sources, Work& work) {
  std::set<std::string> taken;
  for (const WeightTarget& target : targets) {
    const Tensor& source = sources.at(target.source);
    const auto format = target_format(work.scheme, target, source);
    if (!format) continue;
    work.jobs.push_back({target, *format, &source});
    taken.insert(target.name);
  }
  for (const auto& [name, source] : sources) {
    if (work.rotated == nullptr || !work.rotated->changes(name) || taken.contains(name)) continue;
    if (source.shape().rank() == 2) work.jobs.push_back({{name, name}, source.format(), &source});
  }
}

// From the cache, or made now and kept there.
Result<Checkpoint> quantize_targets(Checkpoint checkpoint, std::span<const WeightTarget> targets, Work work,
                                    const CacheOptions& cache, ThreadPool& pool, const Logger& log,
                                    const Progress& progress) {
  const RotatedModel* const rotated = work.rotated;
  const WeightScheme& scheme = work.scheme;
  // Sources stay alive and in place while results are put beside or over them.
  const TensorMap sources = checkpoint.tensors;
  add_jobs(targets, sources, work);
  if (std::none_of(work.jobs.begin(), work.jobs.end(), [](const Job& j) { return !j.format.plain(); })) {
    log(LogLevel::kWarning, nothing_to_quantize(scheme.name));
    if (rotated == nullptr) return checkpoint;
  }
  ContentHash hash;
  hash.add(cat("oar weights ", kCacheVersion, " ", scheme.name, " ", scheme.body, " ", scheme.head, " ",
               static_cast<int>(scheme.method)));
  if (work.rotates) {
    hash.add(cat(kRotationVersion, " ", json::serialize(checkpoint.config.at("quantization_config"))));
  }
  if (work.transposes) hash.add("transposed");
  for (const Job& job : work.jobs) {
    hash.add(cat(job.target.name, " ", job.format.name()));
    hash.add(*job.source);
  }
  // What a rotation changes besides matrices: norms whose weights moved into what reads them.
  for (const auto& [name, tensor] : sources) {
    if (rotated == nullptr || !rotated->changes(name) || tensor.shape().rank() == 2) continue;
    OAR_ASSIGN(Tensor changed, rotated->tensor(name, pool));
    put(checkpoint, name, std::move(changed));
  }
  add_source_files(hash, checkpoint.source_path);
  const std::string base = cache.folder.empty() ? default_cache_dir() : cache.folder;
  if (!base.empty() && cache.bytes > 0) {
    const std::string path = cat(base, "/weights/", hash.hex(), ".safetensors");
    std::error_code ec;
    if (fs::exists(path, ec)) {
      const Status mapped = map_cached(path, work.jobs, pool.workers(), checkpoint);
      if (mapped.ok()) {
        mark_used(path);
        finish(checkpoint, work);
        return checkpoint;
      }
      log(LogLevel::kWarning,
          cat("the cache ", path, " cannot be used (", mapped.message(), "); it is made anew"));
    }
    const Status written = write_cache(path, work, cache.bytes, pool, progress);
    if (written.ok()) {
      OAR_RETURN_IF_ERROR(map_cached(path, work.jobs, pool.workers(), checkpoint));
      log(LogLevel::kInfo, cat("weights quantized to ", scheme.name, " are kept in ", path));
      finish(checkpoint, work);
      return checkpoint;
    }
    if (written.code() == StatusCode::kCancelled || written.code() == StatusCode::kDataLoss) return written;
    log(LogLevel::kWarning, cat("quantized weights cannot be kept for the next start: ", written.message()));
  }
  OAR_RETURN_IF_ERROR(quantize_all(work, pool, progress, [&](const Job& job, Tensor tensor) {
    put(checkpoint, job.target.name, std::move(tensor));
    return ok_status();
  }));
  finish(checkpoint, work);
  return checkpoint;
}

}  // namespace

Result<Checkpoint> quantize_at_load(Checkpoint checkpoint, const std::string& weights,
                                    const CacheOptions& cache, ThreadPool& pool, const Logger& log,
                                    const Progress& progress, const std::string& rotate) {
  Work work;
  OAR_ASSIGN(work.scheme, weight_scheme(weights));
  if (work.scheme.by_kernel) return checkpoint;
  std::optional<RotatedModel> rotated;
  RotationOptions wanted;
  if (rotate != "auto") {  // which asks for online transforms at most
    OAR_ASSIGN(wanted, parse_rotation(rotate));
    wanted.named = false;  // who builds the graph judges it, and may still find a place
    if (!rotates_weights(checkpoint, wanted)) wanted = {};
  }
  // Neither rotations nor layers stored as (in, out) are known of encoders.
  if (!is_encoder_config(checkpoint.config)) {
    OAR_ASSIGN(checkpoint, unstack_experts(std::move(checkpoint)));
    OAR_ASSIGN(const ModelConfig config, read_model_config(checkpoint.config));
    work.rotates = wanted.any();
    OAR_ASSIGN(work.transposes, stores_transposed(checkpoint, config));
    if (work.rotates || work.transposes) {
      OAR_ASSIGN(rotated, RotatedModel::make(checkpoint, config, wanted));
      checkpoint = rotated->layout();
      work.rotated = &*rotated;
    }
  }
  OAR_ASSIGN(const std::vector<WeightTarget> targets, weight_targets(checkpoint));
  return quantize_targets(std::move(checkpoint), targets, std::move(work), cache, pool, log, progress);
}

Status quantize_graph_at_load(Graph& graph, const std::string& source_path, const std::string& weights,
                              const CacheOptions& cache, ThreadPool& pool, const Logger& log) {
  Work work;
  OAR_ASSIGN(work.scheme, weight_scheme(weights));
  if (work.scheme.by_kernel) return ok_status();
  Checkpoint layers;
  layers.source_path = source_path;
  for (size_t v = 0; v < graph.num_values(); ++v) {
    const Value& value = graph.value(static_cast<ValueId>(v));
    if (value.kind == ValueKind::kConstant) layers.tensors.insert_or_assign(value.name, value.constant);
  }
  const std::vector<WeightTarget> targets = weight_targets(graph, layers.tensors);
  OAR_ASSIGN(layers, quantize_targets(std::move(layers), targets, std::move(work), cache, pool, log, {}));
  std::set<std::string> names;
  for (const WeightTarget& target : targets) names.insert(target.name);
  for (size_t v = 0; v < graph.num_values(); ++v) {
    Value& value = graph.value(static_cast<ValueId>(v));
    if (value.kind != ValueKind::kConstant || !names.contains(value.name)) continue;
    value.constant = layers.tensors.at(value.name);
    value.type.format = value.constant.format();
  }
  return ok_status();
}

}  // namespace oar

#include "engine/runtime/prepared_model.h"

#include <sys/stat.h>

#include <filesystem>

#include "engine/base/format.h"
#include "engine/graph/graph_json.h"
#include "engine/loader/sealed_file.h"
#include "engine/runtime/cache_folder.h"
#include "engine/runtime/content_hash.h"
#include "engine/tensor/element.h"
#include "engine/tensor/mapped_file.h"
#include "kernels/kernel.h"

namespace oar {
namespace {

namespace fs = std::filesystem;

// Raise it when a graph op, a pass or a packed layout changes what it means.
constexpr int kFormatVersion = 8;
// Every stored tensor begins at a multiple of this: what kernels want of packed weights.
constexpr uint64_t kAlignment = Buffer::kAlignment;

Status damaged(const std::string& why) { return data_loss(cat("the entry is damaged (", why, ")")); }

// What tells that a file is still the one that was read.
Result<json::object> identity(const std::string& path) {
  struct stat s = {};
  if (stat(path.c_str(), &s) != 0) return not_found(cat("cannot find ", path));
  return json::object{{"path", json_bytes(path)},
                      {"size", static_cast<int64_t>(s.st_size)},
                      {"seconds", static_cast<int64_t>(s.st_mtim.tv_sec)},
                      {"nanoseconds", static_cast<int64_t>(s.st_mtim.tv_nsec)}};
}

json::array specs_to_json(const std::vector<IoSpec>& specs) {
  json::array out;
  for (const IoSpec& s : specs) {
    json::array dims;
    for (const IoDim& d : s.dims) dims.emplace_back(json::array{d.value, json_bytes(d.name), d.usual});
    out.emplace_back(json::object{{"name", json_bytes(s.name)},
                                  {"kind", static_cast<int64_t>(s.kind)},
                                  {"type", s.typed ? dtype_name(s.dtype) : ""},
                                  {"ranked", s.ranked},
                                  {"dims", std::move(dims)}});
  }
  return out;
}

// Members of objects that save() wrote; std::exception otherwise, which load() turns into DATA_LOSS.
std::string text_at(const json::value& v, const char* key) { return bytes_of_json(v.at(key)).value(); }

std::vector<IoSpec> specs_from_json(const json::value& list) {
  std::vector<IoSpec> out;
  for (const json::value& v : list.as_array()) {
    IoSpec s;
    s.name = text_at(v, "name");
    s.kind = static_cast<IoSpec::Kind>(v.at("kind").as_int64());
    const auto dtype = parse_dtype(std::string_view(v.at("type").as_string()));
    s.typed = dtype.has_value();
    if (dtype) s.dtype = *dtype;
    s.ranked = v.at("ranked").as_bool();
    for (const json::value& d : v.at("dims").as_array()) {
      s.dims.push_back({d.at(0).as_int64(), bytes_of_json(d.at(1)).value(), d.at(2).as_int64()});
    }
    out.push_back(std::move(s));
  }
  return out;
}

uint64_t padded(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Tensors of the file are plain bytes; their shapes and types, and the names under which they lie there, are
// in the description. Those that share bytes there share them in memory.
Status restore(const json::value& described, const Safetensors& file, NamedTensors& tensors) {
  for (const auto& member : described.as_object()) {
    const auto it = file.tensors.find(std::string_view(member.value().at(2).as_string()));
    std::vector<int64_t> dims;
    for (const auto& d : member.value().at(1).as_array()) dims.push_back(d.as_int64());
    const auto dtype = parse_dtype(std::string_view(member.value().at(0).as_string()));
    if (it == file.tensors.end() || !dtype || *dtype == DType::kString || *dtype == DType::kBytes) {
      return damaged("a tensor is missing");
    }
    OAR_ASSIGN(const Shape shape, checked_shape(dims));
    OAR_ASSIGN(const uint64_t bytes, element_bytes(shape, *dtype, UINT64_MAX));
    if (bytes > it->second.bytes()) return damaged("a tensor is too short");
    OAR_ASSIGN(Tensor t, Tensor::make(shape, element_format(*dtype), it->second.buffer().slice(0, bytes)));
    tensors[std::string(member.key())] = std::move(t);
  }
  return ok_status();
}

Result<PreparedModel> parse(const Safetensors& file) {
  const auto text = file.metadata.find("oar.model");
  if (text == file.metadata.end()) return damaged("no description");
  OAR_ASSIGN(const json::value root, parse_json(text->second, "a prepared model", {.max_depth = 1024}));
  NamedTensors constants, packed;
  OAR_RETURN_IF_ERROR(restore(root.at("constants"), file, constants));
  OAR_RETURN_IF_ERROR(restore(root.at("packed"), file, packed));
  for (const json::value& f : root.at("files").as_array()) {
    OAR_ASSIGN(const json::object now, identity(text_at(f, "path")));
    if (!(now == f.as_object())) return not_found(cat(text_at(f, "path"), " has changed"));
  }
  PreparedModel out;
  out.model.inputs = specs_from_json(root.at("inputs"));
  out.model.outputs = specs_from_json(root.at("outputs"));
  out.model.format = text_at(root, "format");
  out.model.producer = text_at(root, "producer");
  for (const json::value& m : root.at("metadata").as_array()) {
    out.model.metadata.emplace_back(bytes_of_json(m.at(0)).value(), bytes_of_json(m.at(1)).value());
  }
  for (const json::value& p : root.at("passes").as_array()) {
    out.passes.push_back({text_at(p, "name"), static_cast<int>(p.at("rewrites").as_int64()),
                          static_cast<size_t>(p.at("before").as_int64()),
                          static_cast<size_t>(p.at("after").as_int64()), p.at("off").as_bool()});
  }
  OAR_ASSIGN(out.model.graph, graph_from_json(root.at("graph"), constants, [&](Graph& g, size_t k) {
               return k < out.model.inputs.size() ? add_graph_input(g, out.model.inputs[k]) : kNoValue;
             }));
  if (out.model.graph->inputs().size() != out.model.inputs.size() ||
      out.model.graph->outputs().size() != out.model.outputs.size()) {
    return damaged("inputs or outputs are missing");
  }
  out.packed = {std::move(packed), true};
  return out;
}

// By tensor, the one whose bytes stand in the file for its own: what several nodes read is stored once.
std::map<std::string, std::string> stored_names(const NamedTensors& tensors) {
  std::map<std::string, std::string> out;
  std::map<std::pair<const void*, uint64_t>, std::string> first;
  for (const auto& [name, t] : tensors)
    out[name] = t.bytes() == 0 ? name : first.try_emplace({t.data(), t.bytes()}, name).first->second;
  return out;
}

json::object describe(const NamedTensors& tensors, const std::map<std::string, std::string>& stored) {
  json::object out;
  for (const auto& [name, t] : tensors) {
    out[name] = json::array{dtype_name(t.format().dtype()), json::array(t.shape().begin(), t.shape().end()),
                            stored.at(name)};
  }
  return out;
}

}  // namespace

Result<std::string> prepared_model_path(const std::string& cache_dir, const std::string& path,
                                        const std::set<std::string>& disabled_passes, Precision precision,
                                        std::string_view backend, std::string_view calibration) {
  std::error_code ec;
  const std::string absolute = fs::weakly_canonical(path, ec).string();
  OAR_ASSIGN(const json::object file, identity(absolute));
  ContentHash hash;
  hash.add(cat("oar prepared model ", kFormatVersion, " ", backend, " ", sizeof(void*)));
  hash.add(json::serialize(file));
  for (const Pass& pass : tensor_passes()) hash.add(std::string_view(pass.name));
  hash.add(std::string_view(precision_name(precision)));
  if (!calibration.empty()) hash.add(cat("calibration ", calibration));
  // Also names that are none: the load that finds no entry then refuses them.
  for (const std::string& name : disabled_passes) hash.add(cat(name, " off"));
  if (fs::is_regular_file(absolute, ec)) {
    OAR_ASSIGN(const auto mapped, MappedFile::open(absolute, {.will_need = false, .huge_pages = false}));
    const auto bytes = static_cast<int64_t>(mapped->size());
    OAR_ASSIGN(const Tensor whole,
               Tensor::make({bytes}, Format::of(DType::kU8), file_slice(mapped, 0, mapped->size())));
    hash.add(whole);
  }
  return cat(cache_dir, "/prepared/", hash.hex(), ".safetensors");
}

Result<PreparedModel> load_prepared_model(const std::string& entry, int threads) {
  std::error_code ec;
  if (!fs::exists(entry, ec)) return not_found(cat("there is no ", entry));
  auto file = open_sealed(entry, threads);
  if (!file.ok()) return damaged(file.status().message());
  try {
    auto prepared = parse(*file);
    if (prepared.ok()) mark_used(entry);
    return prepared;
  } catch (const std::exception& e) { return damaged(e.what()); }  // of at() and as_*(): a member is missing
}

Status save_prepared_model(const std::string& entry, const PreparedModel& prepared, uint64_t limit,
                           int threads) {
  const ImportedModel& m = prepared.model;
  NamedTensors tensors;
  OAR_ASSIGN(json::object graph, graph_to_json(*m.graph, "", tensors));
  json::array files, metadata, passes;
  for (const std::string& path : m.files) {
    std::error_code ec;
    // Not where it really lies: a link may be turned to another file.
    OAR_ASSIGN(json::object file, identity(fs::absolute(path, ec).string()));
    files.emplace_back(std::move(file));
  }
  for (const auto& [key, value] : m.metadata) {
    metadata.emplace_back(json::array{json_bytes(key), json_bytes(value)});
  }
  for (const PassReport& p : prepared.passes) {
    passes.emplace_back(json::object{{"name", p.name},
                                     {"rewrites", p.rewrites},
                                     {"before", static_cast<int64_t>(p.nodes_before)},
                                     {"after", static_cast<int64_t>(p.nodes_after)},
                                     {"off", p.disabled}});
  }
  NamedTensors all = tensors;
  all.insert(prepared.packed.tensors.begin(), prepared.packed.tensors.end());
  const std::map<std::string, std::string> stored = stored_names(all);
  const std::string text = json::serialize(json::object{{"graph", std::move(graph)},
                                                        {"constants", describe(tensors, stored)},
                                                        {"packed", describe(prepared.packed.tensors, stored)},
                                                        {"inputs", specs_to_json(m.inputs)},
                                                        {"outputs", specs_to_json(m.outputs)},
                                                        {"format", json_bytes(m.format)},
                                                        {"producer", json_bytes(m.producer)},
                                                        {"metadata", std::move(metadata)},
                                                        {"files", std::move(files)},
                                                        {"passes", std::move(passes)}});
  std::erase_if(all, [&](const auto& entry) { return stored.at(entry.first) != entry.first; });
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, t] : all) {
    // Sizes that are multiples of the alignment keep every tensor aligned (safetensors_writer.h).
    const uint64_t bytes = padded(t.bytes());
    entries.push_back({name, "U8", {static_cast<int64_t>(bytes)}, bytes});
  }
  uint64_t total = text.size();
  for (const SafetensorsEntry& e : entries) total += e.bytes;
  OAR_RETURN_IF_ERROR(make_room(fs::path(entry).parent_path().string(), total, limit));
  return write_sealed(entry, std::move(entries), {{"oar.model", text}}, threads,
                      [&](SafetensorsWriter& writer) -> Status {
                        for (const auto& [name, t] : all) {
                          OAR_RETURN_IF_ERROR(writer.write(name, t.data(), t.bytes()));
                        }
                        return ok_status();
                      });
}

}  // namespace oar

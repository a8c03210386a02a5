#include "server/repository/scan.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "engine/runtime/text_encoder.h"

namespace oar {
namespace {

namespace fs = std::filesystem;
using api::ModelKind;

bool is_file(const fs::path& p) {
  std::error_code ec;
  return fs::is_regular_file(p, ec);
}
bool is_folder(const fs::path& p) {
  std::error_code ec;
  return fs::is_directory(p, ec);
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec))
    out.push_back(it->path());
  std::sort(out.begin(), out.end());
  return out;
}

// The only file in the folder with that extension, or nothing.
fs::path only_file(const fs::path& folder, const char* extension) {
  fs::path found;
  for (const fs::path& p : entries(folder)) {
    if (p.extension() != extension || !is_file(p)) continue;
    if (!found.empty()) return {};
    found = p;
  }
  return found;
}

constexpr const char* kPaddleFiles[] = {"inference.json", "inference.pdmodel", "model.json", "model.pdmodel",
                                        "__model__"};

// The ordinary model in a folder: an ONNX file, or the folder itself for Paddle.
fs::path tensor_model_in(const fs::path& folder, const std::string& file) {
  if (!file.empty()) return is_file(folder / file) ? folder / file : fs::path();
  if (is_file(folder / "model.onnx")) return folder / "model.onnx";
  for (const char* name : kPaddleFiles)
    if (is_file(folder / name)) return folder;
  if (fs::path p = only_file(folder, ".onnx"); !p.empty()) return p;
  if (fs::path p = only_file(folder, ".pdmodel"); !p.empty()) return p;
  return {};
}

bool has_tokenizer(const fs::path& folder) {
  return is_file(folder / "tokenizer.json") || is_file(folder / "vocab.txt");
}

bool has_weights(const fs::path& folder) {
  for (const fs::path& p : entries(folder))
    if (p.extension() == ".safetensors" && is_file(p)) return true;
  return false;
}

// A folder of Hugging Face's layout, whose config.json says which of the two kinds it is, or a GGUF file.
FoundModel checkpoint_in(const fs::path& folder) {
  FoundModel out;
  if (const fs::path gguf = only_file(folder, ".gguf"); !gguf.empty()) {
    out.kind = ModelKind::kLanguage;
    out.versions.emplace_back(1, gguf.string());
  } else if (is_file(folder / "config.json") && has_weights(folder)) {
    out.kind = is_text_encoder(folder.string()) ? ModelKind::kEncoder : ModelKind::kLanguage;
    out.versions.emplace_back(1, folder.string());
  }
  return out;
}

bool version_number(const std::string& name, int64_t& out) {
  const auto r = std::from_chars(name.data(), name.data() + name.size(), out);
  return r.ec == std::errc() && r.ptr == name.data() + name.size() && out > 0 && name[0] != '0';
}

bool is_tensor_file(const fs::path& p) {
  const fs::path e = p.extension();
  return e == ".onnx" || e == ".pdmodel" || p.filename() == "__model__" ||
         (e == ".json" && is_file(fs::path(p).replace_extension(".pdiparams")));
}

// "model.onnx" says nothing: then the folder gives the name, and the folder above when that is a version.
std::string name_of(const fs::path& given) {
  std::error_code ec;
  fs::path p = fs::absolute(given, ec).lexically_normal();
  if (!p.has_filename()) p = p.parent_path();
  if (is_file(p)) {
    const std::string stem = p.stem().string();
    if (stem != "model" && stem != "inference" && stem != "__model__") return stem;
    p = p.parent_path();
  }
  int64_t version;
  if (version_number(p.filename().string(), version)) p = p.parent_path();
  return p.filename().string();
}

}  // namespace

bool is_model_name(const std::string& name) {
  if (name.empty() || name.size() > 255 || name[0] == '.') return false;
  return std::none_of(name.begin(), name.end(), [](char c) {
    return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
}

FoundModel find_model_at(const std::string& path, const std::string& file) {
  const fs::path p(path);
  FoundModel out;
  out.name = name_of(p);
  out.path = path;
  if (is_file(p)) {
    if (is_tensor_file(p)) {
      out.kind = ModelKind::kTensor;
      out.versions.emplace_back(1, path);
    } else if (p.extension() == ".safetensors" && is_text_encoder(p.parent_path().string())) {
      out.kind = ModelKind::kEncoder;
      out.versions.emplace_back(1, p.parent_path().string());
    } else if (p.extension() == ".gguf" || p.extension() == ".safetensors" || p.extension() == ".bin") {
      out.kind = ModelKind::kLanguage;
      out.versions.emplace_back(1, path);
    }
    return out;
  }
  if (!is_folder(p)) return out;
  if (is_file(p / "config.pbtxt")) out.config = (p / "config.pbtxt").string();
  const auto of_kind = [&](ModelKind kind, int64_t version, std::string where) {
    out.kind = kind;
    out.versions.emplace_back(version, std::move(where));
  };
  if (FoundModel c = checkpoint_in(p); c.kind != ModelKind::kNone) {
    of_kind(c.kind, 1, c.versions[0].second);
    return out;
  }
  const fs::path own = tensor_model_in(p, file);
  if (!own.empty() || is_file(p / "onnx/model.onnx")) {
    // Beside a tokenizer, a graph is an encoder of texts; the folder says how its vectors are pooled.
    if (has_tokenizer(p)) {
      of_kind(ModelKind::kEncoder, 1, path);
    } else if (!own.empty()) {
      of_kind(ModelKind::kTensor, 1, own.string());
    }
    return out;
  }
  for (const fs::path& sub : entries(p)) {
    int64_t version;
    if (!is_folder(sub) || !version_number(sub.filename().string(), version)) continue;
    if (const FoundModel c = checkpoint_in(sub); c.kind != ModelKind::kNone) {
      of_kind(c.kind, version, c.versions[0].second);
    } else if (const fs::path model = tensor_model_in(sub, file); !model.empty()) {
      of_kind(has_tokenizer(sub) ? ModelKind::kEncoder : ModelKind::kTensor, version,
              has_tokenizer(sub) ? sub.string() : model.string());
    }
  }
  std::sort(out.versions.begin(), out.versions.end());
  if (out.kind != ModelKind::kTensor && out.versions.size() > 1)
    out.versions.erase(out.versions.begin(), out.versions.end() - 1);
  return out;
}

int64_t newest_version_in(const std::string& folder) {
  int64_t newest = 1, version;
  for (const fs::path& sub : entries(folder))
    if (is_folder(sub) && version_number(sub.filename().string(), version))
      newest = std::max(newest, version);
  return newest;
}

std::string find_graph_in(const std::string& folder) {
  if (const fs::path graph = tensor_model_in(folder, {}); !graph.empty()) return graph.string();
  const fs::path exported = fs::path(folder) / "onnx/model.onnx";
  return is_file(exported) ? exported.string() : std::string();
}

std::vector<FoundModel> find_models_in(const std::string& path) {
  std::vector<FoundModel> out;
  for (const fs::path& sub : entries(path)) {
    if (!is_folder(sub) || !is_model_name(sub.filename().string())) continue;
    int64_t version;
    if (version_number(sub.filename().string(), version)) return {};  // a model's versions
    FoundModel found = find_model_at(sub.string());
    // A folder with a config is meant to be a model, also when its file has another name or is missing.
    if (found.kind == ModelKind::kNone && found.config.empty()) continue;
    found.name = sub.filename().string();
    out.push_back(std::move(found));
  }
  return out;
}

}  // namespace oar

#include "engine/runtime/model_path.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "engine/base/format.h"
#include "engine/tensor/mapped_file.h"

namespace oar {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEmbeddedDemo = "embedded:demo";

bool is_there(const fs::path& path) {
  std::error_code ec;
  return fs::exists(path, ec);
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::string join(const std::vector<fs::path>& paths) {
  std::string out;
  for (const fs::path& p : paths) out += (out.empty() ? "" : ", ") + p.string();
  return out;
}

Result<std::string> find_demo() {
  std::vector<fs::path> tried;
  if (const std::string set = environment("OAR_DEMO"); !set.empty()) {
    if (is_there(set)) return set;
    return not_found(
        cat("OAR_DEMO names ", set, ", which does not exist; unset it or set it to a model folder"));
  }
  if (is_folder(kEmbeddedDemo)) return std::string(kEmbeddedDemo);
  // Beside the program; in a program that embeds liboar.so, beside the library: lib/ or lib/<triplet>/.
  std::error_code ec;
  const fs::path program = fs::read_symlink("/proc/self/exe", ec);
  if (!ec) tried.push_back(program.parent_path().parent_path() / "share/oar/demo");
  Dl_info self = {};
  if (dladdr(reinterpret_cast<const void*>(&resolve_model_path), &self) != 0 && self.dli_fname != nullptr) {
    const fs::path library = fs::canonical(self.dli_fname, ec);
    if (!ec && library != program) {
      tried.push_back(library.parent_path().parent_path() / "share/oar/demo");
      tried.push_back(library.parent_path().parent_path().parent_path() / "share/oar/demo");
    }
  }
#ifdef OAR_SOURCE_DEMO
  tried.emplace_back(OAR_SOURCE_DEMO);
#endif
  for (const fs::path& p : tried) {
    if (is_there(p)) return p.string();
  }
  return not_found(cat("the embedded default model `demo` was found in none of ", join(tried),
                       "; set OAR_DEMO to its folder"));
}

fs::path hub_folder(const std::string& cache_dir) {
  if (!cache_dir.empty()) return cache_dir;
  if (const std::string hub = environment("HF_HUB_CACHE"); !hub.empty()) return hub;
  if (const std::string home = environment("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  if (const std::string home = environment("HOME"); !home.empty())
    return fs::path(home) / ".cache/huggingface/hub";
  return {};
}

// "org/name", both of the characters the hub allows, so that the name cannot leave the cache folder.
bool is_hub_name(std::string_view model) {
  const size_t slash = model.find('/');
  if (slash == std::string_view::npos || slash == 0 || slash + 1 == model.size()) return false;
  if (model.find('/', slash + 1) != std::string_view::npos || model.find("..") != std::string_view::npos)
    return false;
  for (char c : model) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!letter && c != '-' && c != '_' && c != '.' && c != '/') return false;
  }
  return model[0] != '.' && model[slash + 1] != '.';
}

Result<std::string> find_in_hub(const std::string& model, const fs::path& hub) {
  std::string folder = "models--" + model;
  folder.replace(folder.find('/'), 1, "--");
  const fs::path repository = hub / folder;
  if (!is_there(repository)) {
    return not_found(cat("no file or folder ", model, ", and no downloaded model of that name (",
                         repository.string(), "); download it first, or give a path or `demo`"));
  }
  OAR_ASSIGN(std::string revision, read_small_file((repository / "refs/main").string(), 4096));
  while (!revision.empty() && (revision.back() == '\n' || revision.back() == ' ')) revision.pop_back();
  if (revision.find('/') != std::string::npos || revision.empty() || revision[0] == '.') {
    return data_loss(cat((repository / "refs/main").string(), " holds no revision"));
  }
  const fs::path snapshot = repository / "snapshots" / revision;
  if (!is_there(snapshot)) {
    return not_found(
        cat("the download of ", model, " is incomplete: ", snapshot.string(), " does not exist"));
  }
  return snapshot.string();
}

}  // namespace

Result<ResolvedModel> resolve_model(const std::string& model, const std::string& cache_dir) {
  if (model.empty()) return invalid_argument("the model is empty; give a folder, a file or `demo`", "model");
  if (is_there(model)) {
    std::error_code ec;
    fs::path absolute = fs::absolute(model, ec).lexically_normal();
    if (!absolute.has_filename()) absolute = absolute.parent_path();
    return ResolvedModel{model, absolute.filename().string()};
  }
  if (model == "demo" || model == kEmbeddedDemo) {
    OAR_ASSIGN(std::string path, find_demo());
    return ResolvedModel{std::move(path), "demo"};
  }
  if (const fs::path hub = hub_folder(cache_dir); is_hub_name(model) && !hub.empty()) {
    OAR_ASSIGN(std::string path, find_in_hub(model, hub));
    return ResolvedModel{std::move(path), model};
  }
  return not_found(
      cat("no file or folder ", model,
          "; give a folder in the Hugging Face layout, a .gguf, .safetensors or llama2.c .bin file, or "
          "`demo`"));
}

Result<std::string> resolve_model_path(const std::string& model) {
  OAR_ASSIGN(ResolvedModel resolved, resolve_model(model));
  return std::move(resolved.path);
}

}  // namespace oar

#include "engine/runtime/kv_decision.h"

#include <cmath>
#include <filesystem>

#include "engine/base/format.h"
#include "engine/graph/passes/serve.h"
#include "engine/loader/byte_reader.h"
#include "engine/loader/file_writer.h"
#include "engine/runtime/content_hash.h"
#include "engine/tensor/embedded_files.h"
#include "engine/tensor/mapped_file.h"

namespace oar {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kVersion = 2;  // 1 counted positions that see no quantized page
constexpr const char* kFile = "oar-kv.json";

// Empty for a model that lies in the program.
std::string beside_path(const Checkpoint& checkpoint) {
  if (checkpoint.source_path.starts_with(kEmbeddedPrefix)) return {};
  std::error_code ec;
  fs::path folder = checkpoint.source_path;
  if (!fs::is_directory(folder, ec)) folder = folder.parent_path();
  return (folder / kFile).string();
}

std::string cached_path(const std::string& cache_dir, const std::string& identity) {
  const std::string base = cache_dir.empty() ? default_cache_dir() : cache_dir;
  return base.empty() ? std::string() : cat(base, "/kv/", identity, ".json");
}

Status check_tiers(std::string_view kv) {
  for (;;) {
    const size_t end = kv.find('/');
    OAR_RETURN_IF_ERROR(kv_format(kv.substr(0, end)).status());
    if (end == std::string_view::npos) return ok_status();
    kv.remove_prefix(end + 1);
  }
}

// A file's text is the decision's with a checksum of all the rest as its first field. The text is hashed and
// not the parsed numbers: reading a double may round its last bit.
constexpr std::string_view kChecksum = "{\"checksum\":\"";

std::string checksum_of(std::string_view text) {
  ContentHash hash;
  hash.add(text);
  return hash.hex();
}

std::string with_checksum(const std::string& text) {
  return cat(kChecksum, checksum_of(text), "\",", text.substr(1));
}

Status verify_checksum(std::string_view text) {
  if (!text.starts_with(kChecksum)) return invalid_argument("it has no checksum", "checksum");
  text.remove_prefix(kChecksum.size());
  const size_t end = text.find("\",");
  const std::string_view written = text.substr(0, end);
  if (end == std::string_view::npos || checksum_of(cat("{", text.substr(end + 2))) != written)
    return invalid_argument("its checksum is wrong, so it is damaged", "checksum");
  return ok_status();
}

}  // namespace

json::object kv_decision_json(const KvDecision& d, const std::string& identity) {
  return {{"version", kVersion},     {"model", identity},      {"kv", d.kv},
          {"max_kld", d.max_kld},    {"mean_kld", d.mean_kld}, {"kv_bits", d.kv_bits},
          {"positions", d.positions}};
}

Result<KvDecision> read_kv_decision(const json::value& stored, const std::string& identity) {
  const json::object* o = stored.if_object();
  const auto field = [&](const char* name) { return o != nullptr ? o->if_contains(name) : nullptr; };
  const auto wrong = [](const char* name, const char* why) {
    return invalid_argument(cat("the field ", name, " ", why), name);
  };
  const json::value* version = field("version");
  if (version == nullptr || !version->is_int64() || version->get_int64() != kVersion) {
    return wrong("version", "is not 2");
  }
  const json::value* model = field("model");
  if (model == nullptr || !model->is_string() || std::string_view(model->get_string()) != identity) {
    return wrong("model", "is that of another model");
  }
  KvDecision out;
  const json::value* kv = field("kv");
  if (kv == nullptr || !kv->is_string()) return wrong("kv", "is no string");
  out.kv = kv->get_string();
  OAR_RETURN_IF_ERROR(check_tiers(out.kv));
  for (const auto& [name, to] :
       {std::pair{"max_kld", &out.max_kld}, {"mean_kld", &out.mean_kld}, {"kv_bits", &out.kv_bits}}) {
    const json::value* v = field(name);
    if (v == nullptr || !v->is_number()) return wrong(name, "is no number");
    *to = v->to_number<double>();
    if (!std::isfinite(*to) || *to < 0) return wrong(name, "is out of range");
  }
  const json::value* positions = field("positions");
  if (positions == nullptr || !positions->is_int64() || positions->get_int64() < 0) {
    return wrong("positions", "is no count");
  }
  out.positions = positions->get_int64();
  return out;
}

std::optional<KvDecision> find_kv_decision(const Checkpoint& checkpoint, const std::string& cache_dir,
                                           const Logger& log) {
  const std::string beside = beside_path(checkpoint);
  std::string identity;
  for (const bool cached : {false, true}) {
    if (identity.empty()) identity = model_identity(checkpoint);
    const std::string path = cached ? cached_path(cache_dir, identity) : beside;
    std::error_code ec;
    if (path.empty() || !fs::exists(path, ec)) continue;
    const auto read = [&]() -> Result<KvDecision> {
      OAR_ASSIGN(const std::string text, read_small_file(path, uint64_t{1} << 20));
      OAR_RETURN_IF_ERROR(verify_checksum(text));
      OAR_ASSIGN(const json::value stored, parse_json(text, path));
      return read_kv_decision(stored, identity);
    }();
    if (read.ok()) return *read;
    log(LogLevel::kWarning,
        cat(path, " is not used: ", read.status().message(), "; `oar tune` writes it anew"));
  }
  return std::nullopt;
}

Result<std::string> store_kv_decision(const Checkpoint& checkpoint, const KvDecision& decision,
                                      const std::string& cache_dir, bool beside) {
  const std::string identity = model_identity(checkpoint);
  const std::string path = beside ? beside_path(checkpoint) : cached_path(cache_dir, identity);
  if (path.empty()) {
    return unavailable(beside ? "the embedded model lies in no folder; keep the decision in the cache"
                              : "there is no folder for caches: give --cache-dir");
  }
  std::error_code ec;
  fs::create_directories(fs::path(path).parent_path(), ec);
  if (ec)
    return unavailable(cat("cannot create ", fs::path(path).parent_path().string(), ": ", ec.message()));
  const std::string text = json::serialize(kv_decision_json(decision, identity));
  OAR_RETURN_IF_ERROR(write_file_atomically(path, with_checksum(text)));
  return path;
}

}  // namespace oar

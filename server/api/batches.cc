#include "server/api/batches.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/base/format.h"
#include "server/api/batch_state.h"
#include "server/api/frontend.h"
#include "server/api/metadata_field.h"
#include "server/api/tensor_wire.h"

namespace oar::api {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEndpoints[] = {"/v1/chat/completions", "/v1/completions", "/v1/embeddings",
                                      "/v1/responses"};
constexpr int64_t kMostWindow = 7 * 86400;

// "24h", "90m", "30s": OpenAI's clients know the first alone.
std::optional<int64_t> seconds_of(std::string_view window) {
  if (window.size() < 2) return std::nullopt;
  const char unit = window.back();
  const int64_t scale = unit == 'h' ? 3600 : unit == 'm' ? 60 : unit == 's' ? 1 : 0;
  int64_t n = 0;
  const auto [end, error] = std::from_chars(window.data(), window.data() + window.size() - 1, n);
  if (scale == 0 || error != std::errc() || end != window.data() + window.size() - 1) return std::nullopt;
  if (n < 1 || n > kMostWindow / scale) return std::nullopt;
  return n * scale;
}

}  // namespace

Result<BatchCreate> parse_batch_create(const RequestBody& body) {
  BatchCreate out;
  Fields f(body);
  f.require("input_file_id", "upload a file with purpose batch to /v1/files");
  f.string("input_file_id", out.input_file, 64);
  f.require("endpoint", "it is /v1/chat/completions, /v1/completions, /v1/responses or /v1/embeddings");
  f.string("endpoint", out.endpoint, 64);
  f.require("completion_window", "OpenAI's is 24h");
  f.string("completion_window", out.window, 16);
  read_metadata(f, out.metadata);
  const json::object* keep = f.object("output_expires_after");
  f.refuse_rest();
  if (!f.ok()) return f.status();
  if (std::find(std::begin(kEndpoints), std::end(kEndpoints), out.endpoint) == std::end(kEndpoints))
    return invalid_argument(
        cat("endpoint: batches of ", in_quotes(out.endpoint),
            " are not offered; use /v1/chat/completions, /v1/completions, /v1/responses or /v1/embeddings"),
        "endpoint");
  const auto seconds = seconds_of(out.window);
  if (!seconds)
    return invalid_argument(cat("completion_window is ", in_quotes(out.window),
                                "; give 24h, or another number of h, m or s up to 168h"),
                            "completion_window");
  out.window_seconds = *seconds;
  if (keep) {
    Fields k(*keep, "output_expires_after.");
    std::string anchor;
    k.require("anchor", "it is created_at");
    k.string("anchor", anchor, 64);
    k.require("seconds", "how long output files stay");
    k.integer("seconds", out.keep_seconds, 3600, 30 * 86400);
    k.refuse_rest();
    if (!k.ok()) return k.status();
    if (anchor != "created_at")
      return invalid_argument("output_expires_after.anchor must be created_at",
                              "output_expires_after.anchor");
  }
  return out;
}

Batches::Batches(FileStore& files, int concurrency, BatchSend send, FindTenant tenant, Logger log)
    : files_(files),
      concurrency_(std::max(1, concurrency)),
      send_(std::move(send)),
      tenant_(std::move(tenant)),
      log_(std::move(log)) {}

Batches::~Batches() { stop(); }

Result<std::unique_ptr<Batches>> Batches::start(FileStore& files, int concurrency, BatchSend send,
                                                FindTenant tenant, Logger log) {
  std::unique_ptr<Batches> out(
      new Batches(files, concurrency, std::move(send), std::move(tenant), std::move(log)));
  OAR_RETURN_IF_ERROR(out->scan());
  out->thread_ = std::thread([raw = out.get()] { raw->run(); });
  return out;
}

std::string Batches::path_of(const std::string& id, const char* what) const {
  return (fs::path(files_.folder()) / "batches" / (id + what)).string();
}

Status Batches::scan() {
  const fs::path folder = fs::path(files_.folder()) / "batches";
  std::error_code ec;
  fs::create_directories(folder, ec);
  if (ec) return unavailable(cat("files: the folder ", folder.string(), " cannot be made: ", ec.message()));
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder, ec)) paths.push_back(entry.path());
  if (ec) return unavailable(cat("files: ", folder.string(), " cannot be read: ", ec.message()));
  for (const fs::path& path : paths) {
    if (path.extension() == ".new") fs::remove(path, ec);
    if (path.extension() != ".json") continue;
    std::ifstream in(path, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    const auto v = parse_json(text.str(), path.filename().string());
    std::shared_ptr<Batch> batch;
    try {
      if (v.ok()) batch = Batch::from_disk(v->as_object());
    } catch (const std::exception&) {  // a member that is not there, or of another type
    }
    if (batch == nullptr || !is_stored_id(batch->id) || path.stem() != batch->id ||
        !is_stored_id(batch->output_id) || !is_stored_id(batch->error_id)) {
      log_(LogLevel::kWarning, cat("batches: left out: ", path.filename().string(), " is no batch"));
      continue;
    }
    for (const char* what : {kBatchOutput, kBatchError}) {
      const auto bytes = fs::file_size(path_of(batch->id, what), ec);
      if (!ec) files_.count(bytes);
    }
    const std::string id = batch->id;
    all_.emplace(id, std::move(batch));
  }
  return ok_status();
}

// ---- what clients ask ----

// A batch that cannot be written goes on; a server that starts anew would ask more of its requests again.
void Batches::save(const Batch& batch) {
  const Status s = write_whole(path_of(batch.id, ".json"), json::serialize(batch.on_disk()));
  if (!s.ok()) log_(LogLevel::kError, cat("batches: ", batch.id, ": ", s.message()));
}

void Batches::set_status(Batch& batch, const char* status) {
  batch.shown["status"] = status;
  batch.shown[cat(status, "_at")] = now_us() / 1'000'000;
  save(batch);
}

Result<std::shared_ptr<Batches::Batch>> Batches::locate(const std::string& owner, const std::string& id) {
  const auto it = all_.find(id);
  if (it == all_.end() || it->second->owner != owner)
    return Status(StatusCode::kNotFound, cat("there is no batch ", in_quotes(id), ", or no longer"),
                  "batch_id");
  return it->second;
}

bool Batches::make_room() {
  if (all_.size() < kMaxBatches) return true;
  auto oldest = all_.end();
  for (auto it = all_.begin(); it != all_.end(); ++it) {
    if (!it->second->has_ended()) continue;
    if (oldest == all_.end() || it->second->created_us < oldest->second->created_us) oldest = it;
  }
  if (oldest == all_.end()) return false;
  std::error_code ec;
  fs::remove(path_of(oldest->first, ".json"), ec);
  all_.erase(oldest);
  return true;
}

Result<std::string> Batches::create(const std::string& owner, const BatchCreate& asked) {
  const auto file = files_.find(owner, asked.input_file);
  if (!file.ok())
    return Status(StatusCode::kNotFound, cat("input_file_id: ", file.status().message()), "input_file_id");
  if (file->purpose != "batch")
    return invalid_argument(cat("input_file_id: the file is for ", file->purpose, "; upload one for batch"),
                            "input_file_id");
  auto batch = std::make_shared<Batch>();
  batch->id = make_id("batch_");
  batch->owner = owner, batch->endpoint = asked.endpoint, batch->input_file = asked.input_file;
  batch->output_id = make_id("file-"), batch->error_id = make_id("file-");
  batch->created_us = now_us();
  batch->expires = now_us() / 1'000'000 + asked.window_seconds;
  batch->keep_seconds = asked.keep_seconds;
  batch->shown = {{"id", batch->id},
                  {"object", "batch"},
                  {"endpoint", asked.endpoint},
                  {"errors", nullptr},
                  {"input_file_id", asked.input_file},
                  {"completion_window", asked.window},
                  {"status", "validating"},
                  {"output_file_id", nullptr},
                  {"error_file_id", nullptr},
                  {"created_at", batch->created_us / 1'000'000},
                  {"in_progress_at", nullptr},
                  {"expires_at", batch->expires},
                  {"finalizing_at", nullptr},
                  {"completed_at", nullptr},
                  {"failed_at", nullptr},
                  {"expired_at", nullptr},
                  {"cancelling_at", nullptr},
                  {"cancelled_at", nullptr},
                  {"request_counts", {{"total", 0}, {"completed", 0}, {"failed", 0}}},
                  {"metadata", asked.metadata.empty() ? json::value() : json::value(asked.metadata)}};
  const std::lock_guard lock(mutex_);
  if (!make_room())
    return resource_exhausted(cat("there are ", kMaxBatches, " batches that have not ended; wait for some"));
  OAR_RETURN_IF_ERROR(write_whole(path_of(batch->id, ".json"), json::serialize(batch->on_disk())));
  std::string out = json::serialize(batch->shown);
  all_.emplace(batch->id, std::move(batch));
  woken_ = true;
  wake_.notify_one();
  return out;
}

Result<std::string> Batches::find(const std::string& owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  OAR_ASSIGN(const auto batch, locate(owner, id));
  return json::serialize(batch->shown);
}

Result<std::string> Batches::list(const std::string& owner, const ItemPage& page) {
  json::array items;
  {
    const std::lock_guard lock(mutex_);
    std::vector<const Batch*> own;
    for (const auto& [id, batch] : all_)
      if (batch->owner == owner) own.push_back(batch.get());
    std::stable_sort(own.begin(), own.end(),
                     [](const Batch* a, const Batch* b) { return a->created_us < b->created_us; });
    for (const Batch* batch : own) items.push_back(batch->shown);
  }
  return page_of(std::move(items), page);
}

Result<std::string> Batches::cancel(const std::string& owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  OAR_ASSIGN(const auto batch, locate(owner, id));
  const std::string_view status = batch->status();
  if (status == "validating" || status == "in_progress") {
    set_status(*batch, "cancelling");
    woken_ = true;
    wake_.notify_one();
  } else if (status != "cancelling") {
    return Status(StatusCode::kFailedPrecondition, cat("a batch that is ", status, " cannot be cancelled"),
                  "batch_id");
  }
  return json::serialize(batch->shown);
}

}  // namespace oar::api

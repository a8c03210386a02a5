// What a batch is on disk and in memory; for batches.cc and batch_run.cc.
#pragma once

#include <string_view>

#include "server/api/batches.h"

namespace oar::api {

inline constexpr const char *kBatchOutput = ".output", *kBatchError = ".error";  // files of lines so far

// What is on disk, in BATCH.json. `shown` is OpenAI's object; it changes with the lock alone.
struct Batches::Batch {
  std::string id, owner, endpoint, input_file;
  std::string output_id, error_id;  // that the output files will have
  std::string ends_as;              // while finalizing: the status behind it
  int64_t created_us = 0, expires = 0;
  std::optional<int64_t> keep_seconds;
  json::object shown;

  std::string_view status() const { return shown.at("status").as_string(); }
  bool has_ended() const {
    const std::string_view s = status();
    return s == "completed" || s == "failed" || s == "expired" || s == "cancelled";
  }
  void count(const char* what, int64_t n) { shown.at("request_counts").as_object()[what] = n; }
  json::object on_disk() const {
    return {{"owner", owner},
            {"output_id", output_id},
            {"error_id", error_id},
            {"ends_as", ends_as},
            {"created_us", created_us},
            {"batch", shown},
            {"keep_seconds", keep_seconds ? json::value(*keep_seconds) : json::value()}};
  }
  // Throws for what on_disk() has not written.
  static std::shared_ptr<Batch> from_disk(const json::object& o) {
    auto b = std::make_shared<Batch>();
    const auto text = [](const json::object& from, const char* name) {
      return std::string(from.at(name).as_string());
    };
    b->shown = o.at("batch").as_object();
    b->id = text(b->shown, "id"), b->owner = text(o, "owner");
    b->endpoint = text(b->shown, "endpoint"), b->input_file = text(b->shown, "input_file_id");
    b->output_id = text(o, "output_id"), b->error_id = text(o, "error_id"), b->ends_as = text(o, "ends_as");
    b->created_us = o.at("created_us").as_int64(), b->expires = b->shown.at("expires_at").as_int64();
    if (!o.at("keep_seconds").is_null()) b->keep_seconds = o.at("keep_seconds").as_int64();
    for (const char* what : {"total", "completed", "failed"})
      (void)b->shown.at("request_counts").at(what).as_int64();
    (void)b->status();
    return b;
  }
};

// A batch whose files are open.
struct Batches::Job {
  struct Flight {
    BatchRequest request;
    std::shared_ptr<BatchCall> call;
    int attempts = 0;
  };
  struct Later {
    BatchRequest request;
    Clock::time_point when;
    int attempts = 0;
  };
  std::shared_ptr<Batch> batch;
  std::shared_ptr<const StoredFile> held;
  std::unique_ptr<BatchInput> input;
  std::unique_ptr<BatchOutput> good, bad;
  std::shared_ptr<Tenant> tenant;
  std::map<uint64_t, Flight> flying;
  std::vector<Later> later;
  Clock::time_point rests_until;  // its tenant has no requests left, or the queue no place
  int64_t completed = 0, failed = 0;
  bool read = false;  // nothing is left in the input
  bool ended = false;
};

}  // namespace oar::api

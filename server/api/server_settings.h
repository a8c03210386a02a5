// What clients may ask and change of a running server in Triton's words: settings of its log (v2/logging) and
// of its trace (v2/trace/setting), the latter also of one model. JSON in and out, whatever the transport.
// What this server cannot honour is refused by name. Any thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/status.h"

namespace oar::api {

// Whether a model's steps, runs and requests go into the trace. Asked by its observers.
class TraceSwitch {
 public:
  bool on() const { return on_.load(std::memory_order_relaxed); }
  // Of a request that has ended; each is asked about once, for one in `rate` and `count` of them are taken.
  bool takes_request();
  void set(bool on, int64_t rate, int64_t count);

 private:
  std::atomic<bool> on_{true};
  std::atomic<int64_t> rate_{1}, left_{-1}, seen_{0};  // left_: -1 is no limit
};

class ServerSettings {
 public:
  // `trace_file`: empty when the server writes no trace, which clients cannot begin.
  explicit ServerSettings(std::string trace_file) : trace_file_(std::move(trace_file)) {}

  // A logger that keeps to what clients have set.
  static Logger filtered(std::shared_ptr<ServerSettings> settings, Logger next);

  json::object log() const;
  // INVALID_ARGUMENT or UNIMPLEMENTED; then nothing has changed.
  Result<json::object> set_log(const json::object& changes);

  // Of all models, or of one: its own where it has some. Models are not looked up.
  json::object trace(const std::string& model) const;
  // A null takes a setting back: a model's to the server's, the server's to that of its start.
  Result<json::object> set_trace(const std::string& model, const json::object& changes);
  std::shared_ptr<TraceSwitch> trace_switch(const std::string& model);

 private:
  struct Trace {
    std::optional<bool> on;
    std::optional<int64_t> rate, count;
  };
  Status read(std::string_view name, const json::value& v, Trace& out) const;
  Trace settled(const std::string& model) const;  // with the lock; all there
  void apply();                                   // with the lock

  const std::string trace_file_;
  std::atomic<bool> info_{true}, warning_{true}, error_{true};
  mutable std::mutex mutex_;
  Trace trace_;  // guarded by mutex_, as is the rest
  std::map<std::string, Trace> of_models_;
  std::map<std::string, std::weak_ptr<TraceSwitch>> switches_;
};

// The answer where clients may not change anything.
Status settings_are_fixed();

}  // namespace oar::api

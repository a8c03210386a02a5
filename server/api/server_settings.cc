#include "server/api/server_settings.h"

#include <charconv>
#include <vector>

#include "engine/base/format.h"
#include "server/api/fields.h"
#include "server/api/tensor_wire.h"

namespace oar::api {
namespace {

// Triton's clients write numbers as texts.
std::optional<int64_t> integer_in(const json::value& v) {
  if (v.is_int64()) return v.get_int64();
  if (!v.is_string()) return std::nullopt;
  const json::string& text = v.get_string();
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return n;
}

}  // namespace

bool TraceSwitch::takes_request() {
  if (!on()) return false;
  const int64_t rate = rate_.load(std::memory_order_relaxed);
  if (seen_.fetch_add(1, std::memory_order_relaxed) % rate != 0) return false;
  int64_t left = left_.load(std::memory_order_relaxed);
  while (left > 0 && !left_.compare_exchange_weak(left, left - 1)) continue;
  return left != 0;
}

void TraceSwitch::set(bool on, int64_t rate, int64_t count) {
  rate_ = rate;
  left_ = count;
  seen_ = 0;
  on_ = on;
}

Logger ServerSettings::filtered(std::shared_ptr<ServerSettings> settings, Logger next) {
  return {[settings = std::move(settings), next = std::move(next)](LogLevel level, std::string_view message) {
    const bool taken = level == LogLevel::kError     ? settings->error_
                       : level == LogLevel::kWarning ? settings->warning_
                                                     : settings->info_;
    if (taken) next(level, message);
  }};
}

json::object ServerSettings::log() const {
  return {{"log_file", ""},
          {"log_info", info_.load()},
          {"log_warning", warning_.load()},
          {"log_error", error_.load()},
          {"log_verbose_level", 0},
          {"log_format", "ISO8601"}};
}

Result<json::object> ServerSettings::set_log(const json::object& changes) {
  bool info = info_, warning = warning_, error = error_;
  std::string file, format = "ISO8601";
  int64_t verbose = 0;
  Fields f(changes);
  f.boolean("log_info", info);
  f.boolean("log_warning", warning);
  f.boolean("log_error", error);
  f.string("log_file", file, 4096);
  f.string("log_format", format, 64);
  f.integer("log_verbose_level", verbose, 0, INT32_MAX);
  f.refuse_rest();
  if (!f.ok()) return f.status();
  if (!file.empty())
    return Status(StatusCode::kUnimplemented,
                  "log_file: the log goes to standard error, wherever the server's owner has that written",
                  "log_file");
  if (format != "ISO8601")
    return Status(StatusCode::kUnimplemented,
                  cat("log_format: lines are ISO8601 here, not ", in_quotes(format)), "log_format");
  if (verbose != 0)
    return Status(StatusCode::kUnimplemented,
                  cat("log_verbose_level is ", verbose,
                      "; there are no verbose lines: use 0, and --trace for "
                      "what happens inside"),
                  "log_verbose_level");
  info_ = info, warning_ = warning, error_ = error;
  return log();
}

ServerSettings::Trace ServerSettings::settled(const std::string& model) const {
  Trace out{trace_.on.value_or(!trace_file_.empty()), trace_.rate.value_or(1), trace_.count.value_or(-1)};
  if (const auto own = of_models_.find(model); own != of_models_.end()) {
    if (own->second.on) out.on = own->second.on;
    if (own->second.rate) out.rate = own->second.rate;
    if (own->second.count) out.count = own->second.count;
  }
  return out;
}

json::object ServerSettings::trace(const std::string& model) const {
  const std::lock_guard lock(mutex_);
  const Trace t = settled(model);
  return {{"trace_file", trace_file_},  {"trace_level", json::array{*t.on ? "TIMESTAMPS" : "OFF"}},
          {"trace_rate", cat(*t.rate)}, {"trace_count", cat(*t.count)},
          {"log_frequency", "0"},       {"trace_mode", "triton"}};
}

Status ServerSettings::read(std::string_view name, const json::value& v, Trace& out) const {
  const std::string field(name);
  const auto refuse = [&](StatusCode code, std::string why) { return Status(code, cat(name, why), field); };
  // A list of one is as good as what is in it.
  const json::array* list = v.if_array();
  if (list != nullptr && list->size() != 1)
    return refuse(StatusCode::kInvalidArgument, list->empty() ? " is an empty list; use null to take it back"
                                                              : " has several values; give one");
  const json::value& one = list ? (*list)[0] : v;
  const json::string* text = one.if_string();
  if (name == "trace_level") {
    if (one.is_null()) out.on.reset();
    else if (text && *text == "OFF") out.on = false;
    else if (text && *text == "TIMESTAMPS") out.on = true;
    else
      return refuse(StatusCode::kUnimplemented,
                    cat(": ", describe(one), " is not offered; use TIMESTAMPS or OFF"));
    if (out.on.value_or(false) && trace_file_.empty())
      return refuse(StatusCode::kFailedPrecondition,
                    ": this server writes no trace; start it with --trace FILE");
    return ok_status();
  }
  if (name == "trace_rate" || name == "trace_count") {
    auto& to = name == "trace_rate" ? out.rate : out.count;
    const int64_t least = name == "trace_rate" ? 1 : -1;
    to = one.is_null() ? std::nullopt : integer_in(one);
    if (!one.is_null() && (!to || *to < least))
      return refuse(StatusCode::kInvalidArgument,
                    cat(" must be a whole number from ", least, " on, got ", describe(one)));
    return ok_status();
  }
  if (name == "trace_file") {
    if (one.is_null() || (text && *text == trace_file_)) return ok_status();
    return refuse(StatusCode::kUnimplemented, ": the file is that of --trace, and is not changed by clients");
  }
  if (name == "log_frequency") {
    if (one.is_null() || integer_in(one) == 0) return ok_status();
    return refuse(StatusCode::kUnimplemented, ": the trace is one file, written all the time; use 0");
  }
  if (name == "trace_mode") {
    if (one.is_null() || (text && *text == "triton")) return ok_status();
    return refuse(StatusCode::kUnimplemented, cat(": ", describe(one), " is not offered; use triton"));
  }
  return refuse(StatusCode::kInvalidArgument,
                " is no setting; there are trace_level, trace_rate, trace_count, trace_file, log_frequency "
                "and trace_mode");
}

Result<json::object> ServerSettings::set_trace(const std::string& model, const json::object& changes) {
  {
    const std::lock_guard lock(mutex_);
    Trace next = model.empty() ? trace_ : of_models_[model];
    for (const auto& change : changes)
      OAR_RETURN_IF_ERROR(read({change.key().data(), change.key().size()}, change.value(), next));
    (model.empty() ? trace_ : of_models_[model]) = next;
    apply();
  }
  return trace(model);
}

void ServerSettings::apply() {
  for (auto it = switches_.begin(); it != switches_.end();) {
    const auto there = it->second.lock();
    if (there) {
      const Trace t = settled(it->first);
      there->set(*t.on, *t.rate, *t.count);
    }
    it = there ? std::next(it) : switches_.erase(it);
  }
}

std::shared_ptr<TraceSwitch> ServerSettings::trace_switch(const std::string& model) {
  const std::lock_guard lock(mutex_);
  std::weak_ptr<TraceSwitch>& kept = switches_[model];
  auto out = kept.lock();
  if (out == nullptr) {
    kept = out = std::make_shared<TraceSwitch>();
    const Trace t = settled(model);
    out->set(*t.on, *t.rate, *t.count);
  }
  return out;
}

Status settings_are_fixed() {
  return {StatusCode::kPermissionDenied,
          "settings are not changed by clients here; start the server with --model-control explicit"};
}

}  // namespace oar::api

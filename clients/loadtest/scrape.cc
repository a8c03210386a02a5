#include "clients/loadtest/scrape.h"

#include <algorithm>
#include <charconv>

#include "clients/loadtest/http_request.h"
#include "engine/base/format.h"

namespace oar::loadtest {
const std::vector<std::string>& default_metrics() {
  static const std::vector<std::string> names = {
      "vllm:num_requests_running",  "vllm:num_requests_waiting",          "vllm:kv_cache_usage_perc",
      "vllm:num_preemptions_total", "process_resident_memory_bytes",      "sglang:num_running_reqs",
      "sglang:num_queue_reqs",      "nv_inference_pending_request_count", "llamacpp:requests_processing"};
  return names;
}

std::map<std::string, double> parse_metrics(std::string_view text, const std::vector<std::string>& names) {
  std::map<std::string, double> out;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty() || line.front() == '#') continue;
    const size_t name_end = line.find_first_of("{ ");
    const std::string_view name = line.substr(0, name_end);
    if (name_end == std::string_view::npos || std::find(names.begin(), names.end(), name) == names.end())
      continue;
    // A label's value may hold anything in quotes, so the value follows the last brace.
    const size_t labels_end = line[name_end] == '{' ? line.rfind('}') : name_end;
    if (labels_end == std::string_view::npos) continue;
    const size_t begin = line.find_first_not_of(" ", labels_end + (line[labels_end] == '}' ? 1 : 0));
    if (begin == std::string_view::npos) continue;
    double v = 0;
    if (std::from_chars(line.data() + begin, line.data() + line.size(), v).ec == std::errc())
      out[std::string(name)] += v;
  }
  return out;
}

Result<std::string> http_get(const Server& server, const std::string& path,
                             const std::vector<std::string>& headers, double timeout) {
  OAR_ASSIGN(HttpReply reply, http_request(server, "GET", path, headers, {}, timeout));
  if (reply.status != 200) return unavailable(cat(server.url, path, ": HTTP ", reply.status));
  return std::move(reply.body);
}

Scraper::Scraper(Server server, std::string path, std::vector<std::string> headers, double interval)
    : server_(std::move(server)),
      path_(std::move(path)),
      headers_(std::move(headers)),
      interval_(interval),
      thread_([this] { main(); }) {}

void Scraper::main() {
  const auto start = Clock::now();
  for (int64_t tick = 0; !stop_; ++tick) {
    const double due = static_cast<double>(tick) * interval_;
    const auto at = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
    while (!stop_ && at() < due) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (stop_) return;
    const double now = at();
    const auto text = http_get(server_, path_, headers_, 2);
    if (!text.ok()) continue;
    Sample s{now, parse_metrics(*text, default_metrics())};
    if (!s.values.empty()) samples_.push_back(std::move(s));
  }
}

std::vector<Sample> Scraper::stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  return std::move(samples_);
}

}  // namespace oar::loadtest

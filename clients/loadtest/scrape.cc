#include "clients/loadtest/scrape.h"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <charconv>

#include "clients/loadtest/response.h"
#include "engine/base/format.h"

namespace oar::loadtest {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
constexpr size_t kMaxBody = size_t{16} << 20;

}  // namespace

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
  asio::io_context io;
  tcp::socket socket(io);
  boost::system::error_code ec;
  const auto found = tcp::resolver(io).resolve(server.host, server.port, ec);
  if (ec) return unavailable(cat(server.url, ": ", ec.message()));
  asio::connect(socket, found, ec);
  if (ec) return unavailable(cat(server.url, ": ", ec.message()));
  timeval limit = {};
  limit.tv_sec = static_cast<time_t>(timeout);
  limit.tv_usec = static_cast<suseconds_t>((timeout - static_cast<double>(limit.tv_sec)) * 1e6);
  setsockopt(socket.native_handle(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(socket.native_handle(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  std::string request = cat("GET ", server.base, path, " HTTP/1.1\r\nHost: ", server.host, ":", server.port,
                            "\r\nUser-Agent: oar-loadtest\r\nConnection: close\r\n");
  for (const std::string& h : headers) request += h + "\r\n";
  request += "\r\n";
  size_t sent = 0;
  while (sent < request.size()) {
    const ssize_t n =
        send(socket.native_handle(), request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return unavailable(cat(server.url, ": the request could not be sent"));
    sent += static_cast<size_t>(n);
  }
  std::string body;
  ResponseParser parser([&](std::string_view part) { body += part; });
  char buffer[16 << 10];
  while (!parser.done()) {
    const ssize_t n = recv(socket.native_handle(), buffer, sizeof buffer, 0);
    if (n < 0) return unavailable(cat(server.url, path, ": no answer within ", timeout, " s"));
    if (n == 0) {
      OAR_RETURN_IF_ERROR(parser.finish());
      break;
    }
    OAR_RETURN_IF_ERROR(parser.push({buffer, static_cast<size_t>(n)}));
    if (body.size() > kMaxBody) return Status(StatusCode::kDataLoss, cat(path, " has more than 16 MiB"));
  }
  if (parser.status_code() != 200) return unavailable(cat(server.url, path, ": HTTP ", parser.status_code()));
  return body;
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

// What the server itself costs, with an engine that answers by script: a server in this process, its clients
// in another, so that processor time and memory here are the server's (and the scripted engine's) alone.
//
//   server_bench tokens  [--streams 128] [--tokens 2000]   processor time per streamed token; bound 50 us
//   server_bench idle    [--streams 10000]                 connections that asked once; bounds 2 KB each,
//   health in 10 ms server_bench streams [--streams 10000]                 streams of which 64 run; bounds 24
//   KB each, health in 10 ms
//
// Memory is counts, for any machine. Times want a quiet one. Exits with 1 when a bound does not hold.
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>

#include "engine/base/format.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"

namespace {

using namespace oar_test;  // NOLINT
using oar::cat;
using Clock = std::chrono::steady_clock;

constexpr int kRunning = 64;  // of the streams of `streams`
constexpr double kTokenMicroseconds = 50, kHealthMilliseconds = 10;
constexpr int64_t kIdleBytes = 2048, kStreamBytes = 24 << 10;

// ---- the clients' process
// -----------------------------------------------------------------------------------

// Connects `count` times, sends the request on each and reads whatever comes. Says "all" on `out` when every
// connection was answered (`answers`) or is sent, and ends when `in` closes.
[[noreturn]] void run_clients(int in, int out, bool answers) {
  struct {
    int port, count;
    uint32_t length;
  } order;
  if (read(in, &order, sizeof order) != sizeof order) _exit(0);
  std::string request(order.length, '\0');
  if (read(in, request.data(), request.size()) != static_cast<ssize_t>(request.size())) _exit(1);
  const int poll = epoll_create1(0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(order.port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<bool> answered;
  const auto add = [&](int fd) {
    if (static_cast<size_t>(fd) >= answered.size()) answered.resize(static_cast<size_t>(fd) + 1);
    epoll_event e{.events = EPOLLIN, .data = {.fd = fd}};
    epoll_ctl(poll, EPOLL_CTL_ADD, fd, &e);
  };
  add(in);
  int open = 0, got = 0;
  bool told = false;
  std::vector<char> bytes(256 << 10);
  for (;;) {
    // A few at a time: a server's backlog is finite.
    for (int k = 0; k < 64 && open < order.count; ++k, ++open) {
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      if (fd < 0 || connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) _exit(2);
      if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size()))
        _exit(3);
      add(fd);
    }
    if (!told && open == order.count && (!answers || got == order.count)) {
      told = true;
      if (write(out, "all", 3) != 3) _exit(4);
    }
    epoll_event events[256];
    const int n = epoll_wait(poll, events, 256, open < order.count ? 0 : 1000);
    for (int k = 0; k < n; ++k) {
      const int fd = events[k].data.fd;
      if (fd == in) _exit(0);
      if (recv(fd, bytes.data(), bytes.size(), 0) <= 0) {
        if (!told) _exit(5);  // refused
        epoll_ctl(poll, EPOLL_CTL_DEL, fd, nullptr);
      }
      if (!answered[static_cast<size_t>(fd)]) ++got;
      answered[static_cast<size_t>(fd)] = true;
    }
  }
}

class Clients {
 public:
  // Before any thread of this process starts.
  explicit Clients(bool answers) {
    int to[2], from[2];
    if (pipe(to) != 0 || pipe(from) != 0) std::exit(2);
    child_ = fork();
    if (child_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(to[1]);
      close(from[0]);
      run_clients(to[0], from[1], answers);
    }
    close(to[0]);
    close(from[1]);
    in_ = to[1];
    out_ = from[0];
  }
  ~Clients() {
    close(in_);
    waitpid(child_, nullptr, 0);
  }
  // Until all are connected and, where that was asked for, answered.
  void start(int port, int count, const std::string& request) const {
    const struct {
      int port, count;
      uint32_t length;
    } order{port, count, static_cast<uint32_t>(request.size())};
    char said[3];
    const bool sent = write(in_, &order, sizeof order) == sizeof order &&
                      write(in_, request.data(), request.size()) == static_cast<ssize_t>(request.size());
    if (sent && read(out_, said, sizeof said) == sizeof said) return;
    std::fprintf(stderr, "the clients ended: a connection was refused\n");
    std::exit(2);
  }

 private:
  pid_t child_ = -1;
  int in_ = -1, out_ = -1;
};

// ---- the server's
// -----------------------------------------------------------------------------------------

int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  int64_t size = 0, resident = 0;
  in >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

double processor_seconds() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(u.ru_utime) + seconds(u.ru_stime);
}

bool report(const std::string& what, double value, double bound, const char* unit) {
  const bool held = value <= bound;
  std::printf("%-36s %10.1f %s (bound %g)%s\n", what.c_str(), value, unit, bound, held ? "" : " NOT HELD");
  return held;
}

// Of 200 requests one after another, the slowest but one.
double health_milliseconds(int port) {
  RawClient c(port);
  const std::string request = make_request("GET", "/health");
  std::vector<double> times;
  for (int k = 0; k < 200; ++k) {
    const auto start = Clock::now();
    if (!c.send(request) || c.read_reply().status != 200) return 1e9;
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() - 2];
}

oar::ServerOptions server_options(int connections) {
  oar::ServerOptions o;
  o.http_limits.max_connections = static_cast<size_t>(connections) + 256;
  o.http_limits.idle_timeout = std::chrono::minutes(10);
  o.grpc_address.clear();
  return o;
}

std::string stream_request(int64_t tokens) {
  return make_request("POST", "/v1/completions",
                      cat(R"({"prompt":"What the server costs","max_tokens":)", tokens,
                          R"(,"ignore_eos":true,"stream":true})"),
                      {{"content-type", "application/json"}});
}

bool memory(const Clients& clients, int count, const std::string& request, int64_t bound, const char* what,
            FakeEngineOptions engine) {
  TestServer server(std::move(engine), server_options(count));
  // What the first answers take once.
  for (int k = 0; k < 64; ++k) http(server.http(), "GET", "/health");
  http(server.http(), "POST", "/v1/completions", R"({"prompt":"a","max_tokens":2})",
       {{"content-type", "application/json"}});
  const int64_t before = resident_bytes();
  clients.start(server.http(), count, request);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  const int64_t each = (resident_bytes() - before) / count;
  const oar::EngineStats s = server.engine.stats();
  std::printf("%d connections, %lld run, %lld wait\n", count, static_cast<long long>(s.running),
              static_cast<long long>(s.waiting));
  const bool small = report(cat(what, ", resident bytes each"), static_cast<double>(each),
                            static_cast<double>(bound), "bytes");
  return report("/health beside them", health_milliseconds(server.http()), kHealthMilliseconds, "ms") &&
         small;
}

bool tokens(const Clients& clients, int streams, int64_t tokens) {
  FakeEngineOptions engine;
  engine.max_running = engine.max_waiting = static_cast<size_t>(streams);
  engine.max_context = tokens + 64;
  engine.step = std::chrono::milliseconds(10);
  TestServer server(engine, server_options(streams));
  clients.start(server.http(), streams, stream_request(tokens));
  const auto begun = [&] { return server.engine.stats().generation_tokens; };
  while (server.engine.stats().running < streams) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const uint64_t first = begun();
  const double start = processor_seconds();
  server.engine.wait_idle();
  while (server.engine.stats().running > 0) server.engine.wait_idle();
  const double used = processor_seconds() - start;
  const auto done = static_cast<double>(begun() - first);
  std::printf("%d streams, %.0f tokens\n", streams, done);
  return report("processor time per streamed token", 1e6 * used / done, kTokenMicroseconds, "us");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What the server itself costs");
  std::string mode;
  int streams = 0;
  int64_t length = 2000;
  app.add_option("mode", mode)->required()->check(CLI::IsMember({"tokens", "idle", "streams"}));
  app.add_option("--streams", streams, "128, or 10000 connections")->check(CLI::Range(1, 60000));
  app.add_option("--tokens", length, "of each stream")->check(CLI::Range(10, 100000))->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (streams == 0) streams = mode == "tokens" ? 128 : 10000;
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < static_cast<rlim_t>(streams) + 512) {
    std::fprintf(stderr, "%d connections want as many open files; the limit is %llu\n", streams,
                 static_cast<unsigned long long>(files.rlim_cur));
    return 2;
  }
  const Clients clients(mode != "streams");
  if (mode == "tokens") return tokens(clients, streams, length) ? 0 : 1;
  FakeEngineOptions engine;
  engine.max_context = 1 << 20;
  engine.step = std::chrono::milliseconds(20);
  engine.max_running = kRunning;
  engine.max_waiting = static_cast<size_t>(streams);
  const bool idle = mode == "idle";
  const std::string request = idle ? make_request("GET", "/health") : stream_request(1 << 19);
  return memory(clients, streams, request, idle ? kIdleBytes : kStreamBytes,
                idle ? "idle connection" : "stream", engine)
             ? 0
             : 1;
}

// Workers: each has a thread, an io_context and every n-th request.
#include "clients/loadtest/run.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <deque>
#include <mutex>
#include <set>
#include <thread>

#include "clients/loadtest/exchange.h"
#include "clients/loadtest/grpc_exchange.h"
#include "engine/base/descriptors.h"
#include "engine/base/format.h"

namespace oar::loadtest {
namespace {

constexpr auto kStopPoll = std::chrono::milliseconds(50);
// Asio's timers wake a little late; the last stretch before a request is due is spent looking at the clock.
constexpr int64_t kSpin = 60'000;  // nanoseconds

double cpu_seconds() {
  rusage u = {};
  getrusage(RUSAGE_SELF, &u);
  const auto s = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return s(u.ru_utime) + s(u.ru_stime);
}

class Worker {
 public:
  Worker(const RunSpec& spec, const Workload& workload, const std::vector<Plan>& plans, int index,
         std::vector<tcp::endpoint> addresses, std::shared_ptr<GrpcTarget> grpc, LoadProgress* progress)
      : spec_(spec),
        workload_(workload),
        plans_(plans),
        grpc_(std::move(grpc)),
        next_(static_cast<size_t>(index)),
        timer_(context_.io),
        stop_timer_(context_.io) {
    context_.spec = &spec;
    context_.endpoint = workload.spec().endpoint;
    context_.addresses = std::move(addresses);
    context_.progress = progress;
    const int64_t n = spec.threads;
    const auto share = [&](int64_t total) { return total / n + (index < total % n ? 1 : 0); };
    slots_ = share(spec.concurrency);
    max_in_flight_ = spec.max_in_flight > 0 ? std::max<int64_t>(1, share(spec.max_in_flight)) : 0;
    prefix_ = cat("POST ", spec.server.base, workload.target(), " HTTP/1.1\r\nHost: ", spec.server.host, ":",
                  spec.server.port, "\r\nUser-Agent: oar-loadtest\r\n", workload.content_headers());
    for (const std::string& h : spec.headers) prefix_ += h + "\r\n";
  }

  void run(Clock::time_point start) {
    context_.start = start;
    watch_stop();
    if (spec_.closed_loop) {
      for (int64_t i = 0; i < slots_; ++i) asio::post(context_.io, [this] { dispatch_closed(); });
    } else {
      prepare();
      context_.send_due = [this] { dispatch_open(); };
      asio::post(context_.io, context_.send_due);
    }
    asio::post(context_.io, [this] { maybe_finished(); });
    while (spec_.spin && !context_.io.stopped()) context_.io.poll();
    context_.io.run();
  }

  std::vector<Record> records;
  WorkerContext& context() { return context_; }

 private:
  struct Session {
    std::vector<Message> history;
    int64_t turn = 0;
  };
  struct Prepared {
    size_t plan = 0;
    Session session;
    std::string request;
  };

  bool ended() const {
    return stopping_ || next_ >= plans_.size() ||
           (spec_.duration > 0 && context_.now() >= static_cast<int64_t>(spec_.duration * 1e9));
  }
  // gRPC makes its message from the prompt alone.
  std::string request_of(size_t plan, const Session& s) const {
    if (grpc_) return s.history.back().content;
    const std::string body = workload_.body(plans_[plan], s.history);
    return cat(prefix_, "Content-Length: ", body.size(), "\r\n\r\n", body);
  }
  Prepared make(size_t plan) const {
    Prepared p;
    p.plan = plan;
    p.session.history.push_back({"user", workload_.prompt(plans_[plan])});
    p.request = request_of(plan, p.session);
    return p;
  }
  // The next request's body is made while nothing is due, so that making it never delays sending it.
  void prepare() { ready_ = next_ < plans_.size() ? std::optional<Prepared>(make(next_)) : std::nullopt; }
  void send(Prepared p, int64_t intended, int64_t now);
  void finished(Exchange& e, size_t plan, Session session);
  void dispatch_closed();
  void dispatch_open();
  void watch_stop();
  bool all_finished() const { return in_flight_.empty() && queue_.empty() && ended(); }
  void maybe_finished();

  const RunSpec& spec_;
  const Workload& workload_;
  const std::vector<Plan>& plans_;
  const std::shared_ptr<GrpcTarget> grpc_;  // null: HTTP
  WorkerContext context_;
  size_t next_;
  int64_t slots_ = 0, max_in_flight_ = 0;
  asio::steady_timer timer_, stop_timer_;
  std::optional<Prepared> ready_;
  std::deque<std::pair<Prepared, int64_t>> queue_;  // open loop with a limit: due, and waiting for room
  std::set<std::shared_ptr<Exchange>> in_flight_;
  std::string prefix_;
  bool stopping_ = false;
};

void Worker::send(Prepared p, int64_t intended, int64_t now) {
  Record record;
  record.index = static_cast<int64_t>(p.plan);
  record.turn = p.session.turn;
  record.intended = intended;
  record.dispatched = now;
  const size_t plan = p.plan;
  auto session = std::make_shared<Session>(std::move(p.session));
  auto done = [this, plan, session](Exchange& e) { finished(e, plan, std::move(*session)); };
  std::shared_ptr<Exchange> exchange;
  if (grpc_) exchange = grpc_->make(context_, std::move(record), plans_[plan], p.request, std::move(done));
  else
    exchange = std::make_shared<HttpExchange>(context_, std::move(record), plans_[plan], std::move(p.request),
                                              std::move(done));
  in_flight_.insert(exchange);
  if (context_.progress != nullptr) {
    context_.progress->dispatched.fetch_add(1, std::memory_order_relaxed);
    context_.progress->in_flight.fetch_add(1, std::memory_order_relaxed);
  }
  exchange->start();
}

void Worker::finished(Exchange& e, size_t plan, Session session) {
  Record& r = e.record();
  if (context_.progress != nullptr) {
    LoadProgress& p = *context_.progress;
    p.in_flight.fetch_sub(1, std::memory_order_relaxed);
    p.finished.fetch_add(1, std::memory_order_relaxed);
    if (!r.error.empty()) p.failed.fetch_add(1, std::memory_order_relaxed);
  }
  const bool goes_on = r.ok() && session.turn + 1 < workload_.spec().turns && !stopping_;
  if (goes_on) {
    session.history.push_back({"assistant", r.text});
    Plan more = plans_[plan];
    more.seed += static_cast<uint64_t>(++session.turn);
    more.prefix_group = -1;
    more.prefix_blocks.clear();
    session.history.push_back({"user", workload_.prompt(more)});
  }
  records.push_back(std::move(r));
  if (goes_on) {
    Prepared p{plan, std::move(session), {}};
    p.request = request_of(plan, p.session);
    asio::post(context_.io, [this, p = std::move(p)]() mutable {
      const int64_t now = context_.now();
      send(std::move(p), now, now);
    });
  } else if (spec_.closed_loop) {
    asio::post(context_.io, [this] { dispatch_closed(); });
  } else if (!queue_.empty()) {
    auto [p, intended] = std::move(queue_.front());
    queue_.pop_front();
    asio::post(context_.io,
               [this, p = std::move(p), at = intended]() mutable { send(std::move(p), at, at); });
  }
  // Destroying the exchange inside its own call would pull the rug from under it.
  asio::post(context_.io, [this, kept = e.shared_from_this()] { in_flight_.erase(kept), maybe_finished(); });
}

void Worker::dispatch_closed() {
  if (ended()) return maybe_finished();
  Prepared p = make(next_);
  next_ += static_cast<size_t>(spec_.threads);
  const int64_t now = context_.now();
  send(std::move(p), now, now);
}

void Worker::dispatch_open() {
  context_.due = INT64_MAX;  // not again from an event that is handled below
  while (!ended() && ready_) {
    const auto due = static_cast<int64_t>(plans_[next_].at * 1e9);
    int64_t now = context_.now();
    if (due - now > kSpin) {
      timer_.expires_at(context_.start + std::chrono::nanoseconds(due - kSpin));
      timer_.async_wait([this](boost::system::error_code ec) {
        if (!ec) dispatch_open();
      });
      context_.due = due;
      return;
    }
    while (now < due) now = context_.now();
    Prepared p = std::move(*ready_);
    next_ += static_cast<size_t>(spec_.threads);
    if (max_in_flight_ > 0 && static_cast<int64_t>(in_flight_.size()) >= max_in_flight_)
      queue_.emplace_back(std::move(p), due);
    else send(std::move(p), due, now);
    prepare();
    // Let answers be read between two sends, also when the schedule leaves no time.
    context_.io.poll_one();
  }
  maybe_finished();
}

void Worker::watch_stop() {
  if (spec_.stop == nullptr) return;
  stop_timer_.expires_after(kStopPoll);
  stop_timer_.async_wait([this](boost::system::error_code ec) {
    if (ec) return;
    if (!*spec_.stop) {
      // All may have ended while this call was on its way, too late for a cancellation.
      if (!all_finished()) watch_stop();
      return;
    }
    stopping_ = true;
    timer_.cancel();
    queue_.clear();
    const auto now = in_flight_;
    for (const auto& e : now) e->abort("interrupted");
    maybe_finished();
  });
}

void Worker::maybe_finished() {
  if (all_finished()) stop_timer_.cancel();
}

}  // namespace

Result<Server> parse_server(const std::string& url, const TlsOptions& tls_options) {
  constexpr std::string_view kHttp = "http://", kHttps = "https://";
  std::string_view rest = url;
  const bool tls = rest.starts_with(kHttps);
  if (tls) rest.remove_prefix(kHttps.size());
  else if (rest.starts_with(kHttp)) rest.remove_prefix(kHttp.size());
  Server s;
  s.url = url;
  const size_t slash = rest.find('/');
  std::string_view authority = rest.substr(0, slash);
  if (slash != std::string_view::npos) s.base = rest.substr(slash);
  while (!s.base.empty() && s.base.back() == '/') s.base.pop_back();
  size_t colon = authority.rfind(':');
  if (authority.starts_with('[')) {
    const size_t close = authority.find(']');
    if (close == std::string_view::npos)
      return invalid_argument(cat("server: ", url, " has a '[' without ']'"), "server");
    s.host = authority.substr(1, close - 1);
    colon = authority.find(':', close);
  } else {
    s.host = authority.substr(0, colon);
  }
  s.port = colon == std::string_view::npos ? (tls ? "443" : "80") : std::string(authority.substr(colon + 1));
  const bool digits =
      !s.port.empty() && s.port.size() <= 5 && s.port.find_first_not_of("0123456789") == std::string::npos;
  if (s.host.empty() || !digits || s.base.find_first_of(" \r\n") != std::string::npos)
    return invalid_argument(cat("server: '", url, "' is no address; write http://host:port"), "server");
  s.tls = tls;
  s.tls_options = tls_options;
  s.links = LinkMaker::plain();
  if (tls) { OAR_ASSIGN(s.links, LinkMaker::tls(s.host, tls_options)); }
  return s;
}

Result<RunResult> run_load(const RunSpec& spec, const Workload& workload, const std::vector<Plan>& plans,
                           LoadProgress* progress) {
  for (const std::string& h : spec.headers)
    if (h.find(':') == std::string::npos || h.find_first_of("\r\n") != std::string::npos)
      return invalid_argument(cat("header: '", h, "' is no header; write 'Name: value'"), "header");
  raise_descriptor_limit();  // ten thousand streams are ten thousand descriptors
  std::shared_ptr<GrpcTarget> grpc;
  if (is_grpc(workload.spec().endpoint)) { OAR_ASSIGN(grpc, GrpcTarget::create(spec, workload)); }
  asio::io_context resolving;
  boost::system::error_code ec;
  const auto found = tcp::resolver(resolving).resolve(spec.server.host, spec.server.port, ec);
  if (ec) return unavailable(cat("server: ", spec.server.url, ": ", ec.message()));
  std::vector<tcp::endpoint> addresses;
  for (const auto& entry : found) addresses.push_back(entry.endpoint());

  RunSpec own = spec;
  own.keep_texts |= workload.spec().turns > 1;
  own.threads = static_cast<int>(std::clamp<int64_t>(
      own.threads, 1,
      own.closed_loop ? std::max<int64_t>(1, own.concurrency) : static_cast<int64_t>(plans.size())));
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < own.threads; ++i)
    workers.push_back(std::make_unique<Worker>(own, workload, plans, i, addresses, grpc, progress));
  const double cpu = cpu_seconds();
  // Threads and first bodies take a moment that should not be lateness.
  const Clock::time_point start = Clock::now() + std::chrono::milliseconds(spec.closed_loop ? 0 : 20);
  std::vector<std::thread> threads;
  for (auto& w : workers) threads.emplace_back([&w, start] { w->run(start); });
  for (std::thread& t : threads) t.join();

  RunResult out;
  out.cpu_seconds = cpu_seconds() - cpu;
  for (auto& w : workers) {
    out.gaps.merge(w->context().gaps);
    out.bytes += w->context().bytes;
    out.chunks += w->context().chunks;
    std::move(w->records.begin(), w->records.end(), std::back_inserter(out.records));
  }
  std::sort(out.records.begin(), out.records.end(), [](const Record& a, const Record& b) {
    return a.index != b.index ? a.index < b.index : a.turn < b.turn;
  });
  int64_t from = INT64_MAX, to = 0;
  for (const Record& r : out.records) from = std::min(from, r.intended), to = std::max(to, r.end);
  out.seconds = out.records.empty() ? 0 : static_cast<double>(to - from) * 1e-9;
  return out;
}

}  // namespace oar::loadtest

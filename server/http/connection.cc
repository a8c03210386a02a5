// The connection's state machine: reading, parsing, limits and deadlines, writing.
#include "server/http/connection.h"

#include <openssl/err.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <cstring>
#include <ctime>
#include <iterator>

#include "engine/base/format.h"
#include "server/http/compression.h"
#include "server/http/exchange.h"
#include "server/http/tls_layer.h"

namespace oar::http {
namespace {

namespace beast_http = boost::beast::http;
using boost::system::error_code;

constexpr std::chrono::milliseconds kDrainLinger{100};
constexpr uint64_t kMaxLingerBytes = 64 << 20;  // what a refused upload may still send before it is cut off

// Things Beast's parser lets pass and HTTP/1.1 (RFC 9112) wants refused: folded header lines, bare CR or LF,
// NUL.
bool header_is_clean(std::string_view block) {
  for (size_t i = 0; i < block.size(); ++i) {
    const char c = block[i];
    if (c == '\0') return false;
    if (c == '\n' && (i == 0 || block[i - 1] != '\r')) return false;
    if (c == '\r' && (i + 1 == block.size() || block[i + 1] != '\n')) return false;
    if (c == '\n' && i + 1 < block.size() && (block[i + 1] == ' ' || block[i + 1] == '\t')) return false;
  }
  return true;
}

// Of this second; written once a second.
const std::string& http_date() {
  static thread_local std::time_t of = 0;
  static thread_local std::string written;
  const std::time_t now = std::time(nullptr);
  if (now == of) return written;
  char text[64];
  std::tm tm{};
  gmtime_r(&now, &tm);
  const size_t n = std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &tm);
  of = now;
  written.assign(text, n);
  return written;
}

bool is_loopback(const asio::ip::address& a) {
  if (a.is_v6() && a.to_v6().is_v4_mapped())
    return asio::ip::make_address_v4(asio::ip::v4_mapped, a.to_v6()).is_loopback();
  return a.is_loopback();
}

// A header value must not start a new line, whoever made it.
void append_header(std::string& out, std::string_view name, std::string_view value) {
  const auto forbidden = [](char c) { return c == '\r' || c == '\n' || c == '\0'; };
  out += name;
  out += ": ";
  if (std::none_of(value.begin(), value.end(), forbidden)) out += value;
  else std::remove_copy_if(value.begin(), value.end(), std::back_inserter(out), forbidden);
  out += "\r\n";
}

// Path and query of the target, the path without `root`. False for a broken %-escape; the path is then what
// came before it.
bool split_target(Request& request, const std::string& root) {
  std::string_view target = request.target;
  if (const size_t scheme = target.find("://"); scheme != std::string_view::npos && target.front() != '/') {
    const size_t slash = target.find('/', scheme + 3);  // absolute form, as a proxy sends it
    target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
  }
  const size_t query = target.find('?');
  if (query != std::string_view::npos) request.query = std::string(target.substr(query + 1));
  const bool good = percent_decode(target.substr(0, query), request.path);
  if (!root.empty() && request.path.starts_with(root) &&
      (request.path.size() == root.size() || request.path[root.size()] == '/')) {
    request.path.erase(0, root.size());
    if (request.path.empty()) request.path = "/";
  }
  return good;
}

}  // namespace

Connection::Connection(std::shared_ptr<ConnectionHost> host, Loop& loop, Tcp::socket socket, bool vital_only)
    : host_(std::move(host)),
      limits_(host_->options.limits),
      loop_(loop),
      io_(loop.io),
      socket_(std::move(socket)),
      timer_(io_),
      vital_only_(vital_only) {
  error_code ec;
  const auto endpoint = socket_.remote_endpoint(ec);
  if (!ec) peer_ = cat(endpoint.address().to_string(), ":", endpoint.port());
  if (host_->loopback) {
    host_check_ = HostCheck::kOwn;
  } else if (host_->options.origins.names_hosts() || is_loopback(socket_.local_endpoint(ec).address())) {
    host_check_ = HostCheck::kNames;
  }
  socket_.set_option(Tcp::no_delay(true), ec);
  socket_.set_option(asio::socket_base::keep_alive(true), ec);
}

Connection::~Connection() { release_body(); }

void Connection::start() {
  socket_.non_blocking(true);
  watch();
  if (host_->options.tls) return handshake();
  enter(State::kIdle);
  read_more();
}

// ---- TLS ----

void Connection::handshake() {
  enter(State::kHandshake);
  SSL* session = host_->options.tls->new_session();
  if (session == nullptr) return close();
  tls_ = std::make_unique<TlsLayer>(socket_, session);
  tls_->stream.async_handshake(asio::ssl::stream_base::server,
                               [self = shared_from_this()](error_code ec) { self->on_handshake(ec); });
}

void Connection::on_handshake(error_code ec) {
  if (state_ == State::kClosed) return;
  if (ec) {
    if (ERR_GET_REASON(static_cast<unsigned long>(ec.value())) == SSL_R_HTTP_REQUEST) explain_plain_http();
    return close();
  }
  if (host_->draining) return linger();
  enter(State::kIdle);
  read_more();
}

// Somebody wrote http:// and means https://. One plain answer, best effort.
void Connection::explain_plain_http() {
  const Response r = host_->options.error_response(nullptr, 400, "this port speaks HTTPS; write https://");
  const std::string text =
      cat("HTTP/1.1 400 ", reason_phrase(400), "\r\nContent-Type: ", r.content_type,
          "\r\nContent-Length: ", r.body.size(), "\r\nConnection: close\r\n\r\n", r.body);
  error_code ignored;
  socket_.write_some(asio::buffer(text), ignored);
  socket_.shutdown(Tcp::socket::shutdown_send, ignored);
}

void Connection::begin_drain() {
  asio::post(io_, [self = shared_from_this()] {
    if (self->state_ == State::kIdle && !self->writing_) self->linger();
    if (self->state_ == State::kHandshake) self->close();
  });
}

void Connection::abort() {
  asio::post(io_, [self = shared_from_this()] { self->close(); });
}

void Connection::make_room() {
  asio::post(io_, [self = shared_from_this()] {
    if (self->waits_for_client()) self->close();
  });
}

// ---- input ----

void Connection::read_more() {
  if (reading_ || end_of_input_ || state_ == State::kClosed) return;
  if (state_ == State::kAnswering && input_.size() >= limits_.pipelined_bytes) return;
  reading_ = true;
  if (tls_) {
    tls_->stream.async_read_some(asio::buffer(tls_->buffer),
                                 [self = shared_from_this()](error_code ec, size_t bytes) {
                                   self->reading_ = false;
                                   self->on_bytes(ec, {self->tls_->buffer.data(), bytes});
                                 });
    return;
  }
  socket_.async_wait(Tcp::socket::wait_read, [self = shared_from_this()](error_code ec) {
    self->reading_ = false;
    self->on_readable(ec);
  });
}

void Connection::on_readable(error_code ec) {
  if (state_ == State::kClosed) return;
  static thread_local std::array<char, 64 << 10>
      buffer;  // shared by a thread's connections: emptied before returning
  size_t bytes = 0;
  if (!ec) bytes = socket_.read_some(asio::buffer(buffer), ec);
  if (ec == asio::error::would_block || ec == asio::error::interrupted) return read_more();
  on_bytes(ec, {buffer.data(), bytes});
}

void Connection::on_bytes(error_code ec, std::string_view bytes) {
  if (state_ == State::kClosed) return;
  if (ec) {
    end_of_input_ = true;
    return on_end_of_input();
  }
  if (state_ == State::kLingering) {
    lingered_bytes_ += bytes.size();
    return lingered_bytes_ > kMaxLingerBytes ? close() : read_more();
  }
  input_.append(bytes);
  process();
  read_more();
}

void Connection::on_end_of_input() {
  switch (state_) {
    case State::kAnswering:
      if (!answer_complete_) close();  // nobody waits for the rest
      return;                          // a complete answer is still written
    case State::kHeader:
    case State::kBody: return refuse(400, "the connection was closed in the middle of the request");
    default: return close();
  }
}

// A handler that answers at once ends its exchange within the call: the loop here then goes on with the next
// request, instead of one more call within the last one's.
void Connection::process() {
  if (processing_) return;
  struct Within {
    bool& on;
    ~Within() { on = false; }
  } within{processing_};
  processing_ = true;
  for (bool more = true; more;) {
    const uint64_t before = exchange_;
    switch (state_) {
      case State::kIdle:
        more = !input_.empty();
        if (more) enter(State::kHeader);
        break;
      case State::kHeader: more = process_header(); break;
      case State::kBody: more = process_body(); break;
      default: more = false;
    }
    more = more || (exchange_ != before && state_ == State::kIdle);
  }
}

bool Connection::process_header() {
  size_t blank = 0;  // empty lines before a request are to be ignored (RFC 9112, 2.2)
  while (blank + 1 < input_.size() && input_[blank] == '\r' && input_[blank + 1] == '\n') blank += 2;
  if (blank > 0) {
    input_.erase(0, blank);
    scanned_ = 0;
  }
  const size_t end = input_.find("\r\n\r\n", scanned_);
  const size_t line_end = input_.find("\r\n");
  if (std::min(line_end, input_.size()) > limits_.target_bytes + 64) {  // 64: method and version
    refuse(414, cat("the request target is longer than ", limits_.target_bytes, " bytes"));
    return false;
  }
  const size_t size = end == std::string::npos ? input_.size() : end + 4;
  if (size > limits_.header_bytes) {
    refuse(431, cat("the request header is larger than ", limits_.header_bytes, " bytes"));
    return false;
  }
  if (end == std::string::npos) {
    scanned_ = input_.size() < 3 ? 0 : input_.size() - 3;
    return false;
  }
  scanned_ = 0;
  const bool good = parse_header(std::string_view(input_).substr(0, size)) && admit_request();
  input_.erase(0, size);
  if (!good) return false;
  if (parser_->is_done()) {
    dispatch({});
    return false;
  }
  enter(State::kBody);
  return true;
}

// Fills request_ from the parsed header; refuses what no later stage should have to think about.
bool Connection::parse_header(std::string_view block) {
  request_ = Request{};
  request_.peer = peer_;
  route_ = nullptr;
  head_only_ = false;
  keep_alive_ = false;
  request_start_ = std::chrono::steady_clock::now();
  auto fail = [this](int status, const std::string& message) {
    refuse(status, message);
    return false;
  };
  if (!header_is_clean(block)) {
    return fail(400, "the request header holds a folded line, a bare CR or LF, or a NUL byte");
  }
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(limits_.header_bytes));
  parser_->body_limit(limits_.body_bytes);
  parser_->eager(false);
  error_code ec;
  parser_->put(asio::buffer(block.data(), block.size()), ec);
  const auto& message = parser_->get();
  request_.version = static_cast<int>(message.version());
  request_.method = std::string(message.method_string());
  request_.target = std::string(message.target());
  const bool well_formed =
      split_target(request_, host_->options.root_path);  // first: a refusal's dialect follows from the path
  if (ec == beast_http::error::body_limit) {
    return fail(413, cat("the request body is larger than ", limits_.body_bytes, " bytes"));
  }
  if (ec == beast_http::error::bad_version) return fail(505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
  if (ec || !parser_->is_header_done()) return fail(400, cat("malformed request header: ", ec.message()));

  size_t hosts = 0, encodings = 0, lengths = 0;
  for (const auto& field : message) {
    const std::string_view name(field.name_string().data(), field.name_string().size());
    hosts += iequals(name, "Host");
    encodings += iequals(name, "Transfer-Encoding");
    lengths += iequals(name, "Content-Length");
    request_.headers.push_back({std::string(name), std::string(field.value())});
  }
  head_only_ = request_.method == "HEAD";
  keep_alive_ = parser_->keep_alive() && !host_->draining && !vital_only_;
  if (encodings > 0) {
    if (request_.version < 11) return fail(400, "HTTP/1.0 knows no Transfer-Encoding");
    if (lengths > 0) return fail(400, "Content-Length and Transfer-Encoding exclude each other");
    if (encodings > 1 || !iequals(trim(request_.header("Transfer-Encoding")), "chunked")) {
      return fail(501, "the only Transfer-Encoding understood is chunked");
    }
  }
  if (hosts > 1 || (hosts == 0 && request_.version >= 11)) {
    return fail(400, "an HTTP/1.1 request has exactly one Host header");
  }
  if (!well_formed) return fail(400, "the request path holds a broken %-escape");
  return true;
}

// Everything that can be refused before the body is read.
bool Connection::admit_request() {
  auto answer = [this](Response response) {
    refused_ = !parser_->is_done();  // a body follows that nobody reads
    keep_alive_ = keep_alive_ && !refused_;
    ++exchange_;
    enter(State::kAnswering);
    send(exchange_, std::move(response));
    return false;
  };
  const HttpServerOptions& options = host_->options;
  if (const auto why = options.origins.refusal(request_, host_check_))
    return answer(options.error_response(&request_, 403, *why));
  if (request_.method == "OPTIONS") {
    Router::Match any = host_->router.match("OPTIONS", request_.path);
    if (any.allow.empty())
      return answer(options.error_response(&request_, 404, cat("no such path: ", request_.path)));
    Response response{200, "", {{"Allow", any.allow}}, ""};
    if (request_.has_header("Access-Control-Request-Method") &&
        options.origins.allows(trim(request_.header("Origin")))) {
      const CorsAnswer& cors = options.cors;
      response.headers.push_back(
          {"Access-Control-Allow-Methods", cors.methods.empty() ? any.allow : cors.methods});
      // The origin is trusted, whichever headers its client library sends.
      response.headers.push_back({"Access-Control-Allow-Headers",
                                  cors.headers.empty()
                                      ? std::string(request_.header("Access-Control-Request-Headers"))
                                      : cors.headers});
      response.headers.push_back({"Access-Control-Max-Age", "600"});
    }
    return answer(std::move(response));
  }
  Router::Match match = host_->router.match(request_.method, request_.path);
  if (!match.route) {
    if (match.allow.empty()) {
      return answer(options.error_response(&request_, 404, cat("no such path: ", request_.path)));
    }
    Response response = options.error_response(
        &request_, 405, cat(request_.path, " does not answer ", request_.method, ", only ", match.allow));
    response.headers.push_back({"Allow", match.allow});
    return answer(std::move(response));
  }
  route_ = match.route;
  request_.route = route_->pattern;
  request_.params = std::move(match.params);
  if (vital_only_ && !route_->vital) {
    Response full = options.error_response(&request_, 503, "too many connections; try again later");
    full.headers.push_back({"Retry-After", "1"});
    return answer(std::move(full));
  }
  if (options.admit) {
    if (auto refusal = options.admit(request_, *route_)) return answer(std::move(*refusal));
  }
  coding_ = Coding::kIdentity;
  if (parser_->is_done()) return true;
  const std::string_view named = request_.header("Content-Encoding");
  const std::optional<Coding> coding = read_coding(named);
  if (!coding) {
    return answer(options.error_response(
        &request_, 415,
        cat("Content-Encoding is '", named.substr(0, 64), "'; use gzip or deflate, or none")));
  }
  coding_ = *coding;
  if (!reserve_body()) {
    Response busy =
        options.error_response(&request_, 503, "too many request bodies are being received; try again");
    busy.headers.push_back({"Retry-After", "1"});
    return answer(std::move(busy));
  }
  if (request_.has_header("Expect")) {
    if (!iequals(request_.header("Expect"), "100-continue")) {
      return answer(options.error_response(&request_, 417, "the only Expect understood is 100-continue"));
    }
    pending_ += "HTTP/1.1 100 Continue\r\n\r\n";
    flush();
  }
  return true;
}

bool Connection::reserve_body() {
  const auto length = parser_->content_length();
  const bool known = length && coding_ == Coding::kIdentity;
  const size_t bytes = known ? static_cast<size_t>(*length) : limits_.body_bytes;
  if (host_->body_bytes.fetch_add(bytes) + bytes > limits_.total_body_bytes) {
    host_->body_bytes.fetch_sub(bytes);
    return false;
  }
  body_reserved_ = bytes;
  body_wire_bytes_ = 0;
  parser_->eager(true);
  return true;
}

void Connection::release_body() {
  host_->body_bytes.fetch_sub(body_reserved_);
  body_reserved_ = 0;
}

bool Connection::process_body() {
  error_code ec;
  const size_t used = parser_->put(asio::buffer(input_.data(), input_.size()), ec);
  input_.erase(0, used);
  body_wire_bytes_ += used;
  if (ec == beast_http::error::body_limit) {
    refuse(413, cat("the request body is larger than ", limits_.body_bytes, " bytes"));
    return false;
  }
  if (ec && ec != beast_http::error::need_more) {
    refuse(400, cat("malformed request body: ", ec.message()));
    return false;
  }
  if (!parser_->is_done()) {
    // A chunk header, its extensions and the trailers are bounded like a header; the framing of a flood of
    // one-byte chunks (six bytes each) may not cost more than the body plus a megabyte.
    const bool flood = body_wire_bytes_ > 2 * parser_->get().body().size() + (1 << 20);
    if (input_.size() > limits_.header_bytes || flood) {
      refuse(400, "the chunked request body is mostly framing; send larger chunks");
    }
    return false;
  }
  dispatch(std::move(parser_->get().body()));
  return false;
}

// The handler gets a copy: the answer's headers, metrics and errors still need the request's own.
void Connection::dispatch(std::string body) {
  parser_.reset();
  if (coding_ != Coding::kIdentity) {
    Result<std::string> plain = decompress(body, coding_, limits_.body_bytes);
    if (!plain.ok()) {
      release_body();
      return refuse(plain.status().code() == StatusCode::kOutOfRange ? 413 : 400,
                    cat("the request body ", plain.status().message()));
    }
    body = std::move(*plain);
  }
  release_body();
  ++exchange_;
  enter(State::kAnswering);
  Request request = request_;
  if (host_->options.reword) request_.body = body;  // which the words of an error may be about
  request.body = std::move(body);
  const Coding accepted =
      route_->compresses ? accepted_coding(request_.header("Accept-Encoding")) : Coding::kIdentity;
  route_->handler(std::move(request), std::make_shared<Exchange>(shared_from_this(), exchange_, accepted));
}

// ---- output ----

void Connection::refuse(int status, const std::string& message) {
  keep_alive_ = false;
  refused_ = true;
  ++exchange_;
  enter(State::kAnswering);
  send(exchange_,
       host_->options.error_response(request_.method.empty() ? nullptr : &request_, status, message));
}

void Connection::append_head(const Response& response, std::optional<size_t> content_length) {
  status_ = response.status;
  pending_ += cat("HTTP/1.1 ", response.status, " ", reason_phrase(response.status), "\r\n");
  append_header(pending_, "Server", "oar");
  append_header(pending_, "Date", http_date());
  if (!response.content_type.empty()) append_header(pending_, "Content-Type", response.content_type);
  if (content_length && response.status != 204) {
    append_header(pending_, "Content-Length", cat(*content_length));
  }
  if (chunked_) append_header(pending_, "Transfer-Encoding", "chunked");
  append_header(pending_, "Connection", keep_alive_ ? "keep-alive" : "close");
  for (const Header& h : response.headers) append_header(pending_, h.name, h.value);
  const std::string_view origin = trim(request_.header("Origin"));
  if (!origin.empty() && host_->options.origins.allows(origin)) {
    append_header(pending_, "Access-Control-Allow-Origin", origin);
    append_header(pending_, "Vary", "Origin");
    append_header(pending_, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    if (host_->options.cors.credentials) append_header(pending_, "Access-Control-Allow-Credentials", "true");
  }
  pending_ += "\r\n";
}

void Connection::send(uint64_t exchange, Response&& response) {
  if (!current(exchange) || answer_complete_ || stream_) return;
  if (response.status == 429 || response.status == 503) loop_.refused = std::chrono::steady_clock::now();
  if (response.failure && host_->options.reword) host_->options.reword(request_, response);
  append_head(response, response.body.size());
  if (!head_only_) pending_ += response.body;
  answer_complete_ = true;
  flush();
}

void Connection::start_stream(uint64_t exchange, Response&& response) {
  if (!current(exchange) || answer_complete_ || stream_) return;
  stream_ = true;
  chunked_ = request_.version >= 11;
  if (!chunked_) keep_alive_ = false;
  append_head(response, std::nullopt);
  append_chunk(response.body);
  flush();
}

void Connection::append_chunk(std::string_view bytes) {
  if (bytes.empty() || head_only_) return;
  if (!chunked_) {
    pending_ += bytes;
    return;
  }
  char size[20];
  const auto end = std::to_chars(size, size + sizeof size, bytes.size(), 16).ptr;
  pending_.append(size, static_cast<size_t>(end - size));
  pending_ += "\r\n";
  pending_ += bytes;
  pending_ += "\r\n";
}

void Connection::write_chunk(uint64_t exchange, std::string_view bytes) {
  if (!current(exchange) || !stream_ || answer_complete_) return;
  append_chunk(bytes);
  flush();
}

bool Connection::behind(uint64_t exchange) {
  if (!current(exchange)) return false;
  behind_ |= unsent() > limits_.stream_buffer_bytes;
  return behind_;
}

void Connection::set_drain(uint64_t exchange, std::function<void()> callback) {
  if (!current(exchange) || answer_complete_) return;
  on_drain_ = std::move(callback);
  if (!behind_) on_drain_();  // it may have been, before there was anybody to tell
}

void Connection::finish_stream(uint64_t exchange) {
  if (!current(exchange) || !stream_ || answer_complete_) return;
  if (chunked_ && !head_only_) pending_ += "0\r\n\r\n";
  answer_complete_ = true;
  flush();
}

void Connection::abandon(uint64_t exchange) {
  if (!current(exchange) || answer_complete_) return;
  if (stream_) return close();  // a truncated stream must not look complete
  send(exchange, host_->options.error_response(&request_, 500, "the request was dropped without an answer"));
}

void Connection::set_disconnect(uint64_t exchange, std::function<void()> callback) {
  if (current(exchange)) {
    if (!answer_complete_) on_disconnect_ = std::move(callback);
  } else if (exchange == exchange_ && state_ == State::kClosed && !answer_complete_) {
    callback();
  }
}

void Connection::flush() {
  if (writing_ || state_ == State::kClosed) return;
  if (written_ == output_.size()) {
    output_.clear();
    written_ = 0;
    output_.swap(pending_);
  }
  if (output_.empty()) {
    if (state_ == State::kAnswering) {
      if (answer_complete_) complete_exchange();
      else deadline_ = SteadyTime::max();
    }
    return;
  }
  // Most answers fit into what the system holds for a client. One attempt: the rest of a large one takes
  // turns with other connections. Who waits for a client that is behind is told by on_written(), never within
  // a call.
  if (!tls_ && written_ == 0 && !behind_) {
    error_code ec;
    written_ = socket_.write_some(asio::buffer(output_), ec);
    if (written_ == output_.size()) return flush();
  }
  writing_ = true;
  if (state_ == State::kAnswering) set_deadline(limits_.write_timeout);
  const auto bytes = asio::buffer(output_.data() + written_, output_.size() - written_);
  auto written = [self = shared_from_this()](error_code ec, size_t n) {
    self->writing_ = false;
    self->on_written(ec, n);
  };
  if (tls_) tls_->stream.async_write_some(bytes, std::move(written));
  else socket_.async_write_some(bytes, std::move(written));
}

void Connection::on_written(error_code ec, size_t bytes) {
  if (state_ == State::kClosed) return;
  if (ec) return close();
  written_ += bytes;
  if (behind_ && unsent() <= limits_.stream_buffer_bytes / 4) {
    behind_ = false;
    if (on_drain_) on_drain_();
  }
  flush();
}

void Connection::complete_exchange() {
  on_disconnect_ = on_drain_ = nullptr;
  behind_ = false;
  if (host_->options.on_complete) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - request_start_;
    host_->options.on_complete(route_ ? route_->pattern : "unmatched", request_.method, status_,
                               took.count());
  }
  if (!keep_alive_ || host_->draining || (end_of_input_ && input_.empty())) return linger();
  enter(State::kIdle);
  process();
  if (end_of_input_ && (state_ == State::kHeader || state_ == State::kBody)) return linger();
  read_more();
}

// ---- life ----

void Connection::enter(State state) {
  const bool waited = waits_for_client();
  state_ = state;
  const bool begins = state == State::kIdle || state == State::kHandshake;
  if (host_->waits && (waited != waits_for_client() || begins)) host_->waits(this, waits_for_client());
  switch (state) {
    case State::kIdle:
      request_ = Request{};
      // Idle connections are many: what they have no bytes in goes back.
      for (std::string* buffer : {&input_, &output_, &pending_})
        if (buffer->empty()) std::string().swap(*buffer);
      answer_complete_ = stream_ = chunked_ = refused_ = false;
      set_deadline(limits_.idle_timeout);
      break;
    case State::kHandshake:
    case State::kHeader: set_deadline(limits_.header_timeout); break;
    case State::kBody: set_deadline(limits_.body_timeout); break;
    case State::kLingering:
      // Whoever waits for the server to stop does not wait for a client to notice.
      set_deadline(host_->draining ? std::min(limits_.linger_timeout, kDrainLinger) : limits_.linger_timeout);
      break;
    case State::kAnswering: answer_complete_ = stream_ = chunked_ = false; [[fallthrough]];
    case State::kClosed: deadline_ = SteadyTime::max(); break;
  }
}

void Connection::set_deadline(std::chrono::milliseconds from_now) {
  deadline_ = std::chrono::steady_clock::now() + from_now;
  if (deadline_ < timer_.expiry()) watch();
}

// One timer, moved only when the deadline comes nearer: a later one, as every write sets, is found when it
// fires.
void Connection::watch() {
  constexpr std::chrono::hours kFar{1};  // no deadline: look again then
  timer_.expires_at(std::min(deadline_, std::chrono::steady_clock::now() + kFar));
  timer_.async_wait([self = shared_from_this()](error_code ec) {
    if (ec || self->state_ == State::kClosed) return;
    if (std::chrono::steady_clock::now() >= self->deadline_) self->on_timer();
    if (self->state_ != State::kClosed) self->watch();
  });
}

void Connection::on_timer() {
  switch (state_) {
    case State::kHeader: return refuse(408, "the request header did not arrive in time");
    case State::kBody: return refuse(408, "the request body did not arrive in time");
    case State::kIdle: return linger();
    default: return close();  // a peer that does not read, or sends on after being refused
  }
}

// Half-closes and reads away what the client still sends, so that an early error reaches it instead of a
// reset.
void Connection::linger() {
  enter(State::kLingering);
  error_code ec;
  if (!tls_) {
    socket_.shutdown(Tcp::socket::shutdown_send, ec);
  } else if (!refused_) {
    // close_notify, and the client's. Behind a refusal it is not sent: OpenSSL takes no more of what a client
    // that has not heard it yet goes on sending.
    tls_->stream.async_shutdown([self = shared_from_this()](error_code) { self->close(); });
  }
  if (ec || (end_of_input_ && (!tls_ || refused_))) return close();
  input_.clear();
  input_.shrink_to_fit();
  read_more();
}

void Connection::close() {
  if (state_ == State::kClosed) return;
  const bool unanswered = state_ == State::kAnswering && !answer_complete_;
  state_ = State::kClosed;
  release_body();
  error_code ec;
  timer_.cancel();
  socket_.close(ec);
  auto callback = std::move(on_disconnect_);
  on_disconnect_ = on_drain_ = nullptr;
  if (unanswered && callback) callback();
  if (unanswered && host_->options.on_complete) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - request_start_;
    host_->options.on_complete(route_ ? route_->pattern : "unmatched", request_.method, 499, took.count());
  }
  if (host_->closed) host_->closed(this);
}

}  // namespace oar::http

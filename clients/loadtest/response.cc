#include "clients/loadtest/response.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/field.hpp>

#include "engine/base/format.h"

namespace oar::loadtest {

namespace http = boost::beast::http;
using boost::system::error_code;

void SseParser::end_line(std::string_view line) {
  if (line.front() == ':') return;  // a comment, sent to keep the connection open
  const size_t colon = line.find(':');
  const std::string_view field = line.substr(0, colon);
  std::string_view value = colon == std::string_view::npos ? std::string_view() : line.substr(colon + 1);
  if (!value.empty() && value.front() == ' ') value.remove_prefix(1);
  if (field != "data") return;  // event, id, retry: nothing we use
  if (has_data_) data_ += '\n';
  data_ += value;
  has_data_ = true;
}

// Beast's state machine without its containers: bytes of the body go straight on.
struct ResponseParser::Impl final : http::basic_parser<false> {
  explicit Impl(std::function<void(std::string_view)> sink) : on_body(std::move(sink)) {
    header_limit(64 << 10);
    body_limit(boost::none);
    eager(true);
  }
  using Text = boost::beast::string_view;
  void on_request_impl(http::verb, Text, Text, int, error_code&) override {}
  void on_response_impl(int status, Text, int, error_code&) override { code = static_cast<unsigned>(status); }
  void on_field_impl(http::field name, Text, Text value, error_code&) override {
    if (name == http::field::content_type) type.assign(value.data(), value.size());
  }
  void on_header_impl(error_code&) override {}
  void on_body_init_impl(boost::optional<uint64_t> const&, error_code&) override {}
  size_t on_body_impl(Text body, error_code&) override {
    on_body(std::string_view(body.data(), body.size()));
    return body.size();
  }
  void on_chunk_header_impl(uint64_t, Text, error_code&) override {}
  size_t on_chunk_body_impl(uint64_t, Text body, error_code&) override {
    on_body(std::string_view(body.data(), body.size()));
    return body.size();
  }
  void on_finish_impl(error_code&) override {}

  std::function<void(std::string_view)> on_body;
  unsigned code = 0;
  std::string type;
};

ResponseParser::ResponseParser(std::function<void(std::string_view)> on_body)
    : impl_(std::make_unique<Impl>(std::move(on_body))) {}
ResponseParser::~ResponseParser() = default;

Status ResponseParser::push(std::string_view bytes) {
  if (!pending_.empty()) {
    pending_ += bytes;
    bytes = pending_;
  }
  while (!bytes.empty() && !impl_->is_done()) {
    error_code ec;
    const size_t used = impl_->put(boost::asio::const_buffer(bytes.data(), bytes.size()), ec);
    bytes.remove_prefix(used);
    if (ec == http::error::need_more) break;
    if (ec)
      return Status(StatusCode::kDataLoss, cat("the server's answer is not valid HTTP: ", ec.message()));
    if (used == 0) break;
  }
  if (!bytes.empty() && impl_->is_done())
    return Status(StatusCode::kDataLoss,
                  cat(bytes.size(), " bytes follow the end of the response; its length is wrong"));
  std::string rest(bytes);  // `bytes` may point into pending_
  pending_ = std::move(rest);
  return ok_status();
}

Status ResponseParser::finish() {
  if (impl_->is_done()) return ok_status();
  error_code ec;
  if (impl_->got_some()) impl_->put_eof(ec);
  else return Status(StatusCode::kUnavailable, "the server closed the connection without an answer");
  if (ec) return Status(StatusCode::kDataLoss, "the connection ended before the response did");
  return ok_status();
}

bool ResponseParser::done() const { return impl_->is_done(); }
bool ResponseParser::has_header() const { return impl_->is_header_done(); }
bool ResponseParser::keep_alive() const { return impl_->is_done() && impl_->keep_alive(); }
unsigned ResponseParser::status_code() const { return impl_->code; }
std::string_view ResponseParser::content_type() const { return impl_->type; }

}  // namespace oar::loadtest

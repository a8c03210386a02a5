#include "clients/loadtest/link.h"

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>

namespace oar::loadtest {
namespace {

namespace asio = boost::asio;

class PlainLink final : public Link {
 public:
  explicit PlainLink(asio::io_context& io) : socket_(io) {}
  tcp::socket& socket() override { return socket_; }
  void async_open(Handler done) override {
    error_code ec;
    socket_.non_blocking(true, ec);
    asio::post(socket_.get_executor(), [done = std::move(done), ec] { done(ec); });
  }
  void async_write(asio::const_buffer bytes, Handler done) override {
    asio::async_write(socket_, bytes, [done = std::move(done)](error_code ec, size_t) { done(ec); });
  }
  void async_wait_readable(Handler done) override {
    socket_.async_wait(tcp::socket::wait_read, std::move(done));
  }
  size_t read_some(char* into, size_t most, error_code& ec) override {
    return socket_.read_some(asio::buffer(into, most), ec);
  }

 private:
  tcp::socket socket_;
};

class PlainMaker final : public LinkMaker {
 public:
  std::shared_ptr<Link> make(asio::io_context& io) const override { return std::make_shared<PlainLink>(io); }
};

}  // namespace

std::shared_ptr<const LinkMaker> LinkMaker::plain() { return std::make_shared<PlainMaker>(); }

}  // namespace oar::loadtest

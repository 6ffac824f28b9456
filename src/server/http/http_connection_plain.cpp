// This is the socket half of an unencrypted connection. A waiting connection needs no buffer: it awaits
// readiness, and then the bytes are read into the thread's own buffer. Sends are tried at once and wait only
// when the kernel's buffer is full.
#include <poll.h>

#include <exception>
#include <optional>
#include <utility>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "server/http/http_connection.h"

namespace hadal::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

class PlainConnection final : public HttpConnection {
 public:
  PlainConnection(std::shared_ptr<HttpIoThread> owner, int fd, HttpPeer peer, std::optional<Refusal> refuse)
      : HttpConnection(std::move(owner), std::move(peer), refuse), socket_(thread().context()) {
    error_code ignored;
    socket_.assign(tcp::v4(), fd, ignored);  // the family is used only for accept and connect
    socket_.non_blocking(true, ignored);
    socket_.set_option(tcp::no_delay(true), ignored);
  }

  void start() override { asio::co_spawn(thread().context(), serve(self()), asio::detached); }

 private:
  std::shared_ptr<PlainConnection> self() {
    return std::static_pointer_cast<PlainConnection>(shared_from_this());
  }

  // It is static because the frame owns the connection through its argument.
  static asio::awaitable<void> serve(std::shared_ptr<PlainConnection> c) {
    try {
      co_await converse(*c);
    } catch (const std::exception& error) {
      c->on_fault(error);
    }
  }

  static asio::awaitable<void> converse(PlainConnection& connection) {
    PlainConnection* const c = &connection;
    {
      const HttpIoThread::Batch batch(c->thread());
      c->on_open();
    }
    error_code ec;
    auto token = asio::redirect_error(asio::use_awaitable, ec);
    while (!c->closed()) {
      if (!c->wants_data()) {
        c->gate_.emplace(c->thread().context(), asio::steady_timer::time_point::max());
        co_await c->gate_->async_wait(token);
        c->gate_.reset();
        continue;
      }
      co_await c->socket_.async_wait(tcp::socket::wait_read, token);
      if (c->closed()) break;
      if (!c->wants_data()) continue;  // other connections may have taken the memory
      std::vector<char>& scratch = c->thread().scratch();
      size_t n = 0;
      if (!ec) n = c->socket_.read_some(asio::buffer(scratch), ec);
      if (ec == asio::error::would_block || ec == asio::error::try_again) continue;
      const HttpIoThread::Batch batch(c->thread());
      if (ec) {
        c->on_end();
        break;
      }
      c->on_data({scratch.data(), n});
    }
  }

  void send(std::string_view data) override {
    error_code ec;
    const size_t n = socket_.write_some(asio::buffer(data.data(), data.size()), ec);
    if (!ec) return on_sent(n);
    if (ec != asio::error::would_block && ec != asio::error::try_again) return on_end_of_writing();
    socket_.async_wait(tcp::socket::wait_write, [c = self()](const error_code& failed) {
      if (c->closed()) return;
      const HttpIoThread::Batch batch(c->thread());
      failed ? c->on_end_of_writing() : c->on_sent(0);
    });
  }

  void on_end_of_writing() { cut("client closed the connection"); }

  void resume_reading() override {
    if (gate_) gate_->cancel();
  }

  void shut_down_writing() override {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
  }

  void close_socket() override {
    error_code ignored;
    socket_.close(ignored);
  }

  bool peer_has_closed() override {
    pollfd poll{socket_.native_handle(), POLLRDHUP, 0};
    return ::poll(&poll, 1, 0) == 1;
  }

  tcp::socket socket_;
  std::optional<asio::steady_timer> gate_;  // while reading is paused
};

}  // namespace

std::shared_ptr<HttpConnection> make_plain_connection(std::shared_ptr<HttpIoThread> thread, int fd,
                                                      HttpPeer peer, std::optional<Refusal> refuse) {
  return std::make_shared<PlainConnection>(std::move(thread), fd, std::move(peer), refuse);
}

}  // namespace hadal::server

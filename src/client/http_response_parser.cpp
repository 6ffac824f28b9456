#include "client/http_response_parser.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>

#include "base/printable.h"

namespace hadal::client {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using beast::error_code;
using beast::string_view;

constexpr size_t kMaxWaiting = size_t{64} << 10;  // bytes of all headers, and of a line that has not ended
constexpr std::string_view kBegin = "HTTP/1.";

// Beast parses the structure of the answer; this class keeps the parts that the client needs.
class BeastParser final : public http::basic_parser<false> {
 public:
  explicit BeastParser(const HttpResponseParser::OnBody& on_body) : on_body_(on_body) {
    body_limit(boost::none);
    eager(true);
  }

  int status() const { return status_; }
  bool is_event_stream() const { return event_stream_; }

 private:
  void on_response_impl(int code, string_view, int, error_code&) override { status_ = code; }
  void on_field_impl(http::field field, string_view, string_view value, error_code&) override {
    if (field != http::field::content_type) return;
    const string_view type = value.substr(0, value.find(';'));
    event_stream_ = beast::iequals(type.substr(0, type.find_last_not_of(" \t") + 1), "text/event-stream");
  }
  size_t on_body_impl(string_view data, error_code&) override {
    on_body_({data.data(), data.size()});
    return data.size();
  }
  size_t on_chunk_body_impl(uint64_t, string_view data, error_code& error) override {
    return on_body_impl(data, error);
  }
  void on_request_impl(http::verb, string_view, string_view, int, error_code&) override {}
  void on_header_impl(error_code&) override {}
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}
  void on_chunk_header_impl(uint64_t, string_view, error_code&) override {}
  void on_finish_impl(error_code&) override {}

  const HttpResponseParser::OnBody& on_body_;
  int status_ = 0;
  bool event_stream_ = false;
};

// Returns the first line that a server sent, short enough for a message.
std::string begin_of(std::string_view bytes) {
  return printable(bytes.substr(0, std::min<size_t>(bytes.find_first_of("\r\n"), 40)));
}

Status describe(const error_code& error, std::string_view bytes) {
  if (error == http::error::bad_version || error == http::error::bad_status)
    return data_loss("the server does not speak HTTP/1.1: it sent '{}'", begin_of(bytes));
  if (error == http::error::header_limit)
    return data_loss("the server sent headers of more than {} bytes", kMaxWaiting);
  if (error == http::error::bad_chunk)
    return data_loss("the server sent a bad chunk size, or a chunk longer than its size");
  if (error == http::error::bad_content_length) return data_loss("the server sent a bad Content-Length");
  if (error == http::error::bad_field) return data_loss("the server sent a bad header line");
  return data_loss("the server sent malformed HTTP: {}", error.message());
}

}  // namespace

class HttpResponseParser::Impl {
 public:
  explicit Impl(OnBody on_body) : on_body_(std::move(on_body)) { parser_.emplace(on_body_); }

  Result<size_t> feed(std::string_view bytes) {
    if (bytes.empty() || done()) return size_t{0};
    started_ = true;
    // Bytes that could not be read yet are put in front of those that follow.
    const size_t held = waiting_.size();
    waiting_ += held > 0 ? bytes : std::string_view();
    const std::string whole = std::exchange(waiting_, {});
    const std::string_view all = held > 0 ? std::string_view(whole) : bytes;
    HADAL_ASSIGN_OR_RETURN(const size_t used, take(all));
    if (done()) return used - held;
    waiting_ = all.substr(used);
    return bytes.size();
  }

  Result<void> finish() {
    error_code error;
    if (!started_) return data_loss("the connection ended without an answer");
    if (!parser_->is_done()) parser_->put_eof(error);
    if (error || !done()) return data_loss("the connection ended in the middle of an answer");
    return {};
  }

  bool done() const { return parser_->is_done() && !is_interim(); }
  bool started() const { return started_; }
  const BeastParser& parser() const { return *parser_; }

 private:
  bool is_interim() const { return parser_->status() / 100 == 1; }

  // Returns how many of `bytes` were read; the others must be passed again, with more after them.
  Result<size_t> take(std::string_view bytes) {
    size_t used = 0;
    while (used < bytes.size() && !done()) {
      if (parser_->is_done()) {  // after an interim answer
        parser_.emplace(on_body_);
        header_bytes_ = 0;
      }
      const std::string_view rest = bytes.substr(used);
      if (parser_->status() == 0 && !rest.starts_with(kBegin.substr(0, rest.size())))
        return data_loss("the server does not speak HTTP/1.1: it sent '{}'", begin_of(rest));
      // Beast applies its limit to each piece of the headers, so the limit is set to what is left of the
      // total.
      parser_->header_limit(static_cast<uint32_t>(kMaxWaiting - std::min(header_bytes_, kMaxWaiting)));
      error_code error;
      const size_t count = parser_->put({rest.data(), rest.size()}, error);
      used += count;
      header_bytes_ = parser_->is_header_done() ? 0 : header_bytes_ + count;
      if (error == http::error::need_more) {
        HADAL_RETURN_IF_ERROR(check_waiting(bytes.substr(used)));
        return used;
      }
      if (error) return describe(error, rest);
    }
    return used;
  }

  // Beast waits for CR LF, so a server that never sends it would keep the client waiting until the time-out.
  Result<void> check_waiting(std::string_view bytes) const {
    if (bytes.size() > kMaxWaiting)
      return data_loss("the server sent a line of more than {} bytes", kMaxWaiting);
    for (size_t at = bytes.find('\n'); at != std::string_view::npos; at = bytes.find('\n', at + 1)) {
      if (at == 0 || bytes[at - 1] != '\r')
        return data_loss("the server sent a line that does not end in CR LF: '{}'", begin_of(bytes));
    }
    return {};
  }

  OnBody on_body_;
  std::optional<BeastParser> parser_;
  std::string waiting_;
  size_t header_bytes_ = 0;  // read of headers that have not ended
  bool started_ = false;
};

HttpResponseParser::HttpResponseParser(OnBody on_body) : impl_(std::make_unique<Impl>(std::move(on_body))) {}
HttpResponseParser::~HttpResponseParser() = default;

Result<size_t> HttpResponseParser::feed(std::string_view bytes) {
  return impl_->feed(bytes);
}
Result<void> HttpResponseParser::finish() {
  return impl_->finish();
}
bool HttpResponseParser::done() const {
  return impl_->done();
}
bool HttpResponseParser::started() const {
  return impl_->started();
}
bool HttpResponseParser::keep_alive() const {
  return done() && impl_->parser().keep_alive();
}
int HttpResponseParser::status() const {
  return impl_->parser().status();
}
bool HttpResponseParser::is_event_stream() const {
  return impl_->parser().is_event_stream();
}

}  // namespace hadal::client

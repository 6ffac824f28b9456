#include "server/http/http_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>

#include "server/http/http_parse_error.h"
#include "server/http/http_target.h"
#include "server/http/list_headers.h"

namespace hadal::server {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using beast::error_code;
using beast::string_view;

constexpr size_t kMaxHeaders = 1000;
constexpr size_t kMaxChunkExtras = size_t{16} << 10;
// A body gets this much memory before any of it has arrived, because a size that a client merely announces
// must not cost memory.
constexpr size_t kFirstReserve = size_t{64} << 10;

std::string lowered(string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

struct ParseFailure {
  bool refused = false;
  int status = 0;  // 0: none
  std::string message;
};

// Says whether this may be the beginning of the last chunk ("0", two line ends), but not yet all of it. Beast
// asserts that the last chunk is complete when it reads the chunk again.
bool may_be_cut_end(std::string_view data) {
  return data.size() < 5 && (data.starts_with("0") || data.starts_with("\r\n0"));
}

// Returns the bytes that a chunk of this size needs besides its data: the size and two line ends. The last
// chunk needs them too.
size_t chunk_frame_bytes(uint64_t size) {
  size_t digits = 1;
  while (size >>= 4) ++digits;
  return digits + 4;
}

// Beast finds the structure, and its parts are moved straight into an HttpRequest. One call of put() reads
// either the head, or data of the body, or the head of one chunk.
class BeastParser final : public http::basic_parser<true> {
 public:
  BeastParser(HttpRequest& request, ParseFailure& failure, size_t header_limit, size_t body_limit,
              const HttpRequestParser::Hooks& hooks)
      : request_(request), failure_(failure), hooks_(hooks), rule_{.limit = body_limit} {
    this->header_limit(static_cast<uint32_t>(std::min<size_t>(header_limit, UINT32_MAX)));
    this->body_limit(
        boost::none);  // set when the headers are complete: a wrong key is reported before a wrong size
  }

  bool version_11() const { return version_11_; }
  // `data` is the input of the next call of put().
  void about_to_read(std::string_view data) { data_ = data; }
  bool body_unread() const { return body_unread_; }
  // Returns the bytes of the body so far that its data and the shortest possible framing need.
  size_t needed_body_bytes() const { return needed_body_bytes_; }
  bool expect_continue() const { return expect_continue_; }
  void answered_expect() { expect_continue_ = false; }
  size_t body_limit_bytes() const { return rule_.limit; }

 private:
  void fail(error_code& ec, int status, std::string message) {
    failure_ = {false, status, std::move(message)};
    ec = http::error::bad_value;  // any error ends the parse; the failure has the details
  }

  // Beast joins a header of several lines (obs-fold; RFC 9112, 5.2) in a buffer of its own, unless all lines
  // but the last are empty. Any other value is a view of the input, on the line of its name.
  bool is_folded(string_view name, string_view value) const {
    const std::less_equal<const char*> not_after;
    const char* const line = name.data() + name.size();
    if (!not_after(line, value.data()) || !not_after(value.data(), data_.data() + data_.size())) return true;
    return std::string_view(line, static_cast<size_t>(value.data() - line)).find('\n') !=
           std::string_view::npos;
  }

  bool reserve_head(size_t bytes, error_code& ec) {
    head_memory_ += bytes;
    if (!hooks_.on_head || hooks_.on_head(head_memory_)) return true;
    refuse(ec);
    return false;
  }

  void on_request_impl(http::verb, string_view method, string_view target, int version,
                       error_code& ec) override {
    version_11_ = version >= 11;
    if (!reserve_head(request_line_bytes(method.size(), target.size()), ec)) return;
    request_.method = std::string(method);
    if (method == "CONNECT") return fail(ec, 501, "CONNECT is not supported: this is not a proxy");
    auto read = read_target({target.data(), target.size()});
    if (!read.ok()) return fail(ec, 400, read.status().message);
    request_.path = std::move(read->path);
    request_.query = std::move(read->query);
  }

  void on_field_impl(http::field field, string_view name, string_view value, error_code& ec) override {
    if (is_folded(name, value)) return fail(ec, 400, "a header of several lines (obs-fold) is not allowed");
    if (in_body_) return;  // trailers are not used
    if (!reserve_head(header_field_bytes(name.size(), value.size()), ec)) return;
    if (request_.headers.size() >= kMaxHeaders)
      return fail(ec, 431, fmt::format("more than {} header fields", kMaxHeaders));
    for (const char c : value)
      if (c == '\0' || c == '\r' || c == '\n')
        return fail(ec, 400,
                    fmt::format("the header {} has a control character; must have none", shown_header(name)));
    switch (field) {
      case http::field::host:
        ++num_hosts_;
        break;
      case http::field::transfer_encoding:
        ++num_encodings_;
        if (!beast::iequals(value, "chunked"))
          return fail(ec, 501,
                      fmt::format("Transfer-Encoding is {}; must be \"chunked\"", shown_header(value)));
        break;
      case http::field::connection:
      case http::field::proxy_connection:
      case http::field::content_length:
        num_list_entries_ += num_list_entries(value);
        if (num_list_entries_ > kMaxListEntries)
          return fail(ec, 400, too_many_entries(name, num_list_entries_));
        break;
      case http::field::authorization:
        ++num_authorizations_;
        break;
      case http::field::expect:
        if (!beast::iequals(value, "100-continue"))
          return fail(ec, 417, fmt::format("Expect is {}; must be \"100-continue\"", shown_header(value)));
        expect_continue_ = true;
        break;
      default:
        if (beast::iequals(name, "x-api-key")) ++num_api_keys_;
        break;
    }
    request_.headers.emplace_back(lowered(name), std::string(value));
  }

  void on_header_impl(error_code& ec) override {
    in_body_ = true;
    const bool http11 = version_11();
    if (num_hosts_ > 1) {
      std::vector<std::string_view> hosts;
      for (const auto& [name, value] : request_.headers)
        if (name == "host") hosts.push_back(value);
      return fail(ec, 400,
                  fmt::format("{}; more than one Host header is not allowed", told_header("Host", hosts)));
    }
    // A proxy in front of this server may use another of these headers than this server. The keys are secret,
    // so the error does not show them.
    if (num_authorizations_ > 1) return fail(ec, 400, "more than one Authorization header");
    if (num_api_keys_ > 1) return fail(ec, 400, "more than one x-api-key header");
    if (http11 && num_hosts_ == 0) return fail(ec, 400, "no Host header, which HTTP/1.1 requires");
    if (!http11 && num_encodings_ > 0)
      return fail(ec, 400,
                  "Transfer-Encoding is \"chunked\" in a request of HTTP/1.0, which does not have it");
    if (!http11) expect_continue_ = false;
    if (hooks_.on_headers) {
      const auto rule = hooks_.on_headers(request_);
      if (!rule) return refuse(ec);
      rule_ = *rule;
    }
    if (!rule_.read) {
      body_unread_ = chunked() || content_length().value_or(0) != 0;
      if (body_unread_) ec = http::error::unexpected_body;  // this error ends the parse
      return;
    }
    const auto length = content_length();
    if (length && *length > rule_.limit) {
      ec = http::error::body_limit;
      return;
    }
    announced_ = length ? static_cast<size_t>(*length) : 0;
    this->body_limit(rule_.limit);
  }

  void on_body_init_impl(const boost::optional<uint64_t>&, error_code& ec) override {
    if (announced_ != 0) grow(std::min(announced_, kFirstReserve), ec);
  }
  size_t on_body_impl(string_view data, error_code& ec) override {
    expect_continue_ = false;
    append(data, ec);
    return data.size();
  }
  void on_chunk_header_impl(uint64_t size, string_view, error_code&) override {
    expect_continue_ = false;
    needed_body_bytes_ += chunk_frame_bytes(size);
  }
  size_t on_chunk_body_impl(uint64_t, string_view data, error_code& ec) override {
    append(data, ec);
    return data.size();
  }
  void on_finish_impl(error_code&) override { expect_continue_ = false; }
  void on_response_impl(int, string_view, int, error_code&) override {}

  void refuse(error_code& ec) {
    failure_.refused = true;
    ec = http::error::bad_value;
  }

  void append(std::string_view data, error_code& ec) {
    needed_body_bytes_ += data.size();
    const size_t needed = request_.body.size() + data.size();
    if (needed > reserved_) {
      // An announced body gets all of its memory once a quarter has arrived. The other sizes are doubled, as
      // std::string would do it by itself.
      const bool all = announced_ >= needed && announced_ / 4 <= needed;
      grow(all ? announced_ : std::max(needed, 2 * reserved_), ec);
      if (ec) return;
    }
    request_.body.append(data);
  }

  void grow(size_t bytes, error_code& ec) {
    if (bytes > reserved_ && bytes < 2 * reserved_) bytes = 2 * reserved_;  // what std::string allocates
    if (hooks_.on_growth && !hooks_.on_growth(bytes)) return refuse(ec);
    request_.body.reserve(bytes);
    reserved_ = bytes;
  }

  HttpRequest& request_;
  ParseFailure& failure_;
  const HttpRequestParser::Hooks& hooks_;
  HttpRequestParser::BodyRule rule_;
  std::string_view data_;  // what put() reads
  size_t announced_ = 0;   // Content-Length
  size_t reserved_ = 0;    // memory of the body
  size_t needed_body_bytes_ = 0;
  size_t head_memory_ = 0;
  size_t num_list_entries_ = 0;  // of all lists
  int num_hosts_ = 0;
  int num_encodings_ = 0;
  int num_authorizations_ = 0;
  int num_api_keys_ = 0;
  bool version_11_ = true;
  bool in_body_ = false;
  bool body_unread_ = false;
  bool expect_continue_ = false;
};

}  // namespace

class HttpRequestParser::Impl {
 public:
  Impl(size_t header_limit, size_t body_limit, Hooks hooks)
      : header_limit_(header_limit), body_limit_(body_limit), hooks_(std::move(hooks)) {
    reset();
  }

  void reset() {
    request_ = {};
    failure_ = {};
    scanned_ = 0;
    lists_ = {};
    head_bytes_ = body_bytes_ = 0;
    started_ = false;
    in_line_ = false;
    state_ = State::kNeedMore;
    parser_.emplace(request_, failure_, header_limit_, body_limit_, hooks_);
  }

  size_t feed(std::string_view data) {
    size_t used = in_line_ ? 0 : skip_empty_lines(data);
    while (used < data.size() && state_ == State::kNeedMore) {
      started_ = in_line_ = true;
      error_code ec;
      const bool in_head = !parser_->is_header_done();
      const std::string_view read = data.substr(used);
      if (!in_head && parser_->chunked() && may_be_cut_end(read)) {
        if (has_bare_line_feed(read)) fail_with(http::error::bad_line_ending, read);
        break;
      }
      if (in_head && read.find('\n', scanned_) != read.npos) {  // a line is complete, so Beast will read it
        if (std::string why = lists_.why_too_long(read); !why.empty()) {
          fail(400, std::move(why));
          break;
        }
      }
      parser_->about_to_read(read);
      const size_t taken = parser_->put({read.data(), read.size()}, ec);
      used += taken;
      if (taken != 0) scanned_ = 0;
      lists_.removed(taken);
      (in_head ? head_bytes_ : body_bytes_) += taken;
      // Data that waits for the end of its line belongs to the head or to a chunk's head.
      const bool waits = ec == http::error::need_more;
      const size_t waiting = waits ? data.size() - used : 0;
      if (failure_.refused)
        state_ = State::kRefused;
      else if (failure_.status != 0)
        set_failed();
      else if (in_head && head_bytes_ + waiting > header_limit_)
        fail_with(http::error::header_limit, read);
      else if (!in_head && body_bytes_ + waiting > parser_->needed_body_bytes() + max_chunk_extras())
        fail(400, fmt::format("chunk extensions and trailers exceed {} bytes", max_chunk_extras()));
      else if (waits && has_bare_line_feed(data.substr(used)))
        fail_with(http::error::bad_line_ending, read);
      else if (parser_->body_unread())
        state_ = State::kComplete;
      else if (ec && !waits)
        fail_with(ec, read);
      else if (parser_->is_done())
        state_ = State::kComplete;
      if (waits) break;
    }
    return used;
  }
  // Empty lines before a request are ignored (RFC 9112, 2.2). One of them may be the end of the last request,
  // which some clients send after a body. Further ones begin a request and count as part of its headers.
  size_t skip_empty_lines(std::string_view data) {
    constexpr size_t kOneLine = 2;
    size_t used = 0;
    while (used < data.size() && (data[used] == '\r' || data[used] == '\n')) ++used;
    head_bytes_ += used;
    if (head_bytes_ > kOneLine) started_ = true;
    if (head_bytes_ > header_limit_)
      fail(431, fmt::format("the empty lines before a request exceed {} bytes", header_limit_));
    return used;
  }
  size_t max_chunk_extras() const { return std::min(header_limit_, kMaxChunkExtras); }

  // Beast searches only for the ends of headers, of a chunk's size and of trailers, so a client without
  // carriage returns would wait for ever. Data of a body never waits. `waiting` begins where it began at the
  // last call, unless something was read in between.
  bool has_bare_line_feed(std::string_view waiting) {
    for (size_t at = waiting.find('\n', scanned_); at != waiting.npos; at = waiting.find('\n', at + 1))
      if (at == 0 || waiting[at - 1] != '\r') return true;
    scanned_ = waiting.size();
    return false;
  }

  void set_failed() { state_ = State::kFailed; }
  void fail(int status, std::string message) {
    failure_ = {false, status, std::move(message)};
    set_failed();
  }
  // `read` is the data that Beast was given.
  void fail_with(const error_code& ec, std::string_view read) {
    if (ec == http::error::header_limit)
      fail(431, fmt::format("request line and headers exceed {} bytes", header_limit_));
    else if (ec == http::error::body_limit)
      fail(413, too_large());
    else
      fail(400, fmt::format("malformed request: {}", malformed_reason(ec, read)));
  }
  std::string too_large() const {
    const auto length = parser_->content_length();
    return fmt::format("{}the request's body exceeds {} bytes",
                       length ? fmt::format("Content-Length is {}: ", *length) : "",
                       parser_->body_limit_bytes());
  }

  size_t header_limit_;
  size_t body_limit_;
  const Hooks hooks_;
  HttpRequest request_;
  ParseFailure failure_;
  std::optional<BeastParser> parser_;
  size_t head_bytes_ = 0;  // bytes read of the head and of empty lines before it
  size_t body_bytes_ = 0;  // bytes read of the body, with all that belongs to its chunks
  ListScan lists_;         // of the head
  size_t scanned_ = 0;     // bytes of the waiting data whose line feeds have been looked at
  bool started_ = false;
  bool in_line_ = false;  // a byte of the request line has been read
  State state_ = State::kNeedMore;
};

HttpRequestParser::HttpRequestParser(size_t header_limit, size_t body_limit, Hooks hooks)
    : impl_(std::make_unique<Impl>(header_limit, body_limit, std::move(hooks))) {}
HttpRequestParser::~HttpRequestParser() = default;

size_t HttpRequestParser::feed(std::string_view data) {
  return impl_->feed(data);
}
HttpRequestParser::State HttpRequestParser::state() const {
  return impl_->state_;
}
bool HttpRequestParser::started() const {
  return impl_->started_;
}
bool HttpRequestParser::take_expect_continue() {
  if (!impl_->parser_->expect_continue() || !impl_->parser_->is_header_done()) return false;
  impl_->parser_->answered_expect();
  return true;
}
HttpRequest& HttpRequestParser::request() {
  return impl_->request_;
}
bool HttpRequestParser::http11() const {
  return impl_->parser_->version_11();
}
bool HttpRequestParser::keep_alive() const {
  return impl_->parser_->keep_alive() && !impl_->parser_->body_unread();
}
int HttpRequestParser::error_status() const {
  return impl_->failure_.status;
}
const std::string& HttpRequestParser::error_message() const {
  return impl_->failure_.message;
}
void HttpRequestParser::reset() {
  impl_->reset();
}

}  // namespace hadal::server

// This is the handlers' view of HTTP: plain requests and responses, and one exchange object per request. The
// transport behind it (http_server.h) owns sockets, TLS, time-outs and limits; no socket type appears here.
//
// An exchange belongs to one I/O thread. Its handler, every member function and every callback run there;
// other threads may only call io().post(…).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/http_ledger.h"

namespace hadal::server {

enum class ErrorStyle;  // server/json/api_error.h
class RequestTally;     // server/admission/request_tally.h

using HeaderList = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // "GET", upper case
  std::string path;    // percent-decoded, without the query: "/v1/models"
  std::string query;   // the part after '?', not decoded
  HeaderList headers;  // in order of arrival, names in lower case
  std::string body;  // complete; the transport has enforced the limit. Handlers that need it after they have
                     // returned move it out, together with body_charge
  std::string id;    // the client's X-Request-Id if it is printable and short, otherwise generated; echoed
  std::string peer;  // "127.0.0.1:54321"
  std::string client;  // the account of the request: "peer:127.0.0.1", "key:alice"; never empty
  std::shared_ptr<RequestMemory> memory;    // the client's ledger; null: the handler's context has one
  int route = -1;                           // HttpAdmission::route of the gate; -1: there was no gate
  ErrorStyle style = ErrorStyle{};          // HttpAdmission::style of the gate
  std::shared_ptr<const void> body_charge;  // the body's memory is counted for the client while a copy exists
  std::shared_ptr<RequestTally> tally;      // counts what the request costs; null: nothing is counted
  HeaderList answer_headers;                // HttpAdmission::answer_headers of the gate
  bool always_logged = false;               // HttpAdmission::always_logged of the gate

  // Returns the first header of this name (lower case), or nothing.
  std::optional<std::string_view> header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HeaderList headers;  // besides Content-Type, Content-Length, Date, Connection, X-Request-Id and CORS
};

inline constexpr std::string_view kKeyPrefix = "key:";  // begins the name of a client with a named key
// Returns the name of the client's key ("alice" of "key:alice"); empty for a client without a named key.
inline std::string_view key_name_of(std::string_view client) {
  return client.starts_with(kKeyPrefix) ? client.substr(kKeyPrefix.size()) : std::string_view();
}

// HttpAdmission is the decision about a request when its headers are complete, before any of its body is
// kept.
struct HttpAdmission {
  std::optional<HttpResponse> refusal;  // the whole answer; the connection is closed after it
  Refusal reason = Refusal::kPath;      // why it was refused, for the counter in /metrics
  size_t max_body_bytes = SIZE_MAX;     // more: 413. 0: the path needs no body, so none is read; after a
                                        // request that has one the connection is closed
  std::string client;                   // "key:<name>" if the request has a key with a name; empty: the peer
  bool has_key = false;                 // the request has a known key, whether or not that key is enough
  bool is_admin = false;                // that key is the admin key
  int route = -1;                       // copied to HttpRequest::route
  ErrorStyle style = ErrorStyle{};      // the route's, for later refusals by the transport
  std::shared_ptr<RequestTally> tally;  // null: nothing is counted
  HeaderList answer_headers;            // of the answer; a refusal has headers of its own
  // The request has a line in the access log, unless it is refused without a known key. Other requests share
  // the lines that clients without a key may cause (server/http/line_budget.h).
  bool always_logged = false;
};

// A gate is called on the connection's I/O thread with a request that has neither body nor id yet; its client
// is the peer.
using HttpGate = std::function<HttpAdmission(const HttpRequest&)>;

// IoThread is one I/O thread, on which handlers run.
class IoThread {
 public:
  virtual ~IoThread() = default;
  // Runs `task` on this thread soon. Any thread may call it. Tasks of one thread run in order. They are
  // dropped after the server has stopped.
  virtual void post(std::function<void()> task) = 0;
  // Runs `task` on this thread after `delay`. Only this thread may call it.
  virtual void post_after(std::chrono::milliseconds delay, std::function<void()> task) = 0;
  virtual int index() const = 0;
};

// HttpExchange is one request and its answer: call respond() once, or start_stream(), write()…, finish().
// After the client has gone, or the answer is complete, every call is harmless and does nothing. Written data
// is sent when the running task ends, with one system call for all writes. If the last copy of the pointer is
// dropped (on any thread) before the answer is complete, the client gets a 500, or its stream is cut.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;
  // The handler may move parts out of the request (for example the body of a large prompt).
  virtual HttpRequest& mutable_request() = 0;
  virtual IoThread& io() = 0;

  // Sends the whole answer.
  virtual void respond(HttpResponse response) = 0;

  // Sends the head of an answer of unknown length (`body` empty); its data follows by write().
  virtual void start_stream(HttpResponse head) = 0;
  // Appends to the answer. The data is buffered until the client reads. The writer must stop when !writable()
  // and continue in the callback of on_writable, so that a client that does not read cannot make the buffer
  // grow.
  virtual void write(std::string_view data) = 0;
  // Returns false while more bytes wait for the client than this answer's high-water mark, which is
  // HttpLimits::stream_high_water unless it was set.
  virtual bool writable() const = 0;
  virtual void set_high_water(size_t bytes) = 0;
  virtual void finish() = 0;

  // Sets a callback for when the buffer has drained after writable() was false. If writable() is true, the
  // callback is called soon. There is one callback at a time; a new one replaces the old. Both callbacks are
  // dropped when the answer ends, so they may own the exchange.
  virtual void on_writable(std::function<void()> callback) = 0;
  // Sets a callback that is called at most once, when the client goes away or is cut off before the answer is
  // complete. A client that shuts its sending side counts as gone.
  virtual void on_disconnect(std::function<void()> callback) = 0;
  virtual bool disconnected() const = 0;
};

// A handler is called on the exchange's I/O thread for each complete request. It may answer later, from a
// task.
using HttpHandler = std::function<void(std::shared_ptr<HttpExchange>)>;

}  // namespace hadal::server

// Makes GET requests through libcurl, over one connection that is kept between requests. Redirects are
// followed here and not by libcurl, because the token is sent only to the hub, and the headers that describe
// a file are accepted only from the hub. One thread uses a client; several clients may work at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "hub/retry.h"
#include "hub/stop_signal.h"

namespace hadal::hub {

// HubAccess holds the settings for requests to the hub.
struct HubAccess {
  std::string endpoint;      // as hub_endpoint returns it
  std::string token;         // empty: none
  std::string certificates;  // a file; empty: libcurl's default
};

// HttpAnswer is the head of the last answer in a chain of redirects.
struct HttpAnswer {
  int status = 0;
  int64_t range_begin = -1;   // the first byte of a 206, as Content-Range states it
  std::string commit;         // X-Repo-Commit, of an answer of the hub's own host
  std::string linked_etag;    // X-Linked-Etag without quotes, likewise
  int64_t linked_size = -1;   // X-Linked-Size, likewise
  std::string error_message;  // X-Error-Message, likewise
};

// A BodySink receives the body of an answer with status 200 or 206, piece by piece. A failure ends the
// transfer.
class BodySink {
 public:
  virtual ~BodySink() = default;
  virtual std::optional<Failure> begin(const HttpAnswer& answer) = 0;  // once, before the first piece
  virtual std::optional<Failure> add(std::span<const std::byte> piece) = 0;
};

class HttpClient {
 public:
  // `stop` must outlive the client.
  HttpClient(const HubAccess& access, const StopSignal& stop);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Requests `url`, from byte `range_begin` on if that is not 0. Follows up to 5 redirects, never from https
  // to http. Returns nullopt once the sink has the whole body, and otherwise the failure. The statuses of
  // failures are kNotFound (404), kInvalidArgument (401 and 403: the token), kCancelled (the stop signal) and
  // kInternal.
  std::optional<Failure> get(const std::string& url, int64_t range_begin, BodySink& sink);

 private:
  struct Transfer;
  std::unique_ptr<Transfer> transfer_;
};

// Returns "scheme://host:port" of an address, or an empty text if `url` is not an address.
std::string origin_of(const std::string& url);

// Returns the address of a file: ENDPOINT/REPOSITORY/resolve/COMMIT/NAME, whose name is percent-encoded.
std::string file_url(const std::string& endpoint, const std::string& repository, const std::string& commit,
                     const std::string& name);

// Returns the address that lists a repository's files: ENDPOINT/api/models/REPOSITORY/revision/REVISION.
std::string info_url(const std::string& endpoint, const std::string& repository, const std::string& revision);

}  // namespace hadal::hub

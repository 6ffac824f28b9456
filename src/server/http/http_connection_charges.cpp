// Implements the decisions of http_connection.h while a request arrives: whether the request is admitted, and
// whether there is memory for its headers and its body.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "server/http/http_connection.h"
#include "server/json/api_error.h"

namespace hadal::server {
namespace {

// Admits a preflight request, whatever the gate decides. The answer names the methods of the path, which the
// gate's refusal lists. If it lists none, the answer names all methods, so that a page can read why its
// request is refused.
HttpAdmission preflight_admission(const HttpRequest& request, HttpAdmission of_gate) {
  std::string methods;
  if (of_gate.refusal) {
    for (const auto& [name, value] : of_gate.refusal->headers)
      if (name == "Allow") methods = value + ", ";
  }
  if (methods.find("GET") != methods.npos) methods += "HEAD, ";
  methods = methods.empty() ? "GET, POST, PUT, DELETE, HEAD, OPTIONS" : methods + "OPTIONS";
  HttpAdmission out{.max_body_bytes = 0, .tally = std::move(of_gate.tally)};
  out.answer_headers.emplace_back("Allow", methods);
  if (request.header("access-control-request-method"))
    out.answer_headers.emplace_back("Access-Control-Allow-Methods", methods);
  return out;
}

}  // namespace

// Decides about a request whose headers are complete. If it returns nothing, admission_ has the answer that
// refuses it.
std::optional<HttpRequestParser::BodyRule> HttpConnection::admit(const HttpRequest& request) {
  const HttpServerOptions& options = thread_->transport().options;
  admission_ = {};
  const bool preflight = !options.cors_allow_origin.empty() && request.method == "OPTIONS";
  if (options.gate) {
    parser_.request().client = peer_.slot.account()->name;
    parser_.request().peer = peer_.address;
    admission_ = options.gate(request);
  }
  if (preflight) admission_ = preflight_admission(request, std::move(admission_));
  const std::string& client = admission_.client;
  if (client.empty())
    account_ = peer_.slot.account();
  else if (account_->name != client)  // usually the key of the connection's last request
    account_ = thread_->transport().ledger->account(client);
  if (admission_.refusal) return std::nullopt;
  if (admission_.max_body_bytes == 0) return HttpRequestParser::BodyRule{.read = false};
  return HttpRequestParser::BodyRule{.limit = std::min(admission_.max_body_bytes, options.limits.body_bytes)};
}

// Counts the memory of the request line and headers before it is allocated.
bool HttpConnection::charge_head(size_t bytes) {
  if (head_.grow_to(bytes)) return true;
  admission_ = {};
  admission_.reason = Refusal::kMemory;
  constexpr size_t kKib = 1024;
  admission_.refusal = error_response(
      admission_.style, 503,
      fmt::format(
          "the memory for the headers of all requests is in use ({} KiB, an eighth of "
          "max-request-memory, as far as the rest is free): this request needs {} KiB; try again later",
          HeadCharge::limit(*thread_->transport().memory()) / kKib, (bytes + kKib - 1) / kKib));
  return false;
}

void HttpConnection::discard_a_body() {
  max_discarded_ = thread_->transport().options.limits.body_bytes;
}

// Counts the body's memory before it is allocated.
bool HttpConnection::charge_body(size_t bytes) {
  const HttpTransport& transport = thread_->transport();
  const HttpLimits& limits = transport.options.limits;
  if (!charge_) charge_ = std::make_shared<BodyCharge>(account_);
  const auto outcome = charge_->grow_to(bytes, limits.total_body_bytes, limits.client_body_bytes());
  if (outcome == BodyCharge::Outcome::kGranted) return true;
  discard_a_body();
  if (outcome == BodyCharge::Outcome::kMemoryReached) {
    admission_.reason = Refusal::kMemory;
    admission_.refusal =
        error_response(admission_.style, memory_exhausted(*transport.memory(), MemoryKind::kBody, bytes));
    return false;
  }
  const bool total = outcome == BodyCharge::Outcome::kTotalReached;
  admission_.reason = total ? Refusal::kBodies : Refusal::kClientBodies;
  admission_.refusal = error_response(
      admission_.style, 503,
      fmt::format("the {} is reached; try again later", total ? "server's limit for bodies of all requests"
                                                              : "limit for bodies of one client's requests"));
  return false;
}

}  // namespace hadal::server

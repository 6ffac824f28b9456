// ServerConnection represents a server that answers questions or is put under load. It has the server's
// address, reads what the server reports about itself, and makes the calls before and after a measurement.
// One thread uses it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "client/bench_report.h"
#include "client/http_client.h"
#include "text/tokenizer/tokenizer.h"

namespace hadal::client {

class ServerConnection {
 public:
  // The errors are those of HttpClient::create.
  static Result<ServerConnection> open(const HttpUrl& url, const HttpClientOptions& options);

  HttpClient& client() { return *client_; }
  const std::string& address() const { return address_; }  // for messages

  // Sends a GET or POST and returns the body. The error is kNotFound if the call did not succeed.
  Result<std::string> call(const std::string& method, const std::string& target);

  // Returns the first model of /v1/models. The errors are kNotFound (the server does not answer) and
  // kDataLoss (it lists none).
  Result<std::string> first_model();

  // Returns the tokenizer in the directory that /model_info names; null unless that directory can be read
  // here.
  std::unique_ptr<Tokenizer> local_tokenizer();

  // Returns the vocabulary size of the model, by /model_info; nullopt if the server does not report it.
  std::optional<int64_t> vocab_size();

  // Returns the mean number of tokens per speculative step, by /server_info; nullopt if the server does not
  // speculate.
  std::optional<AcceptLength> accept_length();

 private:
  std::string model_info_field(std::string_view name);

  std::unique_ptr<HttpClient> client_;
  std::string address_;
};

}  // namespace hadal::client

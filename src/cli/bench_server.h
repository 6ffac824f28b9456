// A server under load, as the command line names it: its address, what it says about itself, and the calls
// around a measurement. Main thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "cli/flag_parser.h"
#include "cli/http_client.h"
#include "text/tokenizer.h"

namespace hadal::cli {

class ServerConnection {
 public:
  // From --base-url, or --host and --port; --api-key, --insecure, --timeout.
  static Result<ServerConnection> open(const ParsedFlags& flags, uint16_t default_port);

  HttpClient& client() { return *client_; }
  const std::string& address() const { return address_; }  // for messages

  // A GET or POST that must succeed; the body.
  Result<std::string> call(const std::string& method, const std::string& target);

  // --model-path, else the first of /v1/models. Error: the server does not answer or lists none.
  Result<std::string> model_name(const ParsedFlags& flags);

  // --tokenizer-path, else the directory that /model_info names, where that is readable here; else null.
  // Error: --tokenizer-path cannot be loaded.
  Result<std::unique_ptr<Tokenizer>> tokenizer(const ParsedFlags& flags);

  // Of the model, by /model_info; nullopt when the server does not say.
  std::optional<int64_t> vocab_size();

  // Mean tokens a speculative step, by /server_info; nullopt without speculation.
  std::optional<double> accept_length();

 private:
  std::string model_info_field(std::string_view name);

  std::unique_ptr<HttpClient> client_;
  std::string address_;
};

}  // namespace hadal::cli

#include "client/server_connection.h"

#include <filesystem>

#include <boost/json.hpp>

#include "base/log.h"

namespace hadal::client {
namespace {

namespace json = boost::json;

// Returns the value at `path`, which names object fields. If a value on the way is a list, its first element
// is used.
const json::value* find(const json::value& root, std::initializer_list<std::string_view> path) {
  const json::value* at = &root;
  for (const std::string_view name : path) {
    if (at->is_array()) at = at->as_array().empty() ? nullptr : &at->as_array().front();
    if (at == nullptr || !at->is_object()) return nullptr;
    at = at->as_object().if_contains(name);
    if (at == nullptr) return nullptr;
  }
  return at;
}

json::value parsed(const std::string& text) {
  json::error_code error;
  json::value value = json::parse(text, error);
  return error ? json::value(nullptr) : value;
}

}  // namespace

Result<ServerConnection> ServerConnection::open(const HttpUrl& url, const HttpClientOptions& options) {
  ServerConnection server;
  server.address_ = fmt::format("{}://{}:{}{}", url.tls ? "https" : "http", url.host, url.port, url.prefix);
  HADAL_ASSIGN_OR_RETURN(server.client_, HttpClient::create(url, options));
  return server;
}

Result<std::string> ServerConnection::call(const std::string& method, const std::string& target) {
  HttpReply reply = client_->fetch({.method = method, .target = target, .body = ""});
  if (!reply.ok()) {
    return make_status(StatusCode::kNotFound, "{} {}{}: {}", method, address_, target,
                       describe_failure(reply));
  }
  return std::move(reply.body);
}

Result<std::string> ServerConnection::first_model() {
  HADAL_ASSIGN_OR_RETURN(const std::string body, call("GET", "/v1/models"));
  const json::value models = parsed(body);
  const json::value* id = find(models, {"data", "id"});
  if (id == nullptr || !id->is_string()) return data_loss("{}/v1/models lists no model", address_);
  return std::string(id->as_string().c_str());
}

std::string ServerConnection::model_info_field(std::string_view name) {
  for (const char* target : {"/model_info", "/get_model_info"}) {
    const HttpReply reply = client_->fetch({.method = "GET", .target = target, .body = ""});
    if (!reply.ok()) continue;
    const json::value info = parsed(reply.body);
    const json::value* field = find(info, {name});
    if (field == nullptr) return {};
    return field->is_string() ? std::string(field->as_string().c_str()) : json::serialize(*field);
  }
  return {};
}

std::unique_ptr<Tokenizer> ServerConnection::local_tokenizer() {
  for (const char* name : {"tokenizer_path", "model_path"}) {
    const std::string path = model_info_field(name);
    std::error_code ignored;
    if (path.empty() || !std::filesystem::exists(path, ignored)) continue;
    auto loaded = Tokenizer::load(path);
    if (loaded.ok()) return std::move(loaded).value();
    log_warning("the server's tokenizer cannot be used path={} reason=\"{}\"", path, loaded.status().message);
  }
  return nullptr;
}

std::optional<int64_t> ServerConnection::vocab_size() {
  const std::string field = model_info_field("vocab_size");
  const json::value value = parsed(field);
  if (!value.is_int64() || value.as_int64() < 1) return std::nullopt;
  return value.as_int64();
}

std::optional<AcceptLength> ServerConnection::accept_length() {
  const HttpReply reply = client_->fetch({.method = "GET", .target = "/server_info", .body = ""});
  if (!reply.ok()) return std::nullopt;
  const json::value info = parsed(reply.body);
  const json::value* length = find(info, {"internal_states", "avg_spec_accept_length"});
  if (length == nullptr || !length->is_number()) return std::nullopt;
  const double value = length->to_number<double>();
  if (!(value > 0.0)) return std::nullopt;
  const json::value* acceptance = find(info, {"internal_states", "spec_acceptance"});
  return AcceptLength{.tokens = value,
                      .simulated = acceptance != nullptr && *acceptance == json::value("simulated")};
}

}  // namespace hadal::client

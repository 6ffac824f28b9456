#include "cli/bench_server.h"

#include <filesystem>

#include <boost/json.hpp>

#include "base/log.h"
#include "cli/session.h"

namespace hadal::cli {
namespace {

namespace json = boost::json;

// The value at `path` ("a", "b"): object fields, and for lists their first element on the way.
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

Result<ServerConnection> ServerConnection::open(const ParsedFlags& flags, uint16_t default_port) {
  HttpUrl url{.tls = false, .host = "127.0.0.1", .port = default_port, .prefix = ""};
  if (const auto text = flags.text("base-url")) {
    for (const char* name : {"host", "port"}) {
      if (flags.has(name)) return invalid_argument("--{} does not go with --base-url", name);
    }
    HADAL_ASSIGN_OR_RETURN(url, parse_url(*text, "--base-url"));
  } else {
    if (const auto host = flags.text("host")) url.host = *host;
    if (const auto port = flags.integer("port")) url.port = static_cast<uint16_t>(*port);
    if (url.host.empty() || url.host.find_first_of(" /@\r\n") != std::string::npos) {
      return invalid_argument("--host {}: must be a host name or address",
                              url.host.empty() ? "''" : url.host);
    }
  }
  HttpClientOptions options;
  options.bearer = flags.text_or("api-key", "");
  if (options.bearer.find_first_of("\r\n") != std::string::npos) {
    return invalid_argument("--api-key: must be one line");
  }
  options.verify_certificate = !flags.has("insecure");
  options.timeout_s = flags.number("timeout").value_or(options.timeout_s);
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

Result<std::string> ServerConnection::model_name(const ParsedFlags& flags) {
  if (const auto name = flags.text("model-path")) return *name;
  HADAL_ASSIGN_OR_RETURN(const std::string body, call("GET", "/v1/models"));
  const json::value models = parsed(body);
  const json::value* id = find(models, {"data", "id"});
  if (id == nullptr || !id->is_string()) {
    return data_loss("{}/v1/models lists no model; use --model-path NAME", address_);
  }
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

Result<std::unique_ptr<Tokenizer>> ServerConnection::tokenizer(const ParsedFlags& flags) {
  if (const auto path = flags.text("tokenizer-path")) {
    auto loaded = Tokenizer::load(*path);
    if (!loaded.ok()) return blame_file(loaded.status());
    return std::move(loaded).value();
  }
  for (const char* name : {"tokenizer_path", "model_path"}) {
    const std::string path = model_info_field(name);
    std::error_code ignored;
    if (path.empty() || !std::filesystem::exists(path, ignored)) continue;
    auto loaded = Tokenizer::load(path);
    if (loaded.ok()) return std::move(loaded).value();
    log_warning("the server's tokenizer cannot be used path={} reason=\"{}\"", path, loaded.status().message);
  }
  return std::unique_ptr<Tokenizer>();
}

std::optional<int64_t> ServerConnection::vocab_size() {
  const std::string field = model_info_field("vocab_size");
  const json::value value = parsed(field);
  if (!value.is_int64() || value.as_int64() < 1) return std::nullopt;
  return value.as_int64();
}

std::optional<double> ServerConnection::accept_length() {
  const HttpReply reply = client_->fetch({.method = "GET", .target = "/server_info", .body = ""});
  if (!reply.ok()) return std::nullopt;
  const json::value info = parsed(reply.body);
  const json::value* length = find(info, {"internal_states", "avg_spec_accept_length"});
  if (length == nullptr || !length->is_number()) return std::nullopt;
  const double value = length->to_number<double>();
  return value > 0.0 ? std::optional(value) : std::nullopt;
}

}  // namespace hadal::cli

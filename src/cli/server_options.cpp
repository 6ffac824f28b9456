#include "cli/server_options.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <thread>

#include "base/available_memory.h"
#include "base/log.h"
#include "base/version.h"
#include "cli/chat/chat_prompt.h"
#include "cli/flags/defaults.h"
#include "cli/flags/flag_values.h"
#include "model/info.h"
#include "server/json/json_writer.h"
#include "text/chat/reasoning_parser.h"
#include "text/chat/tool_call_parser.h"

namespace hadal::cli {
namespace {

using server::append_json_number;
using server::append_json_string;

// Appends the default of a flag if the table gives it as a number or as one of the choices. A default that
// the table describes in words becomes null.
void append_default(std::string& out, const Flag& flag) {
  const std::string_view text = flag.default_text;
  if (flag.kind == ValueKind::kInteger || flag.kind == ValueKind::kNumber) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size()) {
      out += text;
      return;
    }
  } else if (const std::string word(text.substr(0, text.find(':')));
             !word.empty() && fmt::format("|{}|", flag.choices).find("|" + word + "|") != std::string::npos) {
    return append_json_string(out, word);
  }
  out += "null";
}

void append_value(std::string& out, const ParsedFlags& flags, const Flag& flag) {
  if (flag.kind == ValueKind::kSwitch) {
    out += flags.has(flag.name) ? "true" : "false";
  } else if (flag.kind == ValueKind::kInteger && flags.has(flag.name)) {
    append_json_number(out, *flags.integer(flag.name));
  } else if (flag.kind == ValueKind::kNumber && flags.has(flag.name)) {
    append_json_number(out, *flags.number(flag.name));
  } else if (flag.kind == ValueKind::kText && flags.has(flag.name)) {
    append_json_string(out, *flags.text(flag.name));
  } else {
    append_default(out, flag);
  }
}

server::RequestLimits resolve_request_limits(const ParsedFlags& flags, const Session& session) {
  server::RequestLimits limits;
  const int64_t context_length = resolve_engine_options(flags, session.options()).context_length;
  limits.max_tokens =
      flags.integer("max-request-tokens")
          .value_or(server::default_max_request_tokens(
              context_length > 0 ? context_length : session.config().max_position_embeddings));
  limits.max_logprobs = flags.integer("max-logprobs").value_or(limits.max_logprobs);
  limits.max_prompt_logprobs = flags.integer("max-prompt-logprobs").value_or(limits.max_prompt_logprobs);
  return limits;
}

// Holds JSON values by the names of flags: values in force that come neither from a flag nor from its default
// in the table, and facts that no flag stands for.
using InForce = std::map<std::string, std::string, std::less<>>;

Result<InForce> values_in_force(const ParsedFlags& flags, const Session& session) {
  HADAL_ASSIGN_OR_RETURN(const server::HttpServerOptions http, resolve_http_options(flags));
  HADAL_ASSIGN_OR_RETURN(const DType dtype, session.compute_dtype());
  HADAL_ASSIGN_OR_RETURN(const KvLayout layout, session.kv_layout());
  const EngineOptions engine = resolve_engine_options(flags, session.options());
  InForce out;
  const auto text = [&](const char* name, std::string_view value) { append_json_string(out[name], value); };
  text("host", http.host);
  text("log-level-http", flags.text_or("log-level-http", flags.text_or("log-level", "info")));
  text("dtype", to_string(dtype));
  text("kv-cache-dtype", to_string(layout.format));
  text("kv-cache-scales", scales_name(layout));
  append_json_number(out["kv-record-bytes"], int64_t{layout.row_bytes()});
  append_json_number(out["kv-index-bytes"], int64_t{layout.index_row_bytes()});
  append_json_number(out["kv-bytes-per-token"], kv_bytes_per_token(session.config(), layout));
  text("metrics-prefix", flags.text_or("metrics-prefix", server::ServerOptions().metrics_prefix));
  if (engine.schedule_policy == SchedulePolicy::kPriority) text("schedule-policy", "priority");
  append_json_number(out["max-request-tokens"], resolve_request_limits(flags, session).max_tokens);
  append_json_number(out["max-request-memory"], static_cast<int64_t>(max_request_memory(flags) >> 20));
  append_json_number(out["tokenizer-worker-num"], int64_t{http.num_threads});
  text("device", to_string(session.options().device));
  append_json_number(out["chunked-prefill-size"], engine.chunked_prefill_size);
  append_json_number(out["max-prefill-ms"], engine.max_prefill_ms);
  if (engine.speculation_width > 0) {
    append_json_number(out["speculative-eagle-topk"], engine.draft_shape.topk);
    append_json_number(out["speculative-num-draft-tokens"], engine.speculation_width);
  }
  // If the memory sets the limit, the engine reports its number beside the flags.
  if (engine.max_running_requests > 0)
    append_json_number(out["max-running-requests"], engine.max_running_requests);
  return out;
}

// The path is made absolute, so that tools in other directories find it; a name on the hub stays as it is.
std::string absolute_directory(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return path;
  const std::filesystem::path absolute = std::filesystem::absolute(path, ignored);
  return ignored ? path : absolute.lexically_normal().string();
}

// Secrets are not shown.
bool is_secret(const Flag& flag) {
  return flag.name == "api-key" || flag.name == "admin-api-key" || flag.name == "ssl-keyfile-password";
}

std::string flags_as_json(const ParsedFlags& flags, const InForce& in_force) {
  std::string out = "{";
  const auto append_name = [&](std::string name) {
    if (out.size() > 1) out += ',';
    std::replace(name.begin(), name.end(), '-', '_');
    append_json_string(out, name);
    out += ':';
  };
  for (const Flag& flag : flag_table()) {
    const bool honoured = flag.flag_class == FlagClass::kHonoured &&
                          (flag.commands & static_cast<CommandSet>(Command::kServe)) != 0;
    if (!honoured || is_secret(flag)) continue;
    append_name(flag.name);
    if (const auto value = in_force.find(flag.name); value != in_force.end()) {
      out += value->second;
    } else {
      append_value(out, flags, flag);
    }
  }
  for (const auto& [name, value] : in_force) {
    if (find_flag(name, Command::kServe) != nullptr) continue;
    append_name(name);
    out += value;
  }
  out += '}';
  return out;
}

// Returns the last part of a path, because the whole path would tell strangers how the machine is set up.
std::string last_part(const std::string& path) {
  const size_t slash = path.find_last_of('/', path.find_last_not_of('/'));
  std::string folder = slash == std::string::npos ? path : path.substr(slash + 1);
  while (folder.ends_with('/')) folder.pop_back();
  return folder;
}

std::vector<std::string> allowed_hosts(const ParsedFlags& flags) {
  std::vector<std::string> names;
  const std::string hosts = flags.text_or("allowed-hosts", "");
  for (const std::string_view name : split(hosts, " ,")) names.emplace_back(name);
  names.push_back(flags.text_or("host", ""));  // a name that the operator has chosen
  return names;
}

// Sets and logs the parsers of the model's reasoning and tool calls.
Result<void> set_parsers(const ParsedFlags& flags, ChatFormat chat_format, server::ServerOptions& options) {
  const auto name_of = [](const auto format) {
    const std::string_view name = to_string(format);
    return name == "none" ? std::string() : std::string(name);
  };
  if (flags.text_or("reasoning-parser", "auto") != "none") {
    HADAL_ASSIGN_OR_RETURN(const ReasoningFormat reasoning,
                           resolve_reasoning_format(flags.text_or("reasoning-parser", "auto"), chat_format));
    options.reasoning_parser = name_of(reasoning);
  }
  if (flags.text_or("tool-call-parser", "auto") != "none") {
    HADAL_ASSIGN_OR_RETURN(const ToolCallFormat tools,
                           resolve_tool_call_format(flags.text_or("tool-call-parser", "auto"), chat_format));
    options.tool_call_parser = name_of(tools);
  }
  log_info("chat format={} reasoning_parser={} tool_call_parser={}", to_string(chat_format),
           options.reasoning_parser.empty() ? "none" : options.reasoning_parser,
           options.tool_call_parser.empty() ? "none" : options.tool_call_parser);
  return {};
}

// Sets the size of the model, which the endpoints of Ollama report.
Result<void> set_model_size(const Session& session, server::ServerOptions& options) {
  WeightLoadOptions load;
  load.quantization = session.options().quantization;
  load.load_nextn = false;
  HADAL_ASSIGN_OR_RETURN(load.compute_dtype, session.compute_dtype());
  HADAL_ASSIGN_OR_RETURN(const KvLayout layout, session.kv_layout());
  const ModelInfo model = model_info(session.config(), load, layout, 0);
  options.num_parameters = model.num_parameters;
  options.weight_bytes = model.weight_bytes;
  options.weights_on_gpu = session.options().device == DeviceType::kCuda;
  return {};
}

}  // namespace

size_t max_request_memory(const ParsedFlags& flags) {
  if (const auto mib = flags.integer("max-request-memory")) return static_cast<size_t>(*mib) << 20;
  return total_memory_bytes().value_or(size_t{8} << 30) / 8;
}

Result<server::HttpServerOptions> resolve_http_options(const ParsedFlags& flags) {
  server::HttpServerOptions http;
  http.host = flags.text_or("host", http.host);
  http.port = static_cast<uint16_t>(flags.integer("port").value_or(http.port));
  const auto cores = static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  http.num_threads =
      static_cast<int>(flags.integer("tokenizer-worker-num").value_or(std::min<int64_t>(4, cores)));
  http.tls_keyfile = flags.text_or("ssl-keyfile", "");
  http.tls_certfile = flags.text_or("ssl-certfile", "");
  http.tls_keyfile_password = flags.text_or("ssl-keyfile-password", "");
  if (http.tls_keyfile.empty() != http.tls_certfile.empty()) {
    return invalid_argument("--ssl-keyfile and --ssl-certfile belong together; {} is missing",
                            http.tls_keyfile.empty() ? "--ssl-keyfile" : "--ssl-certfile");
  }
  if (const auto of_peer = flags.integer("max-connections-per-peer"))
    http.limits.max_connections_per_peer = static_cast<int>(*of_peer);
  http.limits.client_body_share = flags.number("client-body-share").value_or(http.limits.client_body_share);
  const double least_share =
      static_cast<double>(http.limits.body_bytes) / static_cast<double>(http.limits.total_body_bytes);
  if (http.limits.client_body_share < least_share || http.limits.client_body_share > 1)
    return invalid_argument(
        "--client-body-share is {}; must be a number in [{}, 1], so that the largest body fits",
        http.limits.client_body_share, least_share);
  const std::string level = flags.text_or("log-level-http", flags.text_or("log-level", "info"));
  http.access_log = level == "debug" || level == "info";
  // An empty key is an error, because an unset variable in a start script would otherwise open the server to
  // everybody.
  for (const char* name : {"api-key", "admin-api-key"}) {
    if (flags.has(name) && flags.text_or(name, "").empty()) {
      return invalid_argument("--{} is empty; must be a key, or left out if no key is needed", name);
    }
  }
  return http;
}

Result<std::shared_ptr<server::KeyRing>> resolve_keys(const ParsedFlags& flags,
                                                      const Environment& environment) {
  // Returns the value of a flag, or of its environment variable.
  const auto one_of = [&](const char* flag, const char* variable,
                          const std::optional<std::string>& value) -> Result<std::string> {
    if (value && value->empty())
      return invalid_argument("{} is empty; must be a key, or unset if no key is needed", variable);
    if (value && flags.has(flag))
      return invalid_argument("--{} and {} are both given; only one of them may be given", flag, variable);
    return value ? *value : flags.text_or(flag, "");
  };
  HADAL_ASSIGN_OR_RETURN(const std::string key, one_of("api-key", "HADAL_API_KEY", environment.api_key));
  HADAL_ASSIGN_OR_RETURN(const std::string admin_key,
                         one_of("admin-api-key", "HADAL_ADMIN_API_KEY", environment.admin_api_key));
  std::vector<server::ApiKey> keys;
  if (flags.has("api-key-file")) {
    if (!key.empty())
      return invalid_argument("--api-key-file and {} are both given; only one of them may be given",
                              environment.api_key ? "HADAL_API_KEY" : "--api-key");
    HADAL_ASSIGN_OR_RETURN(keys, server::load_key_file(flags.text_or("api-key-file", "")));
  } else if (!key.empty()) {
    keys.push_back({"", key});
  }
  return std::make_shared<server::KeyRing>(std::move(keys), admin_key);
}

std::string resolve_profile_dir(const ParsedFlags& flags, const Environment& environment) {
  if (std::string dir = flags.text_or("profile-dir", ""); !dir.empty()) return dir;
  return environment.profile_dir.empty() ? "." : environment.profile_dir;
}

Result<server::ServerOptions> resolve_server_options(const ParsedFlags& flags, const Environment& environment,
                                                     const Session& session,
                                                     std::optional<ChatFormat> chat_format) {
  server::ServerOptions options;
  const std::string model_path = flags.text_or("model-path", "");
  options.model_path = absolute_directory(model_path);
  options.tokenizer_path = absolute_directory(flags.text_or("tokenizer-path", model_path));
  options.served_model_name = flags.text_or("served-model-name", model_path);
  options.version = version();
  options.model_label = flags.text_or("served-model-name", last_part(model_path));
  options.allow_get_admin = flags.has("allow-get-admin");
  if (flags.has("rate-limit")) {
    HADAL_ASSIGN_OR_RETURN(options.rate_limits,
                           server::parse_rate_limits(flags.text_or("rate-limit", ""), "--rate-limit"));
  }
  options.request_limits = resolve_request_limits(flags, session);
  options.content_as_text = content_is_text(flags);
  options.isolate_cache_by_key = flags.text_or("cache-isolation", "none") == "key";
  if (options.isolate_cache_by_key && !flags.has("api-key-file")) {
    return invalid_argument(
        "--cache-isolation is key; needs --api-key-file, because the names of its keys tell "
        "clients apart");
  }
  options.allowed_hosts = allowed_hosts(flags);
  if (chat_format) HADAL_RETURN_IF_ERROR(set_parsers(flags, *chat_format, options));
  options.stream_output_incremental = flags.has("incremental-streaming-output");
  options.stream_interval = flags.integer("stream-interval").value_or(options.stream_interval);
  options.profile_dir = resolve_profile_dir(flags, environment);
  options.enable_metrics = flags.has("enable-metrics");
  options.metrics_prefix = flags.text_or("metrics-prefix", options.metrics_prefix);
  options.enable_cache_report = flags.has("enable-cache-report");
  options.allow_auto_truncate = flags.has("allow-auto-truncate");
  if (const auto mib = flags.integer("max-response-store"))
    options.response_store_bytes = static_cast<size_t>(*mib) << 20;
  if (flags.has("log-requests") || flags.has("log-requests-level")) {
    options.log_requests_level = static_cast<int>(flags.integer("log-requests-level").value_or(2));
  }
  HADAL_ASSIGN_OR_RETURN(const SamplingOptions sampling,
                         resolve_sampling(flags, session.generation_config(), kDefaultMaxNewTokens));
  options.default_sampling = sampling.params;
  HADAL_ASSIGN_OR_RETURN(const InForce in_force, values_in_force(flags, session));
  options.server_args_json = flags_as_json(flags, in_force);
  HADAL_RETURN_IF_ERROR(set_model_size(session, options));
  return options;
}

}  // namespace hadal::cli

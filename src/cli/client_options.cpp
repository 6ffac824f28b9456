#include "cli/client_options.h"

#include "cli/session.h"

namespace hadal::cli {

Result<client::DatasetOptions> resolve_dataset(const ParsedFlags& flags) {
  client::DatasetOptions options;
  options.path = flags.text_or("dataset-path", "");
  options.name = flags.text_or("dataset-name", options.path.empty() ? "random" : "sharegpt");
  if (options.name == "sharegpt" && options.path.empty()) {
    return invalid_argument("--dataset-name sharegpt: needs --dataset-path, a local file of conversations");
  }
  if (!options.path.empty() && options.name != "sharegpt" && options.name != "random") {
    return invalid_argument("--dataset-path cannot be used with --dataset-name {}, which reads no file",
                            options.name);
  }
  options.num_prompts_is_set = flags.has("num-prompts");
  options.num_prompts = flags.integer("num-prompts").value_or(options.num_prompts);
  options.random_input_len = flags.integer("random-input-len").value_or(options.random_input_len);
  options.random_output_len = flags.integer("random-output-len").value_or(options.random_output_len);
  options.random_range_ratio = flags.number("random-range-ratio").value_or(options.random_range_ratio);
  options.sharegpt_output_len = flags.integer("sharegpt-output-len").value_or(0);
  options.sharegpt_context_len = flags.integer("sharegpt-context-len").value_or(0);
  options.prompt_suffix = flags.text_or("prompt-suffix", "");
  options.apply_chat_template = flags.has("apply-chat-template");
  options.gsp_num_groups = flags.integer("gsp-num-groups").value_or(options.gsp_num_groups);
  options.gsp_prompts_per_group =
      flags.integer("gsp-prompts-per-group").value_or(options.gsp_prompts_per_group);
  options.gsp_system_prompt_len =
      flags.integer("gsp-system-prompt-len").value_or(options.gsp_system_prompt_len);
  options.gsp_question_len = flags.integer("gsp-question-len").value_or(options.gsp_question_len);
  options.gsp_output_len = flags.integer("gsp-output-len").value_or(options.gsp_output_len);
  options.ids_only = flags.has("tokenize-prompt");
  options.seed = static_cast<uint64_t>(flags.integer("seed").value_or(1));
  return options;
}

Result<void> check_has_tokenizer(const client::DatasetOptions& options, const Tokenizer* tokenizer) {
  if (tokenizer != nullptr || !client::needs_tokenizer(options)) return {};
  return invalid_argument(
      "--dataset-name {}: needs a tokenizer to make prompts of a given length; use --tokenizer-path, or "
      "--dataset-name random-ids",
      options.name);
}

Result<client::ServerConnection> open_server(const ParsedFlags& flags, uint16_t default_port) {
  client::HttpUrl url{.tls = false, .host = "127.0.0.1", .port = default_port, .prefix = ""};
  if (const auto text = flags.text("base-url")) {
    for (const char* name : {"host", "port"}) {
      if (flags.has(name)) return invalid_argument("--{} cannot be used with --base-url", name);
    }
    HADAL_ASSIGN_OR_RETURN(url, client::parse_url(*text, "--base-url"));
  } else {
    if (const auto host = flags.text("host")) url.host = *host;
    if (const auto port = flags.integer("port")) url.port = static_cast<uint16_t>(*port);
    if (url.host.empty() || url.host.find_first_of(" /@\r\n") != std::string::npos) {
      return invalid_argument("--host {}: must be a host name or address",
                              url.host.empty() ? "''" : url.host);
    }
  }
  client::HttpClientOptions options;
  options.bearer = flags.text_or("api-key", "");
  if (options.bearer.find_first_of("\r\n") != std::string::npos) {
    return invalid_argument("--api-key: must be one line");
  }
  options.verify_certificate = !flags.has("insecure");
  options.timeout_s = flags.number("timeout").value_or(options.timeout_s);
  return client::ServerConnection::open(url, options);
}

Result<std::string> model_name(const ParsedFlags& flags, client::ServerConnection& server) {
  if (const auto name = flags.text("model-path")) return *name;
  auto name = server.first_model();
  if (name.ok() || name.status().code != StatusCode::kDataLoss) return name;
  return data_loss("{}; use --model-path NAME", name.status().message);
}

Result<std::unique_ptr<Tokenizer>> tokenizer_for(const ParsedFlags& flags, client::ServerConnection& server) {
  const auto path = flags.text("tokenizer-path");
  if (!path) return server.local_tokenizer();
  auto loaded = Tokenizer::load(*path);
  if (!loaded.ok()) return blame_file(loaded.status());
  return loaded;
}

}  // namespace hadal::cli

#include "cli/open_asker.h"

#include "base/log.h"
#include "cli/client_options.h"
#include "client/eval_asker_http.h"

namespace hadal::cli {

Result<std::unique_ptr<client::EvalAsker>> open_asker(const ParsedFlags& flags,
                                                      const Environment& environment) {
  const bool over_http = flags.has("base-url");
  constexpr const char* kLocal[] = {"tokenizer-path",
                                    "load-format",
                                    "dtype",
                                    "quantization",
                                    "json-model-override-args",
                                    "device",
                                    "threads",
                                    "kernels",
                                    "kv-cache-dtype",
                                    "kv-cache-scales",
                                    "context-length",
                                    "chat-template",
                                    "content-special-tokens",
                                    "random-seed",
                                    "max-total-tokens",
                                    "mem-fraction-static",
                                    "max-running-requests",
                                    "chunked-prefill-size"};
  constexpr const char* kRemote[] = {"api-key", "insecure", "timeout", "parallel"};
  for (const char* name : kLocal) {
    if (over_http && flags.has(name)) {
      return invalid_argument("--{} cannot be used with --base-url, because the server decides it", name);
    }
  }
  for (const char* name : kRemote) {
    if (!over_http && flags.has(name)) return invalid_argument("--{} needs --base-url", name);
  }
  if (!over_http) return open_engine_asker(flags, environment);
  constexpr uint16_t kDefaultPort = 30000;
  constexpr int64_t kDefaultParallel = 64;
  HADAL_ASSIGN_OR_RETURN(client::ServerConnection server, open_server(flags, kDefaultPort));
  HADAL_ASSIGN_OR_RETURN(std::string model, model_name(flags, server));
  log_info("questions go to={} model={}", server.address(), model);
  return client::make_http_asker(std::move(server), std::move(model),
                                 flags.integer("parallel").value_or(kDefaultParallel));
}

}  // namespace hadal::cli

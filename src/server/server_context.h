// Holds the objects that every handler can use: plain references to objects that main owns and that outlive
// the HTTP server. It is immutable after start except for the objects' own thread-safe members.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/admission/rate_limit.h"
#include "server/admission/request_limits.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace hadal {
class GrammarCompiler;
}

namespace hadal::server {

class AuditLog;         // server/admission/audit_log.h
class KeyRing;          // server/admission/api_keys.h
class HttpServer;       // server/http/http_server.h
class BackgroundPool;   // server/generation/background_pool.h
class Metrics;          // server/metrics.h
class ChunkRouter;      // server/generation/chunk_router.h
class RequestRegistry;  // server/generation/request_registry.h
class ServerStatus;     // server/server_status.h
class RequestMemory;    // server/admission/request_memory.h

// ServerOptions are resolved from the command line and shown by /server_info.
struct ServerOptions {
  std::string model_path;
  std::string tokenizer_path;
  std::string served_model_name;  // default: model_path
  std::string version;
  std::shared_ptr<const KeyRing> keys;     // null: no key is required
  std::vector<std::string> allowed_hosts;  // names by which browsers may reach the server, besides addresses
  bool allow_get_admin = false;            // GET changes state too, for SGLang's old clients
  RateLimits rate_limits;                  // each client's
  RequestLimits request_limits;            // of one HTTP request
  std::shared_ptr<AuditLog> audit;         // null: none
  bool isolate_cache_by_key = false;       // each named key has cached prefixes of its own
  std::string model_label;                 // label in /metrics; empty: served_model_name
  std::string reasoning_parser;            // resolved: "" (none), "deepseek-r1", "deepseek-v3"
  std::string tool_call_parser;            // resolved: "" (none), "deepseekv3", "deepseekv31", "deepseekv32"
  bool stream_output_incremental = false;  // /generate streams differences instead of cumulative text
  int64_t stream_interval = 1;
  std::string profile_dir = ".";                   // directory below which /start_profile may write
  std::shared_ptr<RequestMemory> memory;           // shared with the transport; null: no limit
  size_t response_store_bytes = size_t{64} << 20;  // for stored responses of /v1/responses; 0: none is stored
  bool enable_metrics = false;
  std::string metrics_prefix = "sglang:";
  bool enable_cache_report = false;  // OpenAI usage includes prompt_tokens_details.cached_tokens
  bool allow_auto_truncate = false;
  bool content_as_text = false;  // the default of content_special_tokens is "text"
  int64_t max_running_requests = 0;
  int64_t tp_size = 1;  // ranks that share the model
  int64_t ep_size = 1;  // groups of them that divide the routed experts
  // This is the detail of --log-requests, which writes one line when a request arrives and one when it ends.
  // -1: no lines; 0: ids and token counts; 1: sampling parameters too; 2: the beginning of each text too; 3:
  // a longer beginning (log_text_bytes).
  int log_requests_level = -1;
  double load_weights_s = 0.0;
  int64_t num_parameters = 0;  // of the model, without its NextN layer
  int64_t weight_bytes = 0;    // of the loaded weights, all ranks together
  bool weights_on_gpu = false;
  SamplingParams
      default_sampling;  // from generation_config.json: temperature, top_p, top_k, … of the OpenAI paths
  std::string server_args_json;  // the values of all flags as a JSON object, for /server_info
};

struct ServerContext {
  const ServerOptions& options;
  const ModelConfig& config;
  Engine& engine;
  const Tokenizer* tokenizer = nullptr;   // null: input_ids only (--skip-tokenizer-init)
  std::optional<ChatFormat> chat_format;  // none: /v1/chat/completions returns an error
  GrammarCompiler* grammars = nullptr;    // null: this build or model has none
  BackgroundPool& background;             // grammar compilation
  BackgroundPool& admin;    // work that blocks on the engine or the disk; grammars never delay it
  BackgroundPool& parsers;  // large bodies
  ChunkRouter& chunks;      // engine chunks → I/O threads
  Metrics& metrics;
  RequestRegistry& requests;  // by the ids that clients know
  ServerStatus& status;
  std::shared_ptr<RequestMemory> memory;                       // null: what requests hold is not counted
  std::function<HttpServer*()> http = [] { return nullptr; };  // the transport; null where there is none
};

}  // namespace hadal::server

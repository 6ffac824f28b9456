// Describes the server's one model in Ollama's form.
#include <openssl/sha.h>

#include <array>
#include <chrono>
#include <utility>

#include <boost/json.hpp>

#include "base/printable.h"
#include "server/generation/generation.h"
#include "server/generation/parse_task.h"
#include "server/json/json_fields.h"
#include "server/json/json_text.h"
#include "server/json/utc_time.h"
#include "server/native/native_request.h"
#include "server/ollama/ollama_routes.h"

namespace hadal::server {
namespace {

namespace json = boost::json;
using ExchangePtr = std::shared_ptr<HttpExchange>;

constexpr std::string_view kFamily = "deepseek2";  // Ollama's name for models of V2, V3 and V3.2
// The model is never unloaded. Clients show this time as "in many years".
constexpr std::string_view kNeverExpires = "2318-01-01T00:00:00Z";
constexpr std::string_view kDefaultTag = ":latest";

// Returns the number as Ollama writes it: "671.0B", "15.7B", "137.0M".
std::string parameter_size(int64_t count) {
  const auto number = static_cast<double>(count);
  if (count >= 1'000'000'000) return fmt::format("{:.1f}B", number / 1e9);
  if (count >= 1'000'000) return fmt::format("{:.1f}M", number / 1e6);
  return fmt::format("{:.1f}K", number / 1e3);
}

std::string_view quantization_level(const ModelConfig& config) {
  if (!config.quantization) {
    return config.torch_dtype == DType::kF32 ? "F32" : config.torch_dtype == DType::kF16 ? "F16" : "BF16";
  }
  return is_int8(config.quantization->type) ? "INT8" : "F8_E4M3";
}

// Clients distinguish models by this value. The weights are too large to be hashed at start, so the value is
// derived from the model's path.
std::string digest(const ServerOptions& options) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> sum;
  ::SHA256(reinterpret_cast<const unsigned char*>(options.model_path.data()), options.model_path.size(),
           sum.data());
  std::string out;
  for (const unsigned char byte : sum) out += fmt::format("{:02x}", byte);
  return out;
}

json::object details(const ServerContext& context) {
  return {{"parent_model", ""},
          {"format", "safetensors"},
          {"family", kFamily},
          {"families", json::array{kFamily}},
          {"parameter_size", parameter_size(context.options.num_parameters)},
          {"quantization_level", quantization_level(context.config)}};
}

// Returns the entry of the server's model in lists of models.
json::object model_entry(const ServerContext& context) {
  const ServerOptions& options = context.options;
  return {{"name", options.served_model_name},
          {"model", options.served_model_name},
          {"size", options.weight_bytes},
          {"digest", digest(options)},
          {"details", details(context)}};
}

json::object tags(const ServerContext& context, std::string_view started) {
  json::object model = model_entry(context);
  model["modified_at"] = started;
  return {{"models", json::array{std::move(model)}}};
}

json::object running(const ServerContext& context) {
  json::object model = model_entry(context);
  model["expires_at"] = kNeverExpires;
  model["size_vram"] = context.options.weights_on_gpu ? context.options.weight_bytes : 0;
  model["context_length"] = context.engine.context_length();
  return {{"models", json::array{std::move(model)}}};
}

json::array capabilities(const ServerContext& context) {
  json::array out = {"completion"};
  if (!context.options.tool_call_parser.empty()) out.emplace_back("tools");
  const bool can_think =
      context.chat_format && generation_starts_in_reasoning(*context.chat_format, {.thinking = true});
  if (can_think && !context.options.reasoning_parser.empty()) out.emplace_back("thinking");
  return out;
}

json::object description(const ServerContext& context, std::string_view started) {
  const ModelConfig& config = context.config;
  const auto key = [](std::string_view name) { return fmt::format("{}.{}", kFamily, name); };
  json::object info = {{"general.architecture", kFamily},
                       {"general.basename", context.options.served_model_name},
                       {"general.parameter_count", context.options.num_parameters}};
  info[key("context_length")] = context.engine.context_length();
  info[key("embedding_length")] = config.hidden_size;
  info[key("block_count")] = config.num_hidden_layers;
  info[key("feed_forward_length")] = config.intermediate_size;
  info[key("attention.head_count")] = config.num_attention_heads;
  info[key("expert_count")] = config.n_routed_experts;
  info[key("expert_used_count")] = config.num_experts_per_tok;
  info[key("vocab_size")] = config.vocab_size;
  return {{"modelfile", ""},
          {"parameters", ""},
          {"template", context.chat_format ? to_string(*context.chat_format) : ""},
          {"details", details(context)},
          {"model_info", std::move(info)},
          {"capabilities", capabilities(context)},
          {"modified_at", started}};
}

struct ShownModel {
  std::string name;
  std::optional<FieldError> error;
};

ShownModel parse_show(std::string_view body, const std::shared_ptr<RequestMemory>& memory) {
  ShownModel out;
  MemoryCharge reading(memory);
  const auto parsed = parse_json_object(body, &reading);
  if (!parsed.ok()) {
    out.error = FieldError{parsed.status(), {}};
    return out;
  }
  FieldReader reader(parsed.value());
  reader.text("name", out.name);  // the older field
  reader.text("model", out.name);
  if (reader.ok() && out.name.empty()) reader.fail("model", "is missing; must be the model's name");
  if (!reader.ok()) out.error = FieldError{reader.status(), reader.failed_field()};
  return out;
}

}  // namespace

void add_ollama_info_routes(Router& router, ServerContext& context) {
  const std::string started = utc_time(std::chrono::system_clock::now());
  const auto add = [&](std::string_view path, std::function<json::value()> describe) {
    router.add({.method = "GET",
                .path = path,
                .style = ErrorStyle::kOllama,
                .handler = [describe = std::move(describe)](const ExchangePtr& exchange) {
                  exchange->respond(json_text(describe()));
                }});
  };
  add("/api/tags", [&context, started] { return tags(context, started); });
  add("/api/ps", [&context] { return running(context); });
  add("/api/version", [&context] { return json::object{{"version", context.options.version}}; });
  router.add({.method = "POST",
              .path = "/api/show",
              .style = ErrorStyle::kOllama,
              .handler = [&context, started](ExchangePtr exchange) {
                std::shared_ptr<RequestMemory> ledger = ledger_for(context, exchange->request());
                parse_body(
                    context, std::move(exchange), ErrorStyle::kOllama,
                    [memory = std::move(ledger)](std::string_view body) { return parse_show(body, memory); },
                    [&context, started](const ExchangePtr& client, ShownModel model) {
                      if (model.error) {
                        return client->respond(
                            error_response(ErrorStyle::kOllama, model.error->status, model.error->field));
                      }
                      std::string_view name = model.name;
                      const std::string_view served = context.options.served_model_name;
                      if (name != served && name.ends_with(kDefaultTag))
                        name.remove_suffix(kDefaultTag.size());
                      if (name == served) return client->respond(json_text(description(context, started)));
                      client->respond(error_response(ErrorStyle::kOllama, 404,
                                                     fmt::format("model '{}' not found; this server has '{}'",
                                                                 cut_text(model.name), served)));
                    });
              }});
}

}  // namespace hadal::server

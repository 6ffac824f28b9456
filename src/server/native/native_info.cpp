#include <chrono>
#include <utility>

#include <boost/json.hpp>

#include "server/json/json_text.h"
#include "server/json/utc_time.h"
#include "server/native/native_admin.h"
#include "server/server_status.h"

namespace hadal::server {
namespace {

namespace json = boost::json;
using ExchangePtr = std::shared_ptr<HttpExchange>;

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Returns the greatest number of tokens that the prompt of one generation may have.
int64_t max_input_tokens(const ServerContext& context) {
  return std::min(context.engine.context_length(), context.engine.max_total_tokens()) - 1;
}

json::object model_info(const ServerContext& context) {
  const ServerOptions& options = context.options;
  return {{"model_path", options.model_path},
          {"tokenizer_path", options.tokenizer_path},
          {"is_generation", true},
          {"preferred_sampling_params", nullptr},
          {"weight_version", "default"},
          {"has_image_understanding", false},
          {"has_audio_understanding", false},
          {"model_type", "deepseek"},
          {"architectures", json::array{to_string(context.config.architecture)}},
          {"vocab_size", context.config.vocab_size},
          {"max_context_length", context.engine.context_length()},
          {"reasoning_parser", options.reasoning_parser},
          {"tool_call_parser", options.tool_call_parser},
          {"served_model_name", options.served_model_name}};
}

json::object server_info(const ServerContext& context) {
  const ServerOptions& options = context.options;
  const EngineStats stats = context.engine.stats();
  const SchedulerStats& scheduler = stats.scheduler;
  json::object state = {
      {"last_gen_throughput", stats.gen_throughput},
      {"effective_max_running_requests_per_dp", options.max_running_requests},
      {"avg_spec_accept_length",
       stats.speculation.verifications > 0 ? json::value(stats.speculation.accept_length()) : json::value()},
      {"spec_acceptance", stats.acceptance_is_simulated ? "simulated" : "exact"},
      {"memory_usage",
       {{"token_capacity", stats.max_total_tokens}, {"used_tokens", scheduler.num_used_tokens}}},
      {"num_running_reqs", scheduler.num_running},
      {"num_queue_reqs", scheduler.num_queued},
      {"num_steps", stats.num_steps},
      {"load_weights_time", options.load_weights_s},
  };
  json::object out;
  json::error_code ignored;
  const json::value arguments = json::parse(options.server_args_json, ignored);
  if (const json::object* object = arguments.if_object()) out = *object;
  out["model_path"] = options.model_path;
  out["tokenizer_path"] = options.tokenizer_path;
  out["served_model_name"] = options.served_model_name;
  out["reasoning_parser"] =
      options.reasoning_parser.empty() ? json::value() : json::value(options.reasoning_parser);
  out["tool_call_parser"] =
      options.tool_call_parser.empty() ? json::value() : json::value(options.tool_call_parser);
  out["status"] = to_string(context.status.phase());
  out["max_total_num_tokens"] = stats.max_total_tokens;
  out["max_req_input_len"] = max_input_tokens(context);
  out["context_length"] = context.engine.context_length();
  out["max_running_requests"] = options.max_running_requests;
  const int64_t places = context.engine.max_queued_requests();
  out["max_queued_requests"] = places > 0 ? json::value(places) : json::value();  // null: no limit
  out["max_total_tokens"] = stats.max_total_tokens;
  out["tp_size"] = options.tp_size;
  out["ep_size"] = options.ep_size;
  for (const char* name : {"dp_size", "pp_size", "nnodes"}) out[name] = 1;
  out["internal_states"] = json::array{state};
  out["version"] = options.version;
  return out;
}

json::array load(const ServerContext& context) {
  const EngineStats stats = context.engine.stats();
  const SchedulerStats& scheduler = stats.scheduler;
  return {json::object{{"dp_rank", 0},
                       {"num_reqs", scheduler.num_running + scheduler.num_queued},
                       {"num_running_reqs", scheduler.num_running},
                       {"num_waiting_reqs", scheduler.num_queued},
                       {"num_tokens", scheduler.num_used_tokens},
                       {"max_total_num_tokens", stats.max_total_tokens},
                       {"gen_throughput", stats.gen_throughput}}};
}

// Returns one rank's report of its load. With --dp-size 1 it is the only one.
json::object rank_load(const ServerContext& context) {
  const EngineStats stats = context.engine.stats();
  const SchedulerStats& scheduler = stats.scheduler;
  const auto share = [](int64_t part, int64_t whole) {
    return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
  };
  return {{"dp_rank", 0},
          {"timestamp", unix_seconds()},
          {"num_running_reqs", scheduler.num_running},
          {"num_waiting_reqs", scheduler.num_queued},
          {"num_total_reqs", scheduler.num_running + scheduler.num_queued},
          {"num_used_tokens", scheduler.num_used_tokens},
          {"max_total_num_tokens", stats.max_total_tokens},
          {"token_usage", share(scheduler.num_used_tokens, stats.max_total_tokens)},
          {"gen_throughput", stats.gen_throughput},
          {"cache_hit_rate", share(scheduler.total_cached_tokens, scheduler.total_prompt_tokens)},
          {"utilization", stats.utilization},
          {"max_running_requests", context.options.max_running_requests},
          {"memory", {{"token_capacity", stats.max_total_tokens}}},
          {"queues", {{"waiting", scheduler.num_queued}, {"retracted", scheduler.total_retractions}}}};
}

json::object loads(const ServerContext& context) {
  json::object rank = rank_load(context);
  json::object aggregate = {
      {"total_running_reqs", rank["num_running_reqs"]}, {"total_waiting_reqs", rank["num_waiting_reqs"]},
      {"total_reqs", rank["num_total_reqs"]},           {"total_used_tokens", rank["num_used_tokens"]},
      {"avg_token_usage", rank["token_usage"]},         {"avg_throughput", rank["gen_throughput"]},
      {"avg_utilization", rank["utilization"]}};
  return {{"timestamp", utc_time(std::chrono::system_clock::now())},
          {"version", context.options.version},
          {"dp_rank_count", 1},
          {"loads", json::array{std::move(rank)}},
          {"aggregate", std::move(aggregate)}};
}

json::object model_card(const ServerContext& context, int64_t created) {
  return {{"id", context.options.served_model_name},
          {"object", "model"},
          {"created", created},
          {"owned_by", "hadal"},
          {"root", context.options.model_path},
          {"parent", nullptr},
          {"max_model_len", context.engine.context_length()}};
}

}  // namespace

void add_native_info_routes(Router& router, ServerContext& context) {
  const auto add = [&](std::string_view path, std::function<json::value()> describe) {
    router.add({.method = "GET",
                .path = path,
                .handler = [describe = std::move(describe)](const ExchangePtr& exchange) {
                  exchange->respond(json_text(describe()));
                }});
  };
  for (const char* path : {"/model_info", "/get_model_info"})
    add(path, [&context] { return model_info(context); });
  for (const char* path : {"/server_info", "/get_server_info"}) {
    add(path, [&context] { return server_info(context); });
  }
  add("/get_load", [&context] { return load(context); });
  add("/v1/loads", [&context] { return loads(context); });
  add("/get_weight_version", [] { return json::object{{"weight_version", "default"}}; });

  const int64_t created = unix_seconds();
  router.add({.method = "GET",
              .path = "/v1/models",
              .style = ErrorStyle::kOpenAi,
              .handler = [&context, created](const ExchangePtr& exchange) {
                exchange->respond(
                    json_text({{"object", "list"}, {"data", json::array{model_card(context, created)}}}));
              }});
  router.add({.method = "GET",
              .path = "/v1/models/{model...}",
              .style = ErrorStyle::kOpenAi,
              .handler = [&context, created](const ExchangePtr& exchange) {
                const std::string_view model = std::string_view(exchange->request().path).substr(11);
                if (model == context.options.served_model_name) {
                  return exchange->respond(json_text(model_card(context, created)));
                }
                exchange->respond(
                    error_response(ErrorStyle::kOpenAi, 404,
                                   fmt::format("the model '{}' does not exist; this server has '{}'", model,
                                               context.options.served_model_name),
                                   "model"));
              }});
}

}  // namespace hadal::server

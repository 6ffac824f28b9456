#include "server/json/known_fields.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>

#include <boost/json.hpp>

namespace hadal::server {
namespace json = boost::json;
namespace {

using Table = std::span<const std::string_view>;

// read_openai_fields() reads or refuses these, whatever else a body has.
constexpr std::string_view kShared[] = {"bootstrap_host",
                                        "bootstrap_port",
                                        "bootstrap_room",
                                        "cache_salt",
                                        "custom_logit_processor",
                                        "custom_params",
                                        "data_parallel_rank",
                                        "disagg_prefill_dp_rank",
                                        "ebnf",
                                        "extra_key",
                                        "frequency_penalty",
                                        "guided_choice",
                                        "guided_decoding_backend",
                                        "guided_grammar",
                                        "guided_json",
                                        "guided_regex",
                                        "ignore_eos",
                                        "image_max_dynamic_patch",
                                        "images_config",
                                        "json_schema",
                                        "logit_bias",
                                        "logits_processors",
                                        "lora_path",
                                        "max_dynamic_patch",
                                        "min_dynamic_patch",
                                        "min_p",
                                        "min_tokens",
                                        "model",
                                        "n",
                                        "no_stop_trim",
                                        "prediction",
                                        "presence_penalty",
                                        "priority",
                                        "prompt_cache_retention",
                                        "regex",
                                        "repetition_penalty",
                                        "response_format",
                                        "return_cached_tokens_details",
                                        "return_hidden_states",
                                        "return_meta_info",
                                        "return_prompt_token_ids",
                                        "return_routed_experts",
                                        "return_text_in_logprobs",
                                        "return_token_ids",
                                        "rid",
                                        "routed_dp_rank",
                                        "seed",
                                        "session_params",
                                        "skip_special_tokens",
                                        "stop",
                                        "stop_regex",
                                        "stop_token_ids",
                                        "stream",
                                        "stream_options",
                                        "structural_tag",
                                        "structured_outputs",
                                        "temperature",
                                        "top_k",
                                        "top_p",
                                        "verbosity",
                                        "video_max_dynamic_patch",
                                        "web_search_options"};

// "user", "metadata", "safety_identifier" and "prompt_cache_key" are labels, which do not change an answer.
constexpr std::string_view kOpenAi[] = {"add_generation_prompt",
                                        "audio",
                                        "best_of",
                                        "chat_template_kwargs",
                                        "content_special_tokens",
                                        "continue_final_message",
                                        "echo",
                                        "function_call",
                                        "functions",
                                        "logprobs",
                                        "max_completion_tokens",
                                        "max_tokens",
                                        "messages",
                                        "metadata",
                                        "modalities",
                                        "parallel_tool_calls",
                                        "prompt",
                                        "prompt_cache_key",
                                        "reasoning_effort",
                                        "safety_identifier",
                                        "separate_reasoning",
                                        "service_tier",
                                        "store",
                                        "stream_reasoning",
                                        "suffix",
                                        "thinking",
                                        "tool_choice",
                                        "tools",
                                        "top_logprobs",
                                        "user"};

constexpr std::string_view kMessages[] = {"cache_control",
                                          "container",
                                          "content_special_tokens",
                                          "context_management",
                                          "inference_geo",
                                          "max_completion_tokens",
                                          "max_output_tokens",
                                          "max_tokens",
                                          "mcp_servers",
                                          "messages",
                                          "metadata",
                                          "output_config",
                                          "output_format",
                                          "reasoning_effort",
                                          "service_tier",
                                          "speed",
                                          "stop_sequences",
                                          "system",
                                          "thinking",
                                          "tool_choice",
                                          "tools"};

constexpr std::string_view kResponses[] = {"background",
                                           "content_special_tokens",
                                           "context_management",
                                           "conversation",
                                           "include",
                                           "input",
                                           "instructions",
                                           "max_completion_tokens",
                                           "max_output_tokens",
                                           "max_tokens",
                                           "max_tool_calls",
                                           "messages",
                                           "metadata",
                                           "moderation",
                                           "parallel_tool_calls",
                                           "previous_response_id",
                                           "prompt",
                                           "prompt_cache_key",
                                           "reasoning",
                                           "reasoning_effort",
                                           "safety_identifier",
                                           "service_tier",
                                           "store",
                                           "text",
                                           "thinking",
                                           "tool_choice",
                                           "tools",
                                           "top_logprobs",
                                           "truncation",
                                           "user"};

constexpr std::string_view kOllamaChat[] = {"_debug_render_only",
                                            "cache_salt",
                                            "content_special_tokens",
                                            "format",
                                            "keep_alive",
                                            "logprobs",
                                            "messages",
                                            "model",
                                            "options",
                                            "parallel_tool_calls",
                                            "shift",
                                            "stream",
                                            "think",
                                            "tool_choice",
                                            "tools",
                                            "top_logprobs",
                                            "truncate"};

constexpr std::string_view kOllamaGenerate[] = {"_debug_render_only",
                                                "cache_salt",
                                                "content_special_tokens",
                                                "context",
                                                "format",
                                                "height",
                                                "images",
                                                "keep_alive",
                                                "logprobs",
                                                "model",
                                                "options",
                                                "prompt",
                                                "raw",
                                                "shift",
                                                "steps",
                                                "stream",
                                                "suffix",
                                                "system",
                                                "template",
                                                "think",
                                                "top_logprobs",
                                                "truncate",
                                                "width"};

// Options for Ollama's engine itself make no difference here.
constexpr std::string_view kOllamaOptions[] = {"embedding_only",
                                               "f16_kv",
                                               "frequency_penalty",
                                               "logits_all",
                                               "low_vram",
                                               "main_gpu",
                                               "min_p",
                                               "mirostat",
                                               "mirostat_eta",
                                               "mirostat_tau",
                                               "num_batch",
                                               "num_ctx",
                                               "num_gpu",
                                               "num_keep",
                                               "num_predict",
                                               "num_thread",
                                               "numa",
                                               "penalize_newline",
                                               "presence_penalty",
                                               "repeat_last_n",
                                               "repeat_penalty",
                                               "seed",
                                               "stop",
                                               "temperature",
                                               "tfs_z",
                                               "top_k",
                                               "top_p",
                                               "typical_p",
                                               "use_mlock",
                                               "use_mmap",
                                               "vocab_only"};

struct Tables {
  Table own;
  bool has_shared = false;  // kShared as well
};

Tables tables_of(BodyKind kind) {
  switch (kind) {
    case BodyKind::kOpenAi:
      return {kOpenAi, true};
    case BodyKind::kMessages:
      return {kMessages, true};
    case BodyKind::kResponses:
      return {kResponses, true};
    case BodyKind::kOllamaChat:
      return {kOllamaChat};
    case BodyKind::kOllamaGenerate:
      return {kOllamaGenerate};
    case BodyKind::kOllamaOptions:
      return {kOllamaOptions};
  }
  return {};
}

constexpr bool are_sorted(std::initializer_list<Table> tables) {
  return std::ranges::all_of(tables, [](Table table) { return std::ranges::is_sorted(table); });
}
static_assert(are_sorted({kShared, kOpenAi, kMessages, kResponses, kOllamaChat, kOllamaGenerate,
                          kOllamaOptions}));

}  // namespace

int64_t num_unknown_fields(const json::object& object, BodyKind kind) {
  const Tables tables = tables_of(kind);
  return std::ranges::count_if(object, [&](const json::key_value_pair& entry) {
    const std::string_view key(entry.key().data(), entry.key().size());
    const bool is_known = std::ranges::binary_search(tables.own, key) ||
                          (tables.has_shared && std::ranges::binary_search(Table(kShared), key));
    return !is_known && !entry.value().is_null();
  });
}

}  // namespace hadal::server

// `hadal info`: what would be loaded, from config.json alone, but for files quantised without its saying so.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/available_memory.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/run.h"
#include "cli/session.h"
#include "cli/terminal.h"
#include "engine/backend.h"
#include "model/info.h"

namespace hadal::cli {
namespace {

std::string readable_bytes(int64_t bytes) {
  if (bytes >= 1000000000) return fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9);
  if (bytes >= 1000000) return fmt::format("{:.2f} MB", static_cast<double>(bytes) / 1e6);
  return fmt::format("{} B", bytes);
}

std::string readable_count(int64_t count) {
  if (count >= 1000000000) return fmt::format("{:.2f} B", static_cast<double>(count) / 1e9);
  if (count >= 1000000) return fmt::format("{:.2f} M", static_cast<double>(count) / 1e6);
  return fmt::format("{}", count);
}

}  // namespace

Result<int> run_info(const ParsedFlags& flags, const Environment& environment) {
  HADAL_ASSIGN_OR_RETURN(const auto session, Session::open(flags, environment, TokenizerUse::kNone));
  const ModelConfig& config = session->config();
  const ModelOptions& options = session->options();
  WeightLoadOptions load;
  load.format = options.load_format;
  load.quantization = options.quantization;
  load.load_nextn = false;
  HADAL_ASSIGN_OR_RETURN(load.compute_dtype, session->compute_dtype());
  HADAL_ASSIGN_OR_RETURN(const KvLayout layout, session->kv_layout());
  const auto memory_bytes = static_cast<int64_t>(available_memory_bytes().value_or(0));
  ModelInfo info = model_info(config, load, layout, memory_bytes);
  const int64_t wanted_tokens = flags.integer("max-total-tokens").value_or(0);
  const bool on_gpu = options.device == DeviceType::kCuda;
  GpuEstimate gpu;
  if (on_gpu) {
    HADAL_ASSIGN_OR_RETURN(gpu,
                           estimate_gpu(config, options.quantization, load.compute_dtype, layout,
                                        flags.number("mem-fraction-static").value_or(0.88), wanted_tokens));
    info.weight_bytes = gpu.weight_bytes;
    info.max_total_num_tokens = gpu.max_total_tokens;
  }
  const int64_t context_length = flags.integer("context-length").value_or(config.max_position_embeddings);
  if (context_length > config.max_position_embeddings) {
    return invalid_argument("--context-length {}: must be at most {}, the model's max_position_embeddings",
                            context_length, config.max_position_embeddings);
  }
  int64_t max_tokens =
      on_gpu ? gpu.max_total_tokens : default_max_total_tokens(config, layout, context_length);
  if (wanted_tokens > 0) {
    if (!on_gpu && memory_bytes > 0) {
      HADAL_RETURN_IF_ERROR(check_cpu_cache_fits(config, layout, wanted_tokens,
                                                 std::max<int64_t>(memory_bytes - info.weight_bytes, 0)));
    }
    max_tokens = in_whole_pages(wanted_tokens);
  }
  std::string quantization = describe(config, options.quantization);
  if (options.quantization == LoadQuantization::kNone && options.load_format == LoadFormat::kAuto) {
    HADAL_ASSIGN_OR_RETURN(const auto unsaid, unsaid_quantization(config, session->model_dir()));
    if (unsaid) quantization = describe_unsaid(*unsaid);
  }

  if (flags.has("json")) {
    nlohmann::json out = {
        {"model_path", session->model_dir().string()},
        {"architecture", info.architecture},
        {"num_hidden_layers", config.num_hidden_layers},
        {"hidden_size", config.hidden_size},
        {"num_attention_heads", config.num_attention_heads},
        {"n_routed_experts", config.n_routed_experts},
        {"num_experts_per_tok", config.num_experts_per_tok},
        {"vocab_size", config.vocab_size},
        {"num_parameters", info.num_parameters},
        {"num_active_parameters", info.num_active_parameters},
        {"num_nextn_parameters", info.num_nextn_parameters},
        {"weight_bytes", info.weight_bytes},
        {"dtype", to_string(load.compute_dtype)},
        {"quantization", quantization},
        {"kv_cache_dtype", to_string(layout.format)},
        {"kv_cache_scales", scales_name(layout)},
        {"kv_record_bytes", layout.row_bytes()},
        {"page_size", kPageSize},
        {"kv_bytes_per_token", info.kv_bytes_per_token},
        {"max_total_num_tokens", max_tokens},
        {"context_length", context_length},
        {"device", to_string(options.device)},
    };
    if (on_gpu)
      out["gpu"] = {{"name", gpu.name}, {"total_bytes", gpu.total_bytes}, {"free_bytes", gpu.free_bytes}};
    write_stdout(out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    return kExitOk;
  }
  std::string out;
  const auto row = [&](const char* name, const std::string& value) {
    out += fmt::format("{:<22}{}\n", name, value);
  };
  row("model", session->model_dir().string());
  row("architecture", info.architecture);
  row("layers", fmt::format("{} ({} hidden, {} heads)", config.num_hidden_layers, config.hidden_size,
                            config.num_attention_heads));
  row("experts", config.n_routed_experts == 0
                     ? std::string("none")
                     : fmt::format("{} routed, {} a token, {} shared", config.n_routed_experts,
                                   config.num_experts_per_tok, config.n_shared_experts));
  row("vocabulary", fmt::format("{}", config.vocab_size));
  row("parameters", fmt::format("{} ({} used by a token)", readable_count(info.num_parameters),
                                readable_count(info.num_active_parameters)));
  if (info.num_nextn_parameters > 0)
    row("NextN parameters", readable_count(info.num_nextn_parameters) + ", not loaded");
  row("compute type", to_string(load.compute_dtype));
  row("quantisation", quantization);
  if (on_gpu)
    row("GPU", fmt::format("{}, {} of {} free", gpu.name, readable_bytes(gpu.free_bytes),
                           readable_bytes(gpu.total_bytes)));
  row("weights", fmt::format("{} on {}", readable_bytes(info.weight_bytes), to_string(options.device)));
  const std::string scales =
      layout.format == KvFormat::kFp8E4M3 ? fmt::format(" with scales {}", scales_name(layout)) : "";
  row("KV cache", fmt::format("{}{}, records of {} B, {} B a token, pages of {}", to_string(layout.format),
                              scales, layout.row_bytes(), info.kv_bytes_per_token, kPageSize));
  row("KV cache capacity", fmt::format("{}{} tokens", on_gpu ? "at most " : "", max_tokens));
  row("context length", fmt::format("{}", context_length));
  write_stdout(out);
  return kExitOk;
}

}  // namespace hadal::cli

#include "engine/engine_create.h"

#include <algorithm>
#include <utility>

#include "base/available_memory.h"
#include "engine/cpu_executor.h"

namespace hadal {
namespace {

int64_t pages_for(int64_t num_tokens) {
  return (num_tokens + kPageSize - 1) / kPageSize;
}

Result<void> check_at_least(const char* name, int64_t value, int64_t least) {
  if (value >= least) return {};
  return invalid_argument("{} is {}; allowed: {} or more", name, value, least);
}

// What does not depend on memory.
Result<void> check_options(const EngineOptions& options, const ModelConfig& config) {
  if (options.context_length < 2 || options.context_length > config.max_position_embeddings) {
    return invalid_argument("context-length is {}; allowed: 2 to {}, the model's max_position_embeddings",
                            options.context_length, config.max_position_embeddings);
  }
  HADAL_RETURN_IF_ERROR(check_at_least("max-running-requests", options.max_running_requests, 1));
  HADAL_RETURN_IF_ERROR(check_at_least("max-queued-requests", options.max_queued_requests, 0));
  if (options.chunked_prefill_size < 1 && options.chunked_prefill_size != -1) {
    return invalid_argument("chunked-prefill-size is {}; allowed: 1 or more, or -1 for whole prompts",
                            options.chunked_prefill_size);
  }
  HADAL_RETURN_IF_ERROR(check_at_least("max-prefill-tokens", options.max_prefill_tokens, 1));
  HADAL_RETURN_IF_ERROR(check_at_least("max-total-tokens", options.max_total_tokens, 1));
  HADAL_RETURN_IF_ERROR(check_at_least("decode-log-interval", options.decode_log_interval, 0));
  if (!(options.schedule_conservativeness > 0.0)) {
    return invalid_argument("schedule-conservativeness is {}; allowed: above 0",
                            options.schedule_conservativeness);
  }
  if (!(options.watchdog_timeout_s >= 0.0)) {
    return invalid_argument("watchdog-timeout is {}; allowed: 0 (none) or more seconds",
                            options.watchdog_timeout_s);
  }
  return {};
}

Result<std::unique_ptr<PlanRecorder>> open_recorder(const EngineOptions& options) {
  if (options.record_plans.empty()) return std::unique_ptr<PlanRecorder>();
  return PlanRecorder::open(options.record_plans);
}

}  // namespace

int64_t default_max_total_tokens(const ModelConfig& config, KvLayout layout, int64_t context_length) {
  const auto quarter = static_cast<int64_t>(available_memory_bytes().value_or(0) / 4);
  const int64_t affordable = quarter / (layout.row_bytes() * config.num_hidden_layers);
  return std::max<int64_t>(pages_for(std::min(affordable, 2 * context_length)), 1) * kPageSize;
}

Result<std::unique_ptr<Engine>> Engine::create(Model& model, ThreadPool& pool, const EngineOptions& options) {
  EngineOptions resolved = options;
  const ModelConfig& config = model.config();
  if (resolved.context_length == 0) resolved.context_length = config.max_position_embeddings;
  const int64_t token_bytes = resolved.kv_layout.row_bytes() * config.num_hidden_layers;
  const auto available = static_cast<int64_t>(available_memory_bytes().value_or(0));
  if (resolved.max_total_tokens == 0) {
    resolved.max_total_tokens = default_max_total_tokens(config, resolved.kv_layout, resolved.context_length);
  }
  HADAL_RETURN_IF_ERROR(check_options(resolved, config));
  // The system would hand out more than there is, and end the process once it is touched.
  if (available > 0 && resolved.max_total_tokens > std::max(available / token_bytes, int64_t{kPageSize})) {
    return make_status(
        StatusCode::kResourceExhausted,
        "max-total-tokens is {}; allowed: at most {}, by {:.1f} GB of memory and {} bytes a token",
        resolved.max_total_tokens, available / token_bytes, static_cast<double>(available) * 1e-9,
        token_bytes);
  }
  resolved.max_total_tokens = pages_for(resolved.max_total_tokens) * kPageSize;
  HADAL_ASSIGN_OR_RETURN(std::unique_ptr<PlanRecorder> recorder, open_recorder(resolved));
  std::unique_ptr<StepExecutor> executor;
  try {
    executor = std::make_unique<CpuExecutor>(model, pool, resolved.max_total_tokens / kPageSize,
                                             resolved.kv_layout, resolved.kernels);
  } catch (const Error& error) {
    return make_status(StatusCode::kResourceExhausted,
                       "a KV cache of {} tokens ({} bytes a token) does not fit: {}; lower max-total-tokens",
                       resolved.max_total_tokens, token_bytes, error.what());
  }
  return make_engine(std::move(executor), config, resolved, std::move(recorder));
}

Result<std::unique_ptr<Engine>> Engine::create(std::unique_ptr<StepExecutor> executor,
                                               const ModelConfig& config, const EngineOptions& options) {
  HADAL_RETURN_IF_ERROR(check_options(options, config));
  EngineOptions resolved = options;
  resolved.max_total_tokens = pages_for(resolved.max_total_tokens) * kPageSize;
  HADAL_ASSIGN_OR_RETURN(std::unique_ptr<PlanRecorder> recorder, open_recorder(resolved));
  return make_engine(std::move(executor), config, resolved, std::move(recorder));
}

}  // namespace hadal

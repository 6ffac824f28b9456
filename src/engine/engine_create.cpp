#include "engine/engine_create.h"

#include <algorithm>
#include <utility>

#include "engine/backend.h"
#include "engine/step_executor.h"
#include "model/info.h"

namespace hadal {
namespace {

Result<void> check_at_least(const char* name, int64_t value, int64_t least) {
  if (value >= least) return {};
  return invalid_argument("{} is {}; allowed: {} or more", name, value, least);
}

// Checks what a backend's size_cache has set, and what a caller without a backend must set.
Result<void> check_capacity(const EngineOptions& options) {
  HADAL_RETURN_IF_ERROR(check_at_least("max-running-requests", options.max_running_requests, 1));
  return check_at_least("max-total-tokens", options.max_total_tokens, 1);
}

// Checks everything that does not depend on memory.
Result<void> check_options(const EngineOptions& options, const ModelConfig& config) {
  if (options.context_length < 2 || options.context_length > config.max_position_embeddings) {
    return invalid_argument("context-length is {}; allowed: 2 to {}, the model's max_position_embeddings",
                            options.context_length, config.max_position_embeddings);
  }
  HADAL_RETURN_IF_ERROR(check_at_least("max-running-requests", options.max_running_requests, 0));
  if (options.max_queued_requests != kDefaultMaxQueued)
    HADAL_RETURN_IF_ERROR(check_at_least("max-queued-requests", options.max_queued_requests, 0));
  if (options.chunked_prefill_size < 1 && options.chunked_prefill_size != -1) {
    return invalid_argument("chunked-prefill-size is {}; allowed: 1 or more, or -1 for whole prompts",
                            options.chunked_prefill_size);
  }
  HADAL_RETURN_IF_ERROR(check_at_least("max-prefill-tokens", options.max_prefill_tokens, 1));
  HADAL_RETURN_IF_ERROR(check_at_least("max-prefill-ms", options.max_prefill_ms, 0));
  HADAL_RETURN_IF_ERROR(check_at_least("decode-log-interval", options.decode_log_interval, 0));
  if (!(options.schedule_conservativeness > 0.0)) {
    return invalid_argument("schedule-conservativeness is {}; allowed: above 0",
                            options.schedule_conservativeness);
  }
  if (!(options.device.mem_fraction_static > 0.0 && options.device.mem_fraction_static <= 1.0)) {
    return invalid_argument("mem-fraction-static is {}; allowed: above 0, to 1",
                            options.device.mem_fraction_static);
  }
  if (options.speculation_width < 0 || options.speculation_width > kMaxSpeculationWidth) {
    return invalid_argument("speculation-width is {}; allowed: 0 (none) to {}", options.speculation_width,
                            kMaxSpeculationWidth);
  }
  const DraftShape& shape = options.draft_shape;
  if (shape.num_steps < 1 || shape.num_steps >= kMaxDraftNodes || shape.topk < 1 ||
      shape.topk > kMaxDraftNodes) {
    return invalid_argument("draft-shape is {} steps and topk {}; allowed: 1 to {} steps, topk 1 to {}",
                            shape.num_steps, shape.topk, kMaxDraftNodes - 1, kMaxDraftNodes);
  }
  if (options.speculation_width > shape.most_nodes()) {
    return invalid_argument(
        "speculation-width is {}; allowed: at most {}, because {} steps of topk {} give no more",
        options.speculation_width, shape.most_nodes(), shape.num_steps, shape.topk);
  }
  HADAL_RETURN_IF_ERROR(check_simulated_acceptance(options.simulated_acceptance, options.speculation_width,
                                                   shape, "simulated-acceptance"));
  if (!(options.watchdog_timeout_s >= 0.0)) {
    return invalid_argument("watchdog-timeout is {}; allowed: 0 (none) or more seconds",
                            options.watchdog_timeout_s);
  }
  return {};
}

// Sets what follows from the capacity.
void resolve_rest(EngineOptions& options) {
  options.max_total_tokens = in_whole_pages(options.max_total_tokens);
  if (options.max_queued_requests == kDefaultMaxQueued)
    options.max_queued_requests = default_max_queued_requests(options.max_running_requests);
}

Result<std::unique_ptr<PlanRecorder>> open_recorder(const EngineOptions& options) {
  if (options.record_plans.empty()) return std::unique_ptr<PlanRecorder>();
  return PlanRecorder::open(options.record_plans);
}

Result<void> check_speculation(const StepExecutor& executor, const EngineOptions& options) {
  if (options.speculation_width == 0 || executor.speculates()) return {};
  return unsupported("this executor does not speculate");
}

}  // namespace

Result<void> check_simulated_acceptance(std::span<const double> chances, int64_t speculation_width,
                                        const DraftShape& shape, std::string_view field) {
  const int64_t most = std::clamp<int64_t>(speculation_width - 1, 0, shape.num_steps);
  if (std::ssize(chances) > most) {
    return invalid_argument("{} has {} numbers; allowed: at most {}, one for each depth of drafts", field,
                            chances.size(), most);
  }
  for (const double chance : chances) {
    if (!(chance >= 0.0 && chance <= 1.0))
      return invalid_argument("{} has {}; allowed: numbers in [0, 1]", field, chance);
  }
  return {};
}

Result<void> check_draft_trees(const DraftShape& shape, const ModelConfig& config) {
  if (shape.topk == 1 || !config.has_indexer()) return {};
  return invalid_argument(
      "speculative-eagle-topk is {}; allowed with DeepSeek-V3.2's sparse attention: 1, which means chains of "
      "drafts",
      shape.topk);
}

int64_t in_whole_pages(int64_t num_tokens) {
  return (num_tokens + kPageSize - 1) / kPageSize * kPageSize;
}

int64_t default_max_queued_requests(int64_t max_running_requests) {
  return std::max<int64_t>(4096, 16 * max_running_requests);
}

int64_t default_max_total_tokens(const ModelConfig& config, KvLayout layout, int64_t context_length,
                                 int64_t available_bytes, bool with_nextn) {
  const int64_t affordable = available_bytes / 4 / kv_bytes_per_token(config, layout, with_nextn);
  return std::max<int64_t>(in_whole_pages(std::min(affordable, 2 * context_length)), kPageSize);
}

Result<std::unique_ptr<Engine>> Engine::create(Backend& backend, const EngineOptions& options) {
  EngineOptions resolved = options;
  const ModelConfig& config = backend.config();
  if (resolved.context_length == 0) resolved.context_length = config.max_position_embeddings;
  HADAL_RETURN_IF_ERROR(check_options(resolved, config));
  HADAL_RETURN_IF_ERROR(check_draft_trees(resolved.draft_shape, config));
  if (resolved.max_total_tokens != 0)
    HADAL_RETURN_IF_ERROR(check_at_least("max-total-tokens", resolved.max_total_tokens, 1));
  HADAL_RETURN_IF_ERROR(backend.size_cache(resolved));
  HADAL_RETURN_IF_ERROR(check_capacity(resolved));
  resolve_rest(resolved);
  HADAL_ASSIGN_OR_RETURN(std::unique_ptr<PlanRecorder> recorder, open_recorder(resolved));
  HADAL_ASSIGN_OR_RETURN(std::unique_ptr<StepExecutor> executor, backend.make_executor(resolved));
  HADAL_RETURN_IF_ERROR(check_speculation(*executor, resolved));
  return make_engine(std::move(executor), config, resolved, std::move(recorder));
}

Result<std::unique_ptr<Engine>> Engine::create(Model& model, ThreadPool& pool, const EngineOptions& options) {
  return create(*make_cpu_backend(model, pool, options.kernels), options);
}

Result<std::unique_ptr<Engine>> Engine::create(std::unique_ptr<StepExecutor> executor,
                                               const ModelConfig& config, const EngineOptions& options) {
  HADAL_RETURN_IF_ERROR(check_options(options, config));
  HADAL_RETURN_IF_ERROR(check_capacity(options));
  HADAL_RETURN_IF_ERROR(check_speculation(*executor, options));
  EngineOptions resolved = options;
  resolve_rest(resolved);
  HADAL_ASSIGN_OR_RETURN(std::unique_ptr<PlanRecorder> recorder, open_recorder(resolved));
  return make_engine(std::move(executor), config, resolved, std::move(recorder));
}

}  // namespace hadal

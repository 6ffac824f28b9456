// `hadal info` says what would be loaded and whether it fits. It reads config.json, and weight files only if
// those are quantised and config.json does not say so.
#include <optional>

#include <nlohmann/json.hpp>

#include "base/available_memory.h"
#include "cli/commands/commands.h"
#include "cli/memory_fit.h"
#include "cli/options.h"
#include "cli/run.h"
#include "cli/session.h"
#include "cli/terminal.h"
#include "engine/backend.h"
#include "engine/cuda/memory_plan.h"
#include "kernels/cuda/experts/plan.h"
#include "model/info.h"
#include "tune/kernel_config.h"
#include "tune/tune_report.h"
#include "tune/tune_shapes.h"

namespace hadal::cli {
namespace {

// `--device cuda` assumes one NVIDIA H200 on a machine without a usable GPU.
constexpr const char* kAssumedGpu = "NVIDIA H200";
constexpr int64_t kAssumedGpuBytes = 150'000'000'000;

struct Report {
  ModelInfo model;
  DType compute_dtype = DType::kBF16;
  KvLayout layout;
  std::string quantization;
  std::optional<GpuEstimate> gpu;  // with --device cuda, or where a GPU is found
  MemoryFit fit;
  std::string memory_place;  // completes a sentence with "12.34 GB are"
  int64_t max_tokens = 0;    // tokens of the KV cache; 0: the model does not fit
  int64_t context_length = 0;
  ModelSplit split;
  std::vector<RankBytes> ranks;  // of each rank's weights; empty for one rank
};

std::string readable_count(int64_t count) {
  if (count >= 1000000000) return fmt::format("{:.2f} B", static_cast<double>(count) / 1e9);
  if (count >= 1000000) return fmt::format("{:.2f} M", static_cast<double>(count) / 1e6);
  return fmt::format("{}", count);
}

// Returns the estimate for the assumed GPU with `weight_bytes` of weights. All of its memory counts as free.
GpuEstimate estimate_assumed_gpu(const ModelInfo& model, int64_t weight_bytes, double fraction) {
  DeviceMemoryPlan plan{.total_bytes = kAssumedGpuBytes, .fraction = fraction};
  plan.weight_bytes = weight_bytes;
  plan.fill_cache(model.kv_bytes_per_token);
  return GpuEstimate{
      .name = kAssumedGpu, .num_sms = kAssumedMultiprocessors, .free_bytes = kAssumedGpuBytes, .plan = plan};
}

// Fills in gpu, fit, memory_place and max_tokens.
Result<void> judge_gpu(const Session& session, double fraction, int64_t wanted_tokens, Report& report) {
  const ModelOptions& options = session.options();
  const bool is_assumed = !options.no_gpu_because.empty();
  if (is_assumed) {
    report.gpu = estimate_assumed_gpu(
        report.model, report.ranks.empty() ? report.model.weight_bytes : report.ranks[0].all, fraction);
  } else {
    HADAL_ASSIGN_OR_RETURN(
        report.gpu, estimate_gpu(session.config(), options.quantization, report.compute_dtype, report.layout,
                                 fraction, options.split, options.gpus));
  }
  const GpuEstimate& gpu = *report.gpu;
  if (report.ranks.empty()) report.model.weight_bytes = gpu.plan.weight_bytes;
  report.fit = judge_fit(gpu.plan, report.model.kv_bytes_per_token);
  report.memory_place =
      fmt::format("available on {} {}{} ({:g} of {})", is_assumed ? "an assumed" : "the GPU", gpu.name,
                  report.ranks.empty() ? "" : " of rank 0, which has the largest part", fraction,
                  readable_bytes(gpu.plan.total_bytes));
  if (!report.fit.fits()) return {};
  if (wanted_tokens > 0)
    HADAL_RETURN_IF_ERROR(check_cache_fits(gpu.plan, report.model.kv_bytes_per_token, wanted_tokens));
  report.max_tokens = wanted_tokens > 0 ? in_whole_pages(wanted_tokens) : gpu.plan.max_total_tokens;
  return {};
}

Result<void> judge_cpu(const Session& session, int64_t memory_bytes, int64_t wanted_tokens, Report& report) {
  // Ranks on the CPU have views of the same weights, but each has a KV cache of its own.
  const int64_t tp = report.split.tp;
  report.fit = judge_fit(report.model.weight_bytes, report.model.kv_bytes_per_token * tp, memory_bytes);
  report.memory_place = "available to the CPU";
  if (!report.fit.fits()) return {};
  const int64_t left = memory_bytes - report.model.weight_bytes;  // every step reads weights, so they stay
  if (wanted_tokens == 0) {
    report.max_tokens =
        default_max_total_tokens(session.config(), report.layout, report.context_length, left / tp);
    return {};
  }
  if (memory_bytes > 0)
    HADAL_RETURN_IF_ERROR(check_cpu_cache_fits(session.config(), report.layout, tp, wanted_tokens, left));
  report.max_tokens = in_whole_pages(wanted_tokens);
  return {};
}

Result<Report> make_report(const ParsedFlags& flags, const Session& session) {
  const ModelConfig& config = session.config();
  const ModelOptions& options = session.options();
  Report report;
  WeightLoadOptions load;
  load.format = options.load_format;
  load.quantization = options.quantization;
  load.load_nextn = false;
  HADAL_ASSIGN_OR_RETURN(load.compute_dtype, session.compute_dtype());
  HADAL_ASSIGN_OR_RETURN(report.layout, session.kv_layout());
  report.compute_dtype = load.compute_dtype;
  const auto memory_bytes = static_cast<int64_t>(available_memory_bytes().value_or(0));
  report.model = model_info(config, load, report.layout, memory_bytes);
  report.split = options.split;
  if (!report.split.is_whole()) {
    const auto bytes_of = options.device == DeviceType::kCuda ? gpu_rank_bytes : rank_bytes;
    for (int64_t rank = 0; rank < report.split.tp; ++rank)
      report.ranks.push_back(bytes_of(config, load, report.split, rank));
  }
  report.context_length = context_length_of(flags, config);
  const int64_t wanted_tokens = flags.integer("max-total-tokens").value_or(0);
  if (options.device == DeviceType::kCuda) {
    const double fraction = flags.number("mem-fraction-static").value_or(DeviceOptions{}.mem_fraction_static);
    HADAL_RETURN_IF_ERROR(judge_gpu(session, fraction, wanted_tokens, report));
  } else {
    HADAL_RETURN_IF_ERROR(judge_cpu(session, memory_bytes, wanted_tokens, report));
  }
  report.quantization = describe(config, options.quantization);
  if (options.quantization == LoadQuantization::kNone && options.load_format == LoadFormat::kAuto) {
    HADAL_ASSIGN_OR_RETURN(const auto undeclared, undeclared_quantization(config, session.model_dir()));
    if (undeclared) report.quantization = describe_undeclared(*undeclared);
  }
  return report;
}

// ExpertPlans holds the plans of --expert-plan, one for each number of tokens and each kind of layer, with
// the measured choices that an engine would load for the card.
struct ExpertPlans {
  std::string card;
  bool has_choices = false;  // there are measured choices for the card
  std::vector<cuda::ExpertsPlan> plans;
};

// Makes the plans for the GPU of the report, or for the assumed GPU if none is usable.
Result<ExpertPlans> make_expert_plans(const ParsedFlags& flags, const Session& session,
                                      const Report& report) {
  ExpertPlans out;
  if (!flags.has("expert-plan")) return out;
  const ModelOptions& options = session.options();
  HADAL_ASSIGN_OR_RETURN(const auto counts, parse_counts(flags, "expert-plan", {}));
  if (session.config().n_routed_experts == 0) {
    return invalid_argument("--expert-plan {}: {} has no experts; must be used with a model that has experts",
                            fmt::join(counts, ","), session.model_dir().string());
  }
  const bool is_real = report.gpu && options.no_gpu_because.empty();
  const int num_sms = is_real ? report.gpu->num_sms : kAssumedMultiprocessors;
  out.card = is_real ? report.gpu->name : kAssumedGpu;
  BackendOptions backend;
  session.add_kernel_configs(backend);
  HADAL_ASSIGN_OR_RETURN(
      const cuda::ProductChoices choices,
      load_kernel_configs(backend.kernel_config_dirs, out.card, num_sms, backend.named_kernel_config_dir));
  out.has_choices = !choices.empty();
  // A GPU computes in 16 bits even if the CPU would compute in float32.
  const WeightType plain = report.compute_dtype == DType::kF16 ? WeightType::kF16 : WeightType::kBF16;
  HADAL_ASSIGN_OR_RETURN(auto shapes,
                         expert_layer_shapes(session.config(), options.quantization, plain, options.split));
  const cuda::ExpertsFlags how{.fusion = options.fusion,
                               .reference = options.kernels == KernelSet::kReference};
  for (cuda::ExpertsShape& shape : shapes) {
    shape.num_sms = num_sms;
    for (const int64_t tokens : counts) {
      shape.tokens = tokens;
      out.plans.push_back(cuda::plan_experts(shape, &choices, how));
    }
  }
  return out;
}

std::string plain_text(const ExpertPlans& plans) {
  std::string out;
  for (const cuda::ExpertsPlan& plan : plans.plans) {
    const cuda::ExpertsShape& shape = plan.shape;
    out += fmt::format("\nexperts of {} token{} on one {}{}: {} routed{}, {} shared, {} x {}\n", shape.tokens,
                       shape.tokens == 1 ? "" : "s", plans.card,
                       plans.has_choices ? "" : " without measured choices", shape.num_experts,
                       shape.holds_all() ? "" : fmt::format(" ({} on the rank)", shape.num_held),
                       shape.num_shared, shape.intermediate, shape.hidden);
    out += cuda::to_string(plan);
  }
  return out;
}

nlohmann::json json_of(const ExpertPlans& plans) {
  nlohmann::json out = nlohmann::json::array();
  for (const cuda::ExpertsPlan& plan : plans.plans) {
    nlohmann::json kernels = nlohmann::json::array();
    for (const cuda::ExpertsKernel& kernel : plan.kernels) {
      kernels.push_back({{"op", cuda::to_string(kernel.op)},
                         {"kernel", cuda::kernel_text(kernel)},
                         {"rows", kernel.rows},
                         {"n", kernel.n},
                         {"k", kernel.k},
                         {"reason", reason_text(kernel)}});
    }
    out.push_back({{"tokens", plan.shape.tokens},
                   {"card", plans.card},
                   {"workspace_bytes", plan.workspace.bytes},
                   {"kernels", std::move(kernels)}});
  }
  return out;
}

// Returns the routed experts whose weights the rank holds, fully or in part.
Range experts_at(const Report& report, const ModelConfig& config, int64_t rank) {
  const Range experts = experts_of(config, report.split, rank);
  return report.ranks[static_cast<size_t>(rank)].experts > 0 ? experts : Range{experts.begin, experts.begin};
}

nlohmann::json ranks_json(const Report& report, const ModelConfig& config) {
  nlohmann::json out = nlohmann::json::array();
  for (size_t rank = 0; rank < report.ranks.size(); ++rank) {
    const auto rank_idx = static_cast<int64_t>(rank);
    const Range experts = experts_at(report, config, rank_idx);
    const Range vocabulary = vocabulary_of(config, report.split, rank_idx);
    out.push_back({{"tp_rank", rank},
                   {"weight_bytes", report.ranks[rank].all},
                   {"num_heads", heads_of(config, report.split, rank_idx).size()},
                   {"experts", {experts.begin, experts.end}},
                   {"vocabulary", {vocabulary.begin, vocabulary.end}}});
  }
  return out;
}

std::string json_text(const Report& report, const ExpertPlans& experts, const Session& session) {
  const ModelConfig& config = session.config();
  const ModelInfo& model = report.model;
  nlohmann::json out = {
      {"model_path", session.model_dir().string()},
      {"architecture", model.architecture},
      {"num_hidden_layers", config.num_hidden_layers},
      {"hidden_size", config.hidden_size},
      {"num_attention_heads", config.num_attention_heads},
      {"n_routed_experts", config.n_routed_experts},
      {"num_experts_per_tok", config.num_experts_per_tok},
      {"vocab_size", config.vocab_size},
      {"num_parameters", model.num_parameters},
      {"num_active_parameters", model.num_active_parameters},
      {"num_nextn_parameters", model.num_nextn_parameters},
      {"weight_bytes", model.weight_bytes},
      {"dtype", to_string(report.compute_dtype)},
      {"quantization", report.quantization},
      {"kv_cache_dtype", to_string(report.layout.format)},
      {"kv_cache_scales", scales_name(report.layout)},
      {"kv_record_bytes", report.layout.row_bytes()},
      {"page_size", kPageSize},
      {"kv_bytes_per_token", model.kv_bytes_per_token},
      {"index_bytes_per_token", model.index_bytes_per_token},
      {"index_topk", config.index_topk},
      {"seq_len_threshold", session.seq_len_threshold()},
      {"max_total_num_tokens", report.max_tokens},
      {"context_length", report.context_length},
      {"device", to_string(session.options().device)},
      {"memory_bytes", report.fit.memory_bytes},
      {"fits", report.fit.fits()},
      {"missing_bytes", report.fit.missing_bytes},
  };
  out["tp_size"] = report.split.tp;
  out["ep_size"] = report.split.ep;
  if (!report.ranks.empty()) out["ranks"] = ranks_json(report, config);
  if (!experts.plans.empty()) out["expert_plans"] = json_of(experts);
  if (report.gpu) {
    const std::string& why = session.options().no_gpu_because;
    out["gpu"] = {{"name", report.gpu->name},
                  {"total_bytes", report.gpu->plan.total_bytes},
                  {"free_bytes", report.gpu->free_bytes},
                  {"assumed_because", why.empty() ? nlohmann::json() : nlohmann::json(why)}};
  }
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string cache_capacity(const Report& report) {
  if (!report.fit.fits()) return "none, because the model does not fit";
  std::string out = fmt::format("{}{} tokens", report.gpu ? "at most " : "", report.max_tokens);
  if (report.max_tokens < report.context_length) out += ", which is less than one context";
  if (report.gpu) out += "; the workspace of steps, the state of requests and CUDA graphs are not counted";
  return out;
}

std::string memory_text(const Report& report) {
  const MemoryFit& fit = report.fit;
  if (fit.memory_bytes == 0) return "not known";
  const std::string there = fmt::format("{} are {}", readable_bytes(fit.memory_bytes), report.memory_place);
  if (fit.fits()) return there;
  return fmt::format("{}: {} too little", there, readable_bytes(fit.missing_bytes));
}

std::string plain_text(const Report& report, const Session& session) {
  const ModelConfig& config = session.config();
  const ModelInfo& model = report.model;
  std::string out;
  const auto row = [&](const char* name, const std::string& value) {
    out += fmt::format("{:<22}{}\n", name, value);
  };
  row("model", session.model_dir().string());
  row("architecture", model.architecture);
  row("layers", fmt::format("{} ({} hidden, {} heads)", config.num_hidden_layers, config.hidden_size,
                            config.num_attention_heads));
  row("experts", config.n_routed_experts == 0
                     ? std::string("none")
                     : fmt::format("{} routed, {} per token, {} shared", config.n_routed_experts,
                                   config.num_experts_per_tok, config.n_shared_experts));
  if (config.has_indexer())
    row("sparse attention", fmt::format("a token attends to at most {} keys, which {} heads select{}",
                                        config.index_topk, config.index_n_heads,
                                        session.seq_len_threshold() == config.index_topk
                                            ? ""
                                            : fmt::format("; prompts attend absorbed from {} keys on",
                                                          session.seq_len_threshold() + 1)));
  row("vocabulary", fmt::format("{}", config.vocab_size));
  row("parameters", fmt::format("{} ({} used by each token)", readable_count(model.num_parameters),
                                readable_count(model.num_active_parameters)));
  if (model.num_nextn_parameters > 0)
    row("NextN parameters", readable_count(model.num_nextn_parameters) + ", which are not loaded");
  row("compute type", to_string(report.compute_dtype));
  row("quantisation", report.quantization);
  if (report.gpu && session.options().no_gpu_because.empty()) {
    row("GPU", fmt::format("{}, {} of {} free", report.gpu->name, readable_bytes(report.gpu->free_bytes),
                           readable_bytes(report.gpu->plan.total_bytes)));
  } else if (report.gpu) {
    row("GPU", fmt::format("one {} with {} is assumed, because no GPU can be used: {}", report.gpu->name,
                           readable_bytes(report.gpu->plan.total_bytes), session.options().no_gpu_because));
  }
  row("weights",
      fmt::format("{} on {}", readable_bytes(model.weight_bytes), to_string(session.options().device)));
  for (size_t rank = 0; rank < report.ranks.size(); ++rank) {
    const auto rank_idx = static_cast<int64_t>(rank);
    const Range experts = experts_at(report, config, rank_idx);
    const std::string share_of_experts =
        experts.size() == 0 ? "no routed experts"
                            : fmt::format("experts {} to {}", experts.begin, experts.end - 1);
    // Ranks on the CPU share one copy of the weights that all of them need.
    const char* does = session.options().device == DeviceType::kCuda ? "held" : "read";
    row(fmt::format("  {} by rank {}", does, rank).c_str(),
        fmt::format("{}: {} heads, {}", readable_bytes(report.ranks[rank].all),
                    heads_of(config, report.split, rank_idx).size(), share_of_experts));
  }
  row("memory", memory_text(report));
  const std::string scales = report.layout.format == KvFormat::kFp8E4M3
                                 ? fmt::format(" with scales {}", scales_name(report.layout))
                                 : "";
  const std::string index =
      config.has_indexer() ? fmt::format(" and index keys of {} B", report.layout.index_row_bytes()) : "";
  row("KV cache",
      fmt::format("{}{}, records of {} B{}, {} B per token{}, pages of {} tokens",
                  to_string(report.layout.format), scales, report.layout.row_bytes(), index,
                  model.kv_bytes_per_token, report.split.is_whole() ? "" : " on each rank", kPageSize));
  row("KV cache capacity", cache_capacity(report));
  row("context length", fmt::format("{}", report.context_length));
  return out;
}

}  // namespace

Result<int> run_info(const ParsedFlags& flags, const Environment& environment) {
  HADAL_ASSIGN_OR_RETURN(const auto session, Session::open(flags, environment, TokenizerUse::kNone));
  HADAL_ASSIGN_OR_RETURN(const Report report, make_report(flags, *session));
  HADAL_ASSIGN_OR_RETURN(const ExpertPlans experts, make_expert_plans(flags, *session, report));
  write_stdout(flags.has("json") ? json_text(report, experts, *session)
                                 : plain_text(report, *session) + plain_text(experts));
  // With --expert-plan a model that does not fit is no error, because the plan has been printed; the report
  // says that it does not fit.
  if (!flags.has("expert-plan")) HADAL_RETURN_IF_ERROR(check_fit(report.fit, report.memory_place));
  return kExitOk;
}

}  // namespace hadal::cli

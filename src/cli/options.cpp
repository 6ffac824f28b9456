#include "cli/options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <random>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/mapped_file.h"
#include "cli/flags/defaults.h"
#include "cli/speculation_options.h"
#include "engine/backend.h"
#include "kernels/cuda/availability.h"
#include "model/model.h"
#include "model/quantization.h"

namespace hadal::cli {
namespace {

using nlohmann::json;

// Reads a number of `object` that must be in [min, max]; nullopt if it is absent or null.
Result<std::optional<double>> number_field(const json& object, const char* name, double min, double max,
                                           const std::string& source) {
  const auto at = object.find(name);
  if (at == object.end() || at->is_null()) return std::optional<double>();
  if (!at->is_number()) return data_loss("{}: {} is {}; must be a number", source, name, at->dump());
  const double value = at->get<double>();
  if (!(value >= min && value <= max))
    return data_loss("{}: {} is {}; must be in [{:g}, {:g}]", source, name, at->dump(), min, max);
  return std::optional<double>(value);
}

Result<std::vector<std::pair<int32_t, float>>> parse_logit_bias(const std::string& text) {
  const json parsed = json::parse(text, nullptr, false);
  if (!parsed.is_object()) {
    return invalid_argument("--logit-bias {}: must be a JSON object {{\"id\": bias}}",
                            text.empty() ? "''" : text);
  }
  std::vector<std::pair<int32_t, float>> out;
  for (const auto& [key, value] : parsed.items()) {
    int32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0) {
      return invalid_argument("--logit-bias: '{}' is not a token id; must be a whole number in [0, {}]", key,
                              std::numeric_limits<int32_t>::max());
    }
    if (!value.is_number() || std::abs(value.get<double>()) > 100.0) {
      return invalid_argument("--logit-bias: {} has the bias {}; must be a number in [-100, 100]", key,
                              value.dump());
    }
    out.emplace_back(id, value.get<float>());
  }
  return out;
}

// Sets device and no_gpu_because.
Result<void> choose_device(const ParsedFlags& flags, ModelOptions& options) {
  const std::string wanted = flags.text_or("device", "");
  if (wanted == "cpu") return {};
  // The driver reads this variable at its first use. Without it, the driver loads a kernel's code at the
  // first launch and may wait for running kernels. That can deadlock, because kernels on several GPUs wait
  // for each other.
  if (flags.integer("tp-size").value_or(1) > 1) setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  const cuda::Availability cuda = cuda::availability();
  if (cuda.usable || wanted == "cuda") options.device = DeviceType::kCuda;
  if (cuda.usable) return {};
  if (wanted == "cuda" && flags.command() != Command::kInfo)
    return make_status(StatusCode::kUnsupported, "--device cuda: {}; --device cpu needs no GPU", cuda.reason);
  if (wanted == "cuda") options.no_gpu_because = cuda.reason;
  if (cuda.in_this_build && wanted.empty())
    log_warning("no GPU can be used, so the model runs on the CPU reason=\"{}\"", cuda.reason);
  return {};
}

// Sets options.gpus. `info` may assume GPUs that are not there.
Result<void> resolve_gpus(const ParsedFlags& flags, ModelOptions& options) {
  options.gpus = {.base_gpu_id = static_cast<int>(flags.integer("base-gpu-id").value_or(0)),
                  .gpu_id_step = static_cast<int>(flags.integer("gpu-id-step").value_or(1)),
                  .lone_rank = flags.integer("lone-rank").value_or(-1)};
  if (options.device == DeviceType::kCpu) {
    if (!options.gpus.is_lone()) return {};
    return invalid_argument("--lone-rank {}: allowed only with --device cuda", options.gpus.lone_rank);
  }
  const int num_gpus =
      options.no_gpu_because.empty() ? cuda::availability().num_devices : std::numeric_limits<int>::max();
  HADAL_RETURN_IF_ERROR(check_ranks(options.device, options.split, options.gpus, num_gpus));
  if (!flags.has("disable-custom-all-reduce") || options.split.is_whole() || options.gpus.is_lone() ||
      options.gpus.take_turns(options.split.tp))
    return {};
  return unsupported(
      "--disable-custom-all-reduce: in this version GPUs exchange data only by the program's own kernels; "
      "leave "
      "the flag out, or use --tp-size 1");
}

// Checks the flags before weights are loaded, which takes minutes. The errors are those of check_gpu_batch.
Result<void> check_batch_flags(const ParsedFlags& flags) {
  if (const auto most = flags.integer("max-running-requests"))
    HADAL_RETURN_IF_ERROR(check_gpu_batch("--max-running-requests", *most));
  HADAL_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, parse_counts(flags, "batch-size", {}));
  for (const int64_t size : sizes) HADAL_RETURN_IF_ERROR(check_gpu_batch("--batch-size", size));
  return {};
}

// Returns the seed from which requests without a seed of their own get theirs. With a seed that everybody
// knows, one client of a server could compute the random numbers of another's answer.
uint64_t engine_seed(const ParsedFlags& flags, const ModelOptions& model) {
  if (flags.command() != Command::kServe || flags.has("random-seed")) return model.random_seed;
  std::random_device system;
  return uint64_t{system()} << 32 | system();
}

}  // namespace

Result<void> check_deterministic_inference(bool wanted, DeviceType device) {
  if (!wanted || device == DeviceType::kCpu) return {};
  return make_status(
      StatusCode::kUnsupported,
      "--enable-deterministic-inference: is not supported on a GPU yet, where an answer may depend on "
      "the requests that share its steps; leave the flag out, or use --device cpu");
}

Result<ModelOptions> resolve_model_options(const ParsedFlags& flags) {
  ModelOptions options;
  options.model_path = flags.text_or("model-path", "");
  if (options.model_path.empty()) {
    return invalid_argument("--model-path is missing; must be a checkpoint directory or a Hugging Face id");
  }
  HADAL_RETURN_IF_ERROR(choose_device(flags, options));
  HADAL_RETURN_IF_ERROR(
      check_deterministic_inference(flags.has("enable-deterministic-inference"), options.device));
  if (options.device == DeviceType::kCuda) HADAL_RETURN_IF_ERROR(check_batch_flags(flags));
  // The plan of --expert-plan always describes a GPU, whatever the device is.
  if (options.device == DeviceType::kCpu && !flags.has("expert-plan")) {
    std::vector<std::string> unused;
    for (const Flag& flag : flag_table()) {
      if (flag.gpu_only && flags.has(flag.name)) unused.push_back("--" + flag.name);
    }
    if (!unused.empty())
      log_info("flags not used flags=\"{}\" reason=\"they apply to GPUs alone\"", fmt::join(unused, " "));
  }
  for (const char* name : {"nextn", "speculative-algorithm"}) {
    if (!flags.has(name)) continue;
    options.load_nextn = true;
    options.nextn_flag = fmt::format("--{}", name);
  }
  options.fusion = !flags.has("disable-fusion");
  options.seq_len_threshold = flags.integer("dsa-seq-len-threshold").value_or(-1);
  options.kernel_config_dir = flags.text_or("kernel-config-dir", "");
  std::error_code ignored;
  if (flags.has("kernel-config-dir") && !std::filesystem::is_directory(options.kernel_config_dir, ignored)) {
    if (options.kernel_config_dir.empty())
      return invalid_argument(
          "--kernel-config-dir '': is not a directory; must be a directory with files that `hadal tune` "
          "wrote");
    return not_found(
        "--kernel-config-dir {}: is not a directory; must be a directory with files that `hadal tune` wrote",
        options.kernel_config_dir);
  }
  options.tokenizer_path = flags.text_or("tokenizer-path", "");
  if (flags.text_or("load-format", "auto") == "dummy") options.load_format = LoadFormat::kDummy;
  if (const auto word = flags.text("quantization")) {
    HADAL_ASSIGN_OR_RETURN(options.quantization, parse_load_quantization(*word));
  }
  options.dtype = flags.text_or("dtype", "auto");
  if (options.dtype == "half") options.dtype = "float16";
  if (options.dtype == "float") options.dtype = "float32";
  options.kv_cache_dtype = flags.text_or("kv-cache-dtype", "auto");
  options.kv_cache_scales = flags.text_or("kv-cache-scales", "");
  options.config_overrides = flags.text_or("json-model-override-args", "");
  options.threads = static_cast<int>(flags.integer("threads").value_or(0));
  // `tune` runs no ranks: it measures the products that one of several GPUs would compute.
  if (flags.command() != Command::kTuneGemm && flags.command() != Command::kTuneMoe) {
    options.split = {.tp = flags.integer("tp-size").value_or(1), .ep = flags.integer("ep-size").value_or(1)};
    HADAL_RETURN_IF_ERROR(resolve_gpus(flags, options));
  }
  HADAL_RETURN_IF_ERROR(check_speculation_flags(flags));
  if (flags.text_or("kernels", "auto") == "reference") options.kernels = KernelSet::kReference;
  options.random_seed = static_cast<uint64_t>(flags.integer("random-seed").value_or(42));
  return options;
}

Result<DType> resolve_device_dtype(const ModelOptions& options, const ModelConfig& config) {
  if (options.device != DeviceType::kCuda) return resolve_compute_dtype(options.dtype, config);
  if (options.dtype == "auto") {
    // A float16 checkpoint stays float16 unless another flag asks for something that only bfloat16 supports.
    const bool stays = config.torch_dtype == DType::kF16 &&
                       check_gpu_compute_dtype(config, options.quantization, DType::kF16).ok() &&
                       resolve_kv_layout(options, config, DType::kF16).ok();
    return stays ? DType::kF16 : DType::kBF16;
  }
  HADAL_ASSIGN_OR_RETURN(const DType dtype, resolve_compute_dtype(options.dtype, config));
  HADAL_RETURN_IF_ERROR(check_gpu_compute_dtype(config, options.quantization, dtype));
  return dtype;
}

const char* scales_name(const KvLayout& layout) {
  if (layout.format != KvFormat::kFp8E4M3) return "none";
  return layout.scales == KvScales::kPerToken ? "per_token" : "per_128";
}

Result<KvLayout> resolve_kv_layout(const ModelOptions& options, const ModelConfig& config,
                                   DType compute_dtype) {
  const std::string_view kv_cache_dtype = options.kv_cache_dtype;
  KvFormat format = KvFormat::kBF16;
  if (kv_cache_dtype == "bf16" || kv_cache_dtype == "bfloat16") {
    format = KvFormat::kBF16;
  } else if (kv_cache_dtype == "fp16" || kv_cache_dtype == "float16") {
    format = KvFormat::kF16;
  } else if (kv_cache_dtype == "float32") {
    format = KvFormat::kF32;
  } else if (kv_cache_dtype == "fp8_e4m3") {
    format = KvFormat::kFp8E4M3;
  } else if (kv_cache_dtype == "fp8_e5m2") {
    format = KvFormat::kFp8E5M2;
  } else {
    HADAL_CHECK(kv_cache_dtype == "auto", "kv-cache-dtype {}", kv_cache_dtype);
    const bool on_gpu = options.device == DeviceType::kCuda;
    format = compute_dtype == DType::kF16              ? KvFormat::kF16
             : compute_dtype == DType::kF32 && !on_gpu ? KvFormat::kF32
                                                       : KvFormat::kBF16;
  }
  if (!options.kv_cache_scales.empty() && format != KvFormat::kFp8E4M3) {
    return invalid_argument(
        "--kv-cache-scales {}: a {} cache has no scales; allowed with --kv-cache-dtype fp8_e4m3 alone",
        options.kv_cache_scales, to_string(format));
  }
  std::optional<KvScales> scales;
  if (options.kv_cache_scales == "per_128") scales = KvScales::kPer128;
  if (options.kv_cache_scales == "per_token") scales = KvScales::kPerToken;
  HADAL_ASSIGN_OR_RETURN(const KvLayout layout, cache_layout(config, format, scales));
  if (options.device == DeviceType::kCuda) HADAL_RETURN_IF_ERROR(check_gpu_kv_layout(layout, compute_dtype));
  return layout;
}

Result<DeviceOptions> resolve_device_options(const ParsedFlags& flags) {
  DeviceOptions options;
  options.mem_fraction_static = flags.number("mem-fraction-static").value_or(options.mem_fraction_static);
  options.use_graphs = !flags.has("disable-cuda-graph") && !flags.has("disable-decode-cuda-graph");
  options.pad_graphs = !flags.has("disable-cuda-graph-padding");
  options.graph_max_bs = flags.integer("cuda-graph-max-bs-decode").value_or(options.graph_max_bs);
  HADAL_ASSIGN_OR_RETURN(options.graph_bs, parse_counts(flags, "cuda-graph-bs-decode", {}));
  return options;
}

EngineOptions resolve_engine_options(const ParsedFlags& flags, const ModelOptions& model) {
  EngineOptions options;
  const bool on_gpu = model.device == DeviceType::kCuda;
  if (on_gpu) options.max_running_requests = 0;  // the memory limits them instead
  options.max_total_tokens = flags.integer("max-total-tokens").value_or(options.max_total_tokens);
  options.max_running_requests = flags.integer("max-running-requests").value_or(options.max_running_requests);
  options.chunked_prefill_size =
      flags.integer("chunked-prefill-size").value_or(on_gpu ? kDefaultGpuPrefillChunk : kDefaultPrefillChunk);
  if (options.chunked_prefill_size == 0) options.chunked_prefill_size = -1;
  options.context_length = flags.integer("context-length").value_or(options.context_length);
  options.kernels = model.kernels;
  options.random_seed = engine_seed(flags, model);
  options.max_prefill_tokens = flags.integer("max-prefill-tokens").value_or(options.max_prefill_tokens);
  options.max_prefill_ms =
      flags.integer("max-prefill-ms").value_or(on_gpu ? options.max_prefill_ms : kDefaultPrefillMs);
  // The flag table has checked these names.
  const bool by_priority = flags.has("enable-priority-scheduling") && !flags.has("schedule-policy");
  options.schedule_policy =
      parse_schedule_policy(by_priority ? "priority" : flags.text_or("schedule-policy", "fcfs"),
                            "--schedule-policy")
          .value();
  options.low_priority_values_first = flags.has("schedule-low-priority-values-first");
  options.schedule_conservativeness =
      flags.number("schedule-conservativeness").value_or(options.schedule_conservativeness);
  options.eviction_policy =
      parse_eviction_policy(flags.text_or("radix-eviction-policy", "lru"), "--radix-eviction-policy").value();
  options.enable_radix_cache = !flags.has("disable-radix-cache");
  options.cache_generated_tokens = !flags.has("enable-deterministic-inference");
  options.overlap_schedule = !flags.has("disable-overlap-schedule");
  options.speculation_width = speculation_width(flags);
  options.draft_shape = draft_shape(flags);
  options.speculation_adapts = !flags.has("speculative-fixed");
  options.simulated_acceptance =
      simulated_acceptance(flags).value();  // check_speculation_flags has checked it
  options.record_plans = flags.text_or("record-plans", "");
  // Only servers limit their queue, because other commands submit a known number of requests. Only servers
  // print the lines of --decode-log-interval by default.
  const bool serves = flags.command() == Command::kServe;
  if (serves) options.max_queued_requests = flags.integer("max-queued-requests").value_or(kDefaultMaxQueued);
  options.decode_log_interval = flags.integer("decode-log-interval").value_or(serves ? 40 : 0);
  return options;
}

int64_t context_length_of(const ParsedFlags& flags, const ModelConfig& config) {
  return flags.integer("context-length").value_or(config.max_position_embeddings);
}

Result<void> check_context_length(const ParsedFlags& flags, const ModelConfig& config) {
  const int64_t length = context_length_of(flags, config);
  if (length <= config.max_position_embeddings) return {};
  return invalid_argument("--context-length {}: must be in [2, {}], the model's max_position_embeddings",
                          length, config.max_position_embeddings);
}

Result<GenerationConfig> load_generation_config(const std::filesystem::path& model_dir) {
  GenerationConfig config;
  const std::filesystem::path path = model_dir / "generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return config;
  HADAL_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, size_t{1} << 20));
  const std::string source = path.string();
  const json object = json::parse(text, nullptr, false);
  if (!object.is_object()) return data_loss("{}: is not a JSON object", source);
  HADAL_ASSIGN_OR_RETURN(config.temperature, number_field(object, "temperature", 0, kMaxTemperature, source));
  HADAL_ASSIGN_OR_RETURN(config.top_p, number_field(object, "top_p", kMinTopP, 1, source));
  HADAL_ASSIGN_OR_RETURN(config.min_p, number_field(object, "min_p", 0, 1, source));
  HADAL_ASSIGN_OR_RETURN(config.repetition_penalty,
                         number_field(object, "repetition_penalty", kMinRepetitionPenalty, 2, source));
  HADAL_ASSIGN_OR_RETURN(const std::optional<double> top_k, number_field(object, "top_k", -1, 1e12, source));
  if (top_k) config.top_k = *top_k < 1 ? -1 : static_cast<int64_t>(*top_k);
  if (const auto eos = object.find("eos_token_id"); eos != object.end() && !eos->is_null()) {
    const json list = eos->is_array() ? *eos : json::array({*eos});
    for (const json& id : list) {
      if (!id.is_number_integer())
        return data_loss("{}: eos_token_id is {}; must be a token id or a list of them", source, eos->dump());
      config.eos_token_ids.push_back(id.get<int64_t>());
    }
  }
  return config;
}

Result<SamplingOptions> resolve_sampling(const ParsedFlags& flags, const GenerationConfig& file,
                                         int64_t default_max_new_tokens) {
  SamplingOptions options;
  SamplingParams& params = options.params;
  if (flags.text_or("sampling-defaults", "model") == "model") {
    std::string& changed = options.from_file;
    const auto take = [&](const char* name, const char* flag, const std::optional<double>& value,
                          float& field) {
      if (!value || flags.has(flag)) return;
      field = static_cast<float>(*value);
      changed += fmt::format(" {}={:g}", name, *value);
    };
    take("temperature", "temperature", file.temperature, params.temperature);
    take("top_p", "top-p", file.top_p, params.top_p);
    take("min_p", "min-p", file.min_p, params.min_p);
    take("repetition_penalty", "repetition-penalty", file.repetition_penalty, params.repetition_penalty);
    if (file.top_k && !flags.has("top-k")) {
      params.top_k = *file.top_k;
      changed += fmt::format(" top_k={}", *file.top_k);
    }
  }
  const auto set = [&](const char* flag, float& field) {
    if (const auto value = flags.number(flag)) field = static_cast<float>(*value);
  };
  set("temperature", params.temperature);
  set("top-p", params.top_p);
  set("min-p", params.min_p);
  set("repetition-penalty", params.repetition_penalty);
  set("frequency-penalty", params.frequency_penalty);
  set("presence-penalty", params.presence_penalty);
  params.top_k = flags.integer("top-k").value_or(params.top_k);
  if (params.top_k == 0) return invalid_argument("--top-k 0: must be 1 or more, or -1 for all");
  options.max_new_tokens_is_set = flags.has("max-new-tokens");
  params.max_new_tokens = flags.integer("max-new-tokens").value_or(default_max_new_tokens);
  params.min_new_tokens = flags.integer("min-new-tokens").value_or(0);
  if (params.min_new_tokens > params.max_new_tokens) {
    return invalid_argument("--min-new-tokens {}: must be in [0, {}], the value of --max-new-tokens",
                            params.min_new_tokens, params.max_new_tokens);
  }
  params.ignore_eos = flags.has("ignore-eos");
  if (const auto seed = flags.integer("seed")) params.seed = static_cast<uint64_t>(*seed);
  if (const auto bias = flags.text("logit-bias")) {
    HADAL_ASSIGN_OR_RETURN(params.logit_bias, parse_logit_bias(*bias));
  }
  if (flags.has("stop-token-ids")) {
    std::string joined;
    for (const std::string& part : flags.texts("stop-token-ids")) joined += part + " ";
    HADAL_ASSIGN_OR_RETURN(params.stop_token_ids, parse_ids(joined, "--stop-token-ids"));
  }
  options.stop = flags.texts("stop");
  if (std::find(options.stop.begin(), options.stop.end(), "") != options.stop.end()) {
    return invalid_argument("--stop '': must not be empty");
  }
  return options;
}

void log_sampling_defaults(const SamplingOptions& options) {
  if (!options.from_file.empty())
    log_info("sampling defaults from=generation_config.json{}", options.from_file);
}

Result<void> check_token_flags(const SamplingParams& params, int64_t vocab_size) {
  const auto check = [&](const char* flag, int32_t token) -> Result<void> {
    if (token >= 0 && token < vocab_size) return {};
    return invalid_argument("{}: contains the token {}; must be in [0, {}]", flag, token, vocab_size - 1);
  };
  for (const int32_t token : params.stop_token_ids) HADAL_RETURN_IF_ERROR(check("--stop-token-ids", token));
  for (const auto& [token, bias] : params.logit_bias) HADAL_RETURN_IF_ERROR(check("--logit-bias", token));
  return {};
}

Result<void> check_answer_fits(const SamplingOptions& options, int64_t prompt_tokens, int64_t room,
                               std::string_view what) {
  const int64_t tokens = options.params.max_new_tokens;
  if (!options.max_new_tokens_is_set || prompt_tokens >= room || tokens <= room - prompt_tokens) return {};
  return invalid_argument(
      "--max-new-tokens {}: must be in [0, {}], because {} has {} tokens and the prompt {}", tokens,
      room - prompt_tokens, what, room, prompt_tokens);
}

Result<void> fit_to_engine(SamplingOptions& options, int64_t prompt_tokens, const Engine& engine) {
  const bool by_memory = engine.max_total_tokens() < engine.context_length();
  const char* what = by_memory ? "the KV cache (--max-total-tokens)" : "the context";
  const int64_t room = by_memory ? engine.max_total_tokens() : engine.context_length();
  const StatusCode code = by_memory ? StatusCode::kResourceExhausted : StatusCode::kInvalidArgument;
  if (prompt_tokens >= room) {
    return make_status(code, "the prompt has {} tokens; must have at most {}, because {} has {}",
                       prompt_tokens, room - 1, what, room);
  }
  if (const auto fits = check_answer_fits(options, prompt_tokens, room, what); !fits.ok())
    return make_status(code, "{}", fits.status().message);
  const int64_t left = room - prompt_tokens;
  if (options.params.max_new_tokens <= left) return {};
  log_info("max_new_tokens lowered value={} reason=\"the context has no more room after {} prompt tokens\"",
           left, prompt_tokens);
  options.params.max_new_tokens = left;
  options.params.min_new_tokens = std::min(options.params.min_new_tokens, left);
  return {};
}

void apply_log_level(const ParsedFlags& flags) {
  const std::string level = flags.text_or("log-level", find_flag("log-level", flags.command())->default_text);
  set_log_level(level == "debug"     ? LogLevel::kDebug
                : level == "info"    ? LogLevel::kInfo
                : level == "warning" ? LogLevel::kWarning
                : level == "off"     ? LogLevel::kOff
                                     : LogLevel::kError);
}

}  // namespace hadal::cli

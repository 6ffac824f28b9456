// Options of the parts, resolved once from flags, files and environment into plain values.
// Precedence of sampling values: flag, then generation_config.json (with --sampling-defaults model), then the
// built-in default.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/flag_parser.h"
#include "engine/engine.h"
#include "engine/sampling_params.h"
#include "model/hub.h"
#include "model/weights_loader.h"
#include "tensor/device.h"

namespace hadal::cli {

// Environment variables that matter, read by main alone.
struct Environment {
  HubEnvironment hub;
};

// What to load and how to run it.
struct ModelOptions {
  std::string model_path;      // directory or hub id
  std::string tokenizer_path;  // empty: the model's directory
  LoadFormat load_format = LoadFormat::kAuto;
  LoadQuantization quantization = LoadQuantization::kNone;
  std::string dtype = "auto";           // a spelling of resolve_compute_dtype
  std::string kv_cache_dtype = "auto";  // as the flag
  std::string kv_cache_scales;          // as the flag; empty: not given
  std::string config_overrides;         // JSON text
  int threads = 0;                      // 0: the available cores
  KernelSet kernels = KernelSet::kOptimised;
  DeviceType device = DeviceType::kCpu;
  bool fusion = true;
  std::string kernel_config_dir;  // empty: not given
  uint64_t random_seed = 42;
};

// Without --device, a usable GPU is taken. Errors: no --model-path; --device cuda where that is not possible.
Result<ModelOptions> resolve_model_options(const ParsedFlags& flags);

// --dtype, with "auto" taken for the device: GPUs compute in bfloat16, or in float16 where config.json says
// so and nothing is held in 8 bits.
Result<DType> resolve_device_dtype(const ModelOptions& options, const ModelConfig& config);

// "auto" takes the compute type, as far as the device has it: GPUs hold no float32 cache.
// Errors: scales of a format that has none.
Result<KvLayout> resolve_kv_layout(const ModelOptions& options, DType compute_dtype);

// "bfloat16", "fp8_e4m3", …: what --kv-cache-dtype and every report call it.
const char* to_string(KvFormat format);

// "per_token", "per_128", as --kv-cache-scales; "none" where records hold no scales.
const char* scales_name(const KvLayout& layout);

// Graphs and memory of a GPU. Errors: a value of --cuda-graph-bs.
Result<DeviceOptions> resolve_device_options(const ParsedFlags& flags);

// Engine options from the flags; kv_layout is left for the caller, and `device` to resolve_device_options.
EngineOptions resolve_engine_options(const ParsedFlags& flags, const ModelOptions& model);

// What generation_config.json says, as far as it is used. A missing file is the same as an empty one.
struct GenerationConfig {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;
  std::vector<int64_t> eos_token_ids;
};
// Errors: not JSON, a field of the wrong type or out of range.
Result<GenerationConfig> load_generation_config(const std::filesystem::path& model_dir);

struct SamplingOptions {
  SamplingParams params;
  std::vector<std::string> stop;       // strings
  bool max_new_tokens_is_set = false;  // by a flag: then it is not lowered to fit the context
};
// Logs what generation_config.json changed. default_max_new_tokens: of the command.
Result<SamplingOptions> resolve_sampling(const ParsedFlags& flags, const GenerationConfig& file,
                                         int64_t default_max_new_tokens);

// Lowers max_new_tokens to what the context and the cache leave after the prompt, unless a flag set it.
void fit_to_context(SamplingOptions& options, int64_t prompt_tokens, const Engine& engine);

// --log-level.
void apply_log_level(const ParsedFlags& flags);

}  // namespace hadal::cli

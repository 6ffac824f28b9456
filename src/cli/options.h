// Resolves flags, files and environment variables into plain option structs, once. A sampling value comes
// from its flag, else from generation_config.json (with --sampling-defaults model), else from the built-in
// defaults.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/flags/flag_parser.h"
#include "engine/backend.h"
#include "engine/engine.h"
#include "engine/sampling_params.h"
#include "hub/environment.h"
#include "model/shard.h"
#include "model/weights_loader.h"
#include "tensor/device.h"

namespace hadal::cli {

// Environment holds the environment variables that the program uses; only main reads them.
struct Environment {
  hub::HubEnvironment hub;
  std::string term;                          // TERM
  std::string xdg_state_home;                // XDG_STATE_HOME
  std::string profile_dir;                   // SGLANG_TORCH_PROFILER_DIR
  std::optional<std::string> api_key;        // HADAL_API_KEY
  std::optional<std::string> admin_api_key;  // HADAL_ADMIN_API_KEY
};

// ModelOptions say what to load and how to run it.
struct ModelOptions {
  std::string model_path;      // directory or hub id
  std::string tokenizer_path;  // empty: the model's directory
  LoadFormat load_format = LoadFormat::kAuto;
  LoadQuantization quantization = LoadQuantization::kNone;
  std::string dtype = "auto";           // as resolve_compute_dtype spells it
  std::string kv_cache_dtype = "auto";  // value of the flag
  std::string kv_cache_scales;          // value of the flag; empty: not given
  std::string config_overrides;         // JSON text
  int threads = 0;                      // 0: the available cores
  ModelSplit split;                     // checked against the model once its config is read
  GpuRanks gpus;                        // which GPU each rank uses
  KernelSet kernels = KernelSet::kOptimised;
  DeviceType device = DeviceType::kCpu;
  std::string no_gpu_because;  // `info --device cuda` without a usable GPU: why; nothing can be loaded then
  bool load_nextn = false;     // the NextN layer is used
  std::string nextn_flag;      // which flag asks for it
  bool fusion = true;
  int64_t seq_len_threshold = -1;  // --dsa-seq-len-threshold; −1: not given
  std::string kernel_config_dir;   // empty: not given
  uint64_t random_seed = 42;
};

// Checks whether the device supports --enable-deterministic-inference. The flag is an error (kUnsupported) on
// a GPU, where an answer may still depend on the requests that share its steps.
Result<void> check_deterministic_inference(bool wanted, DeviceType device);

// Resolves the flags of the model. Without --device, it chooses a usable GPU, and otherwise the CPU. The
// errors are a missing --model-path; --device cuda without a usable GPU, except for `info`, which loads
// nothing; those of check_deterministic_inference; and a --max-running-requests or --batch-size above what a
// GPU can run at once.
Result<ModelOptions> resolve_model_options(const ParsedFlags& flags);

// Resolves --dtype. "auto" depends on the device: a GPU computes in bfloat16, or in float16 if config.json
// says so and nothing is stored in 8 bits.
Result<DType> resolve_device_dtype(const ModelOptions& options, const ModelConfig& config);

// Resolves --kv-cache-dtype and --kv-cache-scales. "auto" is the compute type if the device supports such a
// cache; a GPU has no float32 cache. The errors are scales for a format that has no scales, and those of
// cache_layout.
Result<KvLayout> resolve_kv_layout(const ModelOptions& options, const ModelConfig& config,
                                   DType compute_dtype);

// Returns "per_token" or "per_128", as in --kv-cache-scales; "none" if records have no scales. Scales that
// are powers of two are "per_128" too.
const char* scales_name(const KvLayout& layout);

// Returns the options for the graphs and the memory of a GPU. A bad value of --cuda-graph-bs is an error.
Result<DeviceOptions> resolve_device_options(const ParsedFlags& flags);

// Returns the engine's options, except kv_layout, which the caller sets, and `device`, which
// resolve_device_options returns. Without --random-seed, `serve` gets another seed from the system each time.
EngineOptions resolve_engine_options(const ParsedFlags& flags, const ModelOptions& model);

// Returns --context-length, or without it the model's max_position_embeddings.
int64_t context_length_of(const ParsedFlags& flags, const ModelConfig& config);

// Refuses a --context-length beyond the model's max_position_embeddings, before any weights are read.
Result<void> check_context_length(const ParsedFlags& flags, const ModelConfig& config);

// GenerationConfig holds the fields of generation_config.json that are used. A missing file counts as an
// empty one.
struct GenerationConfig {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;
  std::vector<int64_t> eos_token_ids;
};
// The error is kDataLoss if the file is not JSON, or a field has a wrong type or value.
Result<GenerationConfig> load_generation_config(const std::filesystem::path& model_dir);

struct SamplingOptions {
  SamplingParams params;
  std::vector<std::string> stop;       // strings
  bool max_new_tokens_is_set = false;  // a flag sets it, so it is not lowered to fit the context
  std::string from_file;               // changes by generation_config.json: " temperature=0.6 …"
};
// Resolves the sampling flags. `default_max_new_tokens` is the default of the command.
Result<SamplingOptions> resolve_sampling(const ParsedFlags& flags, const GenerationConfig& file,
                                         int64_t default_max_new_tokens);

// Logs the changes by generation_config.json, if there are any.
void log_sampling_defaults(const SamplingOptions& options);

// Refuses tokens of --stop-token-ids and --logit-bias that are not in the vocabulary. All other limits of
// sampling are ranges of the flag table, or checked by resolve_sampling.
Result<void> check_token_flags(const SamplingParams& params, int64_t vocab_size);

// Refuses a --max-new-tokens (kInvalidArgument) that does not fit into `room` tokens together with the
// prompt. Other checks refuse a prompt that is too long by itself. `what` names the thing that has that room,
// such as "the context".
Result<void> check_answer_fits(const SamplingOptions& options, int64_t prompt_tokens, int64_t room,
                               std::string_view what);

// Lowers max_new_tokens to the room that context and cache have after the prompt, unless a flag set it. The
// errors are a prompt that leaves no room, and those of check_answer_fits; if the memory and not the model
// limits the room, they are kResourceExhausted.
Result<void> fit_to_engine(SamplingOptions& options, int64_t prompt_tokens, const Engine& engine);

// Sets the level of --log-level, or the default of the command.
void apply_log_level(const ParsedFlags& flags);

}  // namespace hadal::cli

// Formats of quantised weights by name: what --quantization asks for, how a format is described, and what
// the tools write into config.json. Pure functions but for the two that look at a checkpoint; any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "model/config.h"

namespace hadal {

// --quantization, with SGLang's names: what linears that are stored in 16 or 32 bits become at load.
enum class LoadQuantization : uint8_t { kNone, kFp8, kW8A8Fp8, kW8A8Int8, kBlockwiseInt8 };

// "fp8", "w8a8_fp8", "w8a8_int8", "blockwise_int8"; "none".
const char* to_string(LoadQuantization quantization);
// Error: any other word.
Result<LoadQuantization> parse_load_quantization(std::string_view word);

// What linears of a 16-bit checkpoint are turned into: 128×128 blocks of e4m3, channels of e4m3, channels of
// int8, 128×128 blocks of int8. Not for kNone.
WeightType weight_type_of(LoadQuantization quantization);

// What linears in 8 bits are once loaded: the config's type, else what the flag makes; bf16 without either.
WeightType linear_type(const ModelConfig& config, LoadQuantization quantization);
// Whether the flag quantises the linear `weight_name` where it is stored in 16 or 32 bits: not what a config
// leaves out.
bool quantises_at_load(const ModelConfig& config, LoadQuantization quantization,
                       std::string_view weight_name);

// "fp8 e4m3, 128x128 blocks", "int8, a scale a row", "fp8 e4m3, a scale a matrix", …
std::string describe(const WeightQuantization& quantization);
// What linears are once loaded: by the config, with how many it leaves out, else by the flag; "none".
std::string describe(const ModelConfig& config, LoadQuantization quantization);

// Whether a GPU computes a model in this type: bfloat16, and float16 where no linear is in 8 bits. Error:
// kUnsupported, about --dtype.
Result<void> check_gpu_compute_dtype(const ModelConfig& config, LoadQuantization quantization,
                                     DType compute_dtype);

// Settles what --quantization means for a checkpoint whose config.json has been read:
// - stored quantised in the format that the flag names: the flag says the same again (fp8 is also DeepSeek's
//   and others' spelling of one scale a matrix). Linears that the config leaves out stay as they are;
// - stored quantised without a quantization_config (the tensors of `model_dir` tell: I8 or F8_E4M3 weights
//   with scales): config.quantization is set accordingly;
// - stored in 16 or 32 bits: nothing changes, the loader quantises.
// `model_dir` is only looked at for the second case; empty, or a directory without weights: it is skipped.
// Errors: a checkpoint in another format (both are named), codes without scales.
Result<void> apply_quantization_flag(ModelConfig& config, LoadQuantization quantization,
                                     const std::filesystem::path& model_dir);

// The format of files that are stored quantised without a quantization_config, which load with --quantization
// alone; nullopt: config.json says it, nothing is quantised, or there are no files to look at. Error: codes
// without scales.
Result<std::optional<WeightQuantization>> unsaid_quantization(const ModelConfig& config,
                                                              const std::filesystem::path& model_dir);
// Such a checkpoint in words, with the flag that loads it.
std::string describe_unsaid(const WeightQuantization& stored);

// A format as checkpoints are published in.
struct PublishedFormat {
  const char* name;  // what the tools call it
  WeightQuantization quantization;
  const char* quant_method;  // in config.json
};
// fp8, fp8-tensor, compressed-fp8-tensor, compressed-fp8-channel, compressed-int8, w8a8_fp8, w8a8_int8,
// blockwise_int8.
std::span<const PublishedFormat> published_formats();
const PublishedFormat* find_published_format(std::string_view name);  // null: none of that name
// Its quantization_config as JSON text; `unquantised`: linears that it leaves out, as ModuleList takes them
// (lm_head always is). ue8m0_scales of the block format of e4m3 is written as scale_fmt.
std::string quantization_config_json(const PublishedFormat& format, std::span<const std::string> unquantised);

}  // namespace hadal

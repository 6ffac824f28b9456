// Names the formats of quantised weights: what --quantization means, how a format is described, and what the
// tools write into config.json. The functions are pure except for the two that read a checkpoint; any thread
// may call them.
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

// LoadQuantization is the value of --quantization, under SGLang's names: the format to which linears that are
// stored in 16 or 32 bits are converted at load.
enum class LoadQuantization : uint8_t { kNone, kFp8, kW8A8Fp8, kW8A8Int8, kBlockwiseInt8 };

// Returns "fp8", "w8a8_fp8", "w8a8_int8", "blockwise_int8" or "none".
const char* to_string(LoadQuantization quantization);
// Reads one of these words except "none"; any other word is an error.
Result<LoadQuantization> parse_load_quantization(std::string_view word);

// Returns the type to which linears of a 16-bit checkpoint are converted: 128×128 blocks of e4m3, channels of
// e4m3, channels of int8 and 128×128 blocks of int8. It must not be called with kNone.
WeightType weight_type_of(LoadQuantization quantization);

// Returns the type of 8-bit linears after loading: the config's, or else the flag's; bf16 if neither has one.
WeightType linear_type(const ModelConfig& config, LoadQuantization quantization);
// Returns true if the flag quantises the linear `weight_name` when it is stored in 16 or 32 bits; false for
// linears that a config does not quantise.
bool quantises_at_load(const ModelConfig& config, LoadQuantization quantization,
                       std::string_view weight_name);

// Returns "fp8 e4m3, 128x128 blocks", "int8, one scale per row", "fp8 e4m3, one scale per matrix", …
std::string describe(const WeightQuantization& quantization);
// Describes the linears once loaded: by the config, with the number of linears that it does not quantise, or
// else by the flag. Returns "none" if neither quantises them.
std::string describe(const ModelConfig& config, LoadQuantization quantization);

// Checks that a GPU supports this compute type for a model: bfloat16, and float16 if no linear is in 8 bits.
// The error is kUnsupported, about --dtype.
Result<void> check_gpu_compute_dtype(const ModelConfig& config, LoadQuantization quantization,
                                     DType compute_dtype);

// Applies --quantization to a checkpoint whose config.json has been read:
// - stored quantised in the format that the flag names: the flag changes nothing (fp8 is also DeepSeek's and
//   others' word for one scale per matrix). Linears that the config does not quantise stay as they are;
// - stored quantised without a quantization_config (the tensors of `model_dir` reveal it: I8 or F8_E4M3
//   weights with scales): config.quantization is set accordingly;
// - stored in 16 or 32 bits: nothing changes, because the loader quantises.
// `model_dir` is read only for the second case; if it is empty, or has no weights, that case is skipped. The
// errors are a checkpoint in another format (both are named, and `flag`), and codes without scales.
Result<void> apply_quantization_flag(ModelConfig& config, LoadQuantization quantization,
                                     const std::filesystem::path& model_dir,
                                     std::string_view flag = "--quantization");

// Returns the format of files that are stored quantised without a quantization_config and therefore load only
// with --quantization. It returns nullopt if config.json states the format, nothing is quantised, or there
// are no files. Codes without scales are an error.
Result<std::optional<WeightQuantization>> undeclared_quantization(const ModelConfig& config,
                                                                  const std::filesystem::path& model_dir);
// Describes such a checkpoint, with the flag that loads it.
std::string describe_undeclared(const WeightQuantization& stored);

// PublishedFormat is a format in which checkpoints are published.
struct PublishedFormat {
  const char* name;  // its name in the tools
  WeightQuantization quantization;
  const char* quant_method;  // in config.json
};
// Returns fp8, fp8-tensor, compressed-fp8-tensor, compressed-fp8-channel, compressed-int8, w8a8_fp8,
// w8a8_int8, blockwise_int8.
std::span<const PublishedFormat> published_formats();
const PublishedFormat* find_published_format(std::string_view name);  // null: there is none of that name
// Returns the format's quantization_config as JSON text. `unquantised` lists the linears that are not
// quantised, in the form of ModuleList; lm_head is added to the list. For the block format of e4m3,
// ue8m0_scales is written as scale_fmt.
std::string quantization_config_json(const PublishedFormat& format, std::span<const std::string> unquantised);

}  // namespace hadal

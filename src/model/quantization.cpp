#include "model/quantization.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <utility>
#include <vector>

#include "base/check.h"
#include "model/checkpoint.h"
#include "model/tensor_list.h"

namespace hadal {
namespace {

constexpr std::array<std::pair<LoadQuantization, const char*>, 4> kWords = {{
    {LoadQuantization::kFp8, "fp8"},
    {LoadQuantization::kW8A8Fp8, "w8a8_fp8"},
    {LoadQuantization::kW8A8Int8, "w8a8_int8"},
    {LoadQuantization::kBlockwiseInt8, "blockwise_int8"},
}};

bool says_the_same(LoadQuantization flag, const WeightQuantization& stored) {
  if (flag == LoadQuantization::kFp8 && stored.type == WeightType::kFp8Channel) return stored.one_scale;
  return weight_type_of(flag) == stored.type;
}

// Returns the words of --quantization that fit a format.
std::vector<const char*> fitting_words(const WeightQuantization& stored) {
  std::vector<const char*> words;
  for (const auto& [flag, word] : kWords) {
    if (says_the_same(flag, stored)) words.push_back(word);
  }
  return words;
}

// Returns the format of a checkpoint's first quantised linear, determined from the tensors alone; nullopt if
// none is quantised.
Result<std::optional<WeightQuantization>> stored_format(const Checkpoint& checkpoint) {
  for (const Checkpoint::Entry& entry : checkpoint.entries()) {
    const std::string& name = entry.info.name;
    const bool is_int8 = entry.info.dtype == DType::kI8;
    if (!name.ends_with(".weight") || !(is_int8 || entry.info.dtype == DType::kF8E4M3)) continue;
    WeightQuantization found;
    if (checkpoint.find(name + "_scale_inv") != nullptr) {
      found.type = is_int8 ? WeightType::kInt8Block : WeightType::kFp8Block;
      return std::optional(found);
    }
    found.scale_suffix = "_scale";
    const Checkpoint::Entry* scale = checkpoint.find(name + "_scale");
    if (scale == nullptr) {
      return data_loss("{}: {} is {} but has neither {}_scale nor {}_scale_inv", checkpoint.dir().string(),
                       name, entry.info.dtype_name, name, name);
    }
    const std::vector<int64_t>& shape = scale->info.shape;
    const bool blocks = shape.size() == 2 && shape[1] > 1;
    found.one_scale = shape.empty() || (shape.size() == 1 && shape[0] == 1);
    found.type = blocks ? (is_int8 ? WeightType::kInt8Block : WeightType::kFp8Block)
                        : (is_int8 ? WeightType::kInt8Channel : WeightType::kFp8Channel);
    return std::optional(found);
  }
  return std::optional<WeightQuantization>();
}

// `is_said` is true if config.json states the format. Otherwise only the flag states it, and the flag cannot
// be left out.
Status contradiction(std::string_view flag, LoadQuantization word, const WeightQuantization& stored,
                     bool is_said) {
  return invalid_argument("{} {} means {}, but the checkpoint is stored as {}; allowed: {}{}", flag,
                          to_string(word), describe(WeightQuantization{.type = weight_type_of(word)}),
                          describe(stored), fmt::join(fitting_words(stored), ", "),
                          is_said ? ", or leave the flag out" : "");
}

std::string json_list(std::span<const std::string> names) {
  std::string text = "[\"lm_head\"";
  for (const std::string& name : names) {
    text += ", \"";
    for (const char c : name) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x20) {
        text += fmt::format("\\u{:04x}", byte);
        continue;
      }
      if (c == '"' || c == '\\') text += '\\';
      text += c;
    }
    text += '"';
  }
  return text + "]";
}

}  // namespace

const char* to_string(LoadQuantization quantization) {
  for (const auto& [candidate, word] : kWords) {
    if (candidate == quantization) return word;
  }
  return "none";
}

Result<LoadQuantization> parse_load_quantization(std::string_view word) {
  for (const auto& [quantization, candidate] : kWords) {
    if (word == candidate) return quantization;
  }
  return invalid_argument(
      "--quantization: \"{}\" is unknown; allowed: fp8, w8a8_fp8, w8a8_int8, "
      "blockwise_int8",
      word);
}

WeightType weight_type_of(LoadQuantization quantization) {
  switch (quantization) {
    case LoadQuantization::kNone:
      break;
    case LoadQuantization::kFp8:
      return WeightType::kFp8Block;
    case LoadQuantization::kW8A8Fp8:
      return WeightType::kFp8Channel;
    case LoadQuantization::kW8A8Int8:
      return WeightType::kInt8Channel;
    case LoadQuantization::kBlockwiseInt8:
      return WeightType::kInt8Block;
  }
  HADAL_CHECK(false, "kNone has no weight type");
}

WeightType linear_type(const ModelConfig& config, LoadQuantization quantization) {
  if (config.quantization) return config.quantization->type;
  return quantization != LoadQuantization::kNone ? weight_type_of(quantization) : WeightType::kBF16;
}

bool quantises_at_load(const ModelConfig& config, LoadQuantization quantization,
                       std::string_view weight_name) {
  return quantization != LoadQuantization::kNone &&
         (!config.quantization || config.quantization->covers(module_name(weight_name)));
}

std::string describe(const WeightQuantization& quantization) {
  const char* codes = code_dtype(quantization.type) == DType::kI8 ? "int8" : "fp8 e4m3";
  const char* scales = is_block_scaled(quantization.type) ? "128x128 blocks"
                       : quantization.one_scale           ? "one scale per matrix"
                                                          : "one scale per row";
  return fmt::format("{}, {}", codes, scales);
}

std::string describe(const ModelConfig& config, LoadQuantization quantization) {
  if (config.quantization) {
    const std::string format = describe(*config.quantization);
    int64_t num_linears = 0, num_left_out = 0;
    for (const TensorSpec& spec : expected_tensors(config)) {
      if (spec.role != TensorRole::kLinear || spec.nextn) continue;
      ++num_linears;
      num_left_out += spec.left_out ? 1 : 0;
    }
    if (num_left_out == 0) return format;
    if (num_left_out == num_linears)
      return fmt::format("none (config.json leaves every linear out of {})", format);
    return fmt::format("{}; {} of {} linears are not quantised", format, num_left_out, num_linears);
  }
  if (quantization == LoadQuantization::kNone) return "none";
  return describe(WeightQuantization{.type = weight_type_of(quantization)});
}

Result<void> apply_quantization_flag(ModelConfig& config, LoadQuantization quantization,
                                     const std::filesystem::path& model_dir, std::string_view flag) {
  if (quantization == LoadQuantization::kNone) return {};
  const bool is_said = config.quantization.has_value();
  if (!is_said) {
    HADAL_ASSIGN_OR_RETURN(config.quantization, undeclared_quantization(config, model_dir));
  }
  if (config.quantization && !says_the_same(quantization, *config.quantization))
    return contradiction(flag, quantization, *config.quantization, is_said);
  return {};
}

Result<std::optional<WeightQuantization>> undeclared_quantization(const ModelConfig& config,
                                                                  const std::filesystem::path& model_dir) {
  std::optional<WeightQuantization> none;
  if (config.quantization || model_dir.empty()) return none;
  const auto checkpoint = Checkpoint::open(model_dir);
  if (!checkpoint.ok()) return none;  // loading reports the error; here config.json alone is enough
  return stored_format(*checkpoint);
}

Result<void> check_gpu_compute_dtype(const ModelConfig& config, LoadQuantization quantization,
                                     DType compute_dtype) {
  if (compute_dtype == DType::kF32) {
    return unsupported(
        "--dtype float32 is not available on the GPU (auto selects bfloat16, or float16 if config.json says "
        "so); allowed: auto, bfloat16, float16");
  }
  if (compute_dtype == DType::kF16 && (config.quantization || quantization != LoadQuantization::kNone)) {
    return unsupported(
        "--dtype float16: 8-bit weights ({}) need bfloat16 on the GPU; allowed with them: auto, "
        "bfloat16",
        describe(config, quantization));
  }
  return {};
}

std::string describe_undeclared(const WeightQuantization& stored) {
  return fmt::format("none in config.json, but the files are {}: --quantization {} loads them",
                     describe(stored), fmt::join(fitting_words(stored), " or "));
}

std::span<const PublishedFormat> published_formats() {
  const auto format = [](const char* name, WeightType type, bool one_scale, const char* method) {
    PublishedFormat made{
        .name = name, .quantization = {.type = type, .one_scale = one_scale}, .quant_method = method};
    if (is_channel_scaled(type)) made.quantization.scale_suffix = "_scale";
    return made;
  };
  static const std::vector<PublishedFormat> formats = {
      format("fp8", WeightType::kFp8Block, false, "fp8"),
      format("fp8-tensor", WeightType::kFp8Channel, true, "fp8"),
      format("compressed-fp8-tensor", WeightType::kFp8Channel, true, "compressed-tensors"),
      format("compressed-fp8-channel", WeightType::kFp8Channel, false, "compressed-tensors"),
      format("compressed-int8", WeightType::kInt8Channel, false, "compressed-tensors"),
      format("w8a8_fp8", WeightType::kFp8Channel, false, "w8a8_fp8"),
      format("w8a8_int8", WeightType::kInt8Channel, false, "w8a8_int8"),
      format("blockwise_int8", WeightType::kInt8Block, false, "blockwise_int8"),
  };
  return formats;
}

const PublishedFormat* find_published_format(std::string_view name) {
  for (const PublishedFormat& format : published_formats()) {
    if (name == format.name) return &format;
  }
  return nullptr;
}

std::string quantization_config_json(const PublishedFormat& format,
                                     std::span<const std::string> unquantised) {
  const WeightQuantization& quantization = format.quantization;
  const std::string left_out = json_list(unquantised);
  if (std::string_view(format.quant_method) == "compressed-tensors") {
    const char* type = code_dtype(quantization.type) == DType::kI8 ? "int" : "float";
    return fmt::format(
        R"({{"quant_method": "compressed-tensors", "format": "{0}-quantized", )"
        R"("quantization_status": "compressed", "config_groups": {{"group_0": {{"targets": ["Linear"], )"
        R"("weights": {{"num_bits": 8, "type": "{0}", "strategy": "{1}", "symmetric": true, "dynamic": false}}, )"
        R"("input_activations": {{"num_bits": 8, "type": "{0}", "strategy": "token", "symmetric": true, )"
        R"("dynamic": true}}, "output_activations": null}}}}, "kv_cache_scheme": null, "ignore": {2}}})",
        type, quantization.one_scale ? "tensor" : "channel", left_out);
  }
  return fmt::format(
      R"({{"activation_scheme": "dynamic", {}"ignored_layers": {}, "quant_method": "{}"{}{}}})",
      code_dtype(quantization.type) == DType::kI8 ? "" : R"("fmt": "e4m3", )", left_out, format.quant_method,
      quantization.ue8m0_scales ? R"(, "scale_fmt": "ue8m0")" : "",
      is_block_scaled(quantization.type) ? R"(, "weight_block_size": [128, 128])" : "");
}

}  // namespace hadal

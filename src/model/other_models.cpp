#include "model/other_models.h"

#include <algorithm>
#include <string>
#include <system_error>

#include <nlohmann/json.hpp>

namespace hadal {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSupported =
    "Hadal runs DeepSeek-V2, V2-Lite, V2.5, V3, R1, V3.1 and V3.2, the smallest of which is "
    "deepseek-ai/DeepSeek-V2-Lite-Chat";
constexpr std::string_view kElsewhere = "SGLang and vLLM run this model";

struct OtherModel {
  std::string_view begins;  // the beginning of model_type, or of the architecture
  std::string_view what;
};

// The first matching row decides.
constexpr OtherModel kOtherModels[] = {
    {"kimi",
     "a Kimi model, which has DeepSeek-V3's layers, but a tokenizer (tiktoken.model) and a chat format of "
     "its own"},
    {"Kimi", "a Kimi model, whose layers, tokenizer and chat format are its own"},
    {"Glm", "a GLM model"},
    {"ChatGLM", "a GLM model"},
    {"glm", "a GLM model"},
    {"LlamaForCausalLM",
     "a Llama model, as the distilled R1 models on Llama and DeepSeek's models before V2 are"},
    {"Qwen", "a Qwen model, as the distilled R1 models on Qwen are"},
    {"DeepseekForCausalLM", "DeepSeek-MoE, which is older than V2 and has other attention layers"},
    {"DeepseekV4", "DeepSeek-V4, which this version does not support"},
    {"DeepseekVL", "a DeepSeek model of images and text"},
    {"DeepseekOCR", "a DeepSeek model of images and text"},
    {"MultiModality", "a DeepSeek model of images and text"},
};

const OtherModel* find_other_model(std::string_view name) {
  for (const OtherModel& row : kOtherModels)
    if (name.starts_with(row.begins)) return &row;
  return nullptr;
}

Status refusal(std::string_view source, std::string_view field, std::string_view value,
               const OtherModel& model) {
  return unsupported("{}: {} is {}: this is {}. {}. {}", source, field, value, model.what, kSupported,
                     kElsewhere);
}

}  // namespace

Result<void> refuse_gguf(const fs::path& path) {
  constexpr std::string_view kAdvice =
      "Hadal reads the safetensors files of the original checkpoint; llama.cpp runs GGUF files, as in "
      "`llama-server -m FILE`";
  std::error_code error;
  if (path.extension() == ".gguf" && fs::is_regular_file(path, error)) {
    return unsupported("{}: is a GGUF file, llama.cpp's format. {}", path.string(), kAdvice);
  }
  if (!fs::is_directory(path, error) || fs::exists(path / "config.json", error)) return {};
  for (const auto& entry : fs::directory_iterator(path, error)) {
    if (entry.path().extension() != ".gguf") continue;
    return unsupported("{}: has a GGUF file, {}, and no config.json. {}", path.string(),
                       entry.path().filename().string(), kAdvice);
  }
  return {};
}

Result<void> refuse_other_model(std::string_view config_json, std::string_view source) {
  using nlohmann::json;
  const json config = json::parse(config_json, nullptr, false);
  if (!config.is_object()) return {};
  // Kimi has DeepSeek's architecture, so only its model_type distinguishes it.
  if (const auto type = config.find("model_type"); type != config.end() && type->is_string()) {
    const auto& name = type->get_ref<const std::string&>();
    if (const OtherModel* found = find_other_model(name)) return refusal(source, "model_type", name, *found);
  }
  const auto list = config.find("architectures");
  if (list == config.end() || !list->is_array() || list->empty() || !list->front().is_string()) return {};
  const auto& name = list->front().get_ref<const std::string&>();
  if (const OtherModel* found = find_other_model(name)) return refusal(source, "architectures", name, *found);
  return {};
}

}  // namespace hadal

// Recognises checkpoints that people try here and that are other models, or in another format, to say what
// they are and what runs them. It only reads the file system; any thread may call it.
#pragma once

#include <filesystem>
#include <string_view>

#include "base/result.h"

namespace hadal {

// The error (kUnsupported) is that `path` is a GGUF file, or a directory of GGUF files without config.json.
Result<void> refuse_gguf(const std::filesystem::path& path);

// The error (kUnsupported) is that a config.json belongs to a known model of another family: a Llama or Qwen
// model, as R1's distilled versions are, one of Kimi or GLM, or one of DeepSeek's that is not supported. It
// names `source`, the field and its value. All other texts are left to parse_model_config, broken ones too.
Result<void> refuse_other_model(std::string_view config_json, std::string_view source);

}  // namespace hadal

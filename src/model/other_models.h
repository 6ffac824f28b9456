// Recognises checkpoints that users may try to load and that are another model or in another format, in order
// to tell the user what they are and which program runs them. It only reads the file system; any thread may
// call it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

#include "base/result.h"

namespace hadal {

inline constexpr size_t kMaxConfigBytes = size_t{16} << 20;  // a larger config.json is not read

// Returns an error (kUnsupported) if `path` is a GGUF file, or a directory of GGUF files without config.json.
Result<void> refuse_gguf(const std::filesystem::path& path);

// Returns an error (kUnsupported) if a config.json belongs to a known model of another family: a Llama or
// Qwen model, such as R1's distilled versions, one of Kimi or GLM, or one of DeepSeek's that is not
// supported. The error names `source`, the field and its value. All other texts, also broken ones, are left
// to parse_model_config.
Result<void> refuse_other_model(std::string_view config_json, std::string_view source);

}  // namespace hadal

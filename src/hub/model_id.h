// Reads the name of a model on the hub: org/name, or org/name@revision. The functions are pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace hadal::hub {

struct ModelId {
  std::string repository;         // "deepseek-ai/DeepSeek-V3"
  std::string revision = "main";  // a branch, a tag or a commit
};

// Reads "deepseek-ai/DeepSeek-V3" or "deepseek-ai/DeepSeek-V3@v1.0"; nullopt if `text` is not of this form.
// Neither part has path syntax ("..", a dot or dash in front), because both become names in the cache.
std::optional<ModelId> parse_model_id(std::string_view text);

// Tells whether a text is a commit: 40 lower-case hexadecimal digits.
bool is_commit(std::string_view text);

// Tells whether a text consists of `num_digits` lower-case hexadecimal digits.
bool is_hex(std::string_view text, size_t num_digits);

}  // namespace hadal::hub

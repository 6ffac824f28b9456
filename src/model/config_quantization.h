// Reads quantization_config of config.json (compression_config is its older name) in its published forms.
// Only the config parser includes it.
#pragma once

#include <string_view>

#include "model/config.h"
#include "model/config_json.h"

namespace hadal::config_json {

// Sets config.quantization if the config has either field. Settings that this engine does not support are
// errors, which name the field, its value and what is supported.
void read_quantization(ConfigReader& in, std::string_view source, ModelConfig& config);

}  // namespace hadal::config_json

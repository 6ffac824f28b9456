// quantization_config of config.json (compression_config is its older name), in its published forms. Private
// to the config parser.
#pragma once

#include <string_view>

#include "model/config.h"
#include "model/config_json.h"

namespace hadal::config_json {

// Sets config.quantization where the config has either field. Whatever it says that this engine does not do
// is an error: it names the field, its value and what is supported.
void read_quantization(FieldReader& in, std::string_view source, ModelConfig& config);

}  // namespace hadal::config_json

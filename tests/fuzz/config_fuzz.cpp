// Fuzzes config.json with any text, and an override after the first zero byte: it is parsed or refused with a
// message, and a parsed config satisfies the assumptions of later code.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view json(reinterpret_cast<const char*>(data), size);
  std::string_view override_json;
  if (const size_t zero = json.find('\0'); zero != std::string_view::npos) {
    override_json = json.substr(zero + 1);
    json = json.substr(0, zero);
  }
  const auto config = hadal::parse_model_config(json, "fuzz", override_json);
  if (!config.ok()) {
    if (config.status().message.empty()) std::abort();
    return 0;
  }
  const bool sound = config->hidden_size > 0 && config->num_hidden_layers > 0 && config->vocab_size > 0 &&
                     config->num_experts_per_tok <= 1024 && std::isfinite(config->softmax_scale()) &&
                     config->moe_layer_freq > 0 && config->n_group > 0;
  if (!sound) std::abort();
  if (config->quantization) {
    const hadal::WeightQuantization& quantization = *config->quantization;
    const bool channels = hadal::is_channel_scaled(quantization.type);
    if (channels == hadal::is_block_scaled(quantization.type)) std::abort();
    if (quantization.one_scale && !channels) std::abort();
    if (quantization.scale_suffix != "_scale" && quantization.scale_suffix != "_scale_inv") std::abort();
    // Whatever the patterns are, matching ends soon, and patterns that parsing has tried never exceed their
    // limit.
    for (const char* module : {"lm_head", "model.layers.61.mlp.experts.255.down_proj"})
      (void)quantization.covers(module);
  }
  return 0;
}

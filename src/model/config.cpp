#include "model/config.h"

#include <cmath>

namespace hadal {

double ModelConfig::softmax_scale() const {
  double m = 1.0;
  if (rope_scaling && rope_scaling->factor > 1.0) {
    m = 0.1 * rope_scaling->mscale_all_dim * std::log(rope_scaling->factor) + 1.0;
  }
  return m * m / std::sqrt(static_cast<double>(kQkHeadDim));
}

const char* to_string(Architecture architecture) {
  switch (architecture) {
    case Architecture::kDeepseekV2:
      return "DeepseekV2ForCausalLM";
    case Architecture::kDeepseekV3:
      return "DeepseekV3ForCausalLM";
    case Architecture::kDeepseekV32:
      return "DeepseekV32ForCausalLM";
  }
  return "unknown";
}

}  // namespace hadal

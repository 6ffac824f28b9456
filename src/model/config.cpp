#include "model/config.h"

#include <cmath>

#include "model/rope_table.h"

namespace hadal {

double ModelConfig::softmax_scale() const {
  const double m = rope_scaling ? yarn_mscale(rope_scaling->factor, rope_scaling->mscale_all_dim) : 1.0;
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

// Where every tensor of a model goes in device memory: a plain list of placements, made from shapes alone,
// without a device. What device_upload carries out. Pure functions; any thread. Private to the loader of
// device weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "model/cuda/device_weights.h"
#include "model/weights_jobs.h"
#include "model/weights_loader.h"

namespace hadal {

// A window of a stored tensor and the one place it goes to.
struct WeightPlacement {
  const TensorSource* source = nullptr;
  int64_t row = 0, col = 0;    // of the source: where the window begins
  int64_t rows = 0, cols = 0;  // of the window
  // At the place: the stored type, or F32, BF16, F16 (converted), F8_E4M3, I8 (quantised).
  DType type = DType::kBF16;
  std::byte* dst = nullptr;
  int64_t stride = 0;                        // elements between rows at the place
  WeightType codes = WeightType::kFp8Block;  // when quantised or widened: the type with scales
  float* scales = nullptr;                   // only when quantised: of the window's blocks or rows
  int64_t scale_stride = 0;
  const TensorSource* code_scales = nullptr;  // only when widened, from codes to BF16
  bool repeat = false;                        // the source's one value to every row; cols is 1

  bool direct() const { return source->dtype == type; }
  bool quantised() const { return scales != nullptr; }
  bool widened() const { return code_scales != nullptr; }
};

// W_UK's second copy, made once kv_b is in place.
struct KeyTranspose {
  MatrixWeight kv_b, w_uk;
  int64_t num_heads = 0;
};

struct DeviceWeightPlan {
  std::vector<WeightPlacement> placements;
  std::vector<KeyTranspose> transposes;
  DeviceWeights weights;        // complete but for `storage`
  std::optional<Status> error;  // why the weights cannot be placed; `bytes` holds all the same
};

using TensorSources = std::unordered_map<std::string, TensorSource>;

// Places everything in one block of `weights.bytes` bytes at `base`, aligned to 256; null counts the bytes.
// The block is zero before the placements: padding is nobody's. `sources` and `cos_sin` ([max_positions, 64]
// F32) outlive the plan. compute_dtype: BF16, or F16 where nothing is quantised. Error: a shared MLP that
// blocks do not let be cut.
DeviceWeightPlan plan_device_weights(const ModelConfig& config, const TensorSources& sources,
                                     const TensorSource& cos_sin, LoadQuantization quantization,
                                     std::byte* base, DType compute_dtype = DType::kBF16);

}  // namespace hadal

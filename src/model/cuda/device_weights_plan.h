// Plans the place of every tensor of a rank in device memory: a plain list of placements, computed from
// shapes alone, without a device, so every build has it. device_upload executes it. The functions are pure,
// and any thread may call them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "model/cuda/device_weights.h"
#include "model/weights_jobs.h"
#include "model/weights_loader.h"

namespace hadal {

struct WeightSources;

// Describes a window of a stored tensor and its single destination.
struct WeightPlacement {
  const TensorSource* source = nullptr;
  int64_t row = 0, col = 0;    // where the window begins in the source
  int64_t rows = 0, cols = 0;  // size of the window
  // The type at the destination: the stored type, or F32, BF16, F16 (converted), F8_E4M3, I8 (quantised).
  DType type = DType::kBF16;
  std::byte* dst = nullptr;
  int64_t stride = 0;                        // elements between rows at the destination
  WeightType codes = WeightType::kFp8Block;  // when quantised or widened: the type with scales
  float* scales = nullptr;                   // only when quantised: those of the window's blocks or rows
  int64_t scale_stride = 0;
  // Only when quantised with a scale for each row: the source's columns [scale_col, scale_col + scale_cols)
  // determine the scale. They contain the window, and are more than the window if ranks share the row.
  int64_t scale_col = 0, scale_cols = 0;
  const TensorSource* code_scales = nullptr;  // only when widened from codes to BF16
  bool repeat = false;                        // writes the source's one value to every row; cols is 1

  bool direct() const { return source->dtype == type; }
  bool quantised() const { return scales != nullptr; }
  bool widened() const { return code_scales != nullptr; }
  // Returns the source's row after the last row that determines values of the window. With block scales this
  // is the end of the window's last block, which may contain rows of another rank.
  int64_t end_row() const;
};

// Describes W_UK's second copy, which is made after kv_b is in place.
struct KeyTranspose {
  MatrixWeight kv_b, w_uk;
  int64_t num_heads = 0;
};

struct DeviceWeightPlan {
  std::vector<WeightPlacement> placements;
  std::vector<KeyTranspose> transposes;
  DeviceWeights weights;  // complete except for `storage`
};

// Returns the shape of the table of positions, [max_positions, 64] F32, without its values.
TensorSource rope_source(const ModelConfig& config);

// Adds a draft layer to the sources of its model, under the names of the model's own NextN layer. The draft
// has been checked (check_gpu_draft). The errors are those of draft_sources.
Result<void> add_draft_sources(const ModelConfig& config, const DraftLayer& draft, uint64_t seed,
                               WeightSources& sources);

// Places everything that `rank` holds (device_weights.h) in one block of `weights.bytes` bytes at `base`,
// which is aligned to 256. If `base` is null, the plan only counts the bytes. The block must be zero before
// the placements, because padding is never written. The NextN layer is placed if `sources` have it. `sources`
// and `cos_sin` (rope_source) must outlive the plan. compute_dtype: BF16, or F16 if nothing is quantised. The
// split has been checked (check_split).
DeviceWeightPlan plan_device_weights(const ModelConfig& config, const TensorSources& sources,
                                     const TensorSource& cos_sin, LoadQuantization quantization,
                                     std::byte* base, DType compute_dtype = DType::kBF16,
                                     ModelSplit split = {}, int64_t rank = 0);

// Returns the weights that a rank holds of a checkpoint in the form that `config` describes, without memory:
// the pointers have no meaning.
DeviceWeights device_weight_shapes(const ModelConfig& config, LoadQuantization quantization,
                                   DType compute_dtype = DType::kBF16, ModelSplit split = {},
                                   int64_t rank = 0);
// Returns DeviceWeights::bytes of these weights.
int64_t device_weight_bytes(const ModelConfig& config, LoadQuantization quantization,
                            DType compute_dtype = DType::kBF16, ModelSplit split = {}, int64_t rank = 0);

}  // namespace hadal

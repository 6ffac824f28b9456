#include "engine/backend.h"

#include "kernels/cuda/mla/plan/geometry.h"

namespace hadal {

Result<void> check_gpu_kv_layout(KvLayout layout, DType compute_dtype) {
  const KvFormat format = layout.format;
  if (compute_dtype == DType::kF16) {
    if (format == KvFormat::kF16) return {};
    return unsupported(
        "--kv-cache-dtype: with --dtype float16 a GPU stores keys and values in float16; allowed: "
        "auto, fp16, float16, or use --dtype bfloat16 for the other formats");
  }
  if (format != KvFormat::kF16 && format != KvFormat::kF32) return {};
  return unsupported(
      "--kv-cache-dtype: a GPU stores keys and values in bfloat16, fp8_e4m3 or fp8_e5m2, and with "
      "--dtype float16 in float16");
}

Result<void> check_gpu_batch(std::string_view flag, int64_t num_requests) {
  if (num_requests <= cuda::kDecodeMaxSeqs) return {};
  return invalid_argument("{} {}: must be at most {} on a GPU", flag, num_requests, cuda::kDecodeMaxSeqs);
}

}  // namespace hadal

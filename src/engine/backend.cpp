#include "engine/backend.h"

#include <algorithm>
#include <string_view>

#include "kernels/cuda/comm/parts.h"
#include "kernels/cuda/mla/plan/geometry.h"
#include "tensor/dtype.h"

namespace hadal {

const char* to_string(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return "float32";
    case KvFormat::kF16:
      return "float16";
    case KvFormat::kBF16:
      return "bfloat16";
    case KvFormat::kFp8E4M3:
      return "fp8_e4m3";
    case KvFormat::kFp8E5M2:
      return "fp8_e5m2";
  }
  return "unknown";
}

Result<void> check_gpu_kv_layout(KvLayout layout, DType compute_dtype) {
  const KvFormat format = layout.format;
  const auto refused = [&](std::string_view allowed) {
    return unsupported("--kv-cache-dtype {}: not supported on a GPU with --dtype {}; allowed: {}",
                       to_string(format), to_string(compute_dtype), allowed);
  };
  if (compute_dtype == DType::kF16) {
    if (format == KvFormat::kF16) return {};
    return refused("auto, fp16, float16");
  }
  if (format != KvFormat::kF16 && format != KvFormat::kF32) return {};
  return refused("auto, bf16, bfloat16, fp8_e4m3, fp8_e5m2");
}

Result<void> check_gpu_batch(std::string_view flag, int64_t num_requests) {
  if (num_requests <= cuda::kDecodeMaxSeqs) return {};
  return invalid_argument("{} {}: must be at most {} on a GPU", flag, num_requests, cuda::kDecodeMaxSeqs);
}

Result<void> check_ranks(DeviceType device, ModelSplit split, const GpuRanks& gpus, int num_gpus) {
  if (device == DeviceType::kCpu) return {};
  if (gpus.base_gpu_id >= num_gpus) {
    return invalid_argument("--base-gpu-id {}: there are {} GPUs; allowed: 0 to {}", gpus.base_gpu_id,
                            num_gpus, num_gpus - 1);
  }
  if (split.tp > cuda::kMaxRanks) {
    return invalid_argument("--tp-size {}: on GPUs it must be at most {}", split.tp, cuda::kMaxRanks);
  }
  if (gpus.lone_rank >= split.tp) {
    return invalid_argument("--lone-rank {}: --tp-size is {}; allowed: 0 to {}", gpus.lone_rank, split.tp,
                            split.tp - 1);
  }
  if (gpus.device(split.tp - 1) < num_gpus) return {};
  const int step = std::max(gpus.gpu_id_step, 1);
  return invalid_argument(
      "--tp-size {}: with --base-gpu-id {} and --gpu-id-step {} the last rank needs GPU {}, but there are {} "
      "GPUs; allowed: at most {} ranks, or --gpu-id-step 0, with which ranks take turns on one GPU",
      split.tp, gpus.base_gpu_id, gpus.gpu_id_step, gpus.device(split.tp - 1), num_gpus,
      (num_gpus - 1 - gpus.base_gpu_id) / step + 1);
}

}  // namespace hadal

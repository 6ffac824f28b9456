// Which kernel computes cuda::linear. The choice depends on shapes and types alone, never on values. The
// borders are measurements on one H200 (docs/kernels/cuda-skinny-gemm.md).
#include "base/check.h"
#include "kernels/cuda/gemm/variants.h"

namespace hadal::cuda {
namespace {

constexpr int64_t kMaxThinBytes = int64_t{18} << 20;  // of weights
constexpr int64_t kMaxThinRowBytes = 8192;            // of k: two rounds of its registers
constexpr int64_t kRouterOutputs = 256;               // at most so many: a router or the like
constexpr int64_t kMaxSkinnyRowsBf16 = 32;            // then the library is ahead

bool wants_thin(const LinearParams& p, const Launch& launch) {
  const bool fp8 = p.w.type == WeightType::kFp8Block;
  const int64_t row_bytes = p.w.k * (fp8 ? 1 : 2);
  const int64_t blocks = (p.w.n + 15) / 16;
  // Two blocks fit on a multiprocessor, but for nine rows or more of bf16.
  const int64_t most_blocks = int64_t{launch.num_sms} * (p.m <= 8 || fp8 ? 2 : 1);
  return blocks <= most_blocks && row_bytes <= kMaxThinRowBytes && p.w.n * row_bytes <= kMaxThinBytes &&
         thin_linear_takes(p);
}

void linear_bf16(const LinearParams& p, GemmLibrary& library, const Launch& launch) {
  if (wants_thin(p, launch)) return thin_linear(p, launch);
  const bool router = p.w.n <= kRouterOutputs;
  if (router && p.m <= 2 && router_linear_takes(p)) return router_linear(p, launch);
  if (p.m <= kMaxSkinnyRowsBf16 * (router ? 2 : 1) && skinny_linear_takes(p)) return skinny_linear(p, launch);
  cublaslt_linear(p, library, launch);
}

void linear_fp8(const LinearParams& p, const Launch& launch) {
  if (wants_thin(p, launch)) return thin_linear(p, launch);
  if (skinny_linear_takes(p)) return skinny_linear(p, launch);
  if (wgmma_fp8_linear_takes(p)) return wgmma_fp8_linear(p, launch);
  reference::linear(p, launch);
}

}  // namespace

void linear(const LinearParams& p, GemmLibrary& library, const Launch& launch) {
  if (p.m <= 0) return;
  HADAL_CHECK((p.y != nullptr) != (p.y_f32 != nullptr), "one of y and y_f32 must be set");
  HADAL_CHECK(p.w.type == WeightType::kFp8Block ? static_cast<bool>(p.x_fp8) : p.x != nullptr,
              "activations do not fit the weights' type");
  HADAL_CHECK(p.w.type != WeightType::kInt8Block && !is_channel_scaled(p.w.type),
              "INT8 weights and channel scales do not run on CUDA");
  if (launch.reference) return reference::linear(p, launch);
  switch (p.w.type) {
    case WeightType::kF32:
      return router_linear_takes(p) ? router_linear(p, launch) : reference::linear(p, launch);
    case WeightType::kBF16:
      return linear_bf16(p, library, launch);
    case WeightType::kFp8Block:
      return linear_fp8(p, launch);
    case WeightType::kInt8Block:
    case WeightType::kFp8Channel:
    case WeightType::kInt8Channel:
      break;  // refused above
  }
}

}  // namespace hadal::cuda

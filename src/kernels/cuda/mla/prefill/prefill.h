// What the parts of prefill attention share. Free of CUDA headers.
#pragma once

#include "kernels/cuda/mla/mla.h"

namespace hadal::cuda {

inline constexpr int kPrefillNope = 128;
inline constexpr int kPrefillRope = 64;
inline constexpr int kPrefillQk = kPrefillNope + kPrefillRope;
inline constexpr int kPrefillValue = 128;
inline constexpr int kPrefillKvRow = kPrefillNope + kPrefillValue;  // of one head

// Whether the tensor-core kernel takes the call: its bulk copies want 16-byte addresses and strides.
bool prefill_sm90_takes(const MlaPrefillParams& params);
void prefill_sm90(const MlaPrefillParams& params, const Launch& launch);

namespace reference {
void mla_prefill(const MlaPrefillParams& params, const Launch& launch);
}  // namespace reference

}  // namespace hadal::cuda

// Declares the dimensions and the launches of prefill attention. This header includes no CUDA header.
#pragma once

#include "kernels/cuda/mla/mla.h"

namespace hadal::cuda {

inline constexpr int kPrefillNope = 128;
inline constexpr int kPrefillRope = 64;
inline constexpr int kPrefillQk = kPrefillNope + kPrefillRope;
inline constexpr int kPrefillValue = 128;
inline constexpr int kPrefillKvRow = kPrefillNope + kPrefillValue;  // elements of kv per key and head

// Returns true if the tensor-core kernel supports the call: its bulk copies require addresses and strides
// that are multiples of 16 bytes.
bool prefill_sm90_supports(const DevicePrefillParams& params);
void prefill_sm90(const DevicePrefillParams& params, const Launch& launch);

namespace reference {
void mla_prefill(const DevicePrefillParams& params, const Launch& launch);
}  // namespace reference

}  // namespace hadal::cuda

// States which alignment tuned kernels require of a product's operands. The plan of a layer's experts and the
// launches both use these functions. This header is for the host alone and includes no CUDA header.
#pragma once

#include "kernels/cuda/activation.h"
#include "kernels/cuda/alignment.h"
#include "kernels/cuda/choice.h"

namespace hadal::cuda {

// Returns true if tuned kernels can read W. They require that W begins at a multiple of 16 bytes, and so do
// the matrices of experts, which lie `expert_stride` elements apart. Rows must be multiples of 16 bytes long
// and hold all of k (8-bit types: padded to a multiple of 128).
inline bool is_aligned(const MatrixWeight& w, int64_t expert_stride = 0) {
  const int64_t element = weight_element_bytes(w.type);
  return on_16_bytes(w.data) && w.row_stride * element % 16 == 0 && w.row_stride >= padded_k(w.type, w.k) &&
         expert_stride * element % 16 == 0;
}
// Returns true if tuned kernels can read the rows of codes that are multiplied with W.
inline bool is_aligned(const QuantizedRows& x, int64_t k) {
  return on_16_bytes(x.codes) && x.stride % 16 == 0 && x.stride >= round_up(k, kQuantGroup);
}
// Returns true if W has no channel scales, or if its channel scales can be read in pairs. For that, the
// scales of each expert, which lie `expert_stride` scales apart, must begin at multiples of 8 bytes.
inline bool has_aligned_scales(const MatrixWeight& w, int64_t expert_stride = 0) {
  return !is_channel_scaled(w.type) || (on_8_bytes(w.scales) && expert_stride % 2 == 0);
}

}  // namespace hadal::cuda

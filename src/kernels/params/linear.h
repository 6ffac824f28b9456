// Matrix products y = x · Wᵀ and their batched and grouped forms.
//
// Numerics (the contract that makes a result independent of the batch): activations are float32; weights are
// converted exactly to float32; every output element is ONE chain of fused multiply-adds over k = 0, 1, …,
// K−1 in this order, starting from +0, whatever M, N, the instruction set or the number of threads. For fp8
// block weights the chain runs over each 128-wide block of k from +0, and the block sums join in block order:
// acc = fma(block_sum, scale[n/128][k/128], acc), starting from +0. SIMD lanes therefore run over outputs,
// never over k.
#pragma once

#include <cstdint>

#include "base/float_types.h"

namespace hadal {

enum class WeightType : uint8_t { kF32, kBF16, kFp8Block };

// A weight matrix as the checkpoint stores it: [n, k], k contiguous.
struct MatrixWeight {
  const void* data = nullptr;  // [n, k] of float, bf16 or fp8_e4m3; rows row_stride elements apart
  WeightType type = WeightType::kBF16;
  int64_t n = 0;           // output features
  int64_t k = 0;           // input features
  int64_t row_stride = 0;  // elements, ≥ k
  const float* scales =
      nullptr;  // fp8 only: [ceil(n/128), ceil(k/128)], value = code · scale; `data` starts at a block
  int64_t scale_stride = 0;  // elements between rows of scales
};

// y[m, :] = x[m, :] · Wᵀ.
struct LinearParams {
  const float* x = nullptr;  // [m, w.k], rows x_stride apart
  float* y = nullptr;        // [m, w.n], rows y_stride apart; must not overlap x
  int64_t m = 0;
  int64_t x_stride = 0;
  int64_t y_stride = 0;
  MatrixWeight w;
};

// One product a head, all heads in one call: the absorbed matrices of MLA.
//   transposed == false: y[m, h, :] = x[m, h, :] · W[h]ᵀ, W[h] = [n, k]   (W_UV: n 128, k 512)
//   transposed == true:  y[m, h, :] = x[m, h, :] · W[h],  W[h] = [k, n]   (W_UK: k 128, n 512); same chain
//   over k
// Head h's matrix starts `head_stride` elements after head h−1's (and `scale_head_stride` scales after its
// scales).
struct BatchedLinearParams {
  const float* x =
      nullptr;         // [m, num_heads, k]: x_stride between m, x_head_stride between heads, k contiguous
  float* y = nullptr;  // [m, num_heads, n]: likewise
  int64_t m = 0;
  int64_t num_heads = 0;
  int64_t x_stride = 0, x_head_stride = 0;
  int64_t y_stride = 0, y_head_stride = 0;
  MatrixWeight w;  // of head 0; n and k as above: outputs and inputs (for transposed, stored as [k, n])
  int64_t head_stride = 0;
  int64_t scale_head_stride = 0;
  bool transposed = false;
};

}  // namespace hadal

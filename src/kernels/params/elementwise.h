// Holds the parameters of small row-wise ops: norms, RoPE and embedding.
#pragma once

#include <cstdint>

namespace hadal {

// RMSNorm (arXiv 1910.07467) computes y = x · rsqrt(mean(x²) + eps) ⊙ weight. With `residual`, residual += x
// comes first, and the sum is normalised. mean(x²) is summed in double over k ascending in 16 interleaved
// partial sums (element k goes to partial k mod 16), and the partials are added in ascending order. The
// factor f = float(1 / sqrt(mean + eps)) is computed in double, and y = (x · f) · weight in float32. The bits
// are the same on every instruction set.
struct RmsNormParams {
  const float* x = nullptr;       // [m, n], rows x_stride apart
  float* residual = nullptr;      // [m, n], dense, updated in place; null when there is none
  float* y = nullptr;             // [m, n], rows y_stride apart; may be x
  const float* weight = nullptr;  // [n]
  int64_t m = 0, n = 0;
  int64_t x_stride = 0, y_stride = 0;
  float eps = 1e-6F;
};

// Rotates interleaved pairs (2i, 2i+1) of 64 values by position · inv_freq[i], in place (RoFormer, arXiv
// 2104.09864; YaRN's frequencies and magnitude are already in the table): (a, b) becomes (a·cos − b·sin,
// b·cos + a·sin). Each product is rounded to float32 before the sum, on every instruction set.
struct RopeParams {
  float* x = nullptr;  // [m, num_heads, 64]: row_stride between m, head_stride between heads
  int64_t m = 0;
  int64_t num_heads = 0;
  int64_t row_stride = 0, head_stride = 0;
  const int32_t* positions = nullptr;  // [m]
  const float* cos_sin = nullptr;      // [max_positions, 64]: 32 cosines, then 32 sines
};

enum class EmbeddingType : uint8_t { kF32, kBF16 };

// Computes y[i, :] = table[ids[i], :].
struct EmbeddingParams {
  const void* table = nullptr;  // [vocab, hidden]
  EmbeddingType type = EmbeddingType::kBF16;
  const int32_t* ids = nullptr;  // [m]
  float* y = nullptr;            // [m, hidden], dense
  int64_t m = 0, hidden = 0;
};

}  // namespace hadal

// Declares the matrix products on the device: y = x · Wᵀ in bf16, float16, FP8 and INT8, and the absorbed
// per-head products of MLA. This header includes no CUDA header. `w` holds device pointers
// (kernels/params/linear.h).
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cuda/activation.h"
#include "kernels/cuda/choice.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/length_gate.h"
#include "kernels/params/linear.h"

namespace hadal::cuda {

// Owns the cuBLASLt handle, its plans and its workspace. There is one library per device; only the launching
// thread may use it.
class GemmLibrary {
 public:
  // Throws hadal::Error with one clear line if cuBLASLt cannot be used.
  GemmLibrary();
  ~GemmLibrary();
  GemmLibrary(const GemmLibrary&) = delete;
  GemmLibrary& operator=(const GemmLibrary&) = delete;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// Computes y[m, n] = x[m, k] · Wᵀ. With kBF16 weights x is bf16, with kF16 it is float16; both accumulate in
// float32. With kF32 weights (routers), products and sums are float32. kFp8Block weights read x_quantized
// (W8A8): the tensor cores multiply e4m3, and the sum over each 128 of k is promoted to float32 and
// multiplied by both scales. kInt8Block is the same in int8, with each 128 of k summed exactly. With
// kInt8Channel, rows of x and of W have one scale each, the sum over k is one exact int32, and y = sum · row
// scale · channel scale. kFp8Channel is the same in e4m3 with float32 sums; the tensor cores' own e4m3 sums
// cover at most 128 of k.
//   Rows of codes and of 8-bit weights are padded with zeros to a multiple of 128 in k (w.row_stride is the
//   padded width); w.k and w.n need not be multiples of 128. w.scales is [ceil(n/128), scale_stride], or [n]
//   for channels. With kInt8Channel, k is at most kMaxInt8K.
struct DenseLinearParams {
  const void* x = nullptr;  // [m, k] of the weights' 16-bit type, rows x_stride apart
  int64_t x_stride = 0;
  QuantizedRows x_quantized;  // in the format row_format_of(w.type)
  MatrixWeight w;
  const float* bias = nullptr;  // [n], added in float32: with channel weights only; null: none
  void* y = nullptr;            // [m, n] in x's type, of 8-bit weights in bf16, rows y_stride apart; or
  float* y_f32 = nullptr;       // the same in float32 (router logits, head)
  int64_t y_stride = 0;
  int64_t m = 0;
  bool f16 = false;  // with kF32 weights: x and y are float16, not bf16
  // Only the kernels for few rows (thin, skinny, router) test the gate; the others compute y in any case.
  LengthGate gate;
};
// Returns true if rows of 16 bits are float16.
constexpr bool has_f16_rows(const DenseLinearParams& p) {
  return p.w.type == WeightType::kF16 || (p.w.type == WeightType::kF32 && p.f16);
}
// Runs the kernel that gemm/choice.h chooses: the measured choice (null: there are none), or the heuristic's.
class LinearTable;
void linear(const DenseLinearParams& params, GemmLibrary& library, const Launch& launch,
            const LinearTable* measured = nullptr);
// Runs a given kernel, which must support the shape (supports() of gemm/choice.h).
void launch_linear(const Choice& choice, const DenseLinearParams& params, GemmLibrary& library,
                   const Launch& launch);

// The absorbed matrices (kernels/params/mla.h) have one product per head. Weights are bf16, float16 or FP8
// with the checkpoint's block scales (codes are exact in bf16; the scale multiplies each block's float32
// sum). Activations are bf16, or float16 with float16 weights.
//
// y[m, h, 0:512] = q[m, h, 0:128] · W_UK[h]; w_uk holds W_UK transposed: head h at rows [512·h, 512·(h+1)) of
// [heads·512, 128]; FP8 scales [heads·4, scale_stride]. With `positions` the op also computes the rest of
// decode's query: y[m, h, 512:576] = RoPE(q[m, h, 128:192]), which has the same bits as q_rope computes
// (elementwise.h).
struct AbsorbQueryParams {
  const void* q = nullptr;  // [rows, heads, ≥128, with RoPE ≥192]
  int64_t q_row_stride = 0, q_head_stride = 0;
  MatrixWeight w_uk;  // [heads · 512, 128]
  void* y = nullptr;  // [m, heads, 576]: the first 512 of each head are written, with RoPE all
  int64_t m = 0;
  int num_heads = 0;
  const int32_t* positions = nullptr;  // [rows]; null: no RoPE
  const float* cos_sin = nullptr;      // [max_positions, 64]: 32 cosines, 32 sines; never written
  // [m]: the row of q and positions from which y's row is made; < 0: a row of zeros. Null: row i.
  const int32_t* rows = nullptr;
  // True: positions and rows were complete before the previous kernel could begin (see launch.h), so they are
  // read before pdl_wait().
  bool settled = false;
};
void absorb_query(const AbsorbQueryParams& params, const Launch& launch);

// Computes y[m, h, 0:128] = o[m, h, 0:512] · W_UV[h]ᵀ. kv_b is as in the checkpoint: head h's W_UV is rows
// [256·h + 128, 256·h + 256) of [heads·256, 512]. The result is stored in 16 bits, or directly as FP8 rows,
// in which each head is one group of 128.
struct ExpandValueParams {
  const void* o = nullptr;  // [m, heads, 512], dense
  MatrixWeight kv_b;        // [heads · 256, 512]
  void* y = nullptr;        // [m, heads · 128], rows y_stride apart; or
  int64_t y_stride = 0;
  QuantizedRows y_quantized;
  int64_t m = 0;
  int num_heads = 0;
  const int32_t* rows = nullptr;  // [m]: row of y (y_quantized) that o's row goes to; < 0: none. Null: row i.
};
void expand_value(const ExpandValueParams& params, const Launch& launch);

}  // namespace hadal::cuda

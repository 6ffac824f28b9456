// Declares the row-wise ops of a layer: embedding, fused norms, quantisation, RoPE and the KV write. This
// header includes no CUDA header.
//
// 16-bit rows are bf16, or float16 if the op's parameter f16 is set, which then holds for all of its rows.
// Rows of codes are made only from bf16 rows.
#pragma once

#include <cstdint>

#include "kernels/cuda/activation.h"
#include "kernels/cuda/comm/parts.h"
#include "kernels/cuda/launch.h"
#include "kernels/params/kv_layout.h"

namespace hadal::cuda {

struct ExchangeParams;  // kernels/cuda/comm/comm.h

// Computes y[i, :] = table[ids[i], :] in float32, which starts the residual stream. ids outside [0, vocab)
// give zeros.
struct EmbeddingParams {
  const void* table = nullptr;   // [vocab, hidden] of 16-bit values
  const int32_t* ids = nullptr;  // [m]
  float* y = nullptr;            // [m, hidden]
  int64_t m = 0, hidden = 0, vocab = 0;
  bool f16 = false;
};
void embedding(const EmbeddingParams& params, const Launch& launch);

// Sets ids[row] = last_token[slot] for each feed with slot ≥ 0. These are the tokens that the previous step
// sampled.
struct FeedTokensParams {
  const int32_t* rows = nullptr;        // [num_feeds]
  const int32_t* slots = nullptr;       // [num_feeds]; < 0: padding
  const int32_t* last_token = nullptr;  // [max_slots]
  int32_t* ids = nullptr;               // [m]
  int64_t num_feeds = 0;
};
void feed_tokens(const FeedTokensParams& params, const Launch& launch);

// Describes what a norm first adds to the residual: nothing, the rows of a block's output, the routed
// experts' rows, or the ranks' partial sums of a block's output.
struct NormInput {
  const void* dense = nullptr;  // [m, n] rows x_stride apart; null: none
  int64_t x_stride = 0;
  // If expert_rows is set, the input is Σ_j weights[t, j] · expert_rows[row_of[t, j], :], added in float32 in
  // ascending order of j.
  const void* expert_rows = nullptr;  // [m · top_k, n]
  const int32_t* row_of = nullptr;    // [m, top_k]; negative only in combine_rows and with `exchange`
  const float* weights = nullptr;     // [m, top_k]
  int top_k = 0;
  // If `exchanged` is set, the input is Σ_r parts[r][t, :], added in float32 in ascending order of r, so that
  // the sum has the same bits on every rank.
  ExchangedParts exchanged;  // each [m, n], dense
  // If `exchange` is set, the input is the same sum, but the kernel itself exchanges the parts
  // (DeviceCommunicator::small_exchange). norm_exchanges() says for which shapes. This rank's part is `part`
  // or, if that is null, the result of combine_rows for the experts' rows and `dense`.
  const void* part = nullptr;                // [m, n], dense, on 16 bytes
  const ExchangeParams* exchange = nullptr;  // on the host; null: nothing is exchanged
};

// Computes residual += input and y = RMSNorm(residual) ⊙ weight (arXiv 1910.07467), stored in 16 bits, as FP8
// rows, or both. FP8 rows are quantised from the float32 result. With `rows`, output row i is computed from
// residual row rows[i] (the logit rows of the last layer), its sum goes to residual_out[i] instead, and m
// counts output rows; rows[i] < 0 gives zeros.
struct AddRmsNormParams {
  NormInput input;
  float* residual = nullptr;      // [m, n], dense, updated in place (not with `rows`)
  float* residual_out = nullptr;  // [m, n]; only with `rows`
  const int32_t* rows = nullptr;  // [m] or null
  const float* weight = nullptr;  // [n]
  void* y = nullptr;              // [m, n], dense; null: not stored
  QuantizedRows y_quantized;      // null codes: not stored
  int64_t m = 0, n = 0;
  float eps = 1e-6F;
  bool f16 = false;  // input and y
};
void add_rms_norm(const AddRmsNormParams& params, const Launch& launch);

// Returns true if add_rms_norm exchanges parts of m rows of n values itself, because that is faster than an
// exchange of flags followed by a norm that reads the parts.
bool norm_exchanges(int64_t m, int64_t n, bool f16, int num_ranks, const Launch& launch);
// Loads the code of these norms onto a device, for the reason of load_comm_kernels
// (kernels/cuda/comm/comm.h).
void load_exchanging_norms(int device);

// Computes a rank's partial sum of a layer's experts, y[t, :] = Σ_j weights[t, j] · expert_rows[row_of[t, j],
// :] + added[t, :]. The sum is float32 in ascending order of j, and is rounded once. Pairs whose row_of is
// negative belong to experts of another rank and are skipped.
struct CombineRowsParams {
  NormInput experts;            // with expert_rows
  const void* added = nullptr;  // [m, n], dense: the shared experts' output; null: none
  void* y = nullptr;            // [m, n], dense
  int64_t m = 0, n = 0;
  bool f16 = false;  // all rows
};
void combine_rows(const CombineRowsParams& params, const Launch& launch);

// These are the two halves of the fused op; --disable-fusion uses them.
void add_residual(const NormInput& input, float* residual, int64_t m, int64_t n, const Launch& launch,
                  bool f16 = false);
struct QuantizeParams {
  const void* x = nullptr;  // [m, n] bf16, rows x_stride apart
  int64_t x_stride = 0;
  int64_t m = 0, n = 0;
  QuantizedRows y;
};
void quantize_rows(const QuantizeParams& params, const Launch& launch);

// Computes y = silu(gate) ⊙ up, computed in float32 and rounded once. Each row of x is [gate | up].
struct SiluMulParams {
  const void* x = nullptr;  // [m, 2·n], dense
  int64_t m = 0, n = 0;
  const int32_t* num_used = nullptr;  // [1]: rows from *num_used on are not read or written; null: all are
  void* y = nullptr;                  // [m, n]; or
  QuantizedRows y_quantized;
  bool f16 = false;
};
void silu_mul(const SiluMulParams& params, const Launch& launch);

// Does all work between the first projections and attention in one kernel. Rows of x are [q part | latent 512
// | k_pe 64]. The q part (q_lora_rank wide) is normed by RMSNorm and stored as 16-bit rows, FP8 rows or both;
// if q_norm is null, as for V2-Lite, it is skipped. RMSNorm is applied to the latent, and RoPE at the row's
// position to k_pe. Both are rounded to the cache's format and written to record slots[i], which is page · 64
// + offset; for a negative number (padding) nothing is written.
struct MlaPrologueParams {
  const void* x =
      nullptr;  // [m, kv_begin + 576], rows x_stride apart; x and q are float16 with a float16 cache
  int64_t x_stride = 0;
  int64_t m = 0;
  int64_t q_width = 0;
  int64_t kv_begin = 0;  // column of the latent, ≥ q_width (columns between pad FP8 blocks); 0: q_width
  const float* q_norm = nullptr;   // [q_width]
  const float* kv_norm = nullptr;  // [512]
  float eps = 1e-6F;
  void* q = nullptr;                   // [m, q_width], dense, or null
  QuantizedRows q_quantized;           // or null
  const int32_t* positions = nullptr;  // [m]
  const float* cos_sin = nullptr;      // [max_positions, 64]: 32 cosines, then 32 sines
  const int64_t* slots = nullptr;      // [m]
  std::byte* pool = nullptr;           // [num_pages, 64, row_bytes]
  KvLayout layout;                     // kBF16, kF16, kFp8E4M3 (both scales) or kFp8E5M2
};
void mla_prologue(const MlaPrologueParams& params, const Launch& launch);

// Applies RoPE (interleaved pairs) to the last 64 of every head's 192 values, from q to y; y may be q itself.
struct QRopeParams {
  const void* q = nullptr;  // [m, heads, 64] view: the rope part
  int64_t q_row_stride = 0, q_head_stride = 0;
  void* y = nullptr;
  int64_t y_row_stride = 0, y_head_stride = 0;
  const int32_t* positions = nullptr;  // [m]
  const float* cos_sin = nullptr;
  int64_t m = 0;
  int num_heads = 0;
  bool f16 = false;
};
void q_rope(const QRopeParams& params, const Launch& launch);

// Copies the first num_rows records of page `source` to page `target` in the pools of all layers. If the
// layout has index keys (KvIndex::kE4M3), it copies these and their scales as well.
struct PageCopyEntry {
  int32_t source = 0, target = 0, num_rows = 0;
};
struct CopyPagesParams {
  std::byte* const* pools = nullptr;        // [num_layers] device pointers, in device memory
  std::byte* const* index_pools = nullptr;  // likewise, where layout.index is not kNone
  const PageCopyEntry* copies = nullptr;    // [num_copies], device memory
  int num_layers = 0;
  int num_copies = 0;
  KvLayout layout;
};
void copy_pages(const CopyPagesParams& params, const Launch& launch);

// Fills all pages of all layers with random records and index keys (kernels/params/random_record.h), the
// bytes that the CPU stores. Index keys are KvIndex::kE4M3.
struct FillPagesParams {
  std::byte* const* pools = nullptr;        // [num_layers] device pointers, in device memory
  std::byte* const* index_pools = nullptr;  // likewise, where layout.index is not kNone
  int num_layers = 0;
  int64_t num_pages = 0;
  KvLayout layout;
  uint64_t seed = 0;
};
void fill_pages(const FillPagesParams& params, const Launch& launch);

}  // namespace hadal::cuda

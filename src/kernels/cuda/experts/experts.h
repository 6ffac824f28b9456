// Declares the ops of routed experts on the device: gate, permutation and grouped products. The shared
// experts follow the routed ones as experts of their own, which every token uses with weight 1. This header
// includes no CUDA header.
#pragma once

#include <cstdint>

#include "kernels/cuda/activation.h"
#include "kernels/cuda/choice.h"
#include "kernels/cuda/experts/route/choice.h"
#include "kernels/cuda/experts/shape.h"
#include "kernels/cuda/launch.h"
#include "kernels/params/linear.h"
#include "kernels/params/moe.h"

namespace hadal::cuda {

// Chooses experts from router logits (kernels/params/moe.h: kinds, ties, order), and makes the permutation
// that sorts the (token, choice) pairs by expert. The sort is stable, so pairs of one expert stay in order of
// token. A token has num_slots = top_k + num_shared pairs; choices [top_k, num_slots) are experts
// num_experts, num_experts + 1, …
//
// If this rank holds only some of the routed experts, all tokens are still routed over all experts, so that
// every rank makes the same choice. Pairs of other ranks' experts get no row: their row_of is −1, and
// expert_offsets counts their experts as empty. The offsets of the experts that this rank holds then begin at
// expert_offsets + first_held. Shared experts are computed by a separate product in that case.
struct RouteParams {
  const float* logits = nullptr;  // [m, num_experts]
  const float* bias = nullptr;    // [num_experts], kSigmoidNoAuxTc only
  int64_t m = 0;
  int num_experts = 0;  // routed
  int num_shared = 0;
  int top_k = 0;
  // This rank holds routed experts [first_held, first_held + num_held), or all of them if num_held is 0. If
  // it does not hold all, num_shared is 0.
  int first_held = 0, num_held = 0;
  int num_groups = 1, topk_groups = 1;
  GateKind kind = GateKind::kSigmoidNoAuxTc;
  bool renormalize = true;
  float scaling_factor = 1.0F;
  const int32_t* valid = nullptr;  // [1]: rows from *valid on pad a graph's batch and use the experts of
                                   // row 0; null: all are real. m ≥ *valid ≥ 1.
  int32_t* topk_ids = nullptr;     // [m, num_slots]
  float* topk_weights = nullptr;   // [m, num_slots]
  int32_t* expert_offsets =
      nullptr;  // [num_experts + num_shared + 1]: rows of expert e are [offsets[e], offsets[e+1])
  int32_t* token_of = nullptr;      // [m · num_slots]: the token of each sorted row
  int32_t* row_of = nullptr;        // [m, num_slots]: each pair's sorted row; −1: not on this rank
  int32_t* num_distinct = nullptr;  // [1]: number of routed experts chosen by any token, held or not; or null
  void* scratch = nullptr;          // route_scratch_bytes(...)
  int32_t* arrived = nullptr;       // [1]: 0 before the op and again after it; used for m > 128
};
// Returns the number of routed experts that are held.
constexpr int held_experts(const RouteParams& p) {
  return p.num_held > 0 ? p.num_held : p.num_experts;
}
// Returns true if pairs of this expert, routed or shared, have rows.
constexpr bool is_held(const RouteParams& p, int expert) {
  return p.num_held == 0 || (expert >= p.first_held && expert < p.first_held + p.num_held);
}

// Returns the shape by which the kernel is chosen.
ExpertsShape route_shape(const RouteParams& params, int num_sms);
// Runs the kernel that route/choice.h chooses; the second form runs a given one, which must support the
// shape.
void route(const RouteParams& params, const Launch& launch);
void route(const RouteParams& params, RouteKernel kernel, const Launch& launch);

// Computes y[i] = x[token_of[i]], which orders the rows by expert for the tiled grouped product.
struct PermuteRowsParams {
  const void* x = nullptr;  // [m, n] of 16-bit values, dense; or
  QuantizedRows x_quantized;
  const int32_t* token_of = nullptr;  // [num_rows]
  void* y = nullptr;                  // [num_rows, n]; or
  QuantizedRows y_quantized;
  int64_t num_rows = 0, n = 0;
  const int32_t* num_used = nullptr;  // [1]: rows from *num_used on are not read or written; null: all are
};
void permute_rows(const PermuteRowsParams& params, const Launch& launch);

// Computes y[row_of[t, j]] = x[t] for j < top_k where row_of is not negative. This is the same permutation,
// but it iterates over the tokens, so that each row of x is read once.
struct SpreadRowsParams {
  const void* x = nullptr;          // [m, n] of 16-bit values, dense
  const int32_t* row_of = nullptr;  // [m, num_slots]
  int num_slots = 0, top_k = 0;     // top_k ≤ num_slots
  void* y = nullptr;                // [rows, n], dense
  int64_t m = 0, n = 0;
};
void spread_rows(const SpreadRowsParams& params, const Launch& launch);

// Computes y[i, :] = x[i or token_of[i], :] · W[e]ᵀ for the rows i of expert e. 16-bit weights need x of
// their own type, and 8-bit weights read x_quantized. The numerics are those of cuda::linear.
struct GroupedLinearParams {
  const void* x = nullptr;  // rows x_stride apart
  int64_t x_stride = 0;
  QuantizedRows x_quantized;
  const int32_t* token_of = nullptr;        // [num_rows]: gathers rows of x; null: x is sorted already
  const int32_t* expert_offsets = nullptr;  // [num_experts + 1], on the device
  int64_t num_rows = 0;
  int rows_per_token = 1;           // num_rows per token; used only to choose the kernel
  int num_experts = 0;              // including the shared ones
  MatrixWeight w;                   // expert 0's: [n, k]
  int64_t expert_stride = 0;        // elements between experts
  int64_t expert_scale_stride = 0;  // scales between experts; of channels: even, for the tiled kernel
  void* y = nullptr;                // [num_rows, n], dense: of x's type, with 8-bit weights bf16
  // True if expert_offsets were complete before the kernel launched just ahead could begin. Then they may be
  // read, and weights prefetched, before pdl_wait(). This holds for the down projection that follows an
  // activation, because the gate_up product before the activation waits before it lets dependents start.
  bool offsets_settled = false;
};
// Runs the kernel that experts/choice.h chooses: the measured choice if there is one (`measured` may be
// null), otherwise the heuristic's. If wants_sorted() of that header returns true, x must be sorted first (by
// permute_rows), and token_of must be null.
class GroupedTable;
void grouped_linear(const GroupedLinearParams& params, const Launch& launch,
                    const GroupedTable* measured = nullptr);
// Runs a given kernel, which must support the shape (supports() of experts/choice.h).
void launch_grouped_linear(const Choice& choice, const GroupedLinearParams& params, const Launch& launch);

}  // namespace hadal::cuda

// The plan of a layer's experts: the list of kernels with their sizes, and the workspace that they need. This
// is the only place that decides it; DeviceForward::experts carries the plan out. A pure function of shape,
// measured choices and flags. Host only, free of CUDA headers, part of every build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/choice.h"
#include "kernels/cuda/experts/route/choice.h"
#include "kernels/cuda/experts/shape.h"
#include "kernels/cuda/product_choices.h"

namespace hadal::cuda {

struct ExpertsFlags {
  bool fusion = true;      // false: --disable-fusion
  bool reference = false;  // --kernels reference
  bool few = true;         // false: no kernels for few tokens, which benches compare with the separate ones
};

enum class ExpertsOp : uint8_t {
  kFewRouter,   // few_experts, its first kernel
  kFewExperts,  // few_experts, its second kernel: everything behind the router's product
  kRouter,      // the router's product, a linear in float32
  kRoute,       // the gate, and the permutation that sorts rows by expert
  kSpread,      // spread_rows: the rows of routed experts in order of expert; shared ones read the tokens
  kPermute,     // permute_rows: all rows in order of expert
  kGateUp,      // gate and up as one product
  kGateUpActivated,  // the same together with the activation (expert_columns)
  kActivate,         // silu(gate) · up, quantised where down reads codes and fusion is on
  kQuantize,         // codes of the activated rows, without fusion
  kDown,
};
// The name of the op in the per-op table of `hadal bench one-batch`.
const char* to_string(ExpertsOp op);

struct ExpertsKernel {
  ExpertsOp op = ExpertsOp::kRouter;
  int64_t rows = 0;  // of the result
  int64_t n = 0;     // width of the result; 0: none (route)
  int64_t k = 0;     // width of a product's input; 0: no product
  // For products, the kernel and its configuration; for kFewRouter and kFewExperts, splits alone. kRouter is
  // carried out by cuda::linear, which makes the same choice by the same function.
  Choice choice;
  RouteKernel route = RouteKernel::kPlain;  // of kRoute
  bool gathered = false;                    // of kGateUp: rows of x are found through an index
  bool offsets_settled = false;             // of products: see GroupedLinearParams
  const char* reason = "";                  // why it runs, in a few words
  const char* chosen_by = nullptr;          // of kRouter: whether its choice was measured
};

// Offsets in bytes into a layer's workspace, multiples of 256; kNone: not needed. Rows are dense; codes are
// in rows of a multiple of 128 and their scales as QuantizedRows has them.
struct ExpertsWorkspace {
  static constexpr size_t kNone = ~size_t{0};
  struct Rows {
    size_t x = kNone;  // 16 bits
    size_t codes = kNone;
    size_t scales = kNone;
  };
  size_t topk_ids = kNone, token_of = kNone, expert_offsets = kNone;  // of RouteParams
  size_t few_scratch = kNone;
  size_t router_logits = kNone;  // float32 [tokens, num_experts]
  size_t route_scratch = kNone;
  Rows sorted;             // [num_rows, hidden]; of kSpread [tokens · top_k, hidden]
  size_t gate_up = kNone;  // [num_rows, 2 · intermediate]
  Rows activated;          // [num_rows, intermediate]
  size_t bytes = 0;
};

struct ExpertsPlan {
  ExpertsShape shape;
  std::vector<ExpertsKernel> kernels;  // in the order of launching
  ExpertsWorkspace workspace;
};

// measured: null without measured choices. shape.tokens ≥ 1.
ExpertsPlan plan_experts(const ExpertsShape& shape, const ProductChoices* measured,
                         const ExpertsFlags& flags);

// Bytes of workspace that suffice for the plan of every number of tokens from 1 to shape.tokens.
size_t experts_workspace_bytes(const ExpertsShape& shape, const ProductChoices* measured,
                               const ExpertsFlags& flags);

// The kernel and its configuration: "skinny 16x64 splits 2 stages 10 gathered"; empty where an op has one
// kernel alone.
std::string kernel_text(const ExpertsKernel& kernel);
// Why the kernel runs: "more than 8 tokens; measured".
std::string reason_text(const ExpertsKernel& kernel);
// One line for each kernel: op, kernel and configuration, rows x n x k of it, and the reason.
std::string to_string(const ExpertsPlan& plan);
// The same without sizes, for plans of different numbers of tokens that run the same kernels.
std::string kernels_text(const ExpertsPlan& plan);

}  // namespace hadal::cuda

// Plans a layer's experts: the list of kernels with their sizes, and the workspace that they need. No other
// place decides this; DeviceForward::experts executes the plan, which is a pure function of shape, measured
// choices and flags. This header is for the host alone, includes no CUDA header and is part of every build.
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
  kFewRouter,   // the first kernel of few_experts
  kFewExperts,  // the second kernel of few_experts: everything after the router's product
  kRouter,      // the router's product, with float32 results
  kRoute,       // the gate, and the permutation that sorts rows by expert
  kSpread,      // spread_rows: the rows of routed experts in order of expert; shared ones read the tokens
  kPermute,     // permute_rows: all rows in order of expert
  kGateUp,      // gate and up as one product
  kGateUpActivated,  // gate and up together with the activation (expert_columns)
  kActivate,         // silu(gate) · up, quantised where down reads codes and fusion is on
  kQuantize,         // codes of the activated rows, without fusion
  kDown,
};
// Returns the name of the op in the per-op table of `hadal bench one-batch`.
const char* to_string(ExpertsOp op);

struct ExpertsKernel {
  ExpertsOp op = ExpertsOp::kRouter;
  int64_t rows = 0;  // rows of the result
  int64_t n = 0;     // width of the result; 0: none (route)
  int64_t k = 0;     // width of a product's input; 0: no product
  // For products, the kernel and its configuration; for kFewRouter and kFewExperts, splits alone.
  Choice choice;
  RouteKernel route = RouteKernel::kPlain;  // for kRoute
  bool gathered = false;                    // for kGateUp: rows of x are found through an index
  bool offsets_settled = false;             // for products: see GroupedLinearParams
  const char* reason = "";                  // why the op runs, in a few words
  const char* chosen_by = nullptr;          // for kRouter: whether its choice was measured
};

// Holds offsets in bytes into a layer's workspace, multiples of 256; kNone marks a buffer that is not needed.
// Rows are dense. Rows of codes have a multiple of 128 codes, and their scales have the layout of
// QuantizedRows.
struct ExpertsWorkspace {
  static constexpr size_t kNone = ~size_t{0};
  struct Rows {
    size_t x = kNone;  // 16 bits
    size_t codes = kNone;
    size_t scales = kNone;
  };
  size_t topk_ids = kNone, token_of = kNone, expert_offsets = kNone;  // see RouteParams
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

// Plans the experts of one layer. `measured` is null without measured choices; shape.tokens ≥ 1.
ExpertsPlan plan_experts(const ExpertsShape& shape, const ProductChoices* measured,
                         const ExpertsFlags& flags);

// Returns the bytes of workspace that suffice for the plan of every number of tokens from 1 to shape.tokens.
size_t experts_workspace_bytes(const ExpertsShape& shape, const ProductChoices* measured,
                               const ExpertsFlags& flags);

// Returns the kernel and its configuration, for example "skinny 16x64 splits 2 stages 10 gathered". The text
// is empty if the op has only one kernel.
std::string kernel_text(const ExpertsKernel& kernel);
// Returns why the kernel runs, for example "more than 8 tokens; measured".
std::string reason_text(const ExpertsKernel& kernel);
// Returns one line for each kernel: op, kernel and configuration, its rows x n x k, and the reason.
std::string to_string(const ExpertsPlan& plan);

}  // namespace hadal::cuda

#include "kernels/cuda/experts/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/experts/few/choice.h"
#include "kernels/cuda/padding.h"

namespace hadal::cuda {
namespace {

constexpr size_t kAlignment = 256;

constexpr const char* kMeasured = "measured";
constexpr const char* kHeuristic = "heuristic";
constexpr const char* kReferenceAsked = "--kernels reference";
constexpr const char* kUnsupported = "no tuned kernel supports the shape";

// Assigns offsets in a workspace.
class Layout {
 public:
  size_t take(int64_t bytes) {
    const size_t begin = used_;
    used_ += (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  }
  size_t rows_16_bit(int64_t m, int64_t n) { return take(m * n * 2); }
  // Assigns offsets to the codes and scales of [m, n] as weights of `type` read them.
  void codes(ExpertsWorkspace::Rows& rows, WeightType type, int64_t m, int64_t n) {
    const QuantizedRows shape = quantized_rows(type, m, n);
    rows.codes = take(m * shape.stride);
    rows.scales = take(shape.scale_runs() * shape.scale_stride * int64_t{sizeof(float)});
  }
  size_t used() const { return used_; }

 private:
  size_t used_ = 0;
};

struct Decided {
  Choice choice;
  const char* reason;
};

class Planner {
 public:
  Planner(const ExpertsShape& shape, const ProductChoices* measured, const ExpertsFlags& flags)
      : s_(shape), measured_(measured), flags_(flags) {
    HADAL_CHECK(s_.tokens >= 1 && s_.num_experts >= 1 && s_.num_slots() >= 1,
                "{} tokens, {} experts, {} rows per token", s_.tokens, s_.num_experts, s_.num_slots());
    HADAL_CHECK(s_.holds_all() || (s_.num_held < s_.num_experts && s_.num_shared == 0),
                "{} of {} experts are held, with {} shared ones", s_.num_held, s_.num_experts, s_.num_shared);
    plan_.shape = s_;
    ExpertsWorkspace& w = plan_.workspace;
    w.topk_ids = layout_.take(s_.num_rows() * 4);
    w.token_of = layout_.take(s_.num_rows() * 4);
    w.expert_offsets = layout_.take((s_.num_all_experts() + 1) * int64_t{4});
  }

  ExpertsPlan plan() {
    const char* why_separate = why_not_few();
    if (why_separate == nullptr) {
      few();
    } else {
      separate(why_separate);
    }
    plan_.workspace.bytes = layout_.used();
    return std::move(plan_);
  }

  // Returns the bytes that the separate kernels need, with or without sorted rows. Columns never need more:
  // they have fewer sorted rows and no rows of gate and up.
  size_t separate_bytes(bool sorted) {
    routing_workspace();
    if (sorted) sorted_workspace();
    gate_up_workspace();
    return layout_.used();
  }

  bool wants_sorted_rows() const {
    return wants_sorted(product(s_.gate_up, 2 * s_.intermediate, s_.hidden, s_.gate_up_aligned),
                        grouped_table());
  }

 private:
  const GroupedTable* grouped_table() const { return measured_ == nullptr ? nullptr : &measured_->grouped; }

  GroupedShape product(WeightType type, int64_t n, int64_t k, bool aligned) const {
    const int64_t rows = chosen_rows();
    return {.type = type,
            .num_rows = rows,
            .rows_per_token = s_.holds_all() ? s_.num_slots() : static_cast<int>(rows),
            .num_experts = s_.num_held_experts(),
            .n = n,
            .k = k,
            .num_sms = s_.num_sms,
            .aligned = aligned,
            .aligned_y = aligned};
  }

  // Returns the number of rows for which a product's kernel is chosen. If this rank holds only some of the
  // experts, it is assumed to get its proportional share of the rows. The share of one token need not be a
  // whole number, so the tokens are padded here, as padded_rows() would otherwise pad them.
  int64_t chosen_rows() const {
    if (s_.holds_all()) return s_.num_rows();
    const int64_t tokens = s_.tokens <= kMostGraphTokens ? finely_padded_tokens(s_.tokens) : s_.tokens;
    return (tokens * s_.top_k * s_.num_held + s_.num_experts - 1) / s_.num_experts;
  }

  // Returns why the kernels for few tokens do not run; null if they do.
  const char* why_not_few() const {
    if (flags_.reference) return kReferenceAsked;
    if (!flags_.fusion) return "--disable-fusion";
    if (!flags_.few) return "kernels for few tokens are switched off";
    if (s_.tokens > kMaxFewTokens) return "more than 8 tokens";
    const int splits = few::splits_of(s_);
    if (!few::supports(s_, splits)) return "no kernel for few tokens supports the layer";
    if (!few::is_faster(s_, splits)) return "large activation: separate kernels are faster";
    return nullptr;
  }

  void few() {
    const int splits = few::splits_of(s_);
    plan_.workspace.few_scratch = layout_.take(static_cast<int64_t>(few::scratch_bytes(s_, splits)));
    add({.op = ExpertsOp::kFewRouter,
         .rows = s_.tokens,
         .n = s_.num_experts,
         .k = s_.hidden,
         .choice = {.splits = few::kRouterSplits},
         .reason = "few tokens with a small activation"});
    add({.op = ExpertsOp::kFewExperts,
         .rows = s_.num_rows(),
         .n = s_.hidden,
         .k = s_.intermediate,
         .choice = {.splits = splits},
         .reason = "follows the router's kernel directly"});
  }

  void separate(const char* why) {
    routing_workspace();
    const Decided router = decide_router();
    add({.op = ExpertsOp::kRouter,
         .rows = s_.tokens,
         .n = s_.num_experts,
         .k = s_.hidden,
         .choice = router.choice,
         .reason = why,
         .chosen_by = flags_.reference ? nullptr : router.reason});
    const RouteKernel route = flags_.reference ? RouteKernel::kPlain : choose_route(s_);
    add({.op = ExpertsOp::kRoute,
         .rows = s_.num_rows(),
         .route = route,
         .reason = flags_.reference               ? kReferenceAsked
                   : route == RouteKernel::kSmall ? "at most 128 tokens"
                   : route == RouteKernel::kLarge ? "more than 128 tokens"
                                                  : kUnsupported});
    GroupedShape gate_up = product(s_.gate_up, 2 * s_.intermediate, s_.hidden, s_.gate_up_aligned);
    const bool sorted = wants_sorted(gate_up, grouped_table());
    gate_up.gathered = !sorted;
    const Decided chosen = decide(gate_up);
    if (sorted && flags_.fusion && chosen.choice.kernel == ProductKernel::kColumns && s_.down == s_.gate_up &&
        columns_support_activation(gate_up)) {
      columns(chosen);
    } else {
      grouped(chosen, sorted);
    }
  }

  void columns(const Decided& gate_up) {
    ExpertsWorkspace& w = plan_.workspace;
    w.sorted.x = layout_.rows_16_bit(s_.tokens * s_.top_k, s_.hidden);
    w.activated.x = layout_.rows_16_bit(s_.num_rows(), s_.intermediate);
    add({.op = ExpertsOp::kSpread,
         .rows = s_.tokens * s_.top_k,
         .n = s_.hidden,
         .reason = s_.num_shared > 0 ? "gate_up reads routed rows in order, shared experts the tokens"
                                     : "gate_up reads rows in order of expert"});
    add({.op = ExpertsOp::kGateUpActivated,
         .rows = s_.num_rows(),
         .n = s_.intermediate,
         .k = s_.hidden,
         .choice = gate_up.choice,
         .reason = gate_up.reason});
    down(false);
  }

  void grouped(const Decided& gate_up, bool sorted) {
    const bool codes = has_scales(s_.down);
    if (sorted) {
      sorted_workspace();
      add({.op = ExpertsOp::kPermute,
           .rows = s_.num_rows(),
           .n = s_.hidden,
           .reason = "gate_up reads rows in order of expert"});
    }
    gate_up_workspace();
    add({.op = ExpertsOp::kGateUp,
         .rows = s_.num_rows(),
         .n = 2 * s_.intermediate,
         .k = s_.hidden,
         .choice = gate_up.choice,
         .gathered = !sorted,
         .reason = gate_up.reason});
    add({.op = ExpertsOp::kActivate,
         .rows = s_.num_rows(),
         .n = s_.intermediate,
         .reason = !codes          ? "down reads 16 bits"
                   : flags_.fusion ? "writes the codes that down reads"
                                   : "--disable-fusion: writes 16 bits"});
    if (codes && !flags_.fusion) {
      add({.op = ExpertsOp::kQuantize,
           .rows = s_.num_rows(),
           .n = s_.intermediate,
           .reason = "--disable-fusion: codes are made separately"});
    }
    down(true);
  }

  void down(bool offsets_settled) {
    const Decided chosen = decide(product(s_.down, s_.hidden, s_.intermediate, s_.down_aligned));
    add({.op = ExpertsOp::kDown,
         .rows = s_.num_rows(),
         .n = s_.hidden,
         .k = s_.intermediate,
         .choice = chosen.choice,
         .offsets_settled = offsets_settled,
         .reason = chosen.reason});
  }

  template <typename Shape, typename Table>
  Decided decide(const Shape& shape, const Table* measured) const {
    if (flags_.reference) return {{.kernel = ProductKernel::kReference}, kReferenceAsked};
    if (measured != nullptr) {
      if (const auto choice = measured->find(shape)) return {*choice, kMeasured};
    }
    const Choice choice = heuristic(shape);
    return {choice, choice.kernel == ProductKernel::kReference ? kUnsupported : kHeuristic};
  }
  Decided decide(const GroupedShape& shape) const { return decide(shape, grouped_table()); }
  Decided decide_router() const {
    return decide(LinearShape{.type = s_.gate,
                              .m = s_.tokens,
                              .n = s_.num_experts,
                              .k = s_.hidden,
                              .num_sms = s_.num_sms,
                              .aligned = s_.gate_aligned,
                              .f32_y = true,
                              .aligned_y = false},
                  measured_ == nullptr ? nullptr : &measured_->linear);
  }

  void routing_workspace() {
    plan_.workspace.router_logits = layout_.take(s_.tokens * s_.num_experts * int64_t{sizeof(float)});
    plan_.workspace.route_scratch =
        layout_.take(static_cast<int64_t>(route_scratch_bytes(s_.tokens, s_.num_all_experts())));
  }
  void sorted_workspace() {
    ExpertsWorkspace::Rows& sorted = plan_.workspace.sorted;
    if (has_scales(s_.gate_up)) {
      layout_.codes(sorted, s_.gate_up, s_.num_rows(), s_.hidden);
    } else {
      sorted.x = layout_.rows_16_bit(s_.num_rows(), s_.hidden);
    }
  }
  void gate_up_workspace() {
    ExpertsWorkspace& w = plan_.workspace;
    w.gate_up = layout_.rows_16_bit(s_.num_rows(), 2 * s_.intermediate);
    const bool codes = has_scales(s_.down);
    if (!codes || !flags_.fusion) w.activated.x = layout_.rows_16_bit(s_.num_rows(), s_.intermediate);
    if (codes) layout_.codes(w.activated, s_.down, s_.num_rows(), s_.intermediate);
  }

  void add(const ExpertsKernel& kernel) { plan_.kernels.push_back(kernel); }

  const ExpertsShape s_;
  const ProductChoices* measured_;
  const ExpertsFlags flags_;
  Layout layout_;
  ExpertsPlan plan_;
};

std::string size_text(const ExpertsKernel& kernel) {
  if (kernel.n == 0) return fmt::format("{} rows", kernel.rows);
  if (kernel.k == 0) return fmt::format("{} x {}", kernel.rows, kernel.n);
  return fmt::format("{} x {} x {}", kernel.rows, kernel.n, kernel.k);
}

}  // namespace

std::string kernel_text(const ExpertsKernel& kernel) {
  switch (kernel.op) {
    case ExpertsOp::kFewRouter:
    case ExpertsOp::kFewExperts:
      return fmt::format("few splits {}", kernel.choice.splits);
    case ExpertsOp::kRouter:
    case ExpertsOp::kDown:
      return to_string(kernel.choice);
    case ExpertsOp::kGateUp:
      return to_string(kernel.choice) + (kernel.gathered ? " gathered" : "");
    case ExpertsOp::kGateUpActivated:
      return to_string(kernel.choice) + " activated";
    case ExpertsOp::kRoute:
      return to_string(kernel.route);
    case ExpertsOp::kSpread:
      return "spread";
    case ExpertsOp::kPermute:
    case ExpertsOp::kActivate:
    case ExpertsOp::kQuantize:
      break;
  }
  return "";
}

const char* to_string(ExpertsOp op) {
  switch (op) {
    case ExpertsOp::kFewRouter:
    case ExpertsOp::kRouter:
      return "router";
    case ExpertsOp::kFewExperts:
      return "experts_few";
    case ExpertsOp::kRoute:
      return "route";
    case ExpertsOp::kSpread:
    case ExpertsOp::kPermute:
      return "permute";
    case ExpertsOp::kGateUp:
    case ExpertsOp::kGateUpActivated:
      return "experts_gate_up";
    case ExpertsOp::kActivate:
      return "experts_silu_mul";
    case ExpertsOp::kQuantize:
      return "quantize";
    case ExpertsOp::kDown:
      return "experts_down";
  }
  return "unknown";
}

ExpertsPlan plan_experts(const ExpertsShape& shape, const ProductChoices* measured,
                         const ExpertsFlags& flags) {
  return Planner(shape, measured, flags).plan();
}

size_t experts_workspace_bytes(const ExpertsShape& shape, const ProductChoices* measured,
                               const ExpertsFlags& flags) {
  size_t most = 0;
  ExpertsShape few = shape;
  for (few.tokens = 1; few.tokens <= std::min(shape.tokens, kMaxFewTokens); ++few.tokens)
    most = std::max(most, plan_experts(few, measured, flags).workspace.bytes);
  // More tokens need larger buffers. Measured choices may sort the rows of fewer tokens and gather those of
  // the largest number; without measured choices, rows are sorted from some number of tokens on.
  Planner largest(shape, measured, flags);
  const bool sorted = measured != nullptr || largest.wants_sorted_rows();
  return std::max(most, largest.separate_bytes(sorted));
}

std::string reason_text(const ExpertsKernel& kernel) {
  if (kernel.chosen_by == nullptr) return kernel.reason;
  return fmt::format("{}; {}", kernel.reason, kernel.chosen_by);
}

std::string to_string(const ExpertsPlan& plan) {
  std::string text;
  for (const ExpertsKernel& kernel : plan.kernels) {
    text += fmt::format("{:<17} {:<35} {:<22} {}\n", to_string(kernel.op), kernel_text(kernel),
                        size_text(kernel), reason_text(kernel));
  }
  return text;
}

}  // namespace hadal::cuda

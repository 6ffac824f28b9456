// Describes the shape that decides how a layer's experts run: sizes and types of one MoE layer for a number
// of tokens, never values. It is plain data. This header is for the host alone, includes no CUDA header and
// is part of every build.
#pragma once

#include <cstdint>

#include "kernels/params/linear.h"
#include "kernels/params/moe.h"

namespace hadal::cuda {

struct ExpertsShape {
  int64_t tokens = 0;
  int num_experts = 0;  // routed
  int num_shared = 0;   // experts after the routed ones; every token uses them
  int top_k = 0;        // routed experts of a token
  int num_held = 0;     // routed experts that this rank holds, 0: all; with fewer, num_shared is 0
  int num_groups = 1;
  int topk_groups = 1;
  GateKind gate_kind = GateKind::kSoftmaxGreedy;
  int64_t hidden = 0;
  int64_t intermediate = 0;                // rows of gate in one expert, as the device holds it
  WeightType gate = WeightType::kBF16;     // the router's matrix: [num_experts, hidden]
  WeightType gate_up = WeightType::kBF16;  // each expert's [2 · intermediate, hidden]
  WeightType down = WeightType::kBF16;     // each expert's [hidden, intermediate]
  int num_sms = 132;                       // multiprocessors of the device
  // Each flag describes one of the three matrices. If it is true, the weights and the rows that they are
  // multiplied with begin at multiples of 16 bytes, lie in rows of a multiple of 16 bytes, and hold all of k
  // (8-bit types: padded to a multiple of 128). Scales of channels then begin at multiples of 8 bytes.
  bool gate_aligned = true;
  bool gate_up_aligned = true;
  bool down_aligned = true;

  int num_slots() const { return top_k + num_shared; }              // rows of each token
  int num_all_experts() const { return num_experts + num_shared; }  // routed and shared
  int64_t num_rows() const { return tokens * num_slots(); }         // rows of all experts
  bool holds_all() const { return num_held == 0 || num_held == num_experts; }
  int num_held_experts() const { return holds_all() ? num_all_experts() : num_held; }  // with the shared ones

  bool operator==(const ExpertsShape&) const = default;
};

}  // namespace hadal::cuda

// LoopbackCall is what a rank publishes when it enters a call: the kind of call and the addresses of its
// memory. The functions here move data between the calls of all ranks, and do not depend on how the ranks'
// threads wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace hadal {

enum class CallKind : uint8_t { kAllReduce, kReduceScatter, kAllGather, kAllToAll, kBarrier };
const char* to_string(CallKind kind);

// Each kind uses the fields that hold its arguments (communicator.h); the others are empty.
struct LoopbackCall {
  CallKind kind = CallKind::kBarrier;
  std::span<float> data;                             // all_reduce, reduce_scatter
  std::span<float> sum;                              // reduce_scatter's `mine`
  std::span<const std::byte> mine;                   // all_gather
  std::span<std::byte> all;                          // all_gather
  std::span<const std::span<const std::byte>> send;  // all_to_all, one for each rank
  std::span<const std::span<std::byte>> receive;     // all_to_all, one for each rank
};

using LoopbackCalls = std::vector<const LoopbackCall*>;  // [num_ranks]

// Misfit says how the calls of two ranks contradict each other. It holds values only, so that finding one
// allocates nothing.
struct Misfit {
  const char* pattern = nullptr;  // fmt's, with these fields as arguments in this order
  int rank_a = 0;
  int rank_b = 0;
  size_t size_a = 0;
  size_t size_b = 0;
  CallKind kind_a = CallKind::kBarrier;
  CallKind kind_b = CallKind::kBarrier;
};

// Returns the first contradiction; its pattern is null when all ranks make the same call with sizes that fit.
Misfit find_misfit(const LoopbackCalls& calls) noexcept;
std::string describe(const Misfit& misfit);

// Each of these does the part of `rank` in the calls of all ranks. The parts of a call may run at the same
// time, because no part writes memory that another part reads or writes.
void do_all_reduce(const LoopbackCalls& calls, int rank) noexcept;
void do_reduce_scatter(const LoopbackCalls& calls, int rank) noexcept;
void do_all_gather(const LoopbackCalls& calls, int rank) noexcept;
void do_all_to_all(const LoopbackCalls& calls, int rank) noexcept;

}  // namespace hadal

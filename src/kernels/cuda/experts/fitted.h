// Holds every measured number by which experts/choice.cpp and experts/few/choice.cpp decide, in one table.
// The card is one NVIDIA H200 (132 multiprocessors, 4.3 TB/s). Each block names its unit and the command that
// measures it again; tests/tune/kernel_choices.txt and tests/tune/expert_plans.txt then show which choices
// have changed. This header is for the host alone and includes no CUDA header.
//
// A separate pure function decides how the weight-streaming kernel cuts experts: grouped_schedule_of in
// gemm/skinny/schedule.h, which `cuda_experts_bench` measures.
#pragma once

#include <cstdint>

namespace hadal::cuda::fitted {

// Rows are sorted for the tiled or the columns kernel above this average number of rows per expert.
// cuda_experts_bench measures this (docs/kernels/kernel-choices.md, "The order of deciding").
inline constexpr int64_t kSortedRowsAnExpert = 32;
inline constexpr int64_t kSortedRowsAnExpert8Bit = 15;

// Above this number of rows of all experts, the tiled kernel is chosen for 8-bit rows that are sorted anyway.
// With short k, a block of the weight-streaming kernel ends before it has enough loads in flight.
// cuda_experts_bench measures this.
inline constexpr int64_t kSortedRows8Bit = 128;
inline constexpr int64_t kSortedRows8BitShortK = 64;
// From this many elements on, k is long for 8-bit weights; then tiles of 128 × 256 are faster than square
// ones, too.
inline constexpr int64_t kLongK = 1024;

// The tile of the tiled kernel changes at these average numbers of rows per expert, which
// cuda_experts_bench --tiled measures for 8 bits and cuda_experts_large_bench for 16 bits.
inline constexpr int64_t kTallTileFrom16Bit = 512;  // from here tiles of 256 × 128
inline constexpr int64_t kFlatTileUpTo = 24;        // 8 bits: up to here tiles of 64 × 256
inline constexpr int64_t kWideTileUpTo = 96;        // 8 bits and long k: up to here tiles of 128 × 256
inline constexpr int64_t kTallTileFrom8Bit = 768;   // from here tiles of 256 × 128
// With 8 bits, an expert with more rows than this, up to 256, fills one tile of 256 × 128, where it would
// need two tiles of 128 rows.
inline constexpr int64_t kOneTallTileAbove = 128;
inline constexpr int64_t kOneTallTileUpTo = 200;

// These belong to the kernels for few tokens. cuda_experts_table_bench measures them
// (docs/kernels/cuda-few-experts.md).
inline constexpr int64_t kSplitSlots = 8;  // slots of k per split of gate_up, up to kMaxSplits splits
// A block adds up at most this many floats of gate for one expert, counted as if all tokens chose it.
inline constexpr int64_t kMostActivation = 16384;

}  // namespace hadal::cuda::fitted

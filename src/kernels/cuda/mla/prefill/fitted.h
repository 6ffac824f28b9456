// Holds the measured times by which prefill_absorbed (model/cuda/prefill_plan.h) chooses between the two
// paths of prompt segments after a cached prefix. They affect the speed of a segment and also its bits,
// because the two paths round differently.
//
// The card is one NVIDIA H200 (132 multiprocessors). The times are in microseconds, for a segment, from q to
// the heads' outputs. They are fitted to the table of `cuda_mla_extend_bench`, which marks the path that they
// choose (docs/kernels/cuda-mla-prefill.md). This header is for the host alone and includes no CUDA header.
#pragma once

namespace hadal::cuda::fitted {

// The un-absorbed path gathers and expands the keys and computes tiles of queries over all of them. As many
// tiles as there are multiprocessors run side by side.
struct UnabsorbedTimes {
  double launches = 10.0;
  double expand_fp8 = 0.33e-3;     // expanding a key for a head, with FP8 weights
  double expand_16_bit = 0.43e-3;  // the same with other weights
  double key_of_wave = 14e-3;      // attending to a key, for each wave of tiles
  double tile_queries = 128.0;
  double tiles_at_once = 132.0;
};
inline constexpr UnabsorbedTimes kUnabsorbed;

// The absorbed path expands no keys. Its time is the sum of a time for launches, a time for each tile of
// rows, and the products of rows and keys at the tensor cores' rate.
struct AbsorbedTimes {
  double launches = 22.0;
  double tile = 0.35;           // a tile of rows, apart from its keys
  double tile_rows = 128.0;     // a row is one head of one query
  double flop_of_key = 2176.0;  // flop for one row and one key: 2 · (576 + 512)
  double flop_per_us = 560e6;
  double flop_per_us_widened = 230e6;  // FP8 records that are widened to float16
};
inline constexpr AbsorbedTimes kAbsorbed;

}  // namespace hadal::cuda::fitted

// Declares the arguments of the decode attention kernels, and their launches. mla/plan/geometry.h describes
// how the work is divided. This header includes no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/mla/plan/geometry.h"

namespace hadal::cuda {

// device_capacity returns how many clusters of each size this process's device runs at once on num_sms of its
// multiprocessors. decode_geometry returns the geometry of the schedule that decode_schedule chooses for it.
ClusterCapacity device_capacity(int num_sms);
DecodeGeometry decode_geometry(const MlaPlanShape& shape);

// These are mla_decode_plan and mla_decode with a schedule chosen by hand (for measurements and tests of one
// kernel).
void mla_decode_plan(const DecodeGeometry& geometry, const int32_t* kv_len, void* plan, const Launch& launch);
void mla_decode(const DeviceDecodeParams& params, const DecodeGeometry& geometry, const Launch& launch);

// Holds the arguments of the decode kernels and of the merge.
struct DecodeArgs {
  const void* q;  // bf16 or float16 (KvFormat::kF16)
  void* out;
  float* lse;
  const std::byte* pool;
  int64_t record_stride;  // bytes
  int64_t page_stride;    // bytes
  const int32_t* page_table;
  int64_t page_table_stride;
  const int32_t* seq_idx;
  const int32_t* kv_len;
  DecodePlanView plan;
  float* partial_out;  // [max_slots, slot rows, 512]: normalised rows, or the units of
                       // mla/decode/swapped/join.cuh
  float* partial_lse;  // [max_slots, rows], base 2
  int num_seqs;
  int num_heads;
  int q_len;
  int rows;
  int num_tiles;
  float scale_log2;  // softmax_scale · log2 e
  bool causal;
  bool settled;
  bool merge_inside;            // the kernel joins split sequences itself; else mla_merge follows
  bool out_f16;                 // `out` is float16, like the cache
  const uint64_t* newest_seen;  // [num_seqs, q_len] (DeviceDecodeParams); null: no masks
  int index_topk;  // rows of more keys than this are treated as empty (planned_keys); 0: no selection
};

// These launch the kernels, each with any plan of its DecodeKernel. kSwapped and kTiles support all formats,
// kTilesFp8 only the two FP8 formats. kMasks: args.newest_seen is set. Their instantiations are generated
// (src/kernels/cuda/CMakeLists.txt).
template <KvFormat kFormat, bool kMasks>
void mla_decode_swapped(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch);
template <KvFormat kFormat, bool kMasks>
void mla_decode_tiles(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch);
template <KvFormat kFormat, bool kMasks>
void mla_decode_fp8_products(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch);
// Returns how many clusters of `cluster` blocks of the swapped kernel the device runs at once. The device is
// queried once per process and cluster size. num_parts · num_tiles never exceeds the result.
int mla_swapped_capacity(int cluster);
// Joins split sequences; it is launched only if the decode kernel has not joined them.
void mla_merge(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch);

namespace reference {
// Runs the plain kernel, which supports any shape and selection, requires no plan and computes in float32.
void mla_decode(const DeviceDecodeParams& params, const Launch& launch);
// Does the same in double precision, for tests. It writes `out` [num_seqs, q_len, heads, 512] and `lse`
// [num_seqs, q_len, heads] instead of those of params. An e4m3 value is code · scale, not rounded.
void mla_decode_double(const DeviceDecodeParams& params, double* out, double* lse, const Launch& launch);
}  // namespace reference

}  // namespace hadal::cuda

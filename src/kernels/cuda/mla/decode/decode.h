// Declares the arguments of the decode attention kernels, and their launches. mla/plan/geometry.h says how
// the work is cut. This header includes no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/mla/plan/geometry.h"

namespace hadal::cuda {

// These return the numbers of clusters that this process's device holds if num_sms of its multiprocessors are
// used, and the geometry of the schedule that decode_schedule chooses for it.
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
  float* partial_out;  // [max_slots, slot rows, 512]: rows normalised, or as mla/decode/swapped/join.cuh has
                       // them
  float* partial_lse;  // [max_slots, rows], base 2
  int num_seqs;
  int num_heads;
  int q_len;
  int rows;
  int num_tiles;
  float scale_log2;  // softmax_scale · log2 e
  bool causal;
  bool settled;
  bool merge_inside;  // the kernel joins split sequences itself; else mla_merge follows
  bool out_f16;       // `out` is float16: the cache is
  int index_topk;     // rows of more keys have none here (planned_keys); 0: no selection
};

// These launch the kernels, each with any plan of its DecodeKernel: kSwapped and kTiles support all formats,
// kTilesFp8 the two of FP8. Their instantiations are generated (src/kernels/cuda/CMakeLists.txt).
template <KvFormat kFormat>
void mla_decode_swapped(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch);
template <KvFormat kFormat>
void mla_decode_tiles(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch);
template <KvFormat kFormat>
void mla_decode_fp8_products(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch);
// Returns the number of clusters of `cluster` blocks of the swapped kernel that the device holds at once;
// each process asks the device once. num_parts · num_tiles never exceeds it.
int mla_swapped_capacity(int cluster);
// Joins split sequences if the previous kernel has not.
void mla_merge(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch);

namespace reference {
// Runs the plain kernel, which supports any shape and selection, needs no plan and computes in float32.
void mla_decode(const DeviceDecodeParams& params, const Launch& launch);
// Does the same in double precision, for tests. It writes `out` [num_seqs, q_len, heads, 512] and `lse`
// [num_seqs, q_len, heads] instead of those of params. An e4m3 value is code · scale, not rounded.
void mla_decode_double(const DeviceDecodeParams& params, double* out, double* lse, const Launch& launch);
}  // namespace reference

}  // namespace hadal::cuda

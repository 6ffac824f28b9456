// Holds a case of the swapped decode kernel, with a plan made by hand, and launches it.
#pragma once

#include <string>
#include <vector>

#include "kernels/cuda/mla/decode/decode.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/mla/decode_hand_plan.h"

namespace hadal::testing {

struct SwappedCase {
  KvLayout layout = {KvFormat::kBF16};
  int heads = 16;
  int q_len = 1;
  int tile_rows = 16;
  int cluster = 1;
  int num_parts = 1;
  std::vector<int> lengths;
  bool causal = true;
  int heads_kv = 1;  // > 1: records of this many interleaved caches, of which the last is read
  bool settled = false;
  bool merge_inside = true;
  bool mixed_scales = false;  // e4m3: four equal scales in some runs of sixteen records

  int rows() const { return heads * q_len; }
  int64_t num_seqs() const { return static_cast<int64_t>(lengths.size()); }
};

inline std::string describe(const SwappedCase& c) {
  const auto format = [&]() -> std::string {
    switch (c.layout.format) {
      case KvFormat::kF16:
        return "f16";
      case KvFormat::kFp8E5M2:
        return "e5m2";
      case KvFormat::kFp8E4M3:
        return c.layout.scales == KvScales::kPer128 ? "e4m3 per 128" : "e4m3 per token";
      default:
        return "bf16";
    }
  };
  std::string text = format() + " heads " + std::to_string(c.heads) + " q_len " + std::to_string(c.q_len) +
                     " tile " + std::to_string(c.tile_rows) + " cluster " + std::to_string(c.cluster) +
                     " parts " + std::to_string(c.num_parts) + " causal " + std::to_string(c.causal) +
                     " lengths";
  for (int length : c.lengths) text += " " + std::to_string(length);
  return text;
}

inline cuda::DecodeGeometry geometry_of(const SwappedCase& c) {
  cuda::DecodeGeometry geometry;
  geometry.rows = c.rows();
  geometry.tile_rows = c.tile_rows;
  geometry.num_tiles = (c.rows() + c.tile_rows - 1) / c.tile_rows;
  geometry.cluster = c.cluster;
  geometry.num_parts = c.num_parts;
  return geometry;
}

// Holds the plan, poisoned outputs of T (16 bits), partial results, and the arguments except q, pool,
// strides, page_table and seq_idx, which belong to the cache.
template <typename T>
struct SwappedLaunch {
  SwappedLaunch(const SwappedCase& c, float scale)
      : plan(c.lengths, c.num_parts, (c.rows() + c.tile_rows - 1) / c.tile_rows),
        kv_len(std::vector<int32_t>(c.lengths.begin(), c.lengths.end())),
        out(c.num_seqs() * c.rows() * kKvLatentDim),
        lse(c.num_seqs() * c.rows()),
        partial_out(int64_t{plan.num_slots} * cuda::decode_slot_rows(geometry_of(c)) * kKvLatentDim),
        partial_lse(int64_t{plan.num_slots} * c.rows()),
        format(c.layout.format),
        geometry(geometry_of(c)) {
    args.out = out.data();
    args.lse = lse.data();
    args.kv_len = kv_len.data();
    args.plan = plan.view();
    args.partial_out = partial_out.data();
    args.partial_lse = partial_lse.data();
    args.num_seqs = static_cast<int>(c.num_seqs());
    args.num_heads = c.heads;
    args.q_len = c.q_len;
    args.rows = c.rows();
    args.num_tiles = geometry.num_tiles;
    args.scale_log2 = scale * 1.4426950408889634F;
    args.causal = c.causal;
    args.settled = c.settled;
    args.merge_inside = c.merge_inside;
    args.out_f16 = c.layout.format == KvFormat::kF16;
  }

  // Launches without waiting, so that calls may follow each other at once. Downloads wait, and the case must
  // not be destroyed before a download.
  void run() const {
    const cuda::Launch launch{.stream = test_stream().handle()};
    switch (format) {
      case KvFormat::kF16:
        cuda::mla_decode_swapped<KvFormat::kF16, false>(args, geometry, launch);
        break;
      case KvFormat::kFp8E4M3:
        cuda::mla_decode_swapped<KvFormat::kFp8E4M3, false>(args, geometry, launch);
        break;
      case KvFormat::kFp8E5M2:
        cuda::mla_decode_swapped<KvFormat::kFp8E5M2, false>(args, geometry, launch);
        break;
      default:
        cuda::mla_decode_swapped<KvFormat::kBF16, false>(args, geometry, launch);
    }
    if (!args.merge_inside) cuda::mla_merge(args, geometry, launch);
  }

  DecodeHandPlan plan;
  DeviceArray<int32_t> kv_len;
  DeviceArray<T> out;      // [num_seqs, rows, 512]
  DeviceArray<float> lse;  // [num_seqs, rows]
  DeviceArray<float> partial_out, partial_lse;
  KvFormat format;
  cuda::DecodeGeometry geometry;
  cuda::DecodeArgs args{};
};

}  // namespace hadal::testing

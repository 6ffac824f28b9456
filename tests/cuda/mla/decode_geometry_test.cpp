// Tests how decode attention is cut for a device. These are pure functions, so no device is needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/mla/plan/geometry.h"

namespace hadal::testing {
namespace {

using cuda::ClusterCapacity;
using cuda::DecodeGeometry;
using cuda::DecodeKernel;
using cuda::DecodeSchedule;
using cuda::MlaPlanShape;

const std::vector<KvLayout> kLayouts = {
    {KvFormat::kBF16, KvScales::kPerToken},    {KvFormat::kF16, KvScales::kPerToken},
    {KvFormat::kFp8E4M3, KvScales::kPerToken}, {KvFormat::kFp8E4M3, KvScales::kPer128},
    {KvFormat::kFp8E5M2, KvScales::kPerToken},
};
// The devices are one where any multiprocessors make a cluster, one whose larger clusters leave some
// multiprocessors unused, one without clusters, and a small one.
const std::vector<ClusterCapacity> kCapacities = {cuda::full_capacity(132),
                                                  {{132, 66, 30, 15, 7}},
                                                  {{132, 0, 0, 0, 0}},
                                                  {{78, 39, 19, 8, 4}},
                                                  {{1, 0, 0, 0, 0}}};

std::string described(const MlaPlanShape& shape, const DecodeSchedule& schedule,
                      const ClusterCapacity& capacity) {
  return std::to_string(shape.num_seqs) + " sequences, " + std::to_string(shape.num_heads) + " heads, " +
         std::to_string(shape.q_len) + " queries, split pages " + std::to_string(shape.split_pages) +
         ", format " + std::to_string(static_cast<int>(shape.layout.format)) + ": kernel " +
         std::to_string(static_cast<int>(schedule.kernel)) + ", tile rows " +
         std::to_string(schedule.tile_rows) + ", cluster " + std::to_string(schedule.cluster) + " of " +
         std::to_string(capacity.clusters[0]) + " multiprocessors";
}

template <typename Body>
void for_each_shape(Body body) {
  for (const KvLayout& layout : kLayouts) {
    for (int heads : {1, 3, 7, 8, 16, 20, 32, 33, 48, 64, 100, 128}) {
      for (int q_len = 1; q_len <= 8; ++q_len) {
        for (int num_seqs :
             {0, 1, 2, 3, 4, 7, 8, 9, 16, 17, 32, 33, 64, 66, 67, 128, 132, 133, 500, 4096, 16384}) {
          for (int split_pages : {0, 5}) {
            body(MlaPlanShape{.num_seqs = num_seqs,
                              .q_len = q_len,
                              .num_heads = heads,
                              .split_pages = split_pages,
                              .layout = layout});
          }
        }
      }
    }
  }
}

TEST(MlaDecodeGeometry, AllBlocksAreResidentAndTilesCoverTheRows) {
  for (const ClusterCapacity& capacity : kCapacities) {
    for_each_shape([&](MlaPlanShape shape) {
      shape.num_sms = capacity.clusters[0];
      const DecodeSchedule schedule = cuda::decode_schedule(shape, capacity);
      const DecodeGeometry g = cuda::decode_geometry(shape, schedule, capacity);
      SCOPED_TRACE(described(shape, schedule, capacity));
      ASSERT_EQ(g.rows, shape.num_heads * shape.q_len);
      ASSERT_GE(g.num_tiles * g.tile_rows, g.rows);
      ASSERT_LT((g.num_tiles - 1) * g.tile_rows, g.rows);
      ASSERT_GE(g.num_parts, 1);
      int i = 0;
      while ((1 << i) < g.cluster) ++i;
      // A device with fewer multiprocessors than tiles gets one part that holds all tiles.
      if (g.num_parts > 1 || g.cluster > 1) {
        ASSERT_LE(g.num_parts * g.num_tiles, capacity.clusters[i]);
        ASSERT_LE(g.num_parts * g.num_tiles * g.cluster, shape.num_sms);
      }
      ASSERT_TRUE(cuda::decode_kernel_supports(g.kernel, shape.layout));
      ASSERT_GT(g.page_ns, 0);
      ASSERT_GE(g.page_ns, g.lone_page_ns);
    });
  }
}

// Scratch is bounded by the device or, if split lengths are fixed, by the number of sequences. Lengths do not
// bound it, because a geometry has none. There are two slots per part: for the end of one sequence and the
// beginning of another.
TEST(MlaDecodeGeometry, SlotsAreBounded) {
  const ClusterCapacity capacity = cuda::full_capacity(132);
  for_each_shape([&](const MlaPlanShape& shape) {
    const DecodeGeometry g = cuda::decode_geometry(shape, cuda::decode_schedule(shape, capacity), capacity);
    if (shape.split_pages > 0) {
      ASSERT_EQ(g.max_slots, shape.num_seqs * cuda::kDecodeMaxFixedSplits);
    } else {
      ASSERT_EQ(g.max_slots, 2 * g.num_parts);
      ASSERT_LE(g.max_slots, 264);
    }
    // A slot has float32 outputs of the sequence's rows. Where the swapped kernel merges, the slot has whole
    // tiles of rows of 512 values in 4 bytes, a maximum and a sum, and wastes less than one row. There is
    // also a sum for each row.
    const int64_t slot_bytes = int64_t{cuda::decode_slot_rows(g)} * 2048;
    if (g.kernel == DecodeKernel::kSwapped) {
      const int64_t tile_rows = int64_t{g.num_tiles} * g.tile_rows;
      ASSERT_GE(slot_bytes, tile_rows * (4 * 512 + 8));
      ASSERT_LT(slot_bytes, tile_rows * (4 * 512 + 8) + 2048);
    } else {
      ASSERT_EQ(slot_bytes, int64_t{g.rows} * 2048);
    }
    const int64_t all_slots = g.max_slots * (slot_bytes + 4 * g.rows);
    ASSERT_GE(static_cast<int64_t>(cuda::decode_scratch_bytes(g)), all_slots);
    ASSERT_LT(static_cast<int64_t>(cuda::decode_scratch_bytes(g)), all_slots + 4096);
  });
}

TEST(MlaDecodeGeometry, FixedSplitsDoNotDependOnTheBatch) {
  for (const ClusterCapacity& capacity : kCapacities) {
    for_each_shape([&](MlaPlanShape shape) {
      if (shape.split_pages == 0) return;
      shape.num_sms = capacity.clusters[0];
      const DecodeSchedule schedule = cuda::decode_schedule(shape, capacity);
      shape.num_seqs = 1;
      const DecodeSchedule alone = cuda::decode_schedule(shape, capacity);
      ASSERT_EQ(schedule.kernel, alone.kernel);
      ASSERT_EQ(schedule.tile_rows, alone.tile_rows);
      ASSERT_EQ(schedule.cluster, 1);
      ASSERT_EQ(alone.cluster, 1);
    });
  }
}

// Calls that are bound by memory are the exception: many sequences of a 16-bit cache, one call after another.
TEST(MlaDecodeGeometry, FewRowsArePaddedLittle) {
  const ClusterCapacity capacity = cuda::full_capacity(132);
  for_each_shape([&](MlaPlanShape shape) {
    shape.in_step = shape.num_seqs > 16;
    const DecodeGeometry g = cuda::decode_geometry(shape, cuda::decode_schedule(shape, capacity), capacity);
    if (g.rows <= 16) {
      ASSERT_EQ(g.kernel, DecodeKernel::kSwapped);
      ASSERT_EQ(g.num_tiles, 1);
      ASSERT_EQ(g.tile_rows, 16);
    }
  });
}

// A short sequence has a cluster, as large as the device holds; many sequences have single blocks or small
// clusters, and many rows of many sequences have tall tiles.
TEST(MlaDecodeGeometry, SmallBatchesWorkInClusters) {
  const ClusterCapacity full = cuda::full_capacity(132);
  const ClusterCapacity cut{{132, 66, 30, 15, 7}};
  const auto of = [](int num_seqs, int heads, int keys, const ClusterCapacity& capacity) {
    return cuda::decode_schedule({.num_seqs = num_seqs, .num_heads = heads, .most_keys = keys}, capacity);
  };
  EXPECT_EQ(of(1, 16, 1024, full).cluster, 16);
  EXPECT_EQ(of(1, 16, 1024, cut).cluster, 16);
  EXPECT_LE(of(1, 16, 131072, cut).cluster, 2);
  EXPECT_EQ(of(4096, 16, 1024, cut).cluster, 1);
  EXPECT_EQ(of(1, 128, 1024, cut).kernel, DecodeKernel::kSwapped);
  EXPECT_GE(of(1, 128, 1024, cut).cluster, 8);
  for (int keys : {0, 1024, 65536}) {
    EXPECT_EQ(of(128, 128, keys, cut).kernel, DecodeKernel::kTiles);
    EXPECT_EQ(of(128, 16, keys, cut).kernel, DecodeKernel::kTiles);
    EXPECT_EQ(of(16, 16, keys, cut).kernel, DecodeKernel::kSwapped);
  }
}

// Between other kernels a cluster waits until there is room for all of it, so few rows use single blocks,
// whatever the batch.
TEST(MlaDecodeGeometry, StepsOfAnEngineWorkInSingleBlocks) {
  const ClusterCapacity cut{{132, 66, 30, 15, 7}};
  const auto of = [&](int num_seqs, int heads, bool in_step) {
    return cuda::decode_schedule(
        {.num_seqs = num_seqs, .num_heads = heads, .most_keys = 4096, .in_step = in_step}, cut);
  };
  EXPECT_LE(of(1, 16, false).cluster, 2);
  for (int num_seqs : {1, 2, 4, 8, 16, 32, 64, 128}) {
    EXPECT_EQ(of(num_seqs, 16, true).cluster, 1) << num_seqs;
    EXPECT_EQ(of(num_seqs, 128, true).kernel, DecodeKernel::kTiles) << num_seqs;
  }
}

// Batches padded to a graph's size (powers of two are among the sizes) get the same geometry as without
// padding.
TEST(MlaDecodeGeometry, PaddingChangesNoSchedule) {
  for (const ClusterCapacity& capacity : kCapacities) {
    for (const int size : {4, 8, 12, 16, 24, 32, 48, 64, 96, 128}) {
      for (const int heads : {5, 16, 128}) {
        for (const bool in_step : {false, true}) {
          const auto of = [&](int num_seqs) {
            return cuda::decode_schedule(
                {.num_seqs = num_seqs, .num_heads = heads, .most_keys = 4096, .in_step = in_step}, capacity);
          };
          const auto padded = of(size);
          for (int num_seqs = static_cast<int>(std::bit_ceil(static_cast<unsigned>(size))) / 2 + 1;
               num_seqs < size; ++num_seqs) {
            const auto alone = of(num_seqs);
            ASSERT_EQ(alone.kernel, padded.kernel);
            ASSERT_EQ(alone.tile_rows, padded.tile_rows);
            ASSERT_EQ(alone.cluster, padded.cluster);
          }
        }
      }
    }
  }
}

// Workspace is laid out once, for the largest batch: whatever a step chooses fits into it.
TEST(MlaDecodeGeometry, NoStepTakesMoreThanTheMost) {
  for (const KvLayout& layout : kLayouts) {
    for (const ClusterCapacity& capacity : kCapacities) {
      for (const int heads : {5, 16, 128}) {
        MlaPlanShape shape{
            .num_seqs = 130, .num_heads = heads, .num_sms = capacity.clusters[0], .layout = layout};
        const cuda::MlaDecodeBytes most = cuda::decode_most_bytes(shape, capacity);
        for (const int num_seqs : {1, 2, 7, 31, 64, 130}) {
          for (const int keys : {0, 64, 1024, 8192, 163840}) {
            shape.num_seqs = num_seqs;
            shape.most_keys = keys;
            const DecodeGeometry g =
                cuda::decode_geometry(shape, cuda::decode_schedule(shape, capacity), capacity);
            ASSERT_LE(cuda::decode_plan_bytes(g), most.plan);
            ASSERT_LE(cuda::decode_scratch_bytes(g), most.scratch);
          }
        }
      }
    }
  }
}

// A hint of the longest sequence never makes a schedule impossible.
TEST(MlaDecodeGeometry, AnyHintGivesAGeometry) {
  for (const ClusterCapacity& capacity : kCapacities) {
    for (int64_t keys : {int64_t{1}, int64_t{64}, int64_t{5000}, int64_t{163840}, int64_t{1} << 40}) {
      for (int num_seqs : {0, 1, 7, 100, 5000}) {
        for (int heads : {1, 16, 128}) {
          const MlaPlanShape shape{
              .num_seqs = num_seqs, .num_heads = heads, .num_sms = capacity.clusters[0], .most_keys = keys};
          const DecodeGeometry g =
              cuda::decode_geometry(shape, cuda::decode_schedule(shape, capacity), capacity);
          ASSERT_GE(g.num_parts, 1);
        }
      }
    }
  }
}

TEST(MlaDecodeGeometry, ArraysOfAPlanLieApart) {
  for (int num_seqs : {1, 3, 132, 4097}) {
    const ClusterCapacity capacity = cuda::full_capacity(132);
    const MlaPlanShape shape{.num_seqs = num_seqs, .num_heads = 100};
    const DecodeGeometry g = cuda::decode_geometry(shape, cuda::decode_schedule(shape, capacity), capacity);
    std::vector<std::byte> memory(cuda::decode_plan_bytes(g) + 16);
    std::byte* plan = memory.data() + (16 - reinterpret_cast<uintptr_t>(memory.data()) % 16) % 16;
    const cuda::DecodePlanView view = cuda::decode_plan_view(g, plan);
    const std::pair<const void*, size_t> arrays[] = {
        {view.num_merges, 4},
        {view.parts, g.num_parts * sizeof(cuda::DecodePart)},
        {view.sequences, num_seqs * sizeof(cuda::DecodeSequence)},
        {view.arrivals, static_cast<size_t>(num_seqs) * g.num_tiles * 8},
        {view.merges, num_seqs * sizeof(cuda::DecodeMerge)},
    };
    const std::byte* free = plan;
    for (const auto& [at, bytes] : arrays) {
      ASSERT_GE(static_cast<const std::byte*>(at), free);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(at) % 16, 0U);
      free = static_cast<const std::byte*>(at) + bytes;
    }
    ASSERT_LE(free, plan + cuda::decode_plan_bytes(g));
  }
}

TEST(MlaDecodeGeometry, RefusesWhatNoKernelSupports) {
  const ClusterCapacity capacity = cuda::full_capacity(132);
  const auto refused = [&](MlaPlanShape shape, DecodeSchedule schedule) {
    EXPECT_THROW(cuda::decode_geometry(shape, schedule, capacity), Error);
  };
  const DecodeSchedule swapped{DecodeKernel::kSwapped, 16, 1};
  refused({.num_seqs = -1, .num_heads = 16}, swapped);
  refused({.num_seqs = cuda::kDecodeMaxSeqs + 1, .num_heads = 16}, swapped);
  refused({.num_seqs = 1, .q_len = 0, .num_heads = 16}, swapped);
  refused({.num_seqs = 1, .q_len = 9, .num_heads = 16}, swapped);
  refused({.num_seqs = 1, .num_heads = 0}, swapped);
  refused({.num_seqs = 1, .num_heads = 129}, swapped);
  refused({.num_seqs = 1, .num_heads = 16, .num_sms = 0}, swapped);
  refused({.num_seqs = 1, .num_heads = 16, .split_pages = -1}, swapped);
  const MlaPlanShape good{.num_seqs = 1, .num_heads = 16};
  refused(good, {DecodeKernel::kSwapped, 64, 1});
  refused(good, {DecodeKernel::kTiles, 16, 1});
  refused(good, {DecodeKernel::kSwapped, 16, 3});
  refused(good, {DecodeKernel::kSwapped, 16, 32});
  refused(good, {DecodeKernel::kTiles, 64, 2});
  refused({.num_seqs = 1, .num_heads = 16, .split_pages = 4}, {DecodeKernel::kSwapped, 16, 2});
  EXPECT_NO_THROW(cuda::decode_geometry(good, swapped, capacity));
}

}  // namespace
}  // namespace hadal::testing

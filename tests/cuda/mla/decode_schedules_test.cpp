// Every schedule of MLA decode by hand, whatever the op would choose: each kernel, tile height and cluster
// size of each cache format.
#include "kernels/cuda/mla/decode.h"
#include "tests/cuda/mla/decode_checks.h"

namespace hadal::testing {
namespace {

using cuda::DecodeKernel;
using cuda::DecodeSchedule;

constexpr uint64_t kSeed = kDecodeSeed;
const std::vector<int> kRagged = {1000, 0, 4097, 1, 63, 64, 65, 640, 129};

struct ScheduleCase {
  int layout;
  DecodeSchedule schedule;
};
std::vector<ScheduleCase> all_schedules() {
  std::vector<ScheduleCase> cases;
  for (int layout_idx = 0; layout_idx < static_cast<int>(kLayouts.size()); ++layout_idx) {
    const KvLayout& layout = kLayouts[layout_idx].second;
    for (const DecodeSchedule& schedule : cuda::decode_schedules(layout))
      cases.push_back({layout_idx, schedule});
  }
  return cases;
}
std::string schedule_name(const ::testing::TestParamInfo<ScheduleCase>& info) {
  const auto& [layout_idx, schedule] = info.param;
  const char* kernel = schedule.kernel == DecodeKernel::kSwapped ? "Swapped"
                       : schedule.kernel == DecodeKernel::kTiles ? "Tiles"
                                                                 : "TilesFp8";
  return kLayouts[layout_idx].first + kernel + "Rows" + std::to_string(schedule.tile_rows) + "Cluster" +
         std::to_string(schedule.cluster);
}
class MlaDecodeSchedules : public ::testing::TestWithParam<ScheduleCase> {};

// A batch over all rows of a cache and what it gives in double precision, once for all schedules.
struct Expected {
  Expected(const DecodeCache& cache, int heads, int q_len)
      : batch(cache, all_rows(cache), heads, q_len, kSeed + heads, 0.1F), doubles(batch.run_double()) {}
  DecodeBatch batch;
  DecodeDoubles doubles;
};
const Expected& expected_of(const DecodeCache& cache, int heads, int q_len) {
  static std::map<std::tuple<const DecodeCache*, int, int>, std::unique_ptr<Expected>> known;
  auto& expected = known[{&cache, heads, q_len}];
  if (expected == nullptr) expected = std::make_unique<Expected>(cache, heads, q_len);
  return *expected;
}

TEST_P(MlaDecodeSchedules, SmallAndLargeBatches) {
  const auto& [layout_idx, schedule] = GetParam();
  std::vector<int> many;
  for (int i = 0; i < 40; ++i) many.push_back(i * i * 3 % 700);
  many.push_back(9000);
  for (const std::vector<int>& lengths : {std::vector<int>{64}, {3000}, {5, 0, 1300}, many}) {
    const DecodeCache& cache = cache_of(layout_idx, lengths, {.flat = true});
    for (const auto& [heads, q_len] : {std::pair{16, 1}, std::pair{20, 3}, std::pair{128, 2}}) {
      SCOPED_TRACE(std::to_string(lengths.size()) + " sequences, heads " + std::to_string(heads) +
                   ", queries " + std::to_string(q_len));
      const auto& [batch, expected] = expected_of(cache, heads, q_len);
      const cuda::MlaPlanShape shape = batch.shape();
      const cuda::ClusterCapacity capacity = cuda::device_capacity(shape.num_sms);
      const int tiles = (heads * q_len + schedule.tile_rows - 1) / schedule.tile_rows;
      int i = 0;
      while ((1 << i) < schedule.cluster) ++i;
      if (tiles > capacity.clusters[i]) continue;  // not all tiles of a part at once
      const DecodeResult result = batch.run(DecodeRun{.schedule = schedule});
      expect_close(batch, result, expected, bounds_of(cache.layout, schedule.kernel));
      EXPECT_TRUE(same_bits(result, batch.run(DecodeRun{.graphed = true, .schedule = schedule})));
      if (schedule.cluster == 1)
        expect_close(batch, batch.run(DecodeRun{.split_pages = 3, .schedule = schedule}), expected,
                     bounds_of(cache.layout, schedule.kernel));
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MlaDecodeSchedules, ::testing::ValuesIn(all_schedules()), schedule_name);

// Every instantiation on the smallest shapes that split and merge, for compute-sanitizer.
TEST_P(MlaDecodeSchedules, Sanitize) {
  const auto& [layout_idx, schedule] = GetParam();
  const DecodeCache& cache = cache_of(layout_idx, {65, 0, 300}, {.flat = true});
  const DecodeBatch batch(cache, {0, 1, 2}, schedule.tile_rows == 64 ? 33 : 5, 2, kSeed, 0.1F);
  expect_close(batch, batch.run(DecodeRun{.schedule = schedule}), batch.run_double(),
               bounds_of(cache.layout, schedule.kernel));
}

// A sequence alone and the same one in a batch, with fixed splits: equal bits, in every kernel.
TEST_P(MlaDecodeSchedules, FixedSplitsDoNotDependOnTheBatch) {
  const auto& [layout_idx, schedule] = GetParam();
  if (schedule.cluster > 1) GTEST_SKIP() << "fixed splits are for single blocks";
  const DecodeCache& cache = cache_of(layout_idx, kRagged, {.flat = true});
  const int heads = schedule.tile_rows == 64 ? 64 : 20;
  const DecodeBatch all(cache, all_rows(cache), heads, 1, kSeed);
  const DecodeRun how{.split_pages = 4, .schedule = schedule};
  const DecodeResult together = all.run(how);
  for (size_t s = 0; s < all.seq_idx.size(); ++s) {
    DecodeBatch alone(cache, {all.seq_idx[s]}, heads, 1, kSeed);
    const int64_t values = int64_t{heads} * kKvRowDim;
    alone.set_queries(std::vector<bf16>(all.q.begin() + s * values, all.q.begin() + (s + 1) * values));
    const DecodeResult result = alone.run(how);
    EXPECT_EQ(0, std::memcmp(result.out.data(), together.out.data() + s * heads * kKvLatentDim,
                             result.out.size() * sizeof(bf16)))
        << "length " << all.kv_len[s];
    EXPECT_EQ(
        0, std::memcmp(result.lse.data(), together.lse.data() + s * heads, result.lse.size() * sizeof(float)))
        << "length " << all.kv_len[s];
  }
}

// A captured chain in which the launch before writes what is not settled: the last record's latents of a
// sequence, or the queries. A decode call is that writer: with one head its outputs are one row of 512
// values, wherever wanted; over a long cache it takes a while, and its blocks make room one by one.
class MlaDecodeSettled : public ::testing::TestWithParam<ScheduleCase> {};

TEST_P(MlaDecodeSettled, WaitsForTheLastRecordAndTheQueries) {
  const auto& [layout_idx, schedule] = GetParam();
  const KvFormat format = kLayouts[layout_idx].second.format;
  const bool is_16_bit = format == KvFormat::kBF16 || format == KvFormat::kF16;
  const int heads = schedule.tile_rows == 64 ? 40 : 5;
  // The writer's cache is of the queries' type.
  const DecodeCache& source = cache_of(format == KvFormat::kF16 ? 1 : 0, {100000});
  DecodeBatch writer(source, {0}, 1, 1, kSeed);
  const cuda::Launch launch{.stream = test_stream().handle()};
  for (const std::vector<int>& lengths : {std::vector<int>{64}, {65, 2000, 640}, {8000}}) {
    for (int q_len : {1, 3}) {
      for (bool write_record : {true, false}) {
        if (write_record && !is_16_bit) continue;  // 512 16-bit values are no FP8 record
        SCOPED_TRACE("first length " + std::to_string(lengths[0]) + ", queries " + std::to_string(q_len) +
                     (write_record ? ", record" : ", query"));
        // The record that is destroyed and written again is nobody else's: these are this test's caches.
        const DecodeCache& cache = cache_of(layout_idx, lengths);
        std::vector<int> rows(lengths.size());
        std::iota(rows.begin(), rows.end(), 0);
        DecodeBatch batch(cache, rows, heads, q_len, kSeed);
        const cuda::MlaPlanShape shape = batch.shape();
        const cuda::DecodeGeometry geometry =
            cuda::decode_geometry(shape, schedule, cuda::device_capacity(shape.num_sms));
        const cuda::DecodeGeometry writer_geometry = cuda::decode_geometry(writer.shape());
        const DeviceArray<std::byte> plan(cuda::decode_plan_bytes(geometry)),
            scratch(cuda::decode_scratch_bytes(geometry)),
            writer_plan(cuda::decode_plan_bytes(writer_geometry)),
            writer_scratch(cuda::decode_scratch_bytes(writer_geometry));
        DeviceArray<bf16> out(batch.num_rows() * kKvLatentDim);
        DeviceArray<float> lse(batch.num_rows());
        // The last sequence's record at its first query's position, or its first row of queries.
        const int64_t last = static_cast<int64_t>(lengths.size()) - 1;
        std::byte* target =
            write_record
                ? cache.device_pool.data() + cache.offset_of(last, lengths[last] - q_len)
                : reinterpret_cast<std::byte*>(batch.device_q().data() + last * q_len * heads * kKvRowDim);
        cuda::MlaDecodeParams writing = writer.params(writer.shape());
        writing.out = target;
        writing.plan = writer_plan.data();
        writing.scratch = writer_scratch.data();
        const DeviceArray<bf16> elsewhere(kKvLatentDim);
        cuda::MlaDecodeParams before = writing;
        before.out = elsewhere.data();
        cuda::MlaDecodeParams decode = batch.params(shape);
        decode.out = out.data();
        decode.lse = lse.data();
        decode.plan = plan.data();
        decode.scratch = scratch.data();
        const DeviceArray<int32_t> writer_len(std::vector<int32_t>{100000});
        const DeviceArray<int32_t> kv_len(std::vector<int32_t>(lengths.begin(), lengths.end()));
        const auto steps = [&](bool settled) {
          decode.settled = settled;
          cuda::mla_decode_plan(writer_geometry, writer_len.data(), writer_plan.data(), launch);
          cuda::mla_decode_plan(geometry, kv_len.data(), plan.data(), launch);
          // The plan is complete before the launch before decode begins, for there is one between.
          cuda::mla_decode(before, writer_geometry, launch);
          cuda::mla_decode(writing, writer_geometry, launch);
          cuda::mla_decode(decode, geometry, launch);
        };
        const auto destroy = [&] {
          fill_device(target, 0xff, kKvLatentDim * sizeof(bf16), test_stream().handle());
          test_stream().synchronize();
          out.poison();
          lse.poison();
        };
        destroy();
        steps(false);
        test_stream().synchronize();
        const DecodeResult expected{out.download(), lse.download()};
        const bool coarse = schedule.kernel == DecodeKernel::kTilesFp8;
        expect_close(batch, expected, batch.run_double(),
                     {1e-2, false, coarse ? 0.5 : 1e-2, coarse ? 2e-2 : 1e-2});
        const CudaGraph graph = CudaGraph::capture(test_stream(), [&] { steps(true); });
        for (int replay = 0; replay < 5; ++replay) {
          destroy();
          graph.launch(test_stream().handle());
          test_stream().synchronize();
          ASSERT_TRUE(same_bits({out.download(), lse.download()}, expected)) << "replay " << replay;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MlaDecodeSettled, ::testing::ValuesIn(all_schedules()), schedule_name);

}  // namespace
}  // namespace hadal::testing

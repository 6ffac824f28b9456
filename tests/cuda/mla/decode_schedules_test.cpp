// Runs every schedule of MLA decode, whatever the op would choose: each kernel, tile height and cluster size
// of each cache format.
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/mla/decode/decode.h"
#include "tests/cuda/mla/decode_schedule_case.h"

namespace hadal::testing {
namespace {

constexpr uint64_t kSeed = kDecodeSeed;
const std::vector<int> kRagged = {1000, 0, 4097, 1, 63, 64, 65, 640, 129};

class MlaDecodeSchedules : public ::testing::TestWithParam<ScheduleCase> {};

// Holds a batch over all rows of a cache and its results in double precision, which are computed once for all
// schedules.
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

TEST_P(MlaDecodeSchedules, SmallAndLargeBatchesMatchDoublePrecision) {
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
      if (tiles > capacity.clusters[i]) continue;  // the device does not hold all tiles of a part at once
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

// Runs every instantiation on the smallest shapes that split and merge, for compute-sanitizer.
TEST_P(MlaDecodeSchedules, SmallestShapesForSanitizersMatchDoublePrecision) {
  const auto& [layout_idx, schedule] = GetParam();
  const DecodeCache& cache = cache_of(layout_idx, {65, 0, 300}, {.flat = true});
  const DecodeBatch batch(cache, {0, 1, 2}, schedule.tile_rows == 64 ? 33 : 5, 2, kSeed, 0.1F);
  expect_close(batch, batch.run(DecodeRun{.schedule = schedule}), batch.run_double(),
               bounds_of(cache.layout, schedule.kernel));
}

// Only single blocks support fixed splits.
std::vector<ScheduleCase> single_block_schedules() {
  std::vector<ScheduleCase> cases = all_schedules();
  std::erase_if(cases, [](const ScheduleCase& c) { return c.schedule.cluster > 1; });
  return cases;
}
class MlaDecodeSingleBlocks : public ::testing::TestWithParam<ScheduleCase> {};
INSTANTIATE_TEST_SUITE_P(All, MlaDecodeSingleBlocks, ::testing::ValuesIn(single_block_schedules()),
                         schedule_name);

// With fixed splits a sequence has the same bits alone and in a batch, in every kernel.
TEST_P(MlaDecodeSingleBlocks, FixedSplitsDoNotDependOnTheBatch) {
  const auto& [layout_idx, schedule] = GetParam();
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

// Captures a chain in which the launch before decode writes the inputs that are not settled: the newest
// records of every sequence (cuda::copy_pages) or a row of queries (a decode call of one head, which writes
// 512 values anywhere). That launch waits for an earlier decode call on a few multiprocessors, so blocks of
// the decode under test begin on the others long before anything is written.
class MlaDecodeSettled : public ::testing::TestWithParam<ScheduleCase> {};

TEST_P(MlaDecodeSettled, WaitsForTheLastRecordsAndTheQueries) {
  const auto& [layout_idx, schedule] = GetParam();
  const KvLayout& layout = kLayouts[layout_idx].second;
  const int heads = schedule.tile_rows == 64 ? 40 : 5;
  const cuda::Launch launch{.stream = test_stream().handle()};
  // The writer's cache is of the queries' type.
  const DecodeCache& long_cache = cache_of(layout.format == KvFormat::kF16 ? 1 : 0, {100000});
  DecodeBatch writer(long_cache, {0}, 1, 1, kSeed);
  cuda::MlaPlanShape writer_shape = writer.shape();
  writer_shape.num_sms = 16;
  const cuda::DecodeGeometry writer_geometry = cuda::decode_geometry(writer_shape);
  const DeviceArray<std::byte> writer_plan(cuda::decode_plan_bytes(writer_geometry)),
      writer_scratch(cuda::decode_scratch_bytes(writer_geometry));
  const DeviceArray<int32_t> writer_len(std::vector<int32_t>{100000});
  const DeviceArray<bf16> elsewhere(kKvLatentDim);
  cuda::DeviceDecodeParams before = writer.params(writer_shape);
  before.out = elsewhere.data();
  before.plan = writer_plan.data();
  before.scratch = writer_scratch.data();

  for (const std::vector<int>& lengths : {std::vector<int>{1}, {64}, {65, 2000, 640}, {8000}}) {
    // One more sequence is in no batch; its pages are the sources of copies. These caches belong to this test
    // alone, because it destroys records and writes them again.
    const auto num_seqs = static_cast<int64_t>(lengths.size());
    std::vector<int> with_spare = lengths;
    with_spare.push_back(static_cast<int>(num_seqs) * 2 * kPageSize);
    const DecodeCache& cache = cache_of(layout_idx, with_spare);
    std::vector<int> rows(lengths.size());
    std::iota(rows.begin(), rows.end(), 0);
    for (int q_len : {1, 3}) {
      if (q_len > *std::min_element(lengths.begin(), lengths.end())) continue;
      const DecodeBatch batch(cache, rows, heads, q_len, kSeed);
      // A page is copied up to its last record; the older records are overwritten with their own bytes.
      std::vector<cuda::PageCopyEntry> entries;
      for (int64_t seq = 0; seq < num_seqs; ++seq) {
        for (int page = (lengths[seq] - q_len) / kPageSize; page * kPageSize < lengths[seq]; ++page) {
          entries.push_back({cache.table[num_seqs * cache.stride + static_cast<int64_t>(entries.size())],
                             cache.table[seq * cache.stride + page],
                             std::min(kPageSize, lengths[seq] - page * kPageSize)});
          copy_to_device(cache.device_pool.data() + entries.back().source * cache.page_stride(),
                         cache.pool.data() + entries.back().target * cache.page_stride(), cache.page_stride(),
                         test_stream().handle());
        }
      }
      test_stream().synchronize();
      const DeviceArray<cuda::PageCopyEntry> copies(entries);
      const DeviceArray<std::byte*> pools(std::vector<std::byte*>{cache.device_pool.data()});

      const cuda::MlaPlanShape shape = batch.shape();
      const cuda::DecodeGeometry geometry =
          cuda::decode_geometry(shape, schedule, cuda::device_capacity(shape.num_sms));
      const DeviceArray<std::byte> plan(cuda::decode_plan_bytes(geometry)),
          scratch(cuda::decode_scratch_bytes(geometry));
      DeviceArray<bf16> out(batch.num_rows() * kKvLatentDim);
      DeviceArray<float> lse(batch.num_rows());
      cuda::DeviceDecodeParams decode = batch.params(shape);
      decode.out = out.data();
      decode.lse = lse.data();
      decode.plan = plan.data();
      decode.scratch = scratch.data();
      decode.settled = true;
      cuda::DeviceDecodeParams write_query = before;
      write_query.out = batch.device_q().data();

      for (bool records : {true, false}) {
        SCOPED_TRACE("first length " + std::to_string(lengths[0]) + ", queries " + std::to_string(q_len) +
                     (records ? ", records" : ", query"));
        const auto write = [&] {
          if (records) {
            cuda::copy_pages({.pools = pools.data(),
                              .copies = copies.data(),
                              .num_layers = 1,
                              .num_copies = static_cast<int>(entries.size()),
                              .layout = layout},
                             launch);
          } else {
            cuda::mla_decode(write_query, writer_geometry, launch);
          }
        };
        const auto destroy = [&] {
          const auto fill = [](void* target, size_t bytes) {
            fill_device(target, 0xff, bytes, test_stream().handle());
          };
          if (!records) fill(write_query.out, kKvLatentDim * sizeof(bf16));
          for (int64_t seq = 0; records && seq < num_seqs; ++seq) {
            for (int position = lengths[seq] - q_len; position < lengths[seq]; ++position)
              fill(cache.device_pool.data() + cache.offset_of(seq, position), layout.row_bytes());
          }
          test_stream().synchronize();
          out.poison();
          lse.poison();
        };
        cuda::mla_decode_plan(writer_geometry, writer_len.data(), writer_plan.data(), launch);
        write();
        test_stream().synchronize();
        const DecodeResult expected = batch.run(DecodeRun{.schedule = schedule});
        destroy();
        ASSERT_FALSE(same_bits(batch.run(DecodeRun{.schedule = schedule}), expected)) << "nothing destroyed";
        const CudaGraph graph = CudaGraph::capture(test_stream(), [&] {
          cuda::mla_decode_plan(writer_geometry, writer_len.data(), writer_plan.data(), launch);
          cuda::mla_decode_plan(geometry, batch.params(shape).kv_len, plan.data(), launch);
          // The plan is complete before the launch that precedes decode begins, because another launch lies
          // between them.
          cuda::mla_decode(before, writer_geometry, launch);
          write();
          cuda::mla_decode(decode, geometry, launch);
        });
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

// Tests the precision of decode attention over 16-bit caches, for small and large latents.
//
// Three roundings cost precision: weights to the cache's type, values to bf16 on their way to another block
// of a cluster or to a split's slot, and outputs to the cache's type. The bounds here are those of a
// simulation of these roundings on the CPU; docs/kernels/cuda-mla-decode.md has its figures.
#include "tests/cuda/mla/decode_checks.h"

namespace hadal::testing {
namespace {

using cuda::DecodeKernel;
using cuda::DecodeSchedule;

constexpr uint64_t kSeed = kDecodeSeed;

// Holds a 16-bit cache and a schedule of the swapped kernel, which alone hands values from block to block.
struct PrecisionCase {
  int layout;
  DecodeSchedule schedule;
};
std::vector<PrecisionCase> swapped_schedules() {
  std::vector<PrecisionCase> cases;
  for (int layout_idx : {0, 1}) {
    for (const DecodeSchedule& schedule : cuda::decode_schedules(kLayouts[layout_idx].second))
      if (schedule.kernel == DecodeKernel::kSwapped) cases.push_back({layout_idx, schedule});
  }
  return cases;
}
class MlaDecodePrecision : public ::testing::TestWithParam<PrecisionCase> {
 protected:
  bool device_holds_cluster() const {
    int i = 0;
    while ((1 << i) < GetParam().schedule.cluster) ++i;
    return cuda::device_capacity(cuda_device_info(0).num_sms).clusters[i] > 0;
  }
};
std::string schedule_name(const ::testing::TestParamInfo<PrecisionCase>& info) {
  const auto& [layout_idx, schedule] = info.param;
  return kLayouts[layout_idx].first + "Rows" + std::to_string(schedule.tile_rows) + "Cluster" +
         std::to_string(schedule.cluster);
}
INSTANTIATE_TEST_SUITE_P(Swapped, MlaDecodePrecision, ::testing::ValuesIn(swapped_schedules()),
                         schedule_name);

// Returns the cosine difference over all rows of a batch. A difference in size counts, too.
double cosine_difference(const DecodeBatch& batch, const DecodeResult& result,
                         const DecodeDoubles& expected) {
  double product = 0.0, own = 0.0, others = 0.0;
  for (size_t i = 0; i < expected.out.size(); ++i) {
    const double a = decode_value(batch.cache().layout, result.out[i]);
    const double b = expected.out[i];
    product += a * b;
    own += a * a;
    others += b * b;
  }
  return 1.0 - 2.0 * product / (own + others);
}

// Whole sequences of one page stay in one block, whatever the cluster, so that nothing is rounded between
// blocks. With that rounding the differences would be 3.4e-6 and 1.4e-6.
TEST_P(MlaDecodePrecision, OnePageIsRoundedTwice) {
  if (!device_holds_cluster()) GTEST_SKIP() << "the device holds no cluster of this size";
  const auto& [layout_idx, schedule] = GetParam();
  const double most = kLayouts[layout_idx].second.format == KvFormat::kF16 ? 1e-7 : 2.7e-6;
  for (const int length : {20, 64}) {
    const DecodeCache& cache = cache_of(layout_idx, std::vector<int>(24, length), {.flat = true});
    for (const int heads : {1, 16}) {
      const DecodeBatch batch(cache, all_rows(cache), heads, 1, kSeed + heads, 0.1F);
      const DecodeDoubles expected = batch.run_double();
      const DecodeResult result = batch.run(DecodeRun{.schedule = schedule});
      SCOPED_TRACE("length " + std::to_string(length) + ", heads " + std::to_string(heads));
      expect_close(batch, result, expected);
      const double difference = cosine_difference(batch, result, expected);
      EXPECT_TRUE(difference <= most) << difference << " is above " << most;
    }
  }
}

// Tests a batch in which sequences of at most one page, which one block computes, are between longer ones,
// which the whole cluster computes.
TEST_P(MlaDecodePrecision, OnePageBetweenLongerSequencesMatchesDoublePrecision) {
  if (!device_holds_cluster()) GTEST_SKIP() << "the device holds no cluster of this size";
  const auto& [layout_idx, schedule] = GetParam();
  std::vector<int> lengths;
  for (const int length : {20, 64, 65, 1, 0, 300, 0, 63, 128, 2000}) {
    for (int i = 0; i < 30; ++i) lengths.push_back(i % 3 == 0 ? 20 : length);
  }
  const DecodeCache& cache = cache_of(layout_idx, lengths, {.flat = true});
  for (const int q_len : {1, 2}) {
    SCOPED_TRACE("queries " + std::to_string(q_len));
    const DecodeBatch batch(cache, all_rows(cache), 5, q_len, kSeed, 0.1F);
    const DecodeResult result = batch.run(DecodeRun{.schedule = schedule});
    expect_close(batch, result, batch.run_double());
    EXPECT_TRUE(same_bits(result, batch.run(DecodeRun{.graphed = true, .schedule = schedule})));
  }
}

// Values between blocks are sums over keys that have not been divided by the weights' sum yet; with latents
// of 8192 they exceed the range of float16.
TEST_P(MlaDecodePrecision, SmallAndLargeLatentsPassBetweenBlocks) {
  if (!device_holds_cluster()) GTEST_SKIP() << "the device holds no cluster of this size";
  const auto& [layout_idx, schedule] = GetParam();
  for (const float size : {1e-3F, 8192.0F}) {
    const DecodeCache& cache =
        cache_of(layout_idx, {20, 64, 140, 1000, 3000}, {.flat = true, .flat_size = size});
    for (const int heads : {1, 16}) {
      SCOPED_TRACE("latents of " + std::to_string(size) + ", heads " + std::to_string(heads));
      const DecodeBatch batch(cache, all_rows(cache), heads, 1, kSeed + heads, 0.01F / size);
      expect_close(batch, batch.run(DecodeRun{.schedule = schedule}), batch.run_double());
    }
  }
}

}  // namespace
}  // namespace hadal::testing

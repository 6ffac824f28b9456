// Tests the 64-row decode kernel with settled inputs, with many layers back to back on one plan, and with
// rows whose scores keep growing, so that running maxima are renewed page by page.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/mla/decode_checks.h"
#include "tests/cuda/mla/decode_fixture.h"

namespace hadal::testing {
namespace {

constexpr cuda::DecodeSchedule kTall = {cuda::DecodeKernel::kTiles, 64, 1};
constexpr uint64_t kTilesSeed = 20261122;

// Settled inputs change when a kernel reads, not what it computes. The counters of splits, which a plan has
// only once, are unchanged after every call.
TEST(MlaDecodeTiles, SettledLayersInARowGiveEqualBits) {
  for (const KvFormat format : {KvFormat::kBF16, KvFormat::kF16, KvFormat::kFp8E4M3, KvFormat::kFp8E5M2}) {
    const DecodeCache cache({4097, 0, 63, 640, 1, 129, 2000}, {format}, kTilesSeed);
    for (const auto& [heads, q_len] : {std::pair{64, 1}, std::pair{128, 2}, std::pair{20, 7}}) {
      SCOPED_TRACE("format " + std::to_string(static_cast<int>(format)) + ", heads " + std::to_string(heads) +
                   ", queries " + std::to_string(q_len) + ", seed " + std::to_string(kTilesSeed));
      const DecodeBatch batch(cache, {0, 1, 2, 3, 4, 5, 6}, heads, q_len, kTilesSeed);
      const DecodeResult expected = batch.run(DecodeRun{.schedule = kTall});

      const cuda::MlaPlanShape shape = batch.shape();
      const cuda::DecodeGeometry geometry =
          cuda::decode_geometry(shape, kTall, cuda::device_capacity(shape.num_sms));
      const DeviceArray<std::byte> plan(cuda::decode_plan_bytes(geometry));
      const DeviceArray<std::byte> scratch(cuda::decode_scratch_bytes(geometry));
      const cuda::Launch launch{.stream = test_stream().handle(), .num_sms = shape.num_sms};
      cuda::mla_decode_plan(geometry, batch.params(shape).kv_len, plan.data(), launch);
      std::vector<DeviceArray<bf16>> outs;
      std::vector<DeviceArray<float>> lses;
      constexpr int kLayers = 4;
      for (int layer = 0; layer < kLayers; ++layer) {
        outs.emplace_back(batch.num_rows() * kKvLatentDim);
        lses.emplace_back(batch.num_rows());
      }
      for (int layer = 0; layer < kLayers; ++layer) {
        cuda::DeviceDecodeParams params = batch.params(shape);
        params.out = outs[layer].data();
        params.lse = lses[layer].data();
        params.settled = layer > 0;  // the plan is made right before the first one
        params.plan = plan.data();
        params.scratch = scratch.data();
        cuda::mla_decode(params, geometry, launch);
      }
      test_stream().synchronize();
      for (int layer = 0; layer < kLayers; ++layer) {
        EXPECT_TRUE(same_bits(expected, {outs[layer].download(), lses[layer].download()}))
            << "layer " << layer;
      }
    }
  }
}

// Large queries give scores of widely different size, whose maximum grows in jumps, some of which exceed 2^8.
TEST(MlaDecodeTiles, GrowingMaximaMatchDoublePrecision) {
  for (const KvFormat format : {KvFormat::kBF16, KvFormat::kF16}) {
    const DecodeCache cache({1500, 64, 333}, {format}, kTilesSeed + 1);
    for (const float sigma : {0.05F, 1.0F, 4.0F}) {
      SCOPED_TRACE("format " + std::to_string(static_cast<int>(format)) + ", sigma " + std::to_string(sigma) +
                   ", seed " + std::to_string(kTilesSeed + 1));
      const DecodeBatch batch(cache, {0, 1, 2}, 96, 1, kTilesSeed, sigma);
      expect_close(batch, batch.run(DecodeRun{.schedule = kTall}), batch.run_double(),
                   bounds_of(cache.layout, cuda::DecodeKernel::kTiles));
    }
  }
}

}  // namespace
}  // namespace hadal::testing

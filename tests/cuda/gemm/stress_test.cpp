// Launches the tiled kernel many times in a row; every launch must give the bits of the first one. A build
// with -DHADAL_SANITIZE_KERNELS=DELAYS makes it a search for races, because there the producer and the
// consumers sleep for random times between the steps of their protocol (kernels/cuda/common/sanitize.cuh).
//
// HADAL_STRESS_LAUNCHES sets the launches of each tile, which are 2,000 by default; 100,000 take some
// minutes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <random>

#include "kernels/cuda/gemm/tiled/linear.h"
#include "kernels/cuda/gemm/variants.h"
#include "tests/cuda/gemm/compare_rows.h"
#include "tests/cuda/gemm/linear_case.h"
#include "tests/cuda/test_launch.h"

namespace hadal::testing {
namespace {

constexpr int kCopies = 8;  // launches between two comparisons, each into rows of its own

int64_t stress_launches() {
  const char* given = std::getenv("HADAL_STRESS_LAUNCHES");
  return given != nullptr ? std::max<int64_t>(std::strtoll(given, nullptr, 10), 1) : 2000;
}

// Launches the product `launches` times. Its sums of small integers are exact, so the first launch is also
// compared with sums on the host, at random places.
void expect_equal_bits(WeightType type, cuda::LinearTile tile, int64_t m, int64_t n, int64_t k,
                       int64_t launches) {
  static cuda::GemmLibrary library;
  const uint64_t seed = fresh_seed();
  LinearCase c(type, m, n, k, seed, false, true);
  SCOPED_TRACE(c.name() + " " + to_string(choice_of(tile)) + " seed " + std::to_string(seed));
  const auto workspace = rest_workspace(library);
  cuda::DenseLinearParams params = c.params();
  const int64_t stride = params.y_stride;
  const auto launch_into = [&](uint16_t* y) {
    params.y = y;
    cuda::wgmma_linear_with(tile, params, test_launch(), workspace);
  };
  const DeviceArray<uint16_t> first(m * stride);
  launch_into(first.data());
  const std::vector<uint16_t> rows = first.download();
  std::mt19937_64 random(seed);
  for (int i = 0; i < 2000; ++i) {
    const auto row = static_cast<int64_t>(random() % m);
    const auto column = static_cast<int64_t>(random() % n);
    const bf16 want = to_bf16(static_cast<float>(c.expected_at(row, column)));
    ASSERT_EQ(rows[row * stride + column], want.bits) << "row " << row << ", column " << column;
  }

  const DeviceArray<uint16_t> copies(m * stride * kCopies);
  const DeviceArray<Differences> differences(std::vector<Differences>(1));
  for (int64_t done = 0; done < launches; done += kCopies) {
    fill_device(copies.data(), 0xff, copies.size() * sizeof(uint16_t), test_stream().handle());
    for (int i = 0; i < kCopies; ++i) launch_into(copies.data() + i * m * stride);
    add_differences(copies.data(), first.data(), m * stride, kCopies, differences.data(),
                    test_stream().handle());
    if (done / kCopies % 64 != 63 && done + kCopies < launches) continue;
    const Differences found = differences.download()[0];
    ASSERT_EQ(found.count, 0U) << "before launch " << done + kCopies << ", one of them at row "
                               << found.word / stride << ", column " << found.word % stride;
  }
}

class TiledStress : public ::testing::TestWithParam<WeightType> {};

// There are more tiles than blocks (n is 4608), so that blocks go from tile to tile. There are also more
// steps than stages, and the rows and columns do not fill the last tiles.
TEST_P(TiledStress, EveryLaunchGivesTheSameBits) {
  for (const cuda::LinearTile tile : cuda::kLinearTiles) {
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{600, 4600, 640}, {129, 264, 1920}})
      expect_equal_bits(GetParam(), tile, m, n, k, stress_launches() / 2);
  }
}

// The last round's tiles are shared among blocks, which exchange sums through global memory.
TEST_P(TiledStress, EveryLaunchWithASharedRoundGivesTheSameBits) {
  constexpr auto kTile = cuda::LinearTile::k128x192;
  constexpr int64_t kM = 700, kN = 1536, kK = 7168;
  ASSERT_GT(cuda::linear_rest(kTile, GetParam(), kM, kN, kK, test_launch().num_sms).tiles, 0);
  expect_equal_bits(GetParam(), kTile, kM, kN, kK, stress_launches() / 4);
}

INSTANTIATE_TEST_SUITE_P(Types, TiledStress,
                         ::testing::Values(WeightType::kFp8Block, WeightType::kInt8Channel),
                         [](const auto& instance) {
                           return std::string(instance.param == WeightType::kFp8Block ? "Fp8Block"
                                                                                      : "Int8Channel");
                         });

}  // namespace
}  // namespace hadal::testing

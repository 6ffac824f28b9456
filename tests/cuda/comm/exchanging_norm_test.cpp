// Tests the norm that exchanges small parts itself. It gives the bits of an exchange of flags followed by a
// norm that reads the parts, even where ranks are out of step and graphs mix both kinds of exchange.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/device_collectives.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "tests/cuda/comm/virtual_ranks.h"

namespace hadal {
namespace {

using testing::DeviceArray;
using testing::VirtualRanks;

struct Shape {
  int64_t m, n;
};

// Holds a rank's inputs, which are equal on all ranks, and its outputs.
struct Norm {
  explicit Norm(const Shape& size, const std::vector<float>& residual_values,
                const std::vector<float>& weights)
      : shape(size),
        residual(residual_values),
        weight(weights),
        rows(static_cast<size_t>(shape.m * shape.n)),
        codes(static_cast<size_t>(shape.m * shape.n)),
        scales(static_cast<size_t>(stride() * shape.n / 128)) {}
  int64_t stride() const { return (shape.m + 3) / 4 * 4; }

  // Adds the parts that `input` names. With codes, the rows are quantised too.
  void run(const cuda::NormInput& input, bool with_codes, const cuda::Launch& launch) {
    cuda::AddRmsNormParams params{.input = input,
                                  .residual = residual.data(),
                                  .weight = weight.data(),
                                  .y = rows.data(),
                                  .m = shape.m,
                                  .n = shape.n};
    if (with_codes) {
      params.y_quantized.codes = reinterpret_cast<fp8_e4m3*>(codes.data());
      params.y_quantized.scales = reinterpret_cast<float*>(scales.data());
      params.y_quantized.stride = shape.n;
      params.y_quantized.scale_stride = stride();
    }
    cuda::add_rms_norm(params, launch);
  }

  Shape shape;
  DeviceArray<float> residual, weight;
  DeviceArray<uint16_t> rows;
  DeviceArray<uint8_t> codes;
  DeviceArray<uint32_t> scales;  // bits of float32, because values that are not written are NaN
};

std::vector<float> values(int64_t count, uint32_t salt) {
  std::vector<float> out;
  for (int64_t i = 0; i < count; ++i)
    out.push_back(testing::from_16_bit(testing::part_bits(salt, 0, i, false), false));
  return out;
}

std::vector<Norm> norms(int num_ranks, const Shape& shape, uint32_t salt) {
  const std::vector<float> residual = values(shape.m * shape.n, salt);
  const std::vector<float> weight = values(shape.n, salt + 1);
  std::vector<Norm> made;
  for (int rank = 0; rank < num_ranks; ++rank) made.emplace_back(shape, residual, weight);
  return made;
}

void expect_equal(const Norm& got, const Norm& expected) {
  EXPECT_EQ(got.residual.download(), expected.residual.download());
  EXPECT_EQ(got.rows.download(), expected.rows.download());
  EXPECT_EQ(got.codes.download(), expected.codes.download());
  EXPECT_EQ(got.scales.download(), expected.scales.download());
}

constexpr Shape kShapes[] = {{1, 7168},  {4, 7168},  {8, 7168}, {1, 5120}, {6, 5120}, {1, 2048},
                             {16, 2048}, {32, 2048}, {3, 256},  {2, 4096}, {5, 6144}, {1, 8192}};

TEST(ExchangingNorm, HasTheBitsOfANormAfterAnExchangeOfFlags) {
  const auto seed = static_cast<uint32_t>(testing::fresh_seed());
  int num_compared = 0;
  for (const int num_ranks : {2, 3, 4, 8}) {
    VirtualRanks ranks(num_ranks, 1 << 20);
    for (const Shape& shape : kShapes) {
      if (!cuda::norm_exchanges(shape.m, shape.n, false, num_ranks, ranks.launch(0))) continue;
      for (const bool with_codes : {false, true}) {
        SCOPED_TRACE(fmt::format("{} ranks, {} × {}, codes {}, seed {}", num_ranks, shape.m, shape.n,
                                 with_codes, seed));
        const uint32_t salt = seed + static_cast<uint32_t>(++num_compared);
        const int64_t bytes = shape.m * shape.n * 2;
        std::vector<Norm> got = norms(num_ranks, shape, salt);
        std::vector<Norm> expected = norms(num_ranks, shape, salt);
        for (const bool in_norm : {true, false}) {
          ranks.step([&](int rank, DeviceCommunicator& end, const cuda::Launch& launch) {
            auto* const part = static_cast<uint16_t*>(end.partial(bytes));
            testing::fill_part(part, shape.m * shape.n, salt, nullptr, rank, false, launch);
            cuda::NormInput input;
            if (in_norm) {
              input.part = part;
              input.exchange = end.small_exchange(launch, bytes);
              ASSERT_NE(input.exchange, nullptr);
            } else {
              input.exchanged = end.exchange(launch, bytes);
            }
            (in_norm ? got : expected)[rank].run(input, with_codes, launch);
          });
        }
        for (int rank = 0; rank < num_ranks; ++rank) {
          ranks.end(rank).check();
          expect_equal(got[rank], expected[rank]);
          EXPECT_EQ(got[rank].residual.download(), got[0].residual.download());
        }
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GE(num_compared, 60) << "most shapes are exchanged in the norm";
}

// Holds a rank's rows of experts, where some pairs have no row, and the rows that are added to them.
struct Experts {
  static constexpr int kTopK = 6;
  Experts(const Shape& shape, uint32_t salt, int rank)
      : rows(static_cast<size_t>(shape.m * kTopK * shape.n)), added(static_cast<size_t>(shape.m * shape.n)) {
    std::vector<int32_t> indices;
    std::vector<float> factors;
    for (int64_t i = 0; i < shape.m * kTopK; ++i) {
      const uint32_t random =
          testing::mixed(salt + 31U * static_cast<uint32_t>(rank) + static_cast<uint32_t>(i));
      indices.push_back(random % 3 == 0 ? -1 : static_cast<int32_t>(random % (shape.m * kTopK)));
      factors.push_back(static_cast<float>(random % 1000) / 1000.0F);
    }
    row_of.emplace(indices);
    weights.emplace(factors);
  }
  cuda::NormInput input() const {
    return {.expert_rows = rows.data(), .row_of = row_of->data(), .weights = weights->data(), .top_k = kTopK};
  }

  DeviceArray<uint16_t> rows, added;
  std::optional<DeviceArray<int32_t>> row_of;
  std::optional<DeviceArray<float>> weights;
};

TEST(ExchangingNorm, CombinesExpertsRowsAsCombineRowsDoes) {
  const auto seed = static_cast<uint32_t>(testing::fresh_seed());
  uint32_t salt = seed;
  for (const int num_ranks : {2, 4, 8}) {
    VirtualRanks ranks(num_ranks, 1 << 20);
    for (const Shape& shape : kShapes) {
      if (!cuda::norm_exchanges(shape.m, shape.n, false, num_ranks, ranks.launch(0))) continue;
      for (const bool adds : {false, true}) {
        SCOPED_TRACE(
            fmt::format("{} ranks, {} × {}, adds {}, seed {}", num_ranks, shape.m, shape.n, adds, seed));
        ++salt;
        const int64_t bytes = shape.m * shape.n * 2;
        std::vector<Experts> experts;
        for (int rank = 0; rank < num_ranks; ++rank) experts.emplace_back(shape, salt, rank);
        std::vector<Norm> got = norms(num_ranks, shape, salt);
        std::vector<Norm> expected = norms(num_ranks, shape, salt);
        for (const bool in_norm : {true, false}) {
          ranks.step([&](int rank, DeviceCommunicator& end, const cuda::Launch& launch) {
            const Experts& own = experts[rank];
            testing::fill_part(own.rows.data(), shape.m * Experts::kTopK * shape.n, salt, nullptr, rank,
                               false, launch);
            testing::fill_part(own.added.data(), shape.m * shape.n, salt + 7, nullptr, rank, false, launch);
            cuda::NormInput input = own.input();
            if (in_norm) {
              if (adds) input.dense = own.added.data();
              input.x_stride = shape.n;
              input.exchange = end.small_exchange(launch, bytes);
            } else {
              void* const part = end.partial(bytes);
              cuda::combine_rows({.experts = input,
                                  .added = adds ? own.added.data() : nullptr,
                                  .y = part,
                                  .m = shape.m,
                                  .n = shape.n},
                                 launch);
              input = {};
              input.exchanged = end.exchange(launch, bytes);
            }
            (in_norm ? got : expected)[rank].run(input, true, launch);
          });
        }
        for (int rank = 0; rank < num_ranks; ++rank) {
          ranks.end(rank).check();
          expect_equal(got[rank], expected[rank]);
        }
        if (HasFailure()) return;
      }
    }
  }
}

TEST(ExchangingNorm, LargePartsAndUnsupportedRowsAreNotExchangedInTheNorm) {
  const cuda::Launch launch{.num_sms = 132};
  EXPECT_TRUE(cuda::norm_exchanges(8, 7168, false, 2, launch));
  EXPECT_FALSE(cuda::norm_exchanges(10, 7168, false, 2, launch)) << "too large for lines";
  EXPECT_TRUE(cuda::norm_exchanges(6, 7168, false, 8, launch));
  EXPECT_FALSE(cuda::norm_exchanges(8, 7168, false, 8, launch)) << "a rank would receive too much";
  EXPECT_FALSE(cuda::norm_exchanges(1, 7168, true, 2, launch)) << "float16";
  EXPECT_FALSE(cuda::norm_exchanges(1, 1000, false, 2, launch)) << "no multiple of 256";
  EXPECT_FALSE(cuda::norm_exchanges(1, 7168, false, 2, {.reference = true}));
}

// Each rank replays graphs that mix exchanging norms with exchanges of flags, with random waits between them.
// Every rank must compute what ranks without waits compute.
TEST(ExchangingNorm, ReplayedGraphsAddTheLatestPartsOfRanksThatRunApart) {
  const auto seed = static_cast<uint32_t>(testing::fresh_seed());
  constexpr Shape kShape{2, 2048};
  constexpr int64_t kCount = kShape.m * kShape.n;
  constexpr int kReplays = 500;
  for (const int num_ranks : {2, 8}) {
    SCOPED_TRACE(fmt::format("{} ranks, seed {}", num_ranks, seed));
    std::vector<std::vector<float>> residuals;
    for (const bool waits : {false, true}) {
      VirtualRanks ranks(num_ranks, 1 << 16);
      std::vector<Norm> norm = norms(num_ranks, kShape, seed);
      struct Counters {
        DeviceArray<uint32_t> step{std::vector<uint32_t>{0}}, calls{std::vector<uint32_t>{0}};
      };
      std::vector<Counters> counters(num_ranks);
      std::vector<CudaGraph> graphs;
      for (int rank = 0; rank < num_ranks; ++rank) {
        const cuda::Launch launch = ranks.launch(rank);
        DeviceCommunicator& end = ranks.end(rank);
        const auto wait = [&] {
          if (waits)
            testing::random_wait(counters[rank].calls.data(), seed + 99U * static_cast<uint32_t>(rank), 15000,
                                 launch);
        };
        graphs.push_back(CudaGraph::capture(ranks.stream(rank), [&] {
          end.begin_step();
          for (uint32_t i = 0; i < 5; ++i) {
            wait();
            auto* const part = static_cast<uint16_t*>(end.partial(2 * kCount));
            testing::fill_part(part, kCount, seed + i, counters[rank].step.data(), rank, false, launch);
            cuda::NormInput input;
            if (i == 2) {
              input.exchanged = end.exchange(launch, 2 * kCount);
            } else {
              input.part = part;
              input.exchange = end.small_exchange(launch, 2 * kCount);
            }
            wait();
            norm[rank].run(input, false, launch);
          }
          testing::count_step(counters[rank].step.data(), launch);
          end.end_step(launch);
        }));
      }
      for (int i = 0; i < kReplays; ++i) {
        for (int r = 0; r < num_ranks; ++r) {
          const int rank = (i + r) % num_ranks;
          graphs[rank].launch(ranks.stream(rank).handle());
        }
      }
      ranks.synchronize();
      for (int rank = 0; rank < num_ranks; ++rank) {
        ranks.end(rank).check();
        residuals.push_back(norm[rank].residual.download());
      }
    }
    for (const std::vector<float>& residual : residuals) EXPECT_EQ(residual, residuals[0]);
  }
}

// A single rank waits for no other rank, so compute-sanitizer may run one kernel at a time.
TEST(ExchangingNorm, SanitizeNormsOfOneRank) {
  constexpr Shape kShape{3, 2048};
  VirtualRanks ranks(1, 1 << 16);
  std::vector<Norm> norm = norms(1, kShape, 5);
  for (int i = 0; i < 3; ++i) {
    ranks.step([&](int rank, DeviceCommunicator& end, const cuda::Launch& launch) {
      auto* const part = static_cast<uint16_t*>(end.partial(2 * kShape.m * kShape.n));
      testing::fill_part(part, kShape.m * kShape.n, 7, nullptr, rank, false, launch);
      cuda::NormInput input;
      input.part = part;
      input.exchange = end.small_exchange(launch, 2 * kShape.m * kShape.n);
      norm[rank].run(input, true, launch);
    });
  }
  EXPECT_EQ(norm[0].residual.download().size(), static_cast<size_t>(kShape.m * kShape.n));
}

}  // namespace
}  // namespace hadal

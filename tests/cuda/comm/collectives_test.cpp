// Compares the collectives of ranks on a GPU with sums and copies that the host computes from the ranks'
// parts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "comm/device_collectives.h"
#include "comm/in_turns.h"
#include "comm/rank_threads.h"
#include "tests/cuda/comm/virtual_ranks.h"

namespace hadal {
namespace {

using testing::DeviceArray;
using testing::fill_part;
using testing::part_bits;
using testing::VirtualRanks;

constexpr int kRankCounts[] = {2, 3, 4, 8};
constexpr size_t kGuard = 64;  // elements after each result, which must stay poisoned

using Bits = std::vector<uint16_t>;

// Returns the sums of all ranks' parts: float32, in order of rank, rounded once. Checks them against float64
// sums.
Bits expected_sums(int num_ranks, int64_t count, uint32_t salt, bool f16) {
  Bits sums(count);
  int64_t num_far = 0;
  for (int64_t i = 0; i < count; ++i) {
    float sum = 0.0F;
    double exact = 0.0;
    double magnitude = 0.0;
    for (int r = 0; r < num_ranks; ++r) {
      const float value = testing::from_16_bit(part_bits(salt, r, i, f16), f16);
      sum = r == 0 ? value : sum + value;
      exact += value;
      magnitude += std::abs(value);
    }
    sums[i] = testing::to_16_bit(sum, f16);
    const double rounded = testing::from_16_bit(sums[i], f16);
    const double tolerance = std::abs(exact) * (f16 ? 0x1p-11 : 0x1p-8) + magnitude * 0x1p-20;
    if (!(std::abs(rounded - exact) <= tolerance)) ++num_far;
  }
  EXPECT_EQ(num_far, 0) << "float32 sums differ from float64 sums";
  return sums;
}

// Returns "" if `out` begins with `expected` and is poisoned after it, otherwise the first difference.
template <typename T>
std::string difference(const DeviceArray<T>& out, const std::vector<T>& expected) {
  const std::vector<T> got = out.download();
  for (size_t i = 0; i < got.size(); ++i) {
    const T wanted = i < expected.size() ? expected[i] : static_cast<T>(~T{0});
    if (got[i] != wanted) {
      return fmt::format("element {} of {} is {:x}, not {:x}", i, expected.size(), got[i], wanted);
    }
  }
  return "";
}

template <typename T>
std::vector<DeviceArray<T>> results(int num_ranks, size_t count) {
  std::vector<DeviceArray<T>> arrays;
  for (int r = 0; r < num_ranks; ++r) arrays.emplace_back(count + kGuard);
  return arrays;
}

struct Sums {
  const char* name;
  void (*run)(DeviceCommunicator&, const PartialRows&, void*, const cuda::Launch&);
  bool scattered;  // each rank gets its slice
};
constexpr Sums kSums[] = {{"one-shot", all_reduce_one_shot, false},
                          {"small", all_reduce_small, false},
                          {"two-shot", all_reduce_two_shot, false},
                          {"reduce-scatter", reduce_scatter, true}};

void check_sums(VirtualRanks& ranks, const PartialRows& rows, uint32_t salt) {
  const int64_t count = rows.m * rows.n;
  const Bits expected = expected_sums(ranks.size(), count, salt, rows.f16);
  for (const Sums& sums : kSums) {
    SCOPED_TRACE(fmt::format("{} of {} × {} {} by {} ranks, salt {}", sums.name, rows.m, rows.n,
                             rows.f16 ? "f16" : "bf16", ranks.size(), salt));
    auto out = results<uint16_t>(ranks.size(), count);
    ranks.step([&](int rank, DeviceCommunicator& end, const cuda::Launch& launch) {
      auto* const part = static_cast<uint16_t*>(end.partial(2 * count));
      fill_part(part, count, salt, nullptr, rank, rows.f16, launch);
      sums.run(end, rows, out[rank].data(), launch);
    });
    for (int rank = 0; rank < ranks.size(); ++rank) {
      ranks.end(rank).check();
      const RowSlice slice = slice_of_rows(rows.m, ranks.size(), rank);
      const Bits wanted = !sums.scattered ? expected
                                          : Bits(expected.begin() + slice.first * rows.n,
                                                 expected.begin() + (slice.first + slice.count) * rows.n);
      EXPECT_EQ(difference(out[rank], wanted), "") << "rank " << rank;
    }
  }
}

TEST(DeviceCollectives, SumsHaveTheBitsOfTheHostsSumsOnAllRanks) {
  const auto seed = static_cast<uint32_t>(testing::fresh_seed());
  constexpr PartialRows kRows[] = {{0, 8},    {1, 8},     {1, 7168},   {2, 2048}, {3, 5120},
                                   {7, 1544}, {64, 7168}, {129, 2056}, {1000, 24}};
  for (const int num_ranks : kRankCounts) {
    VirtualRanks ranks(num_ranks, 1 << 20);
    uint32_t salt = seed;
    for (PartialRows rows : kRows) {
      for (const bool f16 : {false, true}) {
        rows.f16 = f16;
        check_sums(ranks, rows, ++salt);
      }
    }
  }
}

TEST(DeviceCollectives, SumsOf64MegabytesHaveTheBitsOfTheHostsSums) {
  const auto salt = static_cast<uint32_t>(testing::fresh_seed());
  for (const int num_ranks : {2, 8}) {
    VirtualRanks ranks(num_ranks, 64 << 20);
    check_sums(ranks, {.m = 4096, .n = 8192}, salt);
  }
}

using Bytes = std::vector<uint8_t>;

Bytes random_bytes(size_t count, std::mt19937_64& random) {
  Bytes bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

void check_gather(VirtualRanks& ranks, const std::vector<int64_t>& sizes, std::mt19937_64& random) {
  SCOPED_TRACE(fmt::format("sizes {}", fmt::join(sizes, ", ")));
  Bytes expected;
  std::vector<DeviceArray<uint8_t>> mine;
  for (const int64_t size : sizes) {
    const Bytes bytes = random_bytes(static_cast<size_t>(size), random);
    expected.insert(expected.end(), bytes.begin(), bytes.end());
    mine.emplace_back(bytes);
  }
  auto all = results<uint8_t>(ranks.size(), expected.size());
  ranks.step([&](int rank, DeviceCommunicator& end, const cuda::Launch& launch) {
    all_gather(end, mine[rank].data(), sizes, all[rank].data(), launch);
  });
  for (int rank = 0; rank < ranks.size(); ++rank) EXPECT_EQ(difference(all[rank], expected), "");
}

TEST(DeviceCollectives, AllGatherJoinsPartsOfAnySize) {
  std::mt19937_64 random(testing::fresh_seed());
  SCOPED_TRACE("seed " + std::to_string(testing::fresh_seed()));
  for (const int num_ranks : kRankCounts) {
    VirtualRanks ranks(num_ranks, 8 << 20);
    for (const int64_t size : {0, 1, 16, 1000, 4096, 8 << 20}) {
      check_gather(ranks, std::vector<int64_t>(num_ranks, size), random);
    }
    for (int i = 0; i < 5; ++i) {
      std::vector<int64_t> sizes(num_ranks);
      for (int64_t& size : sizes) size = static_cast<int64_t>(random() % 3 * (random() % 10000));
      check_gather(ranks, sizes, random);
    }
  }
}

TEST(DeviceCollectives, AllToAllDeliversEveryPairsBytes) {
  std::mt19937_64 random(testing::fresh_seed());
  SCOPED_TRACE("seed " + std::to_string(testing::fresh_seed()));
  for (const int num_ranks : kRankCounts) {
    VirtualRanks ranks(num_ranks, 16 << 20);
    for (const int64_t unit : {0, 1, 16, 1 << 20}) {
      std::vector<int64_t> sizes(num_ranks * num_ranks);
      for (int64_t& size : sizes) size = static_cast<int64_t>(random() % 3) * unit;
      SCOPED_TRACE(fmt::format("sizes {}", fmt::join(sizes, ", ")));
      std::vector<Bytes> messages;  // [sender · num_ranks + receiver]
      for (const int64_t size : sizes) messages.push_back(random_bytes(static_cast<size_t>(size), random));
      const auto joined = [&](auto index_of) {
        Bytes bytes;
        for (int r = 0; r < num_ranks; ++r) {
          const Bytes& message = messages[index_of(r)];
          bytes.insert(bytes.end(), message.begin(), message.end());
        }
        return bytes;
      };
      std::vector<Bytes> expected;
      std::vector<DeviceArray<uint8_t>> send;
      std::vector<DeviceArray<uint8_t>> receive;
      for (int rank = 0; rank < num_ranks; ++rank) {
        send.emplace_back(joined([&](int r) { return rank * num_ranks + r; }));
        expected.push_back(joined([&](int r) { return r * num_ranks + rank; }));
        receive.emplace_back(expected.back().size() + kGuard);
      }
      ranks.step([&](int rank, DeviceCommunicator& end, const cuda::Launch& launch) {
        all_to_all(end, send[rank].data(), sizes, receive[rank].data(), launch);
      });
      for (int rank = 0; rank < num_ranks; ++rank) EXPECT_EQ(difference(receive[rank], expected[rank]), "");
    }
  }
}

// Each rank has some columns of the logits of all rows, padded at the end, and gets whole rows that it owns.
TEST(DeviceCollectives, GatherColumnsWritesWholeRowsToTheirOwners) {
  std::mt19937_64 random(testing::fresh_seed());
  SCOPED_TRACE("seed " + std::to_string(testing::fresh_seed()));
  for (const int num_ranks : kRankCounts) {
    VirtualRanks ranks(num_ranks, 1 << 20);
    for (const int64_t vocab : {1, 1000, 1001, 4099}) {
      for (const bool owned : {false, true}) {
        SCOPED_TRACE(fmt::format("{} ranks, vocabulary {}, owned {}", num_ranks, vocab, owned));
        constexpr int64_t kRows = 7;
        const int64_t columns = (vocab + num_ranks - 1) / num_ranks;
        const std::vector<int64_t> widths(num_ranks, columns * 4);
        std::vector<int32_t> owners(kRows);
        for (int32_t& owner : owners) owner = static_cast<int32_t>(random() % (num_ranks + 1)) - 1;
        const DeviceArray<int32_t> device_owners(owners);
        std::vector<DeviceArray<uint32_t>> parts;
        for (int r = 0; r < num_ranks; ++r) {
          std::vector<uint32_t> values(kRows * columns);
          for (int64_t row = 0; row < kRows; ++row) {
            for (int64_t i = 0; i < columns; ++i) {
              values[row * columns + i] = static_cast<uint32_t>(row * 100000 + r * columns + i);
            }
          }
          parts.emplace_back(values);
        }
        auto out = results<uint32_t>(num_ranks, kRows * vocab);
        ranks.step([&](int rank, DeviceCommunicator& end, const cuda::Launch& launch) {
          const int64_t bytes = kRows * columns * 4;
          copy_on_device(end.partial(bytes), parts[rank].data(), bytes, launch.stream);
          gather_columns(end, kRows, widths, owned ? device_owners.data() : nullptr, out[rank].data(),
                         vocab * 4, launch);
        });
        for (int rank = 0; rank < num_ranks; ++rank) {
          std::vector<uint32_t> expected(kRows * vocab, ~0U);
          for (int64_t row = 0; row < kRows; ++row) {
            if (owned && owners[row] != rank) continue;
            for (int64_t i = 0; i < vocab; ++i) {
              expected[row * vocab + i] = static_cast<uint32_t>(row * 100000 + i);
            }
          }
          EXPECT_EQ(difference(out[rank], expected), "") << "rank " << rank;
        }
      }
    }
  }
}

// Every rank gets the sampled token of each row from the row's owner.
TEST(DeviceCollectives, GatherRowsTakesEachRowFromItsOwner) {
  for (const int num_ranks : kRankCounts) {
    VirtualRanks ranks(num_ranks, 1 << 20);
    for (const int64_t row_bytes : {4, 16, 100}) {
      SCOPED_TRACE(fmt::format("{} ranks, rows of {} bytes", num_ranks, row_bytes));
      constexpr int64_t kRows = 33;
      std::vector<int32_t> owners(kRows);
      for (int64_t row = 0; row < kRows; ++row) owners[row] = static_cast<int32_t>(row % (num_ranks + 1)) - 1;
      const DeviceArray<int32_t> device_owners(owners);
      const auto value = [](int rank, int64_t row) { return static_cast<uint8_t>(rank * 33 + row); };
      std::vector<DeviceArray<uint8_t>> mine;
      for (int r = 0; r < num_ranks; ++r) {
        Bytes bytes(kRows * row_bytes);
        for (int64_t i = 0; i < kRows * row_bytes; ++i) bytes[i] = value(r, i / row_bytes);
        mine.emplace_back(bytes);
      }
      // The first time, results go to separate memory. The second time, they replace the rank's own rows.
      auto out = results<uint8_t>(num_ranks, kRows * row_bytes);
      for (const bool in_place : {false, true}) {
        ranks.step([&](int rank, DeviceCommunicator& end, const cuda::Launch& launch) {
          gather_rows(end, mine[rank].data(), kRows, row_bytes, device_owners.data(),
                      in_place ? mine[rank].data() : out[rank].data(), launch);
        });
        for (int rank = 0; rank < num_ranks; ++rank) {
          Bytes expected(kRows * row_bytes);
          for (int64_t i = 0; i < kRows * row_bytes; ++i) {
            const int owner = owners[i / row_bytes];
            expected[i] = owner >= 0 ? value(owner, i / row_bytes)
                          : in_place ? value(rank, i / row_bytes)
                                     : uint8_t{0xff};
          }
          EXPECT_EQ(difference(in_place ? mine[rank] : out[rank], expected), "") << "rank " << rank;
        }
      }
    }
  }
}

// Ranks that take turns have threads, and no kernel waits for another rank. compute-sanitizer, which may run
// one kernel at a time, can therefore follow the kernels that read parts.
TEST(DeviceCollectives, SanitizeThatRanksInTurnsGetTheSameBits) {
  constexpr int kRanks = 4;
  constexpr PartialRows kRows{.m = 17, .n = 2048};
  constexpr int64_t kCount = kRows.m * kRows.n;
  constexpr int64_t kPlaceBytes = kCount * 2;
  std::vector<DeviceBuffer> memory;
  DevicePlaces places{.memory = {}, .place_bytes = kPlaceBytes};
  for (int r = 0; r < kRanks; ++r) {
    memory.emplace_back(2 * kPlaceBytes);
    places.memory[r] = memory.back().data();
  }
  RankThreads threads(kRanks, testing::kPatient, nullptr);
  auto one_shot = results<uint16_t>(kRanks, kCount);
  auto two_shot = results<uint16_t>(kRanks, kCount);
  threads.run([&](int rank, Communicator& host) {
    const CudaStream stream;
    const cuda::Launch launch{.stream = stream.handle()};
    InTurns end(host, places, [&](StreamHandle /*stream*/) { stream.synchronize(); });
    end.begin_step();
    fill_part(static_cast<uint16_t*>(end.partial(kPlaceBytes)), kCount, 5, nullptr, rank, false, launch);
    all_reduce_one_shot(end, kRows, one_shot[rank].data(), launch);
    fill_part(static_cast<uint16_t*>(end.partial(kPlaceBytes)), kCount, 6, nullptr, rank, false, launch);
    all_reduce_two_shot(end, kRows, two_shot[rank].data(), launch);
    end.end_step(launch);
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(difference(one_shot[rank], expected_sums(kRanks, kCount, 5, false)), "");
    EXPECT_EQ(difference(two_shot[rank], expected_sums(kRanks, kCount, 6, false)), "");
  }
}

}  // namespace
}  // namespace hadal

// Tests the exchange of flags: graphs that are replayed while ranks are out of step, and ranks that never
// arrive.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/device_collectives.h"
#include "tests/cuda/comm/virtual_ranks.h"

namespace hadal {
namespace {

using testing::DeviceArray;
using testing::VirtualRanks;

// Holds a rank's graphs of steps with different numbers of exchanges, and what they count on the device.
struct RankGraphs {
  DeviceArray<uint32_t> step{std::vector<uint32_t>{0}};
  DeviceArray<uint32_t> waits{std::vector<uint32_t>{0}};
  DeviceArray<uint32_t> num_wrong{std::vector<uint32_t>{0}};
  DeviceArray<uint16_t> sums{5 * 1024};
  std::vector<CudaGraph> graphs;
};

constexpr int kExchangesOf[] = {1, 2, 3, 5};  // of each graph

// Captures a step. Before each exchange the rank waits a random while and writes its part. After the exchange
// it waits again and checks the parts of all ranks, or their sums.
CudaGraph capture_step(VirtualRanks& ranks, int rank, RankGraphs& own, int num_exchanges, uint32_t seed) {
  const cuda::Launch launch = ranks.launch(rank);
  DeviceCommunicator& end = ranks.end(rank);
  return CudaGraph::capture(ranks.stream(rank), [&] {
    end.begin_step();
    for (int i = 0; i < num_exchanges; ++i) {
      const int64_t count = int64_t{2} << (3 * i % 14);
      const auto salt = static_cast<uint32_t>(i);
      testing::random_wait(own.waits.data(), seed, 20000, launch);
      auto* const part = static_cast<uint16_t*>(end.partial(2 * count));
      testing::fill_part(part, count, salt, own.step.data(), rank, false, launch);
      const auto parts = end.exchange(launch, 2 * count);
      testing::random_wait(own.waits.data(), seed, 10000, launch);
      testing::count_wrong(parts, count, salt, own.step.data(), false, own.num_wrong.data(), launch);
      // After every second exchange follows a small part, whose kernel exchanges by itself.
      if (i % 2 == 1) continue;
      const PartialRows rows{.m = i + 1, .n = 1024};
      auto* const small = static_cast<uint16_t*>(end.partial(2 * rows.m * rows.n));
      testing::fill_part(small, rows.m * rows.n, salt + 32, own.step.data(), rank, false, launch);
      all_reduce_small(end, rows, own.sums.data(), launch);
      testing::count_wrong_sums(own.sums.data(), rows.m * rows.n, ranks.size(), salt + 32, own.step.data(),
                                own.num_wrong.data(), launch);
    }
    testing::count_step(own.step.data(), launch);
    end.end_step(launch);
  });
}

void replay(int num_ranks, int num_replays, uint64_t seed) {
  SCOPED_TRACE(fmt::format("{} ranks, seed {}", num_ranks, seed));
  VirtualRanks ranks(num_ranks, 1 << 16);
  std::vector<RankGraphs> own(num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) {
    for (const int num_exchanges : kExchangesOf) {
      const auto rank_seed = static_cast<uint32_t>(seed) + 1000U * static_cast<uint32_t>(rank);
      own[rank].graphs.push_back(capture_step(ranks, rank, own[rank], num_exchanges, rank_seed));
    }
  }
  std::mt19937_64 random(seed);
  for (int i = 0; i < num_replays; ++i) {
    const size_t graph = random() % std::size(kExchangesOf);
    const int first = static_cast<int>(random() % num_ranks);
    for (int r = 0; r < num_ranks; ++r) {
      const int rank = (first + r) % num_ranks;
      own[rank].graphs[graph].launch(ranks.stream(rank).handle());
    }
  }
  ranks.synchronize();
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks.end(rank).check();
    EXPECT_EQ(own[rank].step.download()[0], static_cast<uint32_t>(num_replays));
    EXPECT_EQ(own[rank].num_wrong.download()[0], 0U) << "rank " << rank;
  }
}

TEST(Exchange, ReplayedGraphsReadTheLatestPartsOfRanksThatRunApart) {
  for (const int num_ranks : {2, 4, 8}) replay(num_ranks, 10000, testing::fresh_seed());
}

// A single rank waits for no other rank, so compute-sanitizer may run one kernel at a time.
TEST(Exchange, SanitizeReplaysOfOneRank) {
  replay(1, 4, 1);
}

std::string thrown_by_check(DeviceCommunicator& end) {
  try {
    end.check();
  } catch (const RankLost& error) {
    return std::string("RankLost: ") + error.what();
  } catch (const RankFailed& error) {
    return std::string("RankFailed: ") + error.what();
  }
  return "";
}

TEST(Exchange, ARankThatNeverComesIsNamedAndLaterExchangesDoNotWaitForIt) {
  VirtualRanks ranks(4, 1 << 16, std::chrono::milliseconds(200));
  const auto exchange = [&](int rank) { ranks.end(rank).exchange(ranks.launch(rank), 0); };
  for (int rank = 0; rank < 4; ++rank) ranks.end(rank).begin_step();
  for (int rank = 0; rank < 4; ++rank) exchange(rank);
  for (const int rank : {0, 1, 3}) exchange(rank);
  for (int i = 0; i < 100; ++i) {  // these would take 20 s if they waited
    for (const int rank : {0, 1, 3}) exchange(rank);
  }
  ranks.synchronize();
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(
        thrown_by_check(ranks.end(rank)),
        "RankLost: rank 2 is lost: within 200 ms it has not come to exchange 2, as rank 0 has; the last "
        "exchange seen of it is 1");
  }
}

TEST(Exchange, ARankThatSendsNoLinesIsNamedAndLaterExchangesDoNotWaitForIt) {
  VirtualRanks ranks(3, 1 << 16, std::chrono::milliseconds(200));
  const PartialRows rows{.m = 4, .n = 4096};
  std::vector<DeviceArray<uint16_t>> sums;
  for (int rank = 0; rank < 3; ++rank) sums.emplace_back(rows.m * rows.n);
  const auto reduce = [&](int rank) {
    all_reduce_small(ranks.end(rank), rows, sums[rank].data(), ranks.launch(rank));
  };
  for (int rank = 0; rank < 3; ++rank) ranks.end(rank).begin_step();
  for (int rank = 0; rank < 3; ++rank) reduce(rank);
  for (int i = 0; i < 100; ++i) {  // these would take 20 s if all of them waited
    for (const int rank : {0, 2}) reduce(rank);
  }
  ranks.synchronize();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(
        thrown_by_check(ranks.end(rank)),
        "RankLost: rank 1 is lost: within 200 ms it has not come to exchange 2, as rank 0 has; the last "
        "exchange seen of it is 1");
  }
}

TEST(Exchange, ARankThatHasNeverComeIsNamedSo) {
  VirtualRanks ranks(2, 1 << 16, std::chrono::milliseconds(50));
  ranks.end(1).begin_step();
  ranks.end(1).exchange(ranks.launch(1), 0);
  ranks.synchronize();
  EXPECT_EQ(
      thrown_by_check(ranks.end(0)),
      "RankLost: rank 0 is lost: within 50 ms it has not come to exchange 1, as rank 1 has; it has come "
      "to none");
}

TEST(Exchange, AFailureThatARankTellsEndsTheWaitsOfAllOthers) {
  VirtualRanks ranks(3, 1 << 16, std::chrono::hours(1));
  for (const int rank : {0, 2}) {
    ranks.end(rank).begin_step();
    ranks.end(rank).exchange(ranks.launch(rank), 0);
    ranks.end(rank).exchange(ranks.launch(rank), 0);
  }
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(thrown_by_check(ranks.end(rank)), "");
  ranks.end(1).fail("no such kernel");
  ranks.end(0).fail("a later failure");
  ranks.synchronize();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(thrown_by_check(ranks.end(rank)), "RankFailed: rank 1: no such kernel");
  }
}

TEST(Exchange, GroupsRefuseDevicesAndDeadlinesThatDoNotExist) {
  const auto error_of = [](std::vector<int> devices, std::chrono::milliseconds deadline) -> std::string {
    try {
      const PeerGroup group(devices, 1 << 16, deadline);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(error_of({0, 1000}, testing::kPatient).find("ranks need GPU 1000, and this machine has "),
            std::string::npos);
  EXPECT_NE(error_of({0, -1}, testing::kPatient).find("ranks need GPU -1"), std::string::npos);
  EXPECT_NE(error_of({}, testing::kPatient).find("0 ranks, allowed are 1 to 8"), std::string::npos);
  EXPECT_NE(error_of({0}, std::chrono::milliseconds(0)).find("the deadline of a group is 0 ms"),
            std::string::npos);
}

TEST(Exchange, MemoryThatDoesNotSufficeIsAnErrorThatNamesTheGpu) {
  const int64_t bytes = int64_t{1} << 40;
  try {
    const PeerGroup group(std::vector<int>{0}, bytes, testing::kPatient);
    ADD_FAILURE() << "a TiB of device memory was reserved";
  } catch (const Error& error) {
    const std::string wanted =
        fmt::format("GPU 0: {} bytes for exchanges between ranks", PeerGroup::bytes_per_rank(bytes));
    EXPECT_NE(std::string(error.what()).find(wanted), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace hadal

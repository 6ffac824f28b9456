// Turns are tested with work on the host: a place is ordinary memory, and a "stream" is done when the rank
// says so.
#include "comm/in_turns.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "comm/lone_communicator.h"
#include "comm/rank_threads.h"
#include "tests/comm/ranks.h"

namespace hadal {
namespace {

using testing::delay;
using testing::describe;
using testing::expect_with_some_deadline;
using testing::kPatient;
using testing::missing_in;
using testing::on_ranks;

constexpr int64_t kPlaceBytes = 256;

// Holds the memory of a group's places, which is meaningless at first.
class HostPlaces {
 public:
  explicit HostPlaces(int num_ranks) : memory_(num_ranks) {
    for (int r = 0; r < num_ranks; ++r) {
      memory_[r].resize(2 * kPlaceBytes, std::byte{0xff});
      places_.memory[r] = memory_[r].data();
    }
    places_.place_bytes = kPlaceBytes;
  }
  const DevicePlaces& places() const { return places_; }

 private:
  std::vector<std::vector<std::byte>> memory_;
  DevicePlaces places_;
};

void nothing_to_wait_for(StreamHandle /*stream*/) {}

// Runs `num_steps` steps, whose lengths are random but the same on all ranks. The work between two exchanges
// uses `shared` without a lock, so that the thread sanitizer reports two ranks in one turn.
TEST(InTurns, OneRankComputesAtATimeAndReadsTheLatestPartsOfAll) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (const int num_ranks : {1, 2, 3, 8}) {
    SCOPED_TRACE(std::to_string(num_ranks) + " ranks");
    HostPlaces memory(num_ranks);
    LoopbackGroup group(num_ranks, kPatient);
    int shared = 0;
    std::atomic<int> num_wrong{0};
    const auto thrown = on_ranks(group, [&](Communicator& host) {
      std::mt19937_64 lengths(seed);
      std::mt19937_64 delays(seed + 1 + host.rank());
      InTurns end(host, memory.places(), nothing_to_wait_for);
      const auto compute = [&] {
        const int before = ++shared;
        delay(delays);
        if (shared++ != before) ++num_wrong;
      };
      int64_t exchanges = 0;
      for (int step = 0; step < 8; ++step) {
        end.begin_step();
        const int length = static_cast<int>(lengths() % 5);
        for (int i = 0; i < length; ++i) {
          compute();
          *static_cast<int64_t*>(end.partial(sizeof(int64_t))) = exchanges * num_ranks + end.rank();
          const auto parts = end.exchange({}, sizeof(int64_t));
          for (int r = 0; r < num_ranks; ++r) {
            if (*static_cast<const int64_t*>(parts.parts[r]) != exchanges * num_ranks + r) ++num_wrong;
          }
          ++exchanges;
        }
        compute();
        end.end_step({});
        if (end.tally().num_exchanges != length + length % 2) ++num_wrong;
      }
    });
    for (const auto& failure : thrown) EXPECT_EQ(describe(failure), "nothing");
    EXPECT_EQ(num_wrong, 0);
  }
}

TEST(InTurns, ARankWaitsForItsStreamBeforeItHandsTheTurnOver) {
  constexpr int kRanks = 4;
  HostPlaces memory(kRanks);
  LoopbackGroup group(kRanks, kPatient);
  // The "device" runs launched work only when a rank waits for it.
  std::vector<int> launched(kRanks, 0);
  std::atomic<int> num_wrong{0};
  const auto thrown = on_ranks(group, [&](Communicator& host) {
    int pending = 0;
    const auto finish = [&](StreamHandle /*stream*/) {
      launched[host.rank()] += pending;
      pending = 0;
    };
    InTurns end(host, memory.places(), finish);
    end.begin_step();
    for (int i = 1; i <= 6; ++i) {
      ++pending;
      end.exchange({}, 0);
      // Ranks before this one have had their next turn already.
      for (int r = 0; r < kRanks; ++r) {
        if (launched[r] != (r < host.rank() ? i + 1 : i)) ++num_wrong;
      }
    }
    ++pending;
    end.end_step({});
    for (const int count : launched) {
      if (count != 7) ++num_wrong;
    }
  });
  for (const auto& failure : thrown) EXPECT_EQ(describe(failure), "nothing");
  EXPECT_EQ(num_wrong, 0);
}

TEST(InTurns, AFailureOfOneRankReachesAllOthersAtTheirExchange) {
  constexpr int kRanks = 4;
  for (int failing = 0; failing < kRanks; ++failing) {
    HostPlaces memory(kRanks);
    RankThreads threads(kRanks, kPatient, nullptr);
    std::atomic<int> num_failed{0};
    const auto step = [&](int rank, Communicator& host) {
      InTurns end(host, memory.places(), nothing_to_wait_for);
      try {
        end.begin_step();
        end.exchange({}, 0);
        if (rank == failing) throw Error("no such kernel");
        end.exchange({}, 0);
        end.end_step({});
      } catch (const RankFailed& error) {
        EXPECT_EQ(std::string(error.what()), "rank " + std::to_string(failing) + ": no such kernel");
        ++num_failed;
        throw;
      }
    };
    EXPECT_EQ(testing::thrown_by([&] { threads.run(step); }), "Error: no such kernel");
    EXPECT_EQ(num_failed, kRanks - 1);
  }
}

TEST(InTurns, AStreamThatFailsEndsTheStepOfAllRanks) {
  constexpr int kRanks = 3;
  HostPlaces memory(kRanks);
  RankThreads threads(kRanks, kPatient, nullptr);
  const auto step = [&](int rank, Communicator& host) {
    InTurns end(host, memory.places(), [&](StreamHandle /*stream*/) {
      if (rank == 1) throw Error("CUDA error 700");
    });
    end.begin_step();
    end.exchange({}, 0);
    end.end_step({});
  };
  EXPECT_EQ(testing::thrown_by([&] { threads.run(step); }), "Error: CUDA error 700");
}

TEST(InTurns, ARankThatKeepsItsTurnIsLost) {
  expect_with_some_deadline([](std::chrono::milliseconds deadline) {
    constexpr int kRanks = 3;
    HostPlaces memory(kRanks);
    LoopbackGroup group(kRanks, deadline);
    std::atomic<int> num_lost{0};
    const auto thrown = on_ranks(group, [&](Communicator& host) {
      // The rank whose turn exceeds the deadline of the others goes on once they have given up.
      InTurns end(host, memory.places(), [&](StreamHandle /*stream*/) {
        while (host.rank() == 1 && num_lost < kRanks - 1) std::this_thread::yield();
      });
      try {
        end.begin_step();
        end.exchange({}, 0);
      } catch (const RankLost&) {
        ++num_lost;
        throw;
      }
    });
    std::string wrong;
    for (const auto& failure : thrown) {
      wrong += missing_in(describe(failure), {"RankLost: rank 1 is lost: within"});
    }
    return wrong;
  });
}

TEST(DeviceCommunicator, RefusesPartsThatDoNotFitAndExchangesOutsideOfSteps) {
  std::array<std::byte, 2 * kPlaceBytes> memory{};
  LoneCommunicator end(1, 4, memory.data(), kPlaceBytes);
  EXPECT_EQ(missing_in(testing::thrown_by([&] { end.exchange({}, 0); }), {"rank 1 is in no step"}), "");
  EXPECT_EQ(missing_in(testing::thrown_by([&] { end.end_step({}); }), {"rank 1 is in no step"}), "");
  end.begin_step();
  EXPECT_EQ(missing_in(testing::thrown_by([&] { end.begin_step(); }), {"rank 1 is in a step"}), "");
  EXPECT_EQ(missing_in(testing::thrown_by([&] { end.partial(257); }),
                       {"a part of 257 bytes is to be exchanged between ranks, allowed are 0 to 256"}),
            "");
  EXPECT_EQ(missing_in(testing::thrown_by([&] { LoneCommunicator(4, 4, memory.data(), kPlaceBytes); }),
                       {"rank 4 of 4"}),
            "");
  EXPECT_EQ(missing_in(testing::thrown_by([&] { LoneCommunicator(0, 9, memory.data(), kPlaceBytes); }),
                       {"9 ranks, allowed are 1 to 8"}),
            "");
  EXPECT_EQ(missing_in(testing::thrown_by([&] { LoneCommunicator(0, 2, memory.data(), 100); }),
                       {"a place of 100 bytes, which has to be a multiple of 256"}),
            "");
}

// This rule makes it safe to overwrite a part: between two parts in the same place lies another exchange.
TEST(DeviceCommunicator, TwoPartsInOnePlaceAlwaysHaveAnExchangeBetweenThem) {
  std::mt19937_64 random(7);
  std::array<std::byte, 2 * kPlaceBytes> memory{};
  LoneCommunicator end(0, 2, memory.data(), kPlaceBytes);
  const void* last = nullptr;
  int64_t exchanges_since_last = 0;
  for (int step = 0; step < 80; ++step) {
    end.begin_step();
    for (uint64_t i = random() % 4; i > 0; --i) {
      const void* part = end.partial(16);
      EXPECT_TRUE(part != last || exchanges_since_last > 1);
      const auto parts = end.exchange({}, 16);
      EXPECT_EQ(parts.parts[0], part);
      last = part;
      exchanges_since_last = 1;
    }
    const int64_t before = end.tally().num_exchanges;
    end.end_step({});
    exchanges_since_last += end.tally().num_exchanges - before;
  }
}

TEST(DeviceCommunicator, WithoutFlagsOnADeviceSmallPartsAreExchangedLikeOthers) {
  LoneCommunicator end = LoneCommunicator::measuring(0, 8);
  end.begin_step();
  EXPECT_EQ(end.small_exchange({}, 16), nullptr);
  EXPECT_EQ(end.tally().num_exchanges, 0);
}

TEST(DeviceCommunicator, TalliesWhatAStepReceivesAndItsModelledTime) {
  LoneCommunicator end = LoneCommunicator::measuring(0, 8);
  end.begin_step();
  end.partial(1 << 20);
  EXPECT_EQ(end.exchange({}, 1 << 20).num_ranks, 8);
  end.partial(int64_t{1} << 33);
  end.exchange({}, 1000);
  end.end_step({});
  EXPECT_EQ(end.tally().num_exchanges, 2);
  EXPECT_EQ(end.tally().bytes_received, 7 * ((1 << 20) + 1000));
  EXPECT_NEAR(end.tally().modelled_us, 2 * 3.3 + 7 * ((1 << 20) + 1000) / 380e3, 1e-6);
  EXPECT_EQ(end.most_part_bytes(), int64_t{1} << 33);
  end.begin_step();
  EXPECT_EQ(end.tally().num_exchanges, 0);
}

}  // namespace
}  // namespace hadal

#include "comm/loopback.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/allocation/failing_allocator.h"
#include "tests/comm/ranks.h"

namespace hadal {
namespace {

using testing::describe;
using testing::kPatient;
using testing::on_ranks;

using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;

constexpr size_t kSizes[] = {0, 1, 7, 1000, 100003};

// Returns values of very different magnitude, so that the order of a sum shows in its bits.
std::vector<Floats> random_floats(int num_ranks, size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Floats> parts(num_ranks, Floats(count));
  for (Floats& part : parts) {
    for (float& value : part) {
      const auto mantissa = static_cast<float>(static_cast<int64_t>(random() % 2000001) - 1000000);
      value = std::ldexp(mantissa, static_cast<int>(random() % 24) - 30);
    }
  }
  return parts;
}

Floats sum_in_order(const std::vector<Floats>& parts) {
  Floats sums = parts[0];
  for (size_t r = 1; r < parts.size(); ++r) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] = sums[i] + parts[r][i];
  }
  return sums;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

// Returns bytes that identify their sender, their receiver and their place.
Bytes marked_bytes(int from, int to, size_t count) {
  Bytes bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + from * 31 + to * 113 + 1);
  return bytes;
}

// Returns a size for each pair of ranks: unequal ones, of which some are 0.
size_t size_between(int from, int to, size_t largest) {
  return (from + 2 * to) % 3 == 0 ? 0
                                  : largest / (1 + static_cast<size_t>(from) + static_cast<size_t>(to) * 2);
}

void expect_nothing_thrown(const std::vector<std::exception_ptr>& thrown) {
  for (size_t rank = 0; rank < thrown.size(); ++rank) {
    EXPECT_EQ(describe(thrown[rank]), "nothing") << "rank " << rank;
  }
}

class LoopbackOf : public ::testing::TestWithParam<int> {
 protected:
  int num_ranks() const { return GetParam(); }
};

TEST_P(LoopbackOf, EachEndKnowsItsRankAndTheNumberOfRanks) {
  LoopbackGroup group(num_ranks(), kPatient);
  EXPECT_EQ(group.num_ranks(), num_ranks());
  for (int rank = 0; rank < num_ranks(); ++rank) {
    EXPECT_EQ(group.end(rank).rank(), rank);
    EXPECT_EQ(group.end(rank).num_ranks(), num_ranks());
  }
}

TEST_P(LoopbackOf, AllReduceGivesEveryRankTheBitsOfTheOrderedSum) {
  LoopbackGroup group(num_ranks(), kPatient);
  for (const size_t count : kSizes) {
    std::vector<Floats> parts = random_floats(num_ranks(), count, count);
    const Floats expected = sum_in_order(parts);
    expect_nothing_thrown(on_ranks(group, [&](Communicator& comm) { comm.all_reduce(parts[comm.rank()]); }));
    for (int rank = 0; rank < num_ranks(); ++rank) {
      EXPECT_TRUE(same_bits(parts[rank], expected)) << count << " elements, rank " << rank;
    }
  }
}

TEST_P(LoopbackOf, ReduceScatterGivesEachRankItsPartOfTheOrderedSum) {
  LoopbackGroup group(num_ranks(), kPatient);
  for (const size_t count : kSizes) {
    std::vector<Floats> parts = random_floats(num_ranks(), count * num_ranks(), count + 1);
    const Floats expected = sum_in_order(parts);
    std::vector<Floats> mine(num_ranks(), Floats(count, -1));
    expect_nothing_thrown(on_ranks(
        group, [&](Communicator& comm) { comm.reduce_scatter(parts[comm.rank()], mine[comm.rank()]); }));
    for (int rank = 0; rank < num_ranks(); ++rank) {
      EXPECT_TRUE(same_bits(mine[rank], std::span(expected).subspan(rank * count, count)))
          << count << " elements, rank " << rank;
    }
  }
}

TEST_P(LoopbackOf, AllGatherStoresUnequalPartsInOrderOfRank) {
  LoopbackGroup group(num_ranks(), kPatient);
  for (const size_t largest : kSizes) {
    std::vector<Bytes> mine;
    Bytes expected;
    for (int rank = 0; rank < num_ranks(); ++rank) {
      mine.push_back(marked_bytes(rank, 0, rank == 0 ? largest : size_between(rank, 0, largest)));
      expected.insert(expected.end(), mine.back().begin(), mine.back().end());
    }
    std::vector<Bytes> all(num_ranks(), Bytes(expected.size()));
    expect_nothing_thrown(
        on_ranks(group, [&](Communicator& comm) { comm.all_gather(mine[comm.rank()], all[comm.rank()]); }));
    for (int rank = 0; rank < num_ranks(); ++rank) {
      EXPECT_TRUE(all[rank] == expected) << "up to " << largest << " bytes, rank " << rank;
    }
  }
}

TEST_P(LoopbackOf, AllGatherAcceptsAPartThatIsAlreadyInItsPlace) {
  constexpr size_t kPart = 1000;
  LoopbackGroup group(num_ranks(), kPatient);
  std::vector<Bytes> all(num_ranks(), Bytes(kPart * num_ranks()));
  Bytes expected;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    const Bytes part = marked_bytes(rank, 0, kPart);
    std::copy(part.begin(), part.end(), all[rank].begin() + rank * kPart);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  expect_nothing_thrown(on_ranks(group, [&](Communicator& comm) {
    const std::span<std::byte> mine = all[comm.rank()];
    comm.all_gather(mine.subspan(comm.rank() * kPart, kPart), mine);
  }));
  for (int rank = 0; rank < num_ranks(); ++rank) EXPECT_TRUE(all[rank] == expected) << "rank " << rank;
}

// Exchange holds the buffers of one rank in an all_to_all, and the bytes that it should receive.
struct Exchange {
  Exchange(int num_ranks, int rank, size_t largest) {
    for (int other = 0; other < num_ranks; ++other) {
      sent.push_back(marked_bytes(rank, other, size_between(rank, other, largest)));
      expected.push_back(marked_bytes(other, rank, size_between(other, rank, largest)));
      received.emplace_back(expected.back().size());
    }
    send.assign(sent.begin(), sent.end());
    receive.assign(received.begin(), received.end());
  }
  std::vector<Bytes> sent, expected, received;
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
};

TEST_P(LoopbackOf, AllToAllDeliversEachPartToItsRank) {
  LoopbackGroup group(num_ranks(), kPatient);
  for (const size_t largest : kSizes) {
    std::vector<Exchange> exchanges;
    for (int rank = 0; rank < num_ranks(); ++rank) exchanges.emplace_back(num_ranks(), rank, largest);
    expect_nothing_thrown(on_ranks(group, [&](Communicator& comm) {
      comm.all_to_all(exchanges[comm.rank()].send, exchanges[comm.rank()].receive);
    }));
    for (int rank = 0; rank < num_ranks(); ++rank) {
      EXPECT_TRUE(exchanges[rank].received == exchanges[rank].expected)
          << "up to " << largest << " bytes, rank " << rank;
    }
  }
}

TEST_P(LoopbackOf, NoRankPassesABarrierBeforeAllHaveReachedIt) {
  constexpr int kRounds = 500;
  LoopbackGroup group(num_ranks(), kPatient);
  std::vector<int> reached(num_ranks(), 0);  // plain memory: TSan checks that the barrier orders it
  std::atomic<int> num_early{0};
  expect_nothing_thrown(on_ranks(group, [&](Communicator& comm) {
    for (int round = 1; round <= kRounds; ++round) {
      reached[comm.rank()] = round;
      comm.barrier();
      for (const int other : reached) num_early += other != round;
      comm.barrier();
    }
  }));
  EXPECT_EQ(num_early.load(), 0);
}

// Ranks free their buffers as soon as a call returns, which the address sanitizer checks against the others'
// reads.
TEST_P(LoopbackOf, DelaysOfRanksChangeNoBit) {
  constexpr int kRepetitions = 200;
  constexpr size_t kCount = 1003;
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  LoopbackGroup group(num_ranks(), kPatient);
  const std::vector<Floats> parts = random_floats(num_ranks(), kCount, seed);
  const Floats expected = sum_in_order(parts);
  std::vector<int> num_wrong(num_ranks(), 0);
  expect_nothing_thrown(on_ranks(group, [&](Communicator& comm) {
    std::mt19937_64 random(seed + static_cast<uint64_t>(comm.rank()));
    for (int repetition = 0; repetition < kRepetitions; ++repetition) {
      {
        Floats data = parts[comm.rank()];
        testing::delay(random);
        comm.all_reduce(data);
        num_wrong[comm.rank()] += !same_bits(data, expected);
      }
      Exchange exchange(num_ranks(), comm.rank(), kCount);
      testing::delay(random);
      comm.all_to_all(exchange.send, exchange.receive);
      num_wrong[comm.rank()] += exchange.received != exchange.expected;
    }
  }));
  EXPECT_EQ(std::accumulate(num_wrong.begin(), num_wrong.end(), 0), 0);
}

TEST_P(LoopbackOf, CallsAllocateNothing) {
  LoopbackGroup group(num_ranks(), kPatient);
  std::vector<Floats> parts = random_floats(num_ranks(), 1000 * num_ranks(), 1);
  std::vector<Floats> mine(num_ranks(), Floats(1000));
  std::vector<Bytes> bytes(num_ranks(), Bytes(10 * num_ranks()));
  std::vector<Exchange> exchanges;
  for (int rank = 0; rank < num_ranks(); ++rank) exchanges.emplace_back(num_ranks(), rank, 1000);
  testing::fail_allocation(1, testing::Victims::kMarked, testing::Failure::kAtOnce);
  const auto thrown = on_ranks(group, [&](Communicator& comm) {
    const int rank = comm.rank();
    testing::mark_this_thread();
    for (int repetition = 0; repetition < 20; ++repetition) {
      comm.all_reduce(parts[rank]);
      comm.reduce_scatter(parts[rank], mine[rank]);
      comm.all_gather(std::span(bytes[rank]).subspan(10 * rank, 10), bytes[rank]);
      comm.all_to_all(exchanges[rank].send, exchanges[rank].receive);
      comm.barrier();
    }
  });
  EXPECT_FALSE(testing::stop_failing());
  expect_nothing_thrown(thrown);
}

// Otherwise the tests above could pass for sums in another order. Two parts have the same sum in either
// order.
TEST(Loopback, TheOrderOfThreeOrMorePartsShowsInTheBitsOfTheirSum) {
  for (const int num_ranks : {3, 4, 8}) {
    std::vector<Floats> parts = random_floats(num_ranks, 1000, 1000);
    const Floats ascending = sum_in_order(parts);
    std::swap(parts[0], parts[2]);
    EXPECT_FALSE(same_bits(sum_in_order(parts), ascending)) << num_ranks << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, LoopbackOf, ::testing::Values(1, 2, 3, 4, 8),
                         [](const auto& size) { return std::to_string(size.param) + "Ranks"; });

}  // namespace
}  // namespace hadal

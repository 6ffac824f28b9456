// Tests how much memory is read, and how often, to measure its bandwidth. Nothing here judges a speed.
#include "cli/bandwidth_probe.h"

#include <gtest/gtest.h>

namespace hadal::cli {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(BandwidthProbe, ReadsSeveralTimesWhatTheCachesHold) {
  EXPECT_EQ(probe_bytes(0), 1024 * kMiB);
  EXPECT_EQ(probe_bytes(32 * kMiB), 1024 * kMiB);
  EXPECT_EQ(probe_bytes(384 * kMiB), 4 * 384 * kMiB);
  EXPECT_EQ(probe_bytes(8192 * kMiB), 4096 * kMiB);
  EXPECT_EQ(probe_bytes(SIZE_MAX), 4096 * kMiB);
}

TEST(BandwidthProbe, OnePassIsEnoughWhereTimeIsShort) {
  ThreadPool pool(2);
  BandwidthProbe probe(pool, 8 * kMiB);
  const double first = probe.measure(0.0);
  EXPECT_GT(first, 0.0);
  EXPECT_EQ(probe.num_passes(), 1);
  EXPECT_GE(probe.measure(0.0), first) << "the best of all passes counts";
  EXPECT_EQ(probe.num_passes(), 2);
  probe.measure(1e9);
  EXPECT_EQ(probe.num_passes(), 7) << "there are five passes at most";
}

}  // namespace
}  // namespace hadal::cli

// Compares un-absorbed prefill on the device with a loop in double precision over the same inputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/cuda/mla/prefill_fixture.h"

namespace hadal::testing {
namespace {

using namespace prefill;

struct Segment {
  int32_t q_len = 0;
  int32_t prefix = 0;  // keys before the first query
};

// Lays out runs of whole segments, with NaN rows before, between and after them.
struct Layout {
  std::vector<cuda::PrefillSegmentRun> runs;
  int64_t m = 0;
  int64_t num_keys = 0;
};
Layout lay_out(const std::vector<Segment>& segments, int32_t gap) {
  Layout layout;
  layout.m = gap;
  layout.num_keys = gap;
  for (const Segment& segment : segments) {
    layout.runs.push_back({.q_begin = static_cast<int32_t>(layout.m),
                           .q_len = segment.q_len,
                           .q_pos = segment.prefix,
                           .k_begin = static_cast<int32_t>(layout.num_keys),
                           .k_len = segment.prefix + segment.q_len,
                           .k_pos = 0});
    layout.m += segment.q_len + gap;
    layout.num_keys += segment.prefix + segment.q_len + gap;
  }
  return layout;
}

Problem make_problem(const Layout& layout, const Shape& shape) {
  Problem problem(shape, layout.m, layout.num_keys, std::random_device()());
  for (const cuda::PrefillSegmentRun& run : layout.runs) {
    problem.fill_queries(run.q_begin, run.q_len);
    problem.fill_keys(run.k_begin, run.k_len);
  }
  return problem;
}

// Checks the tuned and the plain kernel. With none_before ≥ 0, queries attend to selected keys, which are not
// among the first none_before ones.
void check(const std::vector<Segment>& segments, const Shape& shape, int32_t gap = 5,
           double tolerance = kTolerance, int64_t none_before = -1) {
  const Layout layout = lay_out(segments, gap);
  Problem problem = make_problem(layout, shape);
  int64_t most_keys = 0;
  for (const cuda::PrefillSegmentRun& run : layout.runs) most_keys = std::max<int64_t>(most_keys, run.k_len);
  if (none_before >= 0) problem.select_keys(most_keys, none_before);
  Device device(problem);
  Output plain;
  for (const bool reference : {true, false}) {
    SCOPED_TRACE(reference ? "plain kernel" : "tuned kernel");
    device.poison();
    device.run(layout.runs, false, test_launch(reference));
    const Output output = device.download();
    expect_attention(problem, layout.runs, output, tolerance);
    if (::testing::Test::HasFailure()) return;
    if (reference) {
      plain = output;
    } else {
      expect_same_attention(problem, layout.runs, plain, output);
    }
  }
}

TEST(MlaPrefill, OneTileOfOneHeadMatchesDoublePrecision) {
  check({{64, 0}}, {.heads = 1, .q_padding = 0, .out_padding = 0}, 0);
  check({{128, 0}}, {.heads = 1, .q_padding = 0, .out_padding = 0}, 0);
}

TEST(MlaPrefill, EveryLengthMatchesDoublePrecision) {
  for (const int32_t length : {1, 63, 64, 65, 127, 128, 129, 255, 257, 1000}) {
    for (const int heads : {1, 2, 16}) {
      SCOPED_TRACE("length " + std::to_string(length) + ", heads " + std::to_string(heads));
      check({{length, 0}}, {.heads = heads});
      if (HasFailure()) return;
    }
  }
}

TEST(MlaPrefill, SeveralSegmentsMatchDoublePrecision) {
  check({{1, 0}, {63, 0}, {64, 0}, {65, 0}, {127, 0}, {128, 0}, {129, 0}, {1000, 0}}, {.heads = 2});
  // Without gaps the rows of the next segment follow directly.
  check({{129, 0}, {1, 0}, {300, 0}, {64, 0}, {40, 0}}, {.heads = 3}, 0);
}

TEST(MlaPrefill, PrefixesMatchDoublePrecision) {
  check({{1, 1}, {1, 127}, {1, 128}, {1, 500}, {5, 60}, {64, 64}, {100, 29}, {128, 1}, {200, 1000}},
        {.heads = 4});
}

TEST(MlaPrefill, ManySegmentsMatchDoublePrecision) {
  std::vector<Segment> segments;
  std::mt19937 random(7);
  for (int i = 0; i < 90; ++i) {
    segments.push_back({.q_len = static_cast<int32_t>(random() % (i % 9 == 0 ? 400 : 30)),
                        .prefix = static_cast<int32_t>(random() % (i % 5 == 0 ? 600 : 3))});
  }
  check(segments, {.heads = 2});
}

TEST(MlaPrefill, ManyHeadsMatchDoublePrecision) {
  check({{200, 0}, {129, 70}}, {.heads = 128});
  check({{70, 0}, {140, 0}}, {.heads = 21});
}

TEST(MlaPrefill, PaddedHeadsMatchDoublePrecision) {
  check({{150, 20}}, {.heads = 5, .q_padding = 64, .q_head_padding = 64, .out_padding = 136});
}

TEST(MlaPrefill, OddStridesMatchDoublePrecision) {
  check({{70, 3}, {20, 0}}, {.heads = 3, .q_padding = 1, .q_head_padding = 3, .out_padding = 1});
}

// Scores of some hundreds give weights of nearly one and nearly zero.
TEST(MlaPrefill, SteepSoftmaxMatchesDoublePrecision) {
  check({{260, 100}}, {.heads = 2, .q_sigma = 30.0F});
}

TEST(MlaPrefill, WithoutLseMatchesDoublePrecision) {
  const Layout layout = lay_out({{100, 50}, {30, 0}}, 3);
  const Problem problem = make_problem(layout, {.heads = 2});
  Device device(problem);
  for (const bool reference : {true, false}) {
    device.poison();
    device.run(layout.runs, false, test_launch(reference), false);
    expect_attention(problem, layout.runs, device.download(), kTolerance, false);
  }
}

// Checks passes over [0, 192), [192, 320), [320, end) of each sequence's keys; later passes hold keys that
// are not visible to early queries.
void check_passes(bool is_f16, double tolerance, bool selects = false) {
  const Layout layout = lay_out({{600, 0}, {130, 400}, {1, 330}, {250, 100}}, 4);
  Problem problem = make_problem(layout, {.heads = 4, .is_f16 = is_f16});
  if (selects) problem.select_keys(600, 250);  // the first pass has none of them
  const std::vector<int32_t> cuts = {0, 192, 320, 1000};
  for (const bool reference : {true, false}) {
    SCOPED_TRACE(reference ? "plain kernel" : "tuned kernel");
    Device device(problem);
    for (size_t pass = 0; pass + 1 < cuts.size(); ++pass) {
      std::vector<cuda::PrefillSegmentRun> runs = layout.runs;
      for (cuda::PrefillSegmentRun& run : runs) {
        const int32_t begin = std::min(run.k_len, cuts[pass]);
        const int32_t end = std::min(run.k_len, cuts[pass + 1]);
        run.k_begin += begin;
        run.k_pos = begin;
        run.k_len = end - begin;
      }
      device.run(runs, pass > 0, test_launch(reference));
    }
    expect_attention(problem, layout.runs, device.download(), 1.5 * tolerance);
  }
}
TEST(MlaPrefill, PassesTogetherGiveTheResultOfOne) {
  check_passes(false, kTolerance);
}

TEST(MlaPrefill, SelectedKeysMatchDoublePrecision) {
  check({{64, 64}}, {.heads = 1, .q_padding = 0, .out_padding = 0}, 0, kTolerance, 0);
  check({{128, 300}, {1, 511}, {65, 63}, {200, 0}}, {.heads = 3}, 5, kTolerance, 0);
  // Many rows of the last two segments have no selected key, and give zeros.
  check({{300, 700}, {130, 130}, {190, 0}}, {.heads = 2}, 3, kTolerance, 200);
}

TEST(MlaPrefill, PassesOverSelectedKeysGiveTheResultOfOne) {
  check_passes(false, kTolerance, true);
}

TEST(MlaPrefill, QueriesThatSeeNothingGiveZeros) {
  Layout layout = lay_out({{300, 0}, {64, 10}, {20, 0}}, 4);
  const Problem problem = make_problem(layout, {.heads = 3});
  for (cuda::PrefillSegmentRun& run : layout.runs)
    run.k_pos = 170;  // for the first 170 queries, or all, no key is visible
  layout.runs[2].k_len = 0;
  Device device(problem);
  for (const bool reference : {true, false}) {
    SCOPED_TRACE(reference ? "plain kernel" : "tuned kernel");
    device.poison();
    device.run(layout.runs, false, test_launch(reference));
    const Output first = device.download();
    expect_attention(problem, layout.runs, first, kTolerance);
    // In a later pass these keys change nothing for the queries to which they are not visible.
    device.run(layout.runs, true, test_launch(reference));
    const Output second = device.download();
    for (int32_t row = layout.runs[0].q_begin; row < layout.runs[0].q_begin + 170; ++row) {
      for (int head = 0; head < 3; ++head) {
        EXPECT_EQ(second.lse[row * 3 + head], -kInfinity);
        EXPECT_EQ(second.out[row * problem.out_stride + head * kValue], 0);
      }
    }
    // For the other queries these are the same keys once more: the same mean with twice the weight.
    const int64_t last = layout.runs[0].q_begin + layout.runs[0].q_len - 1;
    EXPECT_NEAR(second.lse[last * 3], first.lse[last * 3] + std::log(2.0F), 2e-3);
    EXPECT_NEAR(problem.value(second.out[last * problem.out_stride]),
                problem.value(first.out[last * problem.out_stride]), 1e-2);
  }
}

// Checks that the bits are the same in every launch, whatever the order in which blocks get their work. With
// one multiprocessor there are many waves, and tiles are paired.
void check_same_bits(const std::vector<Segment>& segments, int heads, bool is_f16 = false) {
  const Layout layout = lay_out(segments, 4);
  const Problem problem = make_problem(layout, {.heads = heads, .is_f16 = is_f16});
  Device device(problem);
  Output first;
  for (const int num_sms : {132, 132, 64, 7, 1}) {
    SCOPED_TRACE("multiprocessors " + std::to_string(num_sms));
    device.poison();
    cuda::Launch launch = test_launch();
    launch.num_sms = num_sms;
    launch.pdl = num_sms != 7;
    device.run(layout.runs, false, launch);
    const Output output = device.download();
    if (first.out.empty()) {
      expect_attention(problem, layout.runs, output, kTolerance);
      first = output;
    }
    EXPECT_EQ(std::memcmp(first.out.data(), output.out.data(), first.out.size() * sizeof(uint16_t)), 0);
    EXPECT_EQ(std::memcmp(first.lse.data(), output.lse.data(), first.lse.size() * sizeof(float)), 0);
  }
}

TEST(MlaPrefill, GivesTheSameBitsInAnyOrder) {
  check_same_bits({{700, 0}, {130, 400}, {64, 0}, {300, 17}}, 12);
}
TEST(MlaPrefill, GivesTheSameBitsForOneSegment) {
  check_same_bits({{900, 0}}, 8);     // an even number of tiles
  check_same_bits({{850, 700}}, 11);  // an odd one
}

TEST(MlaPrefill, Float16MatchesDoublePrecision) {
  for (const int32_t length : {1, 64, 65, 128, 257, 1000}) {
    SCOPED_TRACE("length " + std::to_string(length));
    check({{length, 0}}, {.heads = 2, .is_f16 = true}, 5, kToleranceF16);
  }
  check({{1, 1}, {1, 127}, {5, 60}, {64, 64}, {128, 1}, {200, 1000}}, {.heads = 4, .is_f16 = true}, 5,
        kToleranceF16);
  check({{150, 20}}, {.heads = 5, .q_padding = 64, .q_head_padding = 64, .out_padding = 136, .is_f16 = true},
        5, kToleranceF16);
  check({{70, 3}, {20, 0}},
        {.heads = 3, .q_padding = 1, .q_head_padding = 3, .out_padding = 1, .is_f16 = true}, 5,
        kToleranceF16);
  check_passes(true, kToleranceF16);
  check_same_bits({{700, 0}, {130, 400}, {64, 0}, {300, 17}}, 12, true);
}

}  // namespace
}  // namespace hadal::testing

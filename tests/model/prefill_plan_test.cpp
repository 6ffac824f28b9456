#include "model/cuda/prefill_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"

namespace hadal {
namespace {

// Checks what must be true of every plan: each (query, visible key) pair is in exactly one pass, and the
// passes follow the rules of prefill_plan.h.
void check_plan(const std::vector<PrefillSegment>& segments, int64_t max_keys) {
  PrefillPlan plan;
  plan.passes.resize(3);  // left over from an earlier step
  plan_prefill(segments, max_keys, {}, plan);

  // Each row of q belongs to one segment.
  std::map<int32_t, size_t> segment_of_row;
  for (size_t i = 0; i < segments.size(); ++i) {
    for (int32_t q = 0; q < segments[i].q_len; ++q) segment_of_row[segments[i].q_begin + q] = i;
  }
  std::map<int32_t, std::vector<int>> times_seen;  // how often row of q attends to each position of the
                                                   // keys
  for (const auto& [row, i] : segment_of_row) times_seen[row].resize(segments[i].kv_len);

  int32_t next_key_run = 0;
  int32_t next_segment_run = 0;
  std::map<int32_t, bool> started;  // rows of q that an earlier pass has written
  for (const PrefillPass& pass : plan.passes) {
    EXPECT_EQ(pass.first_key_run, next_key_run);
    EXPECT_EQ(pass.first_segment_run, next_segment_run);
    next_key_run += pass.num_key_runs;
    next_segment_run += pass.num_segment_runs;
    ASSERT_LE(next_key_run, static_cast<int32_t>(plan.key_runs.size()));
    ASSERT_LE(next_segment_run, static_cast<int32_t>(plan.segment_runs.size()));
    EXPECT_GT(pass.num_keys, 0);
    EXPECT_LE(pass.num_keys, max_keys);

    std::vector<std::pair<int32_t, int32_t>> key_at(pass.num_keys,
                                                    {-1, -1});  // sequence and position by row of the pass
    int64_t max_count = 0;
    for (int32_t r = pass.first_key_run; r < next_key_run; ++r) {
      const cuda::KeyRun& run = plan.key_runs[r];
      EXPECT_EQ(run.begin % kPageSize, 0);
      max_count = std::max<int64_t>(max_count, run.count);
      for (int32_t k = 0; k < run.count; ++k) {
        ASSERT_LT(run.out_begin + k, pass.num_keys);
        EXPECT_EQ(key_at[run.out_begin + k].first, -1) << "two keys in one row";
        key_at[run.out_begin + k] = {run.seq_idx, run.begin + k};
      }
    }
    EXPECT_EQ(pass.max_count, max_count);
    EXPECT_EQ(std::count(key_at.begin(), key_at.end(), std::pair(-1, -1)), 0) << "a row without a key";

    for (int32_t r = pass.first_segment_run; r < next_segment_run; ++r) {
      const cuda::PrefillSegmentRun& run = plan.segment_runs[r];
      for (int32_t q = 0; q < run.q_len; ++q) {
        const int32_t row = run.q_begin + q;
        ASSERT_TRUE(segment_of_row.contains(row)) << row;
        const PrefillSegment& segment = segments[segment_of_row[row]];
        EXPECT_EQ(run.q_pos + q, segment.kv_len - segment.q_len + (row - segment.q_begin));
        EXPECT_EQ(started[row], pass.accumulate) << "row " << row;
        for (int32_t k = 0; k < run.k_len; ++k) {
          const auto [sequence, position] = key_at.at(run.k_begin + k);
          EXPECT_EQ(sequence, segment.seq_idx);
          EXPECT_EQ(position, run.k_pos + k);
          if (position <= run.q_pos + q) ++times_seen[row][position];
        }
      }
    }
    for (int32_t r = pass.first_segment_run; r < next_segment_run; ++r) {
      const cuda::PrefillSegmentRun& run = plan.segment_runs[r];
      for (int32_t q = 0; q < run.q_len; ++q) started[run.q_begin + q] = true;
    }
  }
  EXPECT_EQ(next_key_run, static_cast<int32_t>(plan.key_runs.size()));
  EXPECT_EQ(next_segment_run, static_cast<int32_t>(plan.segment_runs.size()));
  for (const auto& [row, seen] : times_seen) {
    const PrefillSegment& segment = segments[segment_of_row[row]];
    const int32_t visible = segment.kv_len - segment.q_len + (row - segment.q_begin) + 1;
    for (int32_t k = 0; k < segment.kv_len; ++k) {
      ASSERT_EQ(seen[k], k < visible ? 1 : 0) << "row " << row << ", key " << k;
    }
  }
}

int64_t passes_of(const std::vector<PrefillSegment>& segments, int64_t max_keys) {
  PrefillPlan plan;
  plan_prefill(segments, max_keys, {}, plan);
  return static_cast<int64_t>(plan.passes.size());
}

TEST(PrefillPlan, AnEmptyStepHasAnEmptyPlan) {
  PrefillPlan plan;
  plan.passes.resize(2);
  plan_prefill({}, 64, {}, plan);
  EXPECT_TRUE(plan.passes.empty());
  check_plan({{.seq_idx = 3, .q_begin = 5, .q_len = 0, .kv_len = 9}}, 64);
}

TEST(PrefillPlan, SegmentsThatFitShareAPass) {
  const std::vector<PrefillSegment> segments = {{0, 0, 20, 20}, {4, 20, 1, 100}, {2, 21, 63, 64}};
  check_plan(segments, 184);
  EXPECT_EQ(passes_of(segments, 184), 1);
  check_plan(segments, 183);
  EXPECT_EQ(passes_of(segments, 183), 2);
}

TEST(PrefillPlan, PassesAreFilledWhateverTheOrder) {
  // If each pass accepted only the next segment in the given order, there would be four passes.
  const std::vector<PrefillSegment> segments = {{0, 0, 1, 90}, {1, 1, 1, 30}, {2, 2, 1, 100}, {3, 3, 1, 28}};
  check_plan(segments, 128);
  EXPECT_EQ(passes_of(segments, 128), 2);
}

TEST(PrefillPlan, ALongSegmentIsCutAtPages) {
  for (const int32_t kv_len : {129, 256, 257, 1000}) {
    for (const int32_t q_len : {1, 64, 100, kv_len}) {
      const std::vector<PrefillSegment> segments = {{1, 0, q_len, kv_len}};
      for (const int64_t max_keys : {64, 100, 128}) {
        check_plan(segments, max_keys);
        const int64_t largest = max_keys / 64 * 64;
        EXPECT_EQ(passes_of(segments, max_keys), (kv_len + largest - 1) / largest)
            << kv_len << " in " << max_keys;
      }
    }
  }
}

TEST(PrefillPlan, RandomStepsGiveValidPlans) {
  std::mt19937 random(20240517);
  for (int trial = 0; trial < 60; ++trial) {
    const auto below = [&](int32_t limit) {
      return static_cast<int32_t>(random() % static_cast<uint32_t>(limit));
    };
    std::vector<PrefillSegment> segments;
    int32_t rows = below(5);
    const int32_t count = 1 + below(8);
    for (int32_t i = 0; i < count; ++i) {
      const int32_t q_len = below(70);
      segments.push_back(
          {.seq_idx = count - i, .q_begin = rows, .q_len = q_len, .kv_len = q_len + below(300)});
      rows += q_len;
    }
    check_plan(segments, 64 + below(300));
    if (HasFailure()) FAIL() << "trial " << trial;
  }
}

// Checks that each token of a segment that attends absorbed is in one row of one group, where the keys up to
// its own are visible, and that the other segments are planned as if the absorbed ones were absent.
void check_absorbed(const std::vector<PrefillSegment>& segments, const PrefillPaths& paths) {
  PrefillPlan plan;
  plan.absorbed_rows.resize(5);  // left over from an earlier step
  plan_prefill(segments, 256, paths, plan);
  EXPECT_EQ(plan.group_rows, absorbed_group_rows(paths.num_heads));
  const size_t group_rows = plan.group_rows;
  ASSERT_EQ(plan.absorbed_rows.size(), plan.absorbed_kv_len.size() * group_rows);
  ASSERT_EQ(plan.absorbed_seq_idx.size(), plan.absorbed_kv_len.size());
  std::map<int32_t, std::pair<int32_t, int32_t>> seen;  // sequence and keys by row of q
  int64_t pairs = 0;
  for (size_t g = 0; g < plan.absorbed_kv_len.size(); ++g) {
    for (size_t i = 0; i < group_rows; ++i) {
      const auto keys = plan.absorbed_kv_len[g] - static_cast<int32_t>(group_rows - 1 - i);
      EXPECT_GT(keys, 0) << "the keys of an empty row belong to a sequence too";
      const int32_t row = plan.absorbed_rows[g * group_rows + i];
      if (row < 0) continue;
      EXPECT_FALSE(seen.contains(row)) << row;
      seen[row] = {plan.absorbed_seq_idx[g], keys};
    }
    pairs += int64_t{plan.absorbed_kv_len[g]} * plan.group_rows;
  }
  EXPECT_EQ(plan.absorbed_pairs, pairs);
  std::vector<PrefillSegment> others;
  for (const PrefillSegment& segment : segments) {
    if (!prefill_absorbed(segment.q_len, segment.kv_len, paths)) {
      others.push_back(segment);
      continue;
    }
    for (int32_t i = 0; i < segment.q_len; ++i) {
      const std::pair expected(segment.seq_idx, segment.kv_len - segment.q_len + i + 1);
      EXPECT_EQ(seen.at(segment.q_begin + i), expected) << "token " << i;
      seen.erase(segment.q_begin + i);
    }
  }
  EXPECT_TRUE(seen.empty());
  PrefillPlan rest;
  plan_prefill(others, 256, {}, rest);
  EXPECT_EQ(plan.passes.size(), rest.passes.size());
  EXPECT_EQ(plan.segment_runs.size(), rest.segment_runs.size());
  int32_t next_group = 0;
  for (const AbsorbedPass& pass : plan.absorbed_passes) {
    EXPECT_EQ(pass.first_group, next_group);
    EXPECT_GT(pass.num_groups, 0);
    EXPECT_LE(int64_t{pass.num_groups} * plan.group_rows, kMaxAbsorbedRows);
    next_group += pass.num_groups;
  }
  EXPECT_EQ(next_group, static_cast<int32_t>(plan.absorbed_kv_len.size()));
}

TEST(PrefillPlan, GroupsHaveAbout128QueriesOverAllHeads) {
  EXPECT_EQ(absorbed_group_rows(1), 8);
  EXPECT_EQ(absorbed_group_rows(16), 8);
  EXPECT_EQ(absorbed_group_rows(32), 4);
  EXPECT_EQ(absorbed_group_rows(100), 1);
  EXPECT_EQ(absorbed_group_rows(128), 1);
}

TEST(PrefillPlan, ShortExtensionsOfLongPrefixesAttendAbsorbed) {
  const PrefillPaths v2_lite{.num_heads = 16};
  const PrefillPaths v3{.num_heads = 128, .fp8_weights = true};
  for (const PrefillPaths& paths : {v2_lite, v3}) {
    EXPECT_TRUE(prefill_absorbed(1, 16385, paths));
    EXPECT_TRUE(prefill_absorbed(8, 8200, paths));
    EXPECT_FALSE(prefill_absorbed(1, 1, paths));
    EXPECT_FALSE(prefill_absorbed(64, 64, paths)) << "a prompt without a prefix";
    EXPECT_FALSE(prefill_absorbed(2048, 8192, paths)) << "a chunk of a prompt";
    // For each length of the prefix there is one border, so a segment with more tokens never returns to the
    // absorbed path.
    for (const int64_t prefix : {0, 100, 1000, 5000, 20000, 160000}) {
      bool absorbed = true;
      for (int64_t n = 1; n <= 4096; ++n) {
        const bool now = prefill_absorbed(n, prefix + n, paths);
        EXPECT_FALSE(now && !absorbed) << n << " after " << prefix;
        absorbed = now;
      }
      EXPECT_FALSE(absorbed);
    }
  }
  EXPECT_FALSE(prefill_absorbed(1, 16385, {})) << "absorbed paths are not enabled";
  for (const int heads : {1, 16, 40, 128}) {
    const PrefillPaths paths{.num_heads = heads};
    check_absorbed({{0, 0, 1, 9000}}, paths);
    check_absorbed({{3, 0, 8, 9000}, {1, 8, 13, 7000}, {2, 21, 70, 70}, {0, 91, 1, 20000}}, paths);
    std::vector<PrefillSegment> many;
    for (int32_t i = 0; i < 200; ++i) many.push_back({i, 9 * i, 9, 5000 + i});
    check_absorbed(many, paths);
  }
}

TEST(PrefillPlan, TokensThatSeeMoreThanTheLimitSelectAndTheOthersDoNot) {
  PrefillPlan plan;
  // These are a prompt across the limit, one that ends at it, a part after a long prefix, and a single token
  // beyond the limit.
  const std::vector<PrefillSegment> segments = {{.seq_idx = 3, .q_begin = 0, .q_len = 700, .kv_len = 700},
                                                {.seq_idx = 1, .q_begin = 700, .q_len = 64, .kv_len = 64},
                                                {.seq_idx = 0, .q_begin = 764, .q_len = 10, .kv_len = 500},
                                                {.seq_idx = 2, .q_begin = 774, .q_len = 1, .kv_len = 65}};
  plan_prefill(segments, 1024, {.index_topk = 64}, plan);
  std::map<int32_t, int> times_computed;
  for (const SelectingPass& pass : plan.selecting_passes) {
    EXPECT_GT(pass.num_rows, 0);
    EXPECT_LE(pass.num_rows, kMaxAbsorbedRows);
    for (int32_t i = 0; i < pass.num_rows; ++i) {
      const int32_t row = pass.first_row + i;
      ++times_computed[row];
      for (const PrefillSegment& segment : segments) {
        if (row < segment.q_begin || row >= segment.q_begin + segment.q_len) continue;
        const int32_t sees = segment.kv_len - segment.q_len + (row - segment.q_begin) + 1;
        EXPECT_GT(sees, 64);
        EXPECT_EQ(plan.selecting_kv_len.at(pass.first + i), sees);
        EXPECT_EQ(plan.selecting_seq_idx.at(pass.first + i), segment.seq_idx);
      }
    }
  }
  for (const cuda::PrefillSegmentRun& run : plan.segment_runs) {
    EXPECT_LE(run.q_pos + run.q_len, 64);
    for (int32_t i = 0; i < run.q_len; ++i) ++times_computed[run.q_begin + i];
  }
  EXPECT_EQ(times_computed.size(), 775U);
  for (const auto& [row, times] : times_computed) EXPECT_EQ(times, 1) << row;
  EXPECT_EQ(plan.selecting_kv_len.size(), 636U + 10U + 1U);
  EXPECT_EQ(plan.selecting_passes.size(), 4U);

  plan_prefill(segments, 1024, {}, plan);
  EXPECT_TRUE(plan.selecting_passes.empty());
  EXPECT_TRUE(plan.selecting_kv_len.empty());
}

// Describes how a row of q attends in a plan.
struct RowPath {
  int to_all = 0;     // un-absorbed passes over all keys in which the row begins
  int masked = 0;     // the same with bits
  int absorbed = 0;   // groups that have the row
  int slots = 0;      // selecting passes that attend absorbed
  int with_bits = 0;  // selecting passes that write bits
  bool operator==(const RowPath&) const = default;
};
std::map<int32_t, RowPath> paths_of_rows(const PrefillPlan& plan) {
  std::map<int32_t, RowPath> paths;
  for (const PrefillPass& pass : plan.passes) {
    for (int32_t r = 0; r < pass.num_segment_runs; ++r) {
      const cuda::PrefillSegmentRun& run = plan.segment_runs[pass.first_segment_run + r];
      EXPECT_EQ(run.k_pos, pass.first_key);
      for (int32_t i = 0; i < run.q_len && !pass.accumulate; ++i)
        ++(pass.selects ? paths[run.q_begin + i].masked : paths[run.q_begin + i].to_all);
    }
  }
  for (const int32_t row : plan.absorbed_rows) {
    if (row >= 0) ++paths[row].absorbed;
  }
  for (const SelectingPass& pass : plan.selecting_passes) {
    EXPECT_LE(pass.num_rows, kMaxAbsorbedRows);
    for (int32_t i = 0; i < pass.num_rows; ++i)
      ++(pass.as_bits ? paths[pass.first_row + i].with_bits : paths[pass.first_row + i].slots);
  }
  return paths;
}

TEST(PrefillPlan, ThePathOfARowDependsOnTheKeysThatItSees) {
  constexpr int64_t kTopk = 64;
  const std::vector<PrefillSegment> segments = {{.seq_idx = 3, .q_begin = 0, .q_len = 700, .kv_len = 700},
                                                {.seq_idx = 1, .q_begin = 700, .q_len = 64, .kv_len = 64},
                                                {.seq_idx = 0, .q_begin = 764, .q_len = 10, .kv_len = 500},
                                                {.seq_idx = 2, .q_begin = 774, .q_len = 1, .kv_len = 65}};
  for (const int64_t threshold : {-1, 0, 30, 64, 65, 400, 495, 5000}) {
    for (const int64_t max_keys : {128, 1024}) {
      SCOPED_TRACE(::testing::Message() << "threshold " << threshold << " max_keys " << max_keys);
      const PrefillPaths paths{.num_heads = 128, .index_topk = kTopk, .seq_len_threshold = threshold};
      PrefillPlan plan;
      plan_prefill(segments, max_keys, paths, plan);
      const std::map<int32_t, RowPath> found = paths_of_rows(plan);
      EXPECT_EQ(found.size(), 775U);
      int64_t most_masked = 0;
      for (const PrefillSegment& segment : segments) {
        for (int32_t i = 0; i < segment.q_len; ++i) {
          const int64_t sees = segment.kv_len - segment.q_len + i + 1;
          RowPath want;
          if (sees <= kTopk) {
            // No segment here has so long a prefix that few tokens after it attend absorbed.
            ++(threshold >= 0 && sees > threshold ? want.absorbed : want.to_all);
          } else if (sees <= threshold) {
            want.masked = want.with_bits = 1;
            most_masked = std::max(most_masked, sees);
          } else {
            want.slots = 1;
          }
          EXPECT_TRUE(found.at(segment.q_begin + i) == want) << "row " << segment.q_begin + i;
        }
      }
      EXPECT_EQ(plan.bits_words, (most_masked + 63) / 64);
      EXPECT_EQ(paths.masks(), threshold > kTopk);
    }
  }
}

TEST(PrefillPlan, RefusesImpossibleInput) {
  PrefillPlan plan;
  const std::vector<PrefillSegment> fine = {{0, 0, 1, 1}};
  EXPECT_THROW(plan_prefill(fine, 63, {}, plan), Error);
  const std::vector<PrefillSegment> too_many = {{0, 0, 2, 1}};
  EXPECT_THROW(plan_prefill(too_many, 64, {}, plan), Error);
}

}  // namespace
}  // namespace hadal

// Compares the builder of draft trees with one that keeps every draft and sorts them at the end, and the
// choice of drafts with scores that are computed one by one.
#include "engine/speculation/draft_tree_builder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "base/gumbel.h"
#include "tests/engine/sampling_oracle.h"

namespace hadal {
namespace {

// Gives the children of a draft, best first, as a function of the tokens on its path. With few levels many
// drafts have the same confidence.
std::vector<DraftChoice> children_of(const std::vector<int32_t>& path, int64_t count, uint64_t seed,
                                     int levels) {
  std::seed_seq seeds(path.begin(), path.end());
  std::vector<uint32_t> mixed(1);
  seeds.generate(mixed.begin(), mixed.end());
  std::mt19937_64 random(mixed[0] + 7919 * seed);
  std::vector<DraftChoice> choices;
  for (int64_t i = 0; i < count; ++i) {
    choices.push_back({.token = static_cast<int32_t>(100 * path.size()) + static_cast<int32_t>(i),
                       .log_share = -static_cast<float>(random() % levels) / 4});
  }
  std::stable_sort(choices.begin(), choices.end(),
                   [](const auto& a, const auto& b) { return a.log_share > b.log_share; });
  return choices;
}

struct AnyDraft {
  std::vector<int32_t> path;  // tokens, its own last
  int parent = -1;
  float confidence = 0.0F;
};

// Keeps all drafts; the result is the best num_drafts of them.
std::vector<AnyDraft> brute_force(const DraftShape& shape, int64_t num_drafts, uint64_t seed, int levels) {
  std::vector<AnyDraft> all;
  std::vector<int> frontier = {-1};
  for (int64_t depth = 1; depth <= shape.num_steps; ++depth) {
    const int first = static_cast<int>(all.size());
    for (const int parent : frontier) {
      const AnyDraft from = parent < 0 ? AnyDraft() : all[parent];
      for (const DraftChoice& choice : children_of(from.path, shape.topk, seed, levels)) {
        AnyDraft child{.path = from.path, .parent = parent, .confidence = from.confidence + choice.log_share};
        child.path.push_back(choice.token);
        all.push_back(std::move(child));
      }
    }
    frontier.clear();
    for (int i = first; i < static_cast<int>(all.size()); ++i) frontier.push_back(i);
    std::stable_sort(frontier.begin(), frontier.end(),
                     [&](int a, int b) { return all[a].confidence > all[b].confidence; });
    frontier.resize(std::min<size_t>(frontier.size(), static_cast<size_t>(shape.topk)));
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const AnyDraft& a, const AnyDraft& b) { return a.confidence > b.confidence; });
  all.resize(std::min<size_t>(all.size(), static_cast<size_t>(num_drafts)));
  return all;
}

std::vector<int32_t> path_of(const DraftTreeBuilder& builder, int32_t draft) {
  std::vector<int32_t> path;
  for (; draft >= 0; draft = builder.draft(draft).parent)
    path.insert(path.begin(), builder.draft(draft).token);
  return path;
}

struct Grown {
  std::vector<DraftNode> nodes;
  int64_t num_expanded = 0;
};

Grown grow(const DraftShape& shape, int64_t num_drafts, uint64_t seed, int levels) {
  DraftTreeBuilder builder;
  builder.begin(shape, num_drafts);
  builder.add_children(-1, children_of({}, shape.topk, seed, levels));
  Grown grown;
  while (true) {
    const std::span<const int32_t> span = builder.expand();
    const std::vector<int32_t> expanded(span.begin(), span.end());
    if (expanded.empty()) break;
    EXPECT_LE(std::ssize(expanded), shape.topk);
    grown.num_expanded += std::ssize(expanded);
    for (const int32_t index : expanded) {
      const DraftTreeBuilder::Draft draft = builder.draft(index);
      EXPECT_LT(draft.record, num_drafts) << "NextN writes no further than the target";
      // The mask has the records of the path, all of which are different.
      uint64_t mask = 0;
      for (int32_t i = index; i >= 0; i = builder.draft(i).parent)
        mask |= uint64_t{1} << builder.draft(i).record;
      EXPECT_EQ(mask, draft.ancestors);
      EXPECT_EQ(std::popcount(mask), draft.depth);
    }
    for (const int32_t index : expanded)
      builder.add_children(index, children_of(path_of(builder, index), shape.topk, seed, levels));
  }
  grown.nodes = builder.nodes();
  return grown;
}

std::vector<int32_t> path_of(const std::vector<DraftNode>& nodes, int32_t node) {
  std::vector<int32_t> path;
  for (; node > 0; node = nodes[node - 1].parent) path.insert(path.begin(), nodes[node - 1].token);
  return path;
}

TEST(DraftTreeBuilder, HasTheBestOfAllDraftsInTheirOrder) {
  for (const DraftShape& shape : {DraftShape{1, 3}, DraftShape{2, 2}, DraftShape{3, 4}, DraftShape{4, 8},
                                  DraftShape{5, 3}, DraftShape{7, 1}}) {
    for (const int64_t num_drafts : {0, 1, 2, 3, 7, 12, 31, 63}) {
      for (uint64_t seed = 0; seed < 20; ++seed) {
        for (const int levels : {1, 3, 1000}) {
          SCOPED_TRACE(::testing::Message()
                       << "steps " << shape.num_steps << " topk " << shape.topk << " drafts " << num_drafts
                       << " seed " << seed << " levels " << levels);
          const std::vector<AnyDraft> expected = brute_force(shape, num_drafts, seed, levels);
          const std::vector<DraftNode> nodes = grow(shape, num_drafts, seed, levels).nodes;
          ASSERT_EQ(nodes.size(), expected.size());
          for (size_t i = 0; i < nodes.size(); ++i) {
            const auto node = static_cast<int32_t>(i) + 1;
            EXPECT_LT(nodes[i].parent, node) << "parents come first";
            EXPECT_EQ(path_of(nodes, node), expected[i].path);
          }
        }
      }
    }
  }
}

TEST(DraftTreeBuilder, ASmallerTreeHasTheFirstNodesOfALargerOne) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const std::vector<DraftNode> large = grow({4, 4}, 20, seed, 6).nodes;
    for (int64_t num_drafts = 0; num_drafts < 20; ++num_drafts) {
      const std::vector<DraftNode> small = grow({4, 4}, num_drafts, seed, 6).nodes;
      ASSERT_EQ(std::ssize(small), num_drafts);
      for (size_t i = 0; i < small.size(); ++i) {
        EXPECT_EQ(small[i].token, large[i].token);
        EXPECT_EQ(small[i].parent, large[i].parent);
      }
    }
  }
}

TEST(DraftTreeBuilder, ExpandsNoDraftWhoseChildrenCannotRemain) {
  EXPECT_EQ(grow({63, 1}, 3, 1, 1000).num_expanded, 2) << "a chain of three needs two passes";
  EXPECT_EQ(grow({3, 4}, 1, 1, 1000).num_expanded, 0);
  EXPECT_LE(grow({3, 4}, 7, 1, 1000).num_expanded, 7);
}

// The first choice is the token that would be sampled, and all of them are the tokens of largest score.
TEST(ChooseDrafts, AreTheTokensOfLargestScoreThatTruncationKeeps) {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal(0.0F, 2.0F);
  SamplerScratch scratch;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    SamplingParams params;
    params.temperature = seed % 4 == 0 ? 0.0F : 0.7F;
    if (seed % 4 == 2) params.top_k = 9;
    if (seed % 4 == 3) params.top_p = 0.8F;
    if (seed % 3 == 0) params.frequency_penalty = 0.5F;
    std::vector<float> logits(300);
    for (float& logit : logits) logit = normal(random);
    const std::vector<int32_t> prompt = {1, 2};
    TokenHistory history(prompt);
    history.add_generated(7);
    const auto position = static_cast<int64_t>(seed) + 3;
    const std::vector<DraftChoice> drafts =
        choose_drafts(logits, params, history, {}, seed, position, 5, scratch);
    ASSERT_FALSE(drafts.empty());
    EXPECT_EQ(drafts[0].token, sample_token(logits, params, history, {}, {}, seed, position, scratch));

    // A token is kept if the exact distribution gives it a share.
    testing::SamplingCase row;
    row.params = params;
    if (params.temperature == 0.0F) row.params.temperature = 1.0F;
    row.logits = logits;
    row.prompt = prompt;
    row.generated = {7};
    const std::vector<double> exact = exact_probabilities(row);
    std::vector<std::pair<double, int32_t>> scored;
    for (int32_t token = 0; token < std::ssize(logits); ++token) {
      if (exact[token] == 0.0) continue;
      double score = std::log(exact[token]);
      if (params.temperature > 0.0F) score -= std::log(exponential_noise(noise_bits(seed, position, token)));
      scored.emplace_back(-score, token);
    }
    std::sort(scored.begin(), scored.end());
    double sum = 0.0;
    for (const auto& [negative, token] : scored) {
      if (negative <= scored[0].first + kNegligibleScore) sum += std::exp(scored[0].first - negative);
    }
    ASSERT_LE(drafts.size(), 5U);
    for (size_t i = 0; i < drafts.size(); ++i) {
      EXPECT_EQ(drafts[i].token, scored[i].second) << i;
      EXPECT_NEAR(drafts[i].log_share, scored[0].first - scored[i].first - std::log(sum), 1e-3) << i;
    }
    if (drafts.size() < 5U) {
      EXPECT_TRUE(scored.size() == drafts.size() ||
                  scored[drafts.size()].first > scored[0].first + kNegligibleScore - 1e-3);
    }
  }
}

TEST(ChooseDrafts, GiveTheModelsChoiceWhereEverythingIsMasked) {
  SamplingParams params;
  params.temperature = 0.0F;
  params.min_new_tokens = 5;
  SamplerScratch scratch;
  const std::vector<float> logits = {0.5F, -std::numeric_limits<float>::infinity()};
  const std::vector<DraftChoice> drafts =
      choose_drafts(logits, params, TokenHistory({}), std::vector<int32_t>{0}, 1, 1, 3, scratch);
  ASSERT_EQ(drafts.size(), 1U);
  EXPECT_EQ(drafts[0].token, 0);
}

}  // namespace
}  // namespace hadal

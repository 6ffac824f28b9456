#include "tests/kernels/attention_fixture.h"

namespace hadal::cpu {
namespace {

TEST(Embedding, MatchesReferenceInBothTypes) {
  const uint64_t seed = 71;
  SCOPED_TRACE(seed);
  Random random(seed);
  constexpr int64_t kVocab = 37;
  for (int64_t hidden : {1, 31, 256, 2048}) {
    std::vector<float> f32 = random.normals(kVocab * hidden);
    std::vector<bf16> half;
    for (float v : f32) half.push_back(to_bf16(v));
    for (int64_t m : {0, 1, 90}) {
      std::vector<int32_t> ids(m);
      for (auto& id : ids) id = static_cast<int32_t>(random.below(kVocab));
      if (m > 0) ids[0] = kVocab - 1;
      for (EmbeddingType type : {EmbeddingType::kF32, EmbeddingType::kBF16}) {
        SCOPED_TRACE(hidden * 100 + m);
        const auto run = [&](auto kernel, int num_threads) {
          std::vector<float> y(m * hidden, -1.0F);
          const EmbeddingParams params = {
              .table = type == EmbeddingType::kF32 ? static_cast<const void*>(f32.data()) : half.data(),
              .type = type,
              .ids = ids.data(),
              .y = y.data(),
              .m = m,
              .hidden = hidden};
          run_on(num_threads, [&](Context& ctx) { kernel(params, ctx); });
          return y;
        };
        const auto expected = run(reference::embedding, 1);
        for (int64_t i = 0; i < m * hidden; ++i) {
          const float exact = f32[ids[i / hidden] * hidden + i % hidden];
          ASSERT_EQ(expected[i], type == EmbeddingType::kF32 ? exact : to_float(to_bf16(exact)));
        }
        for_each_target([&] {
          EXPECT_TRUE(same_bits(run(simd::embedding, 1), expected));
          EXPECT_TRUE(same_bits(run(simd::embedding, 3), expected));
        });
      }
    }
  }
}

}  // namespace
}  // namespace hadal::cpu

// Tests the random records with which benchmarks fill a KV cache.
#include "model/random_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "kernels/params/random_record.h"

namespace hadal {
namespace {

constexpr int64_t kLayers = 2;
constexpr int64_t kPages = 3;

// Reads value i of a record or of an index key as the readers of kv_layout.h do.
template <typename T>
T read_at(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}
float record_value(const std::byte* record, int i, KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return read_at<float>(record + 4 * i);
    case KvFormat::kF16:
      return to_float(read_at<f16>(record + 2 * i));
    case KvFormat::kBF16:
      return to_float(read_at<bf16>(record + 2 * i));
    case KvFormat::kFp8E5M2:
      return to_float(read_at<fp8_e5m2>(record + i));
    case KvFormat::kFp8E4M3:
      break;
  }
  if (i >= kKvLatentDim) return to_float(read_at<bf16>(record + kKvFp8RopeOffset + 2 * (i - kKvLatentDim)));
  return to_float(read_at<fp8_e4m3>(record + i)) *
         read_at<float>(record + kKvFp8ScaleOffset + 4 * (i / kKvScaleGroup));
}
float index_value(const std::byte* page, int64_t offset, int i, KvIndex index) {
  if (index == KvIndex::kF32) return read_at<float>(page + (offset * kKvIndexDim + i) * 4);
  return to_float(read_at<fp8_e4m3>(page + offset * kKvIndexDim + i)) *
         read_at<float>(page + kKvIndexScalesOffset + 4 * offset);
}

// Half a unit in the last place of e5m2, the coarsest format, relative to the value.
constexpr float kRounding = 0.125F;

class RandomCache : public ::testing::TestWithParam<KvLayout> {};

TEST_P(RandomCache, ReadersOfEveryLayoutFindTheDefinedValues) {
  const KvLayout layout = GetParam();
  ThreadPool pool(2);
  const KvCache cache(kLayers, kPages, layout);
  fill_at_random(cache, kLayers, 7, pool);
  for (const auto& [layer, slot] : {std::pair<int64_t, int64_t>{0, 0}, {1, 0}, {0, 63}, {1, 150}}) {
    SCOPED_TRACE(::testing::Message() << "layer " << layer << " slot " << slot);
    const std::byte* record = cache.layer(layer) + slot * layout.row_bytes();
    const uint64_t key = random_record_key(7, layer, slot, RandomPart::kRecord);
    for (int i = 0; i < kKvRowDim; ++i) {
      const float want = random_record_value(key, i);
      ASSERT_NEAR(record_value(record, i, layout.format), want, std::abs(want) * kRounding + 1e-4F) << i;
    }
    if (layout.index == KvIndex::kNone) continue;
    const std::byte* page = cache.index_layer(layer) + slot / kPageSize * layout.index_page_bytes();
    const uint64_t index_key = random_record_key(7, layer, slot, RandomPart::kIndexKey);
    for (int i = 0; i < kKvIndexDim; ++i) {
      const float want = random_record_value(index_key, i);
      ASSERT_NEAR(index_value(page, slot % kPageSize, i, layout.index), want,
                  std::abs(want) * kRounding + 1e-4F)
          << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, RandomCache,
                         ::testing::Values(KvLayout{.format = KvFormat::kF32},
                                           KvLayout{.format = KvFormat::kF16},
                                           KvLayout{.format = KvFormat::kBF16},
                                           KvLayout{.format = KvFormat::kFp8E5M2},
                                           KvLayout{.format = KvFormat::kFp8E4M3},
                                           KvLayout{.format = KvFormat::kF32, .index = KvIndex::kF32},
                                           KvLayout{.format = KvFormat::kFp8E4M3,
                                                    .scales = KvScales::kPer128PowersOfTwo,
                                                    .index = KvIndex::kE4M3}));

TEST(RandomRecords, HaveValuesOfMeanZeroAndStandardDeviationOne) {
  double sum = 0.0, squares = 0.0;
  constexpr int kRecords = 200;
  for (int slot = 0; slot < kRecords; ++slot) {
    const uint64_t key = random_record_key(1, 3, slot, RandomPart::kRecord);
    for (int i = 0; i < kKvRowDim; ++i) {
      const double value = random_record_value(key, i);
      sum += value;
      squares += value * value;
      ASSERT_LT(std::abs(value), 448 * kRandomScale) << "the largest value of a code";
    }
  }
  constexpr double kCount = kRecords * kKvRowDim;
  EXPECT_NEAR(sum / kCount, 0.0, 0.02);  // six standard deviations of the mean
  EXPECT_NEAR(squares / kCount, 1.0, 0.02);
}

TEST(RandomRecords, DifferBySeedLayerSlotAndPart) {
  std::set<uint64_t> keys;
  for (const uint64_t seed : {0U, 1U}) {
    for (int64_t layer = 0; layer < 61; ++layer) {
      for (int64_t slot = 0; slot < 300; ++slot) {
        keys.insert(random_record_key(seed, layer, slot, RandomPart::kRecord));
        keys.insert(random_record_key(seed, layer, slot, RandomPart::kIndexKey));
      }
    }
  }
  EXPECT_EQ(keys.size(), 2U * 61 * 300 * 2);
}

}  // namespace
}  // namespace hadal

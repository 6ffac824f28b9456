#include "model/random_cache.h"

#include <cstring>

#include "base/float_types.h"
#include "kernels/params/random_record.h"

namespace hadal {
namespace {

template <typename T>
void store_value(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

// Stores values [begin, end) of a record after each other, as `convert` rounds them.
template <typename Convert>
void store_random(std::byte* out, uint64_t key, int begin, int end, Convert convert) {
  for (int i = begin; i < end; ++i) {
    const auto value = convert(random_record_value(key, i));
    store_value(out, value);
    out += sizeof(value);
  }
}

fp8_e4m3 random_code(float value) {
  return to_fp8_e4m3(value / kRandomScale);
}

void store_random_record(std::byte* out, uint64_t key, KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return store_random(out, key, 0, kKvRowDim, [](float value) { return value; });
    case KvFormat::kF16:
      return store_random(out, key, 0, kKvRowDim, to_f16);
    case KvFormat::kBF16:
      return store_random(out, key, 0, kKvRowDim, to_bf16);
    case KvFormat::kFp8E5M2:
      return store_random(out, key, 0, kKvRowDim, to_fp8_e5m2);
    case KvFormat::kFp8E4M3:
      store_random(out, key, 0, kKvLatentDim, random_code);
      for (int i = 0; i < kKvNumScales; ++i) store_value(out + kKvFp8ScaleOffset + 4 * i, kRandomScale);
      return store_random(out + kKvFp8RopeOffset, key, kKvLatentDim, kKvRowDim, to_bf16);
  }
}

// `page` is a page of index keys, and `offset` the place of one of them.
void store_random_index_key(std::byte* page, int64_t offset, uint64_t key, const KvLayout& layout) {
  std::byte* const out = page + offset * layout.index_key_bytes();
  if (layout.index == KvIndex::kF32)
    return store_random(out, key, 0, kKvIndexDim, [](float value) { return value; });
  store_random(out, key, 0, kKvIndexDim, random_code);
  store_value(page + kKvIndexScalesOffset + 4 * offset, kRandomScale);
}

}  // namespace

void fill_at_random(const KvCache& cache, int64_t num_layers, uint64_t seed, ThreadPool& pool) {
  const KvLayout& layout = cache.layout();
  pool.parallel_for(num_layers * cache.num_pages(), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t layer = i / cache.num_pages();
      const int64_t page = i % cache.num_pages();
      std::byte* const records = cache.layer(layer) + page * layout.page_bytes();
      for (int64_t offset = 0; offset < kPageSize; ++offset) {
        const int64_t slot = page * kPageSize + offset;
        store_random_record(records + offset * layout.row_bytes(),
                            random_record_key(seed, layer, slot, RandomPart::kRecord), layout.format);
        if (layout.index == KvIndex::kNone) continue;
        store_random_index_key(cache.index_layer(layer) + page * layout.index_page_bytes(), offset,
                               random_record_key(seed, layer, slot, RandomPart::kIndexKey), layout);
      }
    }
  });
}

}  // namespace hadal

// Holds what the tests of the indexer share: pools of index keys whose unused bytes and page ids are traps.
#pragma once

#include <limits>
#include <utility>
#include <vector>

#include "kernels/cpu/reference/index_key.h"
#include "tests/kernels/attention_fixture.h"

namespace hadal::cpu {

inline std::vector<KvIndex> all_index_layouts() {
  return {KvIndex::kF32, KvIndex::kE4M3};
}

// Holds a pool with the index keys of sequences of the given lengths in pages scattered at random. Keys and
// scales beyond a sequence's end are NaN; page ids beyond its last page are out of range.
struct IndexCache {
  std::vector<std::byte> pool;
  std::vector<int32_t> page_table;
  int64_t num_pages = 2;
  int64_t stride = 0;
  KvIndex layout;

  IndexCache(const std::vector<int>& lengths, KvIndex index_layout, Random& random) : layout(index_layout) {
    for (int length : lengths) {
      stride = std::max<int64_t>(stride, (length + kPageSize - 1) / kPageSize + 3);
      num_pages += (length + kPageSize - 1) / kPageSize;
    }
    std::vector<int32_t> ids(num_pages);
    std::iota(ids.begin(), ids.end(), 0);
    random.shuffle(ids);
    pool.assign(num_pages * KvLayout{.index = layout}.index_page_bytes(), std::byte{0xff});
    page_table.assign(lengths.size() * stride, std::numeric_limits<int32_t>::max());
    size_t used = 0;
    for (size_t seq = 0; seq < lengths.size(); ++seq) {
      for (int s = 0; s < lengths[seq]; ++s) {
        if (s % kPageSize == 0) page_table[seq * stride + s / kPageSize] = ids[used++];
        fill_key(slot(seq, s), random);
      }
    }
  }

  int64_t slot(int64_t seq, int64_t position) const {
    return page_table[seq * stride + position / kPageSize] * int64_t{kPageSize} + position % kPageSize;
  }

  PagedIndex view() {
    return {.pool = pool.data(),
            .layout = layout,
            .num_pages = num_pages,
            .page_table = page_table.data(),
            .page_table_stride = stride};
  }

  // Stores the key as codes and a scale, or as 128 numbers.
  void set_key(int64_t slot, const std::vector<float>& values, float scale) {
    std::byte* page = pool.data() + slot / kPageSize * KvLayout{.index = layout}.index_page_bytes();
    const int64_t offset = slot % kPageSize;
    for (int i = 0; i < kIndexHeadDim; ++i) {
      if (layout == KvIndex::kF32) {
        std::memcpy(page + offset * 512 + i * 4, &values[i], 4);
      } else {
        page[offset * 128 + i] = static_cast<std::byte>(to_fp8_e4m3(values[i]).bits);
      }
    }
    if (layout == KvIndex::kE4M3) std::memcpy(page + 64 * 128 + offset * 4, &scale, 4);
  }

 private:
  // Random codes are made without rounding, because the largest cache has 20 million of them.
  void fill_key(int64_t slot, Random& random) {
    if (layout == KvIndex::kF32) return set_key(slot, random.normals(kIndexHeadDim), 1.0F);
    std::byte* page = pool.data() + slot / kPageSize * KvLayout{.index = layout}.index_page_bytes();
    const int64_t offset = slot % kPageSize;
    for (int i = 0; i < kIndexHeadDim; i += 8) {
      const auto codes = static_cast<uint64_t>(random.below(std::numeric_limits<int64_t>::max())) * 2;
      const uint64_t normal = codes & 0xcfcfcfcfcfcfcfcfU;  // up to 1.9, none is NaN
      std::memcpy(page + offset * 128 + i, &normal, 8);
    }
    const float scale = std::exp2(static_cast<float>(random.below(3)) - 8.0F);
    std::memcpy(page + 64 * 128 + offset * 4, &scale, 4);
  }
};

}  // namespace hadal::cpu

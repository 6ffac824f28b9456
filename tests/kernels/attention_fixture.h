// Holds what the tests of attention and of the row-wise kernels share: a seeded generator, poisoned scratch,
// paged caches whose unused bytes and page ids are traps, and a loop over this machine's instruction sets.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "hwy/targets.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/reference/kv_record.h"

namespace hadal::cpu {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Makes normal float32 numbers from a seed that failing tests print.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  float normal(float scale = 1.0F) { return scale * normal_(engine_); }
  int64_t below(int64_t bound) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(bound)); }
  std::vector<float> normals(int64_t count, float scale = 1.0F) {
    std::vector<float> values(count);
    for (float& v : values) v = normal(scale);
    return values;
  }
  template <typename T>
  void shuffle(std::vector<T>& values) {
    std::shuffle(values.begin(), values.end(), engine_);
  }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<float> normal_;
};

// Every allocated byte is 0xff, which is NaN in float32 and an invalid index in integers.
class PoisonedScratch final : public Scratch {
 public:
  void* allocate(size_t size_bytes) override {
    const size_t rounded = (size_bytes + 63) / 64 * 64 + 64;
    blocks_.push_back(std::unique_ptr<void, Free>(std::aligned_alloc(64, rounded)));
    std::memset(blocks_.back().get(), 0xff, rounded);
    return blocks_.back().get();
  }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::vector<std::unique_ptr<void, Free>> blocks_;
};

// Runs `kernel(ctx)` with its own scratch on a pool of `num_threads`.
template <typename Kernel>
void run_on(int num_threads, Kernel kernel) {
  ThreadPool pool(num_threads);
  PoisonedScratch scratch;
  Context ctx{pool, scratch};
  kernel(ctx);
}

// Calls `body` once for each instruction set of this machine, with run-time dispatch forced to it.
template <typename Body>
void for_each_target(Body body) {
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    SCOPED_TRACE(hwy::TargetName(target));
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
}

// Without a fused multiply-add, un-absorbed attention runs the slow reference, so there is nothing to
// compare.
inline bool prefill_is_reference() {
  return hwy::SupportedAndGeneratedTargets().front() == HWY_SCALAR;
}

// Returns all formats of the cache, with both choices of scales.
inline std::vector<KvLayout> all_layouts() {
  return {{KvFormat::kF32, KvScales::kPerToken},   {KvFormat::kF16, KvScales::kPerToken},
          {KvFormat::kBF16, KvScales::kPerToken},  {KvFormat::kFp8E4M3, KvScales::kPerToken},
          {KvFormat::kFp8E4M3, KvScales::kPer128}, {KvFormat::kFp8E5M2, KvScales::kPerToken}};
}

// Holds a pool with sequences of the given lengths in pages scattered at random. Records beyond a sequence's
// end are NaN in every format; page ids beyond its last page are out of range.
struct PagedCache {
  std::vector<std::byte> pool;
  std::vector<int32_t> page_table;
  int64_t num_pages = 0;
  int64_t stride = 0;
  KvLayout layout;

  PagedCache(const std::vector<int>& lengths, KvLayout kv_layout, Random& random) : layout(kv_layout) {
    for (int length : lengths) {
      stride = std::max<int64_t>(stride, (length + kPageSize - 1) / kPageSize + 3);
      num_pages += (length + kPageSize - 1) / kPageSize;
    }
    num_pages += 2;
    std::vector<int32_t> ids(num_pages);
    std::iota(ids.begin(), ids.end(), 0);
    random.shuffle(ids);
    pool.assign(num_pages * layout.page_bytes(), std::byte{0xff});
    for (size_t i = 0; i < lengths.size() * stride; ++i) {
      page_table.push_back(i % 2 == 0 ? std::numeric_limits<int32_t>::max() : -123456789);
    }
    size_t used = 0;
    for (size_t seq = 0; seq < lengths.size(); ++seq) {
      for (int s = 0; s < lengths[seq]; ++s) {
        if (s % kPageSize == 0) page_table[seq * stride + s / kPageSize] = ids[used++];
        const auto latent = random.normals(kKvLatentDim, 0.5F + 0.01F * static_cast<float>(s % 100));
        const auto rope = random.normals(kKvRopeDim, 2.0F);
        reference::write_record(latent.data(), rope.data(), layout,
                                const_cast<std::byte*>(reference::record_address(view(), seq, s)));
      }
    }
  }

  PagedKv view() {
    return {.pool = pool.data(),
            .layout = layout,
            .num_pages = num_pages,
            .page_table = page_table.data(),
            .page_table_stride = stride};
  }
};

// Returns the maximum over rows of ‖a − b‖ / ‖b‖; rows that are zero in b must be zero in a. NaN anywhere
// gives NaN.
inline double worst_row_error(const std::vector<float>& a, const std::vector<float>& b, int64_t row) {
  double worst = 0.0;
  for (size_t begin = 0; begin < b.size(); begin += row) {
    double difference = 0.0;
    double norm = 0.0;
    for (size_t i = begin; i < begin + row; ++i) {
      difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
      norm += std::pow(static_cast<double>(b[i]), 2);
    }
    const double error = difference == 0.0 ? 0.0 : std::sqrt(difference / norm);
    if (!(error <= worst)) worst = error;
    if (std::isnan(worst)) return worst;
  }
  return worst;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace hadal::cpu

#include "cli/bandwidth_probe.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "tensor/buffer.h"

namespace hadal::cli {
namespace {

constexpr int kRounds = 5;
constexpr int64_t kGrainBytes = int64_t{4} << 20;

// Sixteen independent sums, so that loads and not additions are the limit.
uint64_t sum_words(const uint64_t* words, int64_t count) {
  uint64_t sums[16] = {};
  for (int64_t i = 0; i + 16 <= count; i += 16) {
    for (int64_t lane = 0; lane < 16; ++lane) sums[lane] += words[i + lane];
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace

double read_bandwidth(ThreadPool& pool, size_t size_bytes) {
  const int64_t grains = static_cast<int64_t>(size_bytes) / kGrainBytes;
  HADAL_CHECK_GT(grains, 0);
  const Buffer buffer(static_cast<size_t>(grains * kGrainBytes));
  pool.parallel_for(
      grains, 1, [&](int64_t begin, int64_t end, int) {  // touched: real pages, not the zero page
        std::memset(buffer.data() + begin * kGrainBytes, 1, static_cast<size_t>((end - begin) * kGrainBytes));
      });
  double best_seconds = 1e30;
  std::vector<uint64_t> sums(static_cast<size_t>(pool.num_threads()) * 8);  // a cache line each
  for (int round = 0; round < kRounds; ++round) {
    const auto begin_time = std::chrono::steady_clock::now();
    pool.parallel_for(grains, 1, [&](int64_t begin, int64_t end, int thread_idx) {
      const auto* words = reinterpret_cast<const uint64_t*>(buffer.data() + begin * kGrainBytes);
      sums[static_cast<size_t>(thread_idx) * 8] += sum_words(words, (end - begin) * kGrainBytes / 8);
    });
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_time).count();
    best_seconds = std::min(best_seconds, seconds);
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  constexpr uint64_t kWordOfOnes = 0x0101010101010101;
  HADAL_CHECK_EQ(total, kWordOfOnes * static_cast<uint64_t>(grains * kGrainBytes / 8) * kRounds);
  return static_cast<double>(grains * kGrainBytes) / best_seconds;
}

}  // namespace hadal::cli

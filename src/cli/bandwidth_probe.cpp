#include "cli/bandwidth_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/check.h"

namespace hadal::cli {
namespace {

constexpr uint64_t kMaxPasses = 5;
constexpr int64_t kGrainBytes = int64_t{4} << 20;

constexpr int64_t kPrefetchBytes = 4096;  // the hardware's prefetcher alone does not reach the full bandwidth

// Uses sixteen independent sums, so that the loads limit the speed and not the additions.
uint64_t sum_words(const uint64_t* words, int64_t count) {
  uint64_t sums[16] = {};
  for (int64_t i = 0; i + 16 <= count; i += 16) {
    const char* ahead = reinterpret_cast<const char*>(words + i) + kPrefetchBytes;  // harmless past the end
    __builtin_prefetch(ahead);
    __builtin_prefetch(ahead + 64);
    for (int64_t lane = 0; lane < 16; ++lane) sums[lane] += words[i + lane];
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

// Returns the first word of a small system file; empty if it has none.
std::string first_word_of(const std::filesystem::path& path) {
  std::string line;
  std::ifstream(path) >> line;
  return line;
}

}  // namespace

size_t probe_bytes(size_t cache_bytes) {
  constexpr size_t kGiB = size_t{1} << 30;
  return std::clamp(4 * std::min(cache_bytes, kGiB), kGiB, 4 * kGiB);
}

size_t last_level_cache_bytes() {
  std::map<std::string, size_t> caches;  // bytes, by the processors that share a cache
  for (int cpu = 0;; ++cpu) {
    const std::filesystem::path folder = fmt::format("/sys/devices/system/cpu/cpu{}/cache", cpu);
    std::string shared_by;
    size_t bytes = 0;
    // The last index is the cache of the highest level.
    for (int index = 0;; ++index) {
      const std::filesystem::path cache = folder / fmt::format("index{}", index);
      const std::string size = first_word_of(cache / "size");  // "32768K"
      if (size.empty()) break;
      bytes = std::strtoull(size.c_str(), nullptr, 10) << (size.back() == 'M'   ? 20
                                                           : size.back() == 'K' ? 10
                                                                                : 0);
      shared_by = first_word_of(cache / "shared_cpu_list");
    }
    if (bytes == 0) break;
    caches[shared_by] = bytes;
  }
  size_t total = 0;
  for (const auto& [shared_by, bytes] : caches) total += bytes;
  return total;
}

BandwidthProbe::BandwidthProbe(ThreadPool& pool, size_t size_bytes)
    : pool_(pool),
      num_grains_(static_cast<int64_t>(size_bytes) / kGrainBytes),
      buffer_(static_cast<size_t>(num_grains_ * kGrainBytes)) {
  HADAL_CHECK_GT(num_grains_, 0);
  pool_.parallel_for(num_grains_, 1,
                     [&](int64_t begin, int64_t end, int) {  // writing gives each page memory of its own
                       std::memset(buffer_.data() + begin * kGrainBytes, 1,
                                   static_cast<size_t>((end - begin) * kGrainBytes));
                     });
}

double BandwidthProbe::measure(double max_seconds) {
  std::vector<uint64_t> sums(static_cast<size_t>(pool_.num_threads()) * 8);  // a cache line for each thread
  uint64_t passes = 0;
  double used = 0.0;
  do {
    const auto begin_time = std::chrono::steady_clock::now();
    pool_.parallel_for(num_grains_, 1, [&](int64_t begin, int64_t end, int thread_idx) {
      const auto* words = reinterpret_cast<const uint64_t*>(buffer_.data() + begin * kGrainBytes);
      sums[static_cast<size_t>(thread_idx) * 8] += sum_words(words, (end - begin) * kGrainBytes / 8);
    });
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_time).count();
    best_ = std::max(best_, static_cast<double>(num_grains_ * kGrainBytes) / seconds);
    used += seconds;
    ++passes;
  } while (passes < kMaxPasses && used < max_seconds);
  num_passes_ += static_cast<int>(passes);
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  constexpr uint64_t kWordOfOnes = 0x0101010101010101;
  HADAL_CHECK_EQ(total, kWordOfOnes * static_cast<uint64_t>(num_grains_ * kGrainBytes / 8) * passes);
  return best_;
}

}  // namespace hadal::cli

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>

#include "bench/kernels/ceilings.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/thread_pool.h"

namespace hadal::bench {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::byte* map_memory(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(p);
}

// Returns one gigabyte of memory, which several measurements share.
const uint64_t* probe_memory(size_t& count) {
  constexpr size_t kBytes = size_t{1} << 30;
  static std::byte* memory = [] {
    std::byte* p = map_memory(kBytes);
    for (size_t i = 0; i < kBytes; i += 8) std::memcpy(p + i, &i, 8);
    return p;
  }();
  count = kBytes / 8;
  return reinterpret_cast<const uint64_t*>(memory);
}

uint64_t read_all(const uint64_t* p, size_t count) {
  uint64_t s[8] = {};
  for (size_t i = 0; i < count; i += 8) {
    for (int j = 0; j < 8; ++j) s[j] ^= p[i + j];
  }
  return s[0] ^ s[1] ^ s[2] ^ s[3] ^ s[4] ^ s[5] ^ s[6] ^ s[7];
}

constexpr int64_t kFmaRounds = 20'000'000;

#if defined(__x86_64__)
__attribute__((target("avx512f"))) float fma_avx512() {
  __m512 acc[16];
  for (auto& a : acc) a = _mm512_set1_ps(1.0F);
  const __m512 x = _mm512_set1_ps(0.999F), y = _mm512_set1_ps(1e-3F);
  for (int64_t i = 0; i < kFmaRounds / 16; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) acc[j] = _mm512_fmadd_ps(acc[j], x, y);
  }
  __m512 sum = acc[0];
  for (int j = 1; j < 16; ++j) sum = _mm512_add_ps(sum, acc[j]);
  return sum[0];
}

__attribute__((target("avx2,fma"))) float fma_avx2() {
  __m256 acc[12];
  for (auto& a : acc) a = _mm256_set1_ps(1.0F);
  const __m256 x = _mm256_set1_ps(0.999F), y = _mm256_set1_ps(1e-3F);
  for (int64_t i = 0; i < kFmaRounds / 12; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) acc[j] = _mm256_fmadd_ps(acc[j], x, y);
  }
  __m256 sum = acc[0];
  for (int j = 1; j < 12; ++j) sum = _mm256_add_ps(sum, acc[j]);
  return sum[0];
}
#endif

// Returns the floating-point operations done.
double run_fma() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) {
    benchmark::DoNotOptimize(fma_avx512());
    return static_cast<double>(kFmaRounds / 16 * 16) * 16 * 2;
  }
  if (__builtin_cpu_supports("avx2")) {
    benchmark::DoNotOptimize(fma_avx2());
    return static_cast<double>(kFmaRounds / 12 * 12) * 8 * 2;
  }
#endif
  float acc[16] = {};
  for (int64_t i = 0; i < kFmaRounds / 16; ++i) {
    for (float& a : acc) a = __builtin_fmaf(a, 0.999F, 1e-3F);
    benchmark::DoNotOptimize(acc);
  }
  return static_cast<double>(kFmaRounds) * 2;
}

double measure_read_bandwidth(int num_threads) {
  ThreadPool pool(num_threads);
  size_t count = 0;
  const uint64_t* memory = probe_memory(count);
  double best = 0;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const double start = now();
    for (int pass = 0; pass < 4; ++pass) {
      pool.run([&](int thread) {
        const size_t share = count / num_threads / 8 * 8;
        benchmark::DoNotOptimize(read_all(memory + thread * share, share));
      });
    }
    best = std::max(best, 4.0 * static_cast<double>(count) * 8 / (now() - start));
  }
  return best;
}

double measure_peak_flops(int num_threads) {
  ThreadPool pool(num_threads);
  double best = 0;
  for (int attempt = 0; attempt < 10; ++attempt) {
    std::vector<double> flops(num_threads);
    const double start = now();
    pool.run([&](int thread) { flops[thread] = run_fma(); });
    const double seconds = now() - start;
    double sum = 0;
    for (const double f : flops) sum += f;
    best = std::max(best, sum / seconds);
  }
  return best;
}

}  // namespace

double read_bandwidth(int num_threads) {
  static std::map<int, double> known;
  auto [it, fresh] = known.try_emplace(num_threads);
  if (fresh) it->second = measure_read_bandwidth(num_threads);
  return it->second;
}

double peak_flops(int num_threads) {
  static std::map<int, double> known;
  auto [it, fresh] = known.try_emplace(num_threads);
  if (fresh) it->second = measure_peak_flops(num_threads);
  return it->second;
}

int num_bench_threads() {
  static const int threads = [] {
    const char* text = std::getenv("HADAL_BENCH_THREADS");
    return text != nullptr ? std::max(1, std::atoi(text)) : ThreadPool(0).num_threads();
  }();
  return threads;
}

void report(benchmark::State& state, double bytes, double flops) {
  const int threads = num_bench_threads();
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["GB/s"] = benchmark::Counter(bytes * 1e-9, rate);
  state.counters["GFLOP/s"] = benchmark::Counter(flops * 1e-9, rate);
  state.counters["of_read%"] = benchmark::Counter(100 * bytes / read_bandwidth(threads), rate);
  state.counters["of_fma%"] = benchmark::Counter(100 * flops / peak_flops(threads), rate);
}

const char* type_name(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return "f32";
    case WeightType::kBF16:
      return "bf16";
    case WeightType::kF16:
      return "f16";
    case WeightType::kFp8Block:
      return "fp8";
    case WeightType::kInt8Block:
      return "int8";
    case WeightType::kFp8Channel:
      return "fp8_channel";
    case WeightType::kInt8Channel:
      return "int8_channel";
  }
  return "";
}

WeightRing::WeightRing(size_t bytes, bool codes) : memory_(map_memory(bytes)), size_(bytes) {
  uint32_t state = 1;
  for (size_t i = 0; i + 2 <= bytes; i += 2) {
    state = state * 1664525U + 1013904223U;
    // The values are bf16 in ±[0.25, 1), or e4m3 codes that are not NaN.
    const uint16_t v = codes ? static_cast<uint16_t>((state >> 16) & 0xf7f7)
                             : static_cast<uint16_t>(0x3e80 + ((state >> 16) & 0x80ff));
    std::memcpy(memory_ + i, &v, 2);
  }
}

WeightRing::~WeightRing() {
  munmap(memory_, size_);
}

const void* WeightRing::next(size_t size_bytes) {
  if (used_ + size_bytes + 8 > size_) used_ = 0;
  const void* p = memory_ + used_ + 8;
  used_ += (size_bytes + 63) / 64 * 64;
  return p;
}

namespace {

void read_probe(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(read_bandwidth(num_bench_threads()));
  state.counters["GB/s"] = read_bandwidth(num_bench_threads()) * 1e-9;
}
BENCHMARK(read_probe)->Name("ceiling/read")->Iterations(1);

void fma_probe(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(peak_flops(num_bench_threads()));
  state.counters["GFLOP/s"] = peak_flops(num_bench_threads()) * 1e-9;
}
BENCHMARK(fma_probe)->Name("ceiling/fma")->Iterations(1);

}  // namespace
}  // namespace hadal::bench

BENCHMARK_MAIN();

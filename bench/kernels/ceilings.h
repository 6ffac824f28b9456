// Measures the ceilings of this machine in the same run that reports a share of them, and provides scratch
// memory for the benches. Each ceiling is measured on first use and kept.
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"

namespace hadal::bench {

// Reads 4 GB in order with all threads of a pool of num_threads; returns the best of five, in bytes per
// second.
double read_bandwidth(int num_threads);
// Runs independent float32 fused multiply-adds in registers; returns floating-point operations per second.
double peak_flops(int num_threads);

// Returns the threads of the benches: HADAL_BENCH_THREADS, or one per core.
int num_bench_threads();

// Sets counters GB/s and GFLOP/s with their shares of the ceilings. `bytes` and `flops` are those of one
// iteration.
void report(benchmark::State& state, double bytes, double flops);

// Returns the type's part of a bench's name: "bf16", "fp8", "int8_channel", ….
const char* type_name(WeightType type);

// Provides scratch memory that is kept between calls and reset by the bench loop, so that a warm call
// allocates nothing.
class ArenaScratch : public cpu::Scratch {
 public:
  explicit ArenaScratch(size_t bytes) : memory_(new std::byte[bytes + 64]), size_(bytes) {
    base_ = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory_.get()) + 63) / 64 * 64);
  }
  void* allocate(size_t size_bytes) override {
    void* p = base_ + used_;
    used_ += (size_bytes + 63) / 64 * 64;
    if (used_ > size_) throw std::bad_alloc();
    return p;
  }
  void reset() { used_ = 0; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::byte* base_;
  size_t size_;
  size_t used_ = 0;
};

// Holds a region larger than every cache, cut into weights that the bench loop uses in turn.
class WeightRing {
 public:
  // With `codes` the bytes are plausible e4m3 and int8 codes instead of bf16 patterns.
  WeightRing(size_t bytes, bool codes);
  ~WeightRing();
  WeightRing(const WeightRing&) = delete;
  WeightRing& operator=(const WeightRing&) = delete;
  // Returns the next `size_bytes` of the region, 8 bytes after a cache line (checkpoints guarantee no better
  // alignment).
  const void* next(size_t size_bytes);

 private:
  std::byte* memory_;
  size_t size_;
  size_t used_ = 0;
};

}  // namespace hadal::bench

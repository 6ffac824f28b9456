// Holds what the matrix kernels' tests share: random weights of every storage type, scratch memory, and a way
// to force a target.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/float_types.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_kernels.h"

namespace hadal::test {

class HeapScratch : public cpu::Scratch {
 public:
  void* allocate(size_t size_bytes) override {
    blocks_.emplace_back(new std::byte[size_bytes + 64]);
    // The poison shows whether uninitialised scratch leaks into results.
    std::memset(blocks_.back().get(), 0xff, size_bytes + 64);
    return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(blocks_.back().get()) + 63) / 64 * 64);
  }
  void reset() { blocks_.clear(); }

 private:
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

inline constexpr WeightType kWeightTypes[] = {WeightType::kF32,        WeightType::kBF16,
                                              WeightType::kFp8Block,   WeightType::kInt8Block,
                                              WeightType::kFp8Channel, WeightType::kInt8Channel};

// Holds a weight and its own bytes, misaligned as tensors in a mapped file can be.
struct TestWeight {
  std::unique_ptr<std::byte[]> bytes;
  std::vector<float> scales;
  MatrixWeight w;
};

// The data begins `misalignment` bytes after a cache line; the default is the worst case.
inline TestWeight random_weight(std::mt19937& rng, WeightType type, int64_t n, int64_t k, int64_t padding = 0,
                                int64_t misalignment = 3) {
  TestWeight t;
  const int64_t stride = k + padding;
  const int64_t size = weight_element_bytes(type);
  const int64_t count = (n - 1) * stride + k;
  t.bytes.reset(new std::byte[64 + misalignment + count * size]);
  const auto address = reinterpret_cast<uintptr_t>(t.bytes.get());
  const int64_t shift = static_cast<int64_t>((64 - address % 64) % 64) + misalignment;
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < count; ++i) {
    std::byte* at = t.bytes.get() + shift + i * size;
    // Padding between rows is poison: NaN, or the largest code of int8.
    const bool poison = i % stride >= k;
    const float v = poison ? std::numeric_limits<float>::quiet_NaN() : normal(rng);
    if (type == WeightType::kF32) {
      std::memcpy(at, &v, 4);
    } else if (type == WeightType::kBF16) {
      const bf16 b = to_bf16(v);
      std::memcpy(at, &b, 2);
    } else {
      auto code = static_cast<uint8_t>(rng());  // every code, subnormals and −128 included
      if (!is_int8(type) && (code & 0x7f) == 0x7f) code ^= 1;
      *at = std::byte{poison ? uint8_t{0x7f} : code};  // e4m3: NaN
    }
  }
  t.w = {.data = t.bytes.get() + shift, .type = type, .n = n, .k = k, .row_stride = stride};
  if (has_scales(type)) {
    if (is_block_scaled(type)) t.w.scale_stride = (k + 127) / 128 + 1;
    t.scales.resize(is_block_scaled(type) ? (n + 127) / 128 * t.w.scale_stride : n);
    std::uniform_real_distribution<float> uniform(0.001F, 0.02F);
    for (float& s : t.scales) s = uniform(rng);
    t.w.scales = t.scales.data();
  }
  return t;
}

inline std::vector<float> random_floats(std::mt19937& rng, int64_t count) {
  std::vector<float> v(count);
  std::normal_distribution<float> normal;
  for (float& x : v) x = normal(rng);
  return v;
}

inline std::vector<float> poisoned(int64_t count) {
  return std::vector<float>(count, std::numeric_limits<float>::quiet_NaN());
}

// Returns every instruction set that this build has and this processor runs, best first.
inline std::vector<int64_t> available_targets() {
  hwy::SetSupportedTargetsForTest(0);
  std::vector<int64_t> targets;
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    targets.push_back(left & -left);
  }
  return targets;
}

// Forces one instruction set for its lifetime.
class ForcedTarget {
 public:
  explicit ForcedTarget(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  ~ForcedTarget() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace hadal::test

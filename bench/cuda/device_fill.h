// Makes random device memory for benches: a few megabytes of random values from the host, repeated on the
// device.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/float_types.h"
#include "tensor/cuda.h"

namespace hadal::bench {

enum class Fill { kBf16, kE4m3, kF32 };

// Returns `bytes` of finite values of ordinary size: normal (bf16, f32), or any finite code (e4m3).
inline DeviceBuffer random_device_buffer(size_t bytes, Fill fill, CudaStream& stream, float sigma = 0.05F) {
  constexpr size_t kUnit = size_t{4} << 20;
  static std::vector<std::byte> units[3];
  std::vector<std::byte>& unit = units[static_cast<int>(fill)];
  if (unit.empty()) {
    unit.resize(kUnit);
    std::mt19937_64 random(static_cast<uint64_t>(fill) + 7);
    std::normal_distribution<float> normal(0.0F, sigma);
    for (size_t i = 0; i < kUnit; i += 4) {
      uint32_t word = 0;
      if (fill == Fill::kF32) word = std::bit_cast<uint32_t>(normal(random));
      if (fill == Fill::kBf16)
        word = to_bf16(normal(random)).bits | uint32_t{to_bf16(normal(random)).bits} << 16;
      if (fill == Fill::kE4m3) word = static_cast<uint32_t>(random()) & 0xf7f7f7f7U;
      std::copy_n(reinterpret_cast<const std::byte*>(&word), 4, unit.data() + i);
    }
  }
  DeviceBuffer buffer(std::max<size_t>(bytes, 16));
  const size_t first = std::min(bytes, kUnit);
  copy_to_device(buffer.data(), unit.data(), first, stream.handle());
  for (size_t done = first; done < bytes;) {
    const size_t step = std::min(done, bytes - done);
    copy_on_device(buffer.data() + done, buffer.data(), step, stream.handle());
    done += step;
  }
  stream.synchronize();
  return buffer;
}

}  // namespace hadal::bench

// Fills device memory with values like those of trained models: a few megabytes of normal random values from
// the host, repeated on the device. The time of a product depends on its values: zeros give times that are 13
// % too short. Only builds with CUDA have this; one thread uses it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <vector>

#include "base/float_types.h"
#include "tensor/cuda.h"

namespace hadal {

// A pattern is just under 4 MB long, so that no two rows of a usual width are equal. The size is a multiple
// of 16 bytes.
inline constexpr size_t kPatternBytes = (size_t{4} << 20) - 48;

// Returns a buffer of `bytes`, filled with the pattern end to end.
inline DeviceBuffer repeated(std::span<const std::byte> pattern, size_t bytes, CudaStream& stream) {
  DeviceBuffer buffer(std::max<size_t>(bytes, 16));
  const size_t first = std::min(bytes, pattern.size());
  copy_to_device(buffer.data(), pattern.data(), first, stream.handle());
  for (size_t done = first; done < bytes; done *= 2)
    copy_on_device(buffer.data() + done, buffer.data(), std::min(done, bytes - done), stream.handle());
  stream.synchronize();
  return buffer;
}

template <typename T, typename Value>
std::vector<std::byte> pattern_of(const Value& value) {
  std::vector<std::byte> pattern(kPatternBytes);
  for (size_t i = 0; i + sizeof(T) <= pattern.size(); i += sizeof(T)) {
    const T v = value();
    std::memcpy(pattern.data() + i, &v, sizeof(T));
  }
  return pattern;
}

// Keeps each pattern, so that only the first buffer of a kind costs time on the host.
class RandomOperands {
 public:
  // Makes values from N(0, sigma).
  DeviceBuffer bf16_values(size_t count, CudaStream& stream, float sigma = 1.0F) {
    std::vector<std::byte>& pattern = normal_[sigma];
    if (pattern.empty()) {
      std::mt19937 random(1);
      std::normal_distribution<float> normal(0.0F, sigma);
      pattern = pattern_of<bf16>([&] { return to_bf16(normal(random)); });
    }
    return repeated(pattern, count * 2, stream);
  }
  // Makes the same values in float16.
  DeviceBuffer f16_values(size_t count, CudaStream& stream, float sigma = 1.0F) {
    std::vector<std::byte>& pattern = normal_f16_[sigma];
    if (pattern.empty()) {
      std::mt19937 random(1);
      std::normal_distribution<float> normal(0.0F, sigma);
      pattern = pattern_of<f16>([&] { return to_f16(normal(random)); });
    }
    return repeated(pattern, count * 2, stream);
  }

  // Makes codes of values from N(0, 100), as they occur in blocks that are scaled by their largest value.
  DeviceBuffer e4m3_codes(size_t count, CudaStream& stream) {
    if (e4m3_.empty()) {
      std::mt19937 random(2);
      std::normal_distribution<float> normal(0.0F, 100.0F);
      e4m3_ = pattern_of<fp8_e4m3>([&] { return to_fp8_e4m3(normal(random)); });
    }
    return repeated(e4m3_, count, stream);
  }

  // Makes INT8 codes of values from N(0, 32), as they occur in rows that are scaled by their largest value.
  DeviceBuffer int8_codes(size_t count, CudaStream& stream) {
    if (int8_.empty()) {
      std::mt19937 random(4);
      std::normal_distribution<float> normal(0.0F, 32.0F);
      int8_ = pattern_of<int8_t>(
          [&] { return static_cast<int8_t>(std::lrint(std::clamp(normal(random), -127.0F, 127.0F))); });
    }
    return repeated(int8_, count, stream);
  }

  // Makes scales that bring such codes to about N(0, 1) / divisor.
  DeviceBuffer scales(size_t count, CudaStream& stream, float divisor = 1.0F) {
    std::vector<std::byte>& pattern = scales_[divisor];
    if (pattern.empty()) {
      std::mt19937 random(3);
      std::uniform_real_distribution<float> uniform(0.005F / divisor, 0.015F / divisor);
      pattern = pattern_of<float>([&] { return uniform(random); });
    }
    return repeated(pattern, count * 4, stream);
  }

 private:
  std::map<float, std::vector<std::byte>> normal_, normal_f16_, scales_;  // by sigma, by divisor
  std::vector<std::byte> e4m3_, int8_;
};

}  // namespace hadal

// Gives tests typed device memory: upload, poison and download. It is not for production code, because every
// call synchronises.
#pragma once

#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "base/float_types.h"
#include "tensor/cuda.h"

namespace hadal::testing {

// Returns the seed of this run. It is new each time, and every failure prints it; HADAL_TEST_SEED=N repeats a
// run.
inline uint64_t fresh_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("HADAL_TEST_SEED");
    return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  }();
  return seed;
}

inline CudaStream& test_stream() {
  static CudaStream stream;
  return stream;
}

template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  // The memory is poisoned: every byte is 0xff, which is NaN in every floating type and an invalid index.
  explicit DeviceArray(size_t count) : buffer_(std::max<size_t>(count, 1) * sizeof(T)), count_(count) {
    poison();
  }
  explicit DeviceArray(std::span<const T> values) : DeviceArray(values.size()) { upload(values); }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(std::span<const T>(values)) {}

  void poison() {
    fill_device(buffer_.data(), 0xff, buffer_.size(), test_stream().handle());
    test_stream().synchronize();
  }
  void upload(std::span<const T> values) {
    copy_to_device(buffer_.data(), values.data(), values.size_bytes(), test_stream().handle());
    test_stream().synchronize();
  }
  std::vector<T> download() const {
    std::vector<T> values(count_);
    copy_to_host(values.data(), buffer_.data(), count_ * sizeof(T), test_stream().handle());
    test_stream().synchronize();
    return values;
  }
  T* data() const { return buffer_.as<T>(); }
  size_t size() const { return count_; }

 private:
  DeviceBuffer buffer_;
  size_t count_ = 0;
};

// Returns ‖out − ref‖ / ‖ref‖; NaN when `out` contains NaN.
template <typename A, typename B>
double relative_error(std::span<const A> out, std::span<const B> ref) {
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < ref.size(); ++i) {
    const auto o = static_cast<double>(to_float(out[i]));
    const auto r = static_cast<double>(to_float(ref[i]));
    difference += (o - r) * (o - r);
    norm += r * r;
  }
  return std::sqrt(difference / std::max(norm, 1e-300));
}

// Rounds to T, which is bf16 or f16.
template <typename T>
T rounded_to(float value) {
  if constexpr (std::is_same_v<T, f16>) {
    return to_f16(value);
  } else {
    return to_bf16(value);
  }
}

// Returns normal values rounded to T, which is bf16 or f16.
template <typename T>
std::vector<T> random_16_bit(size_t count, uint64_t seed, float sigma = 1.0F) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0F, sigma);
  std::vector<T> values(count);
  for (T& value : values) value = rounded_to<T>(normal(random));
  return values;
}
inline std::vector<bf16> random_bf16(size_t count, uint64_t seed, float sigma = 1.0F) {
  return random_16_bit<bf16>(count, seed, sigma);
}

// These convert values of 16 bits whose type is known at run time only.
inline uint16_t to_16_bit(float value, bool is_f16) {
  return is_f16 ? to_f16(value).bits : to_bf16(value).bits;
}
inline float from_16_bit(uint16_t bits, bool is_f16) {
  return is_f16 ? to_float(f16{bits}) : to_float(bf16{bits});
}
inline std::vector<uint16_t> random_bits(size_t count, uint64_t seed, float sigma, bool is_f16) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0F, sigma);
  std::vector<uint16_t> bits(count);
  for (uint16_t& value : bits) value = to_16_bit(normal(random), is_f16);
  return bits;
}
inline std::vector<uint16_t> to_16_bit(std::span<const float> values, bool is_f16) {
  std::vector<uint16_t> bits(values.size());
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = to_16_bit(values[i], is_f16);
  return bits;
}
inline std::vector<float> from_16_bit(std::span<const uint16_t> bits, bool is_f16) {
  std::vector<float> values(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) values[i] = from_16_bit(bits[i], is_f16);
  return values;
}

template <typename T>
std::vector<float> widened(std::span<const T> values) {
  std::vector<float> out(values.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = to_float(values[i]);
  return out;
}

}  // namespace hadal::testing

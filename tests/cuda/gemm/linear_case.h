// Holds one product y = x · Wᵀ on the device and its result in double precision. Everything that a kernel
// must not use is NaN: columns of x and W from k on (16 bits, f32), rows of W from n on, scales of rows from
// m on, and all of y.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/gemm/gemm.h"
#include "tests/cuda/device_array.h"

namespace hadal::testing {

inline fp8_e4m3 random_code(std::mt19937_64& random) {
  for (;;) {
    const auto bits = static_cast<uint8_t>(random());
    if ((bits & 0x7fU) != 0x7fU) return {bits};
  }
}

// Returns the value of a code of these weights, or of their activations.
inline float code_value(WeightType type, fp8_e4m3 code) {
  return is_int8(type) ? static_cast<float>(static_cast<int8_t>(code.bits)) : to_float(code);
}
// Returns any code except NaN, or one of −2 … 2.
inline fp8_e4m3 random_code_of(WeightType type, bool small, std::mt19937_64& random) {
  if (small) {
    const int value = static_cast<int>(random() % 5) - 2;
    return is_int8(type) ? fp8_e4m3{static_cast<uint8_t>(value)} : to_fp8_e4m3(static_cast<float>(value));
  }
  return is_int8(type) ? fp8_e4m3{static_cast<uint8_t>(random() >> 13)} : random_code(random);
}

// Returns [rows, stride] with values up to `width` and zeros after it, which 8-bit linears require.
inline std::vector<fp8_e4m3> random_codes(int64_t rows, int64_t width, int64_t stride, uint64_t seed,
                                          WeightType type = WeightType::kFp8Block, bool small = false) {
  std::mt19937_64 random(seed);
  std::vector<fp8_e4m3> codes(rows * stride);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; ++i) codes[r * stride + i] = random_code_of(type, small, random);
  }
  return codes;
}

inline std::vector<float> random_scales(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(0.002F, 0.02F);
  std::vector<float> scales(count);
  for (float& scale : scales) scale = uniform(random);
  return scales;
}
// Returns scales of 1/2, 1 or 2.
inline std::vector<float> power_of_two_scales(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> scales(count);
  for (float& scale : scales) scale = std::ldexp(1.0F, static_cast<int>(random() % 3) - 1);
  return scales;
}

// Returns uniform values of standard deviation `sigma` in the first `width` of each row, NaN after them.
template <typename T>
std::vector<T> random_rows(int64_t rows, int64_t width, int64_t stride, uint64_t seed, float sigma) {
  std::mt19937_64 random(seed);
  std::vector<T> values(rows * stride);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < stride; ++i) {
      const float unit = static_cast<float>(static_cast<int32_t>(random() >> 32)) * 0x1p-31F;
      const float value = i < width ? unit * 1.7320508F * sigma : NAN;
      if constexpr (sizeof(T) == 2) {
        values[r * stride + i] = rounded_to<T>(value);
      } else {
        values[r * stride + i] = value;
      }
    }
  }
  return values;
}

inline double widen(bf16 v) {
  return to_float(v);
}
inline double widen(float v) {
  return v;
}

class LinearCase {
 public:
  // With `exact` (8-bit types), operands are small integers and scales are powers of two, so that every sum
  // is exact in float32. With channel scales and odd seeds there is a bias. With f16_rows, x and y of float32
  // weights are float16.
  LinearCase(WeightType type, int64_t m, int64_t n, int64_t k, uint64_t seed, bool f32_output = false,
             bool exact = false, bool f16_rows = false)
      : type_(type),
        is_f16_(type == WeightType::kF16 || f16_rows),
        m_(m),
        n_(n),
        k_(k),
        f32_output_(f32_output) {
    const int64_t extra_rows = 5;  // rows of NaN after W
    y_stride_ = (n + 3) / 4 * 4 + 8;
    const float sigma = 1.0F / std::sqrt(static_cast<float>(k));
    p_.m = m;
    p_.y_stride = y_stride_;
    p_.w.type = type;
    p_.w.n = n;
    p_.w.k = k;
    if (has_scales(type)) {
      const bool channel = is_channel_scaled(type);
      const int64_t stride = cuda::round_up(k, 128);
      const int64_t blocks = channel ? 1 : stride / 128;  // scales of a row
      const int64_t scale_stride = cuda::round_up(m, 4) + 4;
      const auto some_scales = [&](size_t count, uint64_t scale_seed) {
        return exact ? power_of_two_scales(count, scale_seed) : random_scales(count, scale_seed);
      };
      x_codes_ = random_codes(m, k, stride, seed, type, exact);
      w_codes_ = random_codes(n, k, stride, seed + 1, type, exact);
      x_scales_.assign(blocks * scale_stride, NAN);
      const std::vector<float> scales = some_scales(blocks * m, seed + 2);
      for (int64_t b = 0; b < blocks; ++b) {
        for (int64_t i = 0; i < m; ++i) x_scales_[b * scale_stride + i] = scales[b * m + i];
      }
      w_scales_ = some_scales(channel ? n : (n + 127) / 128 * (blocks + 1), seed + 3);
      if (channel) w_scales_.resize(n + 70, NAN);
      if (channel && seed % 2 == 1) {
        for (const float s : power_of_two_scales(n, seed + 4)) bias_.push_back(s * 16.0F - 15.0F);
        device_bias_ = DeviceArray<float>(bias_);
        p_.bias = device_bias_.data();
      }
      std::vector<fp8_e4m3> padded = w_codes_;
      padded.resize((n + extra_rows) * stride, fp8_e4m3{0xff});
      device_x_codes_ = DeviceArray<fp8_e4m3>(x_codes_);
      device_w_codes_ = DeviceArray<fp8_e4m3>(padded);
      device_x_scales_ = DeviceArray<float>(x_scales_);
      device_w_scales_ = DeviceArray<float>(w_scales_);
      p_.x_quantized = {.codes = device_x_codes_.data(),
                        .scales = device_x_scales_.data(),
                        .stride = stride,
                        .scale_stride = scale_stride,
                        .power_of_two = false,
                        .format = cuda::row_format_of(type)};
      p_.w.data = device_w_codes_.data();
      p_.w.row_stride = stride;
      p_.w.scales = device_w_scales_.data();
      p_.w.scale_stride = channel ? 0 : blocks + 1;
    } else {
      p_.x_stride = (k + 7) / 8 * 8 + 16;
      p_.w.row_stride = (k + 7) / 8 * 8 + 8;
      p_.f16 = f16_rows;
      x_ = to_16_bit(random_rows<float>(m, k, p_.x_stride, seed, 1.0F), is_f16_);
      device_x_ = DeviceArray<uint16_t>(x_);
      p_.x = device_x_.data();
      if (is_16_bit(type)) {
        w_ = to_16_bit(random_rows<float>(n, k, p_.w.row_stride, seed + 1, sigma), is_f16_);
        std::vector<uint16_t> padded = w_;
        padded.resize((n + extra_rows) * p_.w.row_stride, 0xffff);
        device_w_ = DeviceArray<uint16_t>(padded);
        p_.w.data = device_w_.data();
      } else {
        w_f32_ = random_rows<float>(n, k, p_.w.row_stride, seed + 1, sigma);
        device_w_f32_ = DeviceArray<float>(w_f32_);
        p_.w.data = device_w_f32_.data();
      }
    }
    y_ = DeviceArray<uint16_t>(f32_output ? 0 : m * y_stride_);
    y_f32_ = DeviceArray<float>(f32_output ? m * y_stride_ : 0);
    p_.y = f32_output ? nullptr : y_.data();
    p_.y_f32 = f32_output ? y_f32_.data() : nullptr;
  }

  const cuda::DenseLinearParams& params() const { return p_; }
  void poison() {
    y_.poison();
    y_f32_.poison();
  }

  // Returns [m, n] of the output; it is NaN where a row's padding was written, which fails every comparison.
  std::vector<float> result() const {
    std::vector<float> out(m_ * n_);
    const auto gather = [&](const auto& rows) {
      for (int64_t i = 0; i < m_; ++i) {
        for (int64_t j = 0; j < y_stride_; ++j) {
          const float value = rows[i * y_stride_ + j];
          if (j < n_)
            out[i * n_ + j] = value;
          else if (!std::isnan(value))
            out[i * n_] = NAN;
        }
      }
    };
    if (f32_output_)
      gather(y_f32_.download());
    else
      gather(from_16_bit(y_.download(), is_f16_));
    return out;
  }

  // Returns one output in double precision, for the 8-bit types.
  double expected_at(int64_t i, int64_t j) const {
    const int64_t stride = p_.w.row_stride;
    return sum_at(i, j, [&](int64_t k) {
      return static_cast<double>(code_value(type_, x_codes_[i * stride + k])) *
             static_cast<double>(code_value(type_, w_codes_[j * stride + k]));
    });
  }

  // Returns all outputs in double precision, from the exact values of the operands.
  std::vector<double> expected() const {
    if (type_ != WeightType::kFp8Block && has_scales(type_)) {
      const int64_t stride = p_.w.row_stride;
      const auto decoded = [&](const std::vector<fp8_e4m3>& codes) {
        std::vector<float> values(codes.size());
        for (size_t i = 0; i < codes.size(); ++i) values[i] = code_value(type_, codes[i]);
        return values;
      };
      const std::vector<float> x = decoded(x_codes_);
      const std::vector<float> w = decoded(w_codes_);
      std::vector<double> out(m_ * n_);
      for (int64_t i = 0; i < m_ * n_; ++i)
        out[i] = sum_at(i / n_, i % n_, [&](int64_t k) {
          return static_cast<double>(x[i / n_ * stride + k]) * static_cast<double>(w[i % n_ * stride + k]);
        });
      return out;
    }
    const bool fp8 = type_ == WeightType::kFp8Block;
    const int64_t x_stride = fp8 ? p_.x_quantized.stride : p_.x_stride;
    std::vector<float> x(m_ * k_);
    std::vector<float> w(n_ * k_);
    for (int64_t i = 0; i < m_ * k_; ++i) {
      const int64_t at = i / k_ * x_stride + i % k_;
      x[i] = fp8 ? to_float(x_codes_[at]) : from_16_bit(x_[at], is_f16_);
    }
    for (int64_t i = 0; i < n_ * k_; ++i) {
      const int64_t at = i / k_ * p_.w.row_stride + i % k_;
      w[i] = fp8 ? to_float(w_codes_[at]) : is_16_bit(type_) ? from_16_bit(w_[at], is_f16_) : w_f32_[at];
    }
    std::vector<double> out(m_ * n_);
    for (int64_t i = 0; i < m_; ++i) {
      for (int64_t j = 0; j < n_; ++j) {
        double sum = 0.0;
        for (int64_t b = 0; b * 128 < k_; ++b) {
          double block = 0.0;
          for (int64_t k = b * 128; k < std::min(k_, b * 128 + 128); ++k) {
            block += static_cast<double>(x[i * k_ + k]) * w[j * k_ + k];
          }
          const double scale = !fp8 ? 1.0
                                    : static_cast<double>(x_scales_[b * p_.x_quantized.scale_stride + i]) *
                                          w_scales_[j / 128 * p_.w.scale_stride + b];
          sum += block * scale;
        }
        out[i * n_ + j] = sum;
      }
    }
    return out;
  }

  std::string name() const {
    return std::string(type_ == WeightType::kFp8Block      ? "fp8"
                       : type_ == WeightType::kInt8Block   ? "int8"
                       : type_ == WeightType::kFp8Channel  ? "fp8 channel"
                       : type_ == WeightType::kInt8Channel ? "int8 channel"
                       : type_ == WeightType::kBF16        ? "bf16"
                       : type_ == WeightType::kF16         ? "f16"
                                                           : "f32") +
           " m " + std::to_string(m_) + " n " + std::to_string(n_) + " k " + std::to_string(k_);
  }

 private:
  // Computes output (i, j) from the products of codes at each k.
  template <typename Product>
  double sum_at(int64_t i, int64_t j, const Product& product) const {
    const bool channel = is_channel_scaled(type_);
    double sum = 0.0;
    for (int64_t b = 0; b * 128 < k_; ++b) {
      double block = 0.0;
      for (int64_t k = b * 128; k < std::min(k_, b * 128 + 128); ++k) block += product(k);
      if (!channel) {
        block *= static_cast<double>(x_scales_[b * p_.x_quantized.scale_stride + i]) *
                 w_scales_[j / 128 * p_.w.scale_stride + b];
      }
      sum += block;
    }
    if (channel) sum *= static_cast<double>(x_scales_[i]) * w_scales_[j];
    return bias_.empty() ? sum : sum + bias_[j];
  }

  WeightType type_;
  bool is_f16_;  // rows of 16 bits
  int64_t m_, n_, k_, y_stride_;
  bool f32_output_;
  std::vector<fp8_e4m3> x_codes_, w_codes_;
  std::vector<float> x_scales_, w_scales_, w_f32_, bias_;
  std::vector<uint16_t> x_, w_;
  DeviceArray<fp8_e4m3> device_x_codes_, device_w_codes_;
  DeviceArray<float> device_x_scales_, device_w_scales_, device_w_f32_, y_f32_, device_bias_;
  DeviceArray<uint16_t> device_x_, device_w_, y_;
  cuda::DenseLinearParams p_;
};

// Returns the place of the first wrong element, for messages: "row, column: got, want".
template <typename A, typename B>
std::string first_difference(const std::vector<A>& out, const std::vector<B>& want, int64_t columns,
                             double tolerance) {
  double norm = 0.0;
  for (const auto& v : want) norm += static_cast<double>(v) * static_cast<double>(v);
  const double unit = std::sqrt(norm / std::max<size_t>(want.size(), 1));
  std::string text;
  int shown = 0;
  size_t wrong = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = std::abs(static_cast<double>(out[i]) - static_cast<double>(want[i]));
    if (difference <= tolerance * unit) continue;
    ++wrong;
    if (shown++ < 4) {
      text += " [" + std::to_string(i / columns) + ", " + std::to_string(i % columns) +
              "]: " + std::to_string(out[i]) + " for " + std::to_string(want[i]) + ";";
    }
  }
  return std::to_string(wrong) + " of " + std::to_string(want.size()) + " wrong:" + text;
}

template <typename A, typename B>
double relative_difference(const std::vector<A>& out, const std::vector<B>& want) {
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = static_cast<double>(out[i]) - static_cast<double>(want[i]);
    difference += d * d;
    norm += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  return std::sqrt(difference / std::max(norm, 1e-300));
}

}  // namespace hadal::testing

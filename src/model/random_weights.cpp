#include "model/random_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/float_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/random_weights.cpp"
#include <hwy/foreach_target.h>  // compiles this file once for every SIMD target
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace hadal::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D, class V = hn::Vec<D>>
HWY_INLINE V random_words(D du, uint32_t first_word, uint32_t key_low, uint32_t key_high) {
  V x = hn::Iota(du, first_word);
  x = hn::Add(hn::Mul(x, hn::Set(du, 0x9e3779b1U)), hn::Set(du, key_low));
  x = hn::Xor(x, hn::ShiftRight<16>(x));
  x = hn::Mul(x, hn::Set(du, 0x85ebca6bU));
  x = hn::Xor(x, hn::ShiftRight<13>(x));
  x = hn::Add(x, hn::Set(du, key_high));
  x = hn::Mul(x, hn::Set(du, 0xc2b2ae35U));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

// Computes r (16 bits in each 32-bit lane) -> offset + float(2r - 65535) * scale.
template <class DF, class VU>
HWY_INLINE hn::Vec<DF> random_reals(DF df, VU r, float scale, float offset) {
  const hn::RebindToSigned<DF> di;
  const auto odd = hn::Sub(hn::ShiftLeft<1>(hn::BitCast(di, r)), hn::Set(di, 65535));
  return hn::Add(hn::Mul(hn::ConvertTo(df, odd), hn::Set(df, scale)), hn::Set(df, offset));
}

template <class DU, class V = hn::Vec<DU>>
HWY_INLINE V round_to_bf16(DU du, V bits) {  // the result is in the upper half; the lower half is undefined
  const V tie = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1U));
  return hn::Add(bits, hn::Add(tie, hn::Set(du, 0x7fffU)));
}

// Each function fills as many whole vectors as fit into num_words, starting at word `first_word`, and returns
// the number of words filled.
int64_t fill_bf16(uint32_t first_word, int64_t num_words, uint32_t key_low, uint32_t key_high, float scale,
                  float offset, uint16_t* out) {
  const hn::ScalableTag<uint32_t> du;
  const hn::ScalableTag<float> df;
  const auto lanes = static_cast<int64_t>(hn::Lanes(du));
  int64_t word = 0;
  for (; word + lanes <= num_words; word += lanes) {
    const auto x = random_words(du, first_word + static_cast<uint32_t>(word), key_low, key_high);
    const auto low = random_reals(df, hn::And(x, hn::Set(du, 0xffffU)), scale, offset);
    const auto high = random_reals(df, hn::ShiftRight<16>(x), scale, offset);
    const auto low_bits = hn::ShiftRight<16>(round_to_bf16(du, hn::BitCast(du, low)));
    const auto high_bits = hn::And(round_to_bf16(du, hn::BitCast(du, high)), hn::Set(du, 0xffff0000U));
    hn::StoreU(hn::Or(low_bits, high_bits), du, reinterpret_cast<uint32_t*>(out + 2 * word));
  }
  return word;
}

int64_t fill_f32(uint32_t first_word, int64_t num_words, uint32_t key_low, uint32_t key_high, float scale,
                 float offset, float* out) {
  const hn::ScalableTag<uint32_t> du;
  const hn::ScalableTag<float> df;
  const auto lanes = static_cast<int64_t>(hn::Lanes(du));
  int64_t word = 0;
  for (; word + lanes <= num_words; word += lanes) {
    const auto x = random_words(du, first_word + static_cast<uint32_t>(word), key_low, key_high);
    const auto low = random_reals(df, hn::And(x, hn::Set(du, 0xffffU)), scale, offset);
    const auto high = random_reals(df, hn::ShiftRight<16>(x), scale, offset);
    hn::StoreInterleaved2(low, high, df, out + 2 * word);
  }
  return word;
}

int64_t fill_e4m3(uint32_t first_word, int64_t num_words, uint32_t key_low, uint32_t key_high, uint8_t* out) {
  const hn::ScalableTag<uint32_t> du;
  const auto lanes = static_cast<int64_t>(hn::Lanes(du));
  int64_t word = 0;
  for (; word + lanes <= num_words; word += lanes) {
    const auto x = random_words(du, first_word + static_cast<uint32_t>(word), key_low, key_high);
    const auto magnitude = hn::And(x, hn::Set(du, 0x7f7f7f7fU));
    const auto carry = hn::And(hn::Add(magnitude, hn::Set(du, 0x01010101U)), hn::Set(du, 0x80808080U));
    const auto finite = hn::Sub(magnitude, hn::ShiftRight<7>(carry));  // bytes of 0x7f become 0x7e
    hn::StoreU(hn::Or(finite, hn::And(x, hn::Set(du, 0x80808080U))), du,
               reinterpret_cast<uint32_t*>(out + 4 * word));
  }
  return word;
}

int64_t fill_int8(uint32_t first_word, int64_t num_words, uint32_t key_low, uint32_t key_high, uint8_t* out) {
  const hn::ScalableTag<uint32_t> du;
  const auto lanes = static_cast<int64_t>(hn::Lanes(du));
  int64_t word = 0;
  for (; word + lanes <= num_words; word += lanes) {
    const auto x = random_words(du, first_word + static_cast<uint32_t>(word), key_low, key_high);
    const auto low_bits = hn::And(x, hn::Set(du, 0x7f7f7f7fU));
    const auto not_alone =
        hn::Add(low_bits, hn::Set(du, 0x7f7f7f7fU));  // bit 7 of a byte: some lower bit is set
    const auto is_lowest = hn::And(hn::AndNot(not_alone, x), hn::Set(du, 0x80808080U));
    hn::StoreU(hn::Add(x, hn::ShiftRight<7>(is_lowest)), du, reinterpret_cast<uint32_t*>(out + 4 * word));
  }
  return word;
}

}  // namespace hadal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hadal {

HWY_EXPORT(fill_bf16);
HWY_EXPORT(fill_f32);
HWY_EXPORT(fill_e4m3);
HWY_EXPORT(fill_int8);

namespace {

uint64_t mix64(uint64_t z) {
  z += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

uint64_t fnv1a64(std::string_view text) {
  uint64_t state = 0xcbf29ce484222325ULL;
  for (const char c : text) state = (state ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  return state;
}

uint32_t random_word(uint32_t c, uint32_t key_low, uint32_t key_high) {
  uint32_t x = c * 0x9e3779b1U + key_low;
  x ^= x >> 16;
  x *= 0x85ebca6bU;
  x ^= x >> 13;
  x += key_high;
  x *= 0xc2b2ae35U;
  return x ^ (x >> 16);
}

uint8_t e4m3_code(uint8_t byte) {
  const uint8_t magnitude = byte & 0x7f;
  return static_cast<uint8_t>((byte & 0x80) | (magnitude == 0x7f ? 0x7e : magnitude));
}

// Returns the root mean square of the values of random e4m3 codes. The sum is exact in double.
double e4m3_code_rms() {
  double sum = 0.0;
  for (int code = 0; code < 256; ++code) {
    const double value = to_float(fp8_e4m3{e4m3_code(static_cast<uint8_t>(code))});
    sum += value * value;
  }
  return std::sqrt(sum / 256.0);
}

int8_t int8_code(uint8_t byte) {
  return byte == 0x80 ? int8_t{-127} : static_cast<int8_t>(byte);
}

double int8_code_rms() {
  double sum = 0.0;
  for (int byte = 0; byte < 256; ++byte) {
    const double value = int8_code(static_cast<uint8_t>(byte));
    sum += value * value;
  }
  return std::sqrt(sum / 256.0);
}

// A NextN layer's copy of the embedding or the head has the target's own values.
std::string_view shared_name(std::string_view name) {
  if (name.ends_with(".embed_tokens.weight")) return "model.embed_tokens.weight";
  if (name.ends_with(".shared_head.head.weight")) return "lm_head.weight";
  return name;
}

double linear_gain(std::string_view name, const RandomWeightOptions& options) {
  const bool adds_to_residual =
      name.find(".o_proj.") != std::string_view::npos || name.find(".down_proj.") != std::string_view::npos;
  return adds_to_residual ? 1.0 / std::sqrt(2.0 * static_cast<double>(options.num_hidden_layers)) : 1.0;
}

struct Distribution {
  double offset = 0.0;
  double amplitude = 0.0;
};

Distribution real_distribution(std::string_view name, int64_t fan_in, const RandomWeightOptions& options) {
  if (name.ends_with("norm.weight")) return {1.0, 0.1};
  if (name.ends_with("norm.bias")) return {0.0, 0.1};
  if (name.ends_with("embed_tokens.weight")) return {0.0, std::sqrt(3.0)};
  if (name.ends_with("e_score_correction_bias")) return {0.0, options.gate_bias_amplitude};
  return {0.0, std::sqrt(3.0) * linear_gain(name, options) / std::sqrt(static_cast<double>(fan_in))};
}

constexpr std::string_view kBlockScale = "weight_scale_inv";
constexpr std::string_view kScale = "weight_scale";

}  // namespace

RandomWeightOptions RandomWeightOptions::for_config(const ModelConfig& config, uint64_t seed) {
  RandomWeightOptions options;
  options.seed = seed;
  // In the config of a draft layer's export, num_hidden_layers may be 0.
  options.num_hidden_layers = std::max<int64_t>(config.num_hidden_layers, 1);
  if (config.quantization) {
    options.ue8m0_scales = config.quantization->ue8m0_scales;
    options.int8_codes = code_dtype(config.quantization->type) == DType::kI8;
  }
  return options;
}

Result<RandomTensor> RandomTensor::make(std::string_view name, std::span<const int64_t> shape, DType dtype,
                                        const RandomWeightOptions& options, int64_t fan_in) {
  RandomTensor tensor;
  tensor.dtype_ = dtype;
  tensor.num_elements_ = 1;
  for (const int64_t dim : shape) {
    HADAL_CHECK_GE(dim, 0);
    tensor.num_elements_ *= dim;
  }
  if (tensor.num_elements_ > (int64_t{1} << 33))
    return unsupported("random tensor {} has {} elements; at most 2^33 are allowed", name,
                       tensor.num_elements_);
  const uint64_t key = mix64(fnv1a64(shared_name(name)) ^ mix64(options.seed));
  tensor.recipe_.key_low = static_cast<uint32_t>(key);
  tensor.recipe_.key_high = static_cast<uint32_t>(key >> 32);

  const int64_t last_dim = shape.empty() ? 1 : shape.back();
  if (dtype == DType::kF8E4M3 || dtype == DType::kI8) {
    tensor.recipe_.kind = dtype == DType::kI8 ? Kind::kInt8Codes : Kind::kFp8Codes;
    return tensor;
  }
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16)
    return unsupported("random tensor {} has dtype {}; F32, BF16, F16, F8_E4M3 and I8 are allowed", name,
                       safetensors_name(dtype));
  if (name.ends_with(kBlockScale) || name.ends_with(kScale)) {
    // `target` of scale_recipe is the root mean square that the scales must have.
    const double inputs =
        name.ends_with(kBlockScale) ? 128.0 * static_cast<double>(last_dim) : static_cast<double>(fan_in);
    HADAL_CHECK(inputs > 0.0, "{} needs its linear's fan_in", name);
    const double code_rms = options.int8_codes ? int8_code_rms() : e4m3_code_rms();
    const double target = linear_gain(name, options) / (std::sqrt(inputs) * code_rms);
    if (options.ue8m0_scales) {
      // Scales are 2^e and 2^(e+1), the upper with probability p: 4^e·(1 + 3p) = target².
      const int exponent = std::ilogb(target);
      const double ratio = target / std::ldexp(1.0, exponent);
      tensor.recipe_.kind = Kind::kPowerOfTwo;
      tensor.recipe_.offset = static_cast<float>(std::ldexp(1.0, exponent));
      tensor.recipe_.upper_threshold = static_cast<uint32_t>((ratio * ratio - 1.0) / 3.0 * 65536.0);
      return tensor;
    }
    const double base = target / std::sqrt(1.0 + 0.25 / 3.0);
    tensor.recipe_.offset = static_cast<float>(base);
    tensor.recipe_.scale = static_cast<float>(base * 0.5) * 0x1p-16F;
    return tensor;
  }
  const Distribution distribution = real_distribution(name, last_dim, options);
  tensor.recipe_.offset = static_cast<float>(distribution.offset);
  tensor.recipe_.scale = static_cast<float>(distribution.amplitude) * 0x1p-16F;
  return tensor;
}

struct RandomTensorKernels {
  static uint32_t half_word(const RandomTensor& t, int64_t index) {
    const uint32_t word =
        random_word(static_cast<uint32_t>(index / 2), t.recipe_.key_low, t.recipe_.key_high);
    return (index % 2 == 0) ? word & 0xffffU : word >> 16;
  }

  static float real_at(const RandomTensor& t, int64_t index) {
    const uint32_t r = half_word(t, index);
    if (t.recipe_.kind == RandomTensor::Kind::kPowerOfTwo)
      return r < t.recipe_.upper_threshold ? 2.0F * t.recipe_.offset : t.recipe_.offset;
    return static_cast<float>(2 * static_cast<int32_t>(r) - 65535) * t.recipe_.scale + t.recipe_.offset;
  }

  static uint8_t code_at(const RandomTensor& t, int64_t index) {
    const uint32_t word =
        random_word(static_cast<uint32_t>(index / 4), t.recipe_.key_low, t.recipe_.key_high);
    const auto byte = static_cast<uint8_t>(word >> (8 * (index % 4)));
    return t.dtype_ == DType::kI8 ? static_cast<uint8_t>(int8_code(byte)) : e4m3_code(byte);
  }

  // Fills one element at a time; supports any kind and dtype.
  static void fill_plain(const RandomTensor& t, int64_t begin, int64_t count, std::byte* out) {
    for (int64_t i = begin; i < begin + count; ++i) {
      switch (t.dtype_) {
        case DType::kF8E4M3:
        case DType::kI8: {
          const uint8_t code = code_at(t, i);
          std::memcpy(out, &code, 1);
          break;
        }
        case DType::kF32: {
          const float value = real_at(t, i);
          std::memcpy(out, &value, 4);
          break;
        }
        case DType::kBF16: {
          const bf16 value = to_bf16(real_at(t, i));
          std::memcpy(out, &value, 2);
          break;
        }
        default: {
          const f16 value = to_f16(real_at(t, i));
          std::memcpy(out, &value, 2);
          break;
        }
      }
      out += dtype_bytes(t.dtype_);
    }
  }

  // Fills whole vectors from element `begin`, the first of a word; returns how many elements were written.
  static int64_t fill_vectors(const RandomTensor& t, int64_t begin, int64_t count, std::byte* out) {
    if (t.recipe_.kind == RandomTensor::Kind::kPowerOfTwo) return 0;
    switch (t.dtype_) {
      case DType::kF8E4M3:
        return 4 * HWY_DYNAMIC_DISPATCH(fill_e4m3)(static_cast<uint32_t>(begin / 4), count / 4,
                                                   t.recipe_.key_low, t.recipe_.key_high,
                                                   reinterpret_cast<uint8_t*>(out));
      case DType::kI8:
        return 4 * HWY_DYNAMIC_DISPATCH(fill_int8)(static_cast<uint32_t>(begin / 4), count / 4,
                                                   t.recipe_.key_low, t.recipe_.key_high,
                                                   reinterpret_cast<uint8_t*>(out));
      case DType::kBF16:
        return 2 * HWY_DYNAMIC_DISPATCH(fill_bf16)(static_cast<uint32_t>(begin / 2), count / 2,
                                                   t.recipe_.key_low, t.recipe_.key_high, t.recipe_.scale,
                                                   t.recipe_.offset, reinterpret_cast<uint16_t*>(out));
      case DType::kF32:
        return 2 * HWY_DYNAMIC_DISPATCH(fill_f32)(static_cast<uint32_t>(begin / 2), count / 2,
                                                  t.recipe_.key_low, t.recipe_.key_high, t.recipe_.scale,
                                                  t.recipe_.offset, reinterpret_cast<float*>(out));
      default:
        return 0;
    }
  }
};

void RandomTensor::fill(int64_t begin, int64_t count, std::byte* out) const {
  HADAL_CHECK(begin >= 0 && count >= 0 && begin + count <= num_elements_, "begin {} count {} of {}", begin,
              count, num_elements_);
  const int64_t per_word = dtype_bytes(dtype_) == 1 ? 4 : 2;
  const int64_t element_bytes = dtype_bytes(dtype_);
  const int64_t head = std::min(count, (per_word - begin % per_word) % per_word);
  RandomTensorKernels::fill_plain(*this, begin, head, out);
  const int64_t body =
      RandomTensorKernels::fill_vectors(*this, begin + head, count - head, out + head * element_bytes);
  const int64_t done = head + body;
  RandomTensorKernels::fill_plain(*this, begin + done, count - done, out + done * element_bytes);
}

float RandomTensor::at(int64_t index) const {
  HADAL_CHECK(index >= 0 && index < num_elements_, "index {} of {}", index, num_elements_);
  switch (dtype_) {
    case DType::kF8E4M3:
      return to_float(fp8_e4m3{RandomTensorKernels::code_at(*this, index)});
    case DType::kI8:
      return static_cast<float>(static_cast<int8_t>(RandomTensorKernels::code_at(*this, index)));
    case DType::kBF16:
      return to_float(to_bf16(RandomTensorKernels::real_at(*this, index)));
    case DType::kF16:
      return to_float(to_f16(RandomTensorKernels::real_at(*this, index)));
    default:
      return RandomTensorKernels::real_at(*this, index);
  }
}

uint64_t tensor_checksum(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  uint64_t factor = 1;
  for (size_t begin = 0; begin < bytes.size(); begin += 4, factor += 2) {
    uint32_t word = 0;
    std::memcpy(&word, bytes.data() + begin, std::min<size_t>(4, bytes.size() - begin));
    sum += word * factor;
  }
  return sum;
}

uint64_t named_checksum(std::string_view name, std::span<const std::byte> bytes) {
  return mix64(fnv1a64(name) ^ tensor_checksum(bytes));
}

}  // namespace hadal
#endif  // HWY_ONCE

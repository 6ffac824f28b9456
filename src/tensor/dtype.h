// Lists the element types of tensors, with their sizes and the names used by safetensors and by --dtype.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/float_types.h"

namespace hadal {

enum class DType : uint8_t { kF32, kF16, kBF16, kF8E4M3, kF8E5M2, kI32, kI64, kU8, kI8 };

constexpr int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kU8:
    case DType::kI8:
      return 1;
    case DType::kI64:
      return 8;
  }
  return 0;
}

// Returns "float32", "bfloat16", "float16", "float8_e4m3fn", …
const char* to_string(DType dtype);
// Maps the names of safetensors: "F32", "BF16", "F16", "F8_E4M3", "F8_E5M2", "I32", "I64", "U8", "I8".
// Returns nullopt for any other.
std::optional<DType> dtype_from_safetensors(std::string_view name);
const char* safetensors_name(DType dtype);

template <typename T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::kF32;
}
template <>
constexpr DType dtype_of<f16>() {
  return DType::kF16;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::kBF16;
}
template <>
constexpr DType dtype_of<fp8_e4m3>() {
  return DType::kF8E4M3;
}
template <>
constexpr DType dtype_of<fp8_e5m2>() {
  return DType::kF8E5M2;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::kI32;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::kI64;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::kU8;
}
template <>
constexpr DType dtype_of<int8_t>() {
  return DType::kI8;
}

}  // namespace hadal

#include "tensor/dtype.h"

#include <array>
#include <utility>

namespace hadal {
namespace {

constexpr std::array<std::pair<DType, const char*>, 9> kSafetensorsNames = {{
    {DType::kF32, "F32"},
    {DType::kF16, "F16"},
    {DType::kBF16, "BF16"},
    {DType::kF8E4M3, "F8_E4M3"},
    {DType::kF8E5M2, "F8_E5M2"},
    {DType::kI32, "I32"},
    {DType::kI64, "I64"},
    {DType::kU8, "U8"},
    {DType::kI8, "I8"},
}};

}  // namespace

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kF16:
      return "float16";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF8E4M3:
      return "float8_e4m3fn";
    case DType::kF8E5M2:
      return "float8_e5m2";
    case DType::kI32:
      return "int32";
    case DType::kI64:
      return "int64";
    case DType::kU8:
      return "uint8";
    case DType::kI8:
      return "int8";
  }
  return "unknown";
}

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  for (const auto& [dtype, text] : kSafetensorsNames) {
    if (name == text) return dtype;
  }
  return std::nullopt;
}

const char* safetensors_name(DType dtype) {
  for (const auto& [candidate, text] : kSafetensorsNames) {
    if (candidate == dtype) return text;
  }
  return "unknown";
}

}  // namespace hadal

// Fuzzes safetensors files with any bytes: they are parsed or refused, and parsed tensors lie inside the
// file.
#include <cstdint>
#include <cstdlib>

#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  const auto tensors = hadal::parse_safetensors_header(file, "fuzz");
  if (!tensors.ok()) {
    if (tensors.status().message.empty()) std::abort();
    return 0;
  }
  for (const hadal::SafetensorsTensor& tensor : *tensors) {
    if (tensor.begin > tensor.end || tensor.end > size || tensor.name.empty()) std::abort();
    for (const int64_t extent : tensor.shape) {
      if (extent < 0) std::abort();
    }
  }
  return 0;
}

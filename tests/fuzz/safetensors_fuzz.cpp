// Fuzzes safetensors files: they are parsed or refused, and parsed tensors lie inside the file, one after the
// other. An input is a whole file, or, if it begins with '{', a header, to which its length and some data are
// added, so that mutations reach what comes after the first eight bytes.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "model/safetensors.h"
#include "unit_limit.h"

namespace {

void check(std::span<const std::byte> file) {
  const auto tensors = hadal::parse_safetensors_header(file, "fuzz");
  if (!tensors.ok()) {
    const std::string& message = tensors.status().message;
    if (message.empty() || message.size() > 4096) std::abort();
    return;
  }
  size_t end = 0;
  for (const hadal::SafetensorsTensor& tensor : *tensors) {
    if (tensor.begin > tensor.end || tensor.end > file.size() || tensor.name.empty()) std::abort();
    if (tensor.begin < end) std::abort();
    end = tensor.end;
    for (const int64_t extent : tensor.shape) {
      if (extent < 0) std::abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const hadal::fuzz::UnitLimit limit(2.0);
  check({reinterpret_cast<const std::byte*>(data), size});
  if (size > 0 && data[0] == '{') {
    for (const size_t data_bytes : {0, 4, 256}) {
      std::string file(8, '\0');
      std::memcpy(file.data(), &size, 8);
      file.append(reinterpret_cast<const char*>(data), size).append(data_bytes, 'x');
      check(std::as_bytes(std::span(file)));
    }
  }
  return 0;
}

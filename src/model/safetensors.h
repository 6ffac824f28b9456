// Reads the header of a safetensors file and checks it before anything in the file is used. A file consists
// of 8 bytes of little-endian header length N, N bytes of JSON {"name": {"dtype", "shape", "data_offsets"}},
// optionally with "__metadata__" (strings), and the data. Offsets count from the end of the header. Nothing
// is assumed about alignment. The functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/dtype.h"

namespace hadal {

inline constexpr size_t kMaxSafetensorsHeaderBytes = size_t{100} << 20;  // the format's own limit

struct SafetensorsTensor {
  std::string name;
  std::string dtype_name;  // as written, e.g. "BF16"
  // Absent for a type that this engine does not use, which is an error only if the tensor is needed.
  std::optional<DType> dtype;
  std::vector<int64_t> shape;
  size_t begin = 0;  // bytes from the start of the file, begin ≤ end ≤ file size
  size_t end = 0;
};

// Returns the tensors of a whole file, in the order of their data. The errors (kDataLoss, naming `source` and
// the tensor) are a length that does not fit the file, JSON that is not of the form above, a duplicate name,
// sizes that overflow or disagree with dtype and shape, and data that overlaps, leaves holes or does not end
// with the file.
Result<std::vector<SafetensorsTensor>> parse_safetensors_header(std::span<const std::byte> file,
                                                                std::string_view source);

// Returns the first `max_bytes` of a name that a file gives, with question marks in place of control
// characters, so that it fits into an error line.
std::string printable_name(std::string_view name, size_t max_bytes = 120);

}  // namespace hadal

// The size of the graph that a batch may be padded to. Host only, free of CUDA headers.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace hadal::cuda {

// The next power of two; 1 for none. Choices that change bits and depend on the number of tokens or sequences
// use this number instead, so that padding a batch changes no bits. (Sizes of graphs given by hand may still
// lie behind a border.)
inline int64_t padded_tokens(int64_t m) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(m, 1))));
}

}  // namespace hadal::cuda

// The size of the graph that a batch may be padded to. Host only, free of CUDA headers.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace hadal::cuda {

// The next power of two; 1 for none. Whatever is chosen by the number of tokens or sequences goes by it where
// the choice changes bits: then padding a batch changes none. (Sizes of graphs given by hand may still lie
// behind a border.)
inline int64_t padded_tokens(int64_t m) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(m, 1))));
}

}  // namespace hadal::cuda

// Computes the size of the graph to which a batch may be padded. This header is for the host alone and
// includes no CUDA header.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace hadal::cuda {

// A graph has at most this many tokens (engine/cuda/graph_buckets.h), so larger batches are never padded.
inline constexpr int64_t kMostGraphTokens = 4096;

// Unless a flag limits the largest graph, the default sizes of graphs are 1, 2, 4, 8, 12, then multiples of 8
// up to 256, of 16 up to 512, of 32 up to 1,024, of 64 up to 2,048 and of 128 up to 4,096. Returns the
// default size that follows `size`, which must itself be a default size.
inline int64_t next_graph_size(int64_t size) {
  if (size < 4) return 2 * size;
  if (size < 16) return size + 4;
  if (size < 256) return size + 8;
  return size + static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(size))) / 16;
}

// Returns the smallest power of two that is at least m, or 1 if there are no tokens. Choices that change bits
// use this number in place of the number of tokens or sequences, so that padding a batch changes no bits.
// Every power of two is a default size of graphs, so a batch and its graph round up to the same power. (A
// graph whose size a user has set may round up to another power.)
inline int64_t padded_tokens(int64_t m) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(m, 1))));
}

// Does the same in finer steps for large batches: it returns the next power of two up to 512 tokens, the next
// default size of a graph up to 4,096, and m itself above that.
inline int64_t finely_padded_tokens(int64_t m) {
  constexpr int64_t kMostCoarse = 512;  // a power of two
  if (m > kMostGraphTokens) return m;
  if (m <= kMostCoarse) return padded_tokens(m);
  int64_t size = kMostCoarse;
  while (size < m) size = next_graph_size(size);
  return size;
}

}  // namespace hadal::cuda

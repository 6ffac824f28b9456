// Compares the conversions between decode attention and FlashMLA's conventions with loops on the host.
#include "kernels/cuda/mla/gather/flash_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/cuda/device_array.h"
#include "tests/cuda/test_launch.h"

namespace hadal::testing {
namespace {

TEST(FlashLayoutSanitize, LongQueriesBecomePieces) {
  const std::vector<int32_t> lengths{0, 1, 7, 8, 9, 40, -3, 16, 1000};
  const DeviceArray<int32_t> seqlens(lengths);
  for (const auto& [pieces, piece_len] : {std::pair{1, 3}, std::pair{2, 8}, std::pair{5, 1}}) {
    for (const bool causal : {true, false}) {
      const DeviceArray<int32_t> seq_idx(lengths.size() * pieces);
      const DeviceArray<int32_t> kv_len(lengths.size() * pieces);
      cuda::flash_rows({.cache_seqlens = seqlens.data(),
                        .num_seqs = static_cast<int64_t>(lengths.size()),
                        .pieces = pieces,
                        .piece_len = piece_len,
                        .causal = causal,
                        .seq_idx = seq_idx.data(),
                        .kv_len = kv_len.data()},
                       test_launch());
      const auto rows = seq_idx.download();
      const auto keys = kv_len.download();
      for (int s = 0; s < static_cast<int>(lengths.size()); ++s) {
        for (int piece = 0; piece < pieces; ++piece) {
          const int last = (piece + 1) * piece_len - 1;  // token of the piece
          const int seen = causal ? lengths[s] - pieces * piece_len + 1 + last : lengths[s];
          EXPECT_EQ(rows[s * pieces + piece], s);
          EXPECT_EQ(keys[s * pieces + piece], std::max(seen, 0))
              << "length " << lengths[s] << ", piece " << piece << " of " << pieces << " × " << piece_len;
        }
      }
    }
  }
}

TEST(FlashLayoutSanitize, LogSumExpsAreOrderedByHead) {
  std::mt19937 random(std::random_device{}());
  for (const auto& [seqs, q_len, kv_heads, group] :
       {std::tuple{5, 3, 2, 7}, std::tuple{1, 1, 1, 1}, std::tuple{300, 2, 1, 16}, std::tuple{2, 17, 3, 1}}) {
    std::vector<float> made(static_cast<size_t>(seqs) * q_len * kv_heads * group);
    for (float& value : made) {
      value =
          random() % 5 == 0 ? -std::numeric_limits<float>::infinity() : static_cast<float>(random() % 1000);
    }
    const DeviceArray<float> lse(made);
    const DeviceArray<float> out(made.size());
    cuda::flash_lse({.lse = lse.data(),
                     .out = out.data(),
                     .num_seqs = seqs,
                     .q_len = q_len,
                     .num_kv_heads = kv_heads,
                     .group = group},
                    test_launch());
    const auto got = out.download();
    int wrong = 0;
    for (int s = 0; s < seqs; ++s) {
      for (int k = 0; k < kv_heads; ++k) {
        for (int h = 0; h < group; ++h) {
          for (int t = 0; t < q_len; ++t) {
            const float value = made[((k * seqs + s) * q_len + t) * group + h];
            const float expected = std::isinf(value) ? -value : value;
            wrong += got[(s * kv_heads * group + k * group + h) * q_len + t] != expected;
          }
        }
      }
    }
    EXPECT_EQ(wrong, 0) << "of " << made.size();
  }
}

}  // namespace
}  // namespace hadal::testing

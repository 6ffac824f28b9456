// Makes decode plans by hand: pages are laid end to end (a sequence without keys counts as one) and cut into
// equal shares, so that sequences are split at odd places.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cuda/mla/decode/decode.h"
#include "tests/cuda/device_array.h"

namespace hadal::testing {

struct DecodeHandPlan {
  DecodeHandPlan(const std::vector<int>& lengths, int num_parts, int num_tiles) {
    const auto pages_of = [&](int seq) { return (lengths[seq] + kPageSize - 1) / kPageSize; };
    const int num_seqs = static_cast<int>(lengths.size());
    std::vector<int> begins;  // of the sequences' pages
    int total = 0;
    for (int seq = 0; seq < num_seqs; ++seq) {
      begins.push_back(total);
      total += std::max(pages_of(seq), 1);
    }
    const int share = (total + num_parts - 1) / num_parts;
    const auto border = [&](int part) -> std::pair<int, int> {
      const int at = std::min(part * share, total);
      if (at == total) return {num_seqs, 0};
      int seq = 0;
      while (seq + 1 < num_seqs && begins[seq + 1] <= at) ++seq;
      return {seq, at - begins[seq]};
    };
    std::vector<cuda::DecodeSequence> all;
    std::vector<cuda::DecodeMerge> split;
    for (int seq = 0; seq < num_seqs; ++seq) {
      const int first = begins[seq] / share;
      const int last = (begins[seq] + std::max(pages_of(seq), 1) - 1) / share;
      cuda::DecodeSequence s{last - first + 1, 0, 0, first};
      if (s.num_splits > 1) {
        s.first_slot = num_slots;
        split.push_back({seq, s.num_splits, num_slots});
        num_slots += s.num_splits;
      }
      all.push_back(s);
    }
    std::vector<cuda::DecodePart> shares;
    for (int part = 0; part < num_parts; ++part) {
      const auto begin = border(part);
      const auto end = border(part + 1);
      cuda::DecodePart p{begin.first, begin.second, end.first, end.second, {1, 0, 0, 0}, 0};
      if (begin.first < num_seqs) {
        p.split = all[begin.first];
        p.num_keys = lengths[begin.first];
      }
      shares.push_back(p);
    }
    num_merges = DeviceArray<int32_t>(std::vector<int32_t>{static_cast<int32_t>(split.size())});
    split.resize(num_seqs + 1);
    parts = DeviceArray<cuda::DecodePart>(shares);
    sequences = DeviceArray<cuda::DecodeSequence>(all);
    merges = DeviceArray<cuda::DecodeMerge>(split);
    arrivals = DeviceArray<int32_t>(std::vector<int32_t>(2 * num_seqs * num_tiles, 0));
  }

  cuda::DecodePlanView view() const {
    cuda::DecodePlanView v{};
    v.num_merges = num_merges.data();
    v.parts = parts.data();
    v.sequences = sequences.data();
    v.arrivals = arrivals.data();
    v.merges = merges.data();
    return v;
  }

  int num_slots = 0;
  DeviceArray<cuda::DecodePart> parts;
  DeviceArray<cuda::DecodeSequence> sequences;
  DeviceArray<cuda::DecodeMerge> merges;
  DeviceArray<int32_t> num_merges;
  DeviceArray<int32_t> arrivals;
};

}  // namespace hadal::testing

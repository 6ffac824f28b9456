#include "comm/loopback_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace hadal {
namespace {

constexpr size_t kSumBlock = 256;   // floats: a block of sums stays in the first-level cache
constexpr size_t kSliceAlign = 16;  // floats: ranks do not write to the same cache line

// Computes sums[i] = ((p0[first + i] + p1[first + i]) + p2[first + i]) + … for `count` elements, where p is
// the data of each rank. With -O2 only loops of constant length over arrays that do not overlap are
// vectorised.
template <typename Count>
void sum_block(const LoopbackCalls& calls, size_t first, Count count, float* __restrict sums) {
  std::memcpy(sums, calls[0]->data.data() + first, count * sizeof(float));
  for (size_t r = 1; r < calls.size(); ++r) {
    const float* __restrict part = calls[r]->data.data() + first;
    for (size_t i = 0; i < count; ++i) sums[i] += part[i];
  }
}

// Sums elements [begin, end) over ranks and calls store(first, sums, count) for each block of sums.
template <typename Store>
void sum_over_ranks(const LoopbackCalls& calls, size_t begin, size_t end, const Store& store) {
  float sums[kSumBlock];
  size_t first = begin;
  for (; end - first >= kSumBlock; first += kSumBlock) {
    sum_block(calls, first, std::integral_constant<size_t, kSumBlock>(), sums);
    store(first, sums, kSumBlock);
  }
  if (first == end) return;
  sum_block(calls, first, end - first, sums);
  store(first, sums, end - first);
}

void copy(std::span<const std::byte> from, std::byte* to) {
  if (!from.empty() && from.data() != to) std::memcpy(to, from.data(), from.size());
}

Misfit all_reduce_misfit(const LoopbackCalls& calls) {
  const size_t expected = calls[0]->data.size();
  for (int r = 1; r < static_cast<int>(calls.size()); ++r) {
    const size_t size = calls[r]->data.size();
    if (size != expected) {
      return {"all_reduce has {2} elements on rank {0} and {3} on rank {1}", 0, r, expected, size};
    }
  }
  return {};
}

Misfit reduce_scatter_misfit(const LoopbackCalls& calls) {
  const size_t expected = calls[0]->data.size();
  for (int r = 0; r < static_cast<int>(calls.size()); ++r) {
    const size_t size = calls[r]->data.size();
    if (size != expected) {
      return {"reduce_scatter has {2} elements on rank {0} and {3} on rank {1}", 0, r, expected, size};
    }
    const size_t parts = calls.size() * calls[r]->sum.size();
    if (size != parts) {
      return {"reduce_scatter has {2} elements on rank {0}, and the parts of all ranks have {3}", r, r, size,
              parts};
    }
  }
  return {};
}

Misfit all_gather_misfit(const LoopbackCalls& calls) {
  size_t parts = 0;
  for (const LoopbackCall* call : calls) parts += call->mine.size();
  for (int r = 0; r < static_cast<int>(calls.size()); ++r) {
    const size_t size = calls[r]->all.size();
    if (size != parts) {
      return {"all_gather has room for {2} bytes on rank {0}, and the parts of all ranks have {3}", r, r,
              size, parts};
    }
  }
  return {};
}

Misfit all_to_all_misfit(const LoopbackCalls& calls) {
  const int num_ranks = static_cast<int>(calls.size());
  for (int r = 0; r < num_ranks; ++r) {
    for (const size_t size : {calls[r]->send.size(), calls[r]->receive.size()}) {
      if (size != calls.size()) {
        return {"all_to_all has {2} parts on rank {0}, and there are {3} ranks", r, r, size, calls.size()};
      }
    }
  }
  for (int a = 0; a < num_ranks; ++a) {
    for (int b = 0; b < num_ranks; ++b) {
      const size_t sent = calls[a]->send[b].size();
      const size_t room = calls[b]->receive[a].size();
      if (sent != room) {
        return {"all_to_all sends {2} bytes from rank {0} to rank {1}, which has room for {3}", a, b, sent,
                room};
      }
    }
  }
  return {};
}

}  // namespace

const char* to_string(CallKind kind) {
  switch (kind) {
    case CallKind::kAllReduce:
      return "all_reduce";
    case CallKind::kReduceScatter:
      return "reduce_scatter";
    case CallKind::kAllGather:
      return "all_gather";
    case CallKind::kAllToAll:
      return "all_to_all";
    case CallKind::kBarrier:
      return "barrier";
  }
  return "unknown";
}

Misfit find_misfit(const LoopbackCalls& calls) noexcept {
  const CallKind kind = calls[0]->kind;
  for (int r = 1; r < static_cast<int>(calls.size()); ++r) {
    if (calls[r]->kind != kind) {
      return {"rank {0} calls {4} and rank {1} calls {5}", 0, r, 0, 0, kind, calls[r]->kind};
    }
  }
  switch (kind) {
    case CallKind::kAllReduce:
      return all_reduce_misfit(calls);
    case CallKind::kReduceScatter:
      return reduce_scatter_misfit(calls);
    case CallKind::kAllGather:
      return all_gather_misfit(calls);
    case CallKind::kAllToAll:
      return all_to_all_misfit(calls);
    case CallKind::kBarrier:
      return {};
  }
  return {};
}

std::string describe(const Misfit& misfit) {
  return fmt::format(fmt::runtime(misfit.pattern), misfit.rank_a, misfit.rank_b, misfit.size_a, misfit.size_b,
                     to_string(misfit.kind_a), to_string(misfit.kind_b));
}

void do_all_reduce(const LoopbackCalls& calls, int rank) noexcept {
  const size_t count = calls[0]->data.size();
  const size_t num_ranks = calls.size();
  const size_t slice = (count + num_ranks * kSliceAlign - 1) / (num_ranks * kSliceAlign) * kSliceAlign;
  const size_t begin = std::min(count, static_cast<size_t>(rank) * slice);
  const size_t end = std::min(count, begin + slice);
  sum_over_ranks(calls, begin, end, [&](size_t first, const float* sums, size_t size) {
    for (const LoopbackCall* call : calls) {
      std::memcpy(call->data.data() + first, sums, size * sizeof(float));
    }
  });
}

void do_reduce_scatter(const LoopbackCalls& calls, int rank) noexcept {
  const std::span<float> mine = calls[rank]->sum;
  const size_t begin = static_cast<size_t>(rank) * mine.size();
  sum_over_ranks(calls, begin, begin + mine.size(), [&](size_t first, const float* sums, size_t size) {
    std::memcpy(mine.data() + (first - begin), sums, size * sizeof(float));
  });
}

void do_all_gather(const LoopbackCalls& calls, int rank) noexcept {
  size_t at = 0;
  for (const LoopbackCall* call : calls) {
    copy(call->mine, calls[rank]->all.data() + at);
    at += call->mine.size();
  }
}

void do_all_to_all(const LoopbackCalls& calls, int rank) noexcept {
  for (size_t r = 0; r < calls.size(); ++r) copy(calls[r]->send[rank], calls[rank]->receive[r].data());
}

}  // namespace hadal

#include "comm/collective_choice.h"

#include <fmt/format.h>

#include "base/check.h"
#include "kernels/cuda/comm/parts.h"

namespace hadal {

const char* to_string(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::kAllReduce:
      return "all_reduce";
    case CollectiveOp::kReduceScatter:
      return "reduce_scatter";
    case CollectiveOp::kAllGather:
      return "all_gather";
    case CollectiveOp::kAllToAll:
      return "all_to_all";
  }
  return "unknown";
}

const char* to_string(CollectiveAlgorithm algorithm) {
  switch (algorithm) {
    case CollectiveAlgorithm::kNothing:
      return "nothing to do";
    case CollectiveAlgorithm::kOneShot:
      return "one-shot";
    case CollectiveAlgorithm::kTwoShot:
      return "two-shot";
  }
  return "unknown";
}

double exchange_us(int64_t bytes_from_each, int ranks, const LinkFigures& link) {
  if (ranks == 1) return 0.0;
  const double bytes_per_us = link.gigabytes_per_s * 1e3;
  return link.exchange_us + (ranks - 1) * static_cast<double>(bytes_from_each) / bytes_per_us;
}

CollectiveChoice choose_collective(CollectiveOp op, int64_t bytes, int ranks, const LinkFigures& link) {
  HADAL_CHECK(bytes >= 0, "a collective of {} bytes", bytes);
  HADAL_CHECK(ranks >= 1 && ranks <= cuda::kMaxRanks, "a collective of {} ranks, allowed are 1 to {}", ranks,
              cuda::kMaxRanks);
  CollectiveChoice choice{.op = op, .bytes = bytes, .ranks = ranks};
  if (ranks == 1 || bytes == 0) return choice;
  const auto use = [&](CollectiveAlgorithm algorithm, int num_exchanges, int64_t bytes_from_each) {
    const double us = num_exchanges * exchange_us(bytes_from_each, ranks, link);
    if (choice.algorithm != CollectiveAlgorithm::kNothing && choice.us <= us) return;
    choice.algorithm = algorithm;
    choice.num_exchanges = num_exchanges;
    choice.bytes_received = num_exchanges * (ranks - 1) * bytes_from_each;
    choice.us = us;
  };
  const int64_t slice = (bytes + ranks - 1) / ranks;
  const bool whole = op == CollectiveOp::kAllReduce || op == CollectiveOp::kAllGather;
  use(CollectiveAlgorithm::kOneShot, 1, whole ? bytes : slice);
  if (op == CollectiveOp::kAllReduce) use(CollectiveAlgorithm::kTwoShot, 2, slice);
  return choice;
}

std::string describe(const CollectiveChoice& choice) {
  return fmt::format("{} of {} bytes over {} ranks: {}, {} bytes received, {:.2f} us", to_string(choice.op),
                     choice.bytes, choice.ranks, to_string(choice.algorithm), choice.bytes_received,
                     choice.us);
}

}  // namespace hadal

#include "engine/cuda/op_profile.h"

#include <algorithm>

namespace hadal {

void OpProfile::begin(const char* name, double bytes, double flops) {
  Call& call = calls_.emplace_back();
  call.name = name;
  call.bytes = bytes;
  call.flops = flops;
  call.begin.record(stream_);
}

void OpProfile::end() {
  calls_.back().end.record(stream_);
}

std::vector<OpTiming> OpProfile::timings() const {
  std::vector<OpTiming> timings;
  for (const Call& call : calls_) {
    auto at = std::find_if(timings.begin(), timings.end(),
                           [&](const OpTiming& op) { return op.name == call.name; });
    if (at == timings.end()) {
      timings.push_back({.name = call.name});
      at = timings.end() - 1;
    }
    ++at->calls;
    at->seconds += static_cast<double>(call.end.ms_since(call.begin)) * 1e-3;
    at->bytes += call.bytes;
    at->flops += call.flops;
  }
  return timings;
}

}  // namespace hadal

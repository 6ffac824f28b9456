// Measures one call of a device op as an engine runs it: inside a CUDA graph, with several sets of inputs in
// turn, so that the L2 does not hold them. Only builds with CUDA have it; it uses one thread and one device.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "tensor/cuda.h"

namespace hadal {

// Captures a graph of `calls` calls, after one call outside of it. call(i) launches on the stream; i counts
// the calls of a graph, which lets the caller choose among input sets.
inline CudaGraph graph_of_calls(CudaStream& stream, const std::function<void(int)>& call, int calls) {
  call(0);
  stream.synchronize();
  return CudaGraph::capture(stream, [&] {
    for (int i = 0; i < calls; ++i) call(i);
  });
}

// Returns microseconds per call: the median over `replays` runs of a graph of `calls` calls.
inline double time_in_graph(CudaStream& stream, const std::function<void(int)>& call, int calls = 16,
                            int replays = 7) {
  const CudaGraph graph = graph_of_calls(stream, call, calls);
  std::vector<double> times;
  for (int replay = -2; replay < replays; ++replay) {
    CudaEvent begin(true);
    CudaEvent end(true);
    begin.record(stream.handle());
    graph.launch(stream.handle());
    end.record(stream.handle());
    end.wait();
    if (replay >= 0) times.push_back(static_cast<double>(end.ms_since(begin)) * 1e3 / calls);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// Returns how many sets of `bytes` are needed so that sets used in turn do not stay in the L2 (60 MB on an
// H200).
inline int num_rotating_sets(size_t bytes) {
  return static_cast<int>(std::clamp<size_t>((size_t{160} << 20) / std::max<size_t>(bytes, 1) + 1, 2, 64));
}

}  // namespace hadal

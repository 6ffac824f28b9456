#include "tests/cuda/gemm/compare_rows.h"

namespace hadal::testing {
namespace {

__global__ void compare_kernel(const uint16_t* copies, const uint16_t* first, int64_t words, int num_copies,
                               Differences* differences) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words;
       i += int64_t{gridDim.x} * blockDim.x) {
    const uint16_t want = first[i];
    for (int copy = 0; copy < num_copies; ++copy) {
      if (copies[copy * words + i] == want) continue;
      if (atomicAdd(&differences->count, 1ULL) == 0) {
        differences->copy = copy;
        differences->word = i;
      }
    }
  }
}

}  // namespace

void add_differences(const uint16_t* copies, const uint16_t* first, int64_t words, int num_copies,
                     Differences* differences, StreamHandle stream) {
  compare_kernel<<<264, 256, 0, static_cast<cudaStream_t>(stream.native)>>>(copies, first, words, num_copies,
                                                                            differences);
}

}  // namespace hadal::testing

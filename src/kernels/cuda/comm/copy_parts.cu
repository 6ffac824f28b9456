// Copies rectangles of bytes out of the parts of all ranks.
//
// Grid: x has blocks of columns, y the rows, z the parts; if there are fewer blocks than rows, a block has
// several rows. A thread copies one element of a row at a time: 16 bytes if all addresses and sizes allow it,
// otherwise 4 bytes or 1 byte.
#include <algorithm>

#include "kernels/cuda/comm/comm.h"
#include "kernels/cuda/comm/peer_memory.cuh"
#include "kernels/cuda/comm/preload.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"

namespace hadal::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostColumnBlocks = 512;
constexpr int64_t kMostRowBlocks = 1024;

__device__ __forceinline__ bool is_copied(const CopyPartsParams& p, int64_t row, int part) {
  if (p.rows == PartRows::kAll) return true;
  return p.owners[row] == (p.rows == PartRows::kOwnersOnly ? p.rank : part);
}

template <typename Element>
__global__ void __launch_bounds__(kThreads) copy_parts_kernel(const CopyPartsParams p) {
  pdl_launch_dependents();
  pdl_wait();
  const int part = static_cast<int>(blockIdx.z);
  const int64_t row_elements = p.row_bytes[part] / static_cast<int64_t>(sizeof(Element));
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  const auto* const source = static_cast<const std::byte*>(p.parts.parts[part]) + p.source[part];
  std::byte* const target = p.out + p.target[part];
  for (int64_t row = blockIdx.y; row < p.num_rows; row += gridDim.y) {
    if (!is_copied(p, row, part)) continue;
    const auto* const from = reinterpret_cast<const Element*>(source + row * p.source_pitch[part]);
    auto* const to = reinterpret_cast<Element*>(target + row * p.out_pitch);
    for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < row_elements; i += stride) {
      to[i] = load_part(from + i);
    }
  }
}

// Returns the largest element size, 16, 4 or 1 bytes, that divides all addresses and sizes.
int element_bytes(const CopyPartsParams& p) {
  uint64_t bits = reinterpret_cast<uintptr_t>(p.out);
  if (p.num_rows > 1) bits |= static_cast<uint64_t>(p.out_pitch);
  for (int r = 0; r < p.parts.num_ranks; ++r) {
    if (p.row_bytes[r] == 0) continue;
    bits |= reinterpret_cast<uintptr_t>(p.parts.parts[r]) | static_cast<uint64_t>(p.source[r]) |
            static_cast<uint64_t>(p.target[r]) | static_cast<uint64_t>(p.row_bytes[r]);
    if (p.num_rows > 1) bits |= static_cast<uint64_t>(p.source_pitch[r]);
  }
  return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1;
}

}  // namespace

void copy_parts(const CopyPartsParams& params, const Launch& launch) {
  const int num_ranks = params.parts.num_ranks;
  HADAL_CHECK(num_ranks >= 1 && num_ranks <= kMaxRanks, "{} ranks", num_ranks);
  HADAL_CHECK(params.rows == PartRows::kAll || params.owners != nullptr, "rows of owners, and no owners");
  const int64_t longest = *std::max_element(params.row_bytes, params.row_bytes + num_ranks);
  if (params.num_rows == 0 || longest == 0) return;
  const int bytes = element_bytes(params);
  const int64_t columns = (longest / bytes + kThreads - 1) / kThreads;
  const dim3 grid(static_cast<unsigned>(std::min(columns, kMostColumnBlocks)),
                  static_cast<unsigned>(std::min(params.num_rows, kMostRowBlocks)),
                  static_cast<unsigned>(num_ranks));
  if (bytes == 16) return launch_kernel<copy_parts_kernel<uint4>>(launch, grid, kThreads, 0, params);
  if (bytes == 4) return launch_kernel<copy_parts_kernel<uint32_t>>(launch, grid, kThreads, 0, params);
  launch_kernel<copy_parts_kernel<uint8_t>>(launch, grid, kThreads, 0, params);
}

void preload_copy_parts() {
  preload<copy_parts_kernel<uint4>>();
  preload<copy_parts_kernel<uint32_t>>();
  preload<copy_parts_kernel<uint8_t>>();
}

}  // namespace hadal::cuda

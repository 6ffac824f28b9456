// Fills the pages of a KV cache with random records and index keys, for benchmarks. It has no second version,
// because it runs once, before anything is measured.
//
// Grid: pages × layers. The threads of a block take one value after the other, so neighbouring threads store
// neighbouring bytes.
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/params/random_record.h"

namespace hadal::cuda {
namespace {

constexpr int kFillThreads = 256;

// Stores value i of a record that begins at `record`.
__device__ __forceinline__ void store_record_value(std::byte* record, int i, float value, KvFormat format) {
  switch (format) {
    case KvFormat::kF16:
      reinterpret_cast<f16*>(record)[i] = round_to<f16>(value);
      return;
    case KvFormat::kBF16:
      reinterpret_cast<bf16*>(record)[i] = round_to<bf16>(value);
      return;
    case KvFormat::kFp8E5M2:
      reinterpret_cast<fp8_e5m2*>(record)[i] = to_e5m2(value);
      return;
    case KvFormat::kFp8E4M3:
      if (i < kKvLatentDim) {
        reinterpret_cast<fp8_e4m3*>(record)[i] = to_e4m3(value / kRandomScale);
      } else {
        reinterpret_cast<bf16*>(record + kKvFp8RopeOffset)[i - kKvLatentDim] = round_to<bf16>(value);
      }
      if (i < kKvNumScales) reinterpret_cast<float*>(record + kKvFp8ScaleOffset)[i] = kRandomScale;
      return;
    case KvFormat::kF32:
      reinterpret_cast<float*>(record)[i] = value;
      return;
  }
}

__global__ void __launch_bounds__(kFillThreads) fill_pages_kernel(const FillPagesParams p) {
  pdl_wait();
  const int64_t page = blockIdx.x;
  const int64_t layer = blockIdx.y;
  std::byte* const records = p.pools[layer] + page * p.layout.page_bytes();
  for (int v = static_cast<int>(threadIdx.x); v < kPageSize * kKvRowDim; v += kFillThreads) {
    const int offset = v / kKvRowDim;
    const int i = v % kKvRowDim;
    const uint64_t key = random_record_key(p.seed, layer, page * kPageSize + offset, RandomPart::kRecord);
    store_record_value(records + offset * p.layout.row_bytes(), i, random_record_value(key, i),
                       p.layout.format);
  }
  if (p.layout.index == KvIndex::kNone) return;
  std::byte* const keys = p.index_pools[layer] + page * p.layout.index_page_bytes();
  for (int v = static_cast<int>(threadIdx.x); v < kPageSize * kKvIndexDim; v += kFillThreads) {
    const int offset = v / kKvIndexDim;
    const int i = v % kKvIndexDim;
    const uint64_t key = random_record_key(p.seed, layer, page * kPageSize + offset, RandomPart::kIndexKey);
    reinterpret_cast<fp8_e4m3*>(keys)[v] = to_e4m3(random_record_value(key, i) / kRandomScale);
    if (i == 0) reinterpret_cast<float*>(keys + kKvIndexScalesOffset)[offset] = kRandomScale;
  }
}

}  // namespace

void fill_pages(const FillPagesParams& p, const Launch& launch) {
  HADAL_CHECK(
      p.layout.index == KvIndex::kNone || (p.layout.index == KvIndex::kE4M3 && p.index_pools != nullptr),
      "a device fills index keys in e4m3, in pools that are given");
  const dim3 grid(static_cast<unsigned>(p.num_pages), static_cast<unsigned>(p.num_layers));
  launch_kernel<fill_pages_kernel>(launch, grid, kFillThreads, 0, p);
}

}  // namespace hadal::cuda

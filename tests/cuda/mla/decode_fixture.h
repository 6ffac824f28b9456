// Caches and queries for tests of MLA decode: pages scattered at random, NaN in every record that no length
// covers, absurd page ids beyond the last page.
#pragma once

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/reference/kv_record.h"
#include "kernels/cuda/mla/mla.h"
#include "tests/cuda/device_array.h"

namespace hadal::testing {

inline constexpr float kDecodeScale = 0.1147F;  // V3's, with its long-context factor

// One layer's pool in host and device memory. Sequence i lies in row i of the page table.
struct DecodeCache {
  DecodeCache(const std::vector<int>& sequence_lengths, KvLayout kv_layout, uint64_t seed)
      : lengths(sequence_lengths), layout(kv_layout) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (int length : lengths) {
      const int64_t pages = (length + kPageSize - 1) / kPageSize;
      stride = std::max(stride, pages + 3);
      num_pages += pages;
    }
    num_pages += 2;
    std::vector<int32_t> ids(num_pages);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random);
    pool.assign(num_pages * layout.page_bytes(), std::byte{0xff});
    for (size_t i = 0; i < lengths.size() * stride; ++i) {
      table.push_back(i % 2 == 0 ? std::numeric_limits<int32_t>::max() : -123456789);
    }
    size_t used = 0;
    std::vector<float> latent(kKvLatentDim), rope(kKvRopeDim);
    for (size_t seq = 0; seq < lengths.size(); ++seq) {
      for (int s = 0; s < lengths[seq]; ++s) {
        if (s % kPageSize == 0) table[seq * stride + s / kPageSize] = ids[used++];
        const float sigma = 0.5F + 0.01F * static_cast<float>(s % 100);
        for (int i = 0; i < kKvLatentDim; ++i)
          latent[i] = normal(random) * sigma * (1.0F + static_cast<float>(i / 128));
        for (float& v : rope) v = normal(random);
        cpu::reference::write_record(latent.data(), rope.data(), layout,
                                     const_cast<std::byte*>(cpu::reference::record_address(host(), seq, s)));
      }
    }
    device_pool = DeviceArray<std::byte>(pool);
    device_table = DeviceArray<int32_t>(table);
  }

  hadal::PagedKv host() {
    return {.pool = pool.data(),
            .layout = layout,
            .num_pages = num_pages,
            .page_table = table.data(),
            .page_table_stride = stride};
  }
  cuda::PagedKv device() const {
    return {.pool = device_pool.data(),
            .layout = layout,
            .page_table = device_table.data(),
            .page_table_stride = stride};
  }

  std::vector<int> lengths;
  KvLayout layout;
  std::vector<std::byte> pool;
  std::vector<int32_t> table;
  int64_t num_pages = 0;
  int64_t stride = 0;
  DeviceArray<std::byte> device_pool;
  DeviceArray<int32_t> device_table;
};

struct DecodeResult {
  std::vector<bf16> out;
  std::vector<float> lse;
};

// A batch over rows `rows` of a cache's page table; a row of −1 is padding of the batch: no keys, no table
// row.
class DecodeBatch {
 public:
  DecodeBatch(const DecodeCache& cache, std::vector<int> rows, int num_heads, int num_queries, uint64_t seed)
      : cache_(cache), seq_idx(std::move(rows)), heads(num_heads), q_len(num_queries) {
    for (int row : seq_idx) kv_len.push_back(row < 0 ? 0 : cache.lengths[row]);
    q = random_bf16(seq_idx.size() * q_len * heads * kKvRowDim, seed, 0.3F);
    device_q_ = DeviceArray<bf16>(q);
    device_seq_idx_ = DeviceArray<int32_t>(std::vector<int32_t>(seq_idx.begin(), seq_idx.end()));
    device_kv_len_ = DeviceArray<int32_t>(std::vector<int32_t>(kv_len.begin(), kv_len.end()));
  }

  void set_queries(const std::vector<bf16>& values) {
    q = values;
    device_q_.upload(q);
  }

  cuda::MlaPlanShape shape(int split_pages = 0) const {
    return {.num_seqs = static_cast<int64_t>(seq_idx.size()),
            .q_len = q_len,
            .num_heads = heads,
            .num_sms = cuda_device_info(0).num_sms,
            .split_pages = split_pages,
            .layout = cache_.layout};
  }
  int64_t num_rows() const { return static_cast<int64_t>(seq_idx.size()) * q_len * heads; }

  // Into poisoned outputs, with a poisoned plan and scratch. Graphed: captured, replayed twice, the second
  // one's result.
  DecodeResult run(bool reference, int split_pages = 0, bool graphed = false, bool want_lse = true) const {
    const cuda::MlaPlanShape plan_shape = shape(split_pages);
    DeviceArray<std::byte> plan(cuda::mla_plan_bytes(plan_shape));
    DeviceArray<std::byte> scratch(cuda::mla_decode_scratch_bytes(plan_shape));
    DeviceArray<bf16> out(num_rows() * kKvLatentDim);
    DeviceArray<float> lse(num_rows());
    const cuda::Launch launch{
        .stream = test_stream().handle(), .num_sms = plan_shape.num_sms, .reference = reference};
    const cuda::MlaDecodeParams params{.shape = plan_shape,
                                       .q = device_q_.data(),
                                       .out = out.data(),
                                       .lse = want_lse ? lse.data() : nullptr,
                                       .kv = cache_.device(),
                                       .seq_idx = device_seq_idx_.data(),
                                       .kv_len = device_kv_len_.data(),
                                       .softmax_scale = kDecodeScale,
                                       .plan = plan.data(),
                                       .scratch = scratch.data()};
    const auto step = [&] {
      cuda::mla_decode_plan(plan_shape, device_kv_len_.data(), plan.data(), launch);
      cuda::mla_decode(params, launch);
    };
    if (graphed) {
      const CudaGraph graph = CudaGraph::capture(test_stream(), step);
      graph.launch(test_stream().handle());
      test_stream().synchronize();
      out.poison();
      lse.poison();
      graph.launch(test_stream().handle());
    } else {
      step();
    }
    test_stream().synchronize();
    return {out.download(), lse.download()};
  }

 private:
  const DecodeCache& cache_;

 public:
  std::vector<int> seq_idx;
  std::vector<int> kv_len;
  int heads;
  int q_len;
  std::vector<bf16> q;

 private:
  DeviceArray<bf16> device_q_;
  DeviceArray<int32_t> device_seq_idx_;
  DeviceArray<int32_t> device_kv_len_;
};

// The largest ‖a − b‖ / ‖b‖ over rows of 512 and which row it is; a row of zeros must be zeros. NaN counts as
// infinite.
struct RowError {
  double worst = 0.0;
  int64_t row = -1;
};
template <typename T>
RowError worst_row_error(const std::vector<bf16>& a, const std::vector<T>& b) {
  RowError result;
  for (size_t begin = 0; begin < b.size(); begin += kKvLatentDim) {
    double difference = 0.0;
    double norm = 0.0;
    for (size_t i = begin; i < begin + kKvLatentDim; ++i) {
      const double expected = to_float(b[i]);
      const double error = to_float(a[i]) - expected;
      difference += error * error;
      norm += expected * expected;
    }
    double error = norm > 0.0 ? std::sqrt(difference / norm) : difference > 0.0 ? 1e30 : 0.0;
    if (!(error < 1e30)) error = 1e30;
    if (error > result.worst) result = {error, static_cast<int64_t>(begin / kKvLatentDim)};
  }
  return result;
}

}  // namespace hadal::testing

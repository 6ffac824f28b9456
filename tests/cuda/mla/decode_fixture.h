// Makes caches and queries for tests of MLA decode. Pages are scattered at random, every record that no
// length covers is NaN, and page ids beyond the last page are out of range.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/reference/kv_record.h"
#include "kernels/cuda/mla/decode/decode.h"
#include "tests/cuda/device_array.h"

namespace hadal::testing {

inline constexpr float kDecodeScale = 0.1147F;  // V3's, with its long-context factor

struct CacheOptions {
  // By default latents have a standard deviation of 1 … 4 by column (times 0.5 … 1.5 by record) and rope
  // values one of 1, which with queries of 0.3 gives weights of widely different size. If `flat`, all have
  // flat_size, so that with queries of 0.01 / flat_size all weights are alike.
  bool flat = false;
  float flat_size = 0.1F;
  // This many caches are interleaved record by record, and the last one is read; pages lie 4 KB further apart
  // than they need to. Only 16-bit formats support more than one.
  int heads_kv = 1;
};

// Holds one layer's pool in host and device memory. Sequence i lies in row i of the page table. In long
// caches, the pages after the first 64 repeat those in random order.
struct DecodeCache {
  DecodeCache(const std::vector<int>& sequence_lengths, KvLayout kv_layout, uint64_t seed,
              CacheOptions cache_options = {})
      : lengths(sequence_lengths), layout(kv_layout), options(cache_options) {
    std::mt19937_64 random(seed);
    for (int length : lengths) {
      const int64_t pages = (length + kPageSize - 1) / kPageSize;
      stride = std::max(stride, pages + 3);
      num_pages += pages;
    }
    num_pages += 2;
    std::vector<int32_t> ids(num_pages);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random);
    pool.assign(num_pages * page_stride(), std::byte{0xff});
    for (size_t i = 0; i < lengths.size() * stride; ++i) {
      table.push_back(i % 2 == 0 ? std::numeric_limits<int32_t>::max() : -123456789);
    }
    constexpr size_t kDistinctPages = 64;
    std::vector<std::byte> models;  // dense pages
    size_t used = 0;
    for (size_t seq = 0; seq < lengths.size(); ++seq) {
      for (int begin = 0; begin < lengths[seq]; begin += kPageSize) {
        const int32_t page = ids[used++];
        table[seq * stride + begin / kPageSize] = page;
        if (used <= kDistinctPages) add_random_page(models, random);
        const size_t model = used <= kDistinctPages ? used - 1 : random() % kDistinctPages;
        for (int i = 0; i < std::min(kPageSize, lengths[seq] - begin); ++i) {
          std::memcpy(record(page, i), models.data() + (model * kPageSize + i) * layout.row_bytes(),
                      layout.row_bytes());
        }
      }
    }
    device_pool = DeviceArray<std::byte>(pool);
    device_table = DeviceArray<int32_t>(table);
  }

  int64_t record_stride() const { return int64_t{options.heads_kv} * layout.row_bytes(); }
  int64_t page_stride() const { return kPageSize * record_stride() + (options.heads_kv > 1 ? 4096 : 0); }
  int64_t first_record() const { return (options.heads_kv - 1) * int64_t{layout.row_bytes()}; }
  std::byte* record(int64_t page, int64_t slot) {
    return pool.data() + page * page_stride() + slot * record_stride() + first_record();
  }
  // Returns the offset in device_pool at which the record of a position begins.
  int64_t offset_of(int64_t seq, int64_t position) const {
    return table[seq * stride + position / kPageSize] * page_stride() +
           position % kPageSize * record_stride() + first_record();
  }
  // Returns the deviation of a column of the latents.
  double deviation(int64_t column) const {
    return options.flat ? options.flat_size : static_cast<double>(1 + column / 128);
  }

  // Returns the host's view; only for a dense cache.
  hadal::PagedKv host() {
    return {.pool = pool.data(),
            .layout = layout,
            .num_pages = num_pages,
            .page_table = table.data(),
            .page_table_stride = stride};
  }
  cuda::DevicePagedKv device() const {
    return {.pool = device_pool.data() + first_record(),
            .layout = layout,
            .page_table = device_table.data(),
            .page_table_stride = stride,
            .record_stride = options.heads_kv > 1 ? record_stride() : 0,
            .page_stride = options.heads_kv > 1 ? page_stride() : 0};
  }

  std::vector<int> lengths;
  KvLayout layout;
  CacheOptions options;
  std::vector<std::byte> pool;
  std::vector<int32_t> table;
  int64_t num_pages = 0;
  int64_t stride = 0;
  DeviceArray<std::byte> device_pool;
  DeviceArray<int32_t> device_table;

 private:
  void add_random_page(std::vector<std::byte>& pages, std::mt19937_64& random) const {
    std::normal_distribution<float> normal;
    std::vector<float> latent(kKvLatentDim), rope(kKvRopeDim);
    const size_t begin = pages.size();
    pages.resize(begin + layout.page_bytes());
    for (int s = 0; s < kPageSize; ++s) {
      const float sigma = 0.5F + 0.01F * static_cast<float>(random() % 100);
      for (int i = 0; i < kKvLatentDim; ++i)
        latent[i] =
            normal(random) * (options.flat ? options.flat_size : sigma * static_cast<float>(1 + i / 128));
      for (float& v : rope) v = normal(random) * (options.flat ? options.flat_size : 1.0F);
      cpu::reference::write_record(latent.data(), rope.data(), layout,
                                   pages.data() + begin + static_cast<int64_t>(s) * layout.row_bytes());
    }
  }
};

// Queries and outputs are stored as bf16; with a float16 cache they hold float16's bits.
inline float decode_value(const KvLayout& layout, bf16 stored) {
  return layout.format == KvFormat::kF16 ? to_float(f16{stored.bits}) : to_float(stored);
}

struct DecodeResult {
  std::vector<bf16> out;
  std::vector<float> lse;
};
struct DecodeDoubles {
  std::vector<double> out;
  std::vector<double> lse;
};
struct DecodeRun {
  bool reference = false;
  int split_pages = 0;
  bool graphed = false;  // captured and replayed twice; the result is that of the second replay
  bool want_lse = true;
  bool causal = true;
  std::optional<cuda::DecodeSchedule> schedule = {};  // else the op's own choice
};

// Holds a batch over rows `rows` of a cache's page table; a row of −1 is padding, which has no keys and no
// table row.
class DecodeBatch {
 public:
  DecodeBatch(const DecodeCache& cache, std::vector<int> rows, int num_heads, int num_queries, uint64_t seed,
              float q_sigma = 0.3F)
      : cache_(cache), seq_idx(std::move(rows)), heads(num_heads), q_len(num_queries) {
    for (int row : seq_idx) kv_len.push_back(row < 0 ? 0 : cache.lengths[row]);
    q = random_bf16(seq_idx.size() * q_len * heads * kKvRowDim, seed, q_sigma);
    if (cache.layout.format == KvFormat::kF16) {
      for (bf16& value : q) value = {to_f16(to_float(value)).bits};
    }
    device_q_ = DeviceArray<bf16>(q);
    device_seq_idx_ = DeviceArray<int32_t>(std::vector<int32_t>(seq_idx.begin(), seq_idx.end()));
    upload_lengths();
  }

  void set_queries(const std::vector<bf16>& values) {
    q = values;
    device_q_.upload(q);
  }
  void set_lengths(const std::vector<int>& values) {
    kv_len = values;
    upload_lengths();
  }
  // Sets the masks of the newest records, [sequences, q_len].
  void set_masks(const std::vector<uint64_t>& values) { device_masks_ = DeviceArray<uint64_t>(values); }

  cuda::MlaPlanShape shape(int split_pages = 0) const {
    return {.num_seqs = static_cast<int64_t>(seq_idx.size()),
            .q_len = q_len,
            .num_heads = heads,
            .num_sms = cuda_device_info(0).num_sms,
            .split_pages = split_pages,
            .layout = cache_.layout};
  }
  int64_t num_rows() const { return static_cast<int64_t>(seq_idx.size()) * q_len * heads; }
  const DecodeCache& cache() const { return cache_; }
  const DeviceArray<bf16>& device_q() const { return device_q_; }

  // Returns all arguments except outputs, plan and scratch.
  cuda::DeviceDecodeParams params(const cuda::MlaPlanShape& plan_shape, bool causal = true) const {
    return {.shape = plan_shape,
            .q = device_q_.data(),
            .kv = cache_.device(),
            .seq_idx = device_seq_idx_.data(),
            .kv_len = device_kv_len_.data(),
            .softmax_scale = kDecodeScale,
            .causal = causal,
            .newest_seen = device_masks_.size() > 0 ? device_masks_.data() : nullptr};
  }

  // Runs decode into poisoned outputs, with a poisoned plan and scratch.
  DecodeResult run(const DecodeRun& how) const {
    const cuda::MlaPlanShape plan_shape = shape(how.split_pages);
    const cuda::DecodeGeometry geometry =
        how.schedule
            ? cuda::decode_geometry(plan_shape, *how.schedule, cuda::device_capacity(plan_shape.num_sms))
            : cuda::decode_geometry(plan_shape);
    DeviceArray<std::byte> plan(cuda::decode_plan_bytes(geometry));
    DeviceArray<std::byte> scratch(cuda::decode_scratch_bytes(geometry));
    DeviceArray<bf16> out(num_rows() * kKvLatentDim);
    DeviceArray<float> lse(num_rows());
    const cuda::Launch launch{
        .stream = test_stream().handle(), .num_sms = plan_shape.num_sms, .reference = how.reference};
    cuda::DeviceDecodeParams decode = params(plan_shape, how.causal);
    decode.out = out.data();
    decode.lse = how.want_lse ? lse.data() : nullptr;
    decode.plan = plan.data();
    decode.scratch = scratch.data();
    const auto step = [&] {
      cuda::mla_decode_plan(geometry, device_kv_len_.data(), plan.data(), launch);
      cuda::mla_decode(decode, geometry, launch);
    };
    if (how.graphed) {
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
  DecodeResult run(bool reference, int split_pages = 0, bool graphed = false, bool want_lse = true) const {
    return run(DecodeRun{reference, split_pages, graphed, want_lse});
  }

  // Computes the result in double precision.
  DecodeDoubles run_double(bool causal = true) const {
    DeviceArray<double> out(num_rows() * kKvLatentDim);
    DeviceArray<double> lse(num_rows());
    cuda::reference::mla_decode_double(params(shape(), causal), out.data(), lse.data(),
                                       {.stream = test_stream().handle()});
    test_stream().synchronize();
    return {out.download(), lse.download()};
  }

 private:
  void upload_lengths() {
    device_kv_len_ = DeviceArray<int32_t>(std::vector<int32_t>(kv_len.begin(), kv_len.end()));
  }

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
  DeviceArray<uint64_t> device_masks_;  // empty: none
};

// Holds the largest ‖a − b‖ / ‖b‖ over rows of 512, and which row it is; a row of zeros must be zeros. NaN
// counts as infinite.
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

inline RowError worst_row_error(const DecodeResult& result, const std::vector<double>& expected,
                                const KvLayout& layout) {
  std::vector<bf16> out = result.out;  // float16 outputs are compared in the precision of bf16
  for (bf16& value : out) value = to_bf16(decode_value(layout, value));
  return worst_row_error(out, expected);
}

}  // namespace hadal::testing

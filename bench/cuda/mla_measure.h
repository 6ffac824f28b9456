// Measures one row of the MLA decode bench: pools, queries and page tables, and the times of decode and plan
// on them.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "bench/cuda/cool_timer.h"
#include "bench/cuda/graph_timer.h"
#include "kernels/cuda/mla/decode/decode.h"

namespace hadal::bench {

inline constexpr size_t kRotatedBytes = size_t{128} << 20;  // the L2 has 60 MB

struct Format {
  const char* name;
  KvLayout layout;
};
inline constexpr Format kFormats[] = {{"bf16", {KvFormat::kBF16}},
                                      {"f16", {KvFormat::kF16}},
                                      {"e4m3", {KvFormat::kFp8E4M3}},
                                      {"e4m3/128", {KvFormat::kFp8E4M3, KvScales::kPer128}},
                                      {"e5m2", {KvFormat::kFp8E5M2}}};

inline CudaStream& stream() {
  static CudaStream s;
  return s;
}
inline CoolTimer& timer() {
  static CoolTimer t;
  return t;
}

// Returns a device buffer filled with copies of `block`.
inline DeviceBuffer filled(const std::vector<std::byte>& block, size_t bytes) {
  DeviceBuffer buffer(std::max<size_t>(bytes, 16));
  const size_t first = std::min(bytes, block.size());
  copy_to_device(buffer.data(), block.data(), first, stream().handle());
  for (size_t done = first; done < bytes; done *= 2) {
    copy_on_device(buffer.data() + done, buffer.data(), std::min(done, bytes - done), stream().handle());
  }
  stream().synchronize();
  return buffer;
}
template <typename T>
DeviceBuffer uploaded(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return filled(bytes, bytes.size());
}

// Returns sixteen pages of random records.
inline std::vector<std::byte> random_records(const KvLayout& layout) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  const int64_t count = 16 * kPageSize;
  std::vector<std::byte> bytes(count * layout.row_bytes());
  for (int64_t r = 0; r < count; ++r) {
    std::byte* record = bytes.data() + r * layout.row_bytes();
    const auto store = [&](int offset, auto value) { std::memcpy(record + offset, &value, sizeof(value)); };
    if (layout.format == KvFormat::kBF16) {
      for (int i = 0; i < kKvRowDim; ++i) store(i * 2, to_bf16(normal(random)));
    } else if (layout.format == KvFormat::kF16) {
      for (int i = 0; i < kKvRowDim; ++i) store(i * 2, to_f16(normal(random)));
    } else if (layout.format == KvFormat::kFp8E5M2) {
      for (int i = 0; i < kKvRowDim; ++i) store(i, to_fp8_e5m2(normal(random)));
    } else {
      for (int i = 0; i < kKvLatentDim; ++i) store(i, to_fp8_e4m3(normal(random) * 128.0F));
      for (int i = 0; i < kKvNumScales; ++i) {
        const float part = layout.scales == KvScales::kPerToken ? 1.0F : 0.5F + 0.25F * static_cast<float>(i);
        store(kKvFp8ScaleOffset + i * 4, part / 128.0F);
      }
      for (int i = 0; i < kKvRopeDim; ++i) store(kKvFp8RopeOffset + i * 2, to_bf16(normal(random)));
    }
  }
  return bytes;
}

// Returns four megabytes of random queries.
template <typename T>
std::vector<std::byte> random_queries(T (*convert)(float)) {
  std::mt19937_64 random(11);
  std::normal_distribution<float> normal(0.0F, 0.3F);
  std::vector<std::byte> bytes(size_t{4} << 20);
  for (size_t i = 0; i < bytes.size(); i += sizeof(T)) {
    const T value = convert(normal(random));
    std::memcpy(bytes.data() + i, &value, sizeof(value));
  }
  return bytes;
}
inline const std::vector<std::byte>& queries(KvFormat format) {
  static const std::vector<std::byte> bf16_values = random_queries<bf16>([](float x) { return to_bf16(x); });
  static const std::vector<std::byte> f16_values = random_queries<f16>([](float x) { return to_f16(x); });
  return format == KvFormat::kF16 ? f16_values : bf16_values;
}

// Holds the pages of a format in one pool, which grows to the size that the largest row needs.
struct Pool {
  explicit Pool(const KvLayout& kv) : layout(kv), records(random_records(kv)) {}
  const std::byte* of(int64_t pages) {
    const auto bytes = static_cast<size_t>(pages * layout.page_bytes());
    if (!buffer || buffer->size() < bytes) {
      buffer.reset();
      buffer.emplace(filled(records, bytes));
    }
    return buffer->data();
  }

  KvLayout layout;
  std::vector<std::byte> records;
  std::optional<DeviceBuffer> buffer;
};

struct Times {
  double us = 0.0, first_us = 0.0, plan_us = 0.0;
  double mhz = 0.0;  // the multiprocessors' clock while `us` was measured
  double bytes = 0.0, flop = 0.0;
};

// If `settled` is true, `us` is measured for a layer after the first one of a step (mla.h); first_us is
// always measured without settled inputs. If a schedule is given instead of the op's own choice, first_us is
// not measured. `most_keys` is the longest length that the plan receives; 0 stands for the width of
// the page table, which is the longest of `lengths`, rounded up to whole pages.
inline Times measure(Pool& pool, int q_len, int heads, const std::vector<int32_t>& lengths, bool settled,
                     const std::optional<cuda::DecodeGeometry>& by_hand = {}, int64_t most_keys = 0) {
  const auto batch = static_cast<int64_t>(lengths.size());
  int64_t pages = 0;
  int64_t stride = 0;
  double keys = 0.0;
  for (const int32_t length : lengths) {
    const int64_t count = (length + kPageSize - 1) / kPageSize;
    pages += count;
    stride = std::max(stride, count);
    keys += length;
  }
  const double cache_bytes = keys * pool.layout.row_bytes();
  const int sets =
      static_cast<int>(std::clamp(static_cast<double>(kRotatedBytes) / cache_bytes + 1.0, 2.0, 512.0));
  const std::byte* pool_data = pool.of(sets * pages);
  std::vector<int32_t> ids(sets * pages);
  std::iota(ids.begin(), ids.end(), 0);
  std::mt19937_64 random(11);
  std::shuffle(ids.begin(), ids.end(), random);
  std::vector<int32_t> table(sets * batch * stride, 0);
  for (int64_t row = 0, at = 0; row < sets * batch; ++row) {
    const int64_t count = (lengths[row % batch] + kPageSize - 1) / kPageSize;
    std::copy_n(ids.begin() + at, count, table.begin() + row * stride);
    at += count;
  }
  std::vector<int32_t> seq_idx(batch);
  std::iota(seq_idx.begin(), seq_idx.end(), 0);
  const DeviceBuffer device_table = uploaded(table);
  const DeviceBuffer device_seq_idx = uploaded(seq_idx);
  const DeviceBuffer kv_len = uploaded(lengths);
  const size_t rows = static_cast<size_t>(batch) * q_len * heads;
  const DeviceBuffer q = filled(queries(pool.layout.format), sets * rows * kKvRowDim * 2);
  const DeviceBuffer out(rows * kKvLatentDim * 2);

  const cuda::Launch launch{.stream = stream().handle(), .num_sms = cuda_device_info(0).num_sms};
  const cuda::MlaPlanShape shape{.num_seqs = batch,
                                 .q_len = q_len,
                                 .num_heads = heads,
                                 .num_sms = launch.num_sms,
                                 .layout = pool.layout,
                                 .most_keys = most_keys > 0 ? most_keys : stride * kPageSize};
  const cuda::DecodeGeometry geometry = by_hand ? *by_hand : cuda::decode_geometry(shape);
  const DeviceBuffer plan(cuda::decode_plan_bytes(geometry));
  const DeviceBuffer scratch(cuda::decode_scratch_bytes(geometry));
  cuda::DeviceDecodeParams params{
      .shape = shape,
      .out = out.data(),
      .kv = {.pool = pool_data, .layout = pool.layout, .page_table_stride = stride},
      .seq_idx = device_seq_idx.as<int32_t>(),
      .kv_len = kv_len.as<int32_t>(),
      .softmax_scale = 0.1147F,
      .plan = plan.data(),
      .scratch = scratch.data()};
  const auto decode = [&](int i) {
    const int64_t set = i % sets;
    params.q = q.data() + set * rows * kKvRowDim * 2;
    params.kv.page_table = device_table.as<int32_t>() + set * batch * stride;
    cuda::mla_decode(params, geometry, launch);
  };
  Times t;
  t.plan_us = time_in_graph(
      stream(), [&](int) { cuda::mla_decode_plan(geometry, kv_len.as<int32_t>(), plan.data(), launch); }, 16,
      5);
  decode(0);
  CudaEvent begin(true);
  CudaEvent end(true);
  begin.record(stream().handle());
  decode(1);
  end.record(stream().handle());
  end.wait();
  const double once_us = static_cast<double>(end.ms_since(begin)) * 1e3;
  const int calls = cool_calls(once_us, sets);
  params.settled = settled;
  const CoolTime timed = timer().time(stream(), decode, calls, once_us);
  t.us = timed.us;
  t.mhz = timed.mhz;
  params.settled = false;
  if (!by_hand) t.first_us = timer().time(stream(), decode, calls, once_us).us;
  t.bytes = cache_bytes + static_cast<double>(rows) * 2 * (kKvRowDim + kKvLatentDim);
  t.flop = 2.0 * q_len * heads * keys * (kKvRowDim + kKvLatentDim);
  return t;
}

}  // namespace hadal::bench

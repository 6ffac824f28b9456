// Measures attention of a few new tokens after a cached prefix, from q to the heads' outputs, in a graph. It
// runs in two ways: un-absorbed (gather_keys, kv_b, mla_prefill) and absorbed (absorb_query, mla_decode,
// expand_value). prefill_absorbed (model/cuda/prefill_plan.h) is fitted to these times, and its choice is
// marked.
//   cuda_mla_extend_bench [heads,…] [prefixes,…] [tokens,…]
//   cuda_mla_extend_bench query    decode's query: RoPE before the absorbed product, and inside it
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/arguments.h"
#include "bench/cuda/graph_timer.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/mla/mla.h"
#include "model/cuda/prefill_plan.h"

namespace hadal::bench {
namespace {

CudaStream& stream() {
  static CudaStream s;
  return s;
}

// Returns random bf16 values: one random block, repeated.
DeviceBuffer random_buffer(size_t bytes) {
  static const std::vector<bf16> block = [] {
    std::mt19937_64 random(11);
    std::normal_distribution<float> normal(0.0F, 0.5F);
    std::vector<bf16> values(size_t{1} << 20);
    for (bf16& value : values) value = to_bf16(normal(random));
    return values;
  }();
  DeviceBuffer buffer(bytes);
  for (size_t done = 0; done < bytes;) {
    const size_t part = std::min(bytes - done, block.size() * sizeof(bf16));
    copy_to_device(buffer.data() + done, block.data(), part, stream().handle());
    done += part;
  }
  stream().synchronize();
  return buffer;
}
template <typename T>
DeviceBuffer uploaded(const std::vector<T>& values) {
  DeviceBuffer buffer(std::max<size_t>(values.size(), 1) * sizeof(T));
  copy_to_device(buffer.data(), values.data(), values.size() * sizeof(T), stream().handle());
  stream().synchronize();
  return buffer;
}

struct Case {
  int heads = 16;
  int64_t prefix = 0;
  int64_t tokens = 0;
  KvLayout layout;
  bool fp8 = false;  // the weights are FP8
};

MatrixWeight weight(bool fp8, int64_t n, int64_t k, const DeviceBuffer& data, const DeviceBuffer& scales) {
  MatrixWeight w;
  w.n = n;
  w.k = k;
  w.row_stride = k;
  w.data = data.data();
  w.type = fp8 ? WeightType::kFp8Block : WeightType::kBF16;
  w.scales = scales.as<float>();
  w.scale_stride = k / 128;
  return w;
}

void measure(const Case& c, cuda::GemmLibrary& gemm) {
  const cuda::Launch launch{.stream = stream().handle(), .num_sms = cuda_device_info(0).num_sms};
  const int64_t keys = c.prefix + c.tokens;
  const int64_t pages = (keys + kPageSize - 1) / kPageSize;
  const int64_t heads_width = int64_t{c.heads} * 128;
  const PrefillSegment segment{.seq_idx = 0,
                               .q_begin = 0,
                               .q_len = static_cast<int32_t>(c.tokens),
                               .kv_len = static_cast<int32_t>(keys)};
  const PrefillPaths paths{.num_heads = c.heads, .layout = c.layout, .fp8_weights = c.fp8};

  std::vector<int32_t> table(pages);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(5));
  const DeviceBuffer device_table = uploaded(table);
  const DeviceBuffer pool = random_buffer(static_cast<size_t>(pages * c.layout.page_bytes()));
  const DeviceBuffer q = random_buffer(static_cast<size_t>(c.tokens * c.heads) * 192 * 2);
  const DeviceBuffer out(static_cast<size_t>(c.tokens * heads_width) * 2);
  const DeviceBuffer up_data = random_buffer(static_cast<size_t>(c.heads) * 256 * 512 * 2);
  const DeviceBuffer absorb_data = random_buffer(static_cast<size_t>(c.heads) * 512 * 128 * 2);
  const DeviceBuffer scales = uploaded(std::vector<float>(static_cast<size_t>(c.heads) * 8, 0.01F));
  const MatrixWeight kv_b = weight(c.fp8, int64_t{c.heads} * 256, 512, up_data, scales);
  const MatrixWeight w_uk = weight(c.fp8, int64_t{c.heads} * 512, 128, absorb_data, scales);
  const cuda::DevicePagedKv paged{.pool = pool.data(),
                                  .layout = c.layout,
                                  .page_table = device_table.as<int32_t>(),
                                  .page_table_stride = pages};

  double unabsorbed = 0.0;
  {
    PrefillPlan plan;
    plan_prefill(std::vector{segment}, 16384, {}, plan);
    int64_t most = 0;
    for (const PrefillPass& pass : plan.passes) most = std::max(most, pass.num_keys);
    const DeviceBuffer key_runs = uploaded(plan.key_runs);
    const DeviceBuffer segment_runs = uploaded(plan.segment_runs);
    const DeviceBuffer latent(static_cast<size_t>(most) * 512 * 2);
    const DeviceBuffer latent_scales(static_cast<size_t>(most) * 4 * 4);
    const DeviceBuffer rope(static_cast<size_t>(most) * 64 * 2);
    const DeviceBuffer kv(static_cast<size_t>(most * c.heads) * 256 * 2);
    const DeviceBuffer lse(static_cast<size_t>(c.tokens * c.heads) * 4);
    unabsorbed = time_in_graph(
        stream(),
        [&](int) {
          for (const PrefillPass& pass : plan.passes) {
            cuda::QuantizedRows rows;
            if (c.fp8)
              rows = {.codes = latent.as<fp8_e4m3>(),
                      .scales = latent_scales.as<float>(),
                      .stride = 512,
                      .scale_stride = cuda::round_up(pass.num_keys, 4)};
            cuda::gather_keys({.kv = paged,
                               .runs = key_runs.as<cuda::KeyRun>() + pass.first_key_run,
                               .num_runs = pass.num_key_runs,
                               .max_count = pass.max_count,
                               .latent = c.fp8 ? nullptr : latent.as<bf16>(),
                               .rope = rope.as<bf16>(),
                               .latent_fp8 = rows},
                              launch);
            cuda::linear({.x = c.fp8 ? nullptr : latent.as<bf16>(),
                          .x_stride = 512,
                          .x_quantized = rows,
                          .w = kv_b,
                          .y = kv.as<bf16>(),
                          .y_stride = kv_b.n,
                          .m = pass.num_keys},
                         gemm, launch);
            cuda::mla_prefill({.q = q.as<bf16>(),
                               .q_row_stride = int64_t{c.heads} * 192,
                               .q_head_stride = 192,
                               .kv = kv.as<bf16>(),
                               .k_rope = rope.as<bf16>(),
                               .runs = segment_runs.as<cuda::PrefillSegmentRun>() + pass.first_segment_run,
                               .host_runs = plan.segment_runs.data() + pass.first_segment_run,
                               .num_runs = pass.num_segment_runs,
                               .num_keys = pass.num_keys,
                               .m = c.tokens,
                               .num_heads = c.heads,
                               .softmax_scale = 0.07F,
                               .out = out.as<bf16>(),
                               .out_stride = heads_width,
                               .lse = lse.as<float>(),
                               .accumulate = pass.accumulate},
                              launch);
          }
        },
        6, 5);
  }

  const bool chosen = prefill_absorbed(c.tokens, keys, paths);
  fmt::print("{:4} {} {:4} {:7} {:5} {:9.1f}{}", c.layout.format == KvFormat::kBF16 ? "bf16" : "e4m3",
             c.fp8 ? "fp8 " : "bf16", c.heads, c.prefix, c.tokens, unabsorbed, chosen ? ' ' : '*');
  std::fflush(stdout);

  // The absorbed path processes the same tokens in groups, as plan_prefill makes them.
  const int group = absorbed_group_rows(c.heads);
  const int64_t groups = (c.tokens + group - 1) / group;
  std::vector<int32_t> rows(groups * group - c.tokens, -1);
  for (int64_t i = 0; i < c.tokens; ++i) rows.push_back(static_cast<int32_t>(i));
  std::vector<int32_t> kv_len;
  for (int64_t g = groups - 1; g >= 0; --g) kv_len.push_back(static_cast<int32_t>(keys - g * group));
  const auto padded = static_cast<int64_t>(rows.size());
  const DeviceBuffer device_rows = uploaded(rows);
  const DeviceBuffer device_kv_len = uploaded(kv_len);
  const DeviceBuffer seq_idx = uploaded(std::vector<int32_t>(groups, 0));
  const DeviceBuffer positions = uploaded(std::vector<int32_t>(c.tokens, 7));
  const DeviceBuffer cos_sin = uploaded(std::vector<float>(64 * 64, 0.7F));
  const DeviceBuffer absorbed(static_cast<size_t>(padded * c.heads) * 576 * 2);
  const DeviceBuffer o_latent(static_cast<size_t>(padded * c.heads) * 512 * 2);
  const cuda::MlaPlanShape shape{.num_seqs = groups,
                                 .q_len = group,
                                 .num_heads = c.heads,
                                 .num_sms = launch.num_sms,
                                 .layout = c.layout,
                                 .most_keys = keys};
  const DeviceBuffer plan(cuda::mla_plan_bytes(shape));
  const DeviceBuffer scratch(cuda::mla_decode_scratch_bytes(shape));
  cuda::mla_decode_plan(shape, device_kv_len.as<int32_t>(), plan.data(), launch);
  const double us = time_in_graph(
      stream(),
      [&](int) {
        cuda::absorb_query({.q = q.as<bf16>(),
                            .q_row_stride = int64_t{c.heads} * 192,
                            .q_head_stride = 192,
                            .w_uk = w_uk,
                            .y = absorbed.as<bf16>(),
                            .m = padded,
                            .num_heads = c.heads,
                            .positions = positions.as<int32_t>(),
                            .cos_sin = cos_sin.as<float>(),
                            .rows = device_rows.as<int32_t>()},
                           launch);
        cuda::mla_decode({.shape = shape,
                          .q = absorbed.data(),
                          .out = o_latent.data(),
                          .kv = paged,
                          .seq_idx = seq_idx.as<int32_t>(),
                          .kv_len = device_kv_len.as<int32_t>(),
                          .softmax_scale = 0.07F,
                          .plan = plan.data(),
                          .scratch = scratch.data()},
                         launch);
        cuda::expand_value({.o = o_latent.as<bf16>(),
                            .kv_b = kv_b,
                            .y = out.as<bf16>(),
                            .y_stride = heads_width,
                            .m = padded,
                            .num_heads = c.heads,
                            .rows = device_rows.as<int32_t>()},
                           launch);
      },
      6, 5);
  fmt::print(" {:9.1f}{}  {:5.2f}\n", us, chosen ? '*' : ' ', unabsorbed / us);
  std::fflush(stdout);
}

// Measures how decode's query is computed from q: with RoPE and the absorbed product as two kernels, as one
// kernel, and as one kernel with settled positions.
void query(int heads, int64_t m, bool fp8) {
  const cuda::Launch launch{.stream = stream().handle(), .num_sms = cuda_device_info(0).num_sms};
  const DeviceBuffer q = random_buffer(static_cast<size_t>(m * heads) * 192 * 2);
  const DeviceBuffer y(static_cast<size_t>(m * heads) * 576 * 2);
  const DeviceBuffer scales = uploaded(std::vector<float>(static_cast<size_t>(heads) * 8, 0.01F));
  const DeviceBuffer positions = uploaded(std::vector<int32_t>(m, 7));
  const DeviceBuffer cos_sin = uploaded(std::vector<float>(64 * 64, 0.7F));
  const size_t weight_bytes = static_cast<size_t>(heads) * 512 * 128 * (fp8 ? 1 : 2);
  const int sets = num_rotating_sets(weight_bytes);
  const DeviceBuffer data = random_buffer(weight_bytes * sets);
  double us[3];
  for (int way = 0; way < 3; ++way) {
    us[way] = time_in_graph(
        stream(),
        [&](int i) {
          if (way == 0) {
            cuda::q_rope({.q = q.as<bf16>() + 128,
                          .q_row_stride = int64_t{heads} * 192,
                          .q_head_stride = 192,
                          .y = y.as<bf16>() + 512,
                          .y_row_stride = int64_t{heads} * 576,
                          .y_head_stride = 576,
                          .positions = positions.as<int32_t>(),
                          .cos_sin = cos_sin.as<float>(),
                          .m = m,
                          .num_heads = heads},
                         launch);
          }
          MatrixWeight w = weight(fp8, int64_t{heads} * 512, 128, data, scales);
          w.data = data.data() + i % sets * weight_bytes;
          cuda::absorb_query({.q = q.as<bf16>(),
                              .q_row_stride = int64_t{heads} * 192,
                              .q_head_stride = 192,
                              .w_uk = w,
                              .y = y.as<bf16>(),
                              .m = m,
                              .num_heads = heads,
                              .positions = way > 0 ? positions.as<int32_t>() : nullptr,
                              .cos_sin = cos_sin.as<float>(),
                              .settled = way == 2},
                             launch);
        },
        32, 9);
  }
  fmt::print(
      "query h{} m {} {}: q_rope, absorb_query {:.2f} us, one kernel {:.2f}, positions settled {:.2f}\n",
      heads, m, fp8 ? "fp8" : "bf16", us[0], us[1], us[2]);
}

int run(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "query") {
    for (const int heads : {16, 128}) {
      for (const int64_t m : {1, 8, 64, 128}) query(heads, m, heads == 128);
    }
    return EXIT_SUCCESS;
  }
  const std::vector<int64_t> heads = numbers("heads", argc > 1 ? argv[1] : "16,128");
  const std::vector<int64_t> prefixes = numbers("prefixes", argc > 2 ? argv[2] : "1024,4096,16384,65536");
  const std::vector<int64_t> tokens = numbers("tokens", argc > 3 ? argv[3] : "1,8,32,64,128,256,512");
  cuda::GemmLibrary gemm;
  fmt::print(
      "kv weights heads prefix tokens un-absorbed absorbed   ratio (µs; *: prefill_absorbed's choice)\n");
  for (const int64_t h : heads) {
    for (const KvFormat format : {KvFormat::kBF16, KvFormat::kFp8E4M3}) {
      for (const int64_t prefix : prefixes) {
        for (const int64_t n : tokens)
          measure({.heads = static_cast<int>(h),
                   .prefix = prefix,
                   .tokens = n,
                   .layout = {.format = format},
                   .fp8 = format != KvFormat::kBF16},
                  gemm);
      }
    }
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace hadal::bench

int main(int argc, char** argv) {
  return hadal::bench::guarded(hadal::bench::run, argc, argv);
}

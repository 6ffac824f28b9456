// Makes rows with random index queries over a pool of index keys (tests/kernels/indexer_fixture.h), and runs
// the choice of keys on the device.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cuda/indexer/indexer.h"
#include "tests/cuda/test_launch.h"
#include "tests/kernels/indexer_fixture.h"

namespace hadal::testing {

using Positions = std::vector<int64_t>;

struct SelectRun {
  bool reference = false;
  bool by_bits = false;
  bool share = false;     // IndexSelectShape::rows_share_keys
  bool graphed = false;   // captured and replayed twice; the result is that of the second replay
  int64_t more_keys = 0;  // added to the limit of lengths
  int num_sms = 0;        // 0: the device's
};

struct SelectResult {
  std::vector<Positions> chosen;  // of each row; empty where a row has no selection
  std::vector<float> scores;      // [rows_at_once, stride] of the last piece
  int64_t stride = 0;

  bool operator==(const SelectResult& other) const { return chosen == other.chosen; }
};

struct SelectCase {
  int heads = 0;
  int topk = 0;
  std::vector<int32_t> seq_idx;
  std::vector<int32_t> kv_len;
  cpu::IndexCache cache;
  std::vector<fp8_e4m3> q;
  std::vector<float> w;

  // Every row has a sequence of its own. A row without keys names a row of the page table that does not
  // exist.
  SelectCase(int num_heads, int k, const std::vector<int>& lengths, cpu::Random& random)
      : SelectCase(num_heads, k, lengths, lengths, random) {
    for (size_t i = 0; i < lengths.size(); ++i)
      seq_idx[i] = lengths[i] > 0 ? static_cast<int32_t>(i) : std::numeric_limits<int32_t>::max();
  }
  // Returns a case whose rows are the last q_len tokens of one sequence of `length` keys.
  static SelectCase prompt(int num_heads, int k, int length, int q_len, cpu::Random& random) {
    std::vector<int> visible;
    for (int i = 0; i < q_len; ++i) visible.push_back(length - q_len + i + 1);
    return {num_heads, k, {length}, visible, random};
  }

  int64_t num_rows() const { return static_cast<int64_t>(kv_len.size()); }

  // Runs into poisoned memory and checks everything that the contract says about the outputs, but not which
  // keys are best.
  SelectResult run(const SelectRun& how) const {
    const int64_t most = std::max<int64_t>(*std::max_element(kv_len.begin(), kv_len.end()), 0);
    const cuda::IndexSelectShape shape{.num_rows = num_rows(),
                                       .num_heads = heads,
                                       .topk = topk,
                                       .most_keys = most + how.more_keys,
                                       .rows_share_keys = how.share};
    const cuda::IndexSelectPlan plan = cuda::index_select_plan(shape, test_launch().num_sms);
    const int64_t words = (shape.most_keys + 63) / 64 + 1;
    const DeviceArray<fp8_e4m3> device_q(q);
    const DeviceArray<float> device_w(w);
    const DeviceArray<std::byte> pool(cache.pool);
    const DeviceArray<int32_t> table(cache.page_table), device_seq_idx(seq_idx), device_kv_len(kv_len);
    DeviceArray<int32_t> slots(num_rows() * topk + 16), counts(num_rows() + 16);
    DeviceArray<uint64_t> bits(num_rows() * words + 16);
    DeviceArray<float> workspace(plan.workspace_bytes / sizeof(float));
    cuda::DeviceIndexSelectParams params{.shape = shape,
                                         .q = device_q.data(),
                                         .w = device_w.data(),
                                         .pool = pool.data(),
                                         .page_table = table.data(),
                                         .page_table_stride = cache.stride,
                                         .seq_idx = device_seq_idx.data(),
                                         .kv_len = device_kv_len.data(),
                                         .workspace = workspace.data()};
    if (how.by_bits) {
      params.bits = bits.data();
      params.bits_stride = words;
    } else {
      params.slots = slots.data();
      params.counts = counts.data();
    }
    cuda::Launch launch = test_launch(how.reference);
    if (how.num_sms > 0) launch.num_sms = how.num_sms;
    const auto step = [&] { cuda::index_select(params, launch); };
    if (how.graphed) {
      const CudaGraph graph = CudaGraph::capture(test_stream(), step);
      for (int i = 0; i < 2; ++i) {
        slots.poison();
        counts.poison();
        bits.poison();
        workspace.poison();
        graph.launch(test_stream().handle());
        test_stream().synchronize();
      }
    } else {
      step();
    }
    SelectResult result{.scores = workspace.download(), .stride = plan.score_stride};
    if (how.by_bits) {
      result.chosen = positions_of(bits.download(), words);
    } else {
      result.chosen = positions_of(slots.download(), counts.download());
    }
    return result;
  }

  // Returns the scores of a row's keys in double.
  std::vector<double> scores(int64_t row) const {
    std::vector<double> values(static_cast<size_t>(heads) * kIndexHeadDim);
    for (size_t i = 0; i < values.size(); ++i) values[i] = to_float(q[row * values.size() + i]);
    std::vector<double> all(kv_len[row]);
    float key[kIndexHeadDim];
    for (int64_t s = 0; s < kv_len[row]; ++s) {
      const double scale =
          cpu::reference::load_index_key(cache.pool.data(), cache.layout, cache.slot(seq_idx[row], s), key);
      for (int h = 0; h < heads; ++h) {
        double product = 0.0;
        for (int i = 0; i < kIndexHeadDim; ++i) product += values[h * kIndexHeadDim + i] * double{key[i]};
        all[s] += std::max(product, 0.0) * double{w[row * heads + h]};
      }
      all[s] *= scale;
    }
    return all;
  }

  // Returns what the CPU chooses.
  std::vector<Positions> of_cpu() {
    std::vector<float> wide;
    for (const fp8_e4m3 code : q) wide.push_back(to_float(code));
    std::vector<int32_t> slots(num_rows() * topk), counts(num_rows()), rows = seq_idx;
    for (int64_t i = 0; i < num_rows(); ++i) rows[i] = kv_len[i] > 0 ? rows[i] : 0;
    const IndexSelectParams params{.q = wide.data(),
                                   .w = w.data(),
                                   .num_tokens = num_rows(),
                                   .num_heads = heads,
                                   .topk = topk,
                                   .keys = cache.view(),
                                   .seq_idx = rows.data(),
                                   .kv_len = kv_len.data(),
                                   .slots = slots.data(),
                                   .counts = counts.data()};
    cpu::run_on(2, [&](cpu::Context& ctx) { cpu::simd::index_select(params, ctx); });
    for (int64_t i = 0; i < num_rows(); ++i) {
      if (kv_len[i] > topk) continue;
      counts[i] = -1;
      std::fill_n(slots.begin() + i * topk, topk, -1);
    }
    slots.resize(slots.size() + 16, -1);
    counts.resize(counts.size() + 16, -1);
    return positions_of(slots, counts);
  }

 private:
  SelectCase(int num_heads, int k, const std::vector<int>& lengths, const std::vector<int>& visible,
             cpu::Random& random)
      : heads(num_heads),
        topk(k),
        seq_idx(visible.size(), 0),
        kv_len(visible.begin(), visible.end()),
        cache(lengths, KvIndex::kE4M3, random),
        w(random.normals(num_rows() * heads, 0.01F)) {
    for (int64_t i = 0; i < num_rows() * heads * kIndexHeadDim; ++i)
      q.push_back(to_fp8_e4m3(random.normal(100.0F)));
  }

  void expect_count(const Positions& chosen, int64_t row) const {
    EXPECT_EQ(static_cast<int64_t>(chosen.size()), topk) << "row " << row;
    EXPECT_TRUE(chosen.empty() || chosen.back() < kv_len[row]) << "row " << row;
  }

  std::vector<Positions> positions_of(const std::vector<int32_t>& slots,
                                      const std::vector<int32_t>& counts) const {
    std::vector<Positions> chosen(num_rows());
    for (int64_t row = 0; row < num_rows(); ++row) {
      const int32_t* of_row = slots.data() + row * topk;
      if (kv_len[row] <= topk) {
        EXPECT_EQ(counts[row], -1) << "a row without a selection is left alone";
        EXPECT_TRUE(std::all_of(of_row, of_row + topk, [](int32_t slot) { return slot == -1; }));
        continue;
      }
      EXPECT_EQ(counts[row], topk);
      for (int64_t s = 0, i = 0; s < kv_len[row] && i < topk; ++s) {
        if (of_row[i] != cache.slot(seq_idx[row], s)) continue;
        chosen[row].push_back(s);
        ++i;
      }
      expect_count(chosen[row], row);  // slots ascend by position
    }
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(slots[num_rows() * topk + i], -1);
      EXPECT_EQ(counts[num_rows() + i], -1);
    }
    return chosen;
  }
  std::vector<Positions> positions_of(const std::vector<uint64_t>& bits, int64_t words) const {
    std::vector<Positions> chosen(num_rows());
    for (int64_t row = 0; row < num_rows(); ++row) {
      const uint64_t* of_row = bits.data() + row * words;
      if (kv_len[row] <= topk) {
        EXPECT_TRUE(std::all_of(of_row, of_row + words, [](uint64_t word) { return word == ~uint64_t{0}; }));
        continue;
      }
      for (int64_t s = 0; s < words * 64; ++s) {
        if ((of_row[s / 64] >> (s % 64) & 1U) != 0) chosen[row].push_back(s);
      }
      expect_count(chosen[row], row);
    }
    for (int i = 0; i < 16; ++i) EXPECT_EQ(bits[num_rows() * words + i], ~uint64_t{0});
    return chosen;
  }
};

}  // namespace hadal::testing

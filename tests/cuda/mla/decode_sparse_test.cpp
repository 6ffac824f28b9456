// Tests decode attention over selections. The oracle is the plain kernel in double precision, which is itself
// compared with the CPU's operation. Rows whose lengths cross index_topk are mixed with rows that follow
// their page table and have absurd slots and counts. Codes are multiplied without rounding and queries are
// not rounded either, so FP8 caches have nearly the bounds of bf16.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/mla/plan/sparse.h"
#include "tests/cuda/mla/decode_checks.h"
#include "tests/cuda/test_launch.h"

namespace hadal::testing {
namespace {

const std::vector<std::pair<std::string, KvLayout>> kSparseLayouts = {
    {"Bf16", {KvFormat::kBF16}},
    {"E4m3PerToken", {KvFormat::kFp8E4M3, KvScales::kPerToken}},
    {"E4m3Per128", {KvFormat::kFp8E4M3, KvScales::kPer128}},
    {"E4m3PowersOfTwo", {KvFormat::kFp8E4M3, KvScales::kPer128PowersOfTwo}},
};
// The product of a weight and a scale is rounded anew for each 128 latents. This changes the direction of a
// row, and any output whose terms nearly cancel.
Bounds bounds_of(const DecodeBatch& batch) {
  Bounds bounds;
  if (is_fp8(batch.cache().layout)) {
    bounds.cosine_difference = 1e-5;
    bounds.outputs = false;
  }
  return bounds;
}

struct SparseRun {
  bool reference = false;
  int split_pages = 0;
  bool graphed = false;
  bool want_lse = true;
  bool all_rows = false;
};

// SparseBatch is a batch over rows of a cache, in which every row of more than topk keys attends to random
// keys.
class SparseBatch : public DecodeBatch {
 public:
  SparseBatch(const DecodeCache& cache, std::vector<int> rows, int num_heads, int index_topk, uint64_t seed,
              float q_sigma = 0.3F)
      : DecodeBatch(cache, std::move(rows), num_heads, 1, seed, q_sigma), topk(index_topk) {
    std::mt19937_64 random(seed + 1);
    slots.assign(seq_idx.size() * topk, 0x7f7f7f7f);
    counts.assign(seq_idx.size(), 0x7f7f7f7f);
    for (size_t row = 0; row < seq_idx.size(); ++row) {
      if (kv_len[row] <= topk) continue;
      std::vector<int> positions(kv_len[row]);
      std::iota(positions.begin(), positions.end(), 0);
      std::shuffle(positions.begin(), positions.end(), random);
      std::sort(positions.begin(), positions.begin() + topk);
      for (int i = 0; i < topk; ++i) {
        const int64_t page = cache.table[seq_idx[row] * cache.stride + positions[i] / kPageSize];
        slots[row * topk + i] = static_cast<int32_t>(page * kPageSize + positions[i] % kPageSize);
      }
      counts[row] = topk;
    }
    upload();
  }

  // Shortens a row's selection, and writes −1 after it.
  void set_count(size_t row, int count) {
    counts[row] = count;
    std::fill(slots.begin() + row * topk + count, slots.begin() + (row + 1) * topk, -1);
    upload();
  }

  cuda::MlaPlanShape sparse_shape(int split_pages = 0) const {
    cuda::MlaPlanShape shape_of_rows = shape(split_pages);
    shape_of_rows.index_topk = topk;
    return shape_of_rows;
  }
  cuda::DeviceDecodeParams sparse_params(int split_pages = 0) const {
    cuda::DeviceDecodeParams decode = params(sparse_shape(split_pages));
    decode.selection = {.slots = device_slots_.data(),
                        .counts = device_counts_.data(),
                        .num_slots = cache().num_pages * kPageSize};
    return decode;
  }

  DecodeResult run_selected(const SparseRun& how = {}) const {
    const cuda::MlaPlanShape plan_shape = sparse_shape(how.split_pages);
    const DeviceArray<std::byte> plan(cuda::mla_plan_bytes(plan_shape));
    const DeviceArray<std::byte> scratch(cuda::mla_decode_scratch_bytes(plan_shape));
    DeviceArray<bf16> out(num_rows() * kKvLatentDim);
    DeviceArray<float> lse(num_rows());
    const cuda::Launch launch = test_launch(how.reference);
    cuda::DeviceDecodeParams decode = sparse_params(how.split_pages);
    decode.out = out.data();
    decode.lse = how.want_lse ? lse.data() : nullptr;
    decode.plan = how.all_rows ? nullptr : plan.data();
    decode.scratch = scratch.data();
    decode.selection.all_rows = how.all_rows;
    const auto step = [&] {
      if (!how.all_rows) cuda::mla_decode_plan(plan_shape, decode.kv_len, plan.data(), launch);
      cuda::mla_decode(decode, launch);
    };
    if (how.graphed) {
      const CudaGraph graph = CudaGraph::capture(test_stream(), step);
      for (int i = 0; i < 2; ++i) {
        out.poison();
        lse.poison();
        graph.launch(test_stream().handle());
        test_stream().synchronize();
      }
    } else {
      step();
    }
    return {out.download(), lse.download()};
  }
  DecodeDoubles run_selected_double() const {
    const DeviceArray<double> out(num_rows() * kKvLatentDim), lse(num_rows());
    cuda::reference::mla_decode_double(sparse_params(), out.data(), lse.data(), test_launch());
    return {out.download(), lse.download()};
  }

  // Returns run_selected_double(), except for rows of e4m3 that follow their page table: these get the
  // result's own values. The dense kernels quantise queries, and another test compares these rows with the
  // dense kernels bit by bit.
  DecodeDoubles expected_of(const DecodeResult& result) const {
    DecodeDoubles expected = run_selected_double();
    if (!is_fp8(cache().layout)) return expected;
    for (int64_t row = 0; row < num_rows(); ++row) {
      const int num_keys = kv_len[row / heads];
      if (num_keys == 0 || num_keys > topk) continue;
      expected.lse[row] = result.lse[row];
      for (int64_t i = row * kKvLatentDim; i < (row + 1) * kKvLatentDim; ++i)
        expected.out[i] = to_float(result.out[i]);
    }
    return expected;
  }
  void expect_match() const {
    const DecodeResult result = run_selected();
    expect_close(*this, result, expected_of(result), bounds_of(*this));
  }

  int topk;
  std::vector<int32_t> slots, counts;

 private:
  void upload() {
    device_slots_ = DeviceArray<int32_t>(slots);
    device_counts_ = DeviceArray<int32_t>(counts);
  }

  DeviceArray<int32_t> device_slots_, device_counts_;
};

class HeapScratch final : public cpu::Scratch {
 public:
  void* allocate(size_t size_bytes) override {
    blocks_.emplace_back(size_bytes + 64);
    return blocks_.back().data() + (64 - reinterpret_cast<uintptr_t>(blocks_.back().data()) % 64);
  }

 private:
  std::vector<std::vector<std::byte>> blocks_;
};

class MlaSparse : public ::testing::TestWithParam<int> {
 protected:
  const KvLayout& layout() const { return kSparseLayouts[GetParam()].second; }
  uint64_t seed() const { return fresh_seed() + GetParam(); }
};

TEST_P(MlaSparse, PlainKernelsMatchTheCpu) {
  SCOPED_TRACE(fresh_seed());
  DecodeCache cache({0, 1, 64, 99, 100, 101, 300}, layout(), seed());
  SparseBatch batch(cache, all_rows(cache), 3, 100, seed());
  std::vector<float> q, out(batch.num_rows() * kKvLatentDim);
  for (const bf16 value : batch.q) q.push_back(to_float(value));
  // On the CPU every row has a selection, which for a short row is all of its keys.
  std::vector<int32_t> slots(batch.seq_idx.size() * 100), counts;
  for (size_t row = 0; row < batch.seq_idx.size(); ++row) {
    const int n = batch.kv_len[row];
    counts.push_back(std::min(n, 100));
    for (int i = 0; i < counts.back(); ++i) {
      const int64_t page = n > 100 ? 0 : cache.table[batch.seq_idx[row] * cache.stride + i / kPageSize];
      slots[row * 100 + i] =
          n > 100 ? batch.slots[row * 100 + i] : static_cast<int32_t>(page * kPageSize + i % kPageSize);
    }
  }
  static ThreadPool pool(0);
  HeapScratch scratch;
  cpu::Context context{pool, scratch};
  cpu::reference::mla_decode({.q = q.data(),
                              .out = out.data(),
                              .num_tokens = static_cast<int64_t>(batch.seq_idx.size()),
                              .num_heads = 3,
                              .kv = cache.host(),
                              .softmax_scale = kDecodeScale,
                              .selected = slots.data(),
                              .selected_stride = 100,
                              .counts = counts.data()},
                             context);
  const DecodeDoubles doubles = batch.run_selected_double();
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < out.size(); ++i) {
    difference += (doubles.out[i] - out[i]) * (doubles.out[i] - out[i]);
    norm += double{out[i]} * out[i];
  }
  EXPECT_LE(std::sqrt(difference / norm), 1e-5);
  expect_close(batch, batch.run_selected({.reference = true}), doubles, bounds_of(batch));
}

TEST_P(MlaSparse, EveryHeadCountMatchesDoublePrecision) {
  SCOPED_TRACE(fresh_seed());
  const DecodeCache cache({1000, 0, 99, 100, 101, 1, 640, 129}, layout(), seed());
  for (int heads : {1, 3, 8, 16, 17, 32, 33, 48, 64, 65, 100, 128}) {
    SCOPED_TRACE(std::to_string(heads) + " heads");
    const SparseBatch batch(cache, all_rows(cache), heads, 100, seed() + heads);
    batch.expect_match();
  }
}

TEST_P(MlaSparse, EverySizeOfSelectionMatchesDoublePrecision) {
  SCOPED_TRACE(fresh_seed());
  const DecodeCache cache({3000, 2049, 2048, 2047, 65, 2, 0}, layout(), seed());
  for (int topk : {1, 15, 63, 64, 65, 128, 1000, 2048}) {
    SCOPED_TRACE("topk " + std::to_string(topk));
    const SparseBatch batch(cache, all_rows(cache), 16, topk, seed() + topk);
    batch.expect_match();
  }
}

// One row is split over all chunks, hundreds of rows are not split, and still more rows give a block several
// items.
TEST_P(MlaSparse, BatchesOfAnySizeMatchDoublePrecision) {
  SCOPED_TRACE(fresh_seed());
  const DecodeCache cache({3000, 2500, 70}, layout(), seed());
  for (const auto& [num_rows, heads] : std::vector<std::pair<int, int>>{
           {1, 128}, {1, 16}, {2, 128}, {5, 64}, {40, 16}, {70, 128}, {300, 16}}) {
    SCOPED_TRACE(std::to_string(num_rows) + " rows");
    std::vector<int> rows;
    for (int i = 0; i < num_rows; ++i) rows.push_back(i % 3);
    const SparseBatch batch(cache, rows, heads, 2048, seed() + num_rows);
    batch.expect_match();
  }
}

TEST_P(MlaSparse, ShorterSelectionsEndAtTheirCount) {
  SCOPED_TRACE(fresh_seed());
  const DecodeCache cache({400, 500, 600, 700, 300}, layout(), seed());
  SparseBatch batch(cache, all_rows(cache), 20, 256, seed());
  batch.set_count(0, 0);
  batch.set_count(1, 1);
  batch.set_count(3, 130);
  const DecodeResult result = batch.run_selected();
  expect_close(batch, result, batch.expected_of(result), bounds_of(batch));
  for (int i = 0; i < 20 * kKvLatentDim; ++i) ASSERT_EQ(to_float(result.out[i]), 0.0F);
  for (int i = 0; i < 20; ++i) ASSERT_EQ(result.lse[i], -INFINITY);
}

TEST_P(MlaSparse, RowsThatGoByTheirPageTableHaveTheBitsOfABatchWithoutSelections) {
  SCOPED_TRACE(fresh_seed());
  const DecodeCache cache({1000, 99, 100, 101, 2000, 1}, layout(), seed());
  const SparseBatch batch(cache, all_rows(cache), 16, 100, seed());
  DecodeBatch others(cache, all_rows(cache), 16, 1, seed());  // with the same queries
  std::vector<int> lengths = others.kv_len;
  for (int& length : lengths) length = length > 100 ? 0 : length;
  others.set_lengths(lengths);
  const DecodeResult expected = others.run(false);
  const DecodeResult result = batch.run_selected();
  for (size_t row = 0; row < lengths.size(); ++row) {
    if (batch.kv_len[row] > 100) continue;
    EXPECT_EQ(std::memcmp(&result.out[row * 16 * kKvLatentDim], &expected.out[row * 16 * kKvLatentDim],
                          16 * kKvLatentDim * sizeof(bf16)),
              0)
        << "row " << row;
  }
}

TEST_P(MlaSparse, RepeatedGraphedAndPaddedRunsHaveEqualBits) {
  SCOPED_TRACE(fresh_seed());
  const DecodeCache cache({1000, 2100, 64, 3000}, layout(), seed());
  const std::vector<int> rows = {0, 1, 2, 3};
  const SparseBatch batch(cache, rows, 32, 256, seed());
  const DecodeResult first = batch.run_selected();
  EXPECT_TRUE(same_bits(first, batch.run_selected()));
  EXPECT_TRUE(same_bits(first, batch.run_selected({.graphed = true})));
  const DecodeResult without_lse = batch.run_selected({.want_lse = false});
  EXPECT_EQ(std::memcmp(first.out.data(), without_lse.out.data(), first.out.size() * sizeof(bf16)), 0);
  std::vector<int> padded_rows = rows;
  padded_rows.resize(7, -1);
  SparseBatch padded(cache, padded_rows, 32, 256, seed());
  ASSERT_EQ(std::memcmp(padded.slots.data(), batch.slots.data(), batch.slots.size() * 4), 0);
  ASSERT_EQ(std::memcmp(padded.q.data(), batch.q.data(), batch.q.size() * sizeof(bf16)), 0);
  const DecodeResult result = padded.run_selected();
  for (size_t row : {0, 1, 3}) {  // those with a selection
    EXPECT_EQ(std::memcmp(&result.out[row * 32 * kKvLatentDim], &first.out[row * 32 * kKvLatentDim],
                          32 * kKvLatentDim * sizeof(bf16)),
              0)
        << "row " << row;
  }
}

TEST_P(MlaSparse, WithFixedSplitsARowAloneHasTheBitsOfABatch) {
  SCOPED_TRACE(fresh_seed());
  const DecodeCache cache({1000, 2100, 3000}, layout(), seed());
  const SparseBatch batch(cache, {0, 1, 2}, 64, 512, seed());
  const DecodeResult together = batch.run_selected({.split_pages = 4});
  SparseBatch alone(cache, {0}, 64, 512, seed());
  alone.set_queries({batch.q.begin(), batch.q.begin() + 64 * kKvRowDim});
  const DecodeResult result = alone.run_selected({.split_pages = 4});
  ASSERT_EQ(std::memcmp(alone.slots.data(), batch.slots.data(), 512 * 4), 0);
  EXPECT_EQ(std::memcmp(result.out.data(), together.out.data(), result.out.size() * sizeof(bf16)), 0);
  expect_close(batch, together, batch.run_selected_double(), bounds_of(batch));
}

TEST_P(MlaSparse, PromptsOfSelectedRowsNeedNoPlan) {
  SCOPED_TRACE(fresh_seed());
  const DecodeCache cache({600, 700}, layout(), seed());
  std::vector<int> rows;
  for (int i = 0; i < 150; ++i) rows.push_back(i % 2);
  rows.push_back(-1);
  const SparseBatch batch(cache, rows, 128, 200, seed());
  DecodeResult result = batch.run_selected({.all_rows = true});
  DecodeDoubles expected = batch.run_selected_double();
  // Padding is left unchanged here, because no row follows the page table.
  for (int64_t i = 150 * 128; i < 151 * 128; ++i) {
    result.lse[i] = -INFINITY;
    std::fill_n(result.out.begin() + i * kKvLatentDim, kKvLatentDim, bf16{0});
  }
  expect_close(batch, result, expected, bounds_of(batch));
}

TEST_P(MlaSparse, WeightsOfWidelyDifferentSizeMatchDoublePrecision) {
  SCOPED_TRACE(fresh_seed());
  const DecodeCache cache({131072}, layout(), seed());
  const SparseBatch batch(cache, {0}, 16, 2048, seed(), 3.0F);
  Bounds bounds = bounds_of(batch);
  bounds.lse_relative = 1e-3;
  bounds.cosine_difference = 5e-5;
  bounds.outputs = false;
  expect_close(batch, batch.run_selected(), batch.run_selected_double(), bounds);
}

TEST_P(MlaSparse, SmallestShapesForSanitizersMatchDoublePrecision) {
  SCOPED_TRACE(fresh_seed());
  const DecodeCache cache({70, 0, 40, 130}, layout(), seed());
  for (int heads : {2, 20, 64, 128}) {
    const SparseBatch batch(cache, all_rows(cache), heads, 65, seed());
    batch.expect_match();
  }
}

std::string layout_name(const ::testing::TestParamInfo<int>& info) {
  return kSparseLayouts[info.param].first;
}
INSTANTIATE_TEST_SUITE_P(Layouts, MlaSparse, ::testing::Range(0, static_cast<int>(kSparseLayouts.size())),
                         layout_name);

TEST(MlaSparseCalls, RefuseWhatTheyCannotRun) {
  const DecodeCache cache({70}, {KvFormat::kBF16}, 1);
  const SparseBatch batch(cache, {0}, 16, 64, 1);
  cuda::DeviceDecodeParams params = batch.sparse_params();
  params.selection.counts = nullptr;
  EXPECT_THROW(cuda::mla_decode(params, test_launch()), Error);
  params = batch.sparse_params();
  params.kv.record_stride = 2 * kKvRowBytesBf16;
  EXPECT_THROW(cuda::mla_decode(params, test_launch()), Error);
  params = batch.sparse_params();
  EXPECT_THROW(cuda::mla_decode(params, test_launch()), Error) << "no scratch";
}

}  // namespace
}  // namespace hadal::testing

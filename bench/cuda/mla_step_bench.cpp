// Measures every schedule of MLA decode as it runs in an engine: after the product of the queries and
// absorb_query, before expand_value and the product of the outputs. In cuda_mla_schedules_bench decode
// follows decode, so it starts while an equal kernel ends. Here other kernels occupy the multiprocessors when
// decode could begin, and others begin while it ends. The times by which the op chooses with in_step
// (mla/plan/fitted.h) are fitted to this bench.
//   cuda_mla_step_bench [bf16|f16|e4m3|e4m3/128|e5m2] [--splits] [--row BATCH,KEYS,HEADS]…
// Each layer has its own weights and pages. There are 27 layers of V2-Lite's dimensions (bf16 weights; up to
// 32 heads), or six layers of V3's (FP8; more heads). The program prints one line per row: µs per layer
// without decode, then the µs that each schedule adds. * marks the op's choice, and ! a schedule that adds
// 5 % less. Rows are measured twice, the second time in reverse order, and the smaller time counts. With
// --splits, brackets hold the µs that the whole batch adds in as many splits as possible, and without splits.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/arguments.h"
#include "bench/cuda/mla_measure.h"
#include "bench/cuda/mla_schedules.h"
#include "kernels/cuda/gemm/gemm.h"

namespace hadal::bench {
namespace {

struct Row {
  int batch = 0, keys = 0, heads = 0;
};

// Returns rows with lengths as in real steps: an answer has begun, so they are not multiples of a page.
std::vector<Row> default_rows() {
  std::vector<Row> rows;
  for (const int heads : {16, 128}) {
    for (const int keys : {1057, 4129}) {
      for (const int batch : {1, 2, 4, 8, 16, 32}) rows.push_back({batch, keys, heads});
    }
  }
  return rows;
}

// Returns bytes that are not NaN as e4m3, as e5m2 or as halves of bf16.
DeviceBuffer random_weights(size_t bytes) {
  static const std::vector<std::byte> block = [] {
    std::mt19937_64 random(13);
    std::vector<std::byte> values(size_t{1} << 20);
    for (std::byte& value : values) value = static_cast<std::byte>(random() & 0xb7U);
    return values;
  }();
  return filled(block, bytes);
}

// Holds the layers around decode.
class Layers {
 public:
  Layers(int heads, int batch)
      : heads_(heads),
        batch_(batch),
        fp8_(heads > 32),
        count_(fp8_ ? 6 : 27),
        latent_(fp8_ ? 1536 : 2048),
        hidden_(fp8_ ? 7168 : 2048),
        size_(fp8_ ? 1 : 2),
        launch_{.stream = stream().handle(), .num_sms = cuda_device_info(0).num_sms},
        weights_(random_weights(static_cast<size_t>(count_) * layer_bytes())),
        scales_(uploaded(std::vector<float>(size_t{1} << 17, 0.01F))),
        positions_(uploaded(std::vector<int32_t>(static_cast<size_t>(batch), 7))),
        cos_sin_(uploaded(std::vector<float>(64 * 64, 0.7F))),
        x_(random_weights(rows(std::max(latent_, int64_t{1})) * 2)),
        q_(random_weights(rows(heads * 192) * 2)),
        absorbed_(random_weights(rows(heads * kKvRowDim) * 2)),
        latents_(random_weights(rows(heads * kKvLatentDim) * 2)),
        values_(random_weights(rows(heads * 128) * 2)),
        value_scales_(uploaded(std::vector<float>(static_cast<size_t>(heads) * scale_stride(), 1.0F))),
        out_(rows(hidden_) * 4) {}

  int count() const { return count_; }
  const cuda::Launch& launch() const { return launch_; }
  const void* queries() const { return absorbed_.data(); }
  void* outputs() const { return latents_.data(); }

  void before(int layer) {
    const MatrixWeight q_b = weight(layer, 0, heads_ * 192, latent_);
    cuda::linear({.x = fp8_ ? nullptr : x_.as<bf16>(),
                  .x_stride = latent_,
                  .x_quantized = fp8_ ? fp8_rows(x_, scales_, latent_) : cuda::QuantizedRows{},
                  .w = q_b,
                  .y = q_.as<bf16>(),
                  .y_stride = heads_ * 192,
                  .m = batch_},
                 gemm_, launch_);
    cuda::absorb_query({.q = q_.as<bf16>(),
                        .q_row_stride = heads_ * 192,
                        .q_head_stride = 192,
                        .w_uk = weight(layer, heads_ * 192 * latent_, heads_ * 512, 128),
                        .y = absorbed_.as<bf16>(),
                        .m = batch_,
                        .num_heads = static_cast<int>(heads_),
                        .positions = positions_.as<int32_t>(),
                        .cos_sin = cos_sin_.as<float>(),
                        .settled = layer > 0},
                       launch_);
  }
  void behind(int layer) {
    const int64_t kv_b_begin = heads_ * 192 * latent_ + heads_ * 512 * 128;
    cuda::expand_value(
        {.o = latents_.as<bf16>(),
         .kv_b = weight(layer, kv_b_begin, heads_ * 256, 512),
         .y = fp8_ ? nullptr : values_.as<bf16>(),
         .y_stride = heads_ * 128,
         .y_quantized = fp8_ ? fp8_rows(values_, value_scales_, heads_ * 128) : cuda::QuantizedRows{},
         .m = batch_,
         .num_heads = static_cast<int>(heads_)},
        launch_);
    cuda::linear(
        {.x = fp8_ ? nullptr : values_.as<bf16>(),
         .x_stride = heads_ * 128,
         .x_quantized = fp8_ ? fp8_rows(values_, value_scales_, heads_ * 128) : cuda::QuantizedRows{},
         .w = weight(layer, kv_b_begin + heads_ * 256 * 512, hidden_, heads_ * 128),
         .y = out_.as<bf16>(),
         .y_stride = hidden_,
         .m = batch_},
        gemm_, launch_);
  }

 private:
  size_t rows(int64_t columns) const { return static_cast<size_t>(batch_ * columns); }
  int64_t scale_stride() const { return (batch_ + 3) / 4 * 4; }
  size_t layer_bytes() const {
    return static_cast<size_t>(
        (heads_ * 192 * latent_ + heads_ * (512 * 128 + 256 * 512) + hidden_ * heads_ * 128) * size_);
  }
  MatrixWeight weight(int layer, int64_t begin, int64_t n, int64_t k) const {
    MatrixWeight w;
    w.n = n;
    w.k = k;
    w.row_stride = k;
    w.type = fp8_ ? WeightType::kFp8Block : WeightType::kBF16;
    w.data =
        weights_.data() + static_cast<size_t>(layer) * layer_bytes() + static_cast<size_t>(begin * size_);
    w.scales = scales_.as<float>();
    w.scale_stride = k / 128;
    return w;
  }
  cuda::QuantizedRows fp8_rows(const DeviceBuffer& codes, const DeviceBuffer& scales, int64_t width) const {
    return {.codes = codes.as<fp8_e4m3>(),
            .scales = scales.as<float>(),
            .stride = width,
            .scale_stride = scale_stride()};
  }

  int64_t heads_, batch_;
  bool fp8_;
  int count_;
  int64_t latent_, hidden_, size_;
  cuda::Launch launch_;
  cuda::GemmLibrary gemm_;
  DeviceBuffer weights_, scales_, positions_, cos_sin_, x_, q_, absorbed_, latents_, values_, value_scales_,
      out_;
};

void sweep(const Format& format, Pool& pool, const Row& row, bool splits) {
  Layers layers(row.heads, row.batch);
  const int64_t pages = (row.keys + kPageSize - 1) / kPageSize;
  const int64_t all_pages = pages * row.batch * layers.count();
  const std::byte* pool_data = pool.of(all_pages);
  std::vector<int32_t> ids(static_cast<size_t>(all_pages));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937_64(11));
  std::vector<int32_t> seqs(static_cast<size_t>(row.batch));
  std::iota(seqs.begin(), seqs.end(), 0);
  const DeviceBuffer table = uploaded(ids);
  const DeviceBuffer seq_idx = uploaded(seqs);
  const DeviceBuffer kv_len =
      uploaded(std::vector<int32_t>(static_cast<size_t>(row.batch), static_cast<int32_t>(row.keys)));

  const cuda::ClusterCapacity capacity = cuda::device_capacity(layers.launch().num_sms);
  const cuda::MlaPlanShape shape{.num_seqs = row.batch,
                                 .num_heads = row.heads,
                                 .num_sms = layers.launch().num_sms,
                                 .layout = format.layout,
                                 .most_keys = std::min(pages * kPageSize, cuda::kMlaUsualKeys),
                                 .in_step = true};
  const cuda::DecodeSchedule choice = cuda::decode_schedule(shape, capacity);
  const auto time_of = [&](const cuda::DecodeGeometry* geometry) {
    const DeviceBuffer plan(geometry == nullptr ? 16 : cuda::decode_plan_bytes(*geometry));
    const DeviceBuffer scratch(geometry == nullptr ? 16 : cuda::decode_scratch_bytes(*geometry));
    if (geometry != nullptr)
      cuda::mla_decode_plan(*geometry, kv_len.as<int32_t>(), plan.data(), layers.launch());
    const auto layer = [&](int i) {
      const int number = i % layers.count();
      layers.before(number);
      if (geometry != nullptr) {
        cuda::mla_decode({.shape = shape,
                          .q = layers.queries(),
                          .out = layers.outputs(),
                          .kv = {.pool = pool_data,
                                 .layout = format.layout,
                                 .page_table = table.as<int32_t>() + number * row.batch * pages,
                                 .page_table_stride = pages},
                          .seq_idx = seq_idx.as<int32_t>(),
                          .kv_len = kv_len.as<int32_t>(),
                          .softmax_scale = 0.07F,
                          .settled = number > 0,
                          .plan = plan.data(),
                          .scratch = scratch.data()},
                         *geometry, layers.launch());
      }
      layers.behind(number);
    };
    return timer().time(stream(), layer, layers.count(), 40.0).us;
  };

  struct Try {
    cuda::DecodeSchedule schedule;
    cuda::DecodeGeometry geometry[3];
    double us[3] = {1e9, 1e9, 1e9};
  };
  std::vector<Try> tries;
  for (const cuda::DecodeSchedule& schedule : cuda::decode_schedules(format.layout)) {
    if (!fits(schedule, row.batch, row.heads, capacity)) continue;
    Try t{schedule, {}};
    for (cuda::DecodeGeometry& geometry : t.geometry)
      geometry = cuda::decode_geometry(shape, schedule, capacity);
    t.geometry[1].merge_ns = t.geometry[1].split_ns = 0;
    t.geometry[2].merge_ns = 1 << 28;
    tries.push_back(t);
  }
  double without = 1e9;
  for (int pass = 0; pass < 2; ++pass) {
    without = std::min(without, time_of(nullptr));
    for (size_t i = 0; i < tries.size(); ++i) {
      Try& t = tries[pass == 0 ? i : tries.size() - 1 - i];
      for (int way = 0; way < (splits ? 3 : 1); ++way)
        t.us[way] = std::min(t.us[way], time_of(&t.geometry[way]));
    }
  }
  double chosen = 0.0;
  for (const Try& t : tries) {
    if (same(t.schedule, choice)) chosen = t.us[0] - without;
  }
  std::string line =
      fmt::format("{:8} {:>4} {:>6} {:>4}: {:.2f} +", format.name, row.batch, row.keys, row.heads, without);
  for (const Try& t : tries) {
    const double added = t.us[0] - without;
    const char* mark = same(t.schedule, choice) ? "*" : added < chosen * 0.95 ? "!" : "";
    line += fmt::format(" {}{} {:.2f}", name_of(t.schedule), mark, added);
    if (splits) line += fmt::format("({:.2f},{:.2f})", t.us[1] - without, t.us[2] - without);
  }
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  std::string wanted;
  bool splits = false;
  std::vector<Row> rows;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--splits") {
      splits = true;
    } else if (word == "--row") {
      const std::vector<int64_t> values = numbers("--row", i + 1 < argc ? argv[++i] : "");
      if (values.size() != 3 || *std::min_element(values.begin(), values.end()) < 1) {
        fmt::print(stderr, "--row needs BATCH,KEYS,HEADS\n");
        return 2;
      }
      rows.push_back({static_cast<int>(values[0]), static_cast<int>(values[1]), static_cast<int>(values[2])});
    } else if (std::any_of(std::begin(kFormats), std::end(kFormats),
                           [&](const Format& format) { return word == format.name; })) {
      wanted = word;
    } else {
      fmt::print(stderr, "unknown argument '{}'\n", word);
      return 2;
    }
  }
  if (rows.empty()) rows = default_rows();
  fmt::print("format  batch   keys head: us a layer without decode + what each schedule adds\n");
  for (const Format& format : kFormats) {
    if (wanted.empty() ? format.layout.format != KvFormat::kBF16 : wanted != format.name) continue;
    Pool pool(format.layout);
    for (const Row& row : rows) sweep(format, pool, row, splits);
  }
  return 0;
}

}  // namespace
}  // namespace hadal::bench

int main(int argc, char** argv) {
  return hadal::bench::guarded(hadal::bench::run, argc, argv);
}

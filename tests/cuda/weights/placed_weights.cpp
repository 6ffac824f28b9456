#include "tests/cuda/weights/placed_weights.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "base/mapped_file.h"
#include "model/random_checkpoint.h"
#include "model/rope_table.h"
#include "tests/source_dir.h"

namespace hadal::testing {
namespace {

namespace fs = std::filesystem;

void expect_zero(const std::byte* begin, int64_t bytes, const std::string& what) {
  ASSERT_TRUE(std::all_of(begin, begin + bytes, [](std::byte b) { return b == std::byte{0}; })) << what;
}

// Returns a whole matrix of codes in bf16.
std::vector<bf16> widened(const MatrixWeight& w) {
  std::vector<bf16> values(static_cast<size_t>(w.n * w.k));
  const int64_t num_scales = is_block_scaled(w.type) ? (w.n + 127) / 128 * w.scale_stride : w.n;
  widen_on_host(w.type, static_cast<const std::byte*>(w.data), w.n, w.k, {w.scales, w.scales + num_scales},
                values.data(), w.k);
  return values;
}

// Returns a whole matrix of bf16 or float32 in float16.
std::vector<f16> in_float16(const MatrixWeight& w) {
  std::vector<f16> values(static_cast<size_t>(w.n * w.k));
  for (int64_t i = 0; i < w.n * w.k; ++i) {
    const std::byte* at = element_at(w, i / w.k, i % w.k);
    float value = 0.0F;
    if (w.type == WeightType::kF32) {
      std::memcpy(&value, at, sizeof value);
    } else {
      bf16 narrow;
      std::memcpy(&narrow, at, sizeof narrow);
      value = to_float(narrow);
    }
    values[static_cast<size_t>(i)] = to_f16(value);
  }
  return values;
}

// Expects that rows [at_row, at_row + rows) of `placed` are the window of `stored`, and zero beyond its
// columns. If `placed` is a stack in bf16, `stored` may be in codes; if it is float16, `stored` is in bf16 or
// float32.
void expect_window(const MatrixWeight& placed, int64_t at_row, const MatrixWeight& stored, int64_t row,
                   int64_t col, int64_t rows, int64_t cols, const std::string& what) {
  if (placed.type == WeightType::kBF16 && has_scales(stored.type)) {
    const std::vector<bf16> values = widened(stored);
    return expect_window(placed, at_row,
                         {.data = values.data(),
                          .type = WeightType::kBF16,
                          .n = stored.n,
                          .k = stored.k,
                          .row_stride = stored.k},
                         row, col, rows, cols, what);
  }
  if (placed.type == WeightType::kF16 && stored.type != WeightType::kF16) {
    const std::vector<f16> values = in_float16(stored);
    return expect_window(placed, at_row,
                         {.data = values.data(),
                          .type = WeightType::kF16,
                          .n = stored.n,
                          .k = stored.k,
                          .row_stride = stored.k},
                         row, col, rows, cols, what);
  }
  ASSERT_EQ(placed.type, stored.type) << what;
  const int64_t size = weight_element_bytes(placed.type);
  for (int64_t i = 0; i < rows; ++i) {
    ASSERT_EQ(std::memcmp(element_at(placed, at_row + i, 0), element_at(stored, row + i, col),
                          static_cast<size_t>(cols * size)),
              0)
        << what << " row " << i;
    expect_zero(element_at(placed, at_row + i, cols), (placed.row_stride - cols) * size, what + " padding");
  }
  if (!has_scales(placed.type)) return;
  ASSERT_EQ(placed.row_stride % kFp8BlockSize, 0) << what;
  if (is_channel_scaled(placed.type)) {
    for (int64_t i = 0; i < rows; ++i)
      ASSERT_EQ(placed.scales[at_row + i], stored.scales[row + i]) << what << " scale of row " << i;
    return;
  }
  for (int64_t i = 0; i < rows; i += kFp8BlockSize) {
    for (int64_t j = 0; j < cols; j += kFp8BlockSize) {
      ASSERT_EQ(placed.scales[(at_row + i) / kFp8BlockSize * placed.scale_stride + j / kFp8BlockSize],
                stored.scales[(row + i) / kFp8BlockSize * stored.scale_stride + (col + j) / kFp8BlockSize])
          << what << " scale of " << i << "," << j;
    }
  }
}

void expect_whole(const MatrixWeight& placed, const MatrixWeight& stored, const std::string& what) {
  ASSERT_EQ(placed.n, stored.n) << what;
  ASSERT_EQ(placed.k, stored.k) << what;
  expect_window(placed, 0, stored, 0, 0, stored.n, stored.k, what);
}

void expect_zero_rows(const MatrixWeight& placed, int64_t begin, int64_t end, const std::string& what) {
  expect_zero(element_at(placed, begin, 0),
              (end - begin) * placed.row_stride * weight_element_bytes(placed.type), what);
}

void expect_floats(const float* placed, const float* stored, int64_t count, const std::string& what) {
  ASSERT_EQ(placed == nullptr, stored == nullptr) << what;
  if (stored == nullptr) return;
  ASSERT_EQ(std::memcmp(placed, stored, static_cast<size_t>(count) * 4), 0) << what;
}

// Returns part `part` of `parts` of a stored MLP. If scaled_apart, the loader has found row scales of `down`
// for this part only.
void expect_mlp(const DeviceMlp& placed, const MlpWeights& stored, int64_t part, int64_t parts,
                bool scaled_apart, const std::string& what) {
  const int64_t width = stored.gate.n / parts;
  ASSERT_EQ(placed.intermediate, (width + 127) / 128 * 128) << what;
  ASSERT_EQ(placed.gate_up.n, 2 * placed.intermediate) << what;
  ASSERT_EQ(placed.gate_up.k, stored.gate.k) << what;
  ASSERT_EQ(placed.down.n, stored.down.n) << what;
  ASSERT_EQ(placed.down.k, placed.intermediate) << what;
  expect_window(placed.gate_up, 0, stored.gate, part * width, 0, width, stored.gate.k, what + " gate");
  expect_window(placed.gate_up, placed.intermediate, stored.up, part * width, 0, width, stored.up.k,
                what + " up");
  if (!scaled_apart)
    expect_window(placed.down, 0, stored.down, 0, part * width, stored.down.n, width, what + " down");
  expect_zero_rows(placed.gate_up, width, placed.intermediate, what + " below gate");
  expect_zero_rows(placed.gate_up, placed.intermediate + width, 2 * placed.intermediate, what + " below up");
}

void expect_keys(const MatrixWeight& w_uk, const MatrixWeight& kv_b, int64_t heads, const std::string& what) {
  ASSERT_EQ(w_uk.n, heads * 512) << what;
  ASSERT_EQ(w_uk.k, 128) << what;
  ASSERT_EQ(w_uk.row_stride, 128) << what;
  ASSERT_EQ(w_uk.type, kv_b.type) << what;
  const auto size = static_cast<size_t>(weight_element_bytes(w_uk.type));
  for (int64_t row = 0; row < w_uk.n; ++row) {
    const int64_t head = row / 512;
    for (int64_t d = 0; d < 128; ++d) {
      ASSERT_EQ(std::memcmp(element_at(w_uk, row, d), element_at(kv_b, head * 256 + d, row % 512), size), 0)
          << what << " " << row << "," << d;
    }
    if (w_uk.type == WeightType::kFp8Block && row % 128 == 0) {
      ASSERT_EQ(w_uk.scale_stride, 1) << what;
      ASSERT_EQ(w_uk.scales[row / 128], kv_b.scales[head * 2 * kv_b.scale_stride + row % 512 / 128]) << what;
    }
  }
}

void expect_attention(const DeviceAttention& placed, const AttentionWeights& stored,
                      const ModelConfig& config, const std::string& what) {
  const MatrixWeight& q = config.q_lora_rank == 0 ? stored.q_proj : stored.q_a;
  ASSERT_EQ(placed.num_heads, config.num_attention_heads) << what;
  ASSERT_EQ(placed.q_skip, 0) << what;
  ASSERT_EQ(placed.q_width, q.n) << what;
  const int64_t below_q = stored.indexer ? placed.indexer.k_begin : placed.kv_a_begin;
  ASSERT_GE(below_q, q.n) << what;
  ASSERT_EQ(placed.qkv_a.n, placed.kv_a_begin + 576) << what;
  ASSERT_EQ(placed.qkv_a.k, config.hidden_size) << what;
  expect_window(placed.qkv_a, 0, q, 0, 0, q.n, q.k, what + " q");
  expect_zero_rows(placed.qkv_a, q.n, below_q, what + " below q");
  ASSERT_EQ(placed.indexer.num_heads > 0, stored.indexer.has_value()) << what;
  if (stored.indexer) {
    ASSERT_EQ(placed.kv_a_begin, below_q + 128) << what;
    ASSERT_EQ(placed.indexer.num_heads, config.index_n_heads) << what;
    expect_window(placed.qkv_a, below_q, stored.indexer->wk, 0, 0, 128, stored.indexer->wk.k, what + " wk");
    expect_whole(placed.indexer.wq_b, stored.indexer->wq_b, what + " wq_b");
    expect_whole(placed.indexer.weights_proj, stored.indexer->weights_proj, what + " weights_proj");
    expect_floats(placed.indexer.norm_weight, stored.indexer->norm_weight, 128, what + " k_norm");
    expect_floats(placed.indexer.norm_bias, stored.indexer->norm_bias, 128, what + " k_norm bias");
  }
  expect_window(placed.qkv_a, placed.kv_a_begin, stored.kv_a, 0, 0, 576, stored.kv_a.k, what + " kv_a");
  ASSERT_EQ(placed.q_b.data == nullptr, config.q_lora_rank == 0) << what;
  if (config.q_lora_rank != 0) expect_whole(placed.q_b, stored.q_b, what + " q_b");
  expect_floats(placed.q_a_norm, stored.q_a_norm, config.q_lora_rank, what + " q_a_norm");
  expect_floats(placed.kv_a_norm, stored.kv_a_norm, 512, what + " kv_a_norm");
  expect_keys(placed.w_uk, placed.kv_b, config.num_attention_heads, what + " w_uk");
  if (stored.kv_b.type ==
      WeightType::kInt8Block) {  // bf16 on the device, made from the codes if these are stored
    ASSERT_EQ(placed.kv_b.type, WeightType::kBF16) << what;
    if (config.quantization) {
      expect_whole(placed.kv_b, stored.kv_b, what + " kv_b");
    }
  } else {
    expect_whole(placed.kv_b, stored.kv_b, what + " kv_b");
  }
  expect_whole(placed.o, stored.o, what + " o");
}

void expect_moe(const DeviceMoe& placed, const MoeWeights& stored, const ModelConfig& config,
                const std::string& what) {
  ASSERT_EQ(placed.num_experts, config.n_routed_experts) << what;
  ASSERT_EQ(placed.first_expert, 0) << what;
  ASSERT_EQ(placed.num_local_experts, config.n_routed_experts) << what;
  const bool apart = placed.shared.intermediate > 0;
  ASSERT_EQ(placed.num_shared, apart ? 0 : config.n_shared_experts) << what;
  if (apart) expect_mlp(placed.shared, *stored.shared, 0, 1, false, what + " shared");
  expect_whole(placed.gate, stored.gate, what + " router");
  expect_floats(placed.correction_bias, stored.correction_bias, config.n_routed_experts, what + " bias");
  for (int e = 0; e < placed.num_experts + placed.num_shared; ++e) {
    DeviceMlp mlp = placed.experts;
    mlp.gate_up.data = element_at(mlp.gate_up, 0, e * placed.gate_up_stride);
    mlp.down.data = element_at(mlp.down, 0, e * placed.down_stride);
    if (has_scales(mlp.gate_up.type)) mlp.gate_up.scales += e * placed.gate_up_scale_stride;
    if (has_scales(mlp.down.type)) mlp.down.scales += e * placed.down_scale_stride;
    const std::string name = what + " expert " + std::to_string(e);
    if (e < placed.num_experts) {
      expect_mlp(mlp, stored.experts[static_cast<size_t>(e)], 0, 1, false, name);
    } else {
      const bool scaled_apart =
          placed.num_shared > 1 && is_channel_scaled(mlp.down.type) && !config.quantization;
      expect_mlp(mlp, *stored.shared, e - placed.num_experts, placed.num_shared, scaled_apart, name);
    }
  }
}

}  // namespace

std::vector<GoldenConfig> golden_configs() {
  const fs::path here = "tests/model/goldens";
  const fs::path root = fs::exists(here) ? here : fs::path(source_dir()) / here;
  std::vector<GoldenConfig> configs;
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string text = read_text_file(entry.path() / "config.json").value();
    configs.push_back(
        {entry.path().filename().string(), text, parse_model_config(text, "config.json").value()});
  }
  std::sort(configs.begin(), configs.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return configs;
}

GoldenConfig golden_config(const std::string& name,
                           const std::vector<std::pair<std::string, std::string>>& replacements) {
  for (GoldenConfig& golden : golden_configs()) {
    if (golden.name != name) continue;
    for (const auto& [from, to] : replacements) {
      const size_t at = golden.text.find(from);
      if (at == std::string::npos) throw std::runtime_error(name + " has no " + from);
      golden.text.replace(at, from.size(), to);
      golden.name += " " + to;
    }
    golden.config = parse_model_config(golden.text, "config.json").value();
    return golden;
  }
  throw std::runtime_error("no golden " + name);
}

RopeRows::RopeRows(const ModelConfig& config) {
  RopeTable table(config);
  const int64_t count = config.max_position_embeddings;
  const float* values = table.up_to(count);
  rows.assign(values, values + count * kQkRopeHeadDim);
  source.dtype = DType::kF32;
  source.rows = count;
  source.cols = kQkRopeHeadDim;
  source.bytes = std::as_bytes(std::span<const float>(rows));
}

TensorSources shapes_of(const ModelConfig& config) {
  TensorSources sources;
  for (const TensorSpec& spec : expected_tensors(config)) {
    if (!spec.optional && !spec.nextn) sources.emplace(spec.name, source_of(spec, spec.dtype));
  }
  return sources;
}

void expect_separate_places(const DeviceWeightPlan& plan, const std::byte* base) {
  std::vector<std::pair<const std::byte*, const std::byte*>> written;
  const auto add = [&](const void* begin, int64_t bytes) {
    written.emplace_back(static_cast<const std::byte*>(begin), static_cast<const std::byte*>(begin) + bytes);
  };
  for (const WeightPlacement& p : plan.placements) {
    ASSERT_TRUE(p.row >= 0 && p.col >= 0 && p.rows > 0 && p.cols > 0);
    ASSERT_TRUE((p.repeat || p.row + p.rows <= p.source->rows) && p.col + p.cols <= p.source->cols);
    const int64_t size = dtype_bytes(p.type);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(p.dst) % static_cast<uintptr_t>(size), 0U);
    const bool dense = p.stride == p.cols;
    for (int64_t i = 0; i < (dense ? 1 : p.rows); ++i)
      add(p.dst + i * p.stride * size, (dense ? p.rows : 1) * p.cols * size);
    if (!p.quantised()) continue;
    if (is_channel_scaled(p.codes)) {
      ASSERT_TRUE(p.scale_col <= p.col && p.scale_col + p.scale_cols >= p.col + p.cols);
      add(p.scales, p.rows * 4);
      continue;
    }
    for (int64_t i = 0; i < (p.rows + 127) / 128; ++i)
      add(p.scales + i * p.scale_stride, (p.cols + 127) / 128 * 4);
  }
  for (const KeyTranspose& job : plan.transposes) {
    add(job.w_uk.data, job.w_uk.n * 128 * weight_element_bytes(job.w_uk.type));
    if (job.w_uk.type == WeightType::kFp8Block) add(job.w_uk.scales, job.num_heads * 16);
  }
  std::sort(written.begin(), written.end());
  for (size_t i = 0; i < written.size(); ++i)
    ASSERT_GE(written[i].first, i == 0 ? base : written[i - 1].second);
  ASSERT_LE(written.back().second, base + plan.weights.bytes);
}

void expect_same_weights(const DeviceWeights& placed, const ModelWeights& stored, const ModelConfig& config) {
  expect_whole(placed.embedding, stored.embedding, "embedding");
  expect_whole(placed.lm_head, stored.lm_head, "lm_head");
  expect_floats(placed.final_norm, stored.final_norm, config.hidden_size, "final_norm");
  ASSERT_EQ(placed.max_positions, config.max_position_embeddings);
  expect_floats(placed.cos_sin, RopeRows(config).rows.data(), placed.max_positions * kQkRopeHeadDim,
                "cos_sin");
  ASSERT_EQ(placed.layers.size(), stored.layers.size());
  for (size_t i = 0; i < placed.layers.size(); ++i) {
    const DeviceLayer& layer = placed.layers[i];
    const LayerWeights& from = stored.layers[i];
    const std::string what = "layer " + std::to_string(i);
    expect_floats(layer.input_norm, from.input_norm, config.hidden_size, what + " input_norm");
    expect_floats(layer.post_attention_norm, from.post_attention_norm, config.hidden_size,
                  what + " second norm");
    expect_attention(layer.attention, from.attention, config, what);
    ASSERT_EQ(layer.is_moe, from.moe.has_value()) << what;
    if (layer.is_moe) {
      expect_moe(layer.moe, *from.moe, config, what);
    } else {
      expect_mlp(layer.mlp, *from.mlp, 0, 1, false, what + " mlp");
    }
  }
}

ScratchDirectory::ScratchDirectory() {
  const char* root = std::getenv("HADAL_TEST_DIR");
  std::string pattern =
      ((root != nullptr ? fs::path(root) : fs::temp_directory_path()) / "hadal_XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error(pattern + ": cannot be made");
  path_ = pattern;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void write_checkpoint(const fs::path& dir, const GoldenConfig& golden, uint64_t seed) {
  RandomCheckpointOptions options;
  options.weights = RandomWeightOptions::for_config(golden.config, seed);
  ThreadPool pool(2);
  const auto written = write_random_checkpoint(dir, golden.text, golden.config, options, pool);
  if (!written.ok()) throw std::runtime_error(written.status().message);
}

}  // namespace hadal::testing

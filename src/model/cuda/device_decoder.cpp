#include "model/cuda/device_decoder.h"

#include <algorithm>

#include "base/check.h"
#include "comm/device_collectives.h"
#include "comm/lone_communicator.h"
#include "kernels/cuda/speculation/speculation.h"
#include "model/cuda/device_forward.h"

namespace hadal {
namespace {

constexpr size_t kAlignment = 256;

double traffic_of(const MatrixWeight& w) {
  return static_cast<double>(w.n) * static_cast<double>(w.k) *
         static_cast<double>(weight_element_bytes(w.type));
}

}  // namespace

DeviceArena::DeviceArena(DeviceBuffer buffer) : buffer_(std::move(buffer)), arrived_(sizeof(int32_t)) {
  CudaStream stream;
  fill_device(arrived_.data(), 0, arrived_.size(), stream.handle());
  stream.synchronize();
}

DeviceArena DeviceArena::measuring() {
  DeviceArena arena;
  arena.measuring_ = true;
  return arena;
}

std::byte* DeviceArena::allocate(size_t bytes) {
  const size_t begin = used_;
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  high_water_ = std::max(high_water_, used_);
  if (measuring_) return reinterpret_cast<std::byte*>(kAlignment + begin);
  HADAL_CHECK(used_ <= buffer_.size(), "the step needs {} bytes of workspace, {} were planned", used_,
              buffer_.size());
  return buffer_.data() + begin;
}

namespace {

// Returns the addresses, in device memory, of `count` pools that lie one after another.
DeviceBuffer addresses_of(const DeviceBuffer& pools, int64_t count, int64_t pool_bytes) {
  std::vector<std::byte*> addresses;
  for (int64_t i = 0; i < count; ++i) addresses.push_back(pools.data() + i * pool_bytes);
  DeviceBuffer out(addresses.size() * sizeof(std::byte*));
  CudaStream stream;
  copy_to_device(out.data(), addresses.data(), out.size(), stream.handle());
  stream.synchronize();
  return out;
}

}  // namespace

DeviceKvCache::DeviceKvCache(int64_t num_layers, int64_t num_pages, KvLayout layout)
    : num_pages_(num_pages),
      layer_bytes_(num_pages * layout.page_bytes()),
      index_layer_bytes_(num_pages * layout.index_page_bytes()),
      layout_(layout),
      buffer_(static_cast<size_t>(num_layers * layer_bytes_)),
      pools_(addresses_of(buffer_, num_layers, layer_bytes_)) {
  if (layout.index == KvIndex::kNone) return;
  index_buffer_ = DeviceBuffer(static_cast<size_t>(num_layers * index_layer_bytes_));
  index_pools_ = addresses_of(index_buffer_, num_layers, index_layer_bytes_);
}

DeviceDecoder::DeviceDecoder(const ModelConfig& config, const DeviceWeights& weights)
    : config_(config), weights_(weights) {
  for (const DeviceLayer& layer : weights.layers) num_moe_layers_ += layer.is_moe ? 1 : 0;
}

void DeviceDecoder::forward(const DeviceStep& step, const DeviceKvCache& cache, const DeviceOutputs& outputs,
                            DeviceExec& exec) const {
  DeviceForward(config_, weights_, step, cache, exec).run(outputs);
}

void DeviceDecoder::forward_nextn(const DeviceStep& step, const NextnInput& input, const DeviceKvCache& cache,
                                  const DeviceOutputs& outputs, DeviceExec& exec) const {
  DeviceForward(config_, weights_, step, cache, exec).run_nextn(input, outputs);
}

DeviceDecoder::StepBytes DeviceDecoder::step_bytes(int64_t max_tokens, int64_t max_prefill_tokens,
                                                   int64_t max_keys, int64_t max_logit_rows,
                                                   const PrefillPaths& paths, cuda::GemmLibrary& gemm,
                                                   int num_sms, const cuda::ProductChoices* choices) const {
  DeviceArena arena = DeviceArena::measuring();
  const ModelSplit split = weights_.split;
  LoneCommunicator comm =
      LoneCommunicator::measuring(static_cast<int>(weights_.rank), static_cast<int>(split.tp));
  DeviceExec exec{.launch = {.num_sms = num_sms},
                  .gemm = gemm,
                  .workspace = arena,
                  .choices = choices,
                  .comm = split.is_whole() ? nullptr : &comm,
                  .measure_only = true};
  const DeviceKvCache no_cache(0, 0, paths.layout);
  const auto measure = [&](int64_t num_tokens, int64_t num_prefill) {
    PrefillPlan plan;
    if (num_prefill > 0) {
      plan.passes.push_back({.num_keys = max_keys, .accumulate = true});
      plan.group_rows = absorbed_group_rows(static_cast<int>(weights_.num_heads()));
      // The number of groups is largest if every prompt token is a separate group.
      const int64_t groups_a_pass = kMaxAbsorbedRows / plan.group_rows;
      for (int64_t first = 0; first < num_prefill; first += groups_a_pass)
        plan.absorbed_passes.push_back({static_cast<int32_t>(first),
                                        static_cast<int32_t>(std::min(groups_a_pass, num_prefill - first))});
      const auto selecting = static_cast<int32_t>(std::min(kMaxAbsorbedRows, num_prefill));
      if (config_.has_indexer()) plan.selecting_passes.push_back({.num_rows = selecting});
      if (paths.masks()) {
        plan.bits_words = (std::min(paths.threshold(), weights_.max_positions) + 63) / 64;
        plan.selecting_passes.push_back({.num_rows = selecting, .as_bits = true});
        plan.passes.back().selects = true;
      }
    }
    const DeviceStep step{.num_tokens = num_tokens,
                          .num_prefill_tokens = num_prefill,
                          .num_logit_rows = std::min(num_tokens, max_logit_rows),
                          .prefill = num_prefill > 0 ? &plan : nullptr};
    for (const bool fusion : {true, false}) {
      exec.fusion = fusion;
      comm.begin_step();
      using Hidden = DeviceOutputs::Hidden;
      const auto rows = has_nextn() ? Hidden::kAllRows : Hidden::kNone;
      DeviceForward(config_, weights_, step, no_cache, exec).run({.rows = rows});
      if (has_nextn()) {
        DeviceForward(config_, weights_, step, no_cache, exec).run_nextn({}, {.rows = Hidden::kLogitRows});
      }
      comm.end_step(exec.launch);
    }
  };
  // Measures the largest mixed step, and decode steps of every size class, because the kernel that an op
  // uses, and so its buffers, depends on the number of rows.
  if (max_prefill_tokens > 0) measure(max_tokens, max_prefill_tokens);
  const int64_t max_decode = max_tokens - max_prefill_tokens;
  for (int64_t rows = 1; rows < max_decode; rows *= 2) measure(rows, 0);
  if (max_decode > 0) measure(max_decode, 0);
  return {.workspace = arena.high_water(), .part = comm.most_part_bytes()};
}

DeviceForward::DeviceForward(const ModelConfig& config, const DeviceWeights& weights, const DeviceStep& step,
                             const DeviceKvCache& cache, DeviceExec& exec)
    : config_(config),
      weights_(weights),
      step_(step),
      cache_(cache),
      exec_(exec),
      launch_(exec.launch),
      arena_(exec.workspace),
      eps_(static_cast<float>(config.rms_norm_eps)),
      f16_(weights.is_f16()),
      hidden_(config.hidden_size),
      heads_(weights.num_heads()),
      num_tokens_(step.num_tokens),
      num_prefill_(step.num_prefill_tokens),
      num_decode_(step.num_tokens - step.num_prefill_tokens),
      paged_{.pool = nullptr,
             .layout = cache.layout(),
             .page_table = step.page_table,
             .page_table_stride = step.page_table_stride} {
  HADAL_CHECK_GT(num_tokens_, 0);
  HADAL_CHECK_EQ(f16_, cache.layout().format == KvFormat::kF16);
  HADAL_CHECK_EQ(config.has_indexer(), cache.layout().index == KvIndex::kE4M3);
  HADAL_CHECK(num_prefill_ == 0 || step.prefill != nullptr, "prefill rows without a plan");
  HADAL_CHECK(weights.split.is_whole() ? exec.comm == nullptr
                                       : exec.comm != nullptr && exec.comm->rank() == weights.rank &&
                                             exec.comm->num_ranks() == weights.split.tp,
              "rank {} of {} has the communicator of another", weights.rank, weights.split.tp);
}

void DeviceForward::run(const DeviceOutputs& outputs) {
  const LayerRun run{
      .layers = weights_.layers, .final_norm = weights_.final_norm, .lm_head = &weights_.lm_head};
  run_layers(run, outputs, [&] { embed(); });
}

void DeviceForward::run_nextn(const NextnInput& input, const DeviceOutputs& outputs) {
  HADAL_CHECK(weights_.nextn.has_value(), "the NextN layer is not loaded");
  const DeviceNextn& nextn = *weights_.nextn;
  const LayerRun run{.layers = {&nextn.layer, 1},
                     .first_cache_layer = config_.num_hidden_layers,
                     .final_norm = nextn.shared_head_norm,
                     .lm_head = &nextn.lm_head};
  run_layers(run, outputs, [&] {
    const DeviceArena::Scope scope(arena_);
    auto* joined = arena_.array<Value16>(num_tokens_ * 2 * hidden_);
    op("join_hidden", static_cast<double>(num_tokens_ * hidden_) * 8.0, 0.0, [&] {
      cuda::join_hidden({.table = nextn.embedding.data,
                         .ids = step_.token_ids,
                         .hidden = input.hidden,
                         .rows = input.hidden_rows,
                         .enorm = nextn.enorm,
                         .hnorm = nextn.hnorm,
                         .y = joined,
                         .m = num_tokens_,
                         .n = hidden_,
                         .vocab = config_.vocab_size,
                         .eps = eps_,
                         .f16 = f16_},
                        launch_);
    });
    dealt_linear({.name = "eh_proj",
                  .gather_name = "gather_hidden",
                  .w = nextn.eh_proj,
                  .n = hidden_,
                  .part = joined_rows_of},
                 joined, num_tokens_, residual_);
  });
}

void DeviceForward::embed() {
  op("embedding", static_cast<double>(num_tokens_ * hidden_) * 6.0, 0.0, [&] {
    cuda::embedding({.table = weights_.embedding.data,
                     .ids = step_.token_ids,
                     .y = residual_,
                     .m = num_tokens_,
                     .hidden = hidden_,
                     .vocab = config_.vocab_size,
                     .f16 = f16_},
                    launch_);
  });
}

template <typename Begin>
void DeviceForward::run_layers(const LayerRun& run, const DeviceOutputs& outputs, const Begin& begin) {
  using Hidden = DeviceOutputs::Hidden;
  const DeviceArena::Scope scope(arena_);
  const auto num_layers = static_cast<int64_t>(run.layers.size());
  const int64_t num_logits = step_.num_logit_rows;
  const bool keeps_rows = outputs.rows == Hidden::kAllRows;
  // The last layer's feed-forward part computes only the rows whose logits are wanted, unless it keeps rows.
  const bool all_rows = step_.logit_rows == nullptr && num_logits == num_tokens_;

  residual_ = arena_.array<float>(num_tokens_ * hidden_);
  auto* attention_out = exec_.comm != nullptr ? nullptr : arena_.array<Value16>(num_tokens_ * hidden_);
  const DeviceRows x = allocate_rows(num_tokens_, hidden_, weights_.w8a8(), true);
  // Measuring counts this residual together with a last layer of all rows. With NextN it always exists.
  const bool needs_last = !all_rows || weights_.nextn || exec_.measure_only;
  auto* last_residual = needs_last ? arena_.array<float>(num_logits * hidden_) : nullptr;
  plan_attention();

  first_cache_layer_ = run.first_cache_layer;
  begin();
  // A norm writes only the rows that its readers use.
  const auto layer_rows = [&](int64_t i) { return rows_for_attention(x, run.layers[i].attention); };
  add_norm("input_norm", {}, run.layers[0].input_norm, num_tokens_, layer_rows(0));

  int64_t moe_idx = 0;
  Value16* for_head = x.x;
  for (int64_t layer_idx = 0; layer_idx < num_layers; ++layer_idx) {
    const DeviceLayer& layer = run.layers[layer_idx];
    const bool is_last = layer_idx + 1 == num_layers;
    const bool gathers = is_last && !all_rows && !keeps_rows;
    const int64_t m = gathers ? num_logits : num_tokens_;

    Value16* const attended = exec_.comm != nullptr ? partial_rows(num_tokens_) : attention_out;
    attention(layer.attention, layer_idx, layer_rows(layer_idx), attended);
    if (m == 0) {
      // The counts of an earlier step must not remain.
      if (layer.is_moe && step_.distinct_experts != nullptr && !exec_.measure_only) {
        fill_device(step_.distinct_experts + moe_idx, 0, sizeof(int32_t), launch_.stream);
      }
      return;
    }
    const cuda::NormInput after_attention = exec_.comm != nullptr
                                                ? exchanged(num_tokens_, !gathers)
                                                : cuda::NormInput{.dense = attended, .x_stride = hidden_};
    const DeviceRows for_mlp = layer.is_moe ? rows_for_experts(x, layer.moe) : rows_for(x, layer.mlp.gate_up);
    add_norm("post_attention_norm", after_attention, layer.post_attention_norm, m, for_mlp,
             gathers ? step_.logit_rows : nullptr, gathers ? last_residual : nullptr);
    if (gathers) residual_ = last_residual;

    const DeviceArena::Scope feed_forward_scope(arena_);
    int32_t* distinct =
        layer.is_moe && step_.distinct_experts != nullptr ? step_.distinct_experts + moe_idx++ : nullptr;
    const cuda::NormInput after_feed_forward = feed_forward(layer, for_mlp, m, !gathers, distinct);
    if (is_last) {
      const DeviceRows normed{.x = outputs.hidden != nullptr ? static_cast<Value16*>(outputs.hidden) : x.x,
                              .x_quantized = {}};
      add_norm("final_norm", after_feed_forward, run.final_norm, m, normed);
      for_head = normed.x;
    } else {
      add_norm("input_norm", after_feed_forward, run.layers[layer_idx + 1].input_norm, m,
               layer_rows(layer_idx + 1));
    }
  }
  if (num_logits == 0) return;
  if (keeps_rows && !all_rows) {  // the norm again, which gathers the rows whose logits are wanted
    add_norm("logit_norm", {}, run.final_norm, num_logits, {.x = x.x, .x_quantized = {}}, step_.logit_rows,
             last_residual);
    for_head = x.x;
  }
  dealt_linear({.name = "lm_head",
                .gather_name = "gather_logits",
                .w = *run.lm_head,
                .n = config_.vocab_size,
                .part = vocabulary_of},
               for_head, num_logits, outputs.logits);
}

Value16* DeviceForward::partial_rows(int64_t m) {
  return static_cast<Value16*>(exec_.comm->partial(m * hidden_ * int64_t{sizeof(Value16)}));
}

const cuda::ExchangeParams* DeviceForward::exchange_in_norm(int64_t m) {
  if (!exec_.fusion || !cuda::norm_exchanges(m, hidden_, f16_, exec_.comm->num_ranks(), launch_))
    return nullptr;
  return exec_.comm->small_exchange(launch_, m * hidden_ * int64_t{sizeof(Value16)});
}

cuda::NormInput DeviceForward::exchanged(int64_t m, bool in_norm) {
  const int64_t bytes = m * hidden_ * int64_t{sizeof(Value16)};
  cuda::NormInput parts;
  if (in_norm) parts.exchange = exchange_in_norm(m);
  if (parts.exchange != nullptr) {
    parts.part = partial_rows(m);
    return parts;
  }
  if (exec_.measure_only) {
    parts.exchanged = exec_.comm->exchange(launch_, bytes);  // launches nothing
    return parts;
  }
  op("exchange", static_cast<double>(bytes) * (exec_.comm->num_ranks() - 1), 0.0,
     [&] { parts.exchanged = exec_.comm->exchange(launch_, bytes); });
  return parts;
}

void DeviceForward::dealt_linear(const DealtProduct& product, Value16* x, int64_t m, float* y) {
  const MatrixWeight& w = product.w;
  if (exec_.comm == nullptr) return linear(product.name, {.x = x, .x_quantized = {}}, w.k, w, nullptr, y, m);
  std::vector<int64_t> widths;  // in bytes
  for (int rank = 0; rank < exec_.comm->num_ranks(); ++rank)
    widths.push_back(product.part(config_, weights_.split, rank).size() * int64_t{sizeof(float)});
  // Rank 0 has the most columns. All ranks must cut the rows in the same way, so its width decides.
  const int64_t most_rows = std::max<int64_t>(kMostGatheredPartBytes / widths[0], 1);
  for (int64_t first = 0; first < m; first += most_rows) {
    const int64_t rows = std::min(most_rows, m - first);
    auto* mine = static_cast<float*>(exec_.comm->partial(rows * widths[0]));
    if (w.n > 0) linear(product.name, {.x = x + first * w.k, .x_quantized = {}}, w.k, w, nullptr, mine, rows);
    if (exec_.measure_only) exec_.comm->exchange(launch_, 0);  // launches nothing
    op(product.gather_name, static_cast<double>(rows * product.n) * 8.0, 0.0, [&] {
      gather_columns(*exec_.comm, rows, widths, nullptr, y + first * product.n,
                     product.n * int64_t{sizeof(float)}, launch_);
    });
  }
}

cuda::QuantizedRows DeviceForward::quantized_shape(int64_t m, int64_t n) const {
  return cuda::quantized_rows(weights_.linears, m, n, weights_.power_of_two);
}

cuda::QuantizedRows DeviceForward::allocate_fp8(int64_t m, int64_t n) {
  cuda::QuantizedRows rows = quantized_shape(m, n);
  rows.codes = arena_.array<fp8_e4m3>(m * rows.stride);
  rows.scales = arena_.array<float>(rows.scale_runs() * rows.scale_stride);
  return rows;
}

DeviceRows DeviceForward::allocate_rows(int64_t m, int64_t n, bool quantised, bool wants_16_bits) {
  DeviceRows rows;
  if (wants_16_bits || !quantised || !exec_.fusion) rows.x = arena_.array<Value16>(m * n);
  if (quantised) rows.x_quantized = allocate_fp8(m, n);
  return rows;
}

DeviceRows DeviceForward::rows_for(const DeviceRows& x, const MatrixWeight& reader) const {
  if (!has_scales(reader.type)) return {.x = x.x, .x_quantized = {}};
  return exec_.fusion ? DeviceRows{.x = nullptr, .x_quantized = x.x_quantized} : x;
}

void DeviceForward::linear(const char* name, const DeviceRows& x, int64_t x_stride, const MatrixWeight& w,
                           Value16* y, float* y_f32, int64_t m, const cuda::Choice* planned,
                           const cuda::LengthGate& gate) {
  const double activations = static_cast<double>(m) * static_cast<double>(w.k + w.n) * 2.0;
  op(name, traffic_of(w) + activations, 2.0 * static_cast<double>(m * w.n) * static_cast<double>(w.k), [&] {
    const cuda::DenseLinearParams params{
        .x = x.x,
        .x_stride = x_stride,
        .x_quantized = has_scales(w.type) ? x.x_quantized : cuda::QuantizedRows{},
        .w = w,
        .y = y,
        .y_f32 = y_f32,
        .y_stride = w.n,
        .m = m,
        .f16 = f16_,
        .gate = gate};
    if (planned != nullptr) return cuda::launch_linear(*planned, params, exec_.gemm, launch_);
    cuda::linear(params, exec_.gemm, launch_, exec_.choices != nullptr ? &exec_.choices->linear : nullptr);
  });
}

void DeviceForward::quantize(const Value16* x, int64_t m, int64_t n, const cuda::QuantizedRows& y) {
  op("quantize", static_cast<double>(m * n) * 3.0, 0.0,
     [&] { cuda::quantize_rows({.x = x, .x_stride = n, .m = m, .n = n, .y = y}, launch_); });
}

void DeviceForward::add_norm(const char* name, const cuda::NormInput& input, const float* weight, int64_t m,
                             const DeviceRows& y, const int32_t* rows, float* residual_out) {
  const double n = static_cast<double>(hidden_);
  const double read = 2.0 * (input.expert_rows != nullptr ? input.top_k + (input.exchange != nullptr ? 2 : 0)
                             : input.dense != nullptr     ? 1
                             : input.exchange != nullptr  ? 2 * exec_.comm->num_ranks()
                                                          : input.exchanged.num_ranks);
  cuda::AddRmsNormParams params{.input = input,
                                .residual = residual_,
                                .residual_out = residual_out,
                                .rows = rows,
                                .weight = weight,
                                .y = y.x,
                                .y_quantized = y.x_quantized,
                                .m = m,
                                .n = hidden_,
                                .eps = eps_,
                                .f16 = f16_};
  if (exec_.fusion) {
    op(name, static_cast<double>(m) * n * (read + 8.0 + 3.0), 0.0,
       [&] { cuda::add_rms_norm(params, launch_); });
    return;
  }
  if (rows == nullptr && read > 0.0) {
    op("add_residual", static_cast<double>(m) * n * (read + 8.0), 0.0,
       [&] { cuda::add_residual(input, residual_, m, hidden_, launch_, f16_); });
    params.input = {};
  }
  params.y_quantized = {};
  op(name, static_cast<double>(m) * n * 10.0, 0.0, [&] { cuda::add_rms_norm(params, launch_); });
  if (y.x_quantized) quantize(y.x, m, hidden_, y.x_quantized);
}

}  // namespace hadal

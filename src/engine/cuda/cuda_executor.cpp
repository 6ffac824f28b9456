#include "engine/cuda/cuda_executor.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/cuda/graph_buckets.h"
#include "engine/speculation/speculation_policy.h"

namespace hadal {
namespace {

constexpr const char* kBroken = "the GPU failed in an earlier step";

int64_t mask_words(int64_t vocab_size) {
  return (vocab_size + 31) / 32;
}

DeviceInputLimits input_limits(const ExecutorSizes& sizes, const PrefillPaths& paths) {
  return {.max_tokens = sizes.max_tokens,
          .max_rows = sizes.max_decode,
          .max_seqs = 2 * sizes.max_rows,  // a request may have a prompt item and a recomputed one
          .pages_per_sequence = sizes.pages_per_sequence,
          .max_table_entries = 2 * sizes.max_rows * sizes.pages_per_sequence,
          .paths = paths};
}

CudaSpeculation::Options speculation_options(const EngineOptions& options) {
  return {.shape = options.draft_shape,
          .rests = options.speculation_adapts,
          .simulated_acceptance = options.simulated_acceptance};
}

}  // namespace

ExecutorSizes ExecutorSizes::of(const EngineOptions& options) {
  ExecutorSizes sizes;
  sizes.max_rows = options.max_running_requests;
  // A single uncut prompt may exceed max_prefill_tokens.
  sizes.max_prefill = options.chunked_prefill_size < 0
                          ? std::max(options.max_prefill_tokens, options.context_length)
                          : std::min(options.chunked_prefill_size, options.max_prefill_tokens);
  sizes.max_width = std::max<int64_t>(options.speculation_width, 1);
  // In addition to verified rows, each request may end its prompt in the step, which needs a row of logits.
  sizes.max_decode = std::min(sizes.max_rows * sizes.max_width, kMaxVerifiedRows + sizes.max_rows);
  sizes.max_tokens = sizes.max_prefill + sizes.max_decode;
  sizes.max_logits = std::min(sizes.max_decode + kMaxScoredRows, sizes.max_tokens);
  sizes.pages_per_sequence = (options.context_length + kPageSize - 1) / kPageSize;
  return sizes;
}

CudaExecutor::CudaExecutor(CudaModel& model, const EngineOptions& options,
                           const std::vector<int64_t>& buckets, size_t workspace_bytes, RankEnd end)
    : model_(model),
      end_(end),
      sizes_(ExecutorSizes::of(options)),
      shapes_(graph_shapes(buckets, options, model.config.has_indexer())),
      pad_(options.device.pad_graphs),
      launch_(model.launch(stream_.handle())),
      inputs_(input_limits(sizes_, model.prefill_paths(options.kv_layout))),
      slots_(sizes_.max_rows, model.config.vocab_size),
      results_(model.decoder.num_moe_layers(), sizes_.max_rows * sizes_.max_width, kMaxScoredRows),
      cache_(model.decoder.num_cache_layers(), options.max_total_tokens / kPageSize, options.kv_layout),
      workspace_bytes_(workspace_bytes),
      workspace_(DeviceBuffer(workspace_bytes)),
      logits_(static_cast<size_t>(sizes_.max_logits * model.config.vocab_size) * sizeof(float)),
      masks_(static_cast<size_t>(sizes_.max_rows * mask_words(model.config.vocab_size)) * sizeof(uint32_t)) {
  if (options.speculation_width > 0) speculation_.emplace(model, sizes_, speculation_options(options));
  capture_graphs(options.device.use_graphs && (end_.device == nullptr || end_.device->graphs()));
}

CudaExecutor::~CudaExecutor() {
  try {
    stream_.synchronize();
    results_stream_.synchronize();
  } catch (const std::exception& error) {
    log_error("GPU failed: error=\"{}\"", error.what());
  }
}

int64_t CudaExecutor::state_bytes(const CudaModel& model, const EngineOptions& options) {
  const ExecutorSizes sizes = ExecutorSizes::of(options);
  const int64_t vocab_size = model.config.vocab_size;
  return DeviceInputs::device_bytes(input_limits(sizes, model.prefill_paths(options.kv_layout))) +
         SlotStates::device_bytes(sizes.max_rows, vocab_size) +
         StepResults::device_bytes(model.decoder.num_moe_layers(), sizes.max_rows * sizes.max_width,
                                   kMaxScoredRows) +
         (options.speculation_width > 0
              ? CudaSpeculation::device_bytes(model, sizes, speculation_options(options))
              : 0) +
         (sizes.max_logits * vocab_size + sizes.max_rows * mask_words(vocab_size)) * int64_t{4};
}

int64_t CudaExecutor::scoring_bytes(const CudaModel& model, const EngineOptions& options) {
  const ExecutorSizes sizes = ExecutorSizes::of(options);
  return (sizes.max_logits - sizes.max_decode) * model.config.vocab_size * int64_t{4};
}

// Every bucket runs once before it is captured, because code is loaded and libraries choose their kernels in
// that run. All ranks capture the same graphs in the same order. None is captured while another rank's
// kernels wait for this one's, because making a graph may wait for kernels.
void CudaExecutor::capture_graphs(bool use_graphs) {
  const auto begin = Clock::now();
  const size_t free_before = cuda_free_bytes();
  size_t num_nodes = 0;
  int64_t largest = 0;
  for (auto shape = shapes_.rbegin(); use_graphs && shape != shapes_.rend(); ++shape) {
    Pending step;  // rows of padding only
    step.view = inputs_.upload({}, {}, shape->rows(), 0, stream_.handle());
    set_selects(step.view.step, shape->selects);
    if (speculation_) speculation_->begin({}, step.view, results_, slots_, 0, *shape, stream_.handle());
    run(step, nullptr);
    stream_.synchronize();
    if (end_.device != nullptr) end_.device->check();
    wait_for_ranks();
    CudaGraph graph = CudaGraph::capture(stream_, [&] { run(step, nullptr); });
    num_nodes = std::max(num_nodes, graph.num_nodes());
    largest = std::max(largest, shape->rows());
    graphs_.emplace(*shape, std::move(graph));
    exchanges_[*shape] = exchanges();
    wait_for_ranks();
  }
  stream_.synchronize();
  if (graphs_.empty() || (end_.host != nullptr && end_.host->rank() > 0)) return;
  const size_t free_after = cuda_free_bytes();
  log_info("cuda graphs captured batches={} largest={} nodes={} seconds={:.2f} bytes={}", graphs_.size(),
           largest, num_nodes, std::chrono::duration<double>(Clock::now() - begin).count(),
           free_before > free_after ? free_before - free_after : 0);
}

void CudaExecutor::launch(StagedStep step) {
  HADAL_CHECK_LT(in_flight_.size(), 2U);
  // Otherwise the rows of that step would read the next step's inputs and logits.
  HADAL_CHECK(in_flight_.empty() || !in_flight_.back().awaits_masks,
              "step {} is launched before the masks of step {} are set", step.step, in_flight_.back().step);
  Pending& pending = in_flight_.emplace_back();
  pending.step = step.step;
  pending.step_idx = next_idx_;
  next_idx_ = (next_idx_ + 1) % kStagingDepth;
  if (broken_) {
    pending.error = kBroken;
    pending.fatal = true;
    HADAL_CHECK(end_.device == nullptr, "{}", kBroken);
    return;
  }
  try {
    // Sets the device of the calling thread, which may not be the thread that made the executor.
    cuda_set_device(model_.device.index);
    start(step, pending);
  } catch (const OutOfDeviceMemory& error) {
    fail(pending, fmt::format("{}; lower --mem-fraction-static or --chunked-prefill-size", error.what()));
  } catch (const std::exception& error) {
    fail(pending, error.what());
  }
}

// Records what the host must know to read the results, and drops rows that the device cannot sample.
void CudaExecutor::describe(StagedStep& step, Pending& pending) {
  int64_t num_free = 0;
  int64_t num_constrained = 0;
  if (speculation_) CudaSpeculation::stage(step);
  for (SampleSpec& spec : step.samples) {
    const LogprobOptions& logprobs = slots_.logprobs(spec.slot);
    Sample& sample = pending.samples.emplace_back();
    sample.slot = spec.slot;
    sample.result = spec.constrained ? num_constrained++ : num_free++;
    sample.constrained = spec.constrained;
    sample.wants_logprob = logprobs.enabled;
    sample.error = slots_.error(spec.slot);
    pending.wants_tops |= logprobs.enabled && logprobs.top_num > 0;
    if (!sample.error.empty()) spec.slot = -1;
  }
  for (const VerifyItem& item : step.verifies) pending.samples[item.sample].verifies = true;
}

bool CudaExecutor::may_select(const StagedStep& step) const {
  if (!model_.config.has_indexer()) return false;
  const auto exceeds = [topk = model_.config.index_topk](int64_t keys) { return keys > topk; };
  const std::vector<int32_t>& lengths = step.batch.decode_kv_len;
  return std::any_of(lengths.begin(), lengths.end(), exceeds) ||
         std::any_of(step.verifies.begin(), step.verifies.end(),
                     [&](const VerifyItem& item) { return exceeds(item.most_keys); });
}

// Each size of one row has a graph that selects and one that does not (graph_shapes), and may_select is exact
// without speculation. So a lone row in a step that may select does select. With speculation the host has
// only a limit of the row's length.
void CudaExecutor::set_selects(DeviceStep& step, bool may_select) const {
  step.may_select = may_select;
  step.all_select = may_select && !speculation_ && step.num_tokens - step.num_prefill_tokens == 1;
}

void CudaExecutor::start(StagedStep& step, Pending& pending) {
  const NvtxRange range("launch");
  slots_.start(step.slots, pending.step_idx, launch_);
  describe(step, pending);
  std::vector<int32_t> score_top;
  for (const PromptScore& score : step.scores) {
    const auto top_num = static_cast<int32_t>(slots_.logprobs(score.slot).top_num);
    pending.wants_tops |= top_num > 0;
    pending.scores.emplace_back(score.slot, static_cast<int64_t>(score_top.size()));
    score_top.push_back(top_num);
  }
  // A decode step is padded even without graphs, so that it computes the same results.
  const bool selects = may_select(step);
  const GraphShape shape = padded_shape(step, selects);
  pending.view = inputs_.upload(step, score_top, shape.rows(), pending.step_idx, stream_.handle());
  set_selects(pending.view.step, shape.items > 0 ? shape.selects : selects);
  pending.awaits_masks = pending.view.num_constrained > 0;
  if (speculation_) {
    pending.shape =
        speculation_->begin(step, pending.view, results_, slots_, pending.step_idx, shape, stream_.handle());
  }

  StepEvents& events = this->events(pending.step_idx);
  const auto graph = graphs_.find(shape);
  // Without speculation, graphs were captured for steps whose keys are settled.
  pending.graphed = graph != graphs_.end() && !step.profile &&
                    (speculation_ ? !speculation_->catches_up() : pending.view.step.decode_settled);
  if (step.profile) {
    pending.profile = std::make_unique<OpProfile>(stream_.handle());
    keep_busy();
  }
  // This step overwrites the previous step's results, so it waits until they have been copied to the host.
  stream_.wait(this->events(pending.step_idx + kStagingDepth - 1).done);
  events.begin.record(stream_.handle());
  if (pending.view.page_updates.num_feeds > 0) cuda::feed_tokens(pending.view.page_updates, launch_);
  copy_pages(step.copies, pending.view.copies);
  HADAL_CHECK_LE(pending.view.step.num_logit_rows, sizes_.max_logits);
  // Staging blocks and the lists of SlotStates may have grown. All ranks' have done so before any rank's
  // device waits for another rank, because freeing memory waits for the device.
  wait_for_ranks();
  if (pending.graphed) {
    graph->second.launch(stream_.handle());
    pending.exchanges = exchanges_[shape];
  } else {
    run(pending, pending.profile.get());
    pending.exchanges = exchanges();
  }
  wait_for_ranks();
  if (!speculation_) score(pending);
  events.end.record(stream_.handle());
  if (!speculation_ || !pending.awaits_masks) fetch(pending, false);
}

// This work runs while the next step's inputs are copied.
void CudaExecutor::fetch(const Pending& pending, bool constrained) {
  const int64_t num_constrained = pending.view.num_constrained;
  StepEvents& events = this->events(pending.step_idx);
  results_stream_.wait(events.end);
  if (speculation_) {
    results_.fetch(pending.step_idx, false, pending.shape.num_results(), pending.wants_tops,
                   results_stream_.handle());
    speculation_->fetch(pending.step_idx, pending.shape, results_stream_.handle());
    events.done.record(results_stream_.handle());
    return;
  }
  results_.fetch(pending.step_idx, constrained,
                 constrained ? num_constrained : std::ssize(pending.samples) - num_constrained,
                 pending.wants_tops, results_stream_.handle());
  if (constrained || num_constrained == 0) events.done.record(results_stream_.handle());
}

// Adds some milliseconds of work, so that the host gets ahead of the device and no op waits for its launch.
void CudaExecutor::keep_busy() {
  constexpr double kBytes = 0.02 * 4.5e12;
  const DeviceArena::Scope scope(workspace_);
  std::byte* const memory = workspace_.allocate(workspace_bytes_);
  const int times = static_cast<int>(std::clamp(kBytes / static_cast<double>(workspace_bytes_), 1.0, 2000.0));
  for (int i = 0; i < times; ++i) fill_device(memory, 0, workspace_bytes_, stream_.handle());
}

void CudaExecutor::begin_exchanges() {
  if (end_.device != nullptr) end_.device->begin_step();
}

void CudaExecutor::end_exchanges() {
  if (end_.device != nullptr) end_.device->end_step(launch_);
}

StepExchanges CudaExecutor::exchanges() const {
  if (end_.device == nullptr) return {};
  const ExchangeTally& tally = end_.device->tally();
  return {.count = tally.num_exchanges,
          .bytes_received = tally.bytes_received,
          .modelled_s = tally.modelled_us * 1e-6};
}

void CudaExecutor::wait_for_ranks() {
  if (end_.host != nullptr) end_.host->barrier();
}

DeviceStep CudaExecutor::feed(const StepView& view) {
  if (view.feeds.num_feeds > 0) {
    cuda::FeedTokensParams feeds = view.feeds;
    feeds.last_token = slots_.last_token();
    cuda::feed_tokens(feeds, launch_);
  }
  DeviceStep step = view.step;
  step.distinct_experts = results_.distinct_experts();
  return step;
}

void CudaExecutor::run(Pending& pending, OpObserver* observer) {
  if (speculation_) return run_speculating(pending, observer);
  const StepView& view = pending.view;
  auto* const logits = logits_.as<float>();
  begin_exchanges();
  const DeviceStep step = feed(view);
  DeviceExec exec = exec_of(observer);
  model_.decoder.forward(step, cache_, {.logits = logits}, exec);
  if (view.num_samples > 0) sample_observed(view, logits, observer);
  end_exchanges();
}

DeviceExec CudaExecutor::exec_of(OpObserver* observer) {
  return {.launch = launch_,
          .gemm = model_.gemm,
          .workspace = workspace_,
          .choices = model_.measured_choices(),
          .comm = end_.device,
          .fusion = model_.fusion,
          .observer = observer};
}

void CudaExecutor::sample_observed(const StepView& view, const float* logits, OpObserver* observer) {
  if (observer != nullptr) {
    const auto rows = static_cast<double>(view.num_samples);
    observer->begin("sample", rows * static_cast<double>(model_.config.vocab_size) * 4.0, 0.0);
  }
  sample(view, logits, false);
  if (observer != nullptr) observer->end();
}

void CudaExecutor::sample(const StepView& view, const float* logits, bool constrained) {
  cuda::SampleParams params;
  params.logits = logits;
  params.rows = constrained ? view.constrained : view.samples;
  params.num_rows = constrained ? view.num_constrained : view.num_samples;
  params.masks = constrained ? masks_.as<uint32_t>() : nullptr;
  slots_.bind(params);
  results_.bind(params, constrained);
  cuda::sample(params, launch_);
}

void CudaExecutor::score(Pending& pending) {
  if (pending.scores.empty()) return;
  cuda::ScoreParams params;
  params.logits = logits_.as<float>();
  params.vocab = model_.config.vocab_size;
  params.logit_rows = pending.view.score_rows;
  params.token_ids = pending.view.score_ids;
  params.top_num = pending.view.score_top;
  params.num_rows = pending.view.num_scores;
  results_.bind_scores(params);
  cuda::score_tokens(params, launch_);
  results_.fetch_scores(pending.step_idx, params.num_rows, pending.wants_tops, stream_.handle());
}

void CudaExecutor::set_masks(int64_t step, std::vector<uint32_t> masks) {
  const auto at =
      std::find_if(in_flight_.begin(), in_flight_.end(), [&](const Pending& p) { return p.step == step; });
  HADAL_CHECK(at != in_flight_.end(), "masks of step {}, which is not in flight", step);
  Pending& pending = *at;
  // The rows of the previous step may still be reading its masks.
  HADAL_CHECK(at == in_flight_.begin(), "masks of step {} are set before step {} was read", step,
              in_flight_.front().step);
  if (!pending.error.empty()) return;
  HADAL_CHECK(pending.awaits_masks, "step {} needs no masks", step);
  pending.awaits_masks = false;
  try {
    const NvtxRange range("masks");
    const auto words = static_cast<size_t>(mask_words(model_.config.vocab_size));
    HADAL_CHECK_EQ(masks.size(), static_cast<size_t>(pending.view.num_constrained) * words);
    const size_t bytes = masks.size() * sizeof(uint32_t);
    std::byte* const staged = mask_staging_.block(pending.step_idx, bytes);
    std::copy(masks.begin(), masks.end(), reinterpret_cast<uint32_t*>(staged));
    // This copy runs concurrently with the forward pass. The last step that read the masks has ended.
    copy_to_device(masks_.data(), staged, bytes, mask_stream_.handle());
    masks_copied_.record(mask_stream_.handle());
    stream_.wait(masks_copied_);
    begin_exchanges();
    if (speculation_) {
      DeviceExec exec = exec_of(nullptr);
      const CudaSpeculation::Pass pass = pass_of(pending, exec);
      speculation_->sample(pass, logits_.as<float>(), masks_.as<uint32_t>());
      speculation_->follow(pass);
    } else {
      sample(pending.view, logits_.as<float>(), true);
    }
    end_exchanges();
    pending.exchanges += exchanges();
    StepEvents& events = this->events(pending.step_idx);
    events.end.record(stream_.handle());
    fetch(pending, true);
  } catch (const std::exception& error) {
    fail(pending, error.what());
  }
}

void CudaExecutor::fail(Pending& pending, const std::string& why) {
  pending.error = why;
  pending.awaits_masks = false;
  if (end_.device != nullptr) {
    broken_ = true;
    end_.device->fail(why);
    throw Error(why);
  }
  inputs_.forget();
  try {
    // If a later step has been launched, its requests may have taken slots of this one.
    const bool is_newest = in_flight_.empty() || &pending == &in_flight_.back();
    if (speculation_ && is_newest) {
      for (const Sample& sample : pending.samples) speculation_->forget(sample.slot, stream_.handle());
    }
    stream_.synchronize();
    mask_stream_.synchronize();
    results_stream_.synchronize();
  } catch (const std::exception& error) {
    broken_ = true;
    pending.fatal = true;
    pending.error = fmt::format("the GPU has failed: {}", error.what());
    if (pending.error.find(why) == std::string::npos) pending.error += "; first seen as: " + why;
  }
}

}  // namespace hadal

#include "engine/cuda/cuda_speculation.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace hadal {

using cuda::ChainItem;
using cuda::SampleResult;
using cuda::SampleRow;

namespace {

// The 16 bytes before the tokens hold the number of items, so that one copy transfers both.
constexpr int64_t kIdsBehindCount = 4;

}  // namespace

// A draft is chosen as its token will be, with the request's own parameters and the same noise
// (base/gumbel.h). So the draft and the token agree more often than they would if the draft were the most
// probable token.

CudaSpeculation::Arrays CudaSpeculation::place(DeviceArena& arena, const CudaModel& model,
                                               const ExecutorSizes& sizes, const Options& options) {
  const int64_t hidden = model.config.hidden_size;
  const int64_t rows = sizes.max_rows;
  // NextN has one row for each item, or a few in a tree, which are never more than the rows of drafts.
  const int64_t nextn_rows = options.shape.topk > 1 ? sizes.max_decode : rows;
  Arrays a;
  a.items = arena.array<ChainItem>(rows);
  a.num_items = arena.array<int32_t>(kIdsBehindCount + sizes.max_tokens);
  a.num_nextn = a.num_items + 1;
  a.follow_ids = a.num_items + kIdsBehindCount;
  a.target_hidden = arena.array<uint16_t>(sizes.max_tokens * hidden);
  a.next_hidden = arena.array<uint16_t>(nextn_rows * hidden);
  a.guess_rows = arena.array<int32_t>(rows);
  a.drafting = {.token_ids = arena.array<int32_t>(sizes.max_decode),
                .positions = arena.array<int32_t>(sizes.max_decode),
                .slots = arena.array<int64_t>(sizes.max_decode),
                .seq_idx = arena.array<int32_t>(sizes.max_decode),
                .kv_len = arena.array<int32_t>(sizes.max_decode)};
  a.hidden_rows = arena.array<int32_t>(sizes.max_decode);
  a.chances = arena.array<double>(sizes.max_width);
  cuda::Chains& c = a.chains;
  c.items = a.items;
  c.max_width = static_cast<int>(sizes.max_width);
  c.lengths = arena.array<int32_t>(rows);
  c.first_drafts = arena.array<int32_t>(rows);
  c.hidden = arena.array<uint16_t>(rows * hidden);
  c.hidden_size = hidden;
  if (options.rests) {
    c.waiting_rows = static_cast<int>(kMaxWaitingRows);
    c.waiting_hidden = arena.array<uint16_t>(rows * kMaxWaitingRows * hidden);
    c.waiting_next = arena.array<int32_t>(rows * kMaxWaitingRows);
  }
  c.num_rows = arena.array<int32_t>(rows);
  c.positions = arena.array<int64_t>(rows);
  c.drafts = arena.array<int32_t>(rows * sizes.max_width);
  c.sample_rows = arena.array<SampleRow>(nextn_rows);
  c.hidden_rows = arena.array<int32_t>(nextn_rows);
  c.guesses = arena.array<SampleResult>(rows);
  a.trees.shape = options.shape;
  if (options.shape.topk > 1) place_trees(arena, sizes, a);
  return a;
}

void CudaSpeculation::place_trees(DeviceArena& arena, const ExecutorSizes& sizes, Arrays& arrays) {
  const int64_t rows = sizes.max_rows;
  cuda::Trees& t = arrays.trees;
  arrays.drafting.newest_seen = arena.array<uint64_t>(sizes.max_decode);
  arrays.newest_seen = arena.array<uint64_t>(sizes.max_tokens);
  t.first_drafts = arena.array<cuda::DraftGuess>(rows * t.shape.topk);
  t.guesses = arena.array<cuda::DraftGuess>(sizes.max_decode * t.shape.topk);
  t.best = arena.array<cuda::TreeDraft>(rows * kMaxDraftNodes);
  t.num_best = arena.array<int32_t>(rows);
  t.num_made = arena.array<int32_t>(rows);
  t.nodes = arena.array<DraftNode>(rows * sizes.max_width);
  t.accepted = arena.array<int32_t>(rows * sizes.max_width);
}

CudaSpeculation::CudaSpeculation(const CudaModel& model, const ExecutorSizes& sizes, const Options& options)
    : model_(model),
      arena_(DeviceBuffer(static_cast<size_t>(device_bytes(model, sizes, options)))),
      arrays_(place(arena_, model, sizes, options)),
      options_(options),
      max_decode_(sizes.max_decode),
      waiting_(static_cast<size_t>(sizes.max_rows), 0) {
  HADAL_CHECK(model.decoder.has_nextn(), "the NextN layer is not loaded");
  // Rows of padding read states that nothing has written yet.
  CudaStream stream;
  fill_device(arrays_.items, 0, arena_.high_water(), stream.handle());
  const std::vector<double>& chances = options.simulated_acceptance;
  copy_to_device(arrays_.chances, chances.data(), chances.size() * sizeof(double), stream.handle());
  stream.synchronize();
  arrays_.chains.chances = arrays_.chances;
  arrays_.chains.num_chances = static_cast<int>(chances.size());
}

int64_t CudaSpeculation::device_bytes(const CudaModel& model, const ExecutorSizes& sizes,
                                      const Options& options) {
  DeviceArena measured = DeviceArena::measuring();
  place(measured, model, sizes, options);
  return static_cast<int64_t>(measured.high_water());
}

void CudaSpeculation::stage(StagedStep& step) {
  ForwardBatch& batch = step.batch;
  for (const VerifyItem& item : step.verifies) {
    SampleSpec& spec = step.samples[item.sample];
    spec.num_rows = spec.constrained ? 1 : item.max_rows;
    spec.logit_row = static_cast<int32_t>(batch.logit_rows.size());
    for (int32_t i = 0; i < spec.num_rows; ++i) {
      batch.logit_rows.push_back(static_cast<int32_t>(batch.token_ids.size()));
      batch.token_ids.push_back(0);
      batch.positions.push_back(0);
      batch.slots.push_back(-1);
      batch.decode_seq_idx.push_back(item.seq_idx);
      batch.decode_kv_len.push_back(0);
    }
  }
}

bool CudaSpeculation::verifies_alone(const StagedStep& step) {
  return step.batch.num_prefill_tokens == 0 && step.verifies.size() == step.samples.size() &&
         std::ssize(step.batch.logit_rows) == step.batch.num_tokens();
}

CudaSpeculation::Shape CudaSpeculation::begin(const StagedStep& step, const StepView& view,
                                              const StepResults& results, const SlotStates& slots,
                                              int step_idx, const GraphShape& padded, StreamHandle stream) {
  const size_t num_samples = step.samples.size();
  const size_t num_items = std::max(num_samples, static_cast<size_t>(padded.items));
  std::vector<ChainItem> items(num_items);
  Shape shape{.num_items = static_cast<int>(num_items), .width = static_cast<int>(padded.width)};
  int32_t num_masks = 0;
  for (size_t i = 0; i < num_samples; ++i) {
    const SampleSpec& spec = step.samples[i];
    items[i] = {.slot = spec.slot,
                .first_row = step.batch.logit_rows[spec.logit_row],
                .first_logit = spec.logit_row,
                .mask_row = spec.constrained ? num_masks++ : -1,
                .position = spec.position};
  }
  for (const VerifyItem& verify : step.verifies) {
    ChainItem& item = items[verify.sample];
    item.verifies = 1;
    item.seq_idx = verify.seq_idx;
    item.max_rows = step.samples[verify.sample].num_rows;
    item.position = verify.end_position;
    shape.width = std::max(shape.width, static_cast<int>(item.max_rows));
  }
  HADAL_CHECK_LE(shape.width, arrays_.chains.max_width);
  for (const SlotStart& start : step.slots) forget(start.slot, stream);
  const bool rests = options_.rests && shape.width == 1;
  runs_nextn_ = !rests || !verifies_alone(step);
  count_waiting(step, rests, items);
  trees_ = arrays_.trees;
  trees_.chains.width = shape.width;
  number_trees(items, padded);
  // The tokens after each row, as far as the host has them. The device fills in those that the step samples.
  std::vector<int32_t> ids(kIdsBehindCount, 0);
  ids[0] = static_cast<int32_t>(std::max<size_t>(num_samples, 1));
  const int64_t num_trees = padded.items > 0 ? ids[0] : trees_.num_trees;
  ids[1] = static_cast<int32_t>(num_trees * trees_.nextn_rows());
  ids.insert(ids.end(), step.next_ids.begin(), step.next_ids.end());
  ids.resize(static_cast<size_t>(kIdsBehindCount + view.step.num_tokens), 0);
  std::replace(ids.begin(), ids.end(), -1, 0);

  const size_t item_bytes = num_items * sizeof(ChainItem);
  const size_t id_bytes = ids.size() * sizeof(int32_t);
  std::byte* const staged = staging_.block(step_idx, item_bytes + id_bytes);
  if (num_items > 0) std::memcpy(staged, items.data(), item_bytes);
  std::memcpy(staged + item_bytes, ids.data(), id_bytes);
  copy_to_device(arrays_.items, staged, item_bytes, stream);
  copy_to_device(arrays_.num_items, staged + item_bytes, id_bytes, stream);

  cuda::SampleParams bound;
  results.bind(bound, false);
  slots.bind(bound);
  step_ = arrays_.chains;
  step_.slots = bound.slots;
  step_.num_items = shape.num_items;
  step_.width = shape.width;
  step_.rests = rests;
  step_.last_token = slots.last_token();
  step_.results = bound.results;
  step_.page_table = view.step.page_table;
  step_.page_table_stride = view.step.page_table_stride;
  trees_.chains = step_;
  return shape;
}

void CudaSpeculation::number_trees(std::vector<ChainItem>& items, const GraphShape& padded) {
  if (!grows_trees() || trees_.chains.width == 1) return;
  for (ChainItem& item : items) {
    if (padded.items > 0 || (item.verifies != 0 && item.max_rows > 1)) item.tree = trees_.num_trees++;
  }
  HADAL_CHECK_LE(trees_.num_trees * trees_.nextn_rows(), max_decode_);
}

// If a request verifies no draft while others in the step do, this step and later ones make its new records,
// but its waiting records are lost. Such a request ends soon, or has a grammar.
void CudaSpeculation::count_waiting(const StagedStep& step, bool rests, std::vector<ChainItem>& items) {
  int64_t most = 0;
  for (size_t i = 0; i < step.samples.size(); ++i) {
    ChainItem& item = items[i];
    if (item.slot < 0) continue;
    int64_t& waiting = waiting_[static_cast<size_t>(item.slot)];
    if (item.verifies != 0 && rests) {
      waiting = std::min(waiting + 1, kMaxWaitingRows);
      continue;
    }
    if (item.verifies != 0 && item.max_rows > 1) item.num_waiting = static_cast<int32_t>(waiting);
    most = std::max<int64_t>(most, item.num_waiting);
    waiting = 0;
  }
  const int64_t room = max_decode_ / std::max<int64_t>(std::ssize(items), 1);
  catch_up_stride_ = static_cast<int>(std::min(most, room));
  for (ChainItem& item : items) item.num_waiting = std::min(item.num_waiting, catch_up_stride_);
}

void CudaSpeculation::catch_up(const Pass& pass) {
  const cuda::Launch& launch = pass.exec.launch;
  cuda::catch_up_rows(step_, catch_up_stride_, arrays_.drafting, arrays_.hidden_rows, arrays_.guess_rows,
                      launch);
  draft(pass,
        {.num_tokens = int64_t{step_.num_items} * catch_up_stride_,
         .logit_rows = arrays_.guess_rows,
         .num_logit_rows = step_.num_items},
        {.hidden = step_.waiting_hidden, .hidden_rows = arrays_.hidden_rows});
  keep_first(pass);
}

void CudaSpeculation::draft(const Pass& pass, DeviceStep step, const NextnInput& input) {
  step.token_ids = arrays_.drafting.token_ids;
  step.positions = arrays_.drafting.positions;
  step.slots = arrays_.drafting.slots;
  step.decode_seq_idx = arrays_.drafting.seq_idx;
  step.decode_kv_len = arrays_.drafting.kv_len;
  step.page_table = step_.page_table;
  step.page_table_stride = step_.page_table_stride;
  step.most_keys = pass.view.step.most_keys;
  step.may_select = pass.view.step.may_select;
  model_.decoder.forward_nextn(
      step, input, pass.cache,
      {.logits = pass.logits, .rows = DeviceOutputs::Hidden::kLogitRows, .hidden = arrays_.next_hidden},
      pass.exec);
  guess(pass, step.num_logit_rows);
}

void CudaSpeculation::expand(const Pass& pass) {
  if (catches_up()) catch_up(pass);
  cuda::begin_chains(step_, pass.exec.launch);
  has_trees() ? expand_trees(pass) : expand_chains(pass);
}

void CudaSpeculation::expand_chains(const Pass& pass) {
  const cuda::Launch& launch = pass.exec.launch;
  // Each further draft is NextN's guess after its previous guess, made with NextN's own hidden state.
  for (int depth = 1; depth + 1 < step_.width; ++depth) {
    cuda::draft_rows(step_, depth, arrays_.drafting, launch);
    draft(pass,
          {.num_tokens = step_.num_items, .num_valid = arrays_.num_items, .num_logit_rows = step_.num_items},
          {.hidden = step_.hidden, .hidden_rows = step_.hidden_rows});
    cuda::keep_guesses(step_, depth, arrays_.next_hidden, launch);
  }
  cuda::verify_rows(step_, pass.view.chain_rows, launch);
}

// Children of a draft are NextN's guesses after it, made with the hidden state from which the draft came.
// That state is in NextN's output of the previous pass, because only drafts that were expanded there have
// children.
void CudaSpeculation::expand_trees(const Pass& pass) {
  const cuda::Launch& launch = pass.exec.launch;
  // Rows that are not of verifications see all records up to their own.
  const int64_t num_decode = pass.view.step.num_tokens - pass.view.step.num_prefill_tokens;
  fill_device(arrays_.newest_seen, 0xff, static_cast<size_t>(num_decode) * sizeof(uint64_t), launch.stream);
  const int64_t num_rows = trees_.num_trees * trees_.nextn_rows();
  for (int depth = 1; depth < trees_.num_depths(); ++depth) {
    cuda::grow_trees(trees_, depth, arrays_.drafting, launch);
    draft(pass,
          {.num_tokens = num_rows,
           .num_valid = arrays_.num_nextn,
           .decode_newest_seen = arrays_.drafting.newest_seen,
           .num_logit_rows = num_rows},
          {.hidden = depth == 1 ? step_.hidden : arrays_.next_hidden, .hidden_rows = step_.hidden_rows});
  }
  cuda::ChainRows rows = pass.view.chain_rows;
  rows.newest_seen = arrays_.newest_seen;
  cuda::verify_trees(trees_, rows, launch);
}

void CudaSpeculation::guess(const Pass& pass, int64_t num_rows) {
  cuda::SampleParams params;
  pass.slots.bind(params);
  params.logits = pass.logits;
  params.rows = step_.sample_rows;
  params.num_rows = static_cast<int>(num_rows);
  params.results = step_.guesses;
  params.commits = false;
  if (grows_trees()) {
    cuda::choose_drafts(params, static_cast<int>(options_.shape.topk), trees_.guesses, pass.exec.launch);
  } else {
    cuda::sample(params, pass.exec.launch);
  }
}

void CudaSpeculation::keep_first(const Pass& pass) {
  if (grows_trees()) {
    cuda::keep_first_drafts(trees_, arrays_.next_hidden, pass.exec.launch);
  } else {
    cuda::keep_guesses(step_, 0, arrays_.next_hidden, pass.exec.launch);
  }
}

void CudaSpeculation::sample(const Pass& pass, const float* logits, const uint32_t* masks) {
  const bool masked = masks != nullptr;
  const int most = has_trees() ? static_cast<int>(trees_.num_depths()) + 1 : step_.width;
  for (int depth = 0; depth < (masked ? 1 : most); ++depth) {
    if (has_trees()) {
      cuda::choose_nodes(trees_, depth, masked, pass.exec.launch);
    } else {
      cuda::choose_rows(step_, depth, masked, pass.exec.launch);
    }
    cuda::SampleParams params;
    pass.slots.bind(params);
    pass.results.bind(params, false);
    const int64_t first = int64_t{depth} * step_.num_items;
    params.logits = logits;
    params.rows = step_.sample_rows;
    params.num_rows = step_.num_items;
    params.masks = masks;
    params.results += first;
    params.top_ids += first * cuda::kMaxTopLogprobs;
    params.top_logprobs += first * cuda::kMaxTopLogprobs;
    cuda::sample(params, pass.exec.launch);
  }
}

void CudaSpeculation::follow(const Pass& pass) {
  const cuda::Launch& launch = pass.exec.launch;
  if (step_.rests && step_.num_items > 0) cuda::keep_waiting(step_, arrays_.target_hidden, launch);
  cuda::ChainRows rows = pass.view.chain_rows;
  rows.token_ids = arrays_.follow_ids;
  if (has_trees()) {
    cuda::move_accepted(trees_,
                        {.pools = pass.cache.device_pools(),
                         .num_layers = static_cast<int>(model_.decoder.num_cache_layers()),
                         .row_bytes = pass.cache.layout().row_bytes(),
                         .target_hidden = arrays_.target_hidden},
                        launch);
    cuda::follow_trees(trees_, rows, arrays_.guess_rows, launch);
  } else {
    cuda::follow_rows(step_, rows, arrays_.guess_rows, launch);
  }
  if (!runs_nextn_) return;
  DeviceStep step = pass.view.step;
  step.token_ids = arrays_.follow_ids;
  step.decode_settled = false;
  step.logit_rows = arrays_.guess_rows;
  step.num_logit_rows = step_.num_items;
  step.distinct_experts = nullptr;
  model_.decoder.forward_nextn(
      step, {.hidden = arrays_.target_hidden}, pass.cache,
      {.logits = pass.logits, .rows = DeviceOutputs::Hidden::kLogitRows, .hidden = arrays_.next_hidden},
      pass.exec);
  if (step_.num_items == 0) return;
  guess(pass, step_.num_items);
  keep_first(pass);
}

void CudaSpeculation::fetch(int step_idx, const Shape& shape, StreamHandle stream) {
  const size_t bytes = static_cast<size_t>(shape.num_items) * sizeof(int32_t);
  const bool has_nodes = grows_trees() && shape.width > 1;
  const size_t node_bytes = has_nodes ? static_cast<size_t>(shape.num_results()) * sizeof(int32_t) : 0;
  std::byte* const to = host_rows_.block(step_idx, bytes + node_bytes);
  copy_to_host(to, arrays_.chains.num_rows, bytes, stream);
  if (has_nodes) copy_to_host(to + bytes, arrays_.trees.accepted, node_bytes, stream);
}

int32_t CudaSpeculation::num_rows(int step_idx, size_t item) const {
  return reinterpret_cast<const int32_t*>(host_rows_.block(step_idx))[item];
}

int32_t CudaSpeculation::row_at(int step_idx, const Shape& shape, size_t item, int depth) const {
  if (!grows_trees() || shape.width == 1) return depth;
  return reinterpret_cast<const int32_t*>(
      host_rows_.block(step_idx))[shape.num_items + shape.result(item, depth)];
}

void CudaSpeculation::forget(int32_t slot, StreamHandle stream) {
  waiting_[static_cast<size_t>(slot)] = 0;
  fill_device(arrays_.chains.lengths + slot, 0, sizeof(int32_t), stream);
}

}  // namespace hadal

#include "engine/cuda/cuda_runner.h"

#include "base/check.h"
#include "base/float_types.h"
#include "base/log.h"

namespace hadal {
// The sizes allow any mix of prompt and decode rows.
DeviceDecoder::StepBytes CudaRunner::step_bytes(CudaModel& model, int64_t max_tokens, KvLayout layout) {
  return model.decoder.step_bytes(2 * max_tokens, max_tokens, kMaxPrefillKeys, 2 * max_tokens,
                                  model.prefill_paths(layout), model.gemm, model.device.num_sms,
                                  model.measured_choices());
}

CudaRunner::CudaRunner(CudaModel& model, int64_t num_pages, int64_t max_tokens, KvLayout layout,
                       size_t workspace_bytes, RankEnd end)
    : model_(model),
      end_(end),
      inputs_({.max_tokens = max_tokens,
               .max_rows = 1,
               .max_seqs = max_tokens,
               .pages_per_sequence = num_pages,
               .max_table_entries = num_pages,
               .paths = model.prefill_paths(layout)}),
      cache_(model.decoder.num_cache_layers(), num_pages, layout),
      workspace_(DeviceBuffer(workspace_bytes)) {}

CudaRunner::~CudaRunner() {
  try {
    stream_.synchronize();
  } catch (const std::exception& error) {
    log_error("GPU failed: error=\"{}\"", error.what());
  }
}

int64_t CudaRunner::hidden_bytes(int64_t num_rows) const {
  return num_rows * model_.config.hidden_size * static_cast<int64_t>(sizeof(uint16_t));
}

DeviceStep CudaRunner::begin(const ForwardBatch& batch) {
  cuda_set_device(model_.device.index);  // for the calling thread, whichever it is
  StagedStep staged;
  staged.batch = batch;
  const StepView view = inputs_.upload(staged, {}, 0, 0, stream_.handle());
  logits_.reserve(static_cast<size_t>(view.step.num_logit_rows * model_.config.vocab_size) * sizeof(float));
  return view.step;
}

template <typename Pass>
void CudaRunner::run(const Pass& pass) {
  DeviceExec exec{.launch = model_.launch(stream_.handle()),
                  .gemm = model_.gemm,
                  .workspace = workspace_,
                  .choices = model_.measured_choices(),
                  .comm = end_.device,
                  .fusion = model_.fusion};
  if (end_.host != nullptr) end_.host->barrier();
  if (end_.device != nullptr) end_.device->begin_step();
  pass(exec);
  if (end_.device != nullptr) end_.device->end_step(exec.launch);
}

std::span<const float> CudaRunner::forward(const ForwardBatch& batch) {
  const DeviceStep step = begin(batch);
  run([&](DeviceExec& exec) { model_.decoder.forward(step, cache_, {.logits = logits_.as<float>()}, exec); });
  return hand_over(step.num_logit_rows, 0).logits;
}

ForwardRows CudaRunner::forward_with_hidden(const ForwardBatch& batch) {
  HADAL_CHECK(has_nextn(), "the NextN layer is not loaded");
  const DeviceStep step = begin(batch);
  hidden_.reserve(static_cast<size_t>(hidden_bytes(step.num_tokens)));
  run([&](DeviceExec& exec) {
    model_.decoder.forward(
        step, cache_,
        {.logits = logits_.as<float>(), .rows = DeviceOutputs::Hidden::kAllRows, .hidden = hidden_.data()},
        exec);
  });
  return hand_over(step.num_logit_rows, step.num_tokens);
}

ForwardRows CudaRunner::forward_nextn(const ForwardBatch& batch, std::span<const float> hidden) {
  HADAL_CHECK(has_nextn(), "the NextN layer is not loaded");
  HADAL_CHECK_EQ(static_cast<int64_t>(hidden.size()), batch.num_tokens() * model_.config.hidden_size);
  const DeviceStep step = begin(batch);
  const bool f16 = model_.weights.is_f16();
  host_hidden_.clear();
  for (const float value : hidden) host_hidden_.push_back(f16 ? to_f16(value).bits : to_bf16(value).bits);
  input_.reserve(static_cast<size_t>(hidden_bytes(step.num_tokens)));
  hidden_.reserve(static_cast<size_t>(hidden_bytes(step.num_logit_rows)));
  copy_to_device(input_.data(), host_hidden_.data(), host_hidden_.size() * sizeof(uint16_t),
                 stream_.handle());
  run([&](DeviceExec& exec) {
    model_.decoder.forward_nextn(
        step, {.hidden = input_.data()}, cache_,
        {.logits = logits_.as<float>(), .rows = DeviceOutputs::Hidden::kLogitRows, .hidden = hidden_.data()},
        exec);
  });
  return hand_over(step.num_logit_rows, step.num_logit_rows);
}

ForwardRows CudaRunner::hand_over(int64_t num_logits, int64_t num_hidden) {
  const auto count = static_cast<size_t>(num_logits * model_.config.vocab_size);
  const bool hands_over = end_.host == nullptr || end_.host->rank() == 0;
  if (hands_over) host_.reserve(count * sizeof(float));
  if (hands_over) copy_to_host(host_.data(), logits_.data(), count * sizeof(float), stream_.handle());
  host_hidden_.resize(static_cast<size_t>(num_hidden * model_.config.hidden_size));
  copy_to_host(host_hidden_.data(), hidden_.data(), host_hidden_.size() * sizeof(uint16_t), stream_.handle());
  stream_.synchronize();
  if (end_.device != nullptr) end_.device->check();
  if (!hands_over) return {};
  hidden_values_.clear();
  const bool is_f16 = model_.weights.is_f16();
  for (const uint16_t bits : host_hidden_)
    hidden_values_.push_back(is_f16 ? to_float(f16{bits}) : to_float(bf16{bits}));
  return {.logits = {host_.as<float>(), count}, .hidden = hidden_values_};
}

}  // namespace hadal

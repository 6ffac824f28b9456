#include "engine/cuda/cuda_runner.h"

#include "base/log.h"

namespace hadal {

// The sizes allow any mix of prompt and decode rows.
DeviceDecoder::StepBytes CudaRunner::step_bytes(CudaModel& model, int64_t max_tokens, KvLayout layout) {
  return model.decoder.step_bytes(2 * max_tokens, max_tokens, kMaxPrefillKeys, 2 * max_tokens, layout,
                                  model.gemm, model.device.num_sms, model.measured_choices());
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
      cache_(model.config.num_hidden_layers, num_pages, layout),
      workspace_(DeviceBuffer(workspace_bytes)) {}

CudaRunner::~CudaRunner() {
  try {
    stream_.synchronize();
  } catch (const std::exception& error) {
    log_error("GPU failed: error=\"{}\"", error.what());
  }
}

std::span<const float> CudaRunner::forward(const ForwardBatch& batch) {
  cuda_set_device(model_.device.index);  // for the calling thread, whichever it is
  StagedStep staged;
  staged.batch = batch;
  const StepView view = inputs_.upload(staged, {}, 0, 0, stream_.handle());
  const auto count = static_cast<size_t>(view.step.num_logit_rows * model_.config.vocab_size);
  if (logits_.size() < count * sizeof(float)) {
    logits_ = DeviceBuffer();
    logits_ = DeviceBuffer(count * sizeof(float));
  }
  DeviceExec exec{.launch = model_.launch(stream_.handle()),
                  .gemm = model_.gemm,
                  .workspace = workspace_,
                  .choices = model_.measured_choices(),
                  .comm = end_.device,
                  .fusion = model_.fusion};
  if (end_.host != nullptr) end_.host->barrier();  // memory has been reserved on all ranks
  if (end_.device != nullptr) end_.device->begin_step();
  model_.decoder.forward(view.step, cache_, logits_.as<float>(), exec);
  if (end_.device != nullptr) end_.device->end_step(exec.launch);
  const bool hands_over = end_.host == nullptr || end_.host->rank() == 0;
  if (hands_over && host_.size() < count * sizeof(float)) {
    host_ = PinnedBuffer();
    host_ = PinnedBuffer(count * sizeof(float));
  }
  if (hands_over) copy_to_host(host_.data(), logits_.data(), count * sizeof(float), stream_.handle());
  stream_.synchronize();
  if (end_.device != nullptr) end_.device->check();
  if (!hands_over) return {};
  return {host_.as<float>(), count};
}

}  // namespace hadal

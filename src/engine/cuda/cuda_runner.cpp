#include "engine/cuda/cuda_runner.h"

#include "base/log.h"

namespace hadal {

CudaRunner::CudaRunner(CudaModel& model, int64_t num_pages, int64_t max_tokens, KvLayout layout)
    : model_(model),
      inputs_({.max_tokens = max_tokens,
               .max_rows = 1,
               .max_seqs = max_tokens,
               .pages_per_sequence = num_pages,
               .max_table_entries = num_pages,
               .paths = model.prefill_paths(layout)}),
      cache_(model.config.num_hidden_layers, num_pages, layout),
      // The sizes allow any mix of prompt and decode rows.
      workspace_(DeviceBuffer(
          model.decoder.workspace_bytes(2 * max_tokens, max_tokens, kMaxPrefillKeys, 2 * max_tokens, layout,
                                        model.gemm, model.device.num_sms, model.measured_choices()))) {}

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
  if (host_.size() < count * sizeof(float)) {
    host_ = PinnedBuffer();
    host_ = PinnedBuffer(count * sizeof(float));
  }
  DeviceExec exec{.launch = model_.launch(stream_.handle()),
                  .gemm = model_.gemm,
                  .workspace = workspace_,
                  .choices = model_.measured_choices(),
                  .fusion = model_.fusion};
  model_.decoder.forward(view.step, cache_, logits_.as<float>(), exec);
  copy_to_host(host_.data(), logits_.data(), count * sizeof(float), stream_.handle());
  stream_.synchronize();
  return {host_.as<float>(), count};
}

}  // namespace hadal

#include "engine/model_runner.h"

namespace hadal {

CpuRunner::CpuRunner(Model& model, ThreadPool& pool, int64_t num_pages, KvLayout layout, KernelSet kernels)
    : model_(model),
      pool_(pool),
      kernels_(kernels),
      cache_(model.config().num_hidden_layers, num_pages, layout) {}

std::span<const float> CpuRunner::forward(const ForwardBatch& batch) {
  const auto count = static_cast<int64_t>(batch.logit_rows.size()) * model_.config().vocab_size;
  if (logits_.size() < count * sizeof(float)) logits_ = Buffer(count * sizeof(float));
  auto* logits = reinterpret_cast<float*>(logits_.data());
  ExecContext exec{.device = {}, .pool = pool_, .workspace = workspace_, .stream = {}, .kernels = kernels_};
  model_.forward(batch, cache_, logits, exec);
  return {logits, static_cast<size_t>(count)};
}

}  // namespace hadal

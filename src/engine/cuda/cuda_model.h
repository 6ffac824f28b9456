// Holds a model, or one rank's part of it, on one GPU, with everything that its users share.
#pragma once

#include <cstdint>

#include "engine/engine.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/launch.h"
#include "model/cuda/device_decoder.h"

namespace hadal {

struct CudaModel {
  CudaModel(ModelConfig model_config, DeviceWeights device_weights, const CudaDeviceInfo& info)
      : config(std::move(model_config)),
        weights(std::move(device_weights)),
        decoder(config, weights),
        device(info) {}
  CudaModel(const CudaModel&) = delete;
  CudaModel& operator=(const CudaModel&) = delete;

  const ModelConfig config;
  const DeviceWeights weights;
  const DeviceDecoder decoder;
  const CudaDeviceInfo device;
  cuda::GemmLibrary gemm;
  cuda::ProductChoices choices;  // the measured choices; empty if there are none
  bool reference = false;
  bool fusion = true;
  int64_t seq_len_threshold = -1;  // PrefillPaths::seq_len_threshold

  const cuda::ProductChoices* measured_choices() const { return choices.empty() ? nullptr : &choices; }

  PrefillPaths prefill_paths(KvLayout layout) const {
    return {.num_heads = static_cast<int>(weights.num_heads()),
            .layout = layout,
            .fp8_weights = weights.layers.front().attention.kv_b.type == WeightType::kFp8Block,
            .index_topk = config.index_topk,
            .seq_len_threshold = seq_len_threshold};
  }

  cuda::Launch launch(StreamHandle stream) const {
    return {.stream = stream, .num_sms = device.num_sms, .pdl = !reference, .reference = reference};
  }
};

// Holds the sizes that determine an executor's memory.
struct ExecutorSizes {
  int64_t max_rows = 0;    // requests of a decode step
  int64_t max_decode = 0;  // rows that sample: with speculation several for each request, and ends of prompts
  int64_t max_logits = 0;  // rows of logits: those that sample, and scored prompt tokens
  int64_t max_prefill = 0;  // prompt and recomputed tokens of a step
  int64_t max_tokens = 0;   // the sum of both kinds of rows
  int64_t max_width = 1;    // rows of a request that a step verifies
  int64_t pages_per_sequence = 0;

  static ExecutorSizes of(const EngineOptions& options);
};

}  // namespace hadal

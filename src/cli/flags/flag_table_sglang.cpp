// Holds SGLang's server flags that need no code here: flags for behaviour that Hadal always has, and flags to
// which nothing here corresponds. Names with the same reason share an entry. A flag that some command honours
// has no kError row here, because the parser itself says which commands it belongs to; it may have a kAlready
// row for the other commands.
#include <string>
#include <string_view>
#include <vector>

#include "cli/flags/flag_table.h"

namespace hadal::cli {
namespace {

// Names are separated by spaces; "name" is a switch, "name=" has a value, "name=*" a list of values,
// "name=:a|b" a value of which only a and b are accepted.
struct Entry {
  FlagClass flag_class;
  std::string_view text;
  std::string_view names;
};

constexpr FlagClass kAlready = FlagClass::kAlready;
constexpr FlagClass kError = FlagClass::kError;

constexpr Entry kEntries[] = {
    // These flags ask for behaviour that Hadal always has.
    {kAlready, "the program never runs code from a checkpoint", "trust-remote-code"},
    {kAlready, "all kernels are compiled ahead of time",
     "enable-torch-compile enable-torch-compile-debug-mode torch-compile-max-bs="},
    {kAlready, "prompt chunks and decode tokens always share steps", "enable-mixed-chunk"},
    {kAlready, "the program itself chooses the implementation of every operation",
     "enable-flashinfer-mla enable-flashmla attention-backend= decode-attention-backend= "
     "prefill-attention-backend= sampling-backend= fp8-gemm-backend= fp4-gemm-backend= bf16-gemm-backend= "
     "moe-runner-backend= dsa-prefill-backend= dsa-decode-backend= dsa-paged-mqa-logits-backend= "
     "dsa-topk-backend= dsv4-prefill-backend= flashinfer-mla-disable-ragged disable-flashinfer-autotune "
     "flashinfer-autotune-skip-ops=* flashinfer-mxfp4-moe-precision= triton-attention-num-kv-splits= "
     "triton-attention-split-tile-size= enable-fused-qk-norm-rope disable-shared-experts-fusion "
     "model-impl=:auto|sglang model-config-parser=:auto"},
    {kAlready, "attention always sums in float32", "triton-attention-reduce-in-fp32"},
    {kAlready, "logits are always computed in float32", "enable-fp32-lm-head"},
    {kAlready,
     "a GPU captures decode steps as CUDA graphs and runs prompts without them; results are the same",
     "disable-prefill-cuda-graph cuda-graph-config= cuda-graph-backend-decode= cuda-graph-backend-prefill= "
     "cuda-graph-max-bs-prefill= cuda-graph-bs-prefill=* cuda-graph-tc-compiler= enable-cudagraph-gc"},
    {kAlready, "this command decides itself which of its steps are captured as CUDA graphs",
     "disable-cuda-graph disable-decode-cuda-graph disable-cuda-graph-padding cuda-graph-max-bs-decode= "
     "cuda-graph-bs-decode=*"},
    {kAlready, "this command runs one step at a time", "disable-overlap-schedule"},
    {kAlready, "this command keeps no prefixes in a cache", "disable-radix-cache"},
    {kAlready, "cached prefixes are read where they are, without copies", "disable-chunked-prefix-cache"},
    {kAlready, "this command runs no model",
     "enable-deterministic-inference tp-size=:1 ep-size=:1 base-gpu-id= gpu-id-step= dsa-seq-len-threshold= "
     "disable-custom-all-reduce"},
    {kAlready, "a page always holds 64 tokens", "page-size=:64"},
    {kAlready, "requests are served first come, first served", "schedule-policy=:fcfs"},
    {kAlready, "new requests can start after every decode step", "num-continuous-decode-steps=:1"},
    {kAlready, "there is one tokenizer, which reads tokenizer.json",
     "tokenizer-mode=:auto|slow tokenizer-backend=:huggingface|fastokens"},
    {kAlready,
     "weight files are mapped and read as they are needed, which is faster than a thread that reads ahead",
     "weight-loader-prefetch-checkpoints"},
    {kAlready, "decoding always uses the absorbed form of attention", "enable-mla"},
    {kAlready, "ranks share a model by --tp-size and --ep-size alone",
     "dp-size=:1 pp-size=:1 dcp-size=:1 attn-cp-size=:1 moe-dp-size=:1 dwdp-size=:1 "
     "moe-a2a-backend=:none ep-num-redundant-experts=:0 init-expert-location=:trivial"},
    {kAlready, "one process on one machine runs all ranks", "nnodes=:1 node-rank=:0 nccl-port="},
    {kAlready,
     "GPUs exchange data by the program's own kernels, which check at start that the GPUs reach each other",
     "enforce-disable-flashinfer-allreduce-fusion enable-p2p-check "
     "disable-flashinfer-cutlass-moe-fp4-allgather"},
    {kAlready, "an exchange between GPUs waits for ten seconds at most", "dist-timeout="},
    {kAlready, "prefill and decode run in one process", "disaggregation-mode=:null"},
    {kAlready, "weights stay in the memory of the device", "cpu-offload-gb=:0"},
    {kAlready, "the KV cache is not instrumented", "kv-canary=:none kv-canary-real-data=:none"},

    // Nothing here corresponds to these flags.
    {kAlready, "the I/O threads of --tokenizer-worker-num do all work on text",
     "detokenizer-worker-num= batch-notify-size= enable-tokenizer-batch-encode "
     "disable-tokenizer-batch-decode "
     "enable-dynamic-batch-tokenizer dynamic-batch-tokenizer-batch-size= "
     "dynamic-batch-tokenizer-batch-timeout="},
    {kAlready, "an idle engine sleeps", "sleep-on-idle"},
    {kAlready, "a request of a higher priority never stops a running one", "disable-priority-preemption"},
    {kError, "the server speaks HTTP/1.1 alone; a proxy in front of it can translate",
     "fastapi-root-path= smg-grpc-mode grpc-mode grpc-port= sidecar= sidecar-args=* smg-http-sidecar-port= "
     "enable-http2 http2-max-concurrent-streams= enable-ssl-refresh"},
    {kError, "the server does not check certificates of clients; use --api-key", "ssl-ca-certs="},
    {kError, "the only warm-up generates one token; --skip-server-warmup turns it off", "warmups="},
    {kError, "each request says this itself, in chat_template_kwargs, sampling_params or stream_options",
     "default-chat-template-kwargs= preferred-sampling-params= stream-response-default-include-usage "
     "enable-strict-thinking default-priority-value="},
    {kError, "prefixes are reused without sessions; leave the flag out",
     "enable-streaming-session enable-session-radix-cache strip-thinking-cache"},
    {kError,
     "logs are text on stderr, which can be redirected; --log-requests and --log-level-http choose what they "
     "contain",
     "log-requests-format= log-requests-target=* uvicorn-access-log-exclude-prefixes=* crash-dump-folder="},
    {kError, "a step that takes too long is reported and ends the server; use --watchdog-timeout",
     "soft-watchdog-timeout= custom-sigquit-handler="},
    {kError, "the server has nothing that this flag could configure; leave the flag out",
     "weight-version= completion-template= file-storage-path= tool-server="},
    {kError,
     "a request of a higher priority never stops a running one; --schedule-policy priority orders the "
     "waiting ones",
     "abort-on-priority-when-disabled priority-scheduling-preemption-threshold="},
    {kError,
     "`hadal serve --enable-metrics` exports a fixed set of metrics, and /start_profile records steps; "
     "nothing else is measured",
     "show-time-cost enable-mfu-metrics enable-metrics-for-all-schedulers "
     "load-snapshot-publish-interval= tokenizer-metrics-custom-labels-header= "
     "tokenizer-metrics-allowed-custom-labels=* extra-metric-labels= bucket-time-to-first-token=* "
     "bucket-inter-token-latency=* bucket-e2e-request-latency=* prompt-tokens-buckets=* "
     "generation-tokens-buckets=* gc-warning-threshold-secs= gc-threshold=* "
     "enable-request-time-stats-logging kv-events-config= enable-forward-pass-metrics "
     "forward-pass-metrics-worker-id= forward-pass-metrics-ipc-name= enable-trace trace-modules= "
     "otlp-traces-endpoint= export-metrics-to-file export-metrics-to-file-dir= stat-loggers= "
     "prefill-delayer-forward-passes-buckets=* prefill-delayer-wait-seconds-buckets=*"},
    {kError,
     "expert distributions are not recorded; `hadal bench one-batch` prints how many distinct experts a step "
     "uses",
     "expert-distribution-recorder-mode= expert-distribution-recorder-buffer-size= "
     "expert-balancedness-report-mode="},
    {kError, "GPUs exchange data by the program's own kernels alone; leave the flag out",
     "enable-nccl-nvls enable-symm-mem enable-torch-symm-mem enable-fused-moe-sum-all-reduce enable-mscclpp "
     "pre-warm-nccl enable-quant-communications enable-flashinfer-allreduce-fusion "
     "flashinfer-allreduce-fusion-backend= enable-aiter-allreduce-fusion"},
    {kError,
     "ranks share a model by --tp-size and --ep-size alone, in one process on one machine; leave the flag "
     "out",
     "dist-init-addr= pp-max-micro-batch-size= pp-async-batch-depth= load-balance-method= dcp-comm-backend= "
     "dcp-replicate-q-proj enable-prefill-cp cp-strategy= enable-dsa-cache-layer-split "
     "enable-dsa-prefill-context-parallel dsa-prefill-cp-mode= enable-prefill-context-parallel "
     "prefill-cp-mode= enable-cp-decode-attn-tp enable-dp-attention "
     "enable-dp-attention-local-control-broadcast enable-dp-lm-head enable-tp-lm-head-all-to-all "
     "enable-attn-tp-input-scattered disable-attn-tp-gather use-ray numa-node=* deepep-mode= fuseep-mode= "
     "deepep-dispatcher-output-dtype= "
     "ep-dispatch-algorithm= enable-eplb eplb-algorithm= eplb-rebalance-num-iterations= "
     "eplb-rebalance-layers-per-chunk= eplb-min-rebalancing-utilization-threshold= deepep-config= "
     "moe-dense-tp-size= elastic-ep-backend= enable-elastic-expert-backup mooncake-ib-device= "
     "enable-waterfill elastic-ep-join-mode= elastic-ep-join-rank-offset= elastic-ep-initial-size= "
     "max-ep-size= elastic-ep-scale-timeout= elastic-ep-rejoin enable-two-batch-overlap "
     "enable-single-batch-overlap tbo-token-distribution-threshold= enable-ep-moe enable-deepep-moe"},
    {kError, "name a revision as in --speculative-draft-model-path org/name@revision",
     "speculative-draft-model-revision="},
    {kError,
     "the records of a NextN layer are in the pages of the model's KV cache, and have its format; use "
     "--kv-cache-dtype",
     "speculative-draft-kv-cache-dtype="},
    {kError, "a NextN layer attends as the model's layers do, and guesses any token of the vocabulary",
     "speculative-draft-window-size= speculative-token-map="},
    {kError,
     "speculation has one algorithm, NextN (--speculative-algorithm NEXTN), which has no such setting",
     "speculative-dflash-block-size= speculative-dspark-block-size= speculative-dspark-sps-table-path= "
     "speculative-dspark-confidence-sts-path= speculative-dspark-align-verify-tokens-to-graph-tier "
     "enable-multi-layer-eagle decoupled-spec-bind-endpoint= decoupled-spec-connect-endpoints=* "
     "decoupled-spec-rank= decoupled-spec-role= spec-trace-dir= speculative-ngram-min-bfs-breadth= "
     "speculative-ngram-max-bfs-breadth= speculative-ngram-match-type= speculative-ngram-max-trie-depth= "
     "speculative-ngram-capacity= speculative-ngram-external-corpus-path= "
     "speculative-ngram-external-sam-budget= speculative-ngram-external-corpus-max-tokens= "
     "speculative-skip-dp-mlp-sync"},
    {kAlready,
     "steps adapt to what drafts cost and how many are accepted, unless --speculative-fixed is given",
     "speculative-adaptive"},
    {kError,
     "steps adapt to what drafts cost and how many are accepted, which needs no settings; "
     "--speculative-num-steps limits them, and with --speculative-fixed they do not adapt",
     "speculative-adaptive-config="},
    {kError,
     "a draft is accepted if it is the token that would be sampled without speculation; another rule would "
     "change the output",
     "speculative-accept-threshold-single= speculative-accept-threshold-acc="},
    {kAlready, "the program itself chooses the kernels of drafts and of verification",
     "speculative-attention-mode=:prefill|decode speculative-draft-attention-backend= "
     "speculative-moe-runner-backend= speculative-moe-a2a-backend="},
    {kAlready, "outputs follow the target's distribution without a rejection step",
     "speculative-use-rejection-sampling"},
    {kError,
     "the scheduler has no such setting; it has --schedule-policy, --schedule-conservativeness, "
     "--chunked-prefill-size, --max-prefill-tokens and --max-running-requests",
     "retraction-policy= scheduler-recv-interval= prefill-decode-interval= prefill-max-requests= "
     "min-free-slots-delay= enable-prefill-delayer prefill-delayer-max-delay-passes= "
     "prefill-delayer-token-usage-low-watermark= prefill-delayer-queue-min-ratio= "
     "prefill-delayer-max-delay-ms= enable-dynamic-chunking"},
    {kError, "the KV cache is one pool of pages; --max-total-tokens sets its size",
     "swa-full-tokens-ratio= disable-hybrid-swa-memory c128-page-size= enable-unified-memory "
     "enable-page-major-kv-layout prefill-only-disable-kv-cache"},
    {kError,
     "cached prefixes are kept in the KV cache alone; --max-total-tokens sets its size, and "
     "--radix-eviction-policy chooses what is evicted first",
     "radix-cache-backend= enable-hierarchical-cache hicache-host-memory-mode= "
     "hicache-ratio= hicache-size= hicache-write-policy= hicache-io-backend= hicache-mem-layout= "
     "hicache-storage-backend= hicache-storage-prefetch-policy= hicache-storage-backend-extra-config= "
     "enable-hisparse hisparse-config= enable-lmcache lmcache-config-file= enable-flexkv "
     "flexkv-config-file="},
    {kError,
     "weights are read from mapped files, and the operating system decides what stays in memory; leave the "
     "flag out",
     "offload-group-size= offload-num-in-group= offload-prefetch-step= offload-mode= kt-weight-path= "
     "kt-method= kt-cpuinfer= kt-threadpool-count= kt-num-gpu-experts= kt-max-deferred-experts-per-token= "
     "weight-loader-disable-mmap weight-loader-prefetch-num-threads= weight-loader-drop-cache-after-load "
     "enable-memory-saver enable-weights-cpu-backup enable-draft-weights-cpu-backup"},
    {kError, "checkpoints are read from a directory of safetensors files; use --model-path",
     "model-loader-extra-config= startup-weight-load-mode= custom-weight-loader=* modelexpress-config= "
     "remote-instance-weight-loader-seed-instance-ip= "
     "remote-instance-weight-loader-seed-instance-service-port= "
     "remote-instance-weight-loader-send-weights-group-ports=* remote-instance-weight-loader-backend= "
     "remote-instance-weight-loader-start-seed-via-transfer-engine model-checksum= delete-ckpt-after-loading "
     "decrypted-config-file= decrypted-draft-config-file= checkpoint-engine-wait-weights-before-ready "
     "weight-cache-mode= weight-cache-socket= weight-cache-timeout= download-dir= revision="},
    {kError,
     "use --quantization to quantise a checkpoint while it is loaded, or the program quantize_checkpoint to "
     "write a quantised one",
     "modelopt-quant= modelopt-checkpoint-restore-path= modelopt-checkpoint-save-path= modelopt-export-path= "
     "quantize-and-serve rl-quant-profile="},
    {kError, "the scales of an fp8_e4m3 KV cache are computed for each token; see --kv-cache-scales",
     "quantization-param-path="},
    {kAlready, "grammars are never kept on disk", "disable-outlines-disk-cache"},
    {kError, "each request to `hadal serve` says this itself, in sampling_params",
     "json-schema= regex= ebnf= structural-tag="},
    {kError,
     "a flag names plain texts only, by --stop; a request to `hadal serve` may have stop_regex in its "
     "sampling_params",
     "stop-regex="},
    {kError, "use --chat-template", "hf-chat-template-name="},
    {kError,
     "hidden states and routing are not returned; `hadal logits` writes logits, and `hadal generate "
     "--logprobs` prints log probabilities",
     "enable-return-hidden-states return-hidden-states-mode= enable-return-routed-experts "
     "enable-return-indexer-topk is-embedding enable-mis"},
    {kError, "the numerics of each device are fixed; leave the flag out",
     "enable-tf32-matmul enforce-shared-experts-fusion rl-on-policy-target= enable-deepseek-v4-fp4-indexer "
     "kv-canary-sweep-interval= mlx-enable-sampling"},
    {kError, "requests cannot bring code with them; logit_bias and grammars can shape their output",
     "enable-custom-logit-processor"},
    {kError, "`hadal logits` writes the logits of every position; nothing else inside the model is dumped",
     "debug-tensor-dump-output-folder= debug-tensor-dump-layers=* debug-tensor-dump-input-file= "
     "forward-hooks=* msprobe-dump-config="},
    {kError, "`hadal bench one-batch --profile` times every operation, and all steps have NVTX ranges",
     "enable-profile-cuda-graph debug-cuda-graph enable-layerwise-nvtx-marker"},
    {kError, "prefill and decode run in one process; leave the flag out",
     "disaggregation-transfer-backend= disaggregation-bootstrap-port= disaggregation-ib-device= "
     "disaggregation-decode-enable-radix-cache disaggregation-decode-enable-offload-kvcache "
     "disaggregation-decode-retraction-backup= num-reserved-decode-tokens= "
     "disaggregation-decode-extra-slots= disaggregation-decode-polling-interval= "
     "optimistic-prefill-attempts= enable-pdmux pdmux-config-path= sm-group-num= "
     "engine-info-bootstrap-port="},
    {kError, "adapters are not supported; merge them into the checkpoint first",
     "enable-lora enable-lora-overlap-loading max-lora-rank= lora-target-modules=* lora-paths=* "
     "max-loaded-loras= max-loras-per-batch= lora-eviction-policy= lora-backend= max-lora-chunk-size= "
     "experts-shared-outer-loras lora-use-virtual-experts lora-strict-loading lora-drain-wait-threshold="},
    {kError, "DeepSeek's language models accept text alone",
     "enable-multimodal asr-max-buffer-seconds= asr-max-concurrent-sessions= mm-attention-backend= "
     "enable-precise-embedding-interpolation enable-broadcast-mm-inputs-process enable-prefix-mm-cache "
     "mm-enable-dp-encoder mm-process-config= mm-processor-worker-num= mm-io-worker-num= "
     "allowed-media-domains=* media-url-max-file-size-mb= mm-preprocess-cache-size-mb= "
     "trust-mm-content-hashes limit-mm-data-per-request= enable-mm-global-cache image-processor-backend= "
     "mm-global-cache-backend= disable-fast-image-processor mm-feature-transport= keep-mm-feature-on-device "
     "encoder-only language-only language-model-only encoder-transfer-backend= encoder-urls=* "
     "encoder-bootstrap-port= encoder-register-urls=* enable-adaptive-dispatch-to-encoder"},
    {kError, "DeepSeek models have no state-space, linear-attention or diffusion layers; leave the flag out",
     "mamba-backend= enable-scattered-sconv max-mamba-cache-size= mamba-ssm-dtype= "
     "mamba-max-states-per-path= "
     "enable-mamba-cache-stochastic-rounding mamba-cache-philox-rounds= mamba-full-memory-ratio= "
     "mamba-radix-cache-strategy= uses-mamba-radix-cache mamba-track-interval= enable-int8-mamba-checkpoint "
     "int8-mamba-ckpt-size= linear-attn-backend= linear-attn-decode-backend= linear-attn-prefill-backend= "
     "linear-attn-verify-backend= enable-linear-replayssm linear-replayssm-cache-len= "
     "enable-linear-replayssm-spec dllm-algorithm= dllm-algorithm-config= dllm-fdfo"},
    {kError, "decoding always uses the absorbed form of attention; leave the flag out", "disable-mla"},
};

Flag make_row(const Entry& entry, std::string_view spelled) {
  Flag row;
  row.flag_class = entry.flag_class;
  row.text = entry.text;
  const size_t equals = spelled.find('=');
  row.name = spelled.substr(0, equals);
  if (equals == std::string_view::npos) return row;
  const std::string_view rest = spelled.substr(equals + 1);
  row.kind = rest == "*" ? ValueKind::kList : ValueKind::kText;
  if (rest.starts_with(':')) row.choices = rest.substr(1);
  return row;
}

}  // namespace

void append_sglang_rows(std::vector<Flag>& rows) {
  for (const Entry& entry : kEntries) {
    std::string_view names = entry.names;
    while (!names.empty()) {
      const size_t space = names.find(' ');
      rows.push_back(make_row(entry, names.substr(0, space)));
      names = space == std::string_view::npos ? std::string_view() : names.substr(space + 1);
    }
  }
}

}  // namespace hadal::cli

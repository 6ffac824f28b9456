#include "cli/flags/foreign_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/flags/flag_values.h"

namespace hadal::cli {
namespace {

constexpr std::string_view kLlama = "llama.cpp";
constexpr std::string_view kVllm = "vLLM";
constexpr std::string_view kOllama = "Ollama";

constexpr std::string_view kPerRequest = "each request to the server has a field for it";
constexpr std::string_view kOneDevice = "all layers run on the device that --device names";
constexpr std::string_view kAlways = "this is always done; leave the flag out";
constexpr std::string_view kNoTokens = "only the commands that generate text have it";

constexpr const char* kDraftsComeFromNextn =
    "drafts come from a NextN layer; use --speculative-algorithm NEXTN, --speculative-num-steps for the "
    "length of drafts, and --speculative-draft-model-path where the layer is not in the model's directory";

constexpr ForeignFlag kForeignFlags[] = {
    // The model and how it runs.
    {kLlama, "-m", "model-path", ""},
    {kLlama, "-hf -hfr --hf-repo", "model-path", ""},
    {kLlama, "-a --alias", "served-model-name", "only `hadal serve` has it"},
    {kLlama, "-c --ctx-size", "context-length", ""},
    {kLlama, "-ngl --gpu-layers --n-gpu-layers", "", kOneDevice},
    {kLlama, "-cmoe --cpu-moe -ncmoe --n-cpu-moe -ot --override-tensor", "", kOneDevice},
    {kLlama, "-sm --split-mode -ts --tensor-split", "tp-size", kOneDevice},
    {kLlama, "-mg --main-gpu", "base-gpu-id", kOneDevice},
    {kLlama, "-dev", "device", ""},
    {kLlama, "-t -tb --threads-batch", "threads", ""},
    {kLlama, "-b -ub --ubatch-size", "chunked-prefill-size", "this command cuts no prompts"},
    {kLlama, "-ctk --cache-type-k -ctv --cache-type-v", "kv-cache-dtype", ""},
    {kLlama, "-nkvo --no-kv-offload", "", "the KV cache is on the device that --device names"},
    {kLlama, "-fa --flash-attn -nocb -cb --cont-batching", "", kAlways},
    {kLlama, "--mlock --no-mmap --no-warmup --numa -lv --prio --poll --cpu-mask --check-tensors", "",
     "nothing here corresponds to it; leave the flag out"},
    {kLlama, "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --override-kv",
     "json-model-override-args", ""},
    {kLlama, "-md --model-draft --draft --draft-max --draft-min -ngld", "", kDraftsComeFromNextn},
    {kLlama, "--lora --lora-scaled", "", "adapters are not supported; merge them into the checkpoint first"},
    {kLlama, "--mmproj -mm", "", "DeepSeek's language models accept text alone"},
    // The server.
    {kLlama, "-np --parallel", "max-running-requests", "this command has no such limit"},
    {kLlama, "--threads-http", "tokenizer-worker-num", "only `hadal serve` has it"},
    {kLlama, "--ssl-key-file", "ssl-keyfile", "only `hadal serve` has it"},
    {kLlama, "--ssl-cert-file", "ssl-certfile", "only `hadal serve` has it"},
    {kLlama, "--metrics", "enable-metrics", "only `hadal serve` has it"},
    {kLlama, "--jinja --no-jinja --chat-template-file", "",
     "chat formats are built in, and the model's is used; leave the flag out"},
    {kLlama, "--reasoning-format", "reasoning-parser", "only `hadal serve` has it"},
    {kLlama, "--reasoning-budget", "", "nothing here limits how long a model thinks; leave the flag out"},
    {kLlama, "--slots --no-slots --props --no-webui --path --slot-save-path --sps --slot-prompt-similarity",
     "", "nothing here corresponds to it; leave the flag out"},
    {kLlama, "--embedding --embeddings --reranking --rerank --pooling", "",
     "DeepSeek's language models generate text alone"},
    {kLlama, "--log-disable --log-file --log-colors --verbose -v --verbosity", "log-level", ""},
    // Requests.
    {kLlama, "--temp", "temperature", kPerRequest},
    {kLlama, "-n --n-predict --predict", "max-new-tokens", kPerRequest},
    {kLlama, "-s", "seed", kPerRequest},
    {kLlama, "--repeat-penalty", "repetition-penalty", kPerRequest},
    {kLlama, "-p", "prompt", kNoTokens},
    {kLlama, "-f --file", "",
     "`hadal generate` reads the prompt from standard input where --prompt is absent"},
    {kLlama, "-sys --system-prompt", "system", kPerRequest},
    {kLlama, "-cnv --conversation -i --interactive -if --interactive-first -no-cnv", "",
     "`hadal chat` holds a conversation"},
    {kLlama, "--grammar --grammar-file -j", "",
     "a request to `hadal serve` says this itself, in sampling_params"},
    {kLlama, "-l", "logit-bias", kPerRequest},
    {kLlama,
     "--mirostat --mirostat-lr --mirostat-ent --typical --dynatemp-range --dynatemp-exp --dry-multiplier "
     "--xtc-probability --xtc-threshold --samplers --sampling-seq --repeat-last-n",
     "", "this way of sampling does not exist here; leave the flag out"},

    {kVllm, "--max-model-len", "context-length", ""},
    {kVllm, "--gpu-memory-utilization", "mem-fraction-static", "this command reserves no memory"},
    {kVllm, "--max-num-seqs", "max-running-requests", "this command has no such limit"},
    {kVllm, "--max-num-batched-tokens", "chunked-prefill-size", "this command cuts no prompts"},
    {kVllm, "--num-gpu-blocks-override --kv-cache-memory-bytes", "max-total-tokens",
     "this command has no KV cache"},
    {kVllm, "--block-size", "", "a page of the KV cache always holds 64 tokens; leave the flag out"},
    {kVllm, "--enforce-eager", "disable-cuda-graph", "this command captures no graphs"},
    {kVllm, "--max-seq-len-to-capture --cudagraph-capture-sizes", "cuda-graph-max-bs-decode",
     "this command captures no graphs"},
    {kVllm, "--swap-space", "",
     "a request that is evicted from the KV cache is computed again later; leave the flag out"},
    {kVllm, "--enable-prefix-caching --enable-chunked-prefill --enable-auto-tool-choice --enable-reasoning",
     "", kAlways},
    {kVllm, "--no-enable-prefix-caching", "disable-radix-cache", "this command has no such cache"},
    {kVllm, "--no-enable-chunked-prefill", "", "`--chunked-prefill-size -1` does not cut prompts"},
    {kVllm, "--enable-expert-parallel", "ep-size", ""},
    {kVllm, "--distributed-executor-backend --data-parallel-backend --data-parallel-size-local", "",
     "one process runs all GPUs; leave the flag out"},
    {kVllm, "--api-server-count", "tokenizer-worker-num", "only `hadal serve` has it"},
    {kVllm, "--uvicorn-log-level", "log-level-http", "only `hadal serve` has it"},
    {kVllm, "--enable-log-requests", "log-requests", "only `hadal serve` has it"},
    {kVllm, "--disable-log-requests --no-enable-log-requests --disable-log-stats", "",
     "requests are logged with --log-requests alone; leave the flag out"},
    {kVllm, "--hf-overrides --rope-theta", "json-model-override-args", ""},
    {kVllm, "--generation-config", "sampling-defaults", ""},
    {kVllm, "--override-generation-config", "", kPerRequest},
    {kVllm, "--guided-decoding-backend --structured-outputs-config", "grammar-backend",
     "only `hadal serve` has it"},
    {kVllm, "--speculative-config --num-speculative-tokens --speculative-model", "", kDraftsComeFromNextn},
    {kVllm, "--compilation-config -O --optimization-level", "",
     "all kernels are compiled ahead of time; leave the flag out"},
    {kVllm, "--task --runner --convert", "", "DeepSeek's language models generate text alone"},
    {kVllm, "--lora-modules --fully-sharded-loras", "",
     "adapters are not supported; merge them into the checkpoint first"},
    {kVllm, "--chat-template-content-format", "", kAlways},

    {kOllama, "--num-ctx", "context-length", ""},
    {kOllama, "--num-predict", "max-new-tokens", kPerRequest},
    {kOllama, "--num-gpu", "", kOneDevice},
    {kOllama, "--num-thread", "threads", ""},
    {kOllama, "--num-batch", "chunked-prefill-size", "this command cuts no prompts"},
    {kOllama, "--keepalive --keep-alive", "", "the model stays loaded until the command ends"},
    {kOllama, "--hidethinking --nowordwrap", "", "nothing here corresponds to it; leave the flag out"},
    {kOllama, "--format", "", "each request to the server says it, as response_format"},
};

struct ForeignCommand {
  std::string_view name;     // with '-' between words
  std::string_view command;  // the command here
};
constexpr ForeignCommand kForeignCommands[] = {
    {"llama-server", "serve"},
    {"server", "serve"},
    {"api-server", "serve"},
    {"start", "serve"},
    {"llama-cli", "chat"},
    {"llama-run", "chat"},
    {"run", "chat"},
    {"llama-simple", "generate"},
    {"complete", "generate"},
    {"completion", "generate"},
    {"llama-bench", "bench one-batch"},
    {"bench latency", "bench one-batch"},
    {"bench throughput", "bench offline"},
    {"bench serve", "bench serving"},
    {"bench-one-batch-server", "bench serving"},
    {"llama-perplexity", "eval"},
    {"run-eval", "eval gpqa"},
    {"test.run-eval", "eval gpqa"},
    {"bench-sglang", "eval gsm8k"},
    {"llama-tokenize", "tokenize"},
    {"show", "info"},
    {"check-env", "info"},
    {"llama-gguf", "info"},
    {"pull", "fetch"},
    {"download", "fetch"},
};

// Nothing here corresponds to these commands; the reason is beside each name.
constexpr ForeignCommand kNeedlessCommands[] = {
    {"compile-deep-gemm", "all kernels are compiled ahead of time, so that nothing is left to compile"},
    {"launch-router",
     "one process runs all GPUs of a machine; an HTTP proxy can stand before several servers"},
};

bool is_command_name(std::string_view name) {
  return std::any_of(commands().begin(), commands().end(),
                     [&](const CommandInfo& info) { return info.name == name; });
}

std::string normalised(std::string_view spelled) {
  std::string name(spelled);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

}  // namespace

std::span<const ForeignFlag> foreign_flags() {
  return kForeignFlags;
}

bool honours(Command command, std::string_view flag_name) {
  const Flag* flag = find_flag(flag_name, command);
  return flag != nullptr && flag->flag_class == FlagClass::kHonoured &&
         (flag->commands & static_cast<CommandSet>(command)) != 0;
}

std::string commands_with(std::string_view flag_name) {
  std::string out;
  for (const CommandInfo& info : commands()) {
    if (!honours(info.command, flag_name)) continue;
    if (!out.empty()) out += ", ";
    out += info.name;
  }
  return out;
}

std::optional<std::string> foreign_flag_advice(Command command, std::string_view spelled) {
  const std::string name = normalised(spelled);
  const ForeignFlag* found = nullptr;
  for (const ForeignFlag& foreign : kForeignFlags) {
    const auto names = split(foreign.names, " ");
    if (std::find(names.begin(), names.end(), name) != names.end()) found = &foreign;
    if (found != nullptr) break;
  }
  if (found == nullptr) return std::nullopt;
  if (!found->flag.empty() && honours(command, found->flag))
    return fmt::format("is {}'s name; use --{} here", found->engine, found->flag);
  if (!found->text.empty()) return fmt::format("is {}'s; {}", found->engine, found->text);
  return fmt::format("is {}'s name for --{}, which belongs to {}", found->engine, found->flag,
                     commands_with(found->flag));
}

std::string_view command_for_foreign(std::string_view name) {
  for (const auto& [foreign, own] : kForeignCommands) {
    if (foreign == name && is_command_name(own)) return own;
  }
  return {};
}

std::string_view why_needless(std::string_view name) {
  for (const auto& [foreign, reason] : kNeedlessCommands) {
    if (foreign == name) return reason;
  }
  return {};
}

}  // namespace hadal::cli

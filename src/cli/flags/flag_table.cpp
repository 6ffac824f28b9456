#include "cli/flags/flag_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace hadal::cli {
namespace {

constexpr CommandInfo kCommands[] = {
    {Command::kServe, "serve", "run an HTTP server with the APIs of OpenAI, Anthropic, Ollama and SGLang",
     "hadal serve --model-path models/hadal-tiny --port 30000"},
    {Command::kGenerate, "generate", "print the continuation of a prompt while it is generated",
     "hadal generate --model-path models/hadal-tiny --prompt \"Once upon a time\""},
    {Command::kChat, "chat", "talk to the model in the terminal",
     "hadal chat --model-path models/hadal-tiny"},
    {Command::kLogits, "logits", "write the float32 logits of every position to a safetensors file",
     "hadal logits --model-path models/hadal-tiny --input-ids 0,17,42 --output logits.safetensors"},
    {Command::kTokenize, "tokenize", "turn text into token ids, as a JSON list",
     "echo -n \"Hello\" | hadal tokenize --model-path models/hadal-tiny"},
    {Command::kDetokenize, "detokenize", "turn token ids into text",
     "hadal detokenize --model-path models/hadal-tiny --input-ids 17,42"},
    {Command::kFetch, "fetch", "fetch a model from the Hugging Face hub into the local cache",
     "hadal fetch deepseek-ai/DeepSeek-V2-Lite-Chat"},
    {Command::kInfo, "info",
     "show what a model needs and whether it fits: parameters, bytes, KV cache capacity",
     "hadal info --model-path models/hadal-tiny --json"},
    {Command::kBenchOneBatch, "bench one-batch", "measure latency and throughput of one static batch",
     "hadal bench one-batch --model-path models/hadal-tiny --batch-size 1 4 --input-len 512 --output-len 32"},
    {Command::kBenchServing, "bench serving",
     "measure latency and throughput of a server under load, over HTTP",
     "hadal bench serving --port 30000 --dataset-name random --num-prompts 100 --max-concurrency 16"},
    {Command::kBenchOffline, "bench offline",
     "measure the engine's throughput under a mix of requests, without HTTP",
     "hadal bench offline --model-path models/hadal-tiny --dataset-name random --num-prompts 64"},
    {Command::kEval, "eval", "score a model by files of questions with exact answers",
     "hadal eval --model-path models/hadal-tiny --data models/hadal-tiny/eval/addition.jsonl"},
    {Command::kEvalGsm8k, "eval gsm8k", "score a model by few-shot arithmetic with numeric answers",
     "hadal eval gsm8k --base-url http://127.0.0.1:30000 --data test.jsonl --num-questions 200"},
    {Command::kEvalGpqa, "eval gpqa",
     "score a model by multiple-choice questions, whose options are shuffled",
     "hadal eval gpqa --base-url http://127.0.0.1:30000 --data diamond.jsonl --repeat 4"},
    {Command::kTuneGemm, "tune fp8-gemm",
     "GPU: measure which kernel is fastest for the shapes of linear layers",
     "hadal tune fp8-gemm --model-path models/hadal-tiny --output-dir kernel-configs"},
    {Command::kTuneMoe, "tune moe", "GPU: measure which kernel is fastest for the shapes of experts",
     "hadal tune moe --model-path models/hadal-tiny --output-dir kernel-configs"},
};

// Aliases are older spellings and second names.
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"model", "model-path"},
    {"tokenizer", "tokenizer-path"},
    {"tensor-parallel-size", "tp-size"},
    {"data-parallel-size", "dp-size"},
    {"pipeline-parallel-size", "pp-size"},
    {"expert-parallel-size", "ep-size"},
    {"ep", "ep-size"},
    {"decode-context-parallel-size", "dcp-size"},
    {"attention-context-parallel-size", "attn-cp-size"},
    {"moe-data-parallel-size", "moe-dp-size"},
    {"nccl-init-addr", "dist-init-addr"},
    {"grpc-http-sidecar-port", "smg-http-sidecar-port"},
    {"hierarchical-sparse-attention-extra-config", "hisparse-config"},
    {"speculative-draft-model", "speculative-draft-model-path"},
    {"speculative-draft", "speculative-draft-model-path"},
    {"speculative-algo", "speculative-algorithm"},
    {"max-torch-compile-bs", "torch-compile-max-bs"},
    {"cuda-graph-max-bs", "cuda-graph-max-bs-decode"},
    {"cuda-graph-bs", "cuda-graph-bs-decode"},
    {"nsa-prefill-backend", "dsa-prefill-backend"},
    {"nsa-decode-backend", "dsa-decode-backend"},
    {"nsa-prefill", "dsa-prefill-backend"},
    {"nsa-decode", "dsa-decode-backend"},
    {"nsa-topk-backend", "dsa-topk-backend"},
    {"nsa-seq-len-threshold", "dsa-seq-len-threshold"},
    {"nsa-prefill-cp-mode", "dsa-prefill-cp-mode"},
    {"enable-nsa-prefill-context-parallel", "enable-dsa-prefill-context-parallel"},
    {"fp8-gemm-runner-backend", "fp8-gemm-backend"},
    {"fp4-gemm-runner-backend", "fp4-gemm-backend"},
    {"ep-join-mode", "elastic-ep-join-mode"},
    {"ep-join-rank-offset", "elastic-ep-join-rank-offset"},
    {"stream-output", "incremental-streaming-output"},
    {"sampling-seed", "seed"},
    {"max-tokens", "max-new-tokens"},
    {"batch", "batch-size"},
    {"data-path", "data"},
    {"num-prompt", "num-prompts"},
    {"gen-num-groups", "gsp-num-groups"},
    {"gen-prompts-per-group", "gsp-prompts-per-group"},
    {"gen-system-prompt-len", "gsp-system-prompt-len"},
    {"gen-question-len", "gsp-question-len"},
    {"gen-output-len", "gsp-output-len"},
};

std::vector<Flag> build_table() {
  std::vector<Flag> rows;
  append_engine_rows(rows);
  append_request_rows(rows);
  append_speculation_rows(rows);
  append_server_rows(rows);
  append_bench_rows(rows);
  append_tune_rows(rows);
  append_sglang_rows(rows);
  for (const auto& [name, target] : kAliases) {
    rows.push_back({.name = std::string(name), .flag_class = FlagClass::kAlias, .text = std::string(target)});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Flag& a, const Flag& b) {
    if (a.name != b.name) return a.name < b.name;
    return a.flag_class == FlagClass::kHonoured && b.flag_class != FlagClass::kHonoured;
  });
  for (size_t i = 1; i < rows.size(); ++i) {
    for (size_t j = i; j > 0 && rows[j - 1].name == rows[i].name; --j) {
      const bool both_honoured =
          rows[i].flag_class == FlagClass::kHonoured;  // the earlier row is, because honoured rows come first
      HADAL_CHECK(both_honoured ? (rows[i].commands & rows[j - 1].commands) == 0
                                : rows[j - 1].flag_class == FlagClass::kHonoured,
                  "two rows for --{} in one command", rows[i].name);
    }
  }
  // An alias has the same kind of value as the flag that it stands for.
  for (Flag& row : rows) {
    if (row.flag_class != FlagClass::kAlias) continue;
    const auto target =
        std::find_if(rows.begin(), rows.end(), [&](const Flag& f) { return f.name == row.text; });
    HADAL_CHECK(target != rows.end() && target->flag_class != FlagClass::kAlias, "--{} stands for --{}",
                row.name, row.text);
    row.kind = target->kind;
  }
  return rows;
}

}  // namespace

std::span<const CommandInfo> commands() {
  return kCommands;
}

bool is_command(std::string_view name) {
  return std::any_of(std::begin(kCommands), std::end(kCommands),
                     [&](const CommandInfo& info) { return info.name == name; });
}

const CommandInfo& info_of(Command command) {
  for (const CommandInfo& info : kCommands) {
    if (info.command == command) return info;
  }
  HADAL_CHECK(false, "no such command: {}", static_cast<int>(command));
  return kCommands[0];
}

const std::vector<Flag>& flag_table() {
  static const std::vector<Flag> table = build_table();
  return table;
}

const Flag* find_flag(std::string_view name, Command command) {
  const std::vector<Flag>& table = flag_table();
  const auto first =
      std::lower_bound(table.begin(), table.end(), name,
                       [](const Flag& flag, std::string_view wanted) { return flag.name < wanted; });
  if (first == table.end() || first->name != name) return nullptr;
  if (command == Command::kNone) return &*first;
  for (auto at = first; at != table.end() && at->name == name; ++at) {
    if (at->flag_class != FlagClass::kHonoured || (at->commands & static_cast<CommandSet>(command)) != 0) {
      return &*at;
    }
  }
  return &*first;
}

}  // namespace hadal::cli

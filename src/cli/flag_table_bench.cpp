// Flags of the load generators and of the scores over few-shot and multiple-choice questions. The names are
// those of SGLang's scripts; rows of one name for other commands stand in the other tables.
#include <iterator>
#include <vector>

#include "cli/flag_sets.h"

namespace hadal::cli {

using namespace flag_sets;

namespace {

constexpr CommandSet kLoads = kServing | kOffline;
constexpr CommandSet kQuestions = kGsm8k | kGpqa;

Flag count(std::string_view name, CommandSet commands, std::string_view group, double min,
           std::string_view default_text, std::string_view text) {
  return {.name = std::string(name),
          .kind = kInteger,
          .commands = commands,
          .group = group,
          .value_name = "N",
          .min = min,
          .max = kMaxCount,
          .default_text = std::string(default_text),
          .text = std::string(text)};
}

Flag text_flag(std::string_view name, CommandSet commands, std::string_view group,
               std::string_view value_name, std::string_view default_text, std::string_view text) {
  return {.name = std::string(name),
          .kind = kOne,
          .commands = commands,
          .group = group,
          .value_name = value_name,
          .default_text = std::string(default_text),
          .text = std::string(text)};
}

Flag toggle(std::string_view name, CommandSet commands, std::string_view group, std::string_view text) {
  return {.name = std::string(name), .commands = commands, .group = group, .text = std::string(text)};
}

Flag refused(std::string_view name, ValueKind kind, std::string_view text) {
  return {
      .name = std::string(name), .flag_class = FlagClass::kError, .kind = kind, .text = std::string(text)};
}

void append_server_side(std::vector<Flag>& rows) {
  rows.push_back({.name = "backend",
                  .kind = kOne,
                  .commands = kServing,
                  .group = "Server",
                  .choices = "sglang|sglang-native|sglang-oai|sglang-oai-chat|vllm|vllm-chat|lmdeploy|"
                             "lmdeploy-chat|openai|openai-chat",
                  .default_text = "sglang",
                  .text = "sglang and sglang-native: /generate; …-chat: /v1/chat/completions; others: "
                          "/v1/completions"});
  rows.push_back({.name = "backend",
                  .kind = kOne,
                  .commands = kOffline,
                  .group = "Load",
                  .choices = "engine",
                  .default_text = "engine",
                  .text = "the engine in this process"});
  rows.push_back(
      text_flag("base-url", kServing | kEvals, "Server", "URL", "",
                "http://HOST:PORT or https://…, with or without /v1; eval: ask that server instead "
                "of loading a model"));
  rows.push_back(
      text_flag("host", kServing, "Server", "HOST", "127.0.0.1", "server to load, without --base-url"));
  rows.push_back({.name = "port",
                  .kind = kInteger,
                  .commands = kServing,
                  .group = "Server",
                  .value_name = "N",
                  .min = 1,
                  .max = 65535,
                  .default_text = "30000; vllm: 8000; lmdeploy: 23333",
                  .text = "its port"});
  rows.push_back(text_flag("api-key", kServing | kEvals, "Server", "KEY", "", "sent as a bearer token"));
  rows.push_back(
      text_flag("model-path", kServing, "Server", "NAME", "the server's first", "model named in requests"));
  rows.push_back(text_flag("tokenizer-path", kServing, "Server", "DIR", "what /model_info names",
                           "where tokenizer.json is: makes prompts of a given length, counts answers again"));
  rows.push_back(toggle("insecure", kServing | kEvals, "Server", "https: do not check the certificate"));
  rows.push_back({.name = "timeout",
                  .kind = kNumber,
                  .commands = kServing | kEvals,
                  .group = "Server",
                  .value_name = "S",
                  .min = 0,
                  .min_open = true,
                  .default_text = "21600",
                  .text = "seconds a request may take"});
}

void append_load(std::vector<Flag>& rows) {
  rows.push_back(
      {.name = "dataset-name",
       .kind = kOne,
       .commands = kLoads,
       .group = "Load",
       .choices = "sharegpt|random|random-ids|generated-shared-prefix",
       .default_text = "sharegpt with --dataset-path, else random",
       .text = "random: text of a given number of tokens; random-ids: token ids, no tokenizer needed"});
  rows.push_back(text_flag("dataset-path", kLoads, "Load", "FILE", "",
                           "sharegpt: conversations, a JSON list or one JSON object a line; random: text to "
                           "cut prompts from, instead of synthetic text"));
  rows.push_back(count("num-prompts", kLoads, "Load", 1, "1000", "requests"));
  rows.push_back(
      count("random-input-len", kLoads, "Load", 1, "1024", "prompt tokens of random and random-ids"));
  rows.push_back(count("random-output-len", kLoads, "Load", 1, "1024", "their answer tokens"));
  rows.push_back({.name = "random-range-ratio",
                  .kind = kNumber,
                  .commands = kLoads,
                  .group = "Load",
                  .value_name = "X",
                  .min = 0,
                  .max = 1,
                  .default_text = "0",
                  .text = "lengths are drawn evenly from [length · X, length]"});
  rows.push_back(
      count("sharegpt-output-len", kLoads, "Load", 4, "the file's", "answer tokens of sharegpt requests"));
  rows.push_back(count("sharegpt-context-len", kLoads, "Load", 1, "none",
                       "drops conversations longer than this many tokens"));
  rows.push_back(text_flag("prompt-suffix", kLoads, "Load", "TEXT", "", "sharegpt: appended to each prompt"));
  rows.push_back(
      toggle("apply-chat-template", kLoads, "Load", "wrap sharegpt prompts in the tokenizer's chat format"));
  rows.push_back(count("gsp-num-groups", kLoads, "Load", 1, "64", "generated-shared-prefix: system prompts"));
  rows.push_back(count("gsp-prompts-per-group", kLoads, "Load", 1, "16", "questions to each of them"));
  rows.push_back(count("gsp-system-prompt-len", kLoads, "Load", 1, "2048", "tokens of a system prompt"));
  rows.push_back(count("gsp-question-len", kLoads, "Load", 1, "128", "tokens of a question"));
  rows.push_back(count("gsp-output-len", kLoads, "Load", 1, "256", "tokens of an answer"));
  rows.push_back(text_flag("request-rate", kServing, "Load", "X", "inf",
                           "requests a second, at random times (Poisson); inf: all at once"));
  rows.push_back({.name = "max-concurrency",
                  .kind = kList,
                  .commands = kServing,
                  .group = "Load",
                  .value_name = "N",
                  .min = 1,
                  .max = 65536,
                  .default_text = "no limit",
                  .text = "requests under way at once; a list measures one after the other"});
  rows.push_back(count("warmup-requests", kServing, "Load", 0, "1", "requests before the measurement"));
  rows.push_back(toggle("skip-warmup", kOffline, "Load", "measure from the first request on"));
  rows.push_back(toggle("flush-cache", kServing, "Load", "empty the server's prefix cache before measuring"));
  rows.push_back(toggle("tokenize-prompt", kServing, "Load", "send token ids instead of text"));
  rows.push_back(toggle("disable-stream", kServing, "Load", "ask for whole answers"));
  rows.push_back(toggle("disable-ignore-eos", kLoads, "Load", "let the model's end token end an answer"));
  rows.push_back(toggle("return-logprob", kServing, "Load", "ask for log probabilities"));
  rows.push_back(text_flag("extra-request-body", kLoads, "Load", "JSON", "{}",
                           "fields added to each request (sampling parameters of /generate)"));
  rows.push_back({.name = "seed",
                  .kind = kInteger,
                  .commands = kLoads | kQuestions,
                  .group = "Load",
                  .value_name = "N",
                  .min = 0,
                  .max = kMaxInt64,
                  .default_text = "1; gsm8k and gpqa: 0",
                  .text = "of lengths, prompts, arrival times and shuffles"});
  rows.push_back(toggle("profile", kServing, "Load", "calls /start_profile and /stop_profile around it"));
  for (const char* name : {"lora-name"}) {
    rows.push_back(refused(name, kList, "adapters are not supported; merge them into the checkpoint first"));
  }
  rows.push_back(
      refused("pd-separated", kSwitch, "prefill and decode run in one process; leave the flag out"));
  for (const char* name : {"image-count", "image-resolution", "image-format", "image-content"}) {
    rows.push_back(refused(name, kOne, "the DeepSeek language models take text only"));
  }
  rows.push_back(refused("do-not-exit", kSwitch, "the command ends when it has measured"));
}

void append_results(std::vector<Flag>& rows) {
  rows.push_back(text_flag("output-file", kServing, "Output", "FILE", "",
                           "results are appended there, one JSON object a line"));
  rows.push_back(toggle("output-details", kServing, "Output",
                        "with every request's lengths, latencies, text and error"));
  rows.push_back(text_flag("tag", kServing, "Output", "TEXT", "", "goes into the result"));
  rows.push_back(text_flag("plot", kServing, "Output", "FILE", "",
                           "draws throughput against latency over the concurrencies, .svg or .png"));
  rows.push_back(toggle("disable-tqdm", kServing, "Output", "no progress bar"));
  rows.push_back(text_flag("result-filename", kOffline, "Output", "FILE", "",
                           "the result is appended there, one JSON object a line"));
}

void append_questions(std::vector<Flag>& rows) {
  rows.push_back({.name = "data",
                  .kind = kList,
                  .commands = kGsm8k,
                  .group = "Input",
                  .value_name = "FILE",
                  .text = "one JSON object a line: question, answer (\"… #### 42\") (required)"});
  rows.push_back({.name = "data",
                  .kind = kList,
                  .commands = kGpqa,
                  .group = "Input",
                  .value_name = "FILE",
                  .text = "one JSON object a line: question, correct_answer, incorrect_answers (required)"});
  rows.push_back(count("num-shots", kGsm8k, "Input", 0, "5", "solved examples in front, the file's first"));
  rows.push_back(count("num-questions", kGsm8k, "Input", 1, "200", "questions after those"));
  rows.push_back(count("num-examples", kGpqa, "Input", 1, "all", "questions, drawn by --seed"));
  rows.push_back({.name = "parallel",
                  .kind = kInteger,
                  .commands = kEvals,
                  .group = "Server",
                  .value_name = "N",
                  .min = 1,
                  .max = 65536,
                  .default_text = "64",
                  .text = "requests under way at once, with --base-url"});
  rows.push_back(count("repeat", kQuestions, "Input", 1, "1", "times all of it is asked"));
  rows.push_back({.name = "thinking-mode",
                  .kind = kOne,
                  .commands = kGpqa,
                  .group = "Input",
                  .choices = "deepseek-r1|deepseek-v3",
                  .text = "let the model think first, where its chat format has a switch"});
  rows.push_back(count("max-new-tokens", kQuestions, "Sampling", 1, "512; gpqa: 2048", "of an answer"));
  rows.push_back({.name = "temperature",
                  .kind = kNumber,
                  .commands = kQuestions,
                  .group = "Sampling",
                  .value_name = "X",
                  .min = 0,
                  .default_text = "0",
                  .text = "0 is greedy"});
  rows.push_back({.name = "top-p",
                  .kind = kNumber,
                  .commands = kQuestions,
                  .group = "Sampling",
                  .value_name = "X",
                  .min = 0,
                  .max = 1,
                  .min_open = true,
                  .default_text = "1",
                  .text = "nucleus, (0, 1]"});
  rows.push_back(text_flag("answers", kQuestions, "Output", "FILE", "",
                           "writes every answer there, one JSON object a line"));
}

}  // namespace

void append_bench_rows(std::vector<Flag>& out) {
  append_server_side(out);
  append_load(out);
  append_results(out);
  append_questions(out);
}

}  // namespace hadal::cli

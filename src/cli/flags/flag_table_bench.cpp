// Holds the flags of the load generators, and of the scores of few-shot and multiple-choice questions. The
// names are those of SGLang's scripts; other files have the rows of the same names for other commands.
#include <iterator>
#include <vector>

#include "cli/flags/flag_sets.h"
#include "engine/sampling_params.h"

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
                  .text = "API to call. sglang and sglang-native: /generate; names that end in -chat: "
                          "/v1/chat/completions; all others: /v1/completions"});
  rows.push_back({.name = "backend",
                  .kind = kOne,
                  .commands = kOffline,
                  .group = "Load",
                  .choices = "engine",
                  .default_text = "engine",
                  .text = "measure the engine in this process"});
  rows.push_back(text_flag("base-url", kServing | kEvals, "Server", "URL", "",
                           "address of the server, as http://HOST:PORT or https://…, with or without /v1; "
                           "eval asks that server instead of loading a model"));
  rows.push_back(
      text_flag("host", kServing, "Server", "HOST", "127.0.0.1", "host of the server; not with --base-url"));
  rows.push_back({.name = "port",
                  .kind = kInteger,
                  .commands = kServing,
                  .group = "Server",
                  .value_name = "N",
                  .min = 1,
                  .max = 65535,
                  .default_text = "30000; vllm: 8000; lmdeploy: 23333",
                  .text = "port of the server; not with --base-url"});
  rows.push_back(
      text_flag("api-key", kServing | kEvals, "Server", "KEY", "", "key to send as a bearer token"));
  rows.push_back(text_flag("model-path", kServing, "Server", "NAME", "the first one that the server lists",
                           "name of the model to send with requests"));
  rows.push_back(text_flag(
      "tokenizer-path", kServing, "Server", "DIR",
      "the directory that /model_info names, if it can be read here",
      "directory with tokenizer.json, by which prompts get the right length and answers are counted again"));
  rows.push_back(
      toggle("insecure", kServing | kEvals, "Server", "do not check the certificate of an https server"));
  rows.push_back({.name = "timeout",
                  .kind = kNumber,
                  .commands = kServing | kEvals,
                  .group = "Server",
                  .value_name = "S",
                  .min = 0,
                  .min_open = true,
                  .default_text = "21600",
                  .text = "seconds that a request may take"});
}

void append_load(std::vector<Flag>& rows) {
  rows.push_back({.name = "dataset-name",
                  .kind = kOne,
                  .commands = kLoads,
                  .group = "Load",
                  .choices = "sharegpt|random|random-ids|generated-shared-prefix",
                  .default_text = "sharegpt with --dataset-path, else random",
                  .text = "kind of prompts. random: text of a given number of tokens; random-ids: random "
                          "token ids, which need no tokenizer; sharegpt: the questions of --dataset-path; "
                          "generated-shared-prefix: groups of prompts that begin with the same text"});
  rows.push_back(text_flag("dataset-path", kLoads, "Load", "FILE", "",
                           "file of conversations, as a JSON list or as one JSON object per line: sharegpt "
                           "sends their questions, random cuts prompts out of them"));
  rows.push_back(count("num-prompts", kLoads, "Load", 1, "1000", "number of requests"));
  rows.push_back(count("random-input-len", kLoads, "Load", 1, "1024",
                       "number of prompt tokens of random and random-ids"));
  rows.push_back(count("random-output-len", kLoads, "Load", 1, "1024",
                       "number of answer tokens of random and random-ids"));
  rows.push_back({.name = "random-range-ratio",
                  .kind = kNumber,
                  .commands = kLoads,
                  .group = "Load",
                  .value_name = "X",
                  .min = 0,
                  .max = 1,
                  .default_text = "0",
                  .text = "draw lengths evenly from [length · X, length]"});
  rows.push_back(count("sharegpt-output-len", kLoads, "Load", 4, "as many as the file's answer has",
                       "number of answer tokens of sharegpt"));
  rows.push_back(count("sharegpt-context-len", kLoads, "Load", 1, "no limit",
                       "leave out conversations of more than N tokens"));
  rows.push_back(
      text_flag("prompt-suffix", kLoads, "Load", "TEXT", "", "text to append to each sharegpt prompt"));
  rows.push_back(
      toggle("apply-chat-template", kLoads, "Load", "wrap sharegpt prompts in the tokenizer's chat format"));
  rows.push_back(
      count("gsp-num-groups", kLoads, "Load", 1, "64",
            "generated-shared-prefix: number of groups, which is also the number of system prompts"));
  rows.push_back(count("gsp-prompts-per-group", kLoads, "Load", 1, "16",
                       "generated-shared-prefix: number of prompts in a group"));
  rows.push_back(count("gsp-system-prompt-len", kLoads, "Load", 1, "2048",
                       "generated-shared-prefix: number of tokens of a system prompt"));
  rows.push_back(count("gsp-question-len", kLoads, "Load", 1, "128",
                       "generated-shared-prefix: number of tokens of a question"));
  rows.push_back(count("gsp-output-len", kLoads, "Load", 1, "256",
                       "generated-shared-prefix: number of tokens of an answer"));
  rows.push_back(
      text_flag("request-rate", kServing, "Load", "X", "inf",
                "number of requests per second, at random times (a Poisson process); inf: send all at once"));
  rows.push_back(
      {.name = "max-concurrency",
       .kind = kList,
       .commands = kServing,
       .group = "Load",
       .value_name = "N",
       .min = 1,
       .max = 65536,
       .default_text = "no limit",
       .text = "largest number of requests under way at once; each value of a list is measured by itself"});
  rows.push_back(count("warmup-requests", kServing, "Load", 0, "1",
                       "number of requests to send before the measurement"));
  rows.push_back(toggle("skip-warmup", kOffline, "Load", "measure from the first request on"));
  rows.push_back(toggle("flush-cache", kServing, "Load", "empty the server's prefix cache before measuring"));
  rows.push_back(toggle("tokenize-prompt", kServing, "Load", "send token ids instead of text"));
  rows.push_back(toggle("disable-stream", kServing, "Load", "ask for whole answers instead of streams"));
  rows.push_back(toggle("disable-ignore-eos", kLoads, "Load", "let an answer stop at the model's end token"));
  rows.push_back(toggle("return-logprob", kServing, "Load", "ask for log probabilities"));
  rows.push_back(text_flag("extra-request-body", kLoads, "Load", "JSON", "{}",
                           "JSON object of fields to add to each request; offline: of sampling parameters, "
                           "by their names in /generate"));
  rows.push_back({.name = "seed",
                  .kind = kInteger,
                  .commands = kLoads | kQuestions,
                  .group = "Load",
                  .value_name = "N",
                  .min = 0,
                  .max = kMaxInt64,
                  .default_text = "1; gsm8k and gpqa: 0",
                  .text = "seed of lengths, prompts, arrival times and shuffles"});
  rows.push_back(toggle("profile", kServing, "Load",
                        "call /start_profile before the measurement and /stop_profile after it"));
  for (const char* name : {"lora-name"}) {
    rows.push_back(refused(name, kList, "adapters are not supported; merge them into the checkpoint first"));
  }
  rows.push_back(
      refused("pd-separated", kSwitch, "prefill and decode run in one process; leave the flag out"));
  for (const char* name : {"image-count", "image-resolution", "image-format", "image-content"}) {
    rows.push_back(refused(name, kOne, "DeepSeek's language models accept text alone"));
  }
  rows.push_back(
      refused("do-not-exit", kSwitch, "the command always ends when it has measured; leave the flag out"));
}

void append_results(std::vector<Flag>& rows) {
  rows.push_back(text_flag("output-file", kServing, "Output", "FILE", "",
                           "file to append results to, one JSON object per line"));
  rows.push_back(
      toggle("output-details", kServing, "Output",
             "also write every request's lengths, latencies, text and error (needs --output-file)"));
  rows.push_back(text_flag("tag", kServing, "Output", "TEXT", "", "text to write into the results"));
  rows.push_back(text_flag(
      "plot", kServing, "Output", "FILE", "",
      "SVG file to draw a chart into: throughput against latency, with a point for each concurrency"));
  rows.push_back(toggle("disable-tqdm", kServing, "Output", "show no progress bar"));
  rows.push_back(text_flag("result-filename", kOffline, "Output", "FILE", "",
                           "file to append the result to, as one JSON object on a line"));
}

void append_questions(std::vector<Flag>& rows) {
  rows.push_back({.name = "data",
                  .kind = kList,
                  .commands = kGsm8k,
                  .group = "Input",
                  .value_name = "FILE",
                  .text = "files of questions, one JSON object per line with the fields question and answer, "
                          "which ends in \"#### NUMBER\" (required)"});
  rows.push_back({.name = "data",
                  .kind = kList,
                  .commands = kGpqa,
                  .group = "Input",
                  .value_name = "FILE",
                  .text = "files of questions, one JSON object per line with the fields question, "
                          "correct_answer and incorrect_answers (required)"});
  rows.push_back(
      count("num-shots", kGsm8k, "Input", 0, "5",
            "number of solved examples in front of each question, which are the first ones of the data"));
  rows.push_back(count("num-questions", kGsm8k, "Input", 1, "200",
                       "number of questions to ask, from those after the examples"));
  rows.push_back(count("num-examples", kGpqa, "Input", 1, "all",
                       "number of questions to ask, drawn at random by --seed"));
  rows.push_back({.name = "parallel",
                  .kind = kInteger,
                  .commands = kEvals,
                  .group = "Server",
                  .value_name = "N",
                  .min = 1,
                  .max = 65536,
                  .default_text = "64",
                  .text = "largest number of requests under way at once, with --base-url"});
  rows.push_back(
      count("repeat", kQuestions, "Input", 1, "1", "number of times that all questions are asked"));
  rows.push_back({.name = "thinking-mode",
                  .kind = kOne,
                  .commands = kGpqa,
                  .group = "Input",
                  .choices = "deepseek-r1|deepseek-v3",
                  .text = "let the model think before it answers, if its chat format has a switch for that"});
  rows.push_back(count("max-new-tokens", kQuestions, "Sampling", 1, "512; gpqa: 2048",
                       "largest number of tokens of an answer"));
  rows.push_back({.name = "temperature",
                  .kind = kNumber,
                  .commands = kQuestions,
                  .group = "Sampling",
                  .value_name = "X",
                  .min = 0,
                  .max = kMaxTemperature,
                  .default_text = "0",
                  .text = "sampling temperature; 0 always chooses the most probable token"});
  rows.push_back(
      {.name = "top-p",
       .kind = kNumber,
       .commands = kQuestions,
       .group = "Sampling",
       .value_name = "X",
       .min = kMinTopP,
       .max = 1,
       .default_text = "1",
       .text = "sample from the most probable tokens whose probabilities together reach X, in [1e-30, 1]"});
  rows.push_back(text_flag("answers", kQuestions, "Output", "FILE", "",
                           "file to write every answer to, one JSON object per line"));
}

}  // namespace

void append_bench_rows(std::vector<Flag>& out) {
  append_server_side(out);
  append_load(out);
  append_results(out);
  append_questions(out);
}

}  // namespace hadal::cli

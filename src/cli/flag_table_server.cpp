// Flags of the engine's schedule and of `hadal serve`; the model's are in flag_table_engine.cpp.
#include <iterator>
#include <vector>

#include "cli/flag_sets.h"

namespace hadal::cli {

using namespace flag_sets;

namespace {

Flag switch_row(std::string_view name, CommandSet commands, std::string_view group, std::string_view text) {
  return {.name = std::string(name), .commands = commands, .group = group, .text = std::string(text)};
}

Flag text_row(std::string_view name, CommandSet commands, std::string_view group, std::string_view value_name,
              std::string_view default_text, std::string_view text) {
  return {.name = std::string(name),
          .kind = kOne,
          .commands = commands,
          .group = group,
          .value_name = value_name,
          .default_text = std::string(default_text),
          .text = std::string(text)};
}

Flag choice_row(std::string_view name, CommandSet commands, std::string_view group, std::string_view choices,
                std::string_view default_text, std::string_view text) {
  Flag row = text_row(name, commands, group, "", default_text, text);
  row.choices = choices;
  return row;
}

Flag count_row(std::string_view name, CommandSet commands, std::string_view group, double min, double max,
               std::string_view default_text, std::string_view text) {
  Flag row = text_row(name, commands, group, "N", default_text, text);
  row.kind = kInteger;
  row.min = min;
  row.max = max;
  return row;
}

Flag number_row(std::string_view name, CommandSet commands, std::string_view group, double min, bool min_open,
                std::string_view default_text, std::string_view text) {
  Flag row = text_row(name, commands, group, "X", default_text, text);
  row.kind = kNumber;
  row.min = min;
  row.max = 1e9;
  row.min_open = min_open;
  return row;
}

void append_scheduling_rows(std::vector<Flag>& out) {
  constexpr std::string_view kGroup = "Scheduling";
  constexpr CommandSet kMany = kServe | kOffline;  // many requests at once
  std::vector<Flag> rows = {
      count_row("max-queued-requests", kServe, kGroup, 1, 1e9, "no limit",
                "requests that may wait; more are refused with 503"),
      count_row("max-prefill-tokens", kMany, kGroup, 1, kMaxCount, "16384",
                "prompt tokens of all requests of a step"),
      choice_row("schedule-policy", kMany, kGroup, "fcfs|lpm|priority|lof", "fcfs",
                 "who goes first: arrival, longest cached prefix, priority, longest output"),
      number_row(
          "schedule-conservativeness", kMany, kGroup, 0, true, "1.0",
          "share of the running requests' future tokens that is kept free before one more is admitted"),
      choice_row("radix-eviction-policy", kRuns, kGroup, "lru|lfu|priority", "lru",
                 "which cached prefixes go first when memory runs out"),
      switch_row("disable-radix-cache", kRuns, kGroup, "keep no prefixes between requests"),
      switch_row(
          "disable-overlap-schedule", kRuns, kGroup,
          "plan a step only when the one before it has ended; same output (on a GPU: of equal batches)"),
      switch_row(
          "enable-deterministic-inference", kRuns, kGroup,
          "reuse prompts only, never generated tokens, so that every prompt token is always computed on "
          "the same path; all else holds anyway on the CPU"),
      switch_row("enable-priority-scheduling", kServe, kGroup,
                 "requests' `priority` counts; the same as --schedule-policy priority"),
      switch_row("schedule-low-priority-values-first", kMany, kGroup, "a smaller `priority` goes first"),
      text_row("record-plans", kMany, kGroup, "FILE", "",
               "writes every decision of the scheduler, for replay"),
  };
  std::move(rows.begin(), rows.end(), std::back_inserter(out));
}

void append_http_rows(std::vector<Flag>& out) {
  constexpr std::string_view kGroup = "Server";
  std::vector<Flag> rows = {
      text_row("host", kServe, kGroup, "ADDRESS", "127.0.0.1",
               "where to listen; 0.0.0.0 or :: for everywhere"),
      count_row("port", kServe, kGroup, 0, 65535, "30000", "0: any free one, the log says which"),
      count_row("tokenizer-worker-num", kServe, kGroup, 1, 64, "the cores, at most 4",
                "I/O threads: they parse, tokenise, detokenise and write JSON"),
      text_row("ssl-keyfile", kServe, kGroup, "FILE", "",
               "private key (PEM); serves HTTPS with --ssl-certfile"),
      text_row("ssl-certfile", kServe, kGroup, "FILE", "", "certificate chain (PEM)"),
      text_row("ssl-keyfile-password", kServe, kGroup, "TEXT", "", "of --ssl-keyfile"),
      text_row("api-key", kServe, kGroup, "KEY", "no key",
               "asked for as `Authorization: Bearer KEY` on everything but health checks and /metrics"),
      text_row(
          "admin-api-key", kServe, kGroup, "KEY", "--api-key",
          "asked for instead on /flush_cache, /abort_request, pausing and profiling; opens all else too"),
      text_row("served-model-name", kServe, kGroup, "NAME", "--model-path",
               "the model's name in the OpenAI API"),
      number_row("drain-timeout", kServe, kGroup, 0, false, "60",
                 "seconds that running requests get to finish after SIGTERM or Ctrl-C"),
      number_row("watchdog-timeout", kServe, kGroup, 0, false, "300",
                 "a step that takes longer is reported and ends the server; 0: never"),
      switch_row("skip-server-warmup", kServe, kGroup, "be ready without having made a token first"),
      switch_row("skip-tokenizer-init", kServe, kGroup, "no text: /generate takes and gives token ids"),
      switch_row("allow-auto-truncate", kServe, kGroup,
                 "cut the end of prompts that are too long instead of refusing them"),
      count_row("stream-interval", kServe, kGroup, 1, 1e6, "1", "tokens of an event of a stream"),
      switch_row("incremental-streaming-output", kServe, kGroup,
                 "/generate streams what is new instead of everything so far"),
  };
  std::move(rows.begin(), rows.end(), std::back_inserter(out));
}

void append_text_rows(std::vector<Flag>& out) {
  constexpr std::string_view kGroup = "Text";
  std::vector<Flag> rows = {
      choice_row("reasoning-parser", kServe, kGroup, "auto|none|deepseek-r1|deepseek-v3",
                 "auto: what goes with the chat format", "how reasoning_content is told from content"),
      choice_row("tool-call-parser", kServe, kGroup, "auto|none|deepseekv3|deepseekv31",
                 "auto: what goes with the chat format", "how tool_calls are found in the text"),
      choice_row("grammar-backend", kServe, kGroup, "xgrammar|none", "xgrammar",
                 "constrains output to JSON schemas, expressions and grammars"),
  };
  std::move(rows.begin(), rows.end(), std::back_inserter(out));
}

void append_log_rows(std::vector<Flag>& out) {
  constexpr std::string_view kGroup = "Observation";
  std::vector<Flag> rows = {
      switch_row("enable-metrics", kServe, kGroup, "Prometheus metrics at /metrics"),
      text_row("metrics-prefix", kServe, kGroup, "TEXT", "sglang:", "of every metric's name"),
      text_row("profile-dir", kServe, kGroup, "DIR", "$SGLANG_TORCH_PROFILER_DIR, else .",
               "where /start_profile writes; its output_dir is a directory below it"),
      switch_row("enable-cache-report", kServe, kGroup,
                 "OpenAI usage says how many prompt tokens came from the cache"),
      count_row("decode-log-interval", kServe | kOffline, kGroup, 1, 1e9, "40",
                "decode steps between two `Decode batch` lines"),
      switch_row("log-requests", kServe, kGroup, "a line when a request comes and one when it ends"),
      count_row("log-requests-level", kServe, kGroup, 0, 3, "2",
                "0: counts; 1: and sampling; 2: and the first 2048 bytes of its texts; 3: all of them"),
      choice_row("log-level-http", kServe, kGroup, "debug|info|warning|error|critical|off", "--log-level",
                 "info and below: a line for every HTTP request"),
  };
  std::move(rows.begin(), rows.end(), std::back_inserter(out));
}

}  // namespace

void append_server_rows(std::vector<Flag>& out) {
  append_scheduling_rows(out);
  append_http_rows(out);
  append_text_rows(out);
  append_log_rows(out);
}

}  // namespace hadal::cli

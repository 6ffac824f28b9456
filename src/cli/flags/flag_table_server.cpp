// Holds the flags of the scheduler and of `hadal serve`; those of the model are in flag_table_engine.cpp.
#include <iterator>
#include <vector>

#include "cli/flags/flag_sets.h"

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
      count_row(
          "max-queued-requests", kServe, kGroup, 1, 1e9, "16 × max-running-requests, at least 4096",
          "largest number of waiting requests, each choice counted; further ones are refused with status "
          "503. If N is 8 or more, one client may have at most 7/8 of the N places"),
      count_row("max-prefill-tokens", kMany, kGroup, 1, kMaxCount, "16384",
                "largest number of prompt tokens in one step, over all requests"),
      count_row("max-prefill-ms", kServe, kGroup, 0, 1e6, "15; GPU: 0",
                "while a request of another client generates, prompts are cut so that they add about N "
                "milliseconds to a step; if a step without prompts takes longer than that, they at most "
                "double it; 0: no limit"),
      choice_row(
          "schedule-policy", kMany, kGroup, "fcfs|lpm|priority|lof", "fcfs",
          "which waiting request starts first: the oldest one (fcfs), the one with the longest cached prefix "
          "(lpm), the one with the highest priority, or the one with the longest possible answer (lof)"),
      number_row("schedule-conservativeness", kMany, kGroup, 0, true, "1.0",
                 "factor on the estimate of how many more tokens the running requests will need; a larger "
                 "factor starts new requests later"),
      choice_row("radix-eviction-policy", kRuns, kGroup, "lru|lfu|priority", "lru",
                 "which cached prefixes are evicted first: the least recently used (lru), the least "
                 "frequently used (lfu), or those of the lowest priority"),
      switch_row("disable-radix-cache", kRuns, kGroup, "do not keep prefixes in the cache between requests"),
      switch_row("disable-overlap-schedule", kRuns, kGroup,
                 "plan a step only after the previous one has ended; the output is the same (on a GPU: for "
                 "the same batches)"),
      switch_row("enable-deterministic-inference", kConfig, kGroup,
                 "CPU only: never reuse cached answers, only cached prompts, and never compute a part of a "
                 "prompt on "
                 "the absorbed path beside another client's request, so that the same kernels compute every "
                 "token of "
                 "a prompt each time; everything else is deterministic anyway. A GPU refuses the flag"),
      switch_row("enable-priority-scheduling", kServe, kGroup,
                 "start waiting requests by their `priority`, as --schedule-policy priority does"),
      switch_row("schedule-low-priority-values-first", kMany, kGroup,
                 "start requests with a smaller `priority` first"),
      text_row("record-plans", kMany, kGroup, "FILE", "",
               "file to write every decision of the scheduler to, for replay"),
  };
  std::move(rows.begin(), rows.end(), std::back_inserter(out));
}

void append_http_rows(std::vector<Flag>& out) {
  constexpr std::string_view kGroup = "Server";
  std::vector<Flag> rows = {
      text_row("host", kServe, kGroup, "ADDRESS", "127.0.0.1",
               "address to listen on; 0.0.0.0 or :: listens on all addresses"),
      count_row("port", kServe, kGroup, 0, 65535, "30000",
                "port to listen on; 0: any free port, which the log then names"),
      count_row("tokenizer-worker-num", kServe, kGroup, 1, 64, "the number of cores, at most 4",
                "number of I/O threads, which parse requests, tokenise, detokenise and write JSON"),
      text_row("ssl-keyfile", kServe, kGroup, "FILE", "",
               "private key (PEM); the server speaks HTTPS with this and --ssl-certfile"),
      text_row("ssl-certfile", kServe, kGroup, "FILE", "",
               "certificate chain (PEM) that belongs to --ssl-keyfile"),
      text_row("ssl-keyfile-password", kServe, kGroup, "TEXT", "", "password of --ssl-keyfile"),
      text_row("api-key", kServe, kGroup, "KEY", "no key",
               "key that requests must send as `Authorization: Bearer KEY`, except for health checks and "
               "/metrics; the variable HADAL_API_KEY sets the same key without showing it in the list of "
               "processes"),
      text_row(
          "api-key-file", kServe, kGroup, "FILE", "",
          "file of keys instead of --api-key, one per line: `KEY`, or `NAME KEY`; # begins a comment. SIGHUP "
          "makes the server read it again"),
      text_row("admin-api-key", kServe, kGroup, "KEY", "the value of --api-key; with --api-key-file: no key",
               "key that /flush_cache, /abort_request, pausing and profiling demand instead of --api-key; "
               "all other endpoints accept the admin key too. Without an admin key, a key of --api-key-file "
               "may only abort its own requests. The variable HADAL_ADMIN_API_KEY sets the same key"),
      switch_row("allow-get-admin", kServe, kGroup,
                 "let GET, and not only POST, flush the cache and start or stop a profile, as old clients of "
                 "SGLang do"),
      text_row("allowed-hosts", kServe, kGroup, "NAMES", "",
               "names, separated by commas, by which browsers may reach the server besides localhost and "
               "addresses; *: any name"),
      count_row("max-connections-per-peer", kServe, kGroup, 1, 1e6, "4096, at most 3/4 of all",
                "largest number of open connections from one address; further ones get status 503"),
      choice_row("cache-isolation", kServe, kGroup, "none|key", "none",
                 "who shares cached prefixes: all clients (none), or only requests with the same key of "
                 "--api-key-file; the field cache_salt of requests divides further"),
      number_row("client-body-share", kServe, kGroup, 0, true, "0.25",
                 "share that one client may hold of the memory for arriving request bodies (1 GiB for all "
                 "clients together)"),
      text_row(
          "rate-limit", kServe, kGroup, "N,N", "no limit",
          "requests per second and tokens per minute, of prompts and answers, that each key may use (without "
          "named keys: each address), as in 5,60000; 0: no limit; beyond them requests get status 429"),
      count_row(
          "max-request-memory", kServe, kGroup, 1, 1e9, "an eighth of the machine's memory",
          "memory in MiB that all requests together may hold (connections, headers, "
          "bodies, prompts, answers, log-probabilities, grammars), and of which those of one client may "
          "hold 7/8; requests beyond it are refused with status 503"),
      count_row("max-response-store", kServe, kGroup, 0, 1e9, "64",
                "memory in MiB, in addition to --max-request-memory, for the responses of /v1/responses that "
                "clients may continue or read again; when it is full, the oldest responses of the client "
                "that stores most are deleted; 0: none is stored"),
      count_row("max-request-tokens", kServe, kGroup, 0, kMaxCount,
                "128 x the context length, at least 4194304",
                "largest number of tokens that one request may ask for: for each of its generations (prompts "
                "x n) the tokens of the prompt and max_new_tokens; 0: no limit; beyond it status 400"),
      count_row("max-logprobs", kServe, kGroup, 0, 128, "128",
                "largest number of alternatives at a position that a request may ask for (top_logprobs_num, "
                "logprobs, top_logprobs, which OpenAI's API limits to 20); 0: none"),
      count_row(
          "max-prompt-logprobs", kServe, kGroup, 0, kMaxCount, "4194304",
          "largest number of log-probabilities of prompts that one request may ask for: for each of its "
          "generations, each scored token of the prompt and its alternatives; 0: none"),
      text_row("served-model-name", kServe, kGroup, "NAME", "the value of --model-path",
               "name of the model in the OpenAI API"),
      number_row("drain-timeout", kServe, kGroup, 0, false, "60",
                 "seconds in which running requests may finish after SIGTERM or Ctrl-C"),
      number_row("watchdog-timeout", kServe, kGroup, 0, false, "300",
                 "seconds that a step may take before the server reports it and ends; 0: no limit"),
      switch_row("skip-server-warmup", kServe, kGroup, "accept requests without generating one token first"),
      switch_row("skip-tokenizer-init", kServe, kGroup,
                 "do not load a tokenizer; /generate then reads and returns token ids"),
      switch_row("allow-auto-truncate", kServe, kGroup,
                 "cut off the end of prompts that are too long instead of refusing them"),
      count_row("stream-interval", kServe, kGroup, 1, 1e6, "1", "number of tokens per event of a stream"),
      switch_row("incremental-streaming-output", kServe, kGroup,
                 "send only the new text in each event of a /generate stream, instead of all text so far"),
  };
  std::move(rows.begin(), rows.end(), std::back_inserter(out));
}

void append_text_rows(std::vector<Flag>& out) {
  constexpr std::string_view kGroup = "Text";
  std::vector<Flag> rows = {
      choice_row("reasoning-parser", kServe, kGroup, "auto|none|deepseek-r1|deepseek-v3",
                 "auto: that of the chat format",
                 "format by which reasoning_content is separated from content"),
      choice_row("tool-call-parser", kServe, kGroup, "auto|none|deepseekv3|deepseekv31|deepseekv32",
                 "auto: that of the chat format", "format by which tool calls are found in the text"),
      choice_row(
          "content-special-tokens", kEngine | kServe, kGroup, "text|special", "special",
          "what special tokens inside the messages of a chat become: tokens like the chat format's own "
          "(special), or plain text (generate: needs --chat); requests to a server choose by the field "
          "content_special_tokens"),
      choice_row("grammar-backend", kServe, kGroup, "xgrammar|none", "xgrammar",
                 "library that restricts the output to JSON schemas, regular expressions and grammars; none: "
                 "refuse such requests"),
      switch_row("constrained-json-disable-any-whitespace", kServe, kGroup,
                 "JSON that a schema constrains has no white space but one blank after each comma and colon"),
      text_row("constrained-json-whitespace-pattern", kServe, kGroup, "REGEX",
               "one blank, or one line break and the indentation of its depth",
               "regular expression of what may stand between the tokens of JSON that a schema constrains; "
               "--constrained-json-disable-any-whitespace takes precedence"),
  };
  std::move(rows.begin(), rows.end(), std::back_inserter(out));
}

void append_log_rows(std::vector<Flag>& out) {
  constexpr std::string_view kGroup = "Observation";
  std::vector<Flag> rows = {
      switch_row("enable-metrics", kServe, kGroup, "serve Prometheus metrics at /metrics"),
      text_row("metrics-prefix", kServe, kGroup, "TEXT", "sglang:", "first part of the name of every metric"),
      text_row(
          "profile-dir", kServe, kGroup, "DIR", "$SGLANG_TORCH_PROFILER_DIR, else the current directory",
          "directory that /start_profile writes to; the output_dir of a request names a directory inside it"),
      switch_row("enable-cache-report", kServe, kGroup,
                 "report in OpenAI's usage field how many prompt tokens came from the cache"),
      text_row("audit-log", kServe, kGroup, "FILE", "",
               "file to which each request appends a line of JSON: when, who, which endpoint, how many "
               "tokens, but "
               "never a text; SIGHUP opens it again"),
      count_row("decode-log-interval", kServe | kOffline, kGroup, 1, 1e9, "40",
                "number of decode steps between two `Decode batch` log lines"),
      switch_row("log-requests", kServe, kGroup, "log each request when it arrives and when it ends"),
      count_row("log-requests-level", kServe, kGroup, 0, 3, "2",
                "what --log-requests logs. 0: the numbers of tokens; 1: also the sampling parameters; 2: "
                "also the first 2048 bytes of the texts; 3: their first 65536 bytes"),
      choice_row("log-level-http", kServe, kGroup, "debug|info|warning|error|critical|off",
                 "the value of --log-level",
                 "log level of HTTP requests; each request is logged at info and below"),
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

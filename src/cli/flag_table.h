// The one table of command line flags: the project's own, and every server flag of SGLang, each in one of
// four classes. Parser, --help and docs/flags.md are made from it. Immutable; any thread may read.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hadal::cli {

// The commands, as bits: a flag lists those it applies to.
enum class Command : uint16_t {
  kNone = 0,
  kGenerate = 1 << 0,
  kChat = 1 << 1,
  kLogits = 1 << 2,
  kTokenize = 1 << 3,
  kDetokenize = 1 << 4,
  kInfo = 1 << 5,
  kBenchOneBatch = 1 << 6,
  kEval = 1 << 7,
  kServe = 1 << 8,
  kBenchServing = 1 << 9,
  kBenchOffline = 1 << 10,
  kEvalGsm8k = 1 << 11,
  kEvalGpqa = 1 << 12,
  kTuneGemm = 1 << 13,
  kTuneMoe = 1 << 14,
};
using CommandSet = uint16_t;

struct CommandInfo {
  Command command;
  std::string_view name;     // "bench one-batch"
  std::string_view summary;  // one line for --help
  std::string_view example;  // a command line that works
};
std::span<const CommandInfo> commands();
const CommandInfo& info_of(Command command);

enum class FlagClass : uint8_t {
  kHonoured,  // does what it says
  kAlready,   // accepted with one log line: what it asks for holds anyway
  kAlias,     // another spelling of `text`
  kError,     // its subject does not exist here; `text` says what to use instead
};

enum class ValueKind : uint8_t {
  kSwitch,   // no value
  kText,     // one value, the last one counts
  kTexts,    // may be given several times: all count
  kInteger,  // in [min, max]
  kNumber,   // in [min, max], or (min, max] when min_open
  kList,     // one or more values, separated by spaces or commas
};

struct Flag {
  std::string name;  // without "--", words joined by '-'
  FlagClass flag_class = FlagClass::kHonoured;
  ValueKind kind = ValueKind::kSwitch;
  CommandSet commands = 0;  // kHonoured only
  std::string_view group;   // heading in --help
  std::string_view value_name;
  std::string choices;  // "auto|dummy": what is allowed; empty: anything
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_open = false;
  bool zero_is_out = false;  // min is -1, which has a meaning of its own; counts begin at 1
  bool gpu_only = false;     // without effect on a CPU, which is said where it is given
  std::string default_text;
  std::string
      text;  // honoured: help; already: why it holds; alias: the other name; error: what to do instead
};

// Sorted by name. A name may have several honoured rows, of disjoint sets of commands, and one row of another
// class, which then holds in the other commands; honoured rows come first.
const std::vector<Flag>& flag_table();

// The row of exactly this name (words joined by '-') that `command` honours; else the one of another class;
// else the first honoured by other commands; else null. kNone: the first row.
const Flag* find_flag(std::string_view name, Command command = Command::kNone);

// The project's own rows, appended to `rows`: of the model and how it runs, of a request (what goes in, how
// it is sampled, what comes out), of the server, of load generators and scores, and of tuning.
void append_engine_rows(std::vector<Flag>& rows);
void append_request_rows(std::vector<Flag>& rows);
void append_server_rows(std::vector<Flag>& rows);
void append_bench_rows(std::vector<Flag>& rows);
void append_tune_rows(std::vector<Flag>& rows);

// Rows of the classes "already" and "error" that SGLang's list brings, appended to `rows`.
void append_sglang_rows(std::vector<Flag>& rows);

}  // namespace hadal::cli

// Holds the table of all command line flags: the project's own and every server flag of SGLang, each in one
// of four classes. The parser, --help and docs/flags.md use it. It is immutable; any thread may read it.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hadal::cli {

// Command names the commands, as bits: a flag lists the commands that it applies to.
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
  kFetch = 1 << 15,
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
bool is_command(std::string_view name);

enum class FlagClass : uint8_t {
  kHonoured,  // does what it says
  kAlready,   // accepted with a log line at level info, because Hadal always behaves so
  kAlias,     // another spelling of `text`
  kError,     // nothing here corresponds to it; `text` says what to use instead
};

enum class ValueKind : uint8_t {
  kSwitch,   // no value
  kText,     // one value
  kTexts,    // may be given several times; all values count
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
  bool zero_is_out = false;  // -1 has a meaning of its own; other values begin at 1
  bool gpu_only = false;     // has no effect on the CPU, where a log line says so
  std::string default_text;
  // Holds for kHonoured the help, for kAlready the reason, for kAlias the other name, for kError what to do
  // instead.
  std::string text;
};

// Returns the rows, sorted by name. A name may have several honoured rows, whose sets of commands are
// disjoint, and one row of another class for all other commands. Honoured rows come first.
const std::vector<Flag>& flag_table();

// Returns the row of exactly this name (words joined by '-') that `command` honours; if there is none, the
// row of another class; else the first row that other commands honour; else null. With kNone it returns the
// first row.
const Flag* find_flag(std::string_view name, Command command = Command::kNone);

// Append the project's own rows to `rows`: for the model and how it runs, for requests (input, sampling,
// output), for the server, for load generators and scores, and for tuning.
void append_engine_rows(std::vector<Flag>& rows);
void append_request_rows(std::vector<Flag>& rows);
void append_speculation_rows(std::vector<Flag>& rows);
void append_server_rows(std::vector<Flag>& rows);
void append_bench_rows(std::vector<Flag>& rows);
void append_tune_rows(std::vector<Flag>& rows);

// Appends the rows for SGLang's other flags, of the classes kAlready and kError.
void append_sglang_rows(std::vector<Flag>& rows);

}  // namespace hadal::cli

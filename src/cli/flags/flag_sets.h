// Gives short names to the sets of commands in the flag table; only the table's files include it.
#pragma once

#include "cli/flags/flag_table.h"

namespace hadal::cli::flag_sets {

constexpr CommandSet bits(Command command) {
  return static_cast<CommandSet>(command);
}
inline constexpr CommandSet kGen = bits(Command::kGenerate);
inline constexpr CommandSet kChat = bits(Command::kChat);
inline constexpr CommandSet kLogits = bits(Command::kLogits);
inline constexpr CommandSet kTok = bits(Command::kTokenize);
inline constexpr CommandSet kDetok = bits(Command::kDetokenize);
inline constexpr CommandSet kInfo = bits(Command::kInfo);
inline constexpr CommandSet kBench = bits(Command::kBenchOneBatch);
inline constexpr CommandSet kEval = bits(Command::kEval);
inline constexpr CommandSet kServe = bits(Command::kServe);
inline constexpr CommandSet kServing = bits(Command::kBenchServing);
inline constexpr CommandSet kOffline = bits(Command::kBenchOffline);
inline constexpr CommandSet kGsm8k = bits(Command::kEvalGsm8k);
inline constexpr CommandSet kGpqa = bits(Command::kEvalGpqa);
inline constexpr CommandSet kTuneGemm = bits(Command::kTuneGemm);
inline constexpr CommandSet kTuneMoe = bits(Command::kTuneMoe);
inline constexpr CommandSet kFetch = bits(Command::kFetch);
inline constexpr CommandSet kTune = kTuneGemm | kTuneMoe;
inline constexpr CommandSet kEvals = kEval | kGsm8k | kGpqa;
inline constexpr CommandSet kEngine = kGen | kChat | kEvals;  // they send requests to an engine themselves
inline constexpr CommandSet kRuns = kEngine | kServe | kOffline;  // they run an engine
inline constexpr CommandSet kLoad = kRuns | kLogits | kBench;     // they load weights
inline constexpr CommandSet kConfig = kLoad | kInfo;              // they read config.json
inline constexpr CommandSet kText = kRuns | kTok | kDetok;        // they may read a tokenizer
inline constexpr CommandSet kSampled = kGen | kChat;              // they let the user choose the sampling
inline constexpr CommandSet kAll = kConfig | kTok | kDetok;
inline constexpr CommandSet kEvery = static_cast<CommandSet>(~CommandSet{0});

inline constexpr ValueKind kSwitch = ValueKind::kSwitch;
inline constexpr ValueKind kOne = ValueKind::kText;
inline constexpr ValueKind kTexts = ValueKind::kTexts;
inline constexpr ValueKind kInteger = ValueKind::kInteger;
inline constexpr ValueKind kNumber = ValueKind::kNumber;
inline constexpr ValueKind kList = ValueKind::kList;

inline constexpr double kMaxCount = 1e12;
inline constexpr double kMaxInt64 =
    9223372036854775807.0;  // as a double it is one larger, which the parser cannot exceed

}  // namespace hadal::cli::flag_sets

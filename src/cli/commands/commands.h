// Declares the commands, each in a file of its own (command_<name>.cpp). A command receives checked flags and
// returns the exit code, or a status that run() turns into one line and an exit code: 2 for kInvalidArgument,
// 130 for kCancelled, and 1 for others.
#pragma once

#include "base/result.h"
#include "cli/flags/flag_parser.h"
#include "cli/options.h"

namespace hadal::cli {

Result<int> run_generate(const ParsedFlags& flags, const Environment& environment);
Result<int> run_chat(const ParsedFlags& flags, const Environment& environment);
Result<int> run_logits(const ParsedFlags& flags, const Environment& environment);
Result<int> run_tokenize(const ParsedFlags& flags, const Environment& environment);
Result<int> run_detokenize(const ParsedFlags& flags, const Environment& environment);
Result<int> run_fetch(const ParsedFlags& flags, const Environment& environment);
Result<int> run_info(const ParsedFlags& flags, const Environment& environment);
Result<int> run_bench_one_batch(const ParsedFlags& flags, const Environment& environment);
Result<int> run_eval(const ParsedFlags& flags, const Environment& environment);

Result<int> run_eval_gsm8k(const ParsedFlags& flags, const Environment& environment);
Result<int> run_eval_gpqa(const ParsedFlags& flags, const Environment& environment);
Result<int> run_serve(const ParsedFlags& flags, const Environment& environment);
Result<int> run_bench_serving(const ParsedFlags& flags, const Environment& environment);
Result<int> run_bench_offline(const ParsedFlags& flags, const Environment& environment);
// Runs both kinds of `tune`.
Result<int> run_tune(const ParsedFlags& flags, const Environment& environment);

// Reads --input-ids, or stdin if the flag is absent.
Result<std::vector<int32_t>> read_input_ids(const ParsedFlags& flags);

// Refuses ids that the engine would refuse, but before minutes of loading: no ids, ids outside the
// vocabulary, or more than `max_tokens` ids. The error (kInvalidArgument) names the flag or the input that
// the prompt comes from.
Result<void> check_ids(const ParsedFlags& flags, std::span<const int32_t> ids, const ModelConfig& config,
                       int64_t max_tokens);

}  // namespace hadal::cli

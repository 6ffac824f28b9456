// The requests of a load: random lengths, conversations of a file, or groups that share a prefix. The same
// options give the same requests everywhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/bench_backend.h"
#include "cli/flag_parser.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace hadal::cli {

struct DatasetOptions {
  std::string name = "random";  // sharegpt, random, random-ids, generated-shared-prefix
  std::string path;
  int64_t num_prompts = 1000;
  bool num_prompts_is_set = false;  // by a flag: then it also bounds generated-shared-prefix
  int64_t random_input_len = 1024;
  int64_t random_output_len = 1024;
  double random_range_ratio = 0.0;
  int64_t sharegpt_output_len = 0;   // 0: as long as the file's answer
  int64_t sharegpt_context_len = 0;  // 0: any
  std::string prompt_suffix;
  bool apply_chat_template = false;
  int64_t gsp_num_groups = 64;
  int64_t gsp_prompts_per_group = 16;
  int64_t gsp_system_prompt_len = 2048;
  int64_t gsp_question_len = 128;
  int64_t gsp_output_len = 256;
  bool ids_only = false;  // prompts as token ids, not as text
  uint64_t seed = 1;
};
// From the flags of a load. Errors: a file that is missing, flags that contradict one another.
Result<DatasetOptions> resolve_dataset(const ParsedFlags& flags);

// `tokenizer` may be null for random-ids, which then draws ids below `vocab_size`. `format`: for
// apply_chat_template. Errors: kInvalidArgument (no tokenizer), kDataLoss (the file).
Result<std::vector<LoadRequest>> make_dataset(const DatasetOptions& options, const Tokenizer* tokenizer,
                                              std::optional<ChatFormat> format, int64_t vocab_size);

}  // namespace hadal::cli

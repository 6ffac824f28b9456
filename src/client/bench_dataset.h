// Makes the requests of a load: with random lengths, from the conversations of a file, or in groups that
// share a prefix. The same options give the same requests on every machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "client/bench_backend.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace hadal::client {

struct DatasetOptions {
  std::string name = "random";  // sharegpt, random, random-ids, generated-shared-prefix
  std::string path;
  int64_t num_prompts = 1000;
  bool num_prompts_is_set = false;  // then it also limits generated-shared-prefix
  int64_t random_input_len = 1024;
  int64_t random_output_len = 1024;
  double random_range_ratio = 0.0;
  int64_t sharegpt_output_len = 0;   // 0: as many as the file's answer has
  int64_t sharegpt_context_len = 0;  // 0: no limit
  std::string prompt_suffix;
  bool apply_chat_template = false;
  int64_t gsp_num_groups = 64;
  int64_t gsp_prompts_per_group = 16;
  int64_t gsp_system_prompt_len = 2048;
  int64_t gsp_question_len = 128;
  int64_t gsp_output_len = 256;
  bool ids_only = false;  // send prompts as token ids instead of text
  uint64_t seed = 1;
};
// Returns true for all datasets except random-ids, because their prompts are texts of a given number of
// tokens.
bool needs_tokenizer(const DatasetOptions& options);

// Makes the requests. `tokenizer` may be null if needs_tokenizer() is false; token ids below `vocab_size` are
// then drawn. apply_chat_template uses `format`. The error is kDataLoss if the file's contents are wrong.
Result<std::vector<LoadRequest>> make_dataset(const DatasetOptions& options, const Tokenizer* tokenizer,
                                              std::optional<ChatFormat> format, int64_t vocab_size);

}  // namespace hadal::client

// `hadal tokenize` and `hadal detokenize` need tokenizer.json and nothing else.
#include <fmt/ranges.h>

#include "cli/commands/commands.h"
#include "cli/run.h"
#include "cli/session.h"
#include "cli/terminal.h"

namespace hadal::cli {

Result<int> run_tokenize(const ParsedFlags& flags, const Environment& environment) {
  HADAL_ASSIGN_OR_RETURN(const auto tokenizer, open_tokenizer(flags, environment));
  std::string text;
  if (const auto given = flags.text("text")) {
    text = *given;
  } else {
    HADAL_ASSIGN_OR_RETURN(text, read_stdin());
  }
  const std::vector<int32_t> ids = tokenizer->encode(text, !flags.has("no-add-special-tokens"));
  write_stdout(fmt::format("[{}]\n", fmt::join(ids, ", ")));
  return kExitOk;
}

Result<int> run_detokenize(const ParsedFlags& flags, const Environment& environment) {
  HADAL_ASSIGN_OR_RETURN(const auto tokenizer, open_tokenizer(flags, environment));
  HADAL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, read_input_ids(flags));
  for (const int32_t id : ids) {
    if (id >= tokenizer->vocab_size()) {
      return invalid_argument("{}: contains the token {}; must be in [0, {}], the vocabulary",
                              flags.has("input-ids") ? "--input-ids" : "standard input", id,
                              tokenizer->vocab_size() - 1);
    }
  }
  write_stdout(tokenizer->decode(ids, flags.has("skip-special-tokens")) + "\n");
  return kExitOk;
}

}  // namespace hadal::cli

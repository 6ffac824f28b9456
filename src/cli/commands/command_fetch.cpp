// `hadal fetch` brings a model of the Hugging Face hub into the local cache and prints its directory.
#include "cli/commands/commands.h"
#include "cli/model_source.h"
#include "cli/run.h"
#include "cli/terminal.h"
#include "hub/model_id.h"

namespace hadal::cli {

Result<int> run_fetch(const ParsedFlags& flags, const Environment& environment) {
  const std::string text = flags.text_or("model-path", "");
  const auto id = hub::parse_model_id(text);
  if (!id) {
    return invalid_argument(
        "--model-path {}; must be the name of a model on the Hugging Face hub: org/name or org/name@revision",
        text.empty() ? "is missing" : fmt::format("is {}", text));
  }
  HADAL_ASSIGN_OR_RETURN(const std::filesystem::path directory, fetch_model(*id, environment));
  write_stdout(directory.string() + "\n");
  return kExitOk;
}

}  // namespace hadal::cli

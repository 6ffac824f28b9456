// `hadal fetch` brings a model of the Hugging Face hub into the local cache and prints its directory.
#include <filesystem>
#include <system_error>

#include "cli/commands/commands.h"
#include "cli/model_source.h"
#include "cli/run.h"
#include "cli/terminal.h"
#include "hub/model_id.h"

namespace hadal::cli {

Result<int> run_fetch(const ParsedFlags& flags, const Environment& environment) {
  const std::string text = flags.text_or("model-path", "");
  std::error_code ignored;
  if (std::filesystem::is_directory(text, ignored)) {
    return invalid_argument(
        "--model-path {} is a directory here, from which every command reads the model; `hadal fetch` needs "
        "the name of a model on the Hugging Face hub: org/name or org/name@revision",
        text);
  }
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

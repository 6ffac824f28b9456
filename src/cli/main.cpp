#include <cstdlib>
#include <string>
#include <vector>

#include "base/mapping_faults.h"
#include "cli/run.h"
#include "cli/terminal.h"

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

}  // namespace

int main(int argc, char** argv) {
  hadal::cli::install_signal_handlers();
  hadal::end_on_mapping_faults(hadal::cli::kExitFailure);
  hadal::cli::Environment environment;
  environment.hub.home = variable("HOME");
  environment.hub.hf_home = variable("HF_HOME");
  environment.hub.hf_hub_cache = variable("HF_HUB_CACHE");
  if (environment.hub.hf_hub_cache.empty()) environment.hub.hf_hub_cache = variable("HUGGINGFACE_HUB_CACHE");
  environment.term = variable("TERM");
  environment.xdg_state_home = variable("XDG_STATE_HOME");
  if (const char* key = std::getenv("HADAL_API_KEY")) environment.api_key = key;
  if (const char* key = std::getenv("HADAL_ADMIN_API_KEY")) environment.admin_api_key = key;
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  return hadal::cli::run(words, environment);
}

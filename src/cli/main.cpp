#include <cstdlib>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/fatal_signals.h"
#include "base/mapping_faults.h"
#include "cli/run.h"
#include "cli/terminal.h"
#include "hub/environment.h"

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

// Returns the value of the first variable that is set. The list has a variable's name and its older names,
// which the hub's Python library supports too.
std::string first_variable(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (std::string value = variable(name); !value.empty()) return value;
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  hadal::cli::install_signal_handlers();
  hadal::tell_fatal_signals();
  hadal::end_on_mapping_faults(hadal::cli::kExitFailure);
  hadal::cli::Environment environment;
  environment.hub = {
      .hf_hub_cache = first_variable({"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}),
      .hf_home = variable("HF_HOME"),
      .xdg_cache_home = variable("XDG_CACHE_HOME"),
      .home = variable("HOME"),
      .hf_endpoint = variable("HF_ENDPOINT"),
      .hf_token = first_variable({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}),
      .hf_token_path = variable("HF_TOKEN_PATH"),
      .ssl_cert_file = variable("SSL_CERT_FILE"),
      .offline = hadal::hub::is_on(first_variable({"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"})),
  };
  environment.term = variable("TERM");
  environment.xdg_state_home = variable("XDG_STATE_HOME");
  environment.profile_dir = variable("SGLANG_TORCH_PROFILER_DIR");
  if (const char* key = std::getenv("HADAL_API_KEY")) environment.api_key = key;
  if (const char* key = std::getenv("HADAL_ADMIN_API_KEY")) environment.admin_api_key = key;
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  return hadal::cli::run(words, environment);
}
